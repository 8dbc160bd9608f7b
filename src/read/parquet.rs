#![doc = include_str!("parquet.md")]

use super::table::files::{read_all, tables};
use super::table::parquet;
use super::table::sources::{group, wandb_export};
use super::{About, Confidence, Reader, Rejected, Request, Session, Shards, is_git_lfs_pointer};
use crate::model::{Entry, Format, Limits, Recording, Source};
use crate::wire::parquet_pages::MAGIC;

/// The reader of tables in Parquet files.
pub struct ParquetTable;

impl Reader for ParquetTable {
    fn format(&self) -> Format {
        Format::Parquet
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "*.parquet: one table or the parts of one directory, with partitions (run_id=abc/) below it; W&B's \
                    *.runhistory.parquet",
            nonfinite: "IEEE NaN and Inf",
            missing: "null",
            not_read: "encrypted files; LZO; INTERVAL and types that Arrow does not know; lists, structs, maps and texts \
                       as metrics",
        }
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        let name = path.rsplit('/').next().unwrap_or(path);
        if wandb_export(name).is_some() {
            return Confidence::Likely;
        }
        let name = name.to_ascii_lowercase();
        let is_named = [".parquet", ".parq", ".pq"].iter().any(|suffix| name.ends_with(suffix));
        if is_named { Confidence::Maybe } else { Confidence::No }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        let by_name = self.recognise_name(path);
        // Files with an encrypted footer begin with another magic.
        let is_ours = head.starts_with(MAGIC) || head.starts_with(b"PARE");
        match by_name {
            Confidence::Likely => Confidence::Likely,
            _ if is_ours => Confidence::Likely,
            Confidence::Maybe if is_git_lfs_pointer(head) => Confidence::Likely,
            _ => Confidence::No,
        }
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        group(Format::Parquet, entries, own)
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        read_all(source, session, parquet::open)
    }

    fn shards<'a>(
        &self,
        source: &'a Source,
        request: &'a Request,
        limits: &'a Limits,
        session: &mut Session<'_>,
    ) -> Option<Result<Box<dyn Shards + 'a>, Rejected>> {
        Some(tables(source, request, limits, session, parquet::open))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognised_by_name_and_magic() {
        let reader = ParquetTable;
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n";
        for (path, head, want) in [
            ("a/b.parquet", &b"PAR1\x15\x04"[..], Confidence::Likely),
            ("a/b.PQ", b"PAR1", Confidence::Likely),
            ("a/b.parq", b"PARE", Confidence::Likely),
            ("a/noise", b"PAR1", Confidence::Likely),
            ("a/b.parquet", pointer, Confidence::Likely),
            ("a/b.bin", pointer, Confidence::No),
            ("a/b.parquet", b"", Confidence::No),
            ("a/b.parquet", b"PK\x03\x04", Confidence::No),
            ("a/e_p_r_0.runhistory.parquet", b"", Confidence::Likely),
        ] {
            assert_eq!(reader.recognise(path, head), want, "{path}");
        }
        assert_eq!(reader.recognise_name("e_p_r_0.runhistory.parquet"), Confidence::Likely);
        assert_eq!(reader.recognise_name("steps.parquet"), Confidence::Maybe);
        assert_eq!(reader.recognise_name("steps.parquet.txt"), Confidence::No);
    }
}
