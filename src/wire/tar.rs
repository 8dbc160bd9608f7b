//! Headers of tar archives: ustar, the older form without a magic, GNU and PAX extensions.

/// Bytes of a header; contents are padded to a multiple of them.
pub const BLOCK: usize = 512;

/// What a header announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file; a directory where its whole name ends with a slash.
    File,
    /// A directory.
    Directory,
    /// Another name of an earlier member.
    HardLink,
    /// A symbolic link.
    SymbolicLink,
    /// A file with holes in GNU's own form: its contents begin with a map.
    Sparse,
    /// The name of the next member.
    LongName,
    /// The link of the next member.
    LongLink,
    /// PAX records of the next member.
    Pax,
    /// PAX records of all members that follow.
    PaxGlobal,
    /// A device, a FIFO, a volume label ...: of no interest.
    Other(u8),
}

/// One header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Name as it stands there.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Bytes of contents that follow; may be forged.
    pub size: u64,
    /// What a link points to.
    pub link: Vec<u8>,
}

/// Whether a block is nothing but zeros, as the two are that end an archive.
pub fn is_end(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

/// Whether a file that begins with `head` is a tar archive: its first header's checksum is right.
pub fn is_tar(head: &[u8]) -> bool {
    head.first_chunk::<BLOCK>().is_some_and(|block| parse(block).is_some())
}

/// The header in a block; `None` where its checksum or a number is wrong.
pub fn parse(block: &[u8; BLOCK]) -> Option<Header> {
    let stored = number(&block[148..156])?;
    let outside = || block[..148].iter().chain(&block[156..]);
    let blanks = 8 * u64::from(b' ');
    let unsigned = outside().map(|byte| u64::from(*byte)).sum::<u64>() + blanks;
    // Some old writers summed signed bytes.
    let signed = outside().map(|byte| i64::from(*byte as i8)).sum::<i64>() + blanks as i64;
    if stored != unsigned && i64::try_from(stored) != Ok(signed) {
        return None;
    }
    let mut name = text(&block[..100]).to_vec();
    // GNU tar has other things where ustar has the begin of a long name.
    let prefix = text(&block[345..500]);
    if &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        name = [prefix, b"/", &name].concat();
    }
    let kind = match block[156] {
        // The old form marks a directory by a slash at the end of its name, of which only the begin may stand here.
        0 | b'0' | b'7' => Kind::File,
        b'1' => Kind::HardLink,
        b'2' => Kind::SymbolicLink,
        b'5' | b'D' => Kind::Directory,
        b'L' => Kind::LongName,
        b'K' => Kind::LongLink,
        b'S' => Kind::Sparse,
        b'x' | b'X' => Kind::Pax,
        b'g' => Kind::PaxGlobal,
        other => Kind::Other(other),
    };
    let size = match kind {
        // A link names the size of its target; nothing follows.
        Kind::HardLink | Kind::SymbolicLink => 0,
        // GNU's incremental backups list a directory's names there.
        Kind::Directory if block[156] != b'D' => 0,
        // Devices and FIFOs.
        Kind::Other(b'3' | b'4' | b'6') => 0,
        _ => number(&block[124..136])?,
    };
    Some(Header { name, kind, size, link: text(&block[157..257]).to_vec() })
}

/// Up to the first NUL.
pub fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or(field)
}

/// Octal digits, or GNU's big-endian binary where the first bit is set. An empty field is 0.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let mut value = u64::from(field[0] & 0x7f);
        for byte in &field[1..] {
            value = value.checked_mul(256)?.checked_add(u64::from(*byte))?;
        }
        return Some(value);
    }
    let digits = text(field).trim_ascii();
    digits.iter().try_fold(0u64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// What PAX records say of the next member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pax {
    /// Its name.
    pub path: Option<Vec<u8>>,
    /// What it links to.
    pub link: Option<Vec<u8>>,
    /// Its size.
    pub size: Option<u64>,
    /// It is a file with holes: its contents are not the file's bytes in order.
    pub sparse: bool,
}

