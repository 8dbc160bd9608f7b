//! Readers: bytes of one format in, rows out. Pure: a reader sees slices and the [`Files`] that it is given, never a
//! path on disk, so that it can be cut, flipped and fuzzed without a file.

mod apart;
#[cfg(feature = "tables")]
pub mod arrow;
pub mod axis;
pub mod broken;
pub mod builder;
pub mod clearml;
mod clock;
pub mod comet;
pub mod csv;
#[cfg(feature = "sqlite")]
mod database;
pub mod deepspeed;
pub mod dvclive;
pub mod hf_trainer;
mod json_events;
mod json_rows;
pub mod jsonl;
pub mod merge;
pub mod mlflow;
#[cfg(feature = "sqlite")]
pub mod mlflow_sql;
pub mod neptune;
mod one_metric;
#[cfg(feature = "tables")]
pub mod parquet;
#[cfg(feature = "parquet")]
mod parquet_columns;
#[cfg(feature = "parquet")]
pub mod rlprobe;
mod series;
pub mod swanlab;
#[cfg(feature = "tables")]
pub mod table;
pub mod tensorboard;
#[cfg(test)]
pub(crate) mod testing;
pub mod torchtune;
#[cfg(feature = "sqlite")]
pub mod trackio;
pub mod transactions;
pub mod wandb;

use std::io::Read;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

pub use builder::{Builder, Column, Request, TableColumns, Want};
use bytes::Bytes;
use thiserror::Error;

use crate::model::{Entry, Fault, FaultKind, Format, Limits, Part, PlaceUnit, Recording, Source};
use crate::wire::utf16;

/// How sure a reader is that a file is of its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// It is not.
    No,
    /// It may be; look at its first bytes.
    Maybe,
    /// Its name or content is usual for the format.
    Likely,
    /// Nothing else looks like this.
    Certain,
}

/// Why nothing of a source could be read. One run's error, never the batch's.
#[derive(Debug, Error)]
pub enum Rejected {
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It looks like a recording and is none.
    #[error("{detail}")]
    Unreadable {
        /// Stable code: `git-lfs-pointer`, `cut-header`, `not-a-recording`, `limit`, `version` ...
        code: &'static str,
        /// In plain words, with what was found.
        detail: String,
    },
    /// The scan was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl Rejected {
    /// An [`Unreadable`](Self::Unreadable).
    pub fn unreadable(code: &'static str, detail: impl Into<String>) -> Self {
        Self::Unreadable { code, detail: detail.into() }
    }

    /// The stable code of the reason.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreadable { code, .. } => code,
            Self::Cancelled => "cancelled",
            Self::Io(error) => match Damage::of(error) {
                Some(damage) => match damage.kind {
                    FaultKind::Truncated => "cut-header",
                    FaultKind::Limit => "limit",
                    FaultKind::Version => "unsupported",
                    _ => "corrupt",
                },
                None => "io-error",
            },
        }
    }
}

/// What is wrong with bytes before a reader sees them (a compressed file is cut, a checksum does not match), carried by
/// an [`std::io::Error`]: with it an error in the middle of a stream becomes a fault of the right kind.
#[derive(Clone, Debug, Error)]
#[error("{detail}")]
pub struct Damage {
    /// The fault that it is. [`FaultKind::Version`]: sound, but of a kind that is not read.
    pub kind: FaultKind,
    /// In plain words.
    pub detail: String,
}

impl Damage {
    /// An error that carries it.
    pub fn error(kind: FaultKind, detail: impl Into<String>) -> std::io::Error {
        let is_cut = kind == FaultKind::Truncated;
        let io = if is_cut { std::io::ErrorKind::UnexpectedEof } else { std::io::ErrorKind::InvalidData };
        std::io::Error::new(io, Self { kind, detail: detail.into() })
    }

    /// What an error carries.
    pub fn of(error: &std::io::Error) -> Option<&Self> {
        error.get_ref().and_then(|inner| inner.downcast_ref())
    }

    /// The kind of fault that an error in the middle of a stream is.
    pub fn kind_of(error: &std::io::Error) -> FaultKind {
        match Self::of(error) {
            Some(damage) => damage.kind,
            None if error.kind() == std::io::ErrorKind::UnexpectedEof => FaultKind::Truncated,
            None => FaultKind::Io,
        }
    }
}

