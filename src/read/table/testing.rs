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

/// A struct of Thrift's compact protocol, field by field in rising order: for files that no writer writes.
#[derive(Clone, Debug, Default)]
pub struct Thrift {
    bytes: Vec<u8>,
    last: i16,
}

impl Thrift {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn field(&mut self, id: i16, kind: u8) {
        assert!(id > self.last, "fields rise");
        match id - self.last {
            step @ ..16 => self.bytes.push((step as u8) << 4 | kind),
            _ => {
                self.bytes.push(kind);
                self.zigzag(i64::from(id));
            }
        }
        self.last = id;
    }

    fn zigzag(&mut self, value: i64) {
        self.varint((value << 1 ^ value >> 63) as u64);
    }

    pub fn i32(mut self, id: i16, value: i32) -> Self {
        self.field(id, 5);
        self.zigzag(i64::from(value));
        self
    }

    pub fn i64(mut self, id: i16, value: i64) -> Self {
        self.field(id, 6);
        self.zigzag(value);
        self
    }

    pub fn binary(mut self, id: i16, value: &[u8]) -> Self {
        self.field(id, 8);
        self.varint(value.len() as u64);
        self.bytes.extend_from_slice(value);
        self
    }

    pub fn inner(mut self, id: i16, value: &Thrift) -> Self {
        self.field(id, 12);
        self.bytes.extend(value.done());
        self
    }

    /// A list of structs that says that it has `count`.
    pub fn list(mut self, id: i16, count: u64, items: &[Thrift]) -> Self {
        self.field(id, 9);
        self.bytes.push(0xfc);
        self.varint(count);
        items.iter().for_each(|item| self.bytes.extend(item.done()));
        self
    }

    pub fn done(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.push(0);
        bytes
    }
}

/// A Parquet file around one column `x`.
#[derive(Clone, Debug)]
pub struct Forged {
    /// Number of the physical type: 1 is 32 bits, 2 is 64, 5 a double, 6 a text, 7 of fixed length.
    pub physical: i32,
    /// Bytes of a fixed length.
    pub length: i32,
    /// Number of the codec.
    pub codec: i32,
    /// Headers and bytes of pages.
    pub pages: Vec<(Thrift, Vec<u8>)>,
    /// What the row group says.
    pub rows: i64,
    /// The Arrow schema in the footer, in base64.
    pub arrow: Option<String>,
    /// What else an element of the schema says.
    pub converted: Option<i32>,
}

impl Default for Forged {
    fn default() -> Self {
        Self { physical: 5, length: 0, codec: 0, pages: Vec::new(), rows: 1, arrow: None, converted: None }
    }
}

impl Forged {
    /// A header of a data page of version 1.
    pub fn data(values: i32, encoding: i32, plain: i32, stored: i32) -> Thrift {
        let data = Thrift::default().i32(1, values).i32(2, encoding).i32(3, 3).i32(4, 3);
        Thrift::default().i32(1, 0).i32(2, plain).i32(3, stored).inner(5, &data)
    }

    /// A header of a dictionary.
    pub fn dictionary(values: i32, plain: i32, stored: i32) -> Thrift {
        let dictionary = Thrift::default().i32(1, values).i32(2, 0);
        Thrift::default().i32(1, 2).i32(2, plain).i32(3, stored).inner(7, &dictionary)
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"PAR1".to_vec();
        for (header, page) in &self.pages {
            bytes.extend(header.done());
            bytes.extend(page);
        }
        let stored = bytes.len() as i64 - 4;
        let mut element = Thrift::default().i32(1, self.physical);
        if self.length > 0 {
            element = element.i32(2, self.length);
        }
        element = element.i32(3, 0).binary(4, b"x");
        if let Some(converted) = self.converted {
            element = element.i32(6, converted);
        }
        let root = Thrift::default().binary(4, b"root").i32(5, 1);
        let mut path = Thrift::default().i32(1, self.physical);
        path.field(2, 9);
        path.bytes.extend([0x15, 0]);
        path.field(3, 9);
        path.bytes.extend([0x18, 1, b'x']);
        let column = path.i32(4, self.codec).i64(5, self.rows).i64(6, stored).i64(7, stored).i64(9, 4);
        let chunk = Thrift::default().i64(2, 4).inner(3, &column);
        let group = Thrift::default().list(1, 1, &[chunk]).i64(2, stored).i64(3, self.rows);
        let mut footer =
            Thrift::default().i32(1, 1).list(2, 2, &[root, element]).i64(3, self.rows).list(4, 1, &[group]);
        if let Some(arrow) = &self.arrow {
            let pair = Thrift::default().binary(1, b"ARROW:schema").binary(2, arrow.as_bytes());
            footer = footer.list(5, 1, &[pair]);
        }
        with_footer(bytes, &footer)
    }
}

/// Appends a footer, its length and the magic.
pub fn with_footer(mut bytes: Vec<u8>, footer: &Thrift) -> Vec<u8> {
    let footer = footer.done();
    bytes.extend(&footer);
    bytes.extend((footer.len() as u32).to_le_bytes());
    bytes.extend(b"PAR1");
    bytes
}

/// Every cut and a changed byte at every place, with masks in turn: answers, and how many files still opened.
pub fn damage(open: Open, bytes: &[u8], limits: &Limits) -> (usize, usize, usize) {
    let (mut whole, mut faulty, mut refused) = (0, 0, 0);
    let mut count = |result: Result<(usize, usize), Broken>| match result {
        Ok((_, 0)) => whole += 1,
        Ok(_) => faulty += 1,
        Err(broken) => {
            assert!(!broken.detail.is_empty());
            refused += 1;
        }
    };
    for cut in 0..bytes.len() {
        count(exhaust(open, &bytes[..cut], limits));
    }
    let mut changed = bytes.to_vec();
    for at in 0..bytes.len() {
        let mask = [1 << (at % 8), 0xff, 0x80][at % 3];
        changed[at] ^= mask;
        count(exhaust(open, &changed, limits));
        changed[at] ^= mask;
    }
    (whole, faulty, refused)
}
