//! Archives as directories: what their members are, and where their bytes lie. Nothing is unpacked to disk.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::AtomicU64;

use super::compressed::{Caps, Codec, Decompressed};
use super::tarball::{Forward, Seekable, Tar};
use super::zipfile::{self, Checked};
use super::{names, open_regular};
use crate::model::{FaultKind, Limits};
use crate::read::{Damage, is_git_lfs_pointer};
use crate::wire::{tar, zip};

/// What an archive is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// Members in a row, read forward; as it is, or all in one compressed stream.
    Tar(Option<Codec>),
    /// Members packed one by one, with a directory at the end.
    Zip,
}

impl Container {
    /// What a file's name promises: `.tar`, `.tar.gz`, `.tgz`, `.tar.zst`, `.tzst`, `.zip`.
    pub fn of_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
        if ends(&[".zip"]) {
            Some(Self::Zip)
        } else if ends(&[".tar"]) {
            Some(Self::Tar(None))
        } else if ends(&[".tar.gz", ".tar.gzip", ".tgz", ".taz"]) {
            Some(Self::Tar(Some(Codec::Gzip)))
        } else if ends(&[".tar.zst", ".tar.zstd", ".tzst", ".tzstd"]) {
            Some(Self::Tar(Some(Codec::Zstd)))
        } else {
            None
        }
    }

    /// What a file is by its first bytes.
    pub fn of_file(path: &Path, limits: &Limits) -> io::Result<Option<Self>> {
        let mut file = open_regular(path)?;
        let mut first = Vec::new();
        file.by_ref().take(4).read_to_end(&mut first)?;
        let codec = Codec::of_magic(&first);
        if codec.is_none() && zip::is_zip(&first) {
            return Ok(Some(Self::Zip));
        }
        file.rewind()?;
        let mut block = Vec::new();
        let read = match codec {
            None => file.take(tar::BLOCK as u64).read_to_end(&mut block),
            Some(codec) => {
                let unpacked = Decompressed::new(file, codec, Caps::of(limits))?;
                unpacked.take(tar::BLOCK as u64).read_to_end(&mut block)
            }
        };
        Ok(read.is_ok().then_some(Self::Tar(codec)).filter(|_| tar::is_tar(&block)))
    }

    /// Whether its members can only be read in their order.
    pub fn is_solid(self) -> bool {
        matches!(self, Self::Tar(Some(_)))
    }
}

/// Where the bytes of a member lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number in the archive.
    pub ordinal: u64,
    /// Offset of its contents in a tar, of its local header in a zip.
    pub at: u64,
    /// Bytes of its contents; may be forged.
    pub size: u64,
    /// Packed bytes.
    pub packed: u64,
    /// How they are packed; `None`: as they are.
    pub codec: Option<Codec>,
    /// CRC-32, where it is known.
    pub crc: Option<u32>,
}

/// What stands at a name in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A file that can be read.
    File(Member),
    /// A file that cannot: in plain words why.
    Unsupported(u64, String),
    /// A directory.
    Directory,
    /// Another name of an earlier member: its path in the archive.
    HardLink(String),
    /// A symbolic link: never followed.
    SymbolicLink(String),
    /// A device, a FIFO.
    Special,
}

/// One member on the way through an archive.
pub struct Item<'a> {
    /// Path below the archive.
    pub path: String,
    /// What it is.
    pub what: What,
    /// Its contents, if it is a file that can be read. What is not read is passed over.
    pub contents: &'a mut dyn Read,
}

/// An archive whose members are recordings.
#[derive(Debug)]
pub struct Archive {
    /// Its path relative to the root.
    pub path: String,
    /// What it is.
    pub container: Container,
    /// Members by their path below it: those that a source needs.
    pub members: HashMap<String, Member>,
    /// Bytes of members that were read so far.
    pub spent: AtomicU64,
}

/// Damage of an archive, at a byte of it where that is known.
pub type Broken = (FaultKind, Option<u64>, String);

