//! The bytes behind a source's parts: files on disk, compressed files, and members of archives. Plain reads, no memory
//! mapping: a file that shrinks while mapped kills the process. Nothing is ever unpacked to disk.

#[cfg(feature = "archives")]
pub mod archive;
#[cfg(feature = "archives")]
mod compressed;
pub mod names;
#[cfg(feature = "archives")]
mod solid;
#[cfg(feature = "archives")]
mod tarball;
#[cfg(feature = "archives")]
mod zipfile;

#[cfg(feature = "archives")]
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;

#[cfg(feature = "archives")]
use archive::{Archive, Member};
#[cfg(feature = "archives")]
use compressed::{Caps, Codec, Decompressed};
#[cfg(feature = "archives")]
use solid::{Alone, Reached, Solid, Streaming};

use crate::model::{FaultKind, Limits, Part, Source};
use crate::read::{Damage, Files, Ranges};

/// Where the relative paths of one scanned root lie on disk.
#[derive(Debug, Default)]
pub struct Root {
    /// The directory that paths are relative to.
    pub base: PathBuf,
    /// Paths whose text had to be escaped (not UTF-8).
    pub odd: HashMap<String, PathBuf>,
    /// Archives that hold recordings, by path.
    #[cfg(feature = "archives")]
    pub archives: Vec<Archive>,
}

impl Root {
    /// The path on disk.
    pub fn locate(&self, relative: &str) -> PathBuf {
        self.odd.get(relative).cloned().unwrap_or_else(|| self.base.join(relative))
    }

    /// The archive and the member that a path leads to, if it leads into one.
    #[cfg(feature = "archives")]
    fn member(&self, path: &str) -> Option<(usize, &Archive, &Member)> {
        if self.archives.is_empty() {
            return None;
        }
        path.match_indices('/').find_map(|(at, _)| {
            let index = self.archives.binary_search_by(|archive| archive.path.as_str().cmp(&path[..at])).ok()?;
            let member = self.archives[index].members.get(&path[at + 1..])?;
            Some((index, &self.archives[index], member))
        })
    }

    /// For a source in an archive that is read forward: which archive, and where in it the source begins.
    pub fn solid(&self, source: &Source) -> Option<(usize, u64)> {
        #[cfg(feature = "archives")]
        {
            let members = source.parts.iter().filter_map(|part| self.member(&part.path));
            let solid = members.filter(|(_, archive, _)| archive.container.is_solid());
            solid.map(|(index, _, member)| (index, member.ordinal)).min()
        }
        #[cfg(not(feature = "archives"))]
        {
            let _ = source;
            None
        }
    }
}

/// The files of one root, with the scan's cancel flag and count of bytes read.
pub struct Disk<'a> {
    root: &'a Root,
    cancel: &'a AtomicBool,
    read: &'a AtomicU64,
    limits: &'a Limits,
    #[cfg(feature = "archives")]
    solid: RefCell<Solid<'a>>,
}

impl<'a> Disk<'a> {
    /// `cancel` is set to stop the scan, `read` counts the bytes read by all of it.
    pub fn new(root: &'a Root, cancel: &'a AtomicBool, read: &'a AtomicU64, limits: &'a Limits) -> Self {
        Self {
            root,
            cancel,
            read,
            limits,
            #[cfg(feature = "archives")]
            solid: RefCell::default(),
        }
    }

    /// Says which sources are read next, in this order: of an archive that is read forward, what they want is kept.
    pub fn expect<'s>(&self, sources: impl Iterator<Item = &'s Source>) {
        #[cfg(feature = "archives")]
        for source in sources {
            self.solid.borrow_mut().want(self.ordinals(source));
        }
        #[cfg(not(feature = "archives"))]
        drop(sources);
    }

    /// The turn of a source that was expected.
    pub fn begin(&self, source: &Source) {
        #[cfg(feature = "archives")]
        self.solid.borrow_mut().turn(self.ordinals(source));
        #[cfg(not(feature = "archives"))]
        let _ = source;
    }

    /// The source whose turn it was is done; `panicked`: nobody knows where it left the files.
    pub fn end(&self, panicked: bool) {
        #[cfg(feature = "archives")]
        {
            let mut solid = self.solid.borrow_mut();
            solid.done();
            if panicked {
                solid.reset();
            }
        }
        #[cfg(not(feature = "archives"))]
        let _ = panicked;
    }

    fn counted<R: Read + 'a>(&self, inner: R) -> Counted<'a, R> {
        Counted { inner, read: self.read, cancel: self.cancel, spent: None }
    }
}

