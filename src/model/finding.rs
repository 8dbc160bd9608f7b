//! What the checks say of a recording.

use crate::model::{Place, Role};

/// How spikes of a training's opening are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Opening {
    /// Counted and set apart.
    #[default]
    Report,
    /// No opening: every spike alike.
    Strict,
    /// Spikes of the opening do not count.
    Ignore,
}

impl Opening {
    /// Parses the user's word.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "report" => Some(Self::Report),
            "strict" => Some(Self::Strict),
            "ignore" => Some(Self::Ignore),
            _ => None,
        }
    }
}

/// The knobs of the checks, with the defaults of the contract.
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs {
    /// Multiple of the series' median that counts as a spike.
    pub spike_ratio: f64,
    /// Spikes needed to fire.
    pub min_spikes: u64,
    /// Finite gradient norms needed before the median means anything.
    pub min_points: u64,
    /// A spike must also exceed this absolute norm.
    pub min_norm: f64,
    /// Treatment of the opening.
    pub opening: Opening,
}

impl Default for Knobs {
    fn default() -> Self {
        Self { spike_ratio: 10.0, min_spikes: 3, min_points: 10, min_norm: 0.0, opening: Opening::Report }
    }
}

/// Which of the two checks fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// NaN or Inf in gradients or losses.
    Nonfinite,
    /// Recurring gradient-norm spikes.
    Spikes,
}

impl Check {
    /// The name shown in `findings.check`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nonfinite => "nonfinite",
            Self::Spikes => "spikes",
        }
    }
}

/// Where the spikes of a finding lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Fewer than `min_spikes` lie outside the opening.
    Opening,
    /// Enough lie outside it.
    Run,
}

impl Phase {
    /// The name shown in `findings.phase`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Run => "run",
        }
    }
}

/// One bad signal of a finding: which, and since when.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// The original name.
    pub metric: String,
    /// Its role, or `nan_detected` for an event.
    pub role: &'static str,
    /// Step of its first bad row.
    pub first_step: Option<i64>,
    /// Value there.
    pub value: Option<f64>,
    /// Its last fine row's step before that.
    pub last_good_step: Option<i64>,
    /// NaN values (counters: the sum of the counts).
    pub nan: u64,
    /// Inf values (counters: the sum of the counts).
    pub inf: u64,
    /// Bad rows.
    pub count: u64,
}

/// A finding, as the contract lists its fields; prose is added by the Python side.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Which check fired.
    pub check: Check,
    /// The original name of the series that carries the first bad row.
    pub metric: String,
    /// Its role; `None` for an event.
    pub role: Option<Role>,
    /// 0.99, 0.90, 0.85 or 0.70.
    pub confidence: f64,
    /// Step of the first bad row as recorded.
    pub first_step: Option<i64>,
    /// Its place in record order, from 0.
    pub first_record: u64,
    /// File and byte, line or row.
    pub first_place: Option<Place>,
    /// Wall time, milliseconds since 1970.
    pub first_time: Option<i64>,
    /// Value there.
    pub first_value: Option<f64>,
    /// Where to roll back from.
    pub onset_step: Option<i64>,
    /// Step of the last fine row before the onset.
    pub last_good_step: Option<i64>,
    /// Its value.
    pub last_good_value: Option<f64>,
    /// Step of the last bad row.
    pub last_bad_step: Option<i64>,
    /// Finite rows of the series follow the last bad row.
    pub recovered: bool,
    /// Bad rows of the metric.
    pub count: u64,
    /// How many of them lie in the opening (spikes).
    pub count_opening: u64,
    /// NaN values of the metric.
    pub nan: u64,
    /// Inf values of the metric.
    pub inf: u64,
    /// Median of the metric's finite values.
    pub median: Option<f64>,
    /// `spike_ratio` times the median.
    pub threshold: Option<f64>,
    /// Largest finite value.
    pub max: Option<f64>,
    /// Phase of a `spikes` finding.
    pub phase: Option<Phase>,
    /// The attempt of the first bad row, from 1.
    pub attempt: u64,
    /// A later attempt went over the same step again.
    pub superseded: bool,
    /// The bad steps, the first 100.
    pub steps: Vec<i64>,
    /// Every bad signal.
    pub evidence: Vec<Evidence>,
}

impl Finding {
    /// `critical`, or `warning` for spikes of the opening.
    pub fn severity(&self) -> &'static str {
        if self.phase == Some(Phase::Opening) { "warning" } else { "critical" }
    }
}

/// The one status of a recording, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// A `nonfinite` finding, or spikes of phase `run`.
    Damaged,
    /// Traces of damage, but no NaN in gradients or losses.
    Suspect,
    /// Only spikes of the opening.
    Opening,
    /// Nothing could be read.
    Unreadable,
    /// Too little to say.
    NotAssessable,
    /// Enough evidence, and no finding.
    Clean,
}

impl Status {
    /// The name shown in `runs.status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Damaged => "damaged",
            Self::Suspect => "suspect",
            Self::Opening => "opening",
            Self::Unreadable => "unreadable",
            Self::NotAssessable => "not_assessable",
            Self::Clean => "clean",
        }
    }
}

/// One checked series, as `scan.series` lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct SeriesStats {
    /// Its role.
    pub role: Role,
    /// The original name.
    pub metric: String,
    /// Rows with a value.
    pub rows: u64,
    /// NaN values.
    pub nan: u64,
    /// Inf values.
    pub inf: u64,
    /// Median of the finite values (gradient norms only).
    pub median: Option<f64>,
    /// Largest finite value.
    pub max: Option<f64>,
    /// Rows above the threshold of their training.
    pub spikes: u64,
    /// Step of the first row.
    pub first_step: Option<i64>,
    /// Largest step.
    pub last_step: Option<i64>,
}

/// A trace of a NaN where none is recorded (SPEC 3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspicion {
    /// Its rule.
    pub rule: &'static str,
    /// The series.
    pub metric: String,
    /// Where the trace begins.
    pub first_step: Option<i64>,
    /// The last fine row before it.
    pub last_good_step: Option<i64>,
}

/// What the checks say of one recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The status.
    pub status: Status,
    /// Why, for a status without a finding: a stable code and its detail.
    pub reason: Option<(&'static str, String)>,
    /// Findings, by training.
    pub findings: Vec<Finding>,
    /// Every checked series.
    pub series: Vec<SeriesStats>,
    /// Traces of a NaN that is not there itself.
    pub suspicions: Vec<Suspicion>,
    /// Notes: names that never fire.
    pub notes: Vec<&'static str>,
    /// Last step with a signal / last step of the recording.
    pub coverage: Option<f64>,
}
