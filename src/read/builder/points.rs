//! Series formats: a record holds points of single series, each with its own step, instead of a row of a table.
//!
//! There is no step column, and no row that ties the series together. Points of one step that follow each other are taken as
//! one row. Attempts are found on the densest signal series and applied to all at the same place in record order (SPEC 2).

use super::{Builder, Use, is_primary};
use crate::model::{Attempt, Axis, Format, Limits, PlaceUnit, Role, roles};
use crate::read::builder::Request;
use crate::read::clock;
use crate::read::series::{Point, SeriesBuilder};

/// What a builder of points holds beside its series.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Points {
    /// Step and wall time (seconds since 1970) of the current record.
    step: i64,
    wall_time: f64,
    /// The record has no step of its own: `step` is where it stands among the others.
    stepless: bool,
    /// The step of the record was no integer; `step` is rounded down.
    is_fraction: bool,
    started: f64,
    /// Step of the row that the newest points belong to.
    row_step: Option<i64>,
    /// As the row, of metrics that are not wanted; they count only where no other does.
    other_step: Option<i64>,
    other_rows: u64,
    /// First step recorded, and the largest one, whatever the metric.
    first: Option<i64>,
    largest: i64,
    /// The largest step of a metric that shows how far the training went.
    reach: Option<i64>,
    /// The whole recording is an evaluation.
    of_evaluation: bool,
    /// Metrics lie in files of their own.
    apart: bool,
}

/// Attempts times series beyond which begins of attempts are not looked for in the other series.
const TURNS: usize = 1 << 20;

impl<'a> Builder<'a> {
    /// A builder whose records are points of single series. `of_evaluation`: its losses are those of an evaluation.
    pub fn of_points(
        format: Format,
        request: &'a Request,
        limits: &'a Limits,
        place_unit: PlaceUnit,
        of_evaluation: bool,
    ) -> Self {
        let points = Points { of_evaluation, ..Points::default() };
        Self { points: Some(points), row_is_place: false, ..Self::new(format, request, limits, place_unit) }
    }

    /// Says which part of the source the next points come from, where metrics lie in files of their own: points of
    /// several files make one row.
    #[inline]
    pub fn turn_to(&mut self, part: u32) {
        self.part = part;
        if let Some(points) = &mut self.points {
            points.apart = true;
        }
    }

    /// Begins an event that holds at least one number. `wall_time` in seconds since 1970, NaN where none is recorded.
    #[inline]
    pub fn begin_points(&mut self, at: u64, step: i64, wall_time: f64) {
        self.row.at = at;
        let Some(points) = &mut self.points else { return };
        points.step = step;
        points.wall_time = wall_time;
        (points.stepless, points.is_fraction) = (false, false);
        if points.first.is_none() {
            (points.first, points.largest, points.started) = (Some(step), step, wall_time);
        }
        points.largest = points.largest.max(step);
    }

    /// Says that the current event has no step of its own; that of [`begin_points`](Self::begin_points) is where it stands.
    pub fn forget_step(&mut self) {
        if let Some(points) = &mut self.points {
            points.stepless = true;
        }
    }

    /// Says that the step of the current event was no integer and was rounded down.
    pub fn fractional_step(&mut self) {
        if let Some(points) = &mut self.points {
            points.is_fraction = true;
        }
    }

    /// A point of the current event.
    #[inline]
    pub fn point(&mut self, id: u32, value: f64) {
        let (Some(points), Use::Series { index, .. }) = (&mut self.points, self.uses[id as usize]) else { return };
        let step = points.step;
        let series = &mut self.series[index as usize];
        let Some(own) = series.points.as_deref_mut() else { return };
        // What has no step repeats none. A constant metric (a loss scale) in a file of its own, without times, repeats itself
        // wherever a run goes over its steps again.
        let repeats_none = points.stepless || points.apart && points.wall_time.is_nan();
        if !repeats_none && own.is_duplicate(step, value, points.wall_time) {
            return;
        }
        if points.row_step != Some(step) || own.axis.last_record() == Some(self.records - 1) {
            points.row_step = Some(step);
            self.records += 1;
        }
        let record = self.records - 1;
        let overflows = own.axis.push(step, record, self.limits.attempts);
        if points.is_fraction {
            own.axis.fractional();
        }
        let point = Point {
            value,
            step,
            has_step: !points.stepless,
            record,
            at: Some(self.row.at),
            time: clock::from_number(points.wall_time),
            attempt: own.axis.attempts(),
            training: own.axis.training(),
        };
        if points.apart && series.parts.last().is_none_or(|(_, part)| *part != self.part) {
            series.parts.push((record, self.part));
        }
        series.push(&point, false, self.limits);
        if overflows {
            self.fault_attempts();
        }
    }

