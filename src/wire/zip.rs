//! Records of zip archives: the end of the directory, its entries, local headers; Zip64 too.

use memchr::memmem;

/// Bytes of the fixed part of a local header.
pub const LOCAL: usize = 30;
/// Bytes of the fixed part of a directory entry.
pub const ENTRY: usize = 46;
/// Bytes at the end of a file in which the end record lies.
pub const TAIL: u64 = 22 + 65_535 + LOCATOR as u64;
/// Bytes of the Zip64 end record.
pub const END64: usize = 56;
const LOCATOR: usize = 20;

/// Begin of a local header.
pub const LOCAL_MAGIC: &[u8; 4] = b"PK\x03\x04";

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |two| u16::from_le_bytes([two[0], two[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Whether a file that begins with `head` is a zip archive, an empty one too.
pub fn is_zip(head: &[u8]) -> bool {
    head.starts_with(LOCAL_MAGIC) || head.starts_with(b"PK\x05\x06")
}

/// Where the directory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Offset of its first entry as written; what stands before the archive is not counted.
    pub at: u64,
    /// Its bytes.
    pub size: u64,
    /// Its entries.
    pub entries: u64,
}

/// The end record, found in the last bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Where it begins in `tail`.
    pub position: usize,
    /// What it says.
    pub directory: Directory,
    /// Offset of a Zip64 end record as written.
    pub zip64: Option<u64>,
}

/// Finds the end record in the last [`TAIL`] bytes of a file.
pub fn end(tail: &[u8]) -> Option<End> {
    // A comment may hold the magic; the record whose comment ends the file is the right one, else the last one.
    let mut last = None;
    for position in memmem::rfind_iter(tail, b"PK\x05\x06") {
        let record = &tail[position..];
        if record.len() < 22 {
            continue;
        }
        let ends = 22 + usize::from(u16_at(record, 20)) == record.len();
        if last.is_none() || ends {
            let entries = u64::from(u16_at(record, 10));
            let (size, at) = (u64::from(u32_at(record, 12)), u64::from(u32_at(record, 16)));
            let locator = position.checked_sub(LOCATOR).map(|at| &tail[at..position]);
            let zip64 = locator.filter(|bytes| bytes.starts_with(b"PK\x06\x07")).map(|bytes| u64_at(bytes, 8));
            last = Some(End { position, directory: Directory { at, size, entries }, zip64 });
        }
        if ends {
            break;
        }
    }
    last
}

/// A Zip64 end record.
pub fn end64(record: &[u8]) -> Option<Directory> {
    let whole = record.len() >= END64 && record.starts_with(b"PK\x06\x06");
    whole.then(|| Directory { at: u64_at(record, 48), size: u64_at(record, 40), entries: u64_at(record, 32) })
}

/// How a member is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// As it is.
    Stored,
    /// Raw deflate.
    Deflate,
    /// zstd.
    Zstd,
    /// Another one, by its number.
    Other(u16),
}

impl Method {
    fn of(number: u16) -> Self {
        match number {
            0 => Self::Stored,
            8 => Self::Deflate,
            20 | 93 => Self::Zstd,
            other => Self::Other(other),
        }
    }
}

/// What stands at a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link of Unix.
    SymbolicLink,
}

/// One member, from the directory or from a local header. Every number may be forged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name as it stands there.
    pub name: Vec<u8>,
    /// Written where `\` separates directories.
    pub is_dos: bool,
    /// What it is.
    pub kind: Kind,
    /// How it is packed.
    pub method: Method,
    /// Its contents are encrypted.
    pub encrypted: bool,
    /// Checksum and sizes stand behind the contents, not in the local header.
    pub streamed: bool,
    /// CRC-32 of the contents.
    pub crc: u32,
    /// Packed bytes.
    pub packed: u64,
    /// Bytes of the contents.
    pub size: u64,
    /// Offset of the local header as written.
    pub at: u64,
}

/// A directory entry at the begin of `bytes`, and its bytes. `None`: there is none, or it is cut.
pub fn entry(bytes: &[u8]) -> Option<(Member, usize)> {
    if bytes.len() < ENTRY || !bytes.starts_with(b"PK\x01\x02") {
        return None;
    }
    let [name, extra, comment] = [28, 30, 32].map(|at| usize::from(u16_at(bytes, at)));
    let length = ENTRY + name + extra + comment;
    let rest = bytes.get(ENTRY..length)?;
    let (name, extra) = (&rest[..name], &rest[name..name + extra]);
    let (flags, host, mode) = (u16_at(bytes, 8), bytes[5], u32_at(bytes, 38) >> 16);
    let kind = match (name.last(), host, mode & 0o170_000) {
        (Some(b'/'), ..) => Kind::Directory,
        (_, 3 | 19, 0o120_000) => Kind::SymbolicLink,
        _ => Kind::File,
    };
    let mut member = Member {
        name: name.to_vec(),
        is_dos: matches!(host, 0 | 10 | 11 | 14) && !name.contains(&b'/'),
        kind,
        method: Method::of(u16_at(bytes, 10)),
        encrypted: flags & 0x2041 != 0,
        streamed: flags & 8 != 0,
        crc: u32_at(bytes, 16),
        packed: u64::from(u32_at(bytes, 20)),
        size: u64::from(u32_at(bytes, 24)),
        at: u64::from(u32_at(bytes, 42)),
    };
    widen(extra, [&mut member.size, &mut member.packed, &mut member.at]);
    Some((member, length))
}

