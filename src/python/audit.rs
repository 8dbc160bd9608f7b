//! Audits of files and frames.

use std::path::PathBuf;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;
use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use pyo3_arrow::PyRecordBatchReader;

use super::door::{Watch, parse_threads, raise, without_gil};
use super::tables::{Columns, Table, table};
use crate::audit::{self, Tensor, table as of_table};
use crate::audit_files::{self, Audit, Options};
use crate::model::Limits;
use crate::scan;

/// Everything that an audit says.
#[pyclass(frozen, module = "gradscan._core")]
pub struct AuditTables {
    tensors: RecordBatch,
    faults: RecordBatch,
    #[pyo3(get)]
    files: u64,
    #[pyo3(get)]
    skipped_files: u64,
    #[pyo3(get)]
    bytes: u64,
    #[pyo3(get)]
    interrupted: bool,
}

#[pymethods]
impl AuditTables {
    #[getter]
    fn tensors(&self) -> Table {
        Table::new(self.tensors.clone())
    }

    #[getter]
    fn faults(&self) -> Table {
        Table::new(self.faults.clone())
    }
}

impl AuditTables {
    fn new(audit: &Audit) -> Result<Self, ArrowError> {
        let tensors: Vec<(&str, &Tensor)> = audit
            .files
            .iter()
            .flat_map(|file| file.report.tensors.iter().map(move |tensor| (file.source.as_str(), tensor)))
            .collect();
        let faults =
            || audit.files.iter().flat_map(|file| file.report.faults.iter().map(move |fault| (&file.source, fault)));
        let place = |at: u64| if at == 0 { String::new() } else { format!("byte {at}") };
        Ok(Self {
            tensors: rows(&tensors)?,
            faults: Columns::default()
                .text("source", faults().map(|(source, _)| Some(source)))
                .text("kind", faults().map(|(_, fault)| Some(audit::kind_of(fault))))
                .text("place", faults().map(|(_, fault)| Some(place(fault.at))))
                .text("detail", faults().map(|(_, fault)| Some(&fault.detail)))
                .batch()?,
            files: audit.files.len() as u64,
            skipped_files: audit.skipped,
            bytes: audit.bytes,
            interrupted: audit.interrupted,
        })
    }
}

fn rows(tensors: &[(&str, &Tensor)]) -> Result<RecordBatch, ArrowError> {
    let all = || tensors.iter().map(|(_, tensor)| *tensor);
    let whole = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    Columns::default()
        .text("source", tensors.iter().map(|(source, _)| Some(source)))
        .text("name", all().map(|tensor| Some(&tensor.name)))
        .text("dtype", all().map(|tensor| Some(&tensor.dtype)))
        .ints("shape", all().map(|tensor| tensor.shape.iter().map(|extent| whole(*extent)).collect()))
        .count("values", all().map(|tensor| tensor.values))
        .count("nan", all().map(|tensor| tensor.nan))
        .count("inf", all().map(|tensor| tensor.inf))
        .int("first_row", all().map(|tensor| tensor.first_row.map(whole)))
        .int("bad_rows", all().map(|tensor| tensor.bad_rows.map(whole)))
        .batch()
}

/// Counts NaN and Inf in files and directories, which exist. See `gradscan.audit`.
///
/// `progress` is called about ten times a second with (bytes, total bytes, files, total files, bad tensors so far); an
/// exception that it raises stops the audit. With `partial`, Ctrl-C gives what is done instead of `KeyboardInterrupt`.
#[pyfunction]
#[pyo3(name = "audit", signature = (paths, *, threads=None, progress=None, partial=false))]
pub fn audit_paths(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    threads: Option<i64>,
    progress: Option<Py<PyAny>>,
    partial: bool,
) -> PyResult<AuditTables> {
    let options = Options { limits: Limits::default(), threads: parse_threads(threads)? };
    let mut watch = Watch::new(progress);
    let tables = without_gil(py, || {
        let audit = audit_files::audit(&paths, &options, &mut |advance| {
            let audit_files::Advance { bytes, total_bytes, files, total_files, bad } = advance;
            let (sources, total_sources) = (files, total_files);
            watch.tick(scan::Advance { bytes, total_bytes, sources, total_sources, damaged: bad })
        });
        AuditTables::new(&audit)
    })?;
    match watch.error {
        Some(error) if !(partial && error.is_instance_of::<PyKeyboardInterrupt>(py)) => Err(error),
        _ => tables.map_err(|error| raise(py, "InternalError", &error.to_string())),
    }
}

/// Counts NaN and Inf in the float columns of what has `__arrow_c_stream__`, batch by batch.
#[pyfunction]
pub fn audit_frame(py: Python<'_>, frame: PyRecordBatchReader) -> PyResult<Table> {
    let reader = frame.into_reader()?;
    let mut watch = Watch::new(None);
    let unseen = of_table::hidden(&reader.schema());
    let tensors = without_gil(py, || {
        let mut columns = of_table::Columns::new(&reader.schema());
        for batch in reader {
            columns.feed(&batch?);
            if !watch.tick(scan::Advance::default()) {
                break;
            }
        }
        let mut tensors = columns.finish();
        // A frame has no faults: a row without values stands for what was not looked at.
        tensors.extend(unseen.into_iter().map(of_table::not_seen));
        Ok(tensors)
    })?;
    if let Some(error) = watch.error {
        return Err(error);
    }
    let tensors = tensors.map_err(|error: ArrowError| PyValueError::new_err(error.to_string()))?;
    table(rows(&tensors.iter().map(|tensor| ("", tensor)).collect::<Vec<_>>()))
}
