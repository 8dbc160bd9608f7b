//! Columns of tables: floats, and floats in lists, fixed-size lists, structures and maps, by row of the table.
//!
//! Null is no NaN: what stands in the buffer of a null, or below a null list, is not looked at. NaN in a float column is
//! NaN, whatever wrote it.

use std::borrow::Cow;
use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, OffsetSizeTrait, RecordBatch};
use arrow_schema::{DataType, Field, Schema};

use super::{Report, Tensor, unsupported};
use crate::kernel::level::Level;
use crate::kernel::nonfinite::{Float, Order, Tally, count_bytes, visit_bytes};
use crate::model::Limits;
use crate::read::broken::Broken;
use crate::read::table::file::TableFile;

/// Types in types; beyond, nothing is looked for.
const MOST_DEPTH: usize = 32;

const NATIVE: Order = if cfg!(target_endian = "little") { Order::Little } else { Order::Big };

/// One float below a column.
#[derive(Clone, Debug)]
struct Leaf {
    /// Index of the column in its schema.
    column: usize,
    /// Which field of each structure on the way.
    path: Vec<usize>,
    name: String,
    dtype: String,
    /// Lengths of the fixed-size lists around it, before any other list.
    inner: Vec<u64>,
    /// Bytes of a row, as far as the type says.
    width: u64,
}

impl Leaf {
    fn below(&mut self, field: &Field, depth: usize, found: &mut Vec<Self>) {
        let mut go = |mut leaf: Self, field: &Field| leaf.below(field, depth + 1, found);
        if depth > MOST_DEPTH {
            return;
        }
        match field.data_type() {
            DataType::Float16 => self.is("float16", 2, found),
            DataType::Float32 => self.is("float32", 4, found),
            DataType::Float64 => self.is("float64", 8, found),
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::ListView(item)
            | DataType::LargeListView(item) => {
                // Of lists of any length: something.
                let width = self.width.saturating_mul(64);
                go(Self { dtype: self.dtype.replace("{}", "list[{}]"), width, ..self.clone() }, item);
            }
            DataType::FixedSizeList(item, length) => {
                let length = u64::try_from(*length).unwrap_or(0);
                let mut leaf = self.clone();
                if !leaf.dtype.contains("list[") {
                    leaf.inner.push(length);
                }
                leaf.dtype = leaf.dtype.replace("{}", &format!("array[{{}}, {length}]"));
                leaf.width = leaf.width.saturating_mul(length.max(1));
                go(leaf, item);
            }
            DataType::Map(entries, _) => {
                go(
                    Self {
                        dtype: self.dtype.replace("{}", "list[{}]"),
                        width: self.width.saturating_mul(64),
                        ..self.clone()
                    },
                    entries,
                );
            }
            DataType::Struct(fields) => {
                for (index, field) in fields.iter().enumerate() {
                    let mut leaf = self.clone();
                    leaf.path.push(index);
                    leaf.name = format!("{}.{}", leaf.name, field.name());
                    go(leaf, field);
                }
            }
            DataType::Dictionary(_, values) => go(self.clone(), &Field::new("", (**values).clone(), true)),
            DataType::RunEndEncoded(_, values) => go(self.clone(), values),
            _ => {}
        }
    }

    fn is(&self, dtype: &str, width: u64, found: &mut Vec<Self>) {
        let (dtype, width) = (self.dtype.replace("{}", dtype), self.width.saturating_mul(width));
        found.push(Self { dtype, width, ..self.clone() });
    }
}

/// Whether floats may lie in a type where none are looked for: in unions, and too deep.
fn hides(kind: &DataType, depth: usize) -> bool {
    if depth > MOST_DEPTH {
        return kind.is_floating() || kind.is_nested();
    }
    match kind {
        DataType::Union(..) => true,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::RunEndEncoded(_, item)
        | DataType::Map(item, _) => hides(item.data_type(), depth + 1),
        DataType::Struct(fields) => fields.iter().any(|field| hides(field.data_type(), depth + 1)),
        DataType::Dictionary(_, values) => hides(values, depth + 1),
        _ => false,
    }
}

