//! The only place that releases the GIL, turns Ctrl-C into `KeyboardInterrupt` and a panic into `InternalError`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::SchemaRef;
use globset::GlobBuilder;
use numpy::{PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyIterator;
use pyo3_arrow::PySchema;
use pyo3_arrow::input::AnyRecordBatch;

use super::arrays::Floats;
use super::recording::RecordingData;
use super::tables::ScanTables;
use crate::detect::{self, Worker};
use crate::discover::{self, Filter};
use crate::model::{Format, Knobs, Limits, Opening, Part, PlaceUnit, Role, Source};
use crate::open::Disk;
use crate::read::table::cells::NanMeaning;
use crate::read::{Builder, Rejected, Request, TableColumns};
use crate::scan::frame::{NanRule, Refused, plan, scan_batches};
use crate::scan::{Advance, Options, Scan, is_left_out, jobs, outcome, read_source, scan as scan_paths};

/// Between two calls of the progress callback.
const TICK: Duration = Duration::from_millis(100);

/// Runs work that needs no Python without the GIL. A panic becomes `gradscan.InternalError`.
pub fn without_gil<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    py.detach(|| catch_unwind(AssertUnwindSafe(work))).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        raise(py, "InternalError", &format!("a defect of gradscan, please report it: {text}"))
    })
}

/// An exception class of `gradscan.errors` by name: the classes live in Python, so that they pickle.
pub(super) fn raise(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let class = py.import("gradscan.errors").and_then(|module| module.getattr(class));
    match class.and_then(|class| class.call1((message,))) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

fn parse_knobs(spike_ratio: f64, min_spikes: i64, min_points: i64, min_norm: f64, opening: &str) -> PyResult<Knobs> {
    let count = |name: &str, value: i64| {
        u64::try_from(value)
            .ok()
            .filter(|value| *value > 0)
            .ok_or_else(|| PyValueError::new_err(format!("{name}: got {value}, want a whole number of at least 1")))
    };
    if !(spike_ratio.is_finite() && spike_ratio > 0.0) {
        return Err(PyValueError::new_err(format!("spike_ratio: got {spike_ratio}, want a finite number above 0")));
    }
    if !(min_norm.is_finite() && min_norm >= 0.0) {
        return Err(PyValueError::new_err(format!("min_norm: got {min_norm}, want a finite number of at least 0")));
    }
    let opening = Opening::parse(opening).ok_or_else(|| {
        PyValueError::new_err(format!("opening: got {opening:?}, want \"report\", \"strict\" or \"ignore\""))
    })?;
    Ok(Knobs {
        spike_ratio,
        min_spikes: count("min_spikes", min_spikes)?,
        min_points: count("min_points", min_points)?,
        min_norm,
        opening,
    })
}

fn parse_request(
    metrics: Option<Vec<(String, String)>>,
    step: Option<String>,
    table: TableColumns,
    everything: bool,
) -> PyResult<Request> {
    let mut request = Request { metrics: Vec::new(), step, table, everything };
    for (role, pattern) in metrics.unwrap_or_default() {
        let parsed = role.parse::<Role>().map_err(|_| {
            let known: Vec<&str> = Role::ALL.iter().map(|role| role.as_str()).collect();
            PyValueError::new_err(format!("metrics: got role {role:?}, want one of {}", known.join(", ")))
        })?;
        let glob = GlobBuilder::new(&pattern).literal_separator(false).build().map_err(|error| {
            PyValueError::new_err(format!("metrics[{role:?}]: bad pattern {pattern:?}: {}", error.kind()))
        })?;
        request.metrics.push((parsed, glob.compile_matcher()));
    }
    Ok(request)
}

pub(super) fn parse_threads(threads: Option<i64>) -> PyResult<Option<usize>> {
    let parse = |threads: i64| {
        usize::try_from(threads).ok().filter(|threads| (1..=4096).contains(threads)).ok_or_else(|| {
            PyValueError::new_err(format!("threads: got {threads}, want 1 to 4096, or None for all processors"))
        })
    };
    threads.map(parse).transpose()
}

/// Calls back into Python from the waiting thread: signals first, then the progress callback.
pub(super) struct Watch {
    progress: Option<Py<PyAny>>,
    told: Option<Instant>,
    /// What stopped the work.
    pub(super) error: Option<PyErr>,
}

impl Watch {
    pub(super) fn new(progress: Option<Py<PyAny>>) -> Self {
        Self { progress, told: None, error: None }
    }

    /// Whether to go on.
    pub(super) fn tick(&mut self, advance: Advance) -> bool {
        if self.error.is_some() {
            return false;
        }
        let last = advance.total_sources > 0 && advance.sources == advance.total_sources;
        let due = last || self.told.is_none_or(|told| told.elapsed() >= TICK);
        let result = Python::attach(|py| {
            py.check_signals()?;
            match &self.progress {
                Some(progress) if due => {
                    let Advance { bytes, total_bytes, sources, total_sources, damaged } = advance;
                    progress.call1(py, (bytes, total_bytes, sources, total_sources, damaged)).map(|_| ())
                }
                _ => Ok(()),
            }
        });
        if due {
            self.told = Some(Instant::now());
        }
        self.error = result.err();
        self.error.is_none()
    }
}

/// Scans files and directories, which exist. See `gradscan.scan` for the arguments.
///
/// `progress` is called about ten times a second with (bytes, total bytes, sources, total sources, damaged so far); an
/// exception that it raises stops the scan. With `partial`, Ctrl-C gives what is done instead of `KeyboardInterrupt`.
#[pyfunction]
#[pyo3(signature = (paths, *, spike_ratio=10.0, min_spikes=3, min_points=10, min_norm=0.0, opening="report",
                    metrics=None, step=None, run=None, name=None, value=None, include=None, exclude=None, threads=None,
                    verify_checkpoints=false,
                    progress=None, partial=false))]
