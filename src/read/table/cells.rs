//! Arrow arrays as the cells that rows are made of.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, Float32Array, Float64Array, Int64Array, StringArray};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_cast::{can_cast_types, cast};
use arrow_schema::{DataType, TimeUnit};

use super::layout::{Kind, Usage, Wanted};
use crate::wire::numbers::{Cell, parse_text_value};

/// What a NaN in a column of floats means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NanMeaning {
    /// NaN, as recorded.
    #[default]
    Value,
    /// A missing cell.
    Missing,
    /// Nobody knows: pandas writes missing cells as NaN. It is no row, and it is remembered.
    Ambiguous,
}

/// The cells of one wanted column.
#[derive(Clone, Debug)]
pub enum Column {
    /// 32-bit floats, or narrower ones widened.
    F32(Float32Array),
    /// 64-bit floats, and numbers of other types.
    F64(Float64Array),
    /// Integers.
    I64(Int64Array),
    /// Texts.
    Text(StringArray),
    /// Nothing that can be read.
    Missing,
}

impl Column {
    /// The cells of an array.
    pub fn of(array: &ArrayRef, wanted: &Wanted) -> Self {
        let target = match (wanted.kind, array.data_type()) {
            (Kind::Number, DataType::Float32 | DataType::Float16) => DataType::Float32,
            (
                Kind::Number,
                DataType::Int8
                | DataType::Int16
                | DataType::Int32
                | DataType::Int64
                | DataType::UInt8
                | DataType::UInt16
                | DataType::UInt32,
            ) => DataType::Int64,
            // A step fits; a metric may not.
            (Kind::Number, DataType::UInt64) if !wanted.is_metric => DataType::Int64,
            (Kind::Number, DataType::Dictionary(_, values)) => return Self::plain(array, values, wanted),
            (Kind::Number, DataType::RunEndEncoded(_, values)) => {
                return Self::plain(array, values.data_type(), wanted);
            }
            (Kind::Number, _) => DataType::Float64,
            (Kind::Truth, _) => DataType::Int64,
            (Kind::Text, _) => DataType::Utf8,
            (Kind::Time, _) => return Self::times(array),
            (Kind::Null | Kind::Other, _) => return Self::Missing,
        };
        let Ok(array) = cast(array, &target) else { return Self::Missing };
        match target {
            DataType::Float32 => Self::F32(array.as_primitive::<Float32Type>().clone()),
            DataType::Float64 => Self::F64(array.as_primitive::<Float64Type>().clone()),
            DataType::Int64 => Self::I64(array.as_primitive::<Int64Type>().clone()),
            _ if wanted.is_metric => Self::F64(numbers_in(array.as_string())),
            _ => Self::Text(array.as_string().clone()),
        }
    }

    fn plain(array: &ArrayRef, values: &DataType, wanted: &Wanted) -> Self {
        cast(array, values).map_or(Self::Missing, |array| Self::of(&array, wanted))
    }

    /// Milliseconds since 1970.
    fn times(array: &ArrayRef) -> Self {
        let milliseconds = cast(array, &DataType::Timestamp(TimeUnit::Millisecond, None));
        let whole = milliseconds.and_then(|array| cast(&array, &DataType::Float64));
        whole.map_or(Self::Missing, |array| Self::F64(array.as_primitive::<Float64Type>().clone()))
    }

    /// Number of cells; `None` where none can be read.
    pub fn count(&self) -> Option<usize> {
        match self {
            Self::F32(array) => Some(array.len()),
            Self::F64(array) => Some(array.len()),
            Self::I64(array) => Some(array.len()),
            Self::Text(array) => Some(array.len()),
            Self::Missing => None,
        }
    }

    /// Whether a row says yes: a number that is not 0, or a text of it.
    pub fn is_true(&self, row: usize) -> bool {
        match self {
            Self::Text(array) if self.has(row) => {
                let text = array.value(row).trim();
                ["true", "t", "yes", "nan"].iter().any(|yes| text.eq_ignore_ascii_case(yes))
                    || text.parse::<f64>().is_ok_and(|flag| flag != 0.0)
            }
            _ => self.number(row).is_some_and(|flag| flag != 0.0),
        }
    }