    /// Says that the current event shows how far the training went.
    #[inline]
    pub fn reach(&mut self) {
        if let Some(points) = &mut self.points {
            points.reach = points.reach.max(Some(points.step));
        }
    }

    /// A number of the current event that is not wanted. `reaches`: it shows how far the training went.
    #[inline]
    pub fn pass_point(&mut self, reaches: bool) {
        let Some(points) = &mut self.points else { return };
        if points.other_step != Some(points.step) {
            points.other_step = Some(points.step);
            points.other_rows += 1;
        }
        if reaches {
            self.reach();
        }
    }

    /// The role of a name in this recording.
    pub(super) fn role_of(&self, name: &str) -> Option<Role> {
        let role = roles::role_of(name)?;
        let of_evaluation = self.points.is_some_and(|points| points.of_evaluation);
        if of_evaluation && matches!(role, Role::Loss | Role::LossPart) { Some(Role::EvalLoss) } else { Some(role) }
    }
}

impl Points {
    /// Ends the row: points of another file belong to another.
    pub fn end_row(&mut self) {
        self.row_step = None;
    }

    /// Rows of metrics that are not wanted.
    pub fn other_rows(&self) -> u64 {
        self.other_rows
    }

    /// Wall times of the first and the last record in milliseconds since 1970.
    pub fn times(self) -> (Option<i64>, Option<i64>) {
        (clock::from_number(self.started), clock::from_number(self.wall_time))
    }

    /// The step axis: that of the densest signal series.
    pub fn axis(
        self,
        series: &mut [SeriesBuilder],
        roles: &[Option<Role>],
        columns: &[String],
        part_starts: &[(u64, u32)],
    ) -> Axis {
        let is_signal = |index: &usize| roles[*index].is_some_and(is_primary);
        let is_norm = |index: &usize| matches!(roles[*index], Some(Role::GradNorm | Role::GradNormPostClip));
        let density = |index: &usize| {
            let rows = series[*index].points.as_ref().map_or(0, |own| own.axis.rows());
            (is_signal(index), roles[*index].is_some(), rows, is_norm(index), std::cmp::Reverse(*index))
        };
        let unit = |index: usize| step_name(&columns[series[index].column as usize]);
        // Where series count in different units, that of the gradient norms is the recording's.
        let norm = (0..series.len()).filter(is_norm).max_by_key(density).map(unit);
        let same_unit = |index: &usize| norm.is_none_or(|norm| norm == unit(*index));
        let Some(densest) = (0..series.len()).filter(same_unit).max_by_key(density) else {
            return self.axis_without_series();
        };
        let unit = unit(densest);
        let Some(mut axis) = series[densest].points.take().map(|own| own.axis) else { return Axis::default() };
        let others: Vec<usize> = (0..series.len()).filter(|other| is_signal(other) && *other != densest).collect();
        let others = if others.len().saturating_mul(axis.turns().len()) > TURNS { Vec::new() } else { others };
        let begins: Vec<u64> = axis
            .turns()
            .map(|(before, own)| {
                // Somewhere between two points of the densest series: with the file that begins there, or else where the
                // first of the other series falls.
                let parts = part_starts.iter().map(|(record, _)| *record);
                let part = parts.rev().find(|record| *record <= own).filter(|record| *record > before);
                let falls = others.iter().filter_map(|other| {
                    series[*other].points.as_ref().and_then(|points| points.axis.fall_within(before, own))
                });
                part.or_else(|| falls.min()).unwrap_or(own)
            })
            .collect();
        axis.begin_at(&begins);
        let mut axis = axis.finish(Some(unit.to_owned()));
        if unit == STEP {
            axis.last_step = axis.last_step.max(self.reach);
        }
        axis
    }

    fn axis_without_series(self) -> Axis {
        let Some(first) = self.first else { return Axis::default() };
        let only = Attempt { record: 0, first_step: first, last_step: self.largest, training: 1 };
        Axis {
            step_name: Some(STEP.to_owned()),
            attempts: vec![only],
            first_step: Some(first),
            last_step: Some(self.reach.unwrap_or(self.largest)),
            ..Axis::default()
        }
    }
}

/// What steps count where nothing says otherwise.
pub const STEP: &str = "step";

/// What the steps of a series count: DeepSpeed logs by samples, Keras' `epoch_` metrics by epochs.
pub fn step_name(metric: &str) -> &'static str {
    match metric {
        _ if metric.starts_with("Train/Samples/") => "samples",
        _ if metric.starts_with("epoch_") => "epoch",
        _ => STEP,
    }
}