#[allow(clippy::too_many_arguments)]
pub fn scan(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    spike_ratio: f64,
    min_spikes: i64,
    min_points: i64,
    min_norm: f64,
    opening: &str,
    metrics: Option<Vec<(String, String)>>,
    step: Option<String>,
    run: Option<String>,
    name: Option<String>,
    value: Option<String>,
    include: Option<Vec<String>>,
    exclude: Option<Vec<String>>,
    threads: Option<i64>,
    verify_checkpoints: bool,
    progress: Option<Py<PyAny>>,
    partial: bool,
) -> PyResult<ScanTables> {
    let filter = Filter::new(&include.unwrap_or_default(), &exclude.unwrap_or_default());
    let options = Options {
        knobs: parse_knobs(spike_ratio, min_spikes, min_points, min_norm, opening)?,
        request: parse_request(metrics, step, TableColumns { run, name, value }, false)?,
        filter: filter.map_err(PyValueError::new_err)?,
        limits: Limits::default(),
        threads: parse_threads(threads)?,
        verify_checkpoints,
    };
    let mut watch = Watch::new(progress);
    let tables = without_gil(py, || {
        let scan = scan_paths(&paths, &options, &mut |advance| watch.tick(advance));
        ScanTables::new(&scan)
    })?;
    match watch.error {
        Some(error) if !(partial && error.is_instance_of::<PyKeyboardInterrupt>(py)) => Err(error),
        _ => tables.map_err(|error| raise(py, "InternalError", &error.to_string())),
    }
}

/// Judges arrays of one run. All arrays have shape (rows,); `steps` defaults to 0, 1, 2 ...
#[pyfunction]
#[pyo3(signature = (*, run, steps=None, grad_norm=None, nan_count=None, inf_count=None, loss=None, spike_ratio=10.0,
                    min_spikes=3, min_points=10, min_norm=0.0, opening="report"))]