    /// Which cells are missing; `None` where none is, or none can be read.
    pub fn nulls(&self) -> Option<&NullBuffer> {
        match self {
            Self::F32(array) => array.nulls(),
            Self::F64(array) => array.nulls(),
            Self::I64(array) => array.nulls(),
            Self::Text(array) => array.nulls(),
            Self::Missing => None,
        }
    }

    /// Whether a row has a cell.
    pub fn has(&self, row: usize) -> bool {
        !matches!(self, Self::Missing) && self.nulls().is_none_or(|nulls| nulls.is_valid(row))
    }

    /// A number in a row, if there is one.
    pub fn number(&self, row: usize) -> Option<f64> {
        if !self.has(row) {
            return None;
        }
        match self {
            Self::F32(array) => Some(f64::from(array.value(row))),
            Self::F64(array) => Some(array.value(row)),
            Self::I64(array) => Some(array.value(row) as f64),
            Self::Text(_) | Self::Missing => None,
        }
    }

    /// A whole number in a row, rounded down.
    pub fn whole(&self, row: usize) -> Option<i64> {
        match self {
            Self::I64(array) => self.has(row).then(|| array.value(row)),
            // Also `10/438`.
            Self::Text(array) if self.has(row) => {
                let digits = array.value(row).split('/').next().unwrap_or_default().trim();
                digits.parse::<f64>().ok().filter(|step| step.is_finite()).map(|step| step.floor() as i64)
            }
            _ => self.number(row).filter(|value| value.is_finite()).map(|value| value.floor() as i64),
        }
    }

    /// Takes NaN out of a column of floats: its cells are missing then. Gives where they were.
    pub fn without_nan(self) -> (Self, Option<BooleanBuffer>) {
        let (is_nan, nulls) = match &self {
            Self::F32(array) => (nan_of(array.len(), |row| array.value(row).is_nan()), array.nulls()),
            Self::F64(array) => (nan_of(array.len(), |row| array.value(row).is_nan()), array.nulls()),
            _ => return (self, None),
        };
        if is_nan.count_set_bits() == 0 {
            return (self, None);
        }
        let is_nan = match nulls {
            Some(nulls) => &is_nan & nulls.inner(),
            None => is_nan,
        };
        let valid = Some(NullBuffer::union(nulls, Some(&NullBuffer::new(!&is_nan)))).flatten();
        let column = match self {
            Self::F32(array) => Self::F32(Float32Array::new(array.values().clone(), valid)),
            Self::F64(array) => Self::F64(Float64Array::new(array.values().clone(), valid)),
            other => other,
        };
        (column, Some(is_nan))
    }
}

fn nan_of(rows: usize, is_nan: impl FnMut(usize) -> bool) -> BooleanBuffer {
    BooleanBuffer::collect_bool(rows, is_nan)
}

/// Numbers that are written as texts; others are missing.
fn numbers_in(texts: &StringArray) -> Float64Array {
    let number = |text: &str| match parse_text_value(text.trim().as_bytes()) {
        Cell::Value(value) => Some(value),
        _ => None,
    };
    texts.iter().map(|text| text.and_then(number)).collect()
}

/// The largest finite double: MLflow's SQL store holds it in place of Inf.
const LARGEST: f64 = f64::MAX;

/// The values of a long table, NaN and Inf put back where the table says in a column of its own that they were.
pub fn values_of(value: Column, is_nan: Option<&Column>) -> Column {
    let Some(is_nan) = is_nan else { return value };
    let Some(rows) = is_nan.count() else { return value };
    let is_double = matches!(value, Column::F64(_));
    let restored = (0..rows).map(|row| match value.number(row) {
        _ if is_nan.is_true(row) => Some(f64::NAN),
        Some(LARGEST) if is_double => Some(f64::INFINITY),
        Some(value) if is_double && value == -LARGEST => Some(f64::NEG_INFINITY),
        value => value,
    });
    Column::F64(restored.collect())
}

/// Rows one after the other that belong to the same run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The row behind the last one.
    pub end: u32,
    /// Index of the run, or of a metric's name.
    pub key: u32,
}