#[cfg(feature = "archives")]
impl<'a> Disk<'a> {
    fn ordinals(&self, source: &Source) -> impl Iterator<Item = u64> {
        let members = source.parts.iter().filter_map(|part| self.root.member(&part.path));
        let solid = members.filter(|(_, archive, _)| archive.container.is_solid());
        solid.map(|(.., member)| member.ordinal).collect::<Vec<_>>().into_iter()
    }

    fn open_member(&self, archive: &'a Archive, member: &'a Member) -> io::Result<Box<dyn Read + '_>> {
        let contents: Box<dyn Read + '_> = if archive.container.is_solid() {
            self.open_solid(archive, member)?
        } else {
            archive::open_member(&self.root.locate(&archive.path), archive, member, self.limits)?
        };
        let spent = Some((&archive.spent, self.limits.archive));
        let counted = Counted { inner: contents, read: self.read, cancel: self.cancel, spent };
        archive::not_nested(Box::new(counted))
    }

    fn open_solid(&self, archive: &'a Archive, member: &'a Member) -> io::Result<Box<dyn Read + '_>> {
        let begin = || {
            let file = open_regular(&self.root.locate(&archive.path))?;
            let unread = Heedful { inner: file, cancel: self.cancel };
            let archive::Container::Tar(Some(codec)) = archive.container else {
                return Err(io::Error::other("not a compressed tar"));
            };
            Decompressed::new(Box::new(unread) as solid::Packed<'a>, codec, archive::archive_caps(self.limits))
        };
        match self.solid.try_borrow_mut() {
            Ok(mut solid) => match solid.reach(archive, member, self.limits, begin)? {
                Reached::Kept(kept) => Ok(Box::new(kept)),
                Reached::Here => Ok(Box::new(Streaming { solid })),
            },
            // Another stream of this worker is open.
            Err(_) => {
                let mut solid = Solid::default();
                match solid.reach(archive, member, self.limits, begin)? {
                    Reached::Kept(kept) => Ok(Box::new(kept)),
                    Reached::Here => Ok(Box::new(Alone { solid })),
                }
            }
        }
    }

    fn member_ranges(&self, archive: &'a Archive, member: &'a Member) -> io::Result<Arc<dyn Ranges>> {
        if !archive.container.is_solid() {
            let file = open_regular(&self.root.locate(&archive.path))?;
            if let Some((at, size)) = archive::plain_span(&file, archive, member)? {
                return Ok(Arc::new(FileRanges { file, at, size }));
            }
        }
        whole(&mut self.open_member(archive, member)?, self.limits)
    }
}

impl Files for Disk<'_> {
    fn open(&self, part: &Part) -> io::Result<Box<dyn Read + '_>> {
        #[cfg(feature = "archives")]
        if let Some((_, archive, member)) = self.root.member(&part.path) {
            return self.open_member(archive, member);
        }
        unpacked(self.counted(open_regular(&self.root.locate(&part.path))?), self.limits)
    }

    fn ranges(&self, part: &Part) -> io::Result<Arc<dyn Ranges>> {
        #[cfg(feature = "archives")]
        if let Some((_, archive, member)) = self.root.member(&part.path) {
            return self.member_ranges(archive, member);
        }
        ranges(&self.root.locate(&part.path))
    }

    fn local(&self, part: &Part) -> Option<PathBuf> {
        #[cfg(feature = "archives")]
        if self.root.member(&part.path).is_some() {
            return None;
        }
        let path = self.root.locate(&part.path);
        path.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(path)
    }

    fn root_name(&self) -> &str {
        self.root.base.file_name().and_then(|name| name.to_str()).unwrap_or_default()
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

/// The bytes of a file at random. A compressed one has none.
pub fn ranges(path: &Path) -> io::Result<Arc<dyn Ranges>> {
    let file = open_regular(path)?;
    let size = file.metadata()?.len();
    #[cfg(feature = "archives")]
    if archive::is_packed(&read_at(&file, 0, size.min(4))?) {
        return Err(Damage::error(FaultKind::Version, "compressed, and its format seeks: unpack it first"));
    }
    Ok(Arc::new(FileRanges { file, at: 0, size }))
}

/// The bytes of a file in order, unpacked if it begins as a compressed one does.
pub fn stream(file: File, limits: &Limits) -> io::Result<Box<dyn Read>> {
    unpacked(file, limits)
}

/// The bytes of a stream whose format seeks, held in memory up to [`Limits::whole`].
pub fn whole(stream: &mut dyn Read, limits: &Limits) -> io::Result<Arc<dyn Ranges>> {
    let mut bytes = Vec::new();
    let limit = limits.whole;
    stream.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let detail = format!("a compressed member of more than {limit} bytes whose format seeks: unpack it first");
        return Err(Damage::error(FaultKind::Limit, detail));
    }
    Ok(Arc::new(MemoryRanges(bytes.into())))
}

