//! One recording as the checks see it: rows reduced to series, on a step axis with its attempts.

use crate::model::column::{Chunks, Deltas, Ints};
use crate::model::{Fault, Format, Place, PlaceUnit, Role};

/// A stretch of rows in which the step never falls. Numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The record (row number, from 0) with which it begins.
    pub record: u64,
    /// Its first step.
    pub first_step: i64,
    /// Its largest step.
    pub last_step: i64,
    /// The training (from 1) that it belongs to: a restart begins a new one, a resumption continues.
    pub training: u32,
}

/// The step axis of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// Name of the column that gave the steps; `None` where rows are numbered by record order.
    pub step_name: Option<String>,
    /// Attempts in order; at least one where there is a row with a step.
    pub attempts: Vec<Attempt>,
    /// The steps go back so often that rows are interleaved or unordered: one attempt, judged in step order.
    pub interleaved: bool,
    /// First step in record order; in interleaved recordings the smallest.
    pub first_step: Option<i64>,
    /// Largest step.
    pub last_step: Option<i64>,
    /// Median difference between consecutive different steps.
    pub step_interval: Option<f64>,
    /// Some step was no integer and was rounded down.
    pub fractional: bool,
}

impl Axis {
    /// Number (from 0) of the attempt that a record belongs to.
    pub fn attempt_of(&self, record: u64) -> usize {
        self.attempts.partition_point(|attempt| attempt.record <= record).saturating_sub(1)
    }

    /// Number of trainings.
    pub fn trainings(&self) -> u32 {
        self.attempts.last().map_or(1, |attempt| attempt.training)
    }
}

/// Values in the width in which they were recorded.
#[derive(Clone, Debug)]
pub enum Values {
    /// 32-bit floats (or narrower, widened without loss).
    F32(Chunks<f32>),
    /// 64-bit floats.
    F64(Chunks<f64>),
}

impl Values {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
        }
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a value. One that a 32-bit float does not hold makes all of them 64-bit floats.
    #[inline]
    pub fn push(&mut self, value: f64) {
        match self {
            Self::F64(values) => values.push(value),
            Self::F32(values) if f64::from(value as f32) == value || value.is_nan() => values.push(value as f32),
            Self::F32(values) => {
                let mut wide = Chunks::default();
                values.iter().for_each(|narrow| wide.push(f64::from(narrow)));
                wide.push(value);
                *self = Self::F64(wide);
            }
        }
    }

    /// The value at `index` as f64.
    #[inline]
    pub fn get(&self, index: usize) -> f64 {
        match self {
            Self::F32(values) => f64::from(values.get(index)),
            Self::F64(values) => values.get(index),
        }
    }
}

/// Counts over all values of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tally {
    /// Rows with a value.
    pub rows: u64,
    /// NaN values.
    pub nan: u64,
    /// +Inf and -Inf values.
    pub inf: u64,
    /// Values of exactly -1 (DeepSpeed's alias of "not finite"); counted in gradient norms only.
    pub minus_one: u64,
    /// Other finite values below zero.
    pub negative: u64,
    /// Largest finite value; -Inf before the first.
    largest: f64,
}

impl Default for Tally {
    fn default() -> Self {
        Self { rows: 0, nan: 0, inf: 0, minus_one: 0, negative: 0, largest: f64::NEG_INFINITY }
    }
}

impl Tally {
    /// Counts one value.
    #[inline]
    pub fn add(&mut self, value: f64) {
        self.rows += 1;
        if (0.0..f64::INFINITY).contains(&value) {
            if value > self.largest {
                self.largest = value;
            }
        } else {
            self.add_odd(value);
        }
    }

    fn add_odd(&mut self, value: f64) {
        if value.is_nan() {
            self.nan += 1;
        } else if value.is_infinite() {
            self.inf += 1;
        } else {
            self.largest = self.largest.max(value);
            if value == -1.0 { self.minus_one += 1 } else { self.negative += 1 }
        }
    }

    /// Finite values, -1 included.
    pub fn finite(&self) -> u64 {
        self.rows - self.nan - self.inf
    }

    /// Largest finite value.
    pub fn max(&self) -> Option<f64> {
        (self.finite() > 0).then_some(self.largest)
    }
}

/// A series kept row by row: gradient norms, and every series in a full read.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Values, shape (rows,).
    pub values: Values,
    /// Steps, shape (rows,).
    pub steps: Ints,
    /// Record numbers from 0, never falling, shape (rows,).
    pub records: Ints,
    /// Offsets of the rows in their part, in the unit of the recording; empty where the record number is the place.
    pub places: Deltas,
    /// Wall times in milliseconds since 1970; empty where none is recorded.
    pub times: Deltas,
    /// Rows, rising, that were recorded without a step; `steps` holds that of the row before them.
    pub stepless: Vec<u32>,
}

/// A stretch of consecutive bad rows of a reduced series, within one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct BadRun {
    /// Record of its first row.
    pub record: u64,
    /// Step of its first row; that of the row before it where it was recorded without one.
    pub first_step: i64,
    /// Whether its first row was recorded with a step.
    pub has_step: bool,
    /// Step of its last row.
    pub last_step: i64,
    /// Number of its rows.
    pub rows: u64,
    /// NaN values (counters: the sum of the counts).
    pub nan: u64,
    /// Inf values (counters: the sum of the counts).
    pub inf: u64,
    /// Value of its first row.
    pub value: f64,
    /// Offset of its first row in its part.
    pub place: u64,
    /// Wall time of its first row, milliseconds since 1970.
    pub time: Option<i64>,
    /// The last fine row before it with a smaller step: step and value.
    pub good_before: Option<(i64, f64)>,
    /// Record of the first fine row after it.
    pub good_after: Option<u64>,
}