/// Which run each row belongs to, as stretches; `intern` gives a text its index. A null is the text [`NULL`].
pub fn stretches(array: &ArrayRef, intern: &mut dyn FnMut(&str) -> u32) -> Vec<Stretch> {
    let rows = array.len();
    let mut found = Stretches::default();
    let is_null = |row: usize| array.is_null(row);
    match array.data_type() {
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let values = ids(dictionary.values()).unwrap_or_else(empty_texts);
            let values: &StringArray = values.as_string();
            let keys = cast(dictionary.keys(), &DataType::Int64).unwrap_or_else(|_| empty_integers());
            let keys: &Int64Array = keys.as_primitive::<Int64Type>();
            // One more for nulls.
            let mut known: Vec<Option<u32>> = vec![None; values.len() + 1];
            let key_of = |row: usize| match usize::try_from(keys.values()[row]) {
                Ok(key) if keys.is_valid(row) && key < values.len() && values.is_valid(key) => key,
                _ => values.len(),
            };
            let mut row = 0;
            while row < rows.min(keys.len()) {
                let key = key_of(row);
                let mut end = row + equal(&keys.values()[row..]);
                if keys.null_count() > 0 {
                    end = (row + 1..end).find(|row| key_of(*row) != key).unwrap_or(end);
                }
                let text = if key < values.len() { values.value(key) } else { NULL };
                let index = *known[key].get_or_insert_with(|| intern(text));
                found.push(end, index);
                row = end;
            }
        }
        DataType::Utf8 => texts(rows, is_null, |row| array.as_string::<i32>().value(row), intern, &mut found),
        DataType::LargeUtf8 => texts(rows, is_null, |row| array.as_string::<i64>().value(row), intern, &mut found),
        DataType::Utf8View => texts(rows, is_null, |row| array.as_string_view().value(row), intern, &mut found),
        _ => match ids(array) {
            Some(ids) => {
                let ids: &StringArray = ids.as_string();
                let is_null = |row: usize| ids.is_null(row);
                texts(rows.min(ids.len()), is_null, |row| ids.value(row), intern, &mut found);
            }
            None => found.push(rows, intern(NULL)),
        },
    }
    found.0
}

/// How many keys at the begin of a non-empty slice are the same.
fn equal(keys: &[i64]) -> usize {
    let is_first = |key: &i64| *key == keys[0];
    // Whole blocks are compared without a branch for each.
    let blocks = keys.chunks_exact(64).take_while(|block| block.iter().fold(true, |all, key| all & is_first(key)));
    let known = blocks.count() * 64;
    known + keys[known..].iter().take_while(|key| is_first(key)).count()
}

/// Whether cells of a type can tell runs apart: all but lists, structs and the like.
pub fn can_be_id(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => can_be_id(values),
        DataType::RunEndEncoded(_, values) => can_be_id(values.data_type()),
        DataType::Null => true,
        other => !other.is_nested() && can_cast_types(other, &DataType::Utf8) || is_bytes(other),
    }
}

fn is_bytes(data_type: &DataType) -> bool {
    use DataType::{Binary, BinaryView, FixedSizeBinary, LargeBinary};
    matches!(data_type, Binary | LargeBinary | BinaryView | FixedSizeBinary(_))
}

/// Ids as texts; nulls stay. `None` for types that have none.
fn ids(array: &ArrayRef) -> Option<ArrayRef> {
    match array.data_type() {
        DataType::Dictionary(_, values) => ids(&cast(array, values).ok()?),
        DataType::RunEndEncoded(_, values) => ids(&cast(array, values.data_type()).ok()?),
        DataType::FixedSizeBinary(_) => {
            let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let texts: StringArray = array.as_fixed_size_binary().iter().map(|id| id.map(hex)).collect();
            Some(std::sync::Arc::new(texts))
        }
        other if is_bytes(other) => {
            let bytes = cast(array, &DataType::Binary).ok()?;
            let texts: StringArray = bytes.as_binary::<i32>().iter().map(|id| id.map(text_of_bytes)).collect();
            Some(std::sync::Arc::new(texts))
        }
        other if other.is_floating() => whole_texts(array),
        other if other.is_nested() => None,
        _ => cast(array, &DataType::Utf8).ok(),
    }
}

/// An id of bytes as text, if it is one, else in hexadecimal.
fn text_of_bytes(id: &[u8]) -> String {
    match std::str::from_utf8(id) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => id.iter().fold("0x".to_owned(), |hex, byte| format!("{hex}{byte:02x}")),
    }
}