/// Goes once through the archive at `path`; `visit` sees every member in order. Gives what it is, and its damage.
/// An error: nothing of it could be looked at.
pub fn list(
    path: &Path,
    named: Container,
    limits: &Limits,
    proceed: &mut dyn FnMut() -> bool,
    visit: &mut dyn FnMut(Item<'_>),
) -> io::Result<(Container, Vec<Broken>)> {
    let mut damage = Vec::new();
    let mut file = open_regular(path)?;
    let mut first = Vec::new();
    file.by_ref().take(64).read_to_end(&mut first)?;
    file.rewind()?;
    if is_git_lfs_pointer(&first) {
        return Err(Damage::error(FaultKind::Truncated, "a Git LFS pointer in place of the archive"));
    }
    // What it is tells its content; its name only where that is damaged.
    let container = match Codec::of_magic(&first) {
        Some(codec) => Container::Tar(Some(codec)),
        None if zip::is_zip(&first) => Container::Zip,
        None if named == Container::Zip => named,
        None => Container::Tar(None),
    };
    if container == Container::Zip {
        list_zip(&file, limits, proceed, visit, &mut damage)?;
        return Ok((container, damage));
    }
    let size = file.metadata()?.len();
    let mut going = true;
    let heeding = Heeding { inner: file, proceed, going: &mut going, since: 0 };
    match container {
        Container::Tar(Some(codec)) => {
            let stream = Decompressed::new(heeding, codec, archive_caps(limits))?;
            list_tar(Tar::new(stream, limits), limits, visit, &mut damage);
        }
        _ => list_tar(Tar::new(Seekable::new(heeding, size), limits), limits, visit, &mut damage),
    }
    if !going {
        // It is not the archive that ended.
        damage.clear();
    }
    Ok((container, damage))
}

/// Bounds on the one stream of a compressed tar.
pub fn archive_caps(limits: &Limits) -> Caps {
    Caps { output: limits.archive, ..Caps::of(limits) }
}

/// A file that asks now and then whether to go on, and is an error once not.
struct Heeding<'a> {
    inner: File,
    proceed: &'a mut dyn FnMut() -> bool,
    going: &'a mut bool,
    since: usize,
}

impl Read for Heeding<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.since >= 1 << 20 {
            self.since = 0;
            *self.going = *self.going && (self.proceed)();
        }
        if !*self.going {
            return Err(io::Error::other("cancelled"));
        }
        let count = self.inner.read(into)?;
        self.since += count;
        Ok(count)
    }
}

impl Seek for Heeding<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        // Passing over members takes its time as well.
        self.since += 32 << 10;
        self.inner.seek(to)
    }
}

