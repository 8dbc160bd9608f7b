//! One series of a recording while its rows stream by: kept row by row, or reduced to counts and bad rows.

use std::ops::Range;

use crate::model::column::{Chunks, Deltas, Ints};
use crate::model::recording::{BadRun, Kept, Reduced, Tally, Values};
use crate::model::{Limits, Role, Series, Signal};
use crate::read::axis::AxisBuilder;
use crate::read::builder::rows::{Lane, Places};

/// Fine rows remembered before a bad one; enough to find one with a smaller step among interleaved ranks.
const GOOD_ROWS: usize = 16;

/// The newest fine rows of a series: steps and values.
#[derive(Debug, Default)]
struct GoodRows {
    rows: [(i64, f64); GOOD_ROWS],
    seen: usize,
}

impl GoodRows {
    #[inline]
    fn push(&mut self, step: i64, value: f64) {
        self.rows[self.seen % GOOD_ROWS] = (step, value);
        self.seen += 1;
    }

    /// The newest with a step below `step`; among interleaved ranks the very newest may have a larger one.
    fn below(&self, step: i64) -> Option<(i64, f64)> {
        let newest_first = (self.seen.saturating_sub(GOOD_ROWS)..self.seen).rev();
        newest_first.map(|seen| self.rows[seen % GOOD_ROWS]).find(|(good, _)| *good < step)
    }
}

/// Bad steps listed for one training of a series.
const LISTED_STEPS: usize = 100;

/// A series under construction.
#[derive(Debug)]
pub(super) struct SeriesBuilder {
    pub column: u32,
    pub role: Option<Role>,
    pub fixed: bool,
    pub tally: Tally,
    /// Rows whose null stands for NaN.
    pub null_rows: u64,
    pub first_step: i64,
    smallest_step: i64,
    pub last_step: i64,
    pub signal: Signal,
    /// What a bad row of a reduced series is: a positive count, or else a value that is not finite.
    counts: bool,
    good: GoodRows,
    in_bad_run: bool,
    awaits_good: bool,
    /// Step of the first `nan_detected` event, where one is known before the rows.
    pub event_step: i64,
    smallest_bad: i64,
    largest_good: i64,
    attempt: usize,
    training: u32,
    listed: usize,
    steps: Vec<(u64, i64)>,
    /// Where every point has a step of its own, and not a row.
    pub points: Option<Box<PointAxis>>,
    /// Parts of its rows by first record, where they are not those of the recording.
    pub parts: Vec<(u64, u32)>,
}

/// Points among which a repetition is a duplicate (SPEC 6).
const DUPLICATE_WINDOW: usize = 64;

/// The steps of one series whose points are no rows: its own attempts, and the points that a repetition may repeat.
#[derive(Debug, Default)]
pub(super) struct PointAxis {
    pub axis: AxisBuilder,
    recent: Vec<(i64, u64, u64)>,
    next: usize,
    largest: i64,
}

impl PointAxis {
    /// Whether a point repeats step, value and wall time of a recent one of its attempt; else it is remembered.
    #[inline]
    pub fn is_duplicate(&mut self, step: i64, value: f64, wall_time: f64) -> bool {
        let bits = |value: f64| if value.is_nan() { u64::MAX } else { value.to_bits() };
        let point = (step, bits(value), bits(wall_time));
        // A step above all recent ones repeats none of them.
        if step <= self.largest && !self.recent.is_empty() {
            if self.recent.contains(&point) {
                return true;
            }
            if self.axis.last().is_some_and(|last| step < last) {
                self.recent.clear();
                self.next = 0;
            }
        }
        self.largest = if self.recent.is_empty() { step } else { self.largest.max(step) };
        if self.recent.len() < DUPLICATE_WINDOW {
            self.recent.push(point);
        } else {
            self.recent[self.next] = point;
            self.next = (self.next + 1) % DUPLICATE_WINDOW;
        }
        false
    }
}

/// The fine row with the larger step.
fn later(a: Option<(i64, f64)>, b: Option<(i64, f64)>) -> Option<(i64, f64)> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if a.0 >= b.0 { a } else { b }),
        (a, b) => a.or(b),
    }
}

/// A series kept row by row, still empty.
pub(super) fn kept() -> Signal {
    Signal::Kept(Box::new(Kept {
        values: Values::F64(Chunks::default()),
        steps: Ints::default(),
        records: Ints::default(),
        places: Deltas::default(),
        times: Deltas::default(),
        stepless: Vec::new(),
    }))
}

/// Roles whose series the checks need only as counts and bad rows.
pub(super) fn is_reduced(role: Role) -> bool {
    matches!(role, Role::LayerGradNorm | Role::NanCount | Role::InfCount | Role::Loss | Role::LossPart | Role::EvalLoss)
}

/// One value of a series, in its row.
pub(super) struct Point {
    pub value: f64,
    pub step: i64,
    pub has_step: bool,
    pub record: u64,
    pub at: Option<u64>,
    pub time: Option<i64>,
    pub attempt: usize,
    pub training: u32,
}

