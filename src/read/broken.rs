//! What is wrong with a file that is read at random, or with one of its columns.

use crate::model::FaultKind;

/// The damage, its place, and the code of a source of which nothing else can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// For [`Rejected::Unreadable`](super::Rejected::Unreadable), where nothing else is left to read.
    pub code: &'static str,
    /// For a fault else.
    pub kind: FaultKind,
    /// Offset in the file.
    pub at: u64,
    /// In plain words.
    pub detail: String,
}

impl Broken {
    /// All of it.
    pub fn new(code: &'static str, kind: FaultKind, at: u64, detail: impl Into<String>) -> Self {
        Self { code, kind, at, detail: detail.into() }
    }

    /// The operating system refused.
    pub fn io(at: u64, error: &std::io::Error) -> Self {
        Self::new("io-error", FaultKind::Io, at, error.to_string())
    }

    /// Bytes that are not what the format says.
    pub fn damage(at: u64, what: impl Into<String>) -> Self {
        Self::new("cut-header", FaultKind::Unparsable, at, what)
    }
}
