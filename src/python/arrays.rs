//! Kernels over numpy arrays.

use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_array::{Float64Array, Int64Array, RecordBatch};
use numpy::{PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

use super::door::without_gil;
use super::tables::Table;
use crate::kernel::batch::{RowStats, row_stats_f32, row_stats_f64};
use crate::kernel::level::Level;
use crate::kernel::nonfinite;
use crate::kernel::select::Scratch;

/// A one-dimensional array of either float width.
#[derive(FromPyObject)]
pub enum Floats<'py> {
    /// float32.
    F32(PyReadonlyArray1<'py, f32>),
    /// float64.
    F64(PyReadonlyArray1<'py, f64>),
}

/// The values of [`Floats`].
#[derive(Clone, Copy)]
pub enum FloatSlice<'a> {
    /// float32.
    F32(&'a [f32]),
    /// float64.
    F64(&'a [f64]),
}

impl Floats<'_> {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(array) => array.len(),
            Self::F64(array) => array.len(),
        }
    }

    /// The values; an array that is not contiguous is a `ValueError`.
    pub fn values(&self) -> PyResult<FloatSlice<'_>> {
        Ok(match self {
            Self::F32(array) => FloatSlice::F32(array.as_slice()?),
            Self::F64(array) => FloatSlice::F64(array.as_slice()?),
        })
    }
}

impl FloatSlice<'_> {
    /// Whether the values are float32.
    pub fn is_narrow(self) -> bool {
        matches!(self, Self::F32(_))
    }

    /// One value as f64.
    pub fn get(self, index: usize) -> f64 {
        match self {
            Self::F32(values) => f64::from(values[index]),
            Self::F64(values) => values[index],
        }
    }

    fn len(self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
        }
    }

    fn row_stats(self, level: Level, start: usize, end: usize, ratio: f64, scratch: &mut Scratch) -> RowStats {
        match self {
            Self::F32(values) => row_stats_f32(level, &values[start..end], ratio, scratch),
            Self::F64(values) => row_stats_f64(level, &values[start..end], ratio, scratch),
        }
    }
}

