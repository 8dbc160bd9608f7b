//! One training of a recording: its rows of every gradient-norm series, with median, threshold and opening.

use std::ops::Range;

use crate::kernel::level::Level;
use crate::kernel::select::{self, Scratch};
use crate::model::recording::{Kept, Values};
use crate::model::{Axis, Knobs, Opening, Recording, Role, Series, Signal, roles};

/// Finite rows without a spike that end an opening, and that end the chain of spikes before a bad row (SPEC 2, 3).
pub const QUIET: usize = 10;
/// Bad steps that a finding lists.
pub const LISTED_STEPS: usize = 100;
/// DeepSpeed's alias of "not finite" in a gradient norm.
pub const MINUS_ONE: f64 = -1.0;

/// Buffers and processor level of one worker, reused from recording to recording.
#[derive(Debug)]
pub struct Worker {
    level: Level,
    scratch: Scratch,
}

impl Default for Worker {
    fn default() -> Self {
        Self { level: Level::detect(), scratch: Scratch::default() }
    }
}

/// Median of the finite values of a range, -1 left out if `minus_one`.
pub fn median(kept: &Kept, range: Range<usize>, minus_one: bool, worker: &mut Worker) -> Option<f64> {
    let exclude = minus_one.then_some(MINUS_ONE);
    match &kept.values {
        Values::F64(values) => {
            let parts: Vec<&[f64]> = values.parts(range).collect();
            select::median_parts_f64(worker.level, &parts, exclude, &mut worker.scratch)
        }
        Values::F32(values) => {
            let parts: Vec<&[f32]> = values.parts(range).collect();
            select::median_parts_f32(worker.level, &parts, exclude, &mut worker.scratch)
        }
    }
}

/// The rows of one kept series that belong to a training, in the order in which they are judged.
#[derive(Debug)]
pub struct Rows<'a> {
    kept: &'a Kept,
    range: Range<usize>,
    /// Indices by step, for interleaved recordings.
    order: Option<Vec<u32>>,
}

impl<'a> Rows<'a> {
    fn new(kept: &'a Kept, records: Range<u64>, interleaved: bool) -> Self {
        let bound = |record: u64| kept.records.lower_bound(i64::try_from(record).unwrap_or(i64::MAX));
        let range = bound(records.start)..bound(records.end);
        let order = interleaved.then(|| {
            let mut order: Vec<u32> = (range.start as u32..range.end as u32).collect();
            order.sort_by_key(|index| kept.steps.get(*index as usize));
            order
        });
        Self { kept, range, order }
    }

    fn index(&self, row: usize) -> usize {
        self.order.as_ref().map_or(self.range.start + row, |order| order[row] as usize)
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// The value of a row as f64.
    pub fn value(&self, row: usize) -> f64 {
        self.kept.values.get(self.index(row))
    }

    /// The step of a row.
    pub fn step(&self, row: usize) -> i64 {
        self.kept.steps.get(self.index(row))
    }

    /// The step of a row as recorded: none where the row, or the whole recording, has none.
    pub fn recorded_step(&self, row: usize, axis: &Axis) -> Option<i64> {
        let index = self.index(row);
        let known = axis.step_name.is_some()
            && axis.attempts.first().is_some_and(|first| first.record <= self.kept.records.get(index) as u64)
            && self.kept.stepless.binary_search(&(index as u32)).is_err();
        known.then(|| self.kept.steps.get(index))
    }

    /// Whether a row carries the step of the row before it for want of its own.
    pub fn is_stepless(&self, row: usize) -> bool {
        self.kept.stepless.binary_search(&(self.index(row) as u32)).is_ok()
    }

    /// The record number of a row.
    pub fn record(&self, row: usize) -> u64 {
        self.kept.records.get(self.index(row)) as u64
    }

    /// Offset of a row in its part.
    pub fn place(&self, row: usize) -> u64 {
        self.kept.places.get(self.index(row)).map_or_else(|| self.record(row), |at| at as u64)
    }

    /// Wall time of a row, milliseconds since 1970.
    pub fn time(&self, row: usize) -> Option<i64> {
        self.kept.times.get(self.index(row))
    }

    /// Calls `each` with every row and its value.
    fn each(&self, mut each: impl FnMut(u32, f64)) {
        match (&self.order, &self.kept.values) {
            (Some(_), _) => (0..self.len()).for_each(|row| each(row as u32, self.value(row))),
            (None, Values::F64(values)) => {
                let values = values.parts(self.range.clone()).flatten();
                values.zip(0..).for_each(|(value, row)| each(row, *value));
            }
            (None, Values::F32(values)) => {
                let values = values.parts(self.range.clone()).flatten();
                values.zip(0..).for_each(|(value, row)| each(row, f64::from(*value)));
            }
        }
    }

    fn values(&self) -> Box<dyn Iterator<Item = f64> + '_> {
        match (&self.order, &self.kept.values) {
            (Some(_), _) => Box::new((0..self.len()).map(|row| self.value(row))),
            (None, Values::F64(values)) => Box::new(values.parts(self.range.clone()).flatten().copied()),
            (None, Values::F32(values)) => {
                Box::new(values.parts(self.range.clone()).flatten().map(|value| f64::from(*value)))
            }
        }
    }
}