/// The run of rows whose run column is null: distinct from every id, `null` included.
pub const NULL: &str = "\0null";

/// How an id is called: rows without one are of the run `null`.
pub fn id_name(id: &str) -> &str {
    if id == NULL { "null" } else { id }
}

fn empty_texts() -> ArrayRef {
    std::sync::Arc::new(StringArray::from(Vec::<&str>::new()))
}

/// Ids that became floats, as they were: `3` of `3.0`. NaN is none.
fn whole_texts(array: &ArrayRef) -> Option<ArrayRef> {
    let floats = cast(array, &DataType::Float64).ok()?;
    let has_id = |value: &f64| !value.is_nan();
    let floats = floats.as_primitive::<Float64Type>().iter();
    let texts: StringArray = floats.map(|value| value.filter(has_id).map(|value| value.to_string())).collect();
    Some(std::sync::Arc::new(texts))
}

fn empty_integers() -> ArrayRef {
    std::sync::Arc::new(Int64Array::from(Vec::<i64>::new()))
}

#[derive(Default)]
struct Stretches(Vec<Stretch>);

impl Stretches {
    fn push(&mut self, end: usize, key: u32) {
        match self.0.last_mut() {
            Some(last) if last.key == key => last.end = end as u32,
            _ => self.0.push(Stretch { end: end as u32, key }),
        }
    }
}

fn texts<'t>(
    rows: usize,
    is_null: impl Fn(usize) -> bool,
    text: impl Fn(usize) -> &'t str,
    intern: &mut dyn FnMut(&str) -> u32,
    found: &mut Stretches,
) {
    let text = |row: usize| if is_null(row) { NULL } else { text(row) };
    let mut row = 0;
    while row < rows {
        let this = text(row);
        let mut end = row + 1;
        while end < rows && text(end) == this {
            end += 1;
        }
        found.push(end, intern(this));
        row = end;
    }
}

/// The rows of one run in a batch.
#[derive(Clone, Debug)]
pub enum RowSet {
    /// One after the other.
    Range(Range<usize>),
    /// Each somewhere: a range of `order`, which lists rows.
    Picked {
        /// Rows of the batch, by run, and rising within each.
        order: std::sync::Arc<Vec<u32>>,
        /// Which of them.
        range: Range<usize>,
    },
}

impl RowSet {
    /// Number of rows.
    pub fn count(&self) -> usize {
        match self {
            Self::Range(range) | Self::Picked { range, .. } => range.len(),
        }
    }

    /// The row of the batch at a place of the set.
    #[inline]
    pub fn row(&self, at: usize) -> usize {
        match self {
            Self::Range(range) => range.start + at,
            Self::Picked { order, range } => order[range.start + at] as usize,
        }
    }
}

/// Rows to a stretch, below which rows are gathered by run.
const SHORT: usize = 8;

/// The rows of each run, in the order of the batch.
pub fn partition(stretches: &[Stretch], rows: usize) -> Vec<(u32, RowSet)> {
    if stretches.len() * SHORT <= rows || stretches.len() <= 1 {
        let mut start = 0;
        let sets = stretches.iter().map(|stretch| {
            let range = start..stretch.end as usize;
            start = range.end;
            (stretch.key, RowSet::Range(range))
        });
        return sets.collect();
    }
    // A counting sort: runs in the order of their first row.
    let mut places: std::collections::HashMap<u32, usize> = std::collections::HashMap::new();
    let mut sets: Vec<(u32, usize)> = Vec::new();
    let mut start = 0;
    let mut slots: Vec<(u32, u32, u32)> = Vec::new();
    for stretch in stretches {
        let slot = *places.entry(stretch.key).or_insert_with(|| {
            sets.push((stretch.key, 0));
            sets.len() - 1
        });
        sets[slot].1 += (stretch.end - start) as usize;
        slots.push((slot as u32, start, stretch.end));
        start = stretch.end;
    }
    let mut begins: Vec<usize> = Vec::new();
    let mut total = 0;
    for (_, count) in &sets {
        begins.push(total);
        total += count;
    }
    let mut order = vec![0u32; total];
    let mut next = begins.clone();
    for (slot, start, end) in slots {
        let at = &mut next[slot as usize];
        for row in start..end {
            order[*at] = row;
            *at += 1;
        }
    }
    let order = std::sync::Arc::new(order);
    let set = |((key, count), begin): (&(u32, usize), &usize)| {
        (*key, RowSet::Picked { order: order.clone(), range: *begin..begin + count })
    };
    sets.iter().zip(&begins).map(set).collect()
}

