//! The tables of a scan as Arrow record batches. NaN stays NaN; null means "not recorded".

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::builder::{
    BooleanBuilder, Float64Builder, Int64Builder, ListBuilder, StringBuilder, StringViewBuilder, StructBuilder,
    TimestampMicrosecondBuilder,
};
use arrow_array::{Array, ArrayRef, RecordBatch, StructArray};
use arrow_schema::{ArrowError, DataType, Field, Fields};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use pyo3_arrow::ffi::{ArrayIterator, to_stream_pycapsule};

use crate::model::finding::Check;
use crate::model::{Phase, Role, Status, roles as names};
use crate::read::{READERS, Reader, Tracker};
use crate::scan::{Outcome, Reported, Scan, is_norm};

/// An Arrow table: anything that reads the Arrow C stream interface takes it, `polars.DataFrame(table)` for one.
#[pyclass(frozen, module = "gradscan._core")]
pub struct Table {
    batch: RecordBatch,
}

impl Table {
    /// A table of one batch.
    pub fn new(batch: RecordBatch) -> Self {
        Self { batch }
    }
}

#[pymethods]
impl Table {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let array: ArrayRef = Arc::new(StructArray::from(self.batch.clone()));
        let field = Arc::new(Field::new_struct("", self.batch.schema().fields().clone(), false));
        let stream = ArrayIterator::new(std::iter::once(Ok(array)), field);
        Ok(to_stream_pycapsule(py, Box::new(stream), requested_schema)?)
    }

    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }
}

/// Everything that a scan says.
#[pyclass(frozen, module = "gradscan._core")]
pub struct ScanTables {
    runs: RecordBatch,
    series: RecordBatch,
    findings: RecordBatch,
    suspicions: RecordBatch,
    faults: RecordBatch,
    directories: RecordBatch,
    #[pyo3(get)]
    skipped_files: u64,
    #[pyo3(get)]
    bytes: u64,
    #[pyo3(get)]
    roots: Vec<String>,
    #[pyo3(get)]
    interrupted: bool,
}

#[pymethods]
impl ScanTables {
    #[getter]
    fn runs(&self) -> Table {
        Table::new(self.runs.clone())
    }

    #[getter]
    fn series(&self) -> Table {
        Table::new(self.series.clone())
    }

    #[getter]
    fn findings(&self) -> Table {
        Table::new(self.findings.clone())
    }

    #[getter]
    fn suspicions(&self) -> Table {
        Table::new(self.suspicions.clone())
    }

    #[getter]
    fn faults(&self) -> Table {
        Table::new(self.faults.clone())
    }

    #[getter]
    fn directories(&self) -> Table {
        Table::new(self.directories.clone())
    }
}

impl ScanTables {
    /// Builds the tables.
    pub fn new(scan: &Scan) -> Result<Self, ArrowError> {
        Ok(Self {
            runs: runs(&scan.outcomes)?,
            series: series(&scan.outcomes)?,
            findings: findings(&scan.outcomes)?,
            suspicions: suspicions(&scan.outcomes)?,
            faults: faults(scan)?,
            directories: directories(&scan.outcomes)?,
            skipped_files: scan.skipped,
            bytes: scan.outcomes.iter().map(|outcome| outcome.bytes).sum(),
            roots: scan.roots.clone(),
            interrupted: scan.interrupted,
        })
    }
}