/// What a series is reduced to while it streams by.
#[derive(Clone, Debug, Default)]
pub struct Reduced {
    /// Stretches of bad rows in record order.
    pub bad: Vec<BadRun>,
    /// Bad rows beyond [`Limits::bad_runs`](crate::model::Limits).
    pub bad_beyond: u64,
    /// The first 100 bad steps of each training: (record, step).
    pub steps: Vec<(u64, i64)>,
    /// In step order, for interleaved recordings: the fine row before the smallest bad step.
    pub good_below: Option<(i64, f64)>,
    /// In step order, for interleaved recordings: the largest step of a fine row.
    pub good_last: Option<i64>,
    /// The last fine row before the step of the first `nan_detected` event.
    pub good_before_event: Option<(i64, f64)>,
}

/// How a series is held.
#[derive(Clone, Debug)]
pub enum Signal {
    /// Row by row.
    Kept(Box<Kept>),
    /// Counts and bad rows only.
    Reduced(Reduced),
}

/// One named series of a recording.
#[derive(Clone, Debug)]
pub struct Series {
    /// The original name.
    pub name: String,
    /// What it is; `None` only in full reads.
    pub role: Option<Role>,
    /// Counts over all its values.
    pub tally: Tally,
    /// Step of its first row in record order; in interleaved recordings the smallest.
    pub first_step: i64,
    /// Largest step.
    pub last_step: i64,
    /// The data.
    pub signal: Signal,
    /// Rows of this series' own kind (all columns that they fill were filled in some row that had it) without it.
    pub gaps: u64,
    /// Part index of its rows by first record, where metrics lie in files of their own: (record, part).
    pub parts: Vec<(u64, u32)>,
}

/// A message of the recorder itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its kind as recorded: `nan_detected`, `train_begin` ...
    pub kind: String,
    /// Its step, if recorded.
    pub step: Option<i64>,
    /// Wall time, milliseconds since 1970.
    pub time: Option<i64>,
    /// Its text.
    pub message: String,
    /// Where it stands.
    pub place: Place,
    /// Place in record order: the number of rows read before it.
    pub record: u64,
}

/// A checkpoint that the recording itself, or a name beside it, tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its number.
    pub number: u64,
    /// What the number counts.
    pub unit: crate::model::checkpoint_name::Unit,
    /// Path relative to the scanned root, or as recorded; empty where only the step is known.
    pub path: String,
    /// Whether what completes such a checkpoint is there.
    pub complete: bool,
}

/// Cells of which nobody knows whether they were NaN or missing (pandas writes both alike).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The series.
    pub metric: String,
    /// Step of the first such cell.
    pub first_step: Option<i64>,
    /// Step of the last value before it.
    pub last_good_step: Option<i64>,
}

/// One recording: what a reader hands to the checks.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The format.
    pub format: Format,
    /// The run's id in files that hold many runs.
    pub run_id: Option<String>,
    /// The tracker's own name of the run.
    pub name: Option<String>,
    /// Rows read, duplicates left out.
    pub records: u64,
    /// The step axis.
    pub axis: Axis,
    /// Every series with a role (in full reads: every numeric series), in order of first appearance.
    pub series: Vec<Series>,
    /// Numeric columns without a role, in order of first appearance.
    pub unrecognised: Vec<String>,
    /// Columns with a role whose values could not be read; the recording must not pass for one without them.
    pub lost: Vec<(String, Role)>,
    /// Rows of it were lost to damage, or may be among lost rows of which nobody knows whose they were.
    pub has_lost_rows: bool,
    /// Messages of the recorder.
    pub events: Vec<Event>,
    /// Checkpoints that the recording tells of.
    pub checkpoints: Vec<Checkpoint>,
    /// What is wrong with the files.
    pub faults: Vec<Fault>,
    /// Unit of the places of rows.
    pub place_unit: PlaceUnit,
    /// Part index of the rows by first record: (record, part).
    pub part_starts: Vec<(u64, u32)>,
    /// Wall time of the first row, milliseconds since 1970.
    pub started: Option<i64>,
    /// Wall time of the last row, milliseconds since 1970.
    pub ended: Option<i64>,
    /// The last record has no end of line.
    pub unterminated: bool,
    /// Cells that may have been NaN or missing.
    pub doubts: Vec<Doubt>,
    /// In sources of many runs: the only part that holds its rows.
    pub part: Option<u32>,
    /// What the tracker says of the run itself (`run_id`, `name`, `exit_code`, `status` ...), in order of first appearance;
    /// a name stands once.
    pub metadata: Vec<(String, String)>,
}

impl Recording {
    /// The place of a row by its record number and offset.
    pub fn place(&self, record: u64, at: u64) -> Place {
        self.place_among(&self.part_starts, record, at)
    }

    /// The place of a row of a series.
    pub fn place_in(&self, series: &Series, record: u64, at: u64) -> Place {
        self.place_among(if series.parts.is_empty() { &self.part_starts } else { &series.parts }, record, at)
    }

    fn place_among(&self, starts: &[(u64, u32)], record: u64, at: u64) -> Place {
        let index = starts.partition_point(|(first, _)| *first <= record).saturating_sub(1);
        let part = starts.get(index).map_or(0, |(_, part)| *part);
        Place { part, unit: self.place_unit, at }
    }

    /// The series of a role.
    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &Series> {
        self.series.iter().filter(move |series| series.role == Some(role))
    }
}