/// Names of the columns of a schema that may hold floats that are not looked at.
pub fn hidden(schema: &Schema) -> Vec<String> {
    let fields = schema.fields().iter().filter(|field| hides(field.data_type(), 0));
    fields.map(|field| field.name().clone()).collect()
}

/// The row that stands for such a column where there are no faults: no value of it was looked at.
pub fn not_seen(name: String) -> Tensor {
    let dtype = Cow::Borrowed("unsupported");
    Tensor { name, dtype, shape: Vec::new(), values: 0, nan: 0, inf: 0, first_row: None, bad_rows: None }
}

/// Such columns, each as a fault.
fn unseen(schema: &Schema) -> Vec<Broken> {
    let say = |name: &str| {
        let name: String = name.chars().take(120).collect();
        unsupported(0, format!("column {name:?}: unions and more than {MOST_DEPTH} types in types are not looked at"))
    };
    hidden(schema).iter().map(|name| say(name)).collect()
}

/// The floats of a schema.
fn leaves(schema: &Schema) -> Vec<Leaf> {
    let mut found = Vec::new();
    for (column, field) in schema.fields().iter().enumerate() {
        let (name, dtype) = (field.name().clone(), "{}".to_owned());
        let mut leaf = Leaf { column, path: Vec::new(), name, dtype, inner: Vec::new(), width: 1 };
        leaf.below(field, 0, &mut found);
    }
    found
}

/// Gives the stretches of the leaf's array that lie below the rows `rows` of `array`, those below nulls left out.
fn stretches(array: &dyn Array, path: &[usize], rows: Range<usize>, give: &mut dyn FnMut(&dyn Array, Range<usize>)) {
    if rows.is_empty() {
        return;
    }
    if array.data_type().is_floating() {
        return give(array, rows);
    }
    let valid: Vec<(usize, usize)> = match array.nulls() {
        Some(nulls) if nulls.null_count() > 0 => {
            let within = nulls.slice(rows.start, rows.len());
            within.valid_slices().map(|(begin, end)| (rows.start + begin, rows.start + end)).collect()
        }
        _ => vec![(rows.start, rows.end)],
    };
    fn between<O: OffsetSizeTrait>(offsets: &[O], begin: usize, end: usize) -> Range<usize> {
        offsets[begin].as_usize()..offsets[end].as_usize()
    }
    for (begin, end) in valid {
        match array.data_type() {
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                stretches(list.values(), path, between(list.value_offsets(), begin, end), give);
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                stretches(list.values(), path, between(list.value_offsets(), begin, end), give);
            }
            DataType::ListView(_) => {
                let list = array.as_list_view::<i32>();
                for row in begin..end {
                    let (at, size) = (list.value_offset(row) as usize, list.value_size(row) as usize);
                    stretches(list.values(), path, at..at + size, give);
                }
            }
            DataType::LargeListView(_) => {
                let list = array.as_list_view::<i64>();
                for row in begin..end {
                    let (at, size) = (list.value_offset(row) as usize, list.value_size(row) as usize);
                    stretches(list.values(), path, at..at + size, give);
                }
            }
            DataType::FixedSizeList(..) => {
                let list = array.as_fixed_size_list();
                let length = usize::try_from(list.value_length()).unwrap_or(0);
                stretches(list.values(), path, begin * length..end * length, give);
            }
            DataType::Map(..) => {
                let map = array.as_map();
                stretches(map.entries(), path, between(map.value_offsets(), begin, end), give);
            }
            DataType::Struct(_) => {
                if let Some((field, rest)) = path.split_first() {
                    stretches(array.as_struct().column(*field), rest, begin..end, give);
                }
            }
            DataType::RunEndEncoded(_, values) => {
                if let Ok(spread) = arrow_cast::cast(&array.slice(begin, end - begin), values.data_type()) {
                    stretches(&spread, path, 0..end - begin, give);
                }
            }
            DataType::Dictionary(_, values) => {
                // What the type of a column says can always be spread out.
                if let Ok(spread) = arrow_cast::cast(&array.slice(begin, end - begin), values) {
                    stretches(&spread, path, 0..end - begin, give);
                }
            }
            _ => {}
        }
    }
}