/// Columns of a table under construction.
#[derive(Default)]
pub struct Columns(Vec<(&'static str, ArrayRef)>);

impl Columns {
    /// Adds a column of texts.
    pub fn text<T: AsRef<str>>(&mut self, name: &'static str, values: impl Iterator<Item = Option<T>>) -> &mut Self {
        // Views are what polars holds: it takes them over instead of copying every text.
        let mut builder = StringViewBuilder::new();
        values.for_each(|value| builder.append_option(value));
        self.push(name, builder.finish())
    }

    /// Adds a column of integers.
    pub fn int(&mut self, name: &'static str, values: impl Iterator<Item = Option<i64>>) -> &mut Self {
        let mut builder = Int64Builder::new();
        values.for_each(|value| builder.append_option(value));
        self.push(name, builder.finish())
    }

    /// Adds a column of counts.
    pub fn count(&mut self, name: &'static str, values: impl Iterator<Item = u64>) -> &mut Self {
        self.int(name, values.map(|value| Some(i64::try_from(value).unwrap_or(i64::MAX))))
    }

    /// Adds a column of floats.
    pub fn float(&mut self, name: &'static str, values: impl Iterator<Item = Option<f64>>) -> &mut Self {
        let mut builder = Float64Builder::new();
        values.for_each(|value| builder.append_option(value));
        self.push(name, builder.finish())
    }

    /// Adds a column of booleans.
    pub fn flag(&mut self, name: &'static str, values: impl Iterator<Item = bool>) -> &mut Self {
        let mut builder = BooleanBuilder::new();
        values.for_each(|value| builder.append_value(value));
        self.push(name, builder.finish())
    }

    /// Adds a column of times, given in milliseconds since 1970.
    pub fn time(&mut self, name: &'static str, values: impl Iterator<Item = Option<i64>>) -> &mut Self {
        let mut builder = TimestampMicrosecondBuilder::new().with_timezone("UTC");
        values.for_each(|value| builder.append_option(value.and_then(|value| value.checked_mul(1000))));
        self.push(name, builder.finish())
    }

    /// Adds a column of lists of texts.
    pub fn texts<T: AsRef<str>>(&mut self, name: &'static str, values: impl Iterator<Item = Vec<T>>) -> &mut Self {
        let mut builder = ListBuilder::new(StringViewBuilder::new());
        values.for_each(|list| builder.append_value(list.into_iter().map(Some)));
        self.push(name, builder.finish())
    }

    /// Adds a column of lists of integers.
    pub fn ints(&mut self, name: &'static str, values: impl Iterator<Item = Vec<i64>>) -> &mut Self {
        let mut builder = ListBuilder::new(Int64Builder::new());
        values.for_each(|list| builder.append_value(list.into_iter().map(Some)));
        self.push(name, builder.finish())
    }

    fn push(&mut self, name: &'static str, array: impl Array + 'static) -> &mut Self {
        let mut array: ArrayRef = Arc::new(array);
        array.shrink_to_fit();
        self.0.push((name, array));
        self
    }

    /// The finished table.
    pub fn batch(&mut self) -> Result<RecordBatch, ArrowError> {
        RecordBatch::try_from_iter_with_nullable(self.0.drain(..).map(|(name, array)| (name, array, true)))
    }
}

/// The finding that stands for a run: `nonfinite` before spikes of phase `run` before those of the opening.
fn worst(outcome: &Outcome) -> Option<&Reported> {
    outcome.findings.iter().min_by_key(|reported| match (reported.finding.check, reported.finding.phase) {
        (Check::Nonfinite, _) => 0,
        (Check::Spikes, Some(Phase::Run)) => 1,
        (Check::Spikes, _) => 2,
    })
}

fn runs(outcomes: &[Box<Outcome>]) -> Result<RecordBatch, ArrowError> {
    let all = || outcomes.iter();
    let worst = || outcomes.iter().map(|outcome| worst(outcome));
    let metrics = |wanted: fn(Role) -> bool| {
        all().map(move |outcome| {
            outcome.series.iter().filter(|series| wanted(series.role)).map(|series| series.metric.clone()).collect()
        })
    };
    let checks = all().map(|outcome| {
        let mut checks: Vec<&str> = outcome.findings.iter().map(|reported| reported.finding.check.as_str()).collect();
        checks.sort_unstable();
        checks.dedup();
        checks
    });
    // Several gradient norms may spike in different phases; the worst one is the run's.
    let phase = all()
        .map(|outcome| outcome.findings.iter().filter_map(|reported| reported.finding.phase).max().map(Phase::as_str));
    Columns::default()
        .text("run", all().map(|o| Some(&o.run)))
        .text("directory", all().map(|o| Some(&o.directory)))
        .text("source", all().map(|o| Some(&o.source)))
        .text("format", all().map(|o| Some(o.format.map_or("unknown", |format| format.as_str()))))
        .text("status", all().map(|o| Some(o.status.as_str())))
        .text("reason_code", all().map(|o| o.reason.as_ref().map(|(code, _)| *code)))
        .text("reason_detail", all().map(|o| o.reason.as_ref().map(|(_, detail)| detail)))
        .texts("checks", checks)
        .text("phase", phase)
        .int("first_step", worst().map(|w| w?.finding.first_step))
        .int("onset_step", worst().map(|w| w?.finding.onset_step))
        .int("restore_step", worst().map(|w| w?.restore.step.and_then(|step| i64::try_from(step).ok())))
        .text("restore_path", worst().map(|w| w?.restore.path.as_ref()))
        .text("restore_status", worst().map(|w| w.map(|w| w.restore.status.as_str())))
        .text("restore_reason", worst().map(|w| w?.restore.said()))
        .count("records", all().map(|o| o.records))
        .text("step_name", all().map(|o| o.step_name.as_ref()))
        .int("first_step_recorded", all().map(|o| o.first_step))
        .int("last_step", all().map(|o| o.last_step))
        .float("step_interval", all().map(|o| o.step_interval))
        .float("coverage", all().map(|o| o.coverage))
        .texts("grad_norm_metrics", metrics(is_norm))
        .texts("loss_metrics", metrics(|role| matches!(role, Role::Loss | Role::LossPart)))
        .texts("other_metrics", all().map(|o| o.unrecognised.iter().take(50).collect()))
        .count("attempts", all().map(|o| o.attempts))
        .count("checkpoints", all().map(|o| o.checkpoints))
        .texts("notes", all().map(|o| o.notes.clone()))
        .count("bytes", all().map(|o| o.bytes))
        .time("started", all().map(|o| o.started))
        .time("ended", all().map(|o| o.ended))
        .text("name", all().map(|o| o.name.as_ref()))
        .batch()
}

fn series(outcomes: &[Box<Outcome>]) -> Result<RecordBatch, ArrowError> {
    let all = || outcomes.iter().flat_map(|o| o.series.iter().map(move |series| (o, series)));
    Columns::default()
        .text("run", all().map(|(o, _)| Some(&o.run)))
        .text("role", all().map(|(_, s)| Some(s.role.as_str())))
        .text("metric", all().map(|(_, s)| Some(&s.metric)))
        .count("n", all().map(|(_, s)| s.rows))
        .count("nan", all().map(|(_, s)| s.nan))
        .count("inf", all().map(|(_, s)| s.inf))
        .float("median", all().map(|(_, s)| s.median))
        .float("max", all().map(|(_, s)| s.max))
        .count("spikes", all().map(|(_, s)| s.spikes))
        .int("first_step", all().map(|(_, s)| s.first_step))
        .int("last_step", all().map(|(_, s)| s.last_step))
        .batch()
}

/// Stable across archives and machines: of run, check, metric, attempt and first step (FNV-1a, 64 bits).
fn id(run: &str, reported: &Reported) -> String {
    let finding = &reported.finding;
    let step = finding.first_step.map_or_else(String::new, |step| step.to_string());
    let key = format!("{run}\n{}\n{}\n{}\n{step}", finding.check.as_str(), finding.metric, finding.attempt);
    let hash = key
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}

fn findings(outcomes: &[Box<Outcome>]) -> Result<RecordBatch, ArrowError> {
    let all = || outcomes.iter().flat_map(|o| o.findings.iter().map(move |reported| (o, reported, &reported.finding)));
    let mut columns = Columns::default();
    columns
        .text("id", all().map(|(o, r, _)| Some(id(&o.run, r))))
        .text("run", all().map(|(o, ..)| Some(&o.run)))
        .text("directory", all().map(|(o, ..)| Some(&o.directory)))
        .text("source", all().map(|(o, ..)| Some(&o.source)))
        .text("format", all().map(|(o, ..)| Some(o.format.map_or("unknown", |format| format.as_str()))))
        .text("signature", all().map(|_| Some("GRAD_PATHOLOGY")))
        .text("check", all().map(|(.., f)| Some(f.check.as_str())))
        .text("severity", all().map(|(.., f)| Some(f.severity())))
        .float("confidence", all().map(|(.., f)| Some(f.confidence)))
        .text("metric", all().map(|(.., f)| Some(&f.metric)))
        .int("first_step", all().map(|(.., f)| f.first_step))
        .count("first_record", all().map(|(.., f)| f.first_record))
        .text("first_place", all().map(|(_, r, _)| Some(&r.first_place)))
        .time("first_time", all().map(|(.., f)| f.first_time))
        .float("first_value", all().map(|(.., f)| f.first_value))
        .int("onset_step", all().map(|(.., f)| f.onset_step))
        .int("last_good_step", all().map(|(.., f)| f.last_good_step))
        .float("last_good_value", all().map(|(.., f)| f.last_good_value))
        .int("last_bad_step", all().map(|(.., f)| f.last_bad_step))
        .flag("recovered", all().map(|(.., f)| f.recovered))
        .count("count", all().map(|(.., f)| f.count))
        .count("count_opening", all().map(|(.., f)| f.count_opening))
        .count("nan", all().map(|(.., f)| f.nan))
        .count("inf", all().map(|(.., f)| f.inf))
        .float("median", all().map(|(.., f)| f.median))
        .float("threshold", all().map(|(.., f)| f.threshold))
        .float("max", all().map(|(.., f)| f.max))
        .text("phase", all().map(|(.., f)| f.phase.map(Phase::as_str)))
        .count("attempt", all().map(|(.., f)| f.attempt))
        .flag("superseded", all().map(|(.., f)| f.superseded))
        .ints("steps", all().map(|(.., f)| f.steps.clone()))
        .push("evidence", evidence(all().map(|(_, reported, _)| reported)))
        .int("restore_step", all().map(|(_, r, _)| r.restore.step.and_then(|step| i64::try_from(step).ok())))
        .text("restore_path", all().map(|(_, r, _)| r.restore.path.as_ref()))
        .text("restore_status", all().map(|(_, r, _)| Some(r.restore.status.as_str())))
        .text("restore_reason", all().map(|(_, r, _)| r.restore.said()))
        .count("checkpoints_after", all().map(|(_, r, _)| r.restore.after))
        .batch()
}

fn evidence<'a>(all: impl Iterator<Item = &'a Reported>) -> impl Array + 'static {
    let texts = ["metric", "role"].map(|name| Field::new(name, DataType::Utf8, true));
    let step = Field::new("first_step", DataType::Int64, true);
    let value = Field::new("value", DataType::Float64, true);
    let counts = ["last_good_step", "nan", "inf", "count"].map(|name| Field::new(name, DataType::Int64, true));
    let fields: Fields = texts.into_iter().chain([step, value]).chain(counts).collect();
    let mut list = ListBuilder::new(StructBuilder::from_fields(fields, 0));
    for reported in all {
        for evidence in &reported.finding.evidence {
            let row = list.values();
            let int = |row: &mut StructBuilder, index: usize, value: Option<i64>| {
                if let Some(builder) = row.field_builder::<Int64Builder>(index) {
                    builder.append_option(value);
                }
            };
            for (index, text) in [evidence.metric.as_str(), evidence.role].into_iter().enumerate() {
                if let Some(builder) = row.field_builder::<StringBuilder>(index) {
                    builder.append_value(text);
                }
            }
            int(row, 2, evidence.first_step);
            if let Some(builder) = row.field_builder::<Float64Builder>(3) {
                builder.append_option(evidence.value);
            }
            int(row, 4, evidence.last_good_step);
            for (index, count) in [evidence.nan, evidence.inf, evidence.count].into_iter().enumerate() {
                int(row, index + 5, Some(i64::try_from(count).unwrap_or(i64::MAX)));
            }
            row.append(true);
        }
        list.append(true);
    }
    list.finish()
}