/// Random access to the bytes of one part.
pub trait Ranges: Send + Sync {
    /// Size in bytes when it was opened.
    fn size(&self) -> u64;
    /// The bytes of a range, which must lie within the size. A file that shrank since gives an error.
    fn read(&self, range: Range<u64>) -> std::io::Result<Bytes>;
}

/// The bytes of a source's parts, as the layer above gives them.
pub trait Files {
    /// The part's bytes in order.
    fn open(&self, part: &Part) -> std::io::Result<Box<dyn Read + '_>>;
    /// The part's bytes at random.
    fn ranges(&self, part: &Part) -> std::io::Result<Arc<dyn Ranges>>;
    /// Where the part lies on disk, for the one library that opens files itself (SQLite); `None` for members of archives,
    /// compressed files and memory.
    fn local(&self, _part: &Part) -> Option<PathBuf> {
        None
    }
    /// The name of the directory that paths are relative to, where it has one.
    fn root_name(&self) -> &str {
        ""
    }
    /// Whether the scan was cancelled; looked at between windows.
    fn cancelled(&self) -> bool;
}

/// What a stream decoder makes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many bytes are done with; the rest comes again, with more behind it.
    Used(usize),
    /// So many bytes, beyond what the window may hold, are to be passed over unseen.
    Skip(u64),
}

/// A decoder of a streamed format. The same points come out however the bytes are cut into windows.
pub trait StreamDecoder {
    /// Reads what is complete in `window`, which begins at offset `at`; `end` says that nothing follows. Must use at
    /// least one byte, or everything, once the window holds [`Limits::record`] bytes or `end` is set.
    fn feed(&mut self, window: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> Progress;
}

/// Bytes that a window starts with; it grows for longer records, up to [`Limits::record`].
pub const WINDOW: usize = 256 << 10;

/// What every read of a scan shares.
pub struct Session<'a> {
    /// Bytes of the parts.
    pub files: &'a dyn Files,
    /// What the user asks.
    pub request: &'a Request,
    /// The bounds.
    pub limits: &'a Limits,
    /// Window buffer, reused from source to source.
    pub buffer: &'a mut Vec<u8>,
}