/// The first bytes of a file, at most `limit`; of a compressed one those that it unpacks to.
pub fn head(path: &Path, limit: usize, limits: &Limits) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let read = unpacked(open_regular(path)?, limits)?.take(limit as u64).read_to_end(&mut head);
    // What stands before the damage tells what it is.
    match read {
        Err(error) if head.is_empty() => Err(error),
        _ => Ok(head),
    }
}

/// Bytes of a file read first.
#[cfg(feature = "archives")]
const BEGIN: usize = 4 << 10;

/// The stream, unpacked if it begins as a compressed one does, whatever its name.
fn unpacked<'a, R: Read + 'a>(stream: R, limits: &Limits) -> io::Result<Box<dyn Read + 'a>> {
    #[cfg(feature = "archives")]
    {
        let mut stream = stream;
        // One read tells what a file is, and mostly is all of a small one.
        let mut begin = vec![0; BEGIN];
        let mut filled = 0;
        while filled < 4 {
            match stream.read(&mut begin[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        begin.truncate(filled);
        let codec = Codec::of_magic(&begin);
        let whole = io::Cursor::new(begin).chain(stream);
        match codec {
            Some(codec) => Ok(Box::new(Decompressed::new(whole, codec, Caps::of(limits))?)),
            None => Ok(Box::new(whole)),
        }
    }
    #[cfg(not(feature = "archives"))]
    {
        let _ = limits;
        Ok(Box::new(stream))
    }
}

/// Counts what is read, and ends once the scan is cancelled.
struct Counted<'a, R> {
    inner: R,
    read: &'a AtomicU64,
    cancel: &'a AtomicBool,
    /// Bytes read of a whole archive, and how many may be.
    spent: Option<(&'a AtomicU64, u64)>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(io::Error::other("cancelled"));
        }
        let count = self.inner.read(into)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        if let Some((spent, limit)) = self.spent
            && spent.fetch_add(count as u64, Ordering::Relaxed) > limit
        {
            let detail = format!("the members of the archive unpack to more than {limit} bytes");
            return Err(Damage::error(FaultKind::Limit, detail));
        }
        Ok(count)
    }
}

/// A file whose bytes do not count, and which ends once the scan is cancelled: passing over members takes time.
#[cfg(feature = "archives")]
struct Heedful<'a> {
    inner: File,
    cancel: &'a AtomicBool,
}

#[cfg(feature = "archives")]
impl Read for Heedful<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(io::Error::other("cancelled"));
        }
        self.inner.read(into)
    }
}

struct FileRanges {
    file: File,
    /// Where the ranges begin in the file.
    at: u64,
    size: u64,
}

impl Ranges for FileRanges {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        if range.start > range.end || range.end > self.size {
            return Err(beyond());
        }
        Ok(read_at(&self.file, self.at + range.start, range.end - range.start)?.into())
    }
}

struct MemoryRanges(Bytes);

impl Ranges for MemoryRanges {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        if range.start > range.end || range.end > self.size() {
            return Err(beyond());
        }
        Ok(self.0.slice(range.start as usize..range.end as usize))
    }
}

fn beyond() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "range beyond the end of the file")
}

/// Bytes at an offset, which the caller knows to lie within the file: the length is no forged number.
fn read_at(file: &File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    let mut done = 0;
    while done < bytes.len() {
        match read_some_at(file, &mut bytes[done..], at + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

#[cfg(unix)]
fn read_some_at(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, at)
}

#[cfg(windows)]
fn read_some_at(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, at)
}