fn suspicions(outcomes: &[Box<Outcome>]) -> Result<RecordBatch, ArrowError> {
    let all = || outcomes.iter().flat_map(|o| o.suspicions.iter().map(move |suspicion| (&o.run, suspicion)));
    Columns::default()
        .text("run", all().map(|(run, _)| Some(run)))
        .text("rule", all().map(|(_, suspicion)| Some(suspicion.rule)))
        .text("metric", all().map(|(_, suspicion)| Some(&suspicion.metric)))
        .int("first_step", all().map(|(_, suspicion)| suspicion.first_step))
        .int("last_good_step", all().map(|(_, suspicion)| suspicion.last_good_step))
        .batch()
}

fn faults(scan: &Scan) -> Result<RecordBatch, ArrowError> {
    let of_runs = || scan.outcomes.iter().flat_map(|o| o.faults.iter().map(move |fault| (Some(&o.run), fault)));
    let all = || of_runs().chain(scan.faults.iter().map(|fault| (None, fault)));
    Columns::default()
        .text("run", all().map(|(run, _)| run))
        .text("source", all().map(|(_, f)| Some(&f.source)))
        .text("kind", all().map(|(_, f)| Some(f.fault.kind.as_str())))
        .text("place", all().map(|(_, f)| Some(&f.place)))
        .text("detail", all().map(|(_, f)| Some(&f.fault.detail)))
        .text("severity", all().map(|(_, f)| Some(f.fault.severity.as_str())))
        .batch()
}