/// Whether a column of these uses takes part in what NaN means.
pub fn is_value(usage: Usage) -> bool {
    matches!(usage, Usage::Named | Usage::Value)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::{Int32Type, Int64Type};
    use arrow_array::{
        BinaryArray, BooleanArray, DictionaryArray, FixedSizeBinaryArray, Float64Array, Int32Array, RunArray,
    };

    use super::*;

    fn runs(array: ArrayRef) -> Vec<(String, u32)> {
        assert!(can_be_id(array.data_type()), "{}", array.data_type());
        let mut ids: Vec<String> = Vec::new();
        let found = stretches(&array, &mut |id| {
            let known = ids.iter().position(|known| known == id);
            known.unwrap_or_else(|| {
                ids.push(id.to_owned());
                ids.len() - 1
            }) as u32
        });
        found.iter().map(|stretch| (ids[stretch.key as usize].clone(), stretch.end)).collect()
    }

    fn is(found: Vec<(String, u32)>, want: &[(&str, u32)]) {
        let found: Vec<(&str, u32)> = found.iter().map(|(id, end)| (id.as_str(), *end)).collect();
        assert_eq!(found, want);
    }

    #[test]
    fn ids_of_every_type_tell_runs_apart() {
        let uuids = FixedSizeBinaryArray::try_from_iter([[1u8; 16], [1; 16], [2; 16]].into_iter()).unwrap();
        is(runs(Arc::new(uuids)), &[("01".repeat(16).as_str(), 2), ("02".repeat(16).as_str(), 3)]);
        let bytes = BinaryArray::from_opt_vec(vec![Some(b"a"), Some(b"\xff"), None]);
        is(runs(Arc::new(bytes)), &[("a", 1), ("0xff", 2), (NULL, 3)]);
        let truths = BooleanArray::from(vec![true, false, false]);
        is(runs(Arc::new(truths)), &[("true", 1), ("false", 3)]);
        let keys = Int32Array::from(vec![Some(0), Some(1), None]);
        let values: ArrayRef = Arc::new(Int64Array::from(vec![7, 8]));
        let dictionary = DictionaryArray::<Int32Type>::try_new(keys.clone(), values).unwrap();
        is(runs(Arc::new(dictionary)), &[("7", 1), ("8", 2), (NULL, 3)]);
        let values: ArrayRef = Arc::new(Float64Array::from(vec![7.0, f64::NAN]));
        let dictionary = DictionaryArray::<Int32Type>::try_new(keys, values).unwrap();
        is(runs(Arc::new(dictionary)), &[("7", 1), (NULL, 3)]);
        let ends = Int64Array::from(vec![2, 5]);
        let encoded = RunArray::<Int64Type>::try_new(&ends, &StringArray::from(vec!["a", "b"])).unwrap();
        is(runs(Arc::new(encoded)), &[("a", 2), ("b", 5)]);
        // A run called `null` is not the rows without a run.
        is(runs(Arc::new(StringArray::from(vec![Some("null"), None]))), &[("null", 1), (NULL, 2)]);
        assert!(!can_be_id(&DataType::new_list(DataType::Utf8, true)));
    }

    #[test]
    fn a_flag_of_nan_counts_for_values_of_every_type() {
        let flags = [
            Column::I64(Int64Array::from(vec![0, 1])),
            Column::Text(StringArray::from(vec!["False", "True"])),
            Column::Text(StringArray::from(vec!["0", "1"])),
        ];
        for flag in &flags {
            for value in
                [Column::F32(vec![1.0, 0.0].into()), Column::F64(vec![1.0, 0.0].into()), Column::I64(vec![1, 0].into())]
            {
                let restored = values_of(value, Some(flag));
                assert_eq!(restored.number(0), Some(1.0));
                assert!(restored.number(1).is_some_and(f64::is_nan));
            }
        }
    }
}