#[allow(clippy::too_many_arguments)]
pub fn scan_series(
    py: Python<'_>,
    run: String,
    steps: Option<PyReadonlyArray1<'_, i64>>,
    grad_norm: Option<Floats<'_>>,
    nan_count: Option<PyReadonlyArray1<'_, i64>>,
    inf_count: Option<PyReadonlyArray1<'_, i64>>,
    loss: Option<Floats<'_>>,
    spike_ratio: f64,
    min_spikes: i64,
    min_points: i64,
    min_norm: f64,
    opening: &str,
) -> PyResult<ScanTables> {
    let knobs = parse_knobs(spike_ratio, min_spikes, min_points, min_norm, opening)?;
    let lengths: Vec<(&str, usize)> = [
        ("steps", steps.as_ref().map(|array| array.len())),
        ("grad_norm", grad_norm.as_ref().map(Floats::len)),
        ("nan_count", nan_count.as_ref().map(|array| array.len())),
        ("inf_count", inf_count.as_ref().map(|array| array.len())),
        ("loss", loss.as_ref().map(Floats::len)),
    ]
    .into_iter()
    .filter_map(|(name, length)| length.map(|length| (name, length)))
    .collect();
    let Some((first, rows)) = lengths.first().copied() else {
        return Err(PyValueError::new_err("scan_series: got no array, want at least one"));
    };
    if let Some((name, length)) = lengths.iter().find(|(_, length)| *length != rows) {
        return Err(PyValueError::new_err(format!("{name}: got {length} rows, want {rows} as {first} has")));
    }
    let steps = steps.as_ref().map(|array| array.as_slice()).transpose()?;
    let nan_count = nan_count.as_ref().map(|array| array.as_slice()).transpose()?;
    let inf_count = inf_count.as_ref().map(|array| array.as_slice()).transpose()?;
    let grad_norm = grad_norm.as_ref().map(Floats::values).transpose()?;
    let loss = loss.as_ref().map(Floats::values).transpose()?;
    let tables = without_gil(py, move || {
        let (request, limits) = (Request::default(), Limits::default());
        let mut builder = Builder::new(Format::Memory, &request, &limits, PlaceUnit::Row);
        builder.begin_part(0);
        let step_column = builder.column("step").id;
        let norm_column = builder.column("grad_norm").id;
        if grad_norm.is_some_and(|values| values.is_narrow()) {
            builder.narrow(norm_column);
        }
        let counters = [("nan_count", nan_count), ("inf_count", inf_count)];
        let counters = counters.map(|(name, values)| (builder.column(name).id, values));
        let loss_column = builder.column("loss").id;
        for row in 0..rows {
            builder.begin_row(row as u64);
            builder.whole_step(step_column, steps.map_or(row as i64, |steps| steps[row]));
            for (column, values) in &counters {
                if let Some(values) = values {
                    builder.number(*column, values[row] as f64);
                }
            }
            if let Some(values) = &grad_norm {
                builder.number(norm_column, values.get(row));
            }
            if let Some(values) = &loss {
                builder.number(loss_column, values.get(row));
            }
            builder.end_row(None);
        }
        let recording = builder.finish();
        let part = Part { path: run.clone(), name: String::new(), size: 0 };
        let source = Source { format: Format::Memory, path: run.clone(), directory: ".".into(), parts: vec![part] };
        let verdict = detect::judge(&recording, &knobs, &mut Worker::default());
        let outcomes = vec![Box::new(outcome(&source, recording, verdict, &[]))];
        ScanTables::new(&Scan { outcomes, ..Scan::default() })
    })?;
    tables.map_err(|error| raise(py, "InternalError", &error.to_string()))
}

/// Arguments that say how a table's columns are used.
fn parse_nan(nan: &str, ambiguous: Vec<String>) -> PyResult<NanRule> {
    match nan {
        "value" => Ok(NanRule::default()),
        "missing" => Ok(NanRule { meaning: NanMeaning::Missing, columns: Vec::new() }),
        // No column of that kind: nothing is ambiguous.
        "ambiguous" if ambiguous.is_empty() => Ok(NanRule::default()),
        "ambiguous" => Ok(NanRule { meaning: NanMeaning::Ambiguous, columns: ambiguous }),
        _ => {
            let message = format!("nan: got {nan:?}, want \"value\", \"missing\" or \"ambiguous\"");
            Err(PyValueError::new_err(message))
        }
    }
}

/// Batches of frames that a Python iterator gives, drained one after the other.
struct Frames {
    iterator: Py<PyIterator>,
    schema: SchemaRef,
    current: Option<Box<dyn RecordBatchReader + Send>>,
    looked: Instant,
}