/// The bytes of a stretch of floats.
fn bytes<'a>(array: &'a dyn Array, stretch: &Range<usize>) -> Option<(Float, &'a [u8])> {
    let (float, all) = match array.data_type() {
        DataType::Float16 => (Float::F16, array.as_primitive::<Float16Type>().values().inner().as_slice()),
        DataType::Float32 => (Float::F32, array.as_primitive::<Float32Type>().values().inner().as_slice()),
        DataType::Float64 => (Float::F64, array.as_primitive::<Float64Type>().values().inner().as_slice()),
        _ => return None,
    };
    let width = float.width();
    Some((float, all.get(stretch.start * width..stretch.end * width)?))
}

/// Counts in a stretch of floats, nulls left out, and how many values that were.
fn count(level: Level, array: &dyn Array, stretch: &Range<usize>) -> (Tally, u64) {
    let Some((float, all)) = bytes(array, stretch) else { return (Tally::default(), 0) };
    let tally = count_bytes(level, float, NATIVE, all);
    let nulls = array.nulls().map(|nulls| nulls.slice(stretch.start, stretch.len())).filter(|n| n.null_count() > 0);
    let Some(nulls) = nulls else { return (tally, stretch.len() as u64) };
    let values = (stretch.len() - nulls.null_count()) as u64;
    if tally.total() == 0 {
        return (tally, values);
    }
    let mut sum = Tally::default();
    for (begin, end) in nulls.valid_slices() {
        let part = count_bytes(level, float, NATIVE, &all[begin * float.width()..end * float.width()]);
        sum.nan += part.nan;
        sum.pos_inf += part.pos_inf;
        sum.neg_inf += part.neg_inf;
    }
    (sum, values)
}

#[derive(Debug)]
struct Column {
    leaf: Leaf,
    values: u64,
    nan: u64,
    inf: u64,
    first_row: Option<u64>,
    bad_rows: u64,
}

impl Column {
    /// The rows of an array, of which the first is row `base` of the table.
    fn feed(&mut self, level: Level, array: &dyn Array, base: u64) {
        let mut all = Tally::default();
        stretches(array, &self.leaf.path, 0..array.len(), &mut |floats, stretch| {
            let (tally, values) = count(level, floats, &stretch);
            self.values += values;
            all.nan += tally.nan;
            all.pos_inf += tally.pos_inf + tally.neg_inf;
        });
        if all.total() == 0 {
            return;
        }
        self.nan += all.nan;
        self.inf += all.pos_inf;
        let mut bad = |row: usize| {
            self.first_row.get_or_insert(base + row as u64);
            self.bad_rows += 1;
        };
        if let Some((float, bytes)) = bytes(array, &(0..array.len())) {
            visit_bytes(level, float, NATIVE, bytes, &mut |row, _| {
                if array.is_valid(row) {
                    bad(row);
                }
            });
            return;
        }
        for row in 0..array.len() {
            let mut is_bad = false;
            stretches(array, &self.leaf.path, row..row + 1, &mut |floats, stretch| {
                is_bad = is_bad || count(level, floats, &stretch).0.total() > 0;
            });
            if is_bad {
                bad(row);
            }
        }
    }
}

/// Counts over the floats of a table as its batches come by.
#[derive(Debug)]
pub struct Columns {
    level: Level,
    columns: Vec<Column>,
    rows: u64,
}

impl Columns {
    /// Of all columns of a schema that hold floats.
    pub fn new(schema: &Schema) -> Self {
        let column = |leaf| Column { leaf, values: 0, nan: 0, inf: 0, first_row: None, bad_rows: 0 };
        Self { level: Level::detect(), columns: leaves(schema).into_iter().map(column).collect(), rows: 0 }
    }

    /// The next rows, in all columns of the schema.
    pub fn feed(&mut self, batch: &RecordBatch) {
        for column in &mut self.columns {
            if let Some(array) = batch.columns().get(column.leaf.column) {
                column.feed(self.level, array, self.rows);
            }
        }
        self.rows += batch.num_rows() as u64;
    }

