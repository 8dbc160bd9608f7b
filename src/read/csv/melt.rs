//! Rows that hold values of several metrics or runs, one by one: long tables and charts of W&B.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Float64Array, Int64Array};

use super::shape::{Long, Shape};
use crate::model::{Fault, FaultKind, Format, Limits, PlaceUnit, Recording, Severity};
use crate::read::table::batch::{Batch, Piece, Plan};
use crate::read::table::cells::{Column, RowSet, Stretch, partition};
use crate::read::table::layout::{Kind, Layout, Usage, Wanted};
use crate::read::table::runs::Runs;
use crate::read::{Builder, Request};

/// Values given on at once.
const BATCH: usize = 1 << 14;

/// A value of one metric of one run.
#[derive(Clone, Copy, Debug)]
struct Point {
    run: u32,
    metric: u32,
    step: Option<i64>,
    time: Option<i64>,
    value: f64,
    line: u64,
}

/// Index of each distinct name, that of the row before found first.
#[derive(Debug, Default)]
struct Names {
    index: HashMap<Vec<u8>, u32>,
    last: Option<(Vec<u8>, u32)>,
}

impl Names {
    fn get(&mut self, name: &[u8], intern: impl FnOnce(&str) -> u32) -> u32 {
        if let Some((last, index)) = &self.last
            && last == name
        {
            return *index;
        }
        let found = self.index.get(name).copied();
        let index = found.unwrap_or_else(|| intern(&String::from_utf8_lossy(name)));
        if found.is_none() {
            self.index.insert(name.to_vec(), index);
        }
        let last = self.last.get_or_insert_default();
        last.0.clear();
        last.0.extend_from_slice(name);
        last.1 = index;
        index
    }
}

/// What one record says beside its numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Texts<'t> {
    /// The run; `None` or blank: that of the record before.
    pub run: Option<&'t [u8]>,
    /// The metric's name.
    pub name: &'t [u8],
    /// What the column `is_nan` says.
    pub is_nan: Option<&'t [u8]>,
}

/// Gives the values of such a table to their runs.
#[derive(Debug)]
pub(super) struct Melt<'r> {
    runs: Runs<'r>,
    limits: &'r Limits,
    run_names: Names,
    metric_names: Names,
    /// The run of the newest record of a long table, and the name of the first one.
    run: Option<u32>,
    first: Option<String>,
    /// Run and metric of the scratch builder's columns, in a chart.
    chart: Vec<Option<(u32, u32)>>,
    /// Columns of the scratch builder: the value, in a long table; a chart's x-axis that is not called like a step.
    value: Option<u32>,
    axis: Option<u32>,
    layout: Option<Arc<Plan>>,
    points: Vec<Point>,
    unit: usize,
    /// Faults that are of no run.
    faults: Vec<Fault>,
}

impl<'r> Melt<'r> {
    /// No value yet.
    pub fn new(request: &'r Request, limits: &'r Limits) -> Self {
        Self {
            runs: Runs::new(Format::Csv, PlaceUnit::Line, request, limits),
            limits,
            run_names: Names::default(),
            metric_names: Names::default(),
            run: None,
            first: None,
            chart: Vec::new(),
            value: None,
            axis: None,
            layout: None,
            points: Vec::new(),
            unit: 0,
            faults: Vec::new(),
        }
    }

