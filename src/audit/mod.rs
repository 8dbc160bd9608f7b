//! Where NaN and Inf stand in data and weights: tensors of safetensors files, arrays of numpy, columns of tables.
//!
//! Everything is streamed: a window of bytes is asked in one vectorised pass whether it holds any, and only where it does
//! are values counted and rows told apart. Pure: bytes come from an [`Input`], an `io::Read` or a table that is open.
//!
//! | module | what it reads |
//! |---|---|
//! | [`safetensors`] | `.safetensors`, and the index of a model in several of them |
//! | [`npy`] | `.npy`, and the members of `.npz` |
//! | `table` | columns of Arrow batches: Parquet, Arrow IPC, frames in memory |

pub mod counter;
pub mod npy;
pub mod safetensors;
#[cfg(feature = "tables")]
pub mod table;
pub mod window;

use std::borrow::Cow;

use crate::model::FaultKind;
use crate::read::broken::Broken;
use crate::read::{Damage, is_git_lfs_pointer};

pub use window::{Input, Streamed};

/// What was counted in one tensor, array or column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name in the file; a field of a structure behind a point.
    pub name: String,
    /// Its type as the format calls it.
    pub dtype: Cow<'static, str>,
    /// Its extents; those of a column of a table are its rows and the lengths of its fixed-size lists.
    pub shape: Vec<u64>,
    /// Values looked at: all, but for nulls and what lies behind damage.
    pub values: u64,
    /// NaN. A complex value is NaN if either part is.
    pub nan: u64,
    /// Plus and minus infinity. A complex value is infinite if either part is and none is NaN.
    pub inf: u64,
    /// The first index along the first axis at which a value is not finite.
    pub first_row: Option<u64>,
    /// How many indices along the first axis hold one. `None`: too many to tell apart, a limit.
    pub bad_rows: Option<u64>,
}

impl Tensor {
    /// Whether any value is not finite.
    pub fn is_bad(&self) -> bool {
        self.nan > 0 || self.inf > 0
    }
}

/// What is said of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// In the order of the file.
    pub tensors: Vec<Tensor>,
    /// What is wrong with the file; tensors behind it were not looked at.
    pub faults: Vec<Broken>,
}

impl From<Broken> for Report {
    fn from(broken: Broken) -> Self {
        Self { tensors: Vec::new(), faults: vec![broken] }
    }
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Tensors of a checkpoint or adapter.
    Safetensors,
    /// Which tensor of a model lies in which of its files.
    SafetensorsIndex,
    /// An array of numpy.
    Npy,
    /// Several of them, in a zip archive.
    Npz,
    /// A table.
    Parquet,
    /// A table, file or stream.
    Arrow,
    /// Objects of Python: loading one runs the code in it, so nothing here does.
    Pickle,
}

