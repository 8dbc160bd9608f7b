#![doc = include_str!("arrow.md")]

use super::table::files::{read_all, tables};
use super::table::ipc;
use super::table::ipc::{CONTINUATION, MAGIC};
use super::table::sources::group;
use super::{About, Confidence, Reader, Rejected, Request, Session, Shards, is_git_lfs_pointer};
use crate::model::{Entry, Format, Limits, Recording, Source};

/// The reader of tables in Arrow IPC files and streams.
pub struct ArrowTable;

/// Bytes of the first message of a stream, its schema: more is none.
const LONGEST_SCHEMA: u32 = 64 << 20;

impl Reader for ArrowTable {
    fn format(&self) -> Format {
        Format::Arrow
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "*.arrow, *.feather, *.ipc, *.arrows: IPC files (Feather V2) and streams, one table or the parts of one \
                    directory, with partitions below it",
            nonfinite: "IEEE NaN and Inf",
            missing: "null",
            not_read: "Feather V1; big-endian files; tensors; lists, structs, maps and texts as metrics",
        }
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
        let is_named = [".arrow", ".feather", ".ipc", ".arrows"].iter().any(|suffix| name.ends_with(suffix));
        if is_named { Confidence::Maybe } else { Confidence::No }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        if head.starts_with(MAGIC) {
            return Confidence::Likely;
        }
        if self.recognise_name(path) == Confidence::No {
            return Confidence::No;
        }
        let word = |at: usize| {
            let bytes = head.get(at..)?.first_chunk::<4>()?;
            Some(u32::from_le_bytes(*bytes))
        };
        // A stream has no magic: its first message is the schema, behind its length.
        let is_stream =
            word(0) == Some(CONTINUATION) && word(4).is_some_and(|length| (1..=LONGEST_SCHEMA).contains(&length));
        // Named after the format of the first version, which is another one.
        let is_feather = head.starts_with(b"FEA1");
        if is_stream || is_feather || is_git_lfs_pointer(head) { Confidence::Likely } else { Confidence::No }
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        group(Format::Arrow, entries, own)
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        read_all(source, session, ipc::open)
    }

    fn shards<'a>(
        &self,
        source: &'a Source,
        request: &'a Request,
        limits: &'a Limits,
        session: &mut Session<'_>,
    ) -> Option<Result<Box<dyn Shards + 'a>, Rejected>> {
        Some(tables(source, request, limits, session, ipc::open))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognised_by_name_and_magic() {
        let reader = ArrowTable;
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n";
        for (path, head, want) in [
            ("a/b.arrow", &b"ARROW1\0\0\xff\xff\xff\xff"[..], Confidence::Likely),
            ("a/noise", b"ARROW1\0\0", Confidence::Likely),
            ("a/b.feather", b"FEA1", Confidence::Likely),
            ("a/b.arrows", b"\xff\xff\xff\xff\x10\x01\0\0", Confidence::Likely),
            ("a/b.arrows", b"\xff\xff\xff\xff\0\0\0\0", Confidence::No),
            ("a/b.arrows", b"\xff\xff\xff\xff\x10\x01\0\x7f", Confidence::No),
            ("a/b.bin", b"\xff\xff\xff\xff\x10\x01\0\0", Confidence::No),
            ("a/b.IPC", pointer, Confidence::Likely),
            ("a/b.arrow", b"", Confidence::No),
        ] {
            assert_eq!(reader.recognise(path, head), want, "{path}");
        }
        assert_eq!(reader.recognise_name("x/data-00000-of-00001.arrow"), Confidence::Maybe);
        assert_eq!(reader.recognise_name("x/data.arrow.json"), Confidence::No);
    }
}