impl<'a> Session<'a> {
    /// A builder for a recording of this session.
    pub fn builder(&self, format: Format, place_unit: PlaceUnit) -> Builder<'a> {
        Builder::new(format, self.request, self.limits, place_unit)
    }

    /// A builder for a recording of single points; `of_evaluation`: its losses are those of an evaluation.
    pub fn builder_of_points(&self, format: Format, of_evaluation: bool) -> Builder<'a> {
        Builder::of_points(format, self.request, self.limits, PlaceUnit::Byte, of_evaluation)
    }

    /// Streams a part through a decoder in windows. An error in the middle of a file is a fault, one before its first
    /// byte is returned.
    pub fn stream(
        &mut self,
        part: &Part,
        decoder: &mut dyn StreamDecoder,
        into: &mut Builder<'_>,
    ) -> Result<(), Rejected> {
        let files = self.files;
        self.pump(files.open(part)?, decoder, into)
    }

    /// As [`stream`](Self::stream) for a text format: UTF-16 arrives as UTF-8, and places count its bytes.
    pub fn stream_text(
        &mut self,
        part: &Part,
        decoder: &mut dyn StreamDecoder,
        into: &mut Builder<'_>,
    ) -> Result<(), Rejected> {
        let files = self.files;
        let mut file = files.open(part)?;
        let mut head = Vec::new();
        file.by_ref().take(4).read_to_end(&mut head)?;
        let whole = std::io::Cursor::new(head.clone()).chain(file);
        match utf16::order(&head) {
            Some(order) => self.pump(Box::new(utf16::Utf8::new(whole, order)), decoder, into),
            None => self.pump(Box::new(whole), decoder, into),
        }
    }

    fn pump(
        &mut self,
        mut file: Box<dyn Read + '_>,
        decoder: &mut dyn StreamDecoder,
        into: &mut Builder<'_>,
    ) -> Result<(), Rejected> {
        let capacity = WINDOW.min(self.limits.record);
        let buffer = &mut *self.buffer;
        if buffer.len() < capacity {
            buffer.resize(capacity, 0);
        }
        let (mut at, mut filled, mut end) = (0u64, 0usize, false);
        loop {
            if self.files.cancelled() {
                return Err(Rejected::Cancelled);
            }
            while !end && filled < buffer.len() {
                match file.read(&mut buffer[filled..]) {
                    Ok(0) => end = true,
                    Ok(count) => filled += count,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(_) if self.files.cancelled() => return Err(Rejected::Cancelled),
                    Err(error) if at == 0 && filled == 0 => return Err(error.into()),
                    Err(error) => {
                        let place = into.place(PlaceUnit::Byte, at + filled as u64);
                        into.fault(Fault::new(Damage::kind_of(&error), place, error.to_string()));
                        end = true;
                    }
                }
            }
            let used = match decoder.feed(&buffer[..filled], at, end, into) {
                Progress::Used(used) => used.min(filled),
                Progress::Skip(count) => {
                    let skipped = match skip(&mut file, buffer, filled, count) {
                        Ok(skipped) => skipped,
                        Err(_) if self.files.cancelled() => return Err(Rejected::Cancelled),
                        Err(error) => {
                            let place = into.place(PlaceUnit::Byte, at);
                            into.fault(Fault::new(Damage::kind_of(&error), place, error.to_string()));
                            return Ok(());
                        }
                    };
                    at += skipped.0;
                    filled = skipped.1;
                    end |= skipped.2;
                    if end && filled == 0 {
                        // The decoder learns where the file ended: inside of what it passed over, perhaps.
                        decoder.feed(&[], at, true, into);
                        return Ok(());
                    }
                    continue;
                }
            };
            if end && (used == filled || used == 0) {
                return Ok(());
            }
            buffer.copy_within(used..filled, 0);
            filled -= used;
            at += used as u64;
            if used == 0 && filled == buffer.len() {
                if buffer.len() >= self.limits.record {
                    // The decoder broke its promise; going on would never end.
                    let place = into.place(PlaceUnit::Byte, at);
                    into.fault(Fault::new(FaultKind::Limit, place, "a record is longer than the limit"));
                    return Ok(());
                }
                let larger = (buffer.len() * 4).min(self.limits.record);
                buffer.resize(larger, 0);
            }
        }
    }

    /// A small companion file whole; longer than [`Limits::companion`] is an error.
    pub fn whole(&mut self, part: &Part) -> Result<Vec<u8>, Rejected> {
        let mut bytes = Vec::new();
        let limit = self.limits.companion;
        self.files.open(part)?.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(Rejected::unreadable("limit", format!("{}: longer than {limit} bytes", part.name)));
        }
        Ok(bytes)
    }
}

/// Passes over `count` bytes: what is left of the window first, then the file. Gives bytes passed, bytes left in the
/// window, and whether the file ended.
fn skip(file: &mut dyn Read, buffer: &mut [u8], filled: usize, count: u64) -> std::io::Result<(u64, usize, bool)> {
    if count <= filled as u64 {
        let count = count as usize;
        buffer.copy_within(count..filled, 0);
        return Ok((count as u64, filled - count, false));
    }
    let mut left = count - filled as u64;
    while left > 0 {
        let want = left.min(buffer.len() as u64) as usize;
        match file.read(&mut buffer[..want]) {
            Ok(0) => return Ok((count - left, 0, true)),
            Ok(passed) => left -= passed as u64,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((count, 0, false))
}

/// One format.
pub trait Reader: Sync {
    /// Which.
    fn format(&self) -> Format;

    /// Version of what it makes of bytes; stored results depend on it.
    fn version(&self) -> u32;

    /// What users see of it in `gradscan formats`.
    fn about(&self) -> About;

    /// The trackers whose files it was tried on. Empty for formats that are no tracker's own.
    fn trackers(&self) -> &'static [Tracker] {
        &[]
    }

    /// By the name alone. [`Confidence::Maybe`] asks for the file's head.
    fn recognise_name(&self, path: &str) -> Confidence;

    /// By name and first bytes (at most [`Limits::head`], the whole file where it is shorter).
    fn recognise(&self, path: &str, head: &[u8]) -> Confidence;

    /// Whether a file that this reader recognised makes its directory one recording, whose other files belong to it.
    fn claims_directory(&self) -> bool {
        false
    }

    /// Groups the files that this reader recognised into sources. `entries` is everything that was walked, sorted by
    /// path; `own` are indices into it. The default: each file is a recording.
    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        own.iter().map(|index| single(self.format(), &entries[*index])).collect()
    }

    /// Reads a source: one recording, or many in formats that hold many runs.
    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected>;

    /// A source that several workers may read at once, in shards; `None` where [`read`](Self::read) does it.
    fn shards<'a>(
        &self,
        _source: &'a Source,
        _request: &'a Request,
        _limits: &'a Limits,
        _session: &mut Session<'_>,
    ) -> Option<Result<Box<dyn Shards + 'a>, Rejected>> {
        None
    }
}