    /// The columns from here on are these; `step`: the best of those that are called like a step.
    pub fn begin_table(&mut self, shape: &Shape, names: &[String], step: Option<&String>, into: &mut Builder<'_>) {
        self.flush();
        (self.value, self.axis) = (None, None);
        self.chart.clear();
        let step = match shape {
            Shape::Wide => step,
            Shape::Long(long) => {
                self.value = Some(into.column_of_numbers(&names[long.value]).id);
                step
            }
            Shape::Chart(columns) => {
                let is_clock = names[0].to_ascii_lowercase().contains("time");
                if step.is_none() && !is_clock {
                    self.axis = Some(into.column_of_numbers(&names[0]).id);
                }
                for (name, column) in names.iter().zip(columns) {
                    let Some((run, metric)) = column else { continue };
                    let id = into.column_of_numbers(name).id as usize;
                    let run = self.run_index(run.as_bytes());
                    let metric = self.metric_names.get(metric.as_bytes(), |name| self.runs.metric(name));
                    if self.chart.len() <= id {
                        self.chart.resize(id + 1, None);
                    }
                    self.chart[id] = Some((run, metric));
                }
                // Its rows are of no run of their own.
                self.run = None;
                step.or(names.first().filter(|_| !is_clock))
            }
        };
        let number = |usage: Usage, name: &str| Wanted {
            index: 0,
            name: name.to_owned(),
            kind: Kind::Number,
            usage,
            is_metric: usage != Usage::Time,
        };
        let mut columns = vec![number(Usage::Value, "value"), number(Usage::Time, "time")];
        columns.extend(step.map(|step| number(Usage::Step, step)));
        let layout = Layout { columns, is_long: true, has_signal: true, others: Vec::new() };
        self.layout = Some(Arc::new(Plan::new(layout, 0)));
    }

    fn run_index(&mut self, name: &[u8]) -> u32 {
        let name = &name[..name.len().min(self.limits.name)];
        let (runs, first) = (&self.runs, &mut self.first);
        self.run_names.get(name, |name| {
            if first.is_none() {
                // Records before it that name no run are of it.
                *first = Some(name.to_owned());
                return runs.only();
            }
            runs.run(name)
        })
    }

    /// Whether a name is that of the newest record's run; any is before the first that is met.
    pub fn is_same_run(&self, name: Option<&[u8]>) -> bool {
        self.run_names.last.as_ref().is_none_or(|(last, _)| name.is_some_and(|name| name == last))
    }

    /// Takes the record that stands in the scratch builder. `whole`: all that it holds counts; else what stands up to its
    /// last NaN or Inf. Gives whether anything was taken.
    pub fn take(&mut self, texts: Texts<'_>, line: u64, whole: bool, into: &Builder<'_>) -> bool {
        let (step, time, cells) = into.row();
        let begin = self.points.len();
        if let Some(value) = self.value {
            let run = match texts.run.filter(|run| !run.is_empty()) {
                Some(run) => self.run_index(run),
                None => self.run.unwrap_or_else(|| self.runs.only()),
            };
            self.run = Some(run);
            let mut cells = cells;
            let number = cells.find(|(id, _)| *id == value).map(|(_, value)| value);
            let number = match texts.is_nan {
                Some(is_nan) => restored(number, is_nan),
                None => number,
            };
            if let Some(value) = number.filter(|_| !texts.name.is_empty()) {
                let metric = self.metric_names.get(texts.name, |name| self.runs.metric(name));
                self.points.push(Point { run, metric, step, time, value, line });
            }
        } else {
            let mut step = step;
            for (id, value) in cells {
                if self.axis == Some(id) {
                    step = (value.is_finite()).then(|| value.floor() as i64);
                } else if let Some((run, metric)) = self.chart.get(id as usize).copied().flatten() {
                    self.points.push(Point { run, metric, step, time, value, line });
                }
            }
        }
        if !whole {
            let last = self.points[begin..].iter().rposition(|point| !point.value.is_finite());
            self.points.truncate(begin + last.map_or(0, |last| last + 1));
        }
        let took = self.points.len() > begin;
        if self.points.len() >= BATCH {
            self.flush();
        }
        took
    }

    /// Faults of a record are those of its run.
    pub fn take_faults(&mut self, into: &mut Builder<'_>) {
        for fault in into.take_faults() {
            match self.run {
                Some(run) => self.runs.lose(run, 0, &fault, &[], &mut |_| {}),
                None if self.faults.len() < self.limits.faults => self.faults.push(fault),
                None => {}
            }
        }
    }