fn list_tar<R: Forward>(mut tar: Tar<R>, limits: &Limits, visit: &mut dyn FnMut(Item<'_>), damage: &mut Vec<Broken>) {
    let mut members = 0;
    loop {
        let found = match tar.next() {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(error) => {
                let kind = Damage::kind_of(&error);
                damage.push((kind, tar.lost_at(), error.to_string()));
                // Another header may follow one that is broken, but not without end.
                if kind == FaultKind::Unparsable && damage.len() <= limits.faults {
                    continue;
                }
                return;
            }
        };
        members += 1;
        if members > limits.members {
            damage.push((FaultKind::Limit, None, format!("more than {} members", limits.members)));
            return;
        }
        if found.too_long || found.name.len() as u64 > limits.member_name {
            if damage.len() <= limits.faults {
                let detail = format!("a member whose name is longer than {} bytes", limits.member_name);
                damage.push((FaultKind::Limit, Some(found.at), detail));
            }
            continue;
        }
        let path = names::inside(&found.name, false);
        if path.is_empty() {
            continue;
        }
        let what = match found.kind {
            tar::Kind::File => What::File(Member {
                ordinal: found.ordinal,
                at: found.at,
                size: found.size,
                packed: found.size,
                codec: None,
                crc: None,
            }),
            tar::Kind::Sparse => What::Unsupported(found.size, "a sparse file in a tar archive".to_owned()),
            tar::Kind::Directory => What::Directory,
            tar::Kind::HardLink => What::HardLink(names::inside(&found.link, false)),
            tar::Kind::SymbolicLink => What::SymbolicLink(pointed(&path, &found.link)),
            _ => What::Special,
        };
        visit(Item { path, what, contents: &mut tar.contents() });
    }
}

/// Where a symbolic link leads inside its archive.
fn pointed(path: &str, link: &[u8]) -> String {
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    if link.is_empty() || link.starts_with(b"/") {
        return String::new();
    }
    names::inside(&[parent.as_bytes(), b"/", link].concat(), false)
}

fn list_zip(
    file: &File,
    limits: &Limits,
    proceed: &mut dyn FnMut() -> bool,
    visit: &mut dyn FnMut(Item<'_>),
    damage: &mut Vec<Broken>,
) -> io::Result<()> {
    let size = file.metadata()?.len();
    let directory = zipfile::directory(file, limits, proceed)?;
    damage.extend(directory.damage.into_iter().map(|(kind, at, detail)| (kind, Some(at), detail)));
    // Members whose bytes overlap multiply what an archive unpacks to.
    let mut places: Vec<(u64, u64)> = directory
        .members
        .iter()
        .map(|member| (member.at, (member.at + zip::LOCAL as u64).saturating_add(member.packed)))
        .collect();
    places.sort_unstable();
    places.dedup();
    let overlaps = |member: &zip::Member| {
        let place = (member.at, (member.at + zip::LOCAL as u64).saturating_add(member.packed));
        let at = places.partition_point(|other| *other < place);
        let before = at.checked_sub(1).is_some_and(|before| places[before].1 > place.0);
        before || places.get(at + 1).is_some_and(|after| after.0 < place.1)
    };
    for (ordinal, member) in directory.members.iter().enumerate() {
        if ordinal % 64 == 63 && !proceed() {
            return Ok(());
        }
        let path = names::inside(&member.name, member.is_dos);
        if path.is_empty() {
            continue;
        }
        let is_beyond = (member.at.saturating_add(zip::LOCAL as u64)) > size;
        let codec = match member.method {
            zip::Method::Stored => Ok(None),
            zip::Method::Deflate => Ok(Some(Codec::Deflate)),
            zip::Method::Zstd => Ok(Some(Codec::Zstd)),
            zip::Method::Other(number) => Err(number),
        };
        // No more than the file can hold, whatever is claimed.
        let packed = member.packed.min(size);
        let claimed = member.size.min(packed.saturating_mul(limits.ratio.saturating_mul(4)).max(1 << 20));
        let what = match (member.kind, codec) {
            (zip::Kind::Directory, _) => What::Directory,
            _ if is_beyond => What::Unsupported(0, "a member that lies beyond the end of the archive".to_owned()),
            _ if member.encrypted => What::Unsupported(claimed, "an encrypted member".to_owned()),
            (_, Err(number)) => What::Unsupported(claimed, format!("a member packed by method {number}")),
            _ if overlaps(member) => What::Unsupported(claimed, "a member that overlaps another one".to_owned()),
            (_, Ok(codec)) => {
                let crc = Some(member.crc).filter(|_| !(member.streamed && member.crc == 0));
                let ordinal = ordinal as u64;
                let member = Member { ordinal, at: member.at, size: claimed, packed: member.packed, codec, crc };
                What::File(member)
            }
        };
        let mut contents = Lazy { file, what: &what, limits, opened: None };
        if member.kind == zip::Kind::SymbolicLink {
            let mut link = Vec::new();
            // A link that cannot be read leads nowhere.
            let _ = contents.by_ref().take(4096).read_to_end(&mut link);
            let what = What::SymbolicLink(pointed(&path, &link));
            visit(Item { path, what, contents: &mut io::empty() });
        } else {
            visit(Item { path, what: what.clone(), contents: &mut contents });
        }
    }
    Ok(())
}

/// A member of a zip that is opened when its first byte is asked for.
struct Lazy<'a> {
    file: &'a File,
    what: &'a What,
    limits: &'a Limits,
    opened: Option<Box<dyn Read + 'a>>,
}

impl Read for Lazy<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let What::File(member) = self.what else { return Ok(0) };
        if self.opened.is_none() {
            let span = Span::new(FileRef(self.file), zipfile::contents_at(self.file, member.at)?, member.packed);
            self.opened = Some(unpacked(span, member, self.limits)?);
        }
        self.opened.as_mut().map_or(Ok(0), |stream| stream.read(into))
    }
}

