//! Writers of tables for tests, and a reader of everything in them.

use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder, MapBuilder, StringBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, FixedSizeBinaryArray,
    FixedSizeListArray, Float16Array, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array,
    LargeStringArray, ListArray, MapArray, NullArray, RecordBatch, StringArray, StringViewArray, StructArray,
    TimestampMicrosecondArray, TimestampNanosecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field, Fields};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use super::file::TableFile;
use crate::model::Limits;
use crate::read::Ranges;
use crate::read::broken::Broken;

/// Bytes in memory as a file.
#[derive(Clone, Debug)]
pub struct Memory(pub Bytes);

impl Ranges for Memory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, range: std::ops::Range<u64>) -> std::io::Result<Bytes> {
        assert!(range.start <= range.end, "a range that ends before it begins");
        if range.end > self.size() {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(self.0.slice(range.start as usize..range.end as usize))
    }
}

/// Opens a table.
pub type Open = fn(Arc<dyn Ranges>, &Limits) -> Result<Box<dyn TableFile>, Broken>;

/// Opens bytes.
pub fn opened(open: Open, bytes: &[u8], limits: &Limits) -> Result<Box<dyn TableFile>, Broken> {
    open(Arc::new(Memory(Bytes::copy_from_slice(bytes))), limits)
}

/// Every unit of some columns in batches, and what was broken in each.
pub fn read(table: &dyn TableFile, columns: &[usize], batch: usize) -> (Vec<RecordBatch>, Vec<Broken>) {
    let (mut batches, mut broken) = (Vec::new(), Vec::new());
    for unit in 0..table.units() {
        let before = batches.len();
        let result = table.read(unit, columns, batch, &mut |rows| {
            assert!(rows.num_rows() > 0 && rows.num_rows() <= batch, "{} rows in a batch of {batch}", rows.num_rows());
            assert_eq!(rows.num_columns(), columns.len());
            batches.push(rows);
            true
        });
        let rows: usize = batches[before..].iter().map(RecordBatch::num_rows).sum();
        match result {
            Ok(()) => assert_eq!(rows as u64, table.rows(unit), "a unit without damage gives its rows"),
            Err(error) => {
                assert!(rows as u64 <= table.rows(unit), "more rows than the unit has");
                broken.push(error);
            }
        }
    }
    (batches, broken)
}

/// All columns, one after the other, then together: no panic, no more rows than said.
pub fn exhaust(open: Open, bytes: &[u8], limits: &Limits) -> Result<(usize, usize), Broken> {
    let table = opened(open, bytes, limits)?;
    let all: Vec<usize> = (0..table.schema().fields.len()).collect();
    let (mut rows, mut broken) = (0, 0);
    for columns in all.iter().map(std::slice::from_ref).chain([&all[..], &[]]) {
        let (batches, faults) = read(&*table, columns, 64);
        rows += batches.iter().map(RecordBatch::num_rows).sum::<usize>();
        broken += faults.len();
        for (unit, column) in (0..table.units()).flat_map(|unit| columns.iter().map(move |column| (unit, *column))) {
            let nulls = table.nulls(unit, column);
            assert!(nulls.is_none_or(|nulls| nulls <= table.rows(unit)), "more nulls than rows");
        }
    }
    Ok((rows, broken))
}

/// Null where the row is one of every seven.
fn some<T>(rows: usize, value: impl Fn(usize) -> T) -> impl Iterator<Item = Option<T>> {
    (0..rows).map(move |row| (row % 7 != 3).then(|| value(row)))
}