fn directories(outcomes: &[Box<Outcome>]) -> Result<RecordBatch, ArrowError> {
    let mut grouped: BTreeMap<&str, Vec<Status>> = BTreeMap::new();
    for outcome in outcomes {
        grouped.entry(&outcome.directory).or_default().push(outcome.status);
    }
    let all = || grouped.iter();
    Columns::default()
        .text("directory", all().map(|(directory, _)| Some(*directory)))
        .count("recordings", all().map(|(_, statuses)| statuses.len() as u64))
        .text("status", all().map(|(_, statuses)| statuses.iter().min().map(|status| status.as_str())))
        .flag("disagree", all().map(|(_, statuses)| statuses.iter().any(|status| *status != statuses[0])))
        .batch()
}

fn about() -> impl Iterator<Item = [&'static str; 5]> + Clone {
    READERS.iter().map(|reader| {
        let about = reader.about();
        [reader.format().as_str(), about.files, about.nonfinite, about.missing, about.not_read]
    })
}

/// The formats that are read, one a row: (format, files, nan, missing, not_read).
#[pyfunction]
pub fn format_rows() -> Vec<(&'static str, &'static str, &'static str, &'static str, &'static str)> {
    about().map(|[format, files, nan, missing, not_read]| (format, files, nan, missing, not_read)).collect()
}