/// A one-dimensional array whose non-finite values can be counted.
#[derive(FromPyObject)]
pub enum Bits<'py> {
    /// float16 or bfloat16 by their bits.
    U16(PyReadonlyArray1<'py, u16>),
    /// float32.
    F32(PyReadonlyArray1<'py, f32>),
    /// float64.
    F64(PyReadonlyArray1<'py, f64>),
}

/// Counts NaN and Inf in a contiguous array; gives (nan, inf, index of the first or -1).
#[pyfunction]
pub fn count_nonfinite(py: Python<'_>, array: Bits<'_>, kind: &str) -> PyResult<(u64, u64, i64)> {
    let level = Level::detect();
    let tally = match (&array, kind) {
        (Bits::U16(array), "f16") => {
            let values = array.as_slice()?;
            without_gil(py, || nonfinite::count_f16(level, values))?
        }
        (Bits::U16(array), "bf16") => {
            let values = array.as_slice()?;
            without_gil(py, || nonfinite::count_bf16(level, values))?
        }
        (Bits::F32(array), "f32") => {
            let values = array.as_slice()?;
            without_gil(py, || nonfinite::count_f32(level, values))?
        }
        (Bits::F64(array), "f64") => {
            let values = array.as_slice()?;
            without_gil(py, || nonfinite::count_f64(level, values))?
        }
        _ => {
            let message = format!("kind: got {kind:?}, want the kind of the array: f16 or bf16 (uint16), f32, f64");
            return Err(PyValueError::new_err(message));
        }
    };
    Ok((tally.nan, tally.pos_inf + tally.neg_inf, tally.first.map_or(-1, |first| first as i64)))
}

/// Statistics of many runs at once: rows of equal length, or runs of `values[offsets[i]:offsets[i + 1]]`.
#[pyfunction]
#[pyo3(signature = (values, *, row_length=None, offsets=None, spike_ratio=10.0, threads=None))]
pub fn batch_stats(
    py: Python<'_>,
    values: Floats<'_>,
    row_length: Option<usize>,
    offsets: Option<PyReadonlyArray1<'_, i64>>,
    spike_ratio: f64,
    threads: Option<usize>,
) -> PyResult<Table> {
    let values = values.values()?;
    let offsets = offsets.as_ref().map(|array| array.as_slice()).transpose()?;
    let bounds = Bounds::new(values.len(), row_length, offsets)?;
    let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let stats = without_gil(py, || all_stats(values, &bounds, spike_ratio, threads))?;
    stats_table(&stats)
}

/// Where runs begin and end in one array.
enum Bounds<'a> {
    Equal { length: usize, rows: usize },
    Offsets(&'a [i64]),
}

impl<'a> Bounds<'a> {
    fn new(values: usize, row_length: Option<usize>, offsets: Option<&'a [i64]>) -> PyResult<Self> {
        match (row_length, offsets) {
            (Some(0), None) if values == 0 => Ok(Self::Equal { length: 0, rows: 0 }),
            (Some(length), None) if length > 0 && values.is_multiple_of(length) => {
                Ok(Self::Equal { length, rows: values / length })
            }
            (None, Some(offsets)) => {
                let rises = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
                let inside = offsets.first().is_some_and(|first| *first >= 0)
                    && offsets.last().is_some_and(|last| usize::try_from(*last).is_ok_and(|last| last <= values));
                if rises && inside {
                    Ok(Self::Offsets(offsets))
                } else {
                    let message = format!("offsets: want rising positions from 0 to at most {values}");
                    Err(PyValueError::new_err(message))
                }
            }
            _ => {
                Err(PyValueError::new_err("batch_stats: want either a row length that divides the values, or offsets"))
            }
        }
    }

    fn rows(&self) -> usize {
        match self {
            Self::Equal { rows, .. } => *rows,
            Self::Offsets(offsets) => offsets.len() - 1,
        }
    }

    fn row(&self, row: usize) -> (usize, usize) {
        match self {
            Self::Equal { length, .. } => (row * length, (row + 1) * length),
            Self::Offsets(offsets) => (offsets[row] as usize, offsets[row + 1] as usize),
        }
    }
}

/// Rows that a worker takes at a time.
const STRIDE: usize = 16;

fn all_stats(values: FloatSlice<'_>, bounds: &Bounds<'_>, spike_ratio: f64, threads: usize) -> Vec<RowStats> {
    let level = Level::detect();
    let rows = bounds.rows();
    let stretch = |start: usize, scratch: &mut Scratch| -> Vec<RowStats> {
        let rows = start..(start + STRIDE).min(rows);
        rows.map(|row| {
            let (start, end) = bounds.row(row);
            values.row_stats(level, start, end, spike_ratio, scratch)
        })
        .collect()
    };
    if threads <= 1 || rows <= STRIDE {
        let mut scratch = Scratch::default();
        return (0..rows).step_by(STRIDE).flat_map(|start| stretch(start, &mut scratch)).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut scratch, mut done) = (Scratch::default(), Vec::new());
        loop {
            let start = next.fetch_add(STRIDE, Ordering::Relaxed);
            if start >= rows {
                return done;
            }
            done.push((start, stretch(start, &mut scratch)));
        }
    };
    let mut done: Vec<(usize, Vec<RowStats>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(rows.div_ceil(STRIDE))).map(|_| scope.spawn(work)).collect();
        // A worker's panic goes on here and becomes InternalError at the door.
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(|p| std::panic::resume_unwind(p))).collect()
    });
    done.sort_unstable_by_key(|(start, _)| *start);
    done.into_iter().flat_map(|(_, stats)| stats).collect()
}

fn stats_table(stats: &[RowStats]) -> PyResult<Table> {
    let count = |get: fn(&RowStats) -> u64| Arc::new(Int64Array::from_iter_values(stats.iter().map(|s| get(s) as i64)));
    let place = |get: fn(&RowStats) -> Option<usize>| {
        Arc::new(stats.iter().map(|s| get(s).map(|index| index as i64)).collect::<Int64Array>())
    };
    let float = |get: fn(&RowStats) -> Option<f64>| Arc::new(stats.iter().map(get).collect::<Float64Array>());
    let batch = RecordBatch::try_from_iter_with_nullable(vec![
        ("n", count(|s| s.n) as _, false),
        ("nan", count(|s| s.nan) as _, false),
        ("inf", count(|s| s.inf) as _, false),
        ("first_nonfinite", place(|s| s.first_nonfinite) as _, true),
        ("median", float(|s| s.median) as _, true),
        ("max", float(|s| s.max) as _, true),
        ("spikes", count(|s| s.spikes) as _, false),
        ("first_spike", place(|s| s.first_spike) as _, true),
    ]);
    batch.map(Table::new).map_err(|error| PyValueError::new_err(error.to_string()))
}