/// Rows with a value each, steps that rise, and nothing missing.
pub(super) struct Stretch<'b> {
    /// Which rows of the lanes.
    pub rows: Range<usize>,
    /// Steps of all rows of the lanes.
    pub steps: &'b [i64],
    /// Record number of the first row.
    pub record: u64,
    /// Where they stand, if the record numbers do not say it.
    pub places: Option<&'b Places<'b>>,
    /// Wall times, one for each of `rows`; empty where none is recorded.
    pub times: &'b [Option<i64>],
    pub attempt: usize,
    pub training: u32,
}

impl Stretch<'_> {
    fn point(&self, row: usize, value: f64) -> Point {
        let index = row - self.rows.start;
        Point {
            value,
            step: self.steps[row],
            has_step: true,
            record: self.record + index as u64,
            at: self.places.map(|places| places.at(row)),
            time: self.times.get(index).copied().flatten(),
            attempt: self.attempt,
            training: self.training,
        }
    }
}

impl SeriesBuilder {
    /// An empty series of a column. `event_step`: the step of the first `nan_detected` event, where one is known.
    pub fn new(column: u32, role: Option<Role>, fixed: bool, signal: Signal, event_step: i64) -> Self {
        Self {
            column,
            role,
            fixed,
            tally: Tally::default(),
            null_rows: 0,
            first_step: 0,
            smallest_step: i64::MAX,
            last_step: i64::MIN,
            signal,
            counts: matches!(role, Some(Role::NanCount | Role::InfCount)),
            good: GoodRows::default(),
            in_bad_run: false,
            awaits_good: false,
            event_step,
            smallest_bad: i64::MAX,
            largest_good: i64::MIN,
            attempt: 0,
            training: 0,
            listed: 0,
            steps: Vec::new(),
            points: None,
            parts: Vec::new(),
        }
    }

    #[inline]
    pub fn push(&mut self, point: &Point, null: bool, limits: &Limits) {
        if self.tally.rows == 0 {
            self.first_step = point.step;
        }
        self.smallest_step = self.smallest_step.min(point.step);
        self.last_step = self.last_step.max(point.step);
        self.tally.add(point.value);
        self.null_rows += u64::from(null);
        match &mut self.signal {
            Signal::Kept(kept) => {
                push_aligned(&mut kept.times, kept.steps.len(), point.time);
                if let Some(at) = point.at {
                    kept.places.push(at as i64);
                }
                kept.values.push(point.value);
                if !point.has_step {
                    kept.stepless.push(kept.steps.len() as u32);
                }
                kept.steps.push(point.step);
                kept.records.push(point.record as i64);
            }
            Signal::Reduced(_) => self.reduce(point, limits),
        }
    }

    /// Takes one value for each row of a stretch.
    pub fn push_stretch(&mut self, lane: Lane<'_>, stretch: &Stretch<'_>, limits: &Limits) {
        match lane {
            Lane::F32(values) => self.push_values(values, f64::from, stretch, limits),
            Lane::F64(values) => self.push_values(values, |value| value, stretch, limits),
            Lane::I64(values) => self.push_values(values, |value| value as f64, stretch, limits),
            Lane::Text(_) => {}
        }
        // Values of the recorded width need no look at each.
        if let Signal::Kept(kept) = &mut self.signal {
            match (&mut kept.values, lane) {
                (Values::F32(kept), Lane::F32(values)) => kept.extend(&values[stretch.rows.clone()]),
                (Values::F64(kept), Lane::F64(values)) => kept.extend(&values[stretch.rows.clone()]),
                (kept, Lane::F32(values)) => {
                    values[stretch.rows.clone()].iter().for_each(|v| kept.push(f64::from(*v)));
                }
                (kept, Lane::F64(values)) => values[stretch.rows.clone()].iter().for_each(|v| kept.push(*v)),
                (kept, Lane::I64(values)) => values[stretch.rows.clone()].iter().for_each(|v| kept.push(*v as f64)),
                (_, Lane::Text(_)) => {}
            }
        }
    }