impl Format {
    /// By the name of a file; `None` for what holds neither data nor weights.
    pub fn of_name(name: &str) -> Option<Self> {
        let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
        // What Trainer and Accelerate pickle beside the weights: arguments, schedules and generators hold none.
        let no_weights = ["training_args", "scheduler", "rng_state", "random_states", "tokenizer"];
        Some(if ends(&[".safetensors"]) {
            Self::Safetensors
        } else if ends(&[".safetensors.index.json"]) {
            Self::SafetensorsIndex
        } else if ends(&[".npy"]) {
            Self::Npy
        } else if ends(&[".npz"]) {
            Self::Npz
        } else if ends(&[".parquet", ".parq", ".pq"]) {
            Self::Parquet
        } else if ends(&[".arrow", ".arrows", ".feather", ".ipc"]) {
            Self::Arrow
        } else if no_weights.iter().any(|begin| name.starts_with(begin)) {
            return None;
        } else if ends(&[".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".distcp"])
            || (name.ends_with(".bin") && name.contains("model"))
        {
            Self::Pickle
        } else {
            return None;
        })
    }

    /// By the first bytes of a file, of which 16 suffice.
    pub fn of_head(head: &[u8]) -> Option<Self> {
        if head.starts_with(npy::MAGIC) {
            Some(Self::Npy)
        } else if head.starts_with(b"PAR1") {
            Some(Self::Parquet)
        } else if head.starts_with(b"ARROW1") {
            Some(Self::Arrow)
        } else if head.starts_with(&[0x80]) && head.get(1).is_some_and(|version| (2..=5).contains(version)) {
            Some(Self::Pickle)
        } else if head.first_chunk().is_some_and(|length| u64::from_le_bytes(*length) <= 100_000_000)
            && head.get(8) == Some(&b'{')
        {
            Some(Self::Safetensors)
        } else {
            None
        }
    }

    /// Why it is not read at all.
    pub fn refused(self) -> Option<Broken> {
        (self == Self::Pickle).then(|| {
            unsupported(0, "a pickle of Python objects, which is never loaded: save the weights as safetensors")
        })
    }
}

/// A pointer in place of the file, by its first bytes.
pub fn pointer(head: &[u8]) -> Option<Broken> {
    is_git_lfs_pointer(head).then(git_lfs_pointer)
}

fn git_lfs_pointer() -> Broken {
    let detail = "a Git LFS pointer in place of the file: fetch it first";
    Broken::new("git-lfs-pointer", FaultKind::Truncated, 0, detail)
}

/// The name of a fault's kind, as tables show it.
pub fn kind_of(broken: &Broken) -> &'static str {
    match broken.code {
        // Readers of tables say so of whatever leaves nothing to read.
        "cut-header" => broken.kind.as_str(),
        "io-error" => FaultKind::Io.as_str(),
        code => code,
    }
}

/// Bytes that are not what the format says.
fn corrupt(at: u64, detail: impl Into<String>) -> Broken {
    Broken::new(FaultKind::Unparsable.as_str(), FaultKind::Unparsable, at, detail)
}

/// The file ends too early.
fn truncated(at: u64, detail: impl Into<String>) -> Broken {
    Broken::new(FaultKind::Truncated.as_str(), FaultKind::Truncated, at, detail)
}

/// One of [`Limits`](crate::model::Limits) was passed.
fn limit(at: u64, detail: impl Into<String>) -> Broken {
    Broken::new(FaultKind::Limit.as_str(), FaultKind::Limit, at, detail)
}

/// Sound, but of a kind that is not read.
pub fn unsupported(at: u64, detail: impl Into<String>) -> Broken {
    Broken::new("unsupported", FaultKind::Version, at, detail)
}

/// What an error in the middle of a file is.
pub fn failed(at: u64, error: &std::io::Error) -> Broken {
    let kind = Damage::kind_of(error);
    let code = if kind == FaultKind::Version { "unsupported" } else { kind.as_str() };
    Broken::new(code, kind, at, error.to_string())
}

/// The number of values of a shape; `None` beyond 64 bits.
fn product(shape: &[u64]) -> Option<u64> {
    // One zero makes it zero, whatever the others multiply to.
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_heads_tell_what_a_file_is() {
        let names = [
            ("model.safetensors", Some(Format::Safetensors)),
            ("a/model.safetensors.index.json", Some(Format::SafetensorsIndex)),
            ("EMB.NPY", Some(Format::Npy)),
            ("cache.npz", Some(Format::Npz)),
            ("part-0.parquet", Some(Format::Parquet)),
            ("x.feather", Some(Format::Arrow)),
            ("pytorch_model-00001-of-00002.bin", Some(Format::Pickle)),
            ("optimizer.pt", Some(Format::Pickle)),
            ("training_args.bin", None),
            ("rng_state_0.pth", None),
            ("vocab.bin", None),
            ("config.json", None),
        ];
        for (name, format) in names {
            assert_eq!(Format::of_name(name), format, "{name}");
        }
        assert_eq!(Format::of_head(b"\x93NUMPY\x01\0"), Some(Format::Npy));
        assert_eq!(Format::of_head(b"\x10\0\0\0\0\0\0\0{\"a\":"), Some(Format::Safetensors));
        assert_eq!(Format::of_head(b"\x10\0\0\0\0\0\0\x01{"), None);
        assert_eq!(Format::of_head(b"\x80\x02}q\0"), Some(Format::Pickle));
        assert_eq!(Format::of_head(b""), None);
    }

    #[test]
    fn shapes_multiply_without_overflow() {
        assert_eq!(product(&[]), Some(1));
        assert_eq!(product(&[3, 4]), Some(12));
        assert_eq!(product(&[1 << 40, 1 << 40]), None);
        assert_eq!(product(&[1 << 40, 1 << 40, 0]), Some(0));
    }
}