/// Whether a gradient norm is a bad row: not finite, or the alias of it.
pub fn is_bad(value: f64) -> bool {
    !value.is_finite() || value == MINUS_ONE
}

/// One gradient-norm series in one training.
#[derive(Debug)]
pub struct Norms<'a> {
    /// Index of the series in the recording.
    pub index: usize,
    /// The series.
    pub series: &'a Series,
    /// Its rows in this training.
    pub rows: Rows<'a>,
    /// NaN values.
    pub nan: u64,
    /// Inf values.
    pub inf: u64,
    /// Values of exactly -1.
    pub minus_one: u64,
    /// Median of the finite values.
    pub median: Option<f64>,
    /// `spike_ratio` times the median.
    pub threshold: Option<f64>,
    /// Largest finite value.
    pub max: Option<f64>,
    /// Whether spikes of this series are a check (pre-clip, or post-clip without a pre-clip twin; of a chart's bins their
    /// largest values).
    pub spike_tested: bool,
    /// Rows above the threshold (with [`Opening::Ignore`]: outside the opening), rising. Empty where not tested.
    pub spikes: Vec<u32>,
    /// A row is a spike above this.
    bound: f64,
    opening: Option<OpeningBounds>,
    ignore_opening: bool,
}

#[derive(Clone, Copy, Debug)]
struct OpeningBounds {
    end_row: usize,
    end_step: f64,
    limit_row: usize,
    limit_step: f64,
}

impl<'a> Norms<'a> {
    fn new(
        index: usize,
        series: &'a Series,
        rows: Rows<'a>,
        whole: bool,
        spike_tested: bool,
        knobs: &Knobs,
        worker: &mut Worker,
    ) -> Self {
        let mut tally = series.tally;
        if !whole {
            tally = Default::default();
            rows.values().for_each(|value| tally.add(value));
        }
        let median = median(rows.kept, rows.range.clone(), tally.minus_one > 0, worker);
        // -1 is no finite value of a gradient norm; where nothing exceeds it, none is left.
        let max = tally.max().filter(|max| *max != MINUS_ONE || tally.finite() > tally.minus_one);
        let max = max
            .filter(|max| *max > MINUS_ONE || tally.minus_one == 0)
            .or_else(|| rows.values().filter(|value| !is_bad(*value)).reduce(f64::max));
        let positive = median.filter(|median| *median > 0.0);
        let threshold = positive.map(|median| knobs.spike_ratio * median);
        let bound = threshold.map_or(f64::INFINITY, |threshold| threshold.max(knobs.min_norm));
        let mut norms = Self {
            index,
            series,
            rows,
            nan: tally.nan,
            inf: tally.inf,
            minus_one: tally.minus_one,
            median,
            threshold,
            max,
            spike_tested,
            spikes: Vec::new(),
            bound,
            opening: None,
            ignore_opening: knobs.opening == Opening::Ignore,
        };
        if spike_tested && max.is_some_and(|max| max > bound) {
            if knobs.opening != Opening::Strict {
                norms.opening = Some(norms.find_opening());
            }
            norms.spikes = norms.find_spikes();
        }
        norms
    }

    /// Finite values, -1 left out.
    pub fn finite(&self) -> u64 {
        self.rows.len() as u64 - self.nan - self.inf - self.minus_one
    }

    fn exceeds(&self, value: f64) -> bool {
        value > self.bound && value.is_finite()
    }

    /// Whether a row is a spike.
    pub fn is_spike(&self, row: usize) -> bool {
        self.spike_tested && self.exceeds(self.rows.value(row)) && !(self.ignore_opening && self.in_opening(row))
    }

    /// Whether a row is bad (not finite, or -1).
    pub fn is_bad(&self, row: usize) -> bool {
        is_bad(self.rows.value(row))
    }

    /// The rows that are spikes.
    pub fn spike_rows(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.spikes.iter().map(|row| *row as usize)
    }

    fn find_spikes(&self) -> Vec<u32> {
        let counts = |row: &u32| !(self.ignore_opening && self.in_opening(*row as usize));
        let mut spikes = Vec::new();
        self.rows.each(|row, value| {
            if self.exceeds(value) && counts(&row) {
                spikes.push(row);
            }
        });
        spikes
    }

    /// The rows that are bad.
    pub fn bad_rows(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows.values().enumerate().filter(|(_, value)| is_bad(*value)).map(|(row, _)| row)
    }

    /// Whether a row belongs to the opening of the training (SPEC 2, *Opening and phase*).
    pub fn in_opening(&self, row: usize) -> bool {
        let Some(bounds) = &self.opening else { return false };
        let step = self.rows.step(row) as f64;
        (row < bounds.end_row || step <= bounds.end_step) && row < bounds.limit_row && step <= bounds.limit_step
    }