/// The formats that are read, as a table.
#[pyfunction]
pub fn formats() -> PyResult<Table> {
    let mut columns = Columns::default();
    for (index, name) in ["format", "files", "nan", "missing", "not_read"].into_iter().enumerate() {
        columns.text(name, about().map(move |row| Some(row[index])));
    }
    table(columns.batch())
}

type TrackerRow = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

/// The trackers whose files were tried, one a row: (tracker, version, format, files, nan, missing, not_read).
#[pyfunction]
pub fn tracker_rows() -> Vec<TrackerRow> {
    let of = |reader: &&dyn Reader| {
        let format = reader.format().as_str();
        reader.trackers().iter().map(move |tracker| {
            let Tracker { name, version, files, nonfinite, missing, not_read } = *tracker;
            (name, version, format, files, nonfinite, missing, not_read)
        })
    };
    READERS.iter().flat_map(of).collect()
}

/// The trackers whose files were tried, as a table.
#[pyfunction]
pub fn trackers() -> PyResult<Table> {
    let rows = tracker_rows();
    let all = || rows.iter();
    let batch = Columns::default()
        .text("tracker", all().map(|row| Some(row.0)))
        .text("version", all().map(|row| Some(row.1)))
        .text("format", all().map(|row| Some(row.2)))
        .text("files", all().map(|row| Some(row.3)))
        .text("nan", all().map(|row| Some(row.4)))
        .text("missing", all().map(|row| Some(row.5)))
        .text("not_read", all().map(|row| Some(row.6)))
        .batch();
    table(batch)
}

/// The table of metric names: role, kind (exact, pattern, excluded), pattern, note.
#[pyfunction]
pub fn roles() -> PyResult<Table> {
    let batch = Columns::default()
        .text("role", names::table().map(|entry| entry.role.map(Role::as_str)))
        .text("kind", names::table().map(|entry| Some(entry.kind.as_str())))
        .text("pattern", names::table().map(|entry| Some(entry.pattern)))
        .text("note", names::table().map(|entry| Some(entry.note)))
        .batch();
    table(batch)
}

/// The role of a metric's name alone.
#[pyfunction]
pub fn role_of(name: &str) -> Option<&'static str> {
    names::role_of(name).map(Role::as_str)
}

/// A finished table, or the error that it could not be built.
pub fn table(batch: Result<RecordBatch, ArrowError>) -> PyResult<Table> {
    batch.map(Table::new).map_err(|error| PyValueError::new_err(error.to_string()))
}