    #[inline]
    fn push_values<T: Copy>(&mut self, values: &[T], widen: impl Fn(T) -> f64, stretch: &Stretch<'_>, limits: &Limits) {
        let rows = stretch.rows.clone();
        let (first, last) = (stretch.steps[rows.start], stretch.steps[rows.end - 1]);
        if self.tally.rows == 0 {
            self.first_step = first;
        }
        self.smallest_step = self.smallest_step.min(first);
        self.last_step = self.last_step.max(last);
        let values = &values[rows.clone()];
        values.iter().for_each(|value| self.tally.add(widen(*value)));
        if let Signal::Kept(kept) = &mut self.signal {
            if !stretch.times.is_empty() || !kept.times.is_empty() {
                for index in 0..rows.len() {
                    let time = stretch.times.get(index).copied().flatten();
                    push_aligned(&mut kept.times, kept.steps.len() + index, time);
                }
            }
            match stretch.places {
                None => {}
                Some(Places::From(at)) => kept.places.extend_by_one((at + rows.start as u64) as i64, rows.len()),
                Some(Places::Each(places)) => places[rows.clone()].iter().for_each(|at| kept.places.push(*at as i64)),
            }
            stretch.steps[rows.clone()].iter().for_each(|step| kept.steps.push(*step));
            kept.records.extend_by_one(stretch.record as i64, rows.len());
            return;
        }
        let is_quiet = self.event_step == i64::MIN
            && self.smallest_bad == i64::MAX
            && self.training == stretch.training
            && self.attempt == stretch.attempt;
        let is_bad = |value: &T| if self.counts { widen(*value) > 0.0 } else { !widen(*value).is_finite() };
        if is_quiet && !values.iter().fold(false, |bad, value| bad | is_bad(value)) {
            // Nothing has been bad yet: only the newest rows can matter later.
            let newest = values.len().saturating_sub(GOOD_ROWS)..values.len();
            newest.for_each(|index| self.good.push(stretch.steps[rows.start + index], widen(values[index])));
            self.largest_good = self.largest_good.max(last);
            return;
        }
        for (index, value) in values.iter().enumerate() {
            self.reduce(&stretch.point(rows.start + index, widen(*value)), limits);
        }
    }

    #[inline]
    fn reduce(&mut self, point: &Point, limits: &Limits) {
        if self.training != point.training {
            self.training = point.training;
            self.good = GoodRows::default();
            self.listed = 0;
        }
        if self.attempt != point.attempt {
            self.attempt = point.attempt;
            self.in_bad_run = false;
        }
        let bad = if self.counts { point.value > 0.0 } else { !point.value.is_finite() };
        if bad {
            self.reduce_bad(point, limits);
            return;
        }
        if point.has_step {
            self.good.push(point.step, point.value);
        }
        if (point.step < self.event_step || self.smallest_bad != i64::MAX)
            && let Signal::Reduced(reduced) = &mut self.signal
        {
            let good = (point.step, point.value);
            if point.step < self.event_step {
                reduced.good_before_event = Some(good);
            }
            if point.step < self.smallest_bad && reduced.good_below.is_none_or(|(step, _)| step < point.step) {
                reduced.good_below = Some(good);
            }
        }
        self.largest_good = self.largest_good.max(point.step);
        if self.awaits_good {
            self.awaits_good = false;
            self.in_bad_run = false;
            if let Signal::Reduced(Reduced { bad, .. }) = &mut self.signal
                && let Some(run) = bad.last_mut()
            {
                run.good_after.get_or_insert(point.record);
            }
        }
    }

    fn reduce_bad(&mut self, point: &Point, limits: &Limits) {
        let Signal::Reduced(reduced) = &mut self.signal else { return };
        self.awaits_good = true;
        if point.step < self.smallest_bad {
            self.smallest_bad = point.step;
            let known = reduced.good_below.filter(|(step, _)| *step < point.step);
            reduced.good_below = later(self.good.below(point.step), known);
        }
        let (nan, inf) = match self.role {
            Some(Role::NanCount) => (point.value as u64, 0),
            Some(Role::InfCount) => (0, point.value as u64),
            _ => (u64::from(point.value.is_nan()), u64::from(point.value.is_infinite())),
        };
        if self.listed < LISTED_STEPS && point.has_step && self.steps.len() < LISTED_STEPS * LISTED_STEPS {
            self.listed += 1;
            self.steps.push((point.record, point.step));
        }
        if self.in_bad_run
            && let Some(run) = reduced.bad.last_mut()
        {
            run.last_step = point.step;
            run.rows += 1;
            run.nan += nan;
            run.inf += inf;
            return;
        }
        if reduced.bad.len() >= limits.bad_runs {
            reduced.bad_beyond += 1;
            return;
        }
        self.in_bad_run = true;
        reduced.bad.push(BadRun {
            record: point.record,
            first_step: point.step,
            has_step: point.has_step,
            last_step: point.step,
            rows: 1,
            nan,
            inf,
            value: point.value,
            place: point.at.unwrap_or(point.record),
            time: point.time,
            // A row without a step of its own carries that of the row before it, which may be fine.
            good_before: self.good.below(if point.has_step { point.step } else { point.step.saturating_add(1) }),
            good_after: None,
        });
    }

    pub fn finish(self, name: String, role: Option<Role>, gaps: u64, interleaved: bool) -> Series {
        let mut signal = self.signal;
        if let Signal::Reduced(reduced) = &mut signal {
            reduced.steps = self.steps;
            reduced.good_last = Some(self.largest_good);
        }
        Series {
            name,
            role,
            tally: self.tally,
            first_step: if interleaved { self.smallest_step } else { self.first_step },
            last_step: self.last_step,
            signal,
            gaps,
            parts: self.parts,
        }
    }
}

/// Appends a time so that it stands at `index`; rows without one repeat the last.
fn push_aligned(times: &mut Deltas, index: usize, time: Option<i64>) {
    let Some(time) = time.or_else(|| times.last()) else { return };
    while times.len() < index {
        times.push(time);
    }
    times.push(time);
}
