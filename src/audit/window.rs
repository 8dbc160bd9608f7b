//! Bytes in order through one buffer.

use std::io::{self, Read};

/// Bytes in order, some of which can be passed over.
pub trait Input {
    /// Reads something; 0 at the end.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Passes over bytes unseen; gives how many there were.
    fn pass(&mut self, count: u64) -> io::Result<u64>;
}

/// A stream that can be passed over only by reading it.
pub struct Streamed<R>(pub R);

impl<R: Read> Input for Streamed<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }

    fn pass(&mut self, count: u64) -> io::Result<u64> {
        io::copy(&mut self.0.by_ref().take(count), &mut io::sink())
    }
}

/// Bytes of the buffer: they stay in the second cache between the read and the count.
pub const BUFFER: usize = 512 << 10;

/// What is left of an [`Input`], seen through a buffer.
pub struct Window<'a> {
    input: &'a mut dyn Input,
    buffer: &'a mut Vec<u8>,
    start: usize,
    end: usize,
    at: u64,
}

impl<'a> Window<'a> {
    /// From where the input stands, which counts as byte 0. The buffer is the caller's, for the next file; an empty one
    /// gets [`BUFFER`] bytes.
    pub fn new(input: &'a mut dyn Input, buffer: &'a mut Vec<u8>) -> Self {
        if buffer.is_empty() {
            buffer.resize(BUFFER, 0);
        }
        Self { input, buffer, start: 0, end: 0, at: 0 }
    }

    /// Offset of the next byte.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The next bytes: at most `want`, at least one; none at the end.
    pub fn next(&mut self, want: u64) -> io::Result<&[u8]> {
        if self.start == self.end && want > 0 {
            (self.start, self.end) = (0, 0);
            self.end = loop {
                match self.input.read(self.buffer) {
                    Ok(count) => break count.min(self.buffer.len()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            };
        }
        let count = (self.end - self.start).min(usize::try_from(want).unwrap_or(usize::MAX));
        let bytes = self.start..self.start + count;
        self.start += count;
        self.at += count as u64;
        Ok(&self.buffer[bytes])
    }

    /// Gives the next `count` bytes in pieces; fewer at the end of the input. Says how many there were.
    pub fn each(&mut self, count: u64, mut give: impl FnMut(&[u8])) -> io::Result<u64> {
        let mut left = count;
        while left > 0 {
            let bytes = self.next(left)?;
            if bytes.is_empty() {
                break;
            }
            left -= bytes.len() as u64;
            give(bytes);
        }
        Ok(count - left)
    }

    /// Passes over bytes unseen; says how many there were.
    pub fn pass(&mut self, count: u64) -> io::Result<u64> {
        let buffered = ((self.end - self.start) as u64).min(count);
        self.start += buffered as usize;
        self.at += buffered;
        let passed = if buffered == count { 0 } else { self.input.pass(count - buffered)? };
        self.at += passed;
        Ok(buffered + passed)
    }

    /// The next `count` bytes, or what there is of them: they are held, and grow as they come.
    pub fn take(&mut self, count: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.each(count, |piece| bytes.extend_from_slice(piece))?;
        Ok(bytes)
    }
}
