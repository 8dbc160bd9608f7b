//! One recording read in full, for `gradscan.read`.

use std::collections::BTreeMap;

use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;

use super::tables::{Columns, Table, table};
use crate::detect::notes;
use crate::model::recording::Kept;
use crate::model::{Checkpoint, Knobs, Recording, Role, Signal, Source};

/// A recording with all its numeric series.
///
/// `records` has one row for each record that holds a series; `rows` says which of them a series' values belong to.
#[pyclass(frozen, module = "gradscan._core")]
pub struct RecordingData {
    run: String,
    source: Source,
    recording: Recording,
    checkpoints: Vec<Checkpoint>,
    records: Vec<Row>,
}

struct Row {
    record: i64,
    step: i64,
    time: Option<i64>,
}

impl RecordingData {
    /// Wraps what a reader gave. `named`: checkpoints known by their names.
    pub fn new(run: String, source: &Source, recording: Recording, named: &[Checkpoint]) -> Self {
        let run = recording.run_id.as_ref().map_or_else(|| run.clone(), |id| format!("{run}#{id}"));
        let checkpoints = recording.checkpoints.iter().chain(named).cloned().collect();
        let kept = recording.series.iter().filter_map(|series| match &series.signal {
            Signal::Kept(kept) => Some(kept.as_ref()),
            Signal::Reduced(_) => None,
        });
        let rows = kept.flat_map(|kept| {
            let row = |(at, record)| Row { record, step: kept.steps.get(at), time: kept.times.get(at) };
            kept.records.iter().enumerate().map(row)
        });
        let records: BTreeMap<i64, Row> = rows.map(|row| (row.record, row)).collect();
        Self { run, source: source.clone(), recording, checkpoints, records: records.into_values().collect() }
    }

    fn kept(&self, name: &str) -> PyResult<&Kept> {
        let found = self.recording.series.iter().find(|series| series.name == name);
        match found.map(|series| &series.signal) {
            Some(Signal::Kept(kept)) => Ok(kept),
            _ => Err(PyKeyError::new_err(name.to_owned())),
        }
    }
}

type Points<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<f64>>);

#[pymethods]
impl RecordingData {
    #[getter]
    fn run(&self) -> &str {
        &self.run
    }

    #[getter]
    fn format(&self) -> &'static str {
        self.recording.format.as_str()
    }

    #[getter]
    fn source(&self) -> &str {
        &self.source.path
    }

    /// What the tracker says of the run itself: (name, text).
    #[getter]
    fn metadata(&self) -> Vec<(&str, &str)> {
        self.recording.metadata.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect()
    }

    #[getter]
    fn step_name(&self) -> Option<&str> {
        self.recording.axis.step_name.as_deref()
    }

    #[getter]
    fn names(&self) -> Vec<&str> {
        self.recording.series.iter().map(|series| series.name.as_str()).collect()
    }

    #[getter]
    fn roles(&self) -> Vec<Option<&'static str>> {
        self.recording.series.iter().map(|series| series.role.map(Role::as_str)).collect()
    }

    #[getter]
    fn notes(&self) -> Vec<&'static str> {
        notes::notes(&self.recording, &[], None, &Knobs::default())
    }

    /// Steps (int64) and values (float64) of a series, shape (rows,), in record order.
    fn series<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Points<'py>> {
        let kept = self.kept(name)?;
        let steps: Vec<i64> = kept.steps.iter().collect();
        let values: Vec<f64> = (0..kept.values.len()).map(|row| kept.values.get(row)).collect();
        Ok((steps.into_pyarray(py), values.into_pyarray(py)))
    }

    /// The rows of `records` (int64, from 0) that the values of a series belong to, shape (rows,).
    fn rows<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let row = |record: i64| self.records.partition_point(|row| row.record < record) as i64;
        Ok(self.kept(name)?.records.iter().map(row).collect::<Vec<i64>>().into_pyarray(py))
    }

    /// Records that hold a series: record, step, attempt, time.
    #[getter]
    fn records(&self) -> PyResult<Table> {
        let all = || self.records.iter();
        let attempt = |record: i64| Some(self.recording.axis.attempt_of(record as u64) as i64 + 1);
        let batch = Columns::default()
            .int("record", all().map(|row| Some(row.record)))
            .int("step", all().map(|row| Some(row.step)))
            .int("attempt", all().map(|row| attempt(row.record)))
            .time("time", all().map(|row| row.time))
            .batch();
        table(batch)
    }

    #[getter]
    fn events(&self) -> PyResult<Table> {
        let all = || self.recording.events.iter();
        let batch = Columns::default()
            .int("step", all().map(|event| event.step))
            .text("kind", all().map(|event| Some(&event.kind)))
            .text("message", all().map(|event| Some(&event.message)))
            .time("time", all().map(|event| event.time))
            .batch();
        table(batch)
    }

    #[getter]
    fn checkpoints(&self) -> PyResult<Table> {
        let all = || self.checkpoints.iter();
        let batch = Columns::default()
            .int("step", all().map(|checkpoint| i64::try_from(checkpoint.number).ok()))
            .text("unit", all().map(|checkpoint| Some(checkpoint.unit.as_str())))
            .text("path", all().map(|checkpoint| Some(&checkpoint.path)))
            .flag("complete", all().map(|checkpoint| checkpoint.complete))
            .batch();
        table(batch)
    }

    #[getter]
    fn faults(&self) -> PyResult<Table> {
        let all = || self.recording.faults.iter();
        let path = |part: u32| self.source.parts.get(part as usize).map(|part| &part.path);
        let batch = Columns::default()
            .text("source", all().map(|fault| path(fault.place.part)))
            .text("kind", all().map(|fault| Some(fault.kind.as_str())))
            .text("place", all().map(|fault| Some(fault.place.describe(""))))
            .text("detail", all().map(|fault| Some(&fault.detail)))
            .text("severity", all().map(|fault| Some(fault.severity.as_str())))
            .batch();
        table(batch)
    }
}