    fn find_opening(&self) -> OpeningBounds {
        let (mut end_row, mut quiet, mut quiet_start) = (self.rows.len(), 0, 0);
        for (row, value) in self.rows.values().enumerate() {
            if is_bad(value) {
                continue;
            }
            if self.exceeds(value) {
                quiet = 0;
                continue;
            }
            if quiet == 0 {
                quiet_start = row;
            }
            quiet += 1;
            if quiet == QUIET {
                end_row = quiet_start;
                break;
            }
        }
        let first = self.rows.step(0) as f64;
        let last = match &self.rows.order {
            Some(_) => self.rows.step(self.rows.len() - 1),
            None => self.rows.kept.steps.max(self.rows.range.clone()).unwrap_or(0),
        } as f64;
        let long = last - first > 1000.0;
        let tenth_of_rows = 0.10 * self.rows.len() as f64;
        OpeningBounds {
            end_row,
            end_step: first + 0.01 * (last - first),
            limit_row: if long { usize::MAX } else { tenth_of_rows.max(20.0).ceil() as usize },
            limit_step: if long { first + 0.10 * (last - first) } else { f64::INFINITY },
        }
    }

    /// The first spike of the chain that leads to `row`: going back until [`QUIET`] fine rows without a spike.
    pub fn chain_start(&self, row: usize) -> Option<usize> {
        let (mut start, mut quiet) = (None, 0);
        for before in (0..row).rev() {
            if self.is_spike(before) {
                (start, quiet) = (Some(before), 0);
            } else {
                quiet += 1;
                if quiet == QUIET {
                    break;
                }
            }
        }
        start
    }

    /// The last fine row before `row` with a step below `step`.
    pub fn last_good(&self, row: usize, step: i64) -> Option<usize> {
        let is_fine = |before: &usize| !self.is_bad(*before) && !self.is_spike(*before);
        (0..row)
            .rev()
            .find(|before| self.rows.step(*before) < step && is_fine(before) && !self.rows.is_stepless(*before))
    }

    /// The last fine row before `row`. Where `row` carries the step of the row before it for want of its own, that row
    /// may be the one.
    pub fn last_good_before(&self, row: usize) -> Option<usize> {
        let step = self.rows.step(row);
        self.last_good(row, if self.rows.is_stepless(row) { step.saturating_add(1) } else { step })
    }
}

/// One training of a recording.
#[derive(Debug)]
pub struct Training<'a> {
    /// The recording.
    pub recording: &'a Recording,
    /// Its number, from 1.
    pub number: u32,
    /// Its records.
    pub records: Range<u64>,
    /// Its gradient-norm series, per-layer ones included where they were kept.
    pub norms: Vec<Norms<'a>>,
    /// The knobs.
    pub knobs: &'a Knobs,
}

impl<'a> Training<'a> {
    /// Collects the rows of training `number`.
    pub fn new(recording: &'a Recording, number: u32, knobs: &'a Knobs, worker: &mut Worker) -> Self {
        let attempts = &recording.axis.attempts;
        let start = |number: u32| attempts.iter().find(|attempt| attempt.training >= number).map(|a| a.record);
        let begin = if number == 1 { 0 } else { start(number).unwrap_or(u64::MAX) };
        let end = start(number + 1).unwrap_or(u64::MAX);
        let whole = recording.axis.trainings() == 1;
        let pre_clip = recording.with_role(Role::GradNorm).next().is_some();
        let mut norms = Vec::new();
        for (index, series) in recording.series.iter().enumerate() {
            let Signal::Kept(kept) = &series.signal else { continue };
            let maximum = roles::bin_maximum(&series.name);
            let is_within = maximum.is_some_and(|name| {
                recording.series.iter().any(|other| other.name == name && other.role == series.role)
            });
            let spike_tested = match series.role {
                // Its spikes are seen in the largest values; once is enough.
                Some(Role::GradNorm | Role::GradNormPostClip) if is_within => false,
                Some(Role::GradNorm) => true,
                Some(Role::GradNormPostClip) => !pre_clip,
                Some(Role::LayerGradNorm) => false,
                _ => continue,
            };
            let rows = Rows::new(kept, begin..end, recording.axis.interleaved);
            if rows.len() > 0 {
                norms.push(Norms::new(index, series, rows, whole, spike_tested, knobs, worker));
            }
        }
        Self { recording, number, records: begin..end, norms, knobs }
    }

    /// Number (from 0) of the attempt of a record.
    pub fn attempt_of(&self, record: u64) -> usize {
        self.recording.axis.attempt_of(record)
    }

    /// Whether an attempt after `attempt` (from 0) went over `step` again.
    pub fn superseded(&self, attempt: usize, step: i64) -> bool {
        let later = self.recording.axis.attempts.iter().skip(attempt + 1);
        later.into_iter().any(|attempt| (attempt.first_step..=attempt.last_step).contains(&step))
    }

    /// A step as it may be shown: none where the recording has none.
    pub fn recorded(&self, step: i64) -> Option<i64> {
        self.recording.axis.step_name.as_ref().map(|_| step)
    }
}
