//! What is wrong with a file, as opposed to with the training that it records.

/// How much a fault matters for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Normal for archives of dead runs: a cut tail.
    Info,
    /// Something was skipped; points may be missing.
    Warning,
    /// The recording could not be read at all.
    Error,
}

impl Severity {
    /// The name shown in `scan.faults`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// The kind of a fault; its name is stable, users filter by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// The file ends inside a record.
    Truncated,
    /// A record that is not what the format says; it was skipped.
    Unparsable,
    /// A checksum does not match.
    BadChecksum,
    /// A [`Limits`](crate::model::Limits) was passed.
    Limit,
    /// Several formats recognise the file equally well.
    Ambiguous,
    /// The operating system refused a read.
    Io,
    /// A symbolic link in a walk: never followed.
    Link,
    /// Bytes that belong to no record (NUL runs, stray bytes) were passed over.
    Stray,
    /// The writer itself says that it lost records (rlprobe's `recorder_drops`).
    Dropped,
    /// Two parts of one recording contradict each other.
    Conflict,
    /// The file was written by a newer or unknown version of its format.
    Version,
    /// A defect of gradscan.
    Panic,
}

impl FaultKind {
    /// Every kind, in the order of the documentation.
    pub const ALL: [Self; 12] = [
        Self::Truncated,
        Self::Unparsable,
        Self::BadChecksum,
        Self::Limit,
        Self::Ambiguous,
        Self::Io,
        Self::Link,
        Self::Stray,
        Self::Dropped,
        Self::Conflict,
        Self::Version,
        Self::Panic,
    ];

    /// The name shown in `scan.faults`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Unparsable => "unparsable",
            Self::BadChecksum => "bad-checksum",
            Self::Limit => "limit",
            Self::Ambiguous => "ambiguous",
            Self::Io => "io",
            Self::Link => "link",
            Self::Stray => "stray-bytes",
            Self::Dropped => "dropped-records",
            Self::Conflict => "conflict",
            Self::Version => "version",
            Self::Panic => "panic",
        }
    }

    /// How much a fault of this kind matters: a cut tail is normal, the rest may cost points.
    pub fn severity(self) -> Severity {
        match self {
            Self::Truncated | Self::Stray | Self::Link => Severity::Info,
            Self::Panic => Severity::Error,
            _ => Severity::Warning,
        }
    }
}

/// What a [`Place`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlaceUnit {
    /// Bytes from the start of the file, from 0.
    Byte,
    /// Lines, from 1.
    Line,
    /// Rows of a table, from 0.
    Row,
}

/// Where in a source something stands: which part (file), and where inside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index into [`Source::parts`](crate::model::Source).
    pub part: u32,
    /// What `at` counts.
    pub unit: PlaceUnit,
    /// The offset.
    pub at: u64,
}

impl Place {
    /// The place as users read it, with the part's name: `events.jsonl line 7`.
    pub fn describe(&self, part_name: &str) -> String {
        let unit = match self.unit {
            PlaceUnit::Byte => "byte",
            PlaceUnit::Line => "line",
            PlaceUnit::Row => "row",
        };
        if part_name.is_empty() { format!("{unit} {}", self.at) } else { format!("{part_name} {unit} {}", self.at) }
    }
}

/// One fault: of the file, recorded with its place, never raised.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// What kind.
    pub kind: FaultKind,
    /// Where.
    pub place: Place,
    /// Details in plain words, lower case, with offsets in decimal.
    pub detail: String,
    /// How much it matters.
    pub severity: Severity,
}

impl Fault {
    /// A fault with the severity that its kind usually has.
    pub fn new(kind: FaultKind, place: Place, detail: impl Into<String>) -> Self {
        Self { kind, place, detail: detail.into(), severity: kind.severity() }
    }
}