/// A local header at the begin of `bytes`, and its bytes: the contents follow. `None`: there is none, or it is cut.
pub fn local(bytes: &[u8]) -> Option<(Member, usize)> {
    if bytes.len() < LOCAL || !bytes.starts_with(LOCAL_MAGIC) {
        return None;
    }
    let [name, extra] = [26, 28].map(|at| usize::from(u16_at(bytes, at)));
    let length = LOCAL + name + extra;
    let rest = bytes.get(LOCAL..length)?;
    let flags = u16_at(bytes, 6);
    let mut member = Member {
        name: rest[..name].to_vec(),
        is_dos: !rest[..name].contains(&b'/'),
        kind: if rest[..name].last() == Some(&b'/') { Kind::Directory } else { Kind::File },
        method: Method::of(u16_at(bytes, 8)),
        encrypted: flags & 0x2041 != 0,
        streamed: flags & 8 != 0,
        crc: u32_at(bytes, 14),
        packed: u64::from(u32_at(bytes, 18)),
        size: u64::from(u32_at(bytes, 22)),
        at: 0,
    };
    let mut unused = 0;
    widen(&rest[name..], [&mut member.size, &mut member.packed, &mut unused]);
    Some((member, length))
}

/// Bytes of the local header at the begin of `bytes`, of which the fixed part suffices.
pub fn local_length(bytes: &[u8]) -> Option<u64> {
    let whole = bytes.len() >= LOCAL && bytes.starts_with(LOCAL_MAGIC);
    whole.then(|| LOCAL as u64 + u64::from(u16_at(bytes, 26)) + u64::from(u16_at(bytes, 28)))
}

/// Numbers that do not fit 32 bits stand in the Zip64 extra field, in this order.
fn widen(mut extra: &[u8], numbers: [&mut u64; 3]) {
    while extra.len() >= 4 {
        let (tag, length) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let Some(field) = extra.get(4..4 + length) else { return };
        extra = &extra[4 + length..];
        if tag == 1 {
            let wide = numbers.into_iter().filter(|number| **number == u64::from(u32::MAX));
            wide.zip(field.chunks_exact(8)).for_each(|(number, bytes)| *number = u64_at(bytes, 0));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Cursor, Write};
    use zip::write::SimpleFileOptions;

    fn archive(large: bool, comment: &str) -> Vec<u8> {
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default().large_file(large);
        writer.add_directory("runs", options).unwrap();
        for (name, method) in [("runs/a", zip::CompressionMethod::Stored), ("b", zip::CompressionMethod::Deflated)] {
            writer.start_file(name, options.compression_method(method)).unwrap();
            writer.write_all(&[b'x'; 1000]).unwrap();
        }
        writer.add_symlink("link", "runs/a", options).unwrap();
        writer.set_comment(comment).unwrap();
        writer.finish().unwrap().into_inner()
    }

    #[test]
    fn the_directory_as_the_zip_crate_writes_it() {
        for (large, comment) in [(false, ""), (true, "PK\x05\x06 in a comment that is long enough for a record")] {
            let bytes = archive(large, comment);
            assert!(is_zip(&bytes));
            let found = end(&bytes).unwrap();
            assert_eq!((found.directory.entries, found.zip64), (4, None));
            assert_eq!(found.directory.at + found.directory.size, found.position as u64);
            let mut rest = &bytes[found.directory.at as usize..found.position];
            let mut members = Vec::new();
            while let Some((member, length)) = entry(rest) {
                rest = &rest[length..];
                members.push(member);
            }
            let shown: Vec<_> = members.iter().map(|m| (m.name.as_slice(), m.kind, m.method, m.size)).collect();
            let want = [
                (b"runs/".as_slice(), Kind::Directory, Method::Stored, 0),
                (b"runs/a", Kind::File, Method::Stored, 1000),
                (b"b", Kind::File, Method::Deflate, 1000),
                (b"link", Kind::SymbolicLink, Method::Stored, 6),
            ];
            assert_eq!(shown, want);
            let at = members[1].at as usize;
            let (header, length) = local(&bytes[at..]).unwrap();
            assert_eq!(
                (header.name.as_slice(), header.packed, header.crc),
                (b"runs/a".as_slice(), 1000, members[1].crc)
            );
            assert_eq!(local_length(&bytes[at..at + LOCAL]), Some(length as u64));
            assert_eq!(&bytes[at + length..at + length + 3], b"xxx");
        }
    }

    #[test]
    fn zip64_numbers_stand_in_the_extra_field() {
        let (mut size, mut packed, mut at) = (u64::from(u32::MAX), 7, u64::from(u32::MAX));
        let mut extra = vec![9, 9, 2, 0, 1, 1, 1, 0, 16, 0];
        extra.extend((5u64 << 32).to_le_bytes());
        extra.extend((6u64 << 32).to_le_bytes());
        widen(&extra, [&mut size, &mut packed, &mut at]);
        assert_eq!((size, packed, at), (5 << 32, 7, 6 << 32));
        let mut record = b"PK\x06\x06".to_vec();
        record.resize(32, 0);
        [3u64, 4, 5].iter().for_each(|number| record.extend(number.to_le_bytes()));
        assert_eq!(end64(&record), Some(Directory { at: 5, size: 4, entries: 3 }));
        assert_eq!(end64(&record[..50]), None);
    }

    #[test]
    fn any_cut_is_no_record() {
        let bytes = archive(false, "");
        let found = end(&bytes).unwrap();
        for cut in 0..22 {
            assert_eq!(end(&bytes[..found.position + cut]), None);
        }
        let directory = &bytes[found.directory.at as usize..];
        let (_, length) = entry(directory).unwrap();
        assert!((0..length).all(|cut| entry(&directory[..cut]).is_none()));
    }
}
