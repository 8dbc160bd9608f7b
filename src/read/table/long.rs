//! The points of one run of a long table: one row, one value of one metric.
//!
//! Exporters write such rows by step (each step's metrics after each other) or by metric (`unpivot`, `melt`, MLflow's
//! `get_metric_history`): then each metric is a stretch of its own, and its steps begin anew. Points are kept until the run
//! is complete, 16 bytes a value at most, and given to the builder by step.

use std::collections::HashMap;

use super::batch::Piece;
use super::layout::Usage;
use crate::model::column::{Deltas, Ints};
use crate::model::recording::Values;
use crate::read::{Builder, clock, merge};

/// A metric's name, as the table knows it.
#[derive(Clone, Debug)]
pub struct Metric {
    /// The name.
    pub name: String,
    /// Its values are wanted.
    pub is_wanted: bool,
}

/// Points of one metric, in the order of the rows.
#[derive(Debug)]
struct Points {
    metric: u32,
    steps: Ints,
    values: Values,
    /// Rows in the order in which they were taken, over all parts.
    order: Ints,
    /// Rows in their part.
    rows: Ints,
    /// Milliseconds since 1970; empty where none is recorded.
    times: Deltas,
}

/// Largest step of a metric that is not wanted, and the first and last of them.
#[derive(Debug, Default)]
struct Others {
    metrics: Vec<u32>,
    largest: Option<i64>,
}

/// Metrics that are not wanted, of which the names are remembered.
const OTHERS: usize = 50;

/// All points of one run.
#[derive(Debug, Default)]
pub struct Run {
    series: Vec<Points>,
    index: HashMap<u32, usize>,
    others: Others,
    /// Rows taken.
    taken: i64,
    /// The newest metric, and how often it was another one than before.
    newest: Option<u32>,
    stretches: usize,
    /// Wall time of the newest row that has one, milliseconds since 1970.
    ended: Option<i64>,
    /// The part of the rows from each one on.
    parts: Vec<(i64, u32)>,
    /// Rows, as in [`Points::order`], without a step where others have one.
    stepless: Vec<i64>,
}

impl Run {
    /// Takes the rows of a piece.
    pub fn take(&mut self, piece: &Piece, metrics: &[Metric]) {
        let batch = &*piece.batch;
        let layout = &batch.plan.layout;
        let column = |usage: Usage| layout.place_of(usage).map(|place| &batch.columns[place]);
        let Some(values) = column(Usage::Value) else { return };
        let (steps, times) = (column(Usage::Step), column(Usage::Time));
        if self.parts.last().is_none_or(|(_, part)| *part != batch.plan.part) {
            self.parts.push((self.taken, batch.plan.part));
        }
        for at in 0..piece.rows.count() {
            let row = piece.rows.row(at);
            let Some(metric) = batch.names.get(row).copied() else { return };
            self.taken += 1;
            let Some(value) = values.number(row) else { continue };
            let time = times.and_then(|times| match times {
                super::cells::Column::Text(texts) if times.has(row) => clock::from_text(texts.value(row)),
                times => times.number(row).and_then(clock::from_number),
            });
            self.ended = time.or(self.ended);
            let step = steps.and_then(|steps| steps.whole(row));
            if !metrics.get(metric as usize).is_some_and(|metric| metric.is_wanted) {
                self.others.largest = self.others.largest.max(step);
                if self.others.metrics.len() < OTHERS && !self.others.metrics.contains(&metric) {
                    self.others.metrics.push(metric);
                }
                continue;
            }
            let index = *self.index.entry(metric).or_insert_with(|| {
                self.series.push(Points {
                    metric,
                    steps: Ints::default(),
                    values: Values::F32(crate::model::column::Chunks::default()),
                    order: Ints::default(),
                    rows: Ints::default(),
                    times: Deltas::default(),
                });
                self.series.len() - 1
            });
            self.stretches += usize::from(self.newest != Some(metric));
            self.newest = Some(metric);
            let points = &mut self.series[index];
            if steps.is_some() && step.is_none() {
                self.stepless.push(self.taken - 1);
            }
            // Without a step column values are numbered; a row without a step stands where the point before it does.
            let step = match steps {
                None => points.steps.len() as i64,
                Some(_) => step.or_else(|| points.steps.last()).unwrap_or(0),
            };
            if let Some(time) = time.or_else(|| points.times.last()) {
                while points.times.len() < points.steps.len() {
                    points.times.push(time);
                }
                points.times.push(time);
            }
            points.steps.push(step);
            points.values.push(value);
            points.order.push(self.taken - 1);
            points.rows.push(piece.place(at) as i64);
        }
    }

    /// Rows to a stretch from which a broken one (a name with a flipped bit, rows appended later) changes nothing.
    const LONG: usize = 4;

    /// Each metric's rows are a stretch of their own.
    fn is_by_metric(&self) -> bool {
        let points: usize = self.series.iter().map(|points| points.steps.len()).sum();
        if self.series.len() > 1 && self.stretches <= 2 * self.series.len() && points >= Self::LONG * self.stretches {
            return true;
        }
        let ends = |points: &Points| Some((points.order.get(0), points.order.last()?));
        let mut ranges: Vec<(i64, i64)> = self.series.iter().filter_map(ends).collect();
        ranges.sort_unstable();
        ranges.len() > 1 && ranges.windows(2).all(|pair| pair[0].1 < pair[1].0)
    }

    /// Gives all points to a builder of points.
    pub fn give(self, builder: &mut Builder<'_>, metrics: &[Metric]) {
        let by_metric = self.is_by_metric();
        // How often the steps of each series have fallen, up to the point asked for last.
        let mut falls = vec![0u32; self.series.len()];
        let key = |series: usize, at: usize| {
            let steps = &self.series[series].steps;
            if !by_metric {
                return (0, self.series[series].order.get(at));
            }
            let step = steps.get(at);
            falls[series] += u32::from(at > 0 && step < steps.get(at - 1));
            (falls[series], step)
        };
        let ids: Vec<u32> = self
            .series
            .iter()
            .map(|points| metrics.get(points.metric as usize).map_or("", |metric| &metric.name))
            .map(|name| builder.column(name).id)
            .collect();
        for metric in &self.others.metrics {
            if let Some(metric) = metrics.get(*metric as usize) {
                let id = builder.column(&metric.name).id;
                builder.numeric(id);
            }
        }
        let counts: Vec<usize> = self.series.iter().map(|points| points.steps.len()).collect();
        let mut part = None;
        merge::in_order(&counts, key, |series, at| {
            let points = &self.series[series];
            let order = points.order.get(at);
            let own = self.parts.partition_point(|(first, _)| *first <= order).saturating_sub(1);
            let own = self.parts.get(own).map_or(0, |(_, part)| *part);
            if part != Some(own) {
                builder.begin_part(own);
                part = Some(own);
            }
            let step = points.steps.get(at);
            let time = points.times.get(at).map_or(f64::NAN, |time| time as f64 / 1e3);
            builder.begin_points(points.rows.get(at) as u64, step, time);
            if self.stepless.binary_search(&order).is_ok() {
                builder.forget_step();
            }
            builder.point(ids[series], points.values.get(at));
        });
        if let Some(largest) = self.others.largest {
            builder.begin_points(0, largest, self.ended.map_or(f64::NAN, |time| time as f64 / 1e3));
            builder.pass_point(true);
        }
    }
}