/// Positioned reads.
pub trait At {
    /// Reads something at an offset; 0 at the end.
    fn read_some_at(&self, into: &mut [u8], at: u64) -> io::Result<usize>;
}

/// A file that someone else holds.
struct FileRef<'a>(&'a File);

impl At for FileRef<'_> {
    fn read_some_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        super::read_some_at(self.0, into, at)
    }
}

impl At for File {
    fn read_some_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        super::read_some_at(self, into, at)
    }
}

/// A stretch of a file. One that ends before it is an error.
pub struct Span<F> {
    file: F,
    at: u64,
    left: u64,
}

impl<F: At> Span<F> {
    /// `length` bytes from `at` on.
    pub fn new(file: F, at: u64, length: u64) -> Self {
        Self { file, at, left: length }
    }
}

impl<F: At> Read for Span<F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let want = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        let count = self.file.read_some_at(&mut into[..want], self.at)?;
        if count == 0 {
            return Err(Damage::error(FaultKind::Truncated, "the archive ends inside this member"));
        }
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

/// The contents of a member from its packed bytes.
fn unpacked<'a, F: At + 'a>(span: Span<F>, member: &Member, limits: &Limits) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match member.codec {
        None => Box::new(Checked::new(span, member.crc)),
        Some(codec) => Box::new(Checked::new(Decompressed::new(span, codec, Caps::of(limits))?, member.crc)),
    })
}

/// Opens a member of an archive that is not solid.
pub fn open_member(path: &Path, archive: &Archive, member: &Member, limits: &Limits) -> io::Result<Box<dyn Read>> {
    let file = open_regular(path)?;
    let at = if archive.container == Container::Zip { zipfile::contents_at(&file, member.at)? } else { member.at };
    unpacked(Span::new(file, at, member.packed), member, limits)
}

/// Where the bytes of a member lie in its file, if they lie there as they are.
pub fn plain_span(file: &File, archive: &Archive, member: &Member) -> io::Result<Option<(u64, u64)>> {
    let at = match archive.container {
        Container::Zip if member.codec.is_none() => zipfile::contents_at(file, member.at)?,
        Container::Tar(None) => member.at,
        _ => return Ok(None),
    };
    // Bytes that are not there are cut off, as from a file that is.
    Ok(Some((at, member.packed.min(file.metadata()?.len().saturating_sub(at)))))
}

/// Refuses contents that are compressed once more: nesting ends with the archive.
pub fn not_nested<'a>(mut contents: Box<dyn Read + 'a>) -> io::Result<Box<dyn Read + 'a>> {
    let mut head = Vec::new();
    let failed = contents.by_ref().take(4).read_to_end(&mut head).err();
    if Codec::of_magic(&head).is_some() {
        return Err(Damage::error(FaultKind::Version, "compressed inside an archive: unpack it first"));
    }
    match failed {
        // The few bytes before the damage are no record.
        Some(error) => Err(error),
        None => Ok(Box::new(io::Cursor::new(head).chain(contents))),
    }
}

/// Whether a member's name says that it is compressed or an archive itself.
pub fn is_packed_name(name: &str) -> bool {
    crate::model::source::plain(name) != name || Container::of_name(name).is_some()
}

/// Whether the first bytes of a member are those of a compressed file.
pub fn is_packed(head: &[u8]) -> bool {
    Codec::of_magic(head).is_some()
}