/// A source in shards that can be read apart from each other, each with a session of its own, and in any order. What comes
/// out never depends on that order.
pub trait Shards: Send + Sync {
    /// Number of shards.
    fn count(&self) -> usize;

    /// Reads one; gives the recordings that are complete with it.
    fn read(&self, shard: usize, session: &mut Session<'_>, give: &mut dyn FnMut(Recording));

    /// After all shards: gives what is left, and the faults of the source that are of no recording.
    fn finish(&self, give: &mut dyn FnMut(Recording)) -> Vec<Fault>;

    /// Whether there was no run at all, though no part is broken.
    fn is_empty(&self) -> bool;

    /// Parts of which nothing could be read, and those that are no recordings (code `not-a-recording`).
    fn broken(&self) -> &[(usize, Rejected)];
}

/// What `gradscan formats` says of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// Which files it reads.
    pub files: &'static str,
    /// How NaN and Inf arrive in it.
    pub nonfinite: &'static str,
    /// How a missing value looks.
    pub missing: &'static str,
    /// What of it is not read.
    pub not_read: &'static str,
}

/// What one tracker writes, and what of it is read: a row of the second table of `gradscan formats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracker {
    /// The tracker and its logger: `Weights & Biases`, `Lightning CSVLogger`.
    pub name: &'static str,
    /// Versions of the package that wrote the files of the tests; `built` where the tests build the bytes themselves.
    pub version: &'static str,
    /// Its files.
    pub files: &'static str,
    /// How NaN and Inf arrive.
    pub nonfinite: &'static str,
    /// How a missing value looks.
    pub missing: &'static str,
    /// What of it is not read.
    pub not_read: &'static str,
}

/// A file that is a recording by itself.
pub fn single(format: Format, entry: &Entry) -> Source {
    let part = Part { path: entry.path.clone(), name: entry.name().to_owned(), size: entry.size };
    Source { format, path: entry.path.clone(), directory: entry.parent().to_owned(), parts: vec![part] }
}

/// Every reader, in the order that decides between equals.
pub static READERS: &[&dyn Reader] = &[
    #[cfg(feature = "parquet")]
    &rlprobe::Rlprobe,
    &hf_trainer::HfTrainer,
    &jsonl::Jsonl,
    &tensorboard::TensorBoard,
    &mlflow::Mlflow,
    &dvclive::Dvclive,
    &deepspeed::Deepspeed,
    &comet::Comet,
    &clearml::Clearml,
    &neptune::Neptune,
    &torchtune::Torchtune,
    &wandb::Wandb,
    &swanlab::Swanlab,
    &csv::Csv,
    #[cfg(feature = "tables")]
    &parquet::ParquetTable,
    #[cfg(feature = "tables")]
    &arrow::ArrowTable,
    #[cfg(feature = "sqlite")]
    &mlflow_sql::MlflowSql,
    #[cfg(feature = "sqlite")]
    &trackio::Trackio,
];

/// The reader of a format; `None` for recordings that were never bytes.
pub fn reader(format: Format) -> Option<&'static dyn Reader> {
    READERS.iter().copied().find(|reader| reader.format() == format)
}

/// A Git LFS pointer in place of the file that it stands for.
pub fn is_git_lfs_pointer(head: &[u8]) -> bool {
    head.starts_with(b"version https://git-lfs.github.com/spec/")
}
