//! Files in memory: readers are cut, flipped and fuzzed without a disk.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use gradscan::detect::{self, Worker};
use gradscan::model::{Knobs, Limits, Part, Recording, Source};
use gradscan::read::{Files, Ranges, Rejected, Request, Session, reader};

thread_local! {
    /// The window buffer, handed from read to read as a worker of a scan does.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Files by path. One read of a stream gives at most `chunk` bytes.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Bytes by path.
    pub files: BTreeMap<String, Bytes>,
    /// Bytes given by one read of a stream.
    pub chunk: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self { files: BTreeMap::new(), chunk: usize::MAX }
    }
}

impl Memory {
    /// The same files, one of them with other bytes.
    pub fn with(&self, path: &str, bytes: impl Into<Bytes>) -> Self {
        let mut other = self.clone();
        other.files.insert(path.to_owned(), bytes.into());
        other
    }

    /// Reads a source by the reader of its format.
    pub fn read(&self, source: &Source, request: &Request, limits: &Limits) -> Result<Vec<Recording>, Rejected> {
        let reader = reader(source.format).expect("the format has a reader");
        // Windows are as large as the buffer: smaller limits need a new one.
        let is_usual = limits.record == Limits::default().record;
        let mut buffer = if is_usual { BUFFER.take() } else { Vec::new() };
        let recordings = reader.read(source, &mut Session { files: self, request, limits, buffer: &mut buffer });
        if is_usual {
            BUFFER.replace(buffer);
        }
        recordings
    }

    /// What a scan does with a source: read what the checks need, and judge it.
    pub fn judge(&self, source: &Source) {
        let request = Request::default();
        let (knobs, mut worker) = (Knobs::default(), Worker::default());
        for recording in self.read(source, &request, &Limits::default()).into_iter().flatten() {
            detect::judge(&recording, &knobs, &mut worker);
        }
    }

    fn bytes(&self, part: &Part) -> io::Result<&Bytes> {
        self.files.get(&part.path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Files for Memory {
    fn open(&self, part: &Part) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(Chopped { bytes: self.bytes(part)?, chunk: self.chunk }))
    }

    fn ranges(&self, part: &Part) -> io::Result<Arc<dyn Ranges>> {
        Ok(Arc::new(Whole(self.bytes(part)?.clone())))
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