/// Between two looks at whether the user interrupts.
const LOOK: Duration = Duration::from_millis(50);

impl Frames {
    /// Takes the first frame, whose schema is that of all.
    fn begin(batches: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let mut iterator = batches.try_iter()?;
        let Some(first) = iterator.next() else { return Ok(None) };
        let current = first?.extract::<AnyRecordBatch>()?.into_reader()?;
        let schema = current.schema();
        Ok(Some(Self { iterator: iterator.unbind(), schema, current: Some(current), looked: Instant::now() }))
    }

    fn next(&mut self) -> Option<PyResult<RecordBatch>> {
        loop {
            if self.looked.elapsed() >= LOOK {
                self.looked = Instant::now();
                if let Err(error) = Python::attach(|py| py.check_signals()) {
                    return Some(Err(error));
                }
            }
            if let Some(reader) = &mut self.current {
                match reader.next() {
                    Some(Ok(batch)) => return Some(Ok(batch)),
                    Some(Err(error)) => return Some(Err(PyValueError::new_err(format!("frame: {error}")))),
                    None => self.current = None,
                }
            }
            let next = Python::attach(|py| {
                let next = self.iterator.bind(py).clone().next()?;
                Some(next.and_then(|frame| frame.extract::<AnyRecordBatch>()?.into_reader()))
            });
            match next? {
                Ok(reader) if reader.schema().fields() == self.schema.fields() => self.current = Some(reader),
                Ok(_) => {
                    let message = "frame: got batches of different columns or types, want the same in all";
                    return Some(Err(PyValueError::new_err(message)));
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Judges the runs of a table in memory: `batches` gives objects with `__arrow_c_stream__`, all of one schema. `run`,
/// `step`, `name` and `value` name columns; those not named are found. `nan`: what NaN means in a column of floats;
/// `ambiguous` lists the columns where nobody knows.
#[pyfunction]
#[pyo3(signature = (batches, *, run=None, step=None, name=None, value=None, nan="value", ambiguous=None,
                    spike_ratio=10.0, min_spikes=3, min_points=10, min_norm=0.0, opening="report", metrics=None,
                    threads=None))]
#[allow(clippy::too_many_arguments)]
pub fn scan_frame(
    py: Python<'_>,
    batches: &Bound<'_, PyAny>,
    run: Option<String>,
    step: Option<String>,
    name: Option<String>,
    value: Option<String>,
    nan: &str,
    ambiguous: Option<Vec<String>>,
    spike_ratio: f64,
    min_spikes: i64,
    min_points: i64,
    min_norm: f64,
    opening: &str,
    metrics: Option<Vec<(String, String)>>,
    threads: Option<i64>,
) -> PyResult<ScanTables> {
    let options = Options {
        knobs: parse_knobs(spike_ratio, min_spikes, min_points, min_norm, opening)?,
        request: parse_request(metrics, step, TableColumns { run, name, value }, false)?,
        threads: parse_threads(threads)?,
        ..Options::default()
    };
    let rule = parse_nan(nan, ambiguous.unwrap_or_default())?;
    let Some(mut frames) = Frames::begin(batches)? else {
        return Err(PyValueError::new_err("frame: got no batch, want at least one"));
    };
    let schema = frames.schema.clone();
    let tables = without_gil(py, || {
        let scan = scan_batches(&schema, &rule, &options, &mut || frames.next())?;
        Ok(ScanTables::new(&scan))
    })?;
    match tables {
        Ok(tables) => tables.map_err(|error| raise(py, "InternalError", &error.to_string())),
        Err(Refused::Misfit(misfit)) => Err(PyValueError::new_err(misfit.to_string())),
        Err(Refused::Rows(message)) => Err(PyValueError::new_err(message)),
        Err(Refused::Source(error)) => Err(error),
    }
}

/// The columns of a table that `scan_frame` needs, in the order of the schema.
#[pyfunction]
#[pyo3(signature = (schema, *, run=None, step=None, name=None, value=None, metrics=None))]
pub fn frame_columns(
    schema: PySchema,
    run: Option<String>,
    step: Option<String>,
    name: Option<String>,
    value: Option<String>,
    metrics: Option<Vec<(String, String)>>,
) -> PyResult<Vec<String>> {
    let request = parse_request(metrics, step, TableColumns { run, name, value }, false)?;
    let options = Options { request, ..Options::default() };
    let plan = plan(schema.as_ref(), &options, &NanRule::default());
    let plan = plan.map_err(|misfit| PyValueError::new_err(misfit.to_string()))?;
    Ok(plan.layout.columns.into_iter().map(|column| column.name).collect())
}

/// Every recording of a file or directory with all its numeric series.
#[pyfunction]
#[pyo3(signature = (path, *, metrics=None, step=None, run=None, name=None, value=None))]
#[allow(clippy::too_many_arguments)]
pub fn read(
    py: Python<'_>,
    path: PathBuf,
    metrics: Option<Vec<(String, String)>>,
    step: Option<String>,
    run: Option<String>,
    name: Option<String>,
    value: Option<String>,
) -> PyResult<Vec<RecordingData>> {
    let request = parse_request(metrics, step, TableColumns { run, name, value }, true)?;
    let shown = path.display().to_string();
    match without_gil(py, || read_all(&path, &request))? {
        Ok(recordings) => Ok(recordings),
        Err(Refusal { code: "limit", detail }) => Err(raise(py, "LimitError", &format!("{shown}: {detail}"))),
        Err(Refusal { code: "ambiguous", detail }) => {
            Err(raise(py, "AmbiguousFormatError", &format!("{shown}: got a file that {detail} read, want one")))
        }
        Err(Refusal { code: "not-a-recording", detail }) => {
            Err(raise(py, "UnknownFormatError", &format!("{shown}: {detail}")))
        }
        Err(Refusal { code: "io-error", detail }) => Err(PyOSError::new_err(format!("{shown}: {detail}"))),
        Err(Refusal { detail, .. }) => Err(raise(py, "UnreadableRecordingError", &format!("{shown}: {detail}"))),
    }
}

struct Refusal {
    code: &'static str,
    detail: String,
}

fn read_all(path: &Path, request: &Request) -> Result<Vec<RecordingData>, Refusal> {
    let limits = Limits::default();
    let mut filter = Filter::default();
    filter.names_columns = request.names_columns();
    let Some(target) = discover::targets(&[path.to_owned()], &filter).into_iter().next() else {
        return Ok(Vec::new());
    };
    let discovery = discover::discover(&target, &filter, &limits, &mut || true);
    if discovery.sources.is_empty() {
        return Err(match discovery.refused.into_iter().next() {
            Some(refused) => Refusal { code: refused.code, detail: refused.detail },
            None => Refusal { code: "not-a-recording", detail: "no recording was found".into() },
        });
    }
    let (cancel, count, mut buffer) = (AtomicBool::new(false), AtomicU64::new(0), Vec::new());
    let disk = Disk::new(&discovery.root, &cancel, &count, &limits);
    let mut recordings: Vec<(usize, RecordingData)> = Vec::new();
    for job in jobs(&discovery) {
        disk.expect(job.sources.iter().map(|index| &discovery.sources[*index]));
        for index in job.sources {
            let source = &discovery.sources[index];
            let run = if source.path.is_empty() { discovery.name.clone() } else { source.path.clone() };
            disk.begin(source);
            let found = read_source(source, &disk, request, &limits, &mut buffer);
            disk.end(false);
            let found = match found {
                // One of several that is no recording is no error of the others.
                Err(rejected) if discovery.sources.len() > 1 && is_left_out(source, &discovery, &rejected) => continue,
                Err(Rejected::Unreadable { code, detail }) => return Err(Refusal { code, detail }),
                Err(other) => return Err(Refusal { code: other.code(), detail: other.to_string() }),
                Ok(found) => found,
            };
            let named = discovery.checkpoints_of(source);
            for recording in found {
                recordings.push((index, RecordingData::new(run.clone(), source, recording, &named)));
            }
        }
    }
    recordings.sort_by_key(|(index, _)| *index);
    Ok(recordings.into_iter().map(|(_, recording)| recording).collect())
}