/// Columns of every flat type, with NaN, Inf and nulls.
pub fn flat(rows: usize) -> RecordBatch {
    let float = |row: usize| [1.5, f64::NAN, f64::INFINITY, -2.25, f64::NEG_INFINITY, 0.0][row % 6] + row as f64;
    let text = |row: usize| format!("run-{}", row * 3 / rows.max(1));
    let half = |row: usize| half_of(float(row) as f32);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("bool", Arc::new(BooleanArray::from_iter(some(rows, |row| row % 3 == 0)))),
        ("i8", Arc::new(Int8Array::from_iter(some(rows, |row| row as i8)))),
        ("i16", Arc::new(Int16Array::from_iter(some(rows, |row| row as i16 - 20)))),
        ("i32", Arc::new(Int32Array::from_iter(some(rows, |row| row as i32 * -3)))),
        ("step", Arc::new(Int64Array::from_iter_values((0..rows).map(|row| row as i64 * 10)))),
        ("i64", Arc::new(Int64Array::from_iter(some(rows, |row| i64::MAX - row as i64)))),
        ("u8", Arc::new(UInt8Array::from_iter(some(rows, |row| row as u8)))),
        ("u16", Arc::new(UInt16Array::from_iter(some(rows, |row| row as u16)))),
        ("u32", Arc::new(UInt32Array::from_iter(some(rows, |row| u32::MAX - row as u32)))),
        ("u64", Arc::new(UInt64Array::from_iter(some(rows, |row| u64::MAX - row as u64)))),
        ("f16", Arc::new(Float16Array::from_iter(some(rows, half)))),
        ("f32", Arc::new(Float32Array::from_iter(some(rows, |row| float(row) as f32)))),
        ("f64", Arc::new(Float64Array::from_iter(some(rows, float)))),
        ("run", Arc::new(StringArray::from_iter(some(rows, text)))),
        ("large", Arc::new(LargeStringArray::from_iter(some(rows, text)))),
        ("view", Arc::new(StringViewArray::from_iter(some(rows, |row| format!("a text beyond twelve bytes {row}"))))),
        ("binary", Arc::new(BinaryArray::from_iter(some(rows, |row| vec![row as u8; row % 4])))),
        (
            "dictionary",
            Arc::new(
                some(rows, text)
                    .collect::<Vec<_>>()
                    .iter()
                    .map(Option::as_deref)
                    .collect::<DictionaryArray<Int32Type>>(),
            ),
        ),
        ("time", Arc::new(TimestampMicrosecondArray::from_iter(some(rows, |row| row as i64 * 1_000_000)))),
        ("time_ns", Arc::new(TimestampNanosecondArray::from_iter(some(rows, |row| row as i64)).with_timezone("UTC"))),
        ("date", Arc::new(Date32Array::from_iter(some(rows, |row| row as i32)))),
        (
            "decimal",
            Arc::new(
                Decimal128Array::from_iter(some(rows, |row| row as i128 * -7))
                    .with_precision_and_scale(20, 4)
                    .expect("a precision"),
            ),
        ),
        ("null", Arc::new(NullArray::new(rows))),
        ("empty", Arc::new(Float64Array::from_iter((0..rows).map(|_| None::<f64>)))),
        (
            "fixed",
            Arc::new(
                FixedSizeBinaryArray::try_from_sparse_iter_with_size(some(rows, |row| [row as u8; 4]), 4)
                    .expect("a width"),
            ),
        ),
    ];
    let nullable = columns.into_iter().map(|(name, array)| (name, array, name != "step"));
    RecordBatch::try_from_iter_with_nullable(nullable).expect("columns of one length")
}

/// The half precision number that is nearest.
fn half_of(value: f32) -> <arrow_array::types::Float16Type as arrow_array::ArrowPrimitiveType>::Native {
    <arrow_array::types::Float16Type as arrow_array::ArrowPrimitiveType>::Native::from_f32(value)
}

/// Columns of lists, fixed lists, structs and maps.
pub fn nested(rows: usize) -> RecordBatch {
    let mut lists = ListBuilder::new(Int64Builder::new());
    let mut maps = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for row in 0..rows {
        if row % 5 != 2 {
            (0..row % 4).for_each(|item| lists.values().append_option((item != 1).then_some(item as i64)));
        }
        lists.append(row % 5 != 2);
        if row % 2 == 0 {
            maps.keys().append_value(format!("k{}", row % 3));
            maps.values().append_value(row as i64);
        }
        maps.append(true).expect("keys and values of one length");
    }
    let embedding = FixedSizeListArray::from_iter_primitive::<arrow_array::types::Float32Type, _, _>(
        (0..rows).map(|row| (row % 6 != 1).then(|| (0..8).map(move |at| Some((row * 8 + at) as f32)))),
        8,
    );
    let fields =
        Fields::from(vec![Field::new("loss", DataType::Float64, true), Field::new("name", DataType::Utf8, true)]);
    let parts: Vec<ArrayRef> = vec![
        Arc::new(Float64Array::from_iter(some(rows, |row| row as f64))),
        Arc::new(StringArray::from_iter(some(rows, |row| format!("n{}", row % 2)))),
    ];
    let structs = StructArray::new(fields, parts, None);
    let lists: ListArray = lists.finish();
    let maps: MapArray = maps.finish();
    RecordBatch::try_from_iter_with_nullable([
        ("list", Arc::new(lists) as ArrayRef, true),
        ("embedding", Arc::new(embedding), true),
        ("struct", Arc::new(structs), true),
        ("map", Arc::new(maps), false),
        ("grad_norm", Arc::new(Float64Array::from_iter_values((0..rows).map(|row| row as f64))), false),
    ])
    .expect("columns of one length")
}

/// A Parquet file by the crate's writer.
pub fn parquet(batches: &[RecordBatch], properties: WriterProperties) -> Vec<u8> {
    let mut writer = ArrowWriter::try_new(Vec::new(), batches[0].schema(), Some(properties)).expect("a schema");
    batches.iter().for_each(|batch| writer.write(batch).expect("a batch"));
    writer.into_inner().expect("a file")
}

/// An IPC file by the crate's writer.
pub fn ipc_file(batches: &[RecordBatch], options: arrow_ipc::writer::IpcWriteOptions) -> Vec<u8> {
    let schema = batches[0].schema();
    let mut writer =
        arrow_ipc::writer::FileWriter::try_new_with_options(Vec::new(), &schema, options).expect("a schema");
    batches.iter().for_each(|batch| writer.write(batch).expect("a batch"));
    writer.into_inner().expect("a file")
}

/// An IPC stream by the crate's writer.
pub fn ipc_stream(batches: &[RecordBatch], options: arrow_ipc::writer::IpcWriteOptions) -> Vec<u8> {
    let schema = batches[0].schema();
    let mut writer =
        arrow_ipc::writer::StreamWriter::try_new_with_options(Vec::new(), &schema, options).expect("a schema");
    batches.iter().for_each(|batch| writer.write(batch).expect("a batch"));
    writer.into_inner().expect("a stream")
}
