//! Files in memory, for tests of readers.

use std::collections::HashMap;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::{Files, Ranges, Reader, Rejected, Request, Session};
use crate::model::{Limits, Part, Recording, Source};

/// Files by path. Reads give at most [`chunk`](Self::chunk) bytes, so that windows end anywhere.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Bytes by path.
    pub parts: HashMap<String, Vec<u8>>,
    /// Bytes given by one read of a stream.
    pub chunk: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self { parts: HashMap::new(), chunk: usize::MAX }
    }
}

impl Memory {
    /// The files given.
    pub fn new<N: Into<String>, B: Into<Vec<u8>>>(parts: impl IntoIterator<Item = (N, B)>) -> Self {
        let parts = parts.into_iter().map(|(name, bytes)| (name.into(), bytes.into())).collect();
        Self { parts, ..Self::default() }
    }

    /// A part of a source, by its path.
    pub fn part(&self, path: &str) -> Part {
        let name = path.rsplit('/').next().unwrap_or(path).to_owned();
        Part { path: path.to_owned(), name, size: self.parts.get(path).map_or(0, |bytes| bytes.len() as u64) }
    }

    /// Reads a source with a reader, with the default limits and nothing asked.
    pub fn read(&self, reader: &dyn Reader, source: &Source) -> Result<Vec<Recording>, Rejected> {
        self.read_with(reader, source, &Request::default(), &Limits::default())
    }

    /// Reads a source with a reader.
    pub fn read_with(
        &self,
        reader: &dyn Reader,
        source: &Source,
        request: &Request,
        limits: &Limits,
    ) -> Result<Vec<Recording>, Rejected> {
        let mut buffer = Vec::new();
        reader.read(source, &mut Session { files: self, request, limits, buffer: &mut buffer })
    }

    fn bytes(&self, part: &Part) -> io::Result<&[u8]> {
        self.parts.get(&part.path).map(Vec::as_slice).ok_or(io::ErrorKind::NotFound.into())
    }
}

impl Files for Memory {
    fn open(&self, part: &Part) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(Chopped { bytes: self.bytes(part)?, chunk: self.chunk }))
    }

    fn ranges(&self, part: &Part) -> io::Result<Arc<dyn Ranges>> {
        Ok(Arc::new(Whole(Bytes::copy_from_slice(self.bytes(part)?))))
    }

    fn cancelled(&self) -> bool {
        false
    }
}

struct Chopped<'a> {
    bytes: &'a [u8],
    chunk: usize,
}

impl Read for Chopped<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.len().min(self.chunk).min(into.len());
        into[..count].copy_from_slice(&self.bytes[..count]);
        self.bytes = &self.bytes[count..];
        Ok(count)
    }
}

struct Whole(Bytes);

impl Ranges for Whole {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        if range.start > range.end || range.end > self.size() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(self.0.slice(range.start as usize..range.end as usize))
    }
}
