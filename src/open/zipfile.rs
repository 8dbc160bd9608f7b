//! The members of a zip archive: by its directory or, where that is cut off, by the local headers.

use std::fs::File;
use std::io::{self, Read};

use memchr::memmem;

use super::read_at;
use crate::model::{FaultKind, Limits};
use crate::read::Damage;
use crate::wire::zip::{self, Member, Method};

/// The members that were found, offsets counted from the begin of the file, and what is wrong with the archive.
pub struct Directory {
    /// In the order of the directory.
    pub members: Vec<Member>,
    /// Damage, at a byte.
    pub damage: Vec<(FaultKind, u64, String)>,
}

/// Bytes of the directory read at once; longer than its longest entry.
const STEP: u64 = 1 << 20;

/// Finds the members.
pub fn directory(file: &File, limits: &Limits, proceed: &mut dyn FnMut() -> bool) -> io::Result<Directory> {
    let size = file.metadata()?.len();
    let tail_at = size.saturating_sub(zip::TAIL);
    let tail = read_at(file, tail_at, size - tail_at)?;
    let mut found = Directory { members: Vec::new(), damage: Vec::new() };
    let Some(end) = zip::end(&tail) else {
        found.damage.push((FaultKind::Truncated, size, "the archive is cut: its directory is missing".to_owned()));
        by_local_headers(file, size, limits, proceed, &mut found)?;
        return Ok(found);
    };
    let end_at = tail_at + end.position as u64;
    let (mut place, mut directory_end) = (end.directory, end_at);
    if end.zip64.is_some() {
        // Where it lies as written, or right before its locator if something stands before the archive.
        let near = end_at.saturating_sub(20 + zip::END64 as u64);
        let record = [end.zip64.unwrap_or(near), near].into_iter().find_map(|at| {
            let bytes = at.checked_add(zip::END64 as u64).filter(|end| *end <= size).map(|_| at)?;
            let bytes = read_at(file, bytes, zip::END64 as u64).ok()?;
            zip::end64(&bytes).map(|directory| (at, directory))
        });
        if let Some((at, directory)) = record {
            (place, directory_end) = (directory, at);
        }
    }
    // The directory ends where its end record begins; the difference is what was put before the archive.
    let begin = directory_end.checked_sub(place.size);
    let Some((begin, shift)) = begin.and_then(|begin| Some((begin, begin.checked_sub(place.at)?))) else {
        found.damage.push((FaultKind::Unparsable, end_at, "the end record names no place in the file".to_owned()));
        by_local_headers(file, size, limits, proceed, &mut found)?;
        return Ok(found);
    };
    let (mut at, mut window, mut window_at) = (begin, Vec::new(), begin);
    let mut count = 0u64;
    while at < directory_end {
        if count.is_multiple_of(64) && !proceed() {
            return Ok(found);
        }
        let skip = (at - window_at) as usize;
        let parsed = zip::entry(&window[skip.min(window.len())..]);
        let Some((mut member, length)) = parsed else {
            let length = STEP.min(directory_end - at);
            if at == window_at && window.len() as u64 == length {
                let detail = format!("the directory is broken after {count} of {} entries", place.entries);
                found.damage.push((FaultKind::Unparsable, at, detail));
                break;
            }
            (window, window_at) = (read_at(file, at, length)?, at);
            continue;
        };
        at += length as u64;
        count += 1;
        if found.members.len() >= limits.members {
            let detail = format!("more than {} members", limits.members);
            found.damage.push((FaultKind::Limit, at, detail));
            break;
        }
        member.at = member.at.saturating_add(shift);
        found.members.push(member);
    }
    // In Zip's first form the number of entries wraps at 65,536.
    if at >= directory_end && count % 65_536 != place.entries % 65_536 {
        let detail = format!("the directory holds {count} entries, its end record says {}", place.entries);
        found.damage.push((FaultKind::Conflict, end_at, detail));
    }
    Ok(found)
}

/// Members by their local headers, for an archive whose directory never was written.
fn by_local_headers(
    file: &File,
    size: u64,
    limits: &Limits,
    proceed: &mut dyn FnMut() -> bool,
    found: &mut Directory,
) -> io::Result<()> {
    let mut at = 0;
    while at < size && found.members.len() < limits.members && proceed() {
        let head = read_at(file, at, (zip::LOCAL as u64 + 2 * 65_535).min(size - at))?;
        let Some((mut member, length)) = zip::local(&head) else {
            // Something else: a header may follow it.
            match find(file, at + 1, size, proceed)? {
                Some(next) => at = next,
                None => break,
            }
            continue;
        };
        member.at = at;
        let begin = at + length as u64;
        if member.streamed && member.packed == 0 {
            // Its sizes stand behind it: up to the next header; the stream itself tells where it ends.
            at = find(file, begin, size, proceed)?.unwrap_or(size);
            member.packed = at - begin;
            member.size = member.packed;
        } else {
            at = begin.saturating_add(member.packed);
        }
        found.members.push(member);
    }
    Ok(())
}

/// The next local header whose fields make sense.
fn find(file: &File, from: u64, size: u64, proceed: &mut dyn FnMut() -> bool) -> io::Result<Option<u64>> {
    let mut at = from;
    while at + (zip::LOCAL as u64) < size && proceed() {
        let window = read_at(file, at, STEP.min(size - at))?;
        for position in memmem::find_iter(&window, zip::LOCAL_MAGIC) {
            let here = at + position as u64;
            let head = read_at(file, here, (zip::LOCAL as u64 + 4096).min(size - here))?;
            let is_header = |(member, _): &(Member, usize)| {
                !matches!(member.method, Method::Other(100..)) && std::str::from_utf8(&member.name).is_ok()
            };
            if zip::local(&head).is_some_and(|header| is_header(&header)) {
                return Ok(Some(here));
            }
        }
        // A magic may lie across two windows.
        at += (window.len() as u64).saturating_sub(3).max(1);
    }
    Ok(None)
}

/// Where the contents of a member begin.
pub fn contents_at(file: &File, member_at: u64) -> io::Result<u64> {
    let broken = || Damage::error(FaultKind::Unparsable, format!("no local header at byte {member_at}"));
    let head = read_at(file, member_at, zip::LOCAL as u64).map_err(|_| broken())?;
    zip::local_length(&head).and_then(|length| member_at.checked_add(length)).ok_or_else(broken)
}

/// A stream whose end is checked against what the directory says of it.
pub struct Checked<R> {
    inner: R,
    crc: flate2::Crc,
    want: Option<u32>,
    done: bool,
}

impl<R: Read> Checked<R> {
    /// `want`: the CRC-32, where it is known.
    pub fn new(inner: R, want: Option<u32>) -> Self {
        Self { inner, crc: flate2::Crc::new(), want, done: false }
    }
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.crc.update(&into[..count]);
        let ends = count == 0 && !into.is_empty() && !std::mem::replace(&mut self.done, true);
        if ends && let Some(want) = self.want.filter(|want| *want != self.crc.sum()) {
            let detail = format!("the checksum of the member is {:08x}, want {want:08x}", self.crc.sum());
            return Err(Damage::error(FaultKind::BadChecksum, detail));
        }
        Ok(count)
    }
}