    fn flush(&mut self) {
        let Some(plan) = self.layout.clone().filter(|_| !self.points.is_empty()) else { return };
        let mut points = std::mem::take(&mut self.points);
        // By run, and within each in the order of the lines: a chart has several runs a line.
        if self.value.is_none() {
            points.sort_by_key(|point| point.run);
        }
        let mut stretches: Vec<Stretch> = Vec::new();
        for (row, point) in points.iter().enumerate() {
            let end = row as u32 + 1;
            match stretches.last_mut() {
                Some(last) if last.key == point.run => last.end = end,
                _ => stretches.push(Stretch { end, key: point.run }),
            }
        }
        let mut columns = vec![
            Column::F64(Float64Array::from_iter_values(points.iter().map(|point| point.value))),
            Column::F64(points.iter().map(|point| point.time.map(|time| time as f64)).collect()),
        ];
        if plan.layout.place_of(Usage::Step).is_some() {
            columns.push(Column::I64(points.iter().map(|point| point.step).collect::<Int64Array>()));
        }
        let batch = Arc::new(Batch {
            plan,
            first_row: 0,
            columns,
            ambiguous: Vec::new(),
            names: points.iter().map(|point| point.metric).collect(),
            places: Some(points.iter().map(|point| point.line).collect()),
        });
        let sets: Vec<(u32, RowSet)> = partition(&stretches, points.len());
        for (run, rows) in sets {
            self.runs.take(run, self.unit, Piece { batch: batch.clone(), rows }, &mut |_| {});
        }
        self.runs.end_unit(self.unit, &mut |_| {});
        self.unit += 1;
        points.clear();
        self.points = points;
    }

    /// The recordings of all runs, in the order of their first values. `into`: the scratch builder.
    pub fn finish(mut self, mut into: Builder<'_>) -> Vec<Recording> {
        self.flush();
        self.take_faults(&mut into);
        let mut recordings = Vec::new();
        self.runs.finish(&mut |recording| recordings.push(recording));
        let newest = self.run.map_or(0, |run| run as usize);
        if let Some(recording) = recordings.get_mut(newest) {
            recording.unterminated = into.unterminated;
        }
        if recordings.len() > 1 {
            recordings[0].run_id = self.first.take();
        } else if let Some(only) = recordings.first_mut() {
            only.run_id = None;
        }
        if self.runs.passed_limit() {
            let place = into.place(PlaceUnit::Line, 1);
            let detail = format!("more than {} runs: the rows of further ones are not read", self.limits.runs);
            let mut fault = Fault::new(FaultKind::Limit, place, detail);
            fault.severity = Severity::Error;
            self.faults.push(fault);
        }
        match recordings.first_mut() {
            Some(first) => {
                first.faults.splice(..0, self.faults);
            }
            None => {
                self.faults.into_iter().for_each(|fault| into.fault(fault));
                recordings.push(into.finish());
            }
        }
        recordings
    }
}

/// MLflow's store keeps NaN as 0 with a flag, and Inf as the largest double.
fn restored(number: Option<f64>, is_nan: &[u8]) -> Option<f64> {
    let is = |words: &[&str]| words.iter().any(|word| is_nan.eq_ignore_ascii_case(word.as_bytes()));
    match number {
        _ if is(&["1", "true", "t", "yes", "1.0"]) => Some(f64::NAN),
        Some(f64::MAX) => Some(f64::INFINITY),
        Some(f64::MIN) => Some(f64::NEG_INFINITY),
        number => number,
    }
}

impl Long {
    /// Whether the record's own columns lie before `closed`: what was cut off says nothing else about its value.
    pub fn is_told(&self, closed: usize) -> bool {
        self.name < closed && self.is_nan.is_none_or(|is_nan| is_nan < closed)
    }
}