    /// What was counted.
    pub fn finish(self) -> Vec<Tensor> {
        let rows = self.rows;
        let tensor = |column: Column| Tensor {
            name: column.leaf.name,
            dtype: Cow::Owned(column.leaf.dtype),
            shape: std::iter::once(rows).chain(column.leaf.inner).collect(),
            values: column.values,
            nan: column.nan,
            inf: column.inf,
            first_row: column.first_row,
            bad_rows: Some(column.bad_rows),
        };
        self.columns.into_iter().map(tensor).collect()
    }
}

/// The floats below a column: they stand in the order of columns.
fn own(columns: &[Column], index: usize) -> Range<usize> {
    let begin = columns.partition_point(|column| column.leaf.column < index);
    begin..columns.partition_point(|column| column.leaf.column <= index)
}

/// Bytes of a batch.
const BATCH: u64 = 4 << 20;

/// Audits a table on disk. `apart`: its columns can be read apart at no cost, so that one at a time is held. `proceed`
/// is asked between batches; once it says `false` the rest is left.
pub fn audit(file: &dyn TableFile, apart: bool, limits: &Limits, proceed: &mut dyn FnMut() -> bool) -> Report {
    let mut columns = Columns::new(file.schema());
    let mut indices: Vec<usize> = columns.columns.iter().map(|column| column.leaf.column).collect();
    indices.dedup();
    let groups: Vec<&[usize]> = if apart { indices.chunks(1).collect() } else { vec![&indices] };
    let mut report = Report::default();
    report.faults.extend(unseen(file.schema()).into_iter().take(limits.faults));
    let level = columns.level;
    for unit in 0..file.units() {
        for group in groups.iter().filter(|group| !group.is_empty()) {
            let width = group.iter().flat_map(|index| own(&columns.columns, *index));
            let width = width.fold(0u64, |sum, at| sum.saturating_add(columns.columns[at].leaf.width));
            let rows = (BATCH / width.max(1)).clamp(1, 65_536) as usize;
            let (mut base, mut going) = (columns.rows, true);
            let read = file.read(unit, group, rows, &mut |batch| {
                for (index, array) in group.iter().zip(batch.columns()) {
                    for column in own(&columns.columns, *index) {
                        columns.columns[column].feed(level, array, base);
                    }
                }
                base += batch.num_rows() as u64;
                going = proceed();
                going
            });
            if !going {
                return report;
            }
            if let Err(broken) = read {
                // Other columns, and other groups of rows, are where they were.
                if report.faults.len() < limits.faults {
                    report.faults.push(broken);
                }
            }
        }
        columns.rows = columns.rows.saturating_add(file.rows(unit));
    }
    report.tensors = columns.finish();
    report
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::builder::{FixedSizeListBuilder, Float32Builder, ListBuilder};
    use arrow_array::{ArrayRef, DictionaryArray, Float64Array, Int32Array, StringArray, StructArray};
    use arrow_schema::Fields;

    use super::*;

    type Row = (String, String, Vec<u64>, u64, u64, u64, Option<u64>, u64);

    fn audited(columns: Vec<(&str, ArrayRef)>) -> Vec<Row> {
        let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)));
        let batch = batch.expect("a batch");
        let mut whole = Columns::new(&batch.schema());
        whole.feed(&batch);
        let whole = whole.finish();
        // Slices begin inside their buffers.
        for cut in 1..batch.num_rows() {
            let mut pieces = Columns::new(&batch.schema());
            pieces.feed(&batch.slice(0, cut));
            pieces.feed(&batch.slice(cut, batch.num_rows() - cut));
            assert_eq!(pieces.finish(), whole);
        }
        let row = |t: Tensor| {
            (t.name, t.dtype.into_owned(), t.shape, t.values, t.nan, t.inf, t.first_row, t.bad_rows.unwrap_or(99))
        };
        whole.into_iter().map(row).collect()
    }

    fn want(name: &str, dtype: &str, shape: &[u64], counts: [u64; 3], first: Option<u64>, rows: u64) -> Row {
        let [values, nan, inf] = counts;
        (name.into(), dtype.into(), shape.to_vec(), values, nan, inf, first, rows)
    }

    #[test]
    fn plain_columns_and_their_nulls() {
        let inf = f64::INFINITY;
        let floats = Float64Array::from(vec![Some(1.0), None, Some(f64::NAN), Some(inf), Some(f64::NAN), None]);
        let text = StringArray::from(vec!["NaN"; 6]);
        let rows = audited(vec![("x", Arc::new(floats)), ("s", Arc::new(text))]);
        assert_eq!(rows, [want("x", "float64", &[6], [4, 2, 1], Some(2), 3)]);
    }

    #[test]
    fn what_lies_in_the_buffer_of_a_null_does_not_count() {
        let values = Float64Array::new(vec![f64::NAN, 1.0, f64::NAN].into(), Some(vec![false, true, true].into()));
        let rows = audited(vec![("x", Arc::new(values.clone()))]);
        assert_eq!(rows, [want("x", "float64", &[3], [2, 1, 0], Some(2), 1)]);
        // Nor what lies below a null structure.
        let fields = Fields::from(vec![Field::new("v", DataType::Float64, true)]);
        let structs = StructArray::new(fields, vec![Arc::new(values)], Some(vec![true, true, false].into()));
        let rows = audited(vec![("s", Arc::new(structs))]);
        assert_eq!(rows, [want("s.v", "float64", &[3], [1, 0, 0], None, 0)]);
    }

    #[test]
    fn lists_count_by_row() {
        let mut lists = ListBuilder::new(Float32Builder::new());
        lists.append_value([Some(1.0), Some(f32::NAN), Some(f32::NAN)]);
        lists.append_null();
        lists.append_value([]);
        lists.append_value([Some(f32::INFINITY), None]);
        let mut fixed = FixedSizeListBuilder::new(Float32Builder::new(), 2);
        for (row, value) in [1.0, f32::NAN, 2.0, f32::NAN].into_iter().enumerate() {
            fixed.values().append_slice(&[value, value]);
            fixed.append(row != 1);
        }
        let rows = audited(vec![("l", Arc::new(lists.finish())), ("e", Arc::new(fixed.finish()))]);
        assert_eq!(rows[0], want("l", "list[float32]", &[4], [4, 2, 1], Some(0), 2));
        assert_eq!(rows[1], want("e", "array[float32, 2]", &[4, 2], [6, 2, 0], Some(3), 1));
    }

    #[test]
    fn runs_are_spread() {
        let values = Float64Array::from(vec![Some(1.0), Some(f64::NAN), None]);
        let array = arrow_array::RunArray::try_new(&Int32Array::from(vec![2, 4, 5]), &values).expect("runs");
        assert_eq!(audited(vec![("r", Arc::new(array))]), [want("r", "float64", &[5], [4, 2, 0], Some(2), 2)]);
    }

    #[test]
    fn what_is_not_looked_at_is_a_fault() {
        let deep = (0..40).fold(DataType::Float32, |kind, _| DataType::new_list(kind, true));
        let union = DataType::Union(arrow_schema::UnionFields::empty(), arrow_schema::UnionMode::Dense);
        let flat = DataType::new_list(DataType::Float32, true);
        let fields = [("deep", deep), ("u", union), ("l", flat), ("t", DataType::Utf8)];
        let schema = Schema::new(fields.map(|(name, kind)| Field::new(name, kind, true)).to_vec());
        let faults = unseen(&schema);
        assert_eq!(faults.iter().map(|fault| fault.code).collect::<Vec<_>>(), ["unsupported"; 2]);
        assert!(faults[0].detail.contains("deep") && faults[1].detail.contains("\"u\""));
    }

    #[test]
    fn dictionaries_of_floats_are_spread() {
        let values = Float64Array::from(vec![f64::NAN, 1.0]);
        let keys = Int32Array::from(vec![Some(1), None, Some(0), Some(0)]);
        let array = DictionaryArray::new(keys, Arc::new(values));
        assert_eq!(audited(vec![("d", Arc::new(array))]), [want("d", "float64", &[4], [3, 2, 0], Some(2), 2)]);
    }
}
