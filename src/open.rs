//! The bytes behind a source's parts on disk. Plain reads, no memory mapping: a file that shrinks while mapped kills
//! the process.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;

use crate::model::Part;
use crate::read::{Files, Ranges};

/// Where the relative paths of one scanned root lie on disk.
#[derive(Clone, Debug, Default)]
pub struct Root {
    /// The directory that paths are relative to.
    pub base: PathBuf,
    /// Paths whose text had to be escaped (not UTF-8).
    pub odd: HashMap<String, PathBuf>,
}

impl Root {
    /// The path on disk.
    pub fn locate(&self, relative: &str) -> PathBuf {
        self.odd.get(relative).cloned().unwrap_or_else(|| self.base.join(relative))
    }
}

/// The files of one root, with the scan's cancel flag and count of bytes read.
#[derive(Debug)]
pub struct Disk<'a> {
    /// Where they lie.
    pub root: &'a Root,
    /// Set to stop the scan.
    pub cancel: &'a AtomicBool,
    /// Bytes read so far by the whole scan.
    pub read: &'a AtomicU64,
}

impl Files for Disk<'_> {
    fn open(&self, part: &Part) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(Counted { file: open_regular(&self.root.locate(&part.path))?, read: self.read }))
    }

    fn ranges(&self, part: &Part) -> io::Result<Arc<dyn Ranges>> {
        let file = open_regular(&self.root.locate(&part.path))?;
        let size = file.metadata()?.len();
        Ok(Arc::new(FileRanges { file, size }))
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

/// Opens a regular file; opening a FIFO would wait for its writer for ever.
pub fn open_regular(path: &Path) -> io::Result<File> {
    if !path.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(path)
}

/// The first bytes of a file, at most `limit`.
pub fn head(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    open_regular(path)?.take(limit as u64).read_to_end(&mut head)?;
    Ok(head)
}

struct Counted<'a> {
    file: File,
    read: &'a AtomicU64,
}

impl Read for Counted<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(into)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

struct FileRanges {
    file: File,
    size: u64,
}

impl Ranges for FileRanges {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        if range.start > range.end || range.end > self.size {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "range beyond the end of the file"));
        }
        // The range lies within the file: its length is no forged number.
        let mut bytes = vec![0; (range.end - range.start) as usize];
        read_exact_at(&self.file, &mut bytes, range.start)?;
        Ok(bytes.into())
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, into: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, at)
}

#[cfg(windows)]
fn read_exact_at(file: &File, into: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        match std::os::windows::fs::FileExt::seek_read(file, &mut into[done..], at + done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => done += count,
        }
    }
    Ok(())
}