impl Pax {
    /// Reads records `<length> <key>=<value>\n` up to the first that is none.
    pub fn read(&mut self, mut records: &[u8]) {
        while let Some(space) = records.iter().position(|byte| *byte == b' ') {
            let length = std::str::from_utf8(&records[..space]).ok().and_then(|digits| digits.parse::<usize>().ok());
            let Some(record) = length.filter(|length| *length > space + 1).and_then(|length| records.get(..length))
            else {
                return;
            };
            records = &records[record.len()..];
            let record = record[space + 1..].strip_suffix(b"\n").unwrap_or(&record[space + 1..]);
            let Some(equals) = record.iter().position(|byte| *byte == b'=') else { continue };
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                // The first form of sparse files in PAX keeps the name elsewhere.
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok()),
                b"GNU.sparse.name" => (self.path, self.sparse) = (Some(value.to_vec()), true),
                _ if key.starts_with(b"GNU.sparse.") => self.sparse = true,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(fill: impl FnOnce(&mut tar::Header)) -> [u8; BLOCK] {
        let mut header = tar::Header::new_gnu();
        fill(&mut header);
        header.set_cksum();
        *header.as_bytes()
    }

    #[test]
    fn headers_as_the_tar_crate_writes_them() {
        let file = parse(&block(|header| {
            header.set_path("runs/a/metrics.jsonl").unwrap();
            header.set_size(1234);
        }));
        let want = Header { name: b"runs/a/metrics.jsonl".to_vec(), kind: Kind::File, size: 1234, link: Vec::new() };
        assert_eq!(file, Some(want));
        let link = parse(&block(|header| {
            header.set_path("a").unwrap();
            header.set_size(77);
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_link_name("b/c").unwrap();
        }))
        .unwrap();
        assert_eq!((link.kind, link.size, link.link.as_slice()), (Kind::SymbolicLink, 0, b"b/c".as_slice()));
        // More than eleven octal digits: binary.
        let huge = parse(&block(|header| header.set_size(1 << 40))).unwrap();
        assert_eq!(huge.size, 1 << 40);
        let mut ustar = tar::Header::new_ustar();
        ustar.set_path(format!("{}/{}", "d".repeat(120), "f".repeat(60))).unwrap();
        ustar.set_size(0);
        ustar.set_cksum();
        assert_eq!(parse(ustar.as_bytes()).unwrap().name.len(), 181);
    }

    #[test]
    fn a_wrong_checksum_is_no_header() {
        let good = block(|header| header.set_size(3));
        assert!(is_tar(&good));
        for at in 0..BLOCK {
            let mut bad = good;
            bad[at] ^= 1;
            // A flipped bit may leave the text of the checksum as it reads.
            assert!(parse(&bad).is_none() || (148..156).contains(&at), "byte {at}");
        }
        assert!(!is_tar(&[0; BLOCK]) && is_end(&[0; BLOCK]) && !is_tar(&good[..500]));
    }

    #[test]
    fn forged_sizes_are_numbers_like_others() {
        let mut forged = tar::Header::new_gnu();
        forged.as_mut_bytes()[124..136].copy_from_slice(&[0xff; 12]);
        forged.set_cksum();
        assert_eq!(parse(forged.as_bytes()), None);
    }

    #[test]
    fn pax_records() {
        let mut pax = Pax::default();
        pax.read(b"12 path=a/b\n18 linkpath=c=d e\n16 size=1234567\n9 broken");
        assert_eq!((pax.path.as_deref(), pax.link.as_deref()), (Some(b"a/b".as_slice()), Some(b"c=d e".as_slice())));
        assert_eq!((pax.size, pax.sparse), (Some(1_234_567), false));
        let mut pax = Pax::default();
        pax.read(b"22 GNU.sparse.major=1\n19 GNU.sparse.name=x");
        assert!(pax.sparse);
        for forged in [b"99999999999999999999 path=a\n".as_slice(), b"3 path=a\n", b"0 \n", b" =\n", b"-1 path=b\n"] {
            let mut pax = Pax::default();
            pax.read(forged);
            assert_eq!(pax, Pax::default());
        }
    }
}
