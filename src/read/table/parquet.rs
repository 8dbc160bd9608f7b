//! A Parquet file as a table, over [`Ranges`]: the footer by [`parquet_pages`](crate::wire::parquet_pages), pages by
//! [`pages`](super::pages), values by the `parquet` crate.
//!
//! The footer is read once, without the crate: its parser gives up a file for what one column says, and takes no more
//! than 32,767 row groups. A column of a type that the crate does not know keeps its place in the schema with type Null.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowGroups, RowSelection, RowSelector};
use parquet::arrow::{
    ARROW_SCHEMA_META_KEY, ProjectionMask, parquet_to_arrow_field_levels, parquet_to_arrow_schema_by_columns,
};
use parquet::column::page::{PageIterator, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::{FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::schema::types::SchemaDescPtr;

use super::file::TableFile;
use super::guard::{guarded, tried};
use super::pages::{Pages, Shape, Slot};
use super::pandas;
use crate::model::{FaultKind, Limits};
use crate::read::Ranges;
use crate::read::broken::Broken;
use crate::read::parquet_columns::{End, ROWS_FREE, ROWS_PER_BYTE};
use crate::wire::parquet_pages::{Chunk, Footer, metadata};

/// Key of a field of which [`TableFile::read`] says `unsupported`; the value says why.
pub const UNSUPPORTED: &str = "gradscan:unsupported";

/// Opens a Parquet file: reads its footer, holds it against the file and the limits, and takes the schema from it.
///
/// Top-level texts whose first row group has a dictionary are `Dictionary(Int32, Utf8)`; all else has the type that the
/// writer stored. Errors: `git-lfs-pointer`, `cut-header` (no footer, a broken one), `limit`, `unsupported` (encrypted),
/// `io-error`.
pub fn open(ranges: Arc<dyn Ranges>, limits: &Limits) -> Result<Box<dyn TableFile>, Broken> {
    let End { bytes, footer, at, .. } = End::read(&*ranges, limits)?;
    if footer.leaves.len() > limits.columns {
        let detail = format!("{} columns, at most {} are read", footer.leaves.len(), limits.columns);
        return Err(Broken::new("limit", FaultKind::Limit, at, detail));
    }
    // The depth and the number of elements were bounded by the footer's own parser.
    let descriptor = tried(at, || ParquetMetaDataReader::decode_schema(&bytes))?;
    if descriptor.num_columns() != footer.leaves.len() {
        return Err(Broken::damage(at, "broken footer: the schema is ambiguous"));
    }
    let mut roots: Vec<Vec<usize>> = Vec::new();
    roots.resize_with(descriptor.root_schema().get_fields().len(), Vec::new);
    for leaf in 0..descriptor.num_columns() {
        roots[descriptor.get_column_root_idx(leaf)].push(leaf);
    }
    let key_value = metadata(&bytes, ARROW_SCHEMA_META_KEY.as_bytes()).map(|value| {
        vec![KeyValue::new(ARROW_SCHEMA_META_KEY.to_owned(), String::from_utf8_lossy(value).into_owned())]
    });
    let mut fields: Vec<Field> = Vec::new();
    convert(&descriptor, key_value.as_ref(), 0..roots.len(), &mut fields);
    for (field, leaves) in fields.iter_mut().zip(&roots) {
        let is_text = matches!(field.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
        let has_dictionary = footer.groups.first().is_some_and(|group| group.chunks[leaves[0]].dictionary);
        if is_text && has_dictionary {
            let texts = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
            field.set_data_type(texts);
        }
    }
    // All that is read of what the writer says of its table.
    let said = metadata(&bytes, pandas::KEY.as_bytes()).map(|value| String::from_utf8_lossy(value).into_owned());
    let said: HashMap<String, String> = said.map(|said| (pandas::KEY.to_owned(), said)).into_iter().collect();
    let plain = FileMetaData::new(1, 0, None, None, Arc::clone(&descriptor), None);
    Ok(Box::new(ParquetFile {
        ranges,
        footer,
        schema: Arc::new(Schema::new_with_metadata(fields, said)),
        roots,
        metadata: ParquetMetaData::new(plain, Vec::new()),
        descriptor,
        page: limits.page,
    }))
}

/// Appends the fields of some root columns. Where the crate refuses the schema of several, each half is asked for
/// itself, so that one column of an unknown type costs only itself.
fn convert(
    descriptor: &SchemaDescPtr,
    key_value: Option<&Vec<KeyValue>>,
    roots: std::ops::Range<usize>,
    into: &mut Vec<Field>,
) {
    let whole = |key_value| {
        let mask = ProjectionMask::roots(descriptor, roots.clone());
        let schema = tried(0, || parquet_to_arrow_schema_by_columns(descriptor, mask, key_value))?;
        match schema.fields.len() == roots.len() {
            true => Ok(schema),
            false => Err(Broken::damage(0, "a column without a type")),
        }
    };
    // The Arrow schema that the writer left may contradict what it wrote.
    match whole(key_value).or_else(|broken| if key_value.is_some() { whole(None) } else { Err(broken) }) {
        Ok(schema) => into.extend(schema.fields.iter().map(|field| field.as_ref().clone())),
        Err(broken) if roots.len() == 1 => {
            let name = descriptor.root_schema().get_fields()[roots.start].name();
            let why = HashMap::from([(UNSUPPORTED.to_owned(), broken.detail)]);
            into.push(Field::new(name, DataType::Null, true).with_metadata(why));
        }
        Err(_) => {
            let middle = roots.start + roots.len() / 2;
            convert(descriptor, key_value, roots.start..middle, into);
            convert(descriptor, key_value, middle..roots.end, into);
        }
    }
}

/// An open file.
struct ParquetFile {
    ranges: Arc<dyn Ranges>,
    footer: Footer,
    schema: SchemaRef,
    /// Leaves of each column.
    roots: Vec<Vec<usize>>,
    descriptor: SchemaDescPtr,
    /// For the crate: the schema without row groups.
    metadata: ParquetMetaData,
    /// [`Limits::page`].
    page: u64,
}

impl TableFile for ParquetFile {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn units(&self) -> usize {
        self.footer.groups.len()
    }

    fn rows(&self, unit: usize) -> u64 {
        self.footer.groups.get(unit).map_or(0, |group| group.rows)
    }

    fn nulls(&self, unit: usize, column: usize) -> Option<u64> {
        let group = self.footer.groups.get(unit)?;
        let [leaf] = self.roots.get(column)?[..] else { return None };
        let stored = self.descriptor.column(leaf);
        if stored.path().parts().len() != 1 || stored.max_rep_level() > 0 {
            return None;
        }
        match (self.footer.leaves[leaf].null, stored.max_def_level()) {
            (true, _) => Some(group.rows),
            (_, 0) => Some(0),
            _ => group.chunks[leaf].nulls.filter(|nulls| *nulls <= group.rows),
        }
    }

    fn read(
        &self,
        unit: usize,
        columns: &[usize],
        batch: usize,
        give: &mut dyn FnMut(RecordBatch) -> bool,
    ) -> Result<(), Broken> {
        let group = &self.footer.groups[unit];
        let Some(first) = columns.first() else {
            return self.read_nothing(group.rows, batch, give);
        };
        let offset = group.chunks[self.roots[*first][0]].offset;
        let mut batch = batch.max(1) as u64;
        for column in columns {
            let field = self.schema.field(*column);
            if let Some(why) = field.metadata().get(UNSUPPORTED) {
                let detail = format!("column {}: {why}", field.name());
                return Err(Broken::new("unsupported", FaultKind::Version, offset, detail));
            }
            self.check(unit, *column)?;
            // Wide values make batches short: a batch of one column is no larger than a page may be.
            let width = width(field.data_type());
            if width > self.page {
                let detail = format!("column {}: a value of {width} bytes", field.name());
                return Err(Broken::new("limit", FaultKind::Limit, offset, detail));
            }
            batch = batch.min(self.page / width.max(1)).max(1);
        }
        let mut done = 0;
        loop {
            let (mut stopped, mut more) = (false, false);
            let result = self.read_from(unit, columns, batch, done, &mut |rows| {
                let left = group.rows - done;
                more = rows.num_rows() as u64 > left;
                let rows = if more { rows.slice(0, left as usize) } else { rows };
                done += rows.num_rows() as u64;
                stopped = rows.num_rows() > 0 && !give(rows);
                !stopped && !more
            });
            match result {
                _ if stopped => return Ok(()),
                // Levels of lists make rows.
                Ok(()) if more => return Err(Broken::damage(offset, "more rows than the footer says")),
                Ok(()) if done < group.rows => {
                    let detail = format!("{done} rows in a row group of {}", group.rows);
                    return Err(Broken::damage(offset, detail));
                }
                Ok(()) => return Ok(()),
                // The batch that met the damage was lost with it: what stands before is read again in smaller ones.
                Err(broken) if is_damage(broken.kind) && batch > 1 => batch = (batch / 16).max(1),
                Err(broken) => return Err(broken),
            }
        }
    }
}

/// Whether what stands before it may still be read.
fn is_damage(kind: FaultKind) -> bool {
    matches!(kind, FaultKind::Unparsable | FaultKind::BadChecksum)
}

impl ParquetFile {
    fn read_nothing(&self, rows: u64, batch: usize, give: &mut dyn FnMut(RecordBatch) -> bool) -> Result<(), Broken> {
        let schema = Arc::new(Schema::empty());
        let mut left = rows;
        while left > 0 {
            let count = left.min(batch.max(1) as u64);
            let options = RecordBatchOptions::new().with_row_count(Some(count as usize));
            let empty = RecordBatch::try_new_with_options(Arc::clone(&schema), Vec::new(), &options);
            if !give(empty.map_err(|error| Broken::damage(0, error.to_string()))?) {
                break;
            }
            left -= count;
        }
        Ok(())
    }

    /// Holds the number of values of a column against its rows and its bytes.
    fn check(&self, unit: usize, column: usize) -> Result<(), Broken> {
        let group = &self.footer.groups[unit];
        for leaf in &self.roots[column] {
            let Chunk { offset, length, values, .. } = group.chunks[*leaf];
            let is_list = self.descriptor.column(*leaf).max_rep_level() > 0;
            if !is_list && values != group.rows {
                let detail = format!("{values} values of {} in {} rows", self.footer.leaves[*leaf].name, group.rows);
                return Err(Broken::damage(offset, detail));
            }
            // A list of any length takes a few bytes if its values are the same.
            if is_list && values > ROWS_FREE + length.saturating_mul(ROWS_PER_BYTE) {
                let detail = format!("{values} values in a column of {length} bytes are not plausible");
                return Err(Broken::new("limit", FaultKind::Limit, offset, detail));
            }
        }
        Ok(())
    }

    /// Gives the rows behind the first `skip`, batch by batch.
    fn read_from(
        &self,
        unit: usize,
        columns: &[usize],
        batch: u64,
        skip: u64,
        give: &mut dyn FnMut(RecordBatch) -> bool,
    ) -> Result<(), Broken> {
        let group = &self.footer.groups[unit];
        let leaves = || columns.iter().flat_map(|column| &self.roots[*column]).copied();
        let offset = leaves().map(|leaf| group.chunks[leaf].offset).min().unwrap_or(0);
        let slot = Slot::default();
        let told = |broken: Broken| slot.lock().ok().and_then(|mut slot| slot.take()).unwrap_or(broken);
        let rows = Rows { file: self, unit, batch, slot: Arc::clone(&slot) };
        let schema = self.schema.project(columns).map_err(|error| Broken::damage(offset, error.to_string()))?;
        let schema = Arc::new(schema);
        let mut reader = tried(offset, || {
            let mask = ProjectionMask::leaves(&self.descriptor, leaves());
            let levels = parquet_to_arrow_field_levels(&self.descriptor, mask, Some(&self.hint()))?;
            let selection = (skip > 0).then(|| {
                let rest = (group.rows - skip) as usize;
                RowSelection::from(vec![RowSelector::skip(skip as usize), RowSelector::select(rest)])
            });
            ParquetRecordBatchReader::try_new_with_row_groups(&levels, &rows, batch as usize, selection)
        })
        .map_err(told)?;
        loop {
            // What a panic leaves of the reader is dropped: this returns.
            let next = guarded(offset, || -> Result<Option<RecordBatch>, ArrowError> {
                let Some(rows) = reader.next().transpose()? else { return Ok(None) };
                let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
                RecordBatch::try_new_with_options(Arc::clone(&schema), rows.columns().to_vec(), &options).map(Some)
            })
            .map_err(told)?;
            match next.map_err(|error| told(Broken::damage(offset, error.to_string())))? {
                Some(rows) if rows.num_rows() > 0 => {
                    if !give(rows) {
                        return Ok(());
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    /// The types that are wanted of the crate. What it does not know is not among the wanted, and any type will do.
    fn hint(&self) -> Fields {
        self.schema.fields.clone()
    }
}

/// Bytes of a value of fixed width; of lists and texts those of one element.
fn width(kind: &DataType) -> u64 {
    match kind {
        DataType::FixedSizeBinary(length) => u64::try_from(*length).unwrap_or(u64::MAX),
        DataType::FixedSizeList(item, length) => {
            u64::try_from(*length).unwrap_or(u64::MAX).saturating_mul(width(item.data_type()).max(1))
        }
        DataType::Struct(fields) => fields.iter().fold(0, |sum, field| sum.saturating_add(width(field.data_type()))),
        DataType::List(item) | DataType::LargeList(item) | DataType::ListView(item) | DataType::LargeListView(item) => {
            width(item.data_type())
        }
        DataType::Map(entry, _) => width(entry.data_type()),
        DataType::Dictionary(_, value) => width(value),
        kind => kind.primitive_width().unwrap_or(1) as u64,
    }
}

/// One row group, as the crate wants to see it.
struct Rows<'a> {
    file: &'a ParquetFile,
    unit: usize,
    batch: u64,
    slot: Slot,
}

impl RowGroups for Rows<'_> {
    fn num_rows(&self) -> usize {
        self.file.footer.groups[self.unit].rows as usize
    }

    fn column_chunks(&self, leaf: usize) -> Result<Box<dyn PageIterator>, ParquetError> {
        let file = self.file;
        let stored = file.descriptor.column(leaf);
        let shape = Shape {
            name: file.footer.leaves[leaf].name.clone(),
            physical: stored.physical_type(),
            length: u64::try_from(stored.type_length()).unwrap_or(0),
            has_definition: stored.max_def_level() > 0,
            has_repetition: stored.max_rep_level() > 0,
        };
        let chunk = &file.footer.groups[self.unit].chunks[leaf];
        let slot = Arc::clone(&self.slot);
        let pages = Pages::new(Arc::clone(&file.ranges), chunk, shape, file.page, self.batch, slot);
        Ok(Box::new(OneChunk(Some(Box::new(pages)))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::empty())
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.file.metadata
    }
}

/// The chunks of a column in one row group: one.
struct OneChunk(Option<Box<dyn PageReader>>);

impl Iterator for OneChunk {
    type Item = Result<Box<dyn PageReader>, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(Ok)
    }
}

impl PageIterator for OneChunk {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::table::testing::{self, flat, nested, opened, read};
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float64Type, Int32Type, Int64Type};
    use arrow_array::{Array, ArrayRef};
    use parquet::basic::{BrotliLevel, Compression, Encoding, GzipLevel, ZstdLevel};
    use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion};
    use parquet::schema::types::ColumnPath;

    /// What was read against what was written, column by column; texts may have become a dictionary.
    fn same(batches: &[RecordBatch], written: &RecordBatch, columns: &[usize]) {
        let mut at = 0;
        for rows in batches {
            for (got, column) in rows.columns().iter().zip(columns) {
                let want = written.column(*column).slice(at, rows.num_rows());
                let cast = |array: &ArrayRef| match array.data_type() {
                    DataType::Dictionary(..) | DataType::LargeUtf8 | DataType::Utf8View => {
                        arrow_cast::cast(array, &DataType::Utf8).expect("texts")
                    }
                    _ => Arc::clone(array),
                };
                // NaN is not itself: by what is printed.
                let (got, want) = (format!("{:?}", cast(got)), format!("{:?}", cast(&want)));
                assert_eq!(got, want, "{}", written.schema().field(*column).name());
            }
            at += rows.num_rows();
        }
        assert_eq!(at, written.num_rows());
    }

    fn check(written: &RecordBatch, properties: WriterProperties, batch: usize) {
        let bytes = testing::parquet(std::slice::from_ref(written), properties);
        let table = opened(open, &bytes, &Limits::default()).unwrap();
        let all: Vec<usize> = (0..written.num_columns()).collect();
        assert_eq!(table.schema().fields.len(), all.len());
        for columns in all.iter().map(std::slice::from_ref).chain([&all[..]]) {
            let (batches, broken) = read(&*table, columns, batch);
            assert_eq!(broken, []);
            same(&batches, written, columns);
        }
    }

    fn properties() -> WriterPropertiesBuilder {
        WriterProperties::builder()
    }

    #[test]
    fn every_type_in_every_codec() {
        let codecs = [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::GZIP(GzipLevel::default()),
            Compression::ZSTD(ZstdLevel::default()),
            Compression::BROTLI(BrotliLevel::default()),
            Compression::LZ4_RAW,
            Compression::LZ4,
        ];
        for (codec, version) in codecs
            .iter()
            .flat_map(|codec| [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0].map(|version| (*codec, version)))
        {
            let properties = properties().set_compression(codec).set_writer_version(version).build();
            check(&flat(100), properties.clone(), 33);
            check(&nested(100), properties, 33);
        }
    }

    #[test]
    fn every_encoding_in_pages_and_row_groups() {
        let encodings = [
            ("i32", Encoding::DELTA_BINARY_PACKED),
            ("step", Encoding::DELTA_BINARY_PACKED),
            ("i64", Encoding::BYTE_STREAM_SPLIT),
            ("f32", Encoding::BYTE_STREAM_SPLIT),
            ("f64", Encoding::BYTE_STREAM_SPLIT),
            ("f16", Encoding::BYTE_STREAM_SPLIT),
            ("run", Encoding::DELTA_BYTE_ARRAY),
            ("large", Encoding::DELTA_LENGTH_BYTE_ARRAY),
            ("binary", Encoding::DELTA_BYTE_ARRAY),
            ("fixed", Encoding::DELTA_BYTE_ARRAY),
        ];
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            let mut split = properties()
                .set_writer_version(version)
                .set_dictionary_enabled(false)
                .set_data_page_row_count_limit(50)
                .set_write_batch_size(25)
                .set_max_row_group_row_count(Some(170));
            for (name, encoding) in encodings {
                split = split.set_column_encoding(ColumnPath::from(name), encoding);
            }
            check(&flat(500), split.build(), 64);
            // Dictionaries that overflow into plain pages in the middle of a row group.
            let overflow = properties()
                .set_writer_version(version)
                .set_dictionary_page_size_limit(100)
                .set_data_page_row_count_limit(50)
                .set_write_batch_size(25);
            check(&flat(500), overflow.build(), 64);
            let small =
                properties().set_writer_version(version).set_data_page_row_count_limit(20).set_write_batch_size(10);
            check(&nested(300), small.set_max_row_group_row_count(Some(100)).build(), 77);
        }
    }

    #[test]
    fn units_rows_and_nulls() {
        let written = flat(100);
        let one = |properties: WriterPropertiesBuilder| {
            let bytes = testing::parquet(std::slice::from_ref(&written), properties.build());
            opened(open, &bytes, &Limits::default()).unwrap()
        };
        let table = one(properties().set_max_row_group_row_count(Some(40)));
        let rows: Vec<u64> = (0..table.units()).map(|unit| table.rows(unit)).collect();
        assert_eq!(rows, [40, 40, 20]);
        let index = |name: &str| table.schema().index_of(name).unwrap();
        for (unit, at) in [0..40, 40..80, 80..100].into_iter().enumerate() {
            for name in ["f64", "run", "i8"] {
                let column = written.column_by_name(name).unwrap().slice(at.start, at.len());
                assert_eq!(table.nulls(unit, index(name)), Some(column.null_count() as u64), "{name}");
            }
            assert_eq!(table.nulls(unit, index("step")), Some(0));
            assert_eq!(table.nulls(unit, index("empty")), Some(at.len() as u64));
            assert_eq!(table.nulls(unit, index("null")), Some(at.len() as u64));
        }
        let table = one(properties().set_statistics_enabled(EnabledStatistics::None));
        assert_eq!(table.nulls(0, index("f64")), None);
        assert_eq!(table.nulls(0, index("step")), Some(0));
        let bytes = testing::parquet(&[nested(50)], properties().build());
        let table = opened(open, &bytes, &Limits::default()).unwrap();
        let nulls: Vec<Option<u64>> = (0..5).map(|column| table.nulls(0, column)).collect();
        assert_eq!(nulls, [None, None, None, None, Some(0)]);
        assert_eq!(table.nulls(7, 0), None);
        assert_eq!(table.rows(7), 0);
    }

    #[test]
    fn texts_are_dictionaries_where_they_are_stored_so() {
        let written = flat(2000);
        let bytes = testing::parquet(std::slice::from_ref(&written), properties().build());
        let table = opened(open, &bytes, &Limits::default()).unwrap();
        let run = table.schema().index_of("run").unwrap();
        let (batches, _) = read(&*table, &[run], 500);
        assert_eq!(batches.len(), 4);
        let values: Vec<ArrayRef> =
            batches.iter().map(|rows| Arc::clone(rows.column(0).as_dictionary::<Int32Type>().values())).collect();
        assert_eq!(values[0].len(), 3);
        // One dictionary for the row group: whoever keeps what it made of the values need not make it again.
        assert!(values.iter().all(|other| other.to_data().ptr_eq(&values[0].to_data())));
        let plain = properties().set_dictionary_enabled(false).build();
        let table = opened(open, &testing::parquet(&[written], plain), &Limits::default()).unwrap();
        assert_eq!(table.schema().field(run).data_type(), &DataType::Utf8);
    }

    #[test]
    fn empty_tables_no_columns_and_stops() {
        let table = opened(open, &testing::parquet(&[flat(0)], properties().build()), &Limits::default()).unwrap();
        assert_eq!(table.schema().fields.len(), flat(0).num_columns());
        assert_eq!(read(&*table, &[0, 4], 10).0.len(), 0);
        let table = opened(open, &testing::parquet(&[flat(100)], properties().build()), &Limits::default()).unwrap();
        let (batches, broken) = read(&*table, &[], 30);
        let rows: Vec<usize> = batches.iter().map(RecordBatch::num_rows).collect();
        assert_eq!((rows, broken), (vec![30, 30, 30, 10], vec![]));
        let mut seen = 0;
        let stop = table.read(0, &[4], 30, &mut |rows| {
            seen += rows.num_rows();
            false
        });
        assert_eq!((stop, seen), (Ok(()), 30));
    }

    #[test]
    fn a_damaged_page_costs_what_follows_it() {
        let steps: Vec<i64> = (0..1000).collect();
        let norms: Vec<f64> = steps.iter().map(|step| 1.0 / (*step as f64 + 1.0)).collect();
        let written = RecordBatch::try_from_iter([
            ("step", Arc::new(arrow_array::Int64Array::from(steps)) as ArrayRef),
            ("grad_norm", Arc::new(arrow_array::Float64Array::from(norms.clone()))),
        ])
        .unwrap();
        let split = properties()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_dictionary_enabled(false)
            .set_data_page_row_count_limit(100)
            .set_write_batch_size(100)
            .set_max_row_group_row_count(Some(500));
        let mut bytes = testing::parquet(&[written], split.build());
        // Zstandard frames begin with this; the third page of `grad_norm` in the first row group is damaged.
        let frames: Vec<usize> = memchr::memmem::find_iter(&bytes, &[0x28, 0xb5, 0x2f, 0xfd]).collect();
        assert_eq!(frames.len(), 20);
        bytes[frames[7]] ^= 0xff;
        let table = opened(open, &bytes, &Limits::default()).unwrap();
        let (batches, broken) = read(&*table, &[0, 1], 8192);
        assert_eq!(broken.len(), 1);
        assert!(broken[0].detail.contains("column grad_norm"), "{}", broken[0].detail);
        let got: Vec<f64> =
            batches.iter().flat_map(|rows| rows.column(1).as_primitive::<Float64Type>().values().to_vec()).collect();
        let want: Vec<f64> = norms[..200].iter().chain(&norms[500..]).copied().collect();
        assert_eq!(got, want);
        // The other column alone is whole.
        let (batches, broken) = read(&*table, &[0], 8192);
        let steps: i64 =
            batches.iter().flat_map(|rows| rows.column(0).as_primitive::<Int64Type>().values().to_vec()).sum();
        assert_eq!((steps, broken), (499_500, vec![]));
    }

    #[test]
    fn large_columns_are_read_in_windows() {
        let noise = |k: u64| f64::from_bits(k.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2);
        let values: Vec<f64> = (0..5_000_000).map(noise).collect();
        let array = Arc::new(arrow_array::Float64Array::from(values.clone())) as ArrayRef;
        let plain = properties().set_dictionary_enabled(false).set_max_row_group_row_count(Some(10_000_000)).build();
        let bytes = testing::parquet(&[RecordBatch::try_from_iter([("x", array)]).unwrap()], plain);
        let table = opened(open, &bytes, &Limits::default()).unwrap();
        assert_eq!(table.units(), 1);
        let mut at = 0;
        table
            .read(0, &[0], 1 << 16, &mut |rows| {
                let got = rows.column(0).as_primitive::<Float64Type>().values();
                assert_eq!(got[..], values[at..at + got.len()]);
                at += got.len();
                true
            })
            .unwrap();
        assert_eq!(at, values.len());
    }

    #[test]
    fn limits_are_told() {
        let bytes = testing::parquet(&[flat(500)], properties().build());
        let opened = |limits: Limits| opened(open, &bytes, &limits);
        let footer = opened(Limits { footer: 10, ..Limits::default() }).err().unwrap();
        assert_eq!((footer.code, footer.kind), ("limit", FaultKind::Limit));
        let columns = opened(Limits { columns: 10, ..Limits::default() }).err().unwrap();
        assert_eq!((columns.code, columns.kind), ("limit", FaultKind::Limit));
        let table = opened(Limits { page: 40, ..Limits::default() }).unwrap();
        let (_, broken) = read(&*table, &[table.schema().index_of("f64").unwrap()], 100);
        assert_eq!(broken[0].kind, FaultKind::Limit);
    }

    #[test]
    fn any_cut_and_any_byte_give_an_outcome() {
        let version_2 = properties().set_writer_version(WriterVersion::PARQUET_2_0);
        let files = [
            testing::parquet(&[flat(12)], properties().set_compression(Compression::SNAPPY).build()),
            testing::parquet(&[nested(20)], version_2.set_compression(Compression::GZIP(GzipLevel::default())).build()),
        ];
        let (mut whole, mut faulty, mut refused) = (0, 0, 0);
        for bytes in &files {
            // What is not compared is left out: pages are small where limits are.
            let found = testing::damage(open, bytes, &Limits { page: 1 << 20, ..Limits::default() });
            (whole, faulty, refused) = (whole + found.0, faulty + found.1, refused + found.2);
        }
        assert!(whole > 100 && faulty > 100 && refused > 1000, "{whole} {faulty} {refused}");
    }

    #[test]
    fn not_parquet() {
        let code = |bytes: &[u8]| opened(open, bytes, &Limits::default()).err().map(|broken| broken.code);
        assert_eq!(
            code(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"),
            Some("git-lfs-pointer")
        );
        assert_eq!(code(b"PAR1"), Some("cut-header"));
        assert_eq!(code(b""), Some("cut-header"));
        assert_eq!(code(b"PARE\0\0\0\0\0\0\0\0PARE"), Some("unsupported"));
    }

    use crate::read::table::testing::{Forged, Thrift, with_footer};

    /// The fault of a file whose only column is read, or why it does not open.
    fn refused(bytes: &[u8]) -> Broken {
        let limits = Limits { page: 1 << 20, ..Limits::default() };
        let table = match opened(open, bytes, &limits) {
            Ok(table) => table,
            Err(broken) => return broken,
        };
        let (_, mut broken) = read(&*table, &[0], 1000);
        assert_eq!(broken.len(), 1, "the attack was not noticed");
        broken.remove(0)
    }

    fn page(header: Thrift, bytes: &[u8]) -> Vec<(Thrift, Vec<u8>)> {
        vec![(header, bytes.to_vec())]
    }

    #[test]
    fn a_forged_file_is_sound_until_it_is_forged() {
        let ones = [1f64.to_le_bytes(), f64::NAN.to_le_bytes()].concat();
        let bytes = Forged { pages: page(Forged::data(2, 0, 16, 16), &ones), rows: 2, ..Forged::default() }.bytes();
        let table = opened(open, &bytes, &Limits::default()).unwrap();
        let (batches, broken) = read(&*table, &[0], 10);
        assert_eq!((batches[0].num_rows(), broken), (2, vec![]));
    }

    #[test]
    fn forged_footers() {
        let sound = Forged { pages: page(Forged::data(1, 0, 8, 8), &[0; 8]), ..Forged::default() };
        // 1: a footer longer than its file.
        let mut bytes = sound.bytes();
        let at = bytes.len() - 8;
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(refused(&bytes).kind, FaultKind::Unparsable);
        // 2: 2^40 rows in a file of some hundred bytes.
        assert_eq!(refused(&Forged { rows: 1 << 40, ..sound.clone() }.bytes()).code, "limit");
        // 3: as many rows as the plausible, and one value.
        assert_eq!(refused(&Forged { rows: 1000, ..sound.clone() }.bytes()).kind, FaultKind::Unparsable);
        // 4: a list of 2^31 elements of the schema, and none of them there.
        let footer = Thrift::default().i32(1, 1).list(2, 1 << 31, &[]);
        assert_eq!(refused(&with_footer(b"PAR1".to_vec(), &footer)).kind, FaultKind::Unparsable);
        // 5: groups nested 100,000 deep: recursion would leave the stack.
        let deep = vec![Thrift::default().binary(4, b"g").i32(5, 1); 100_000];
        let footer = Thrift::default().i32(1, 1).list(2, deep.len() as u64, &deep);
        assert!(refused(&with_footer(b"PAR1".to_vec(), &footer)).detail.contains("deep"));
        // 6: 2^31 row groups of nothing.
        let schema =
            [Thrift::default().binary(4, b"r").i32(5, 1), Thrift::default().i32(1, 5).i32(3, 0).binary(4, b"x")];
        let footer = Thrift::default().i32(1, 1).list(2, 2, &schema).i64(3, 0).list(4, 1 << 31, &[]);
        assert_eq!(refused(&with_footer(b"PAR1".to_vec(), &footer)).kind, FaultKind::Unparsable);
        // 7: an encrypted column.
        let chunk = Thrift::default().i64(2, 4).inner(8, &Thrift::default().inner(1, &Thrift::default()));
        let group = Thrift::default().list(1, 1, &[chunk]).i64(2, 0).i64(3, 1);
        let footer = Thrift::default().i32(1, 1).list(2, 2, &schema).i64(3, 1).list(4, 1, &[group]);
        assert_eq!(refused(&with_footer(b"PAR1".to_vec(), &footer)).code, "unsupported");
        // 8: an Arrow schema that is none is not followed.
        let arrow = Some("AAAAnot base64".to_owned());
        let table = opened(open, &Forged { arrow, ..sound }.bytes(), &Limits::default()).unwrap();
        assert_eq!(read(&*table, &[0], 10).1, []);
    }

    #[test]
    fn forged_pages() {
        let one = |physical: i32, codec: i32, header: Thrift, bytes: &[u8], rows: i64| {
            let length = if physical == 7 { 4 } else { 0 };
            Forged { physical, length, codec, pages: page(header, bytes), rows, ..Forged::default() }.bytes()
        };
        // 1: 2 GiB after decompression.
        assert_eq!(refused(&one(5, 6, Forged::data(1, 0, i32::MAX, 8), &[0; 8], 1)).kind, FaultKind::Limit);
        // 2: a page longer than its column.
        assert_eq!(refused(&one(5, 0, Forged::data(1, 0, 800, 800), &[0; 8], 1)).kind, FaultKind::Unparsable);
        // 3: a negative length.
        assert_eq!(refused(&one(5, 0, Forged::data(1, 0, 8, -8), &[0; 8], 1)).kind, FaultKind::Unparsable);
        // 4: more values than the footer says.
        assert_eq!(refused(&one(5, 0, Forged::data(9, 0, 8, 8), &[0; 8], 1)).kind, FaultKind::Unparsable);
        // 5: a dictionary of 2^31 values in eight bytes.
        for physical in [1, 2, 4, 5, 6, 7] {
            let broken = refused(&one(physical, 0, Forged::dictionary(i32::MAX, 8, 8), &[0; 8], 1));
            assert!(broken.detail.contains("more values than bytes"), "{}", broken.detail);
        }
        // 6: gzip that unfolds to 64 MiB where the header says a hundred bytes.
        let zeros = vec![0; 64 << 20];
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gzip, &zeros).unwrap();
        let gzip = gzip.finish().unwrap();
        let header = Forged::data(1, 0, 100, gzip.len() as i32);
        assert!(refused(&one(5, 2, header, &gzip, 1)).detail.contains("a page of 101 bytes"));
        // 7: and Zstandard, where the buffer grows as bytes come, and where it is as large as the header says.
        let frame = zstd::bulk::compress(&zeros, 1).unwrap();
        for plain in [100, 1 << 20] {
            let header = Forged::data(1, 0, plain, frame.len() as i32);
            assert_eq!(refused(&one(5, 6, header, &frame, 1)).kind, FaultKind::Unparsable);
        }
        // 8: LZ4 and Snappy whose own lengths lie.
        for codec in [1, 5, 7] {
            let header = Forged::data(1, 0, 1 << 20, 8);
            assert_eq!(
                refused(&one(5, codec, header, &[0xf0, 0xff, 0xff, 0xff, 0xff, 0, 0, 1], 1)).kind,
                FaultKind::Unparsable
            );
        }
        // 9: a codec of the future.
        assert!(refused(&one(5, 3, Forged::data(1, 0, 8, 8), &[0; 8], 1)).detail.contains("codec"));
        // 10: an encoding of the future.
        assert_eq!(refused(&one(5, 0, Forged::data(1, 77, 8, 8), &[0; 8], 1)).kind, FaultKind::Unparsable);
        // 11: lengths of texts by differences, 2^31 of them in a page of one value: all of them would be reserved.
        let many = [0x80, 0x01, 0x04, 0xff, 0xff, 0xff, 0xff, 0x07, 0x00];
        for encoding in [5, 6, 7] {
            let physical = if encoding == 5 { 1 } else { 6 };
            let broken = refused(&one(physical, 0, Forged::data(1, encoding, 9, 9), &many, 1));
            assert!(broken.detail.contains("differences"), "{}", broken.detail);
        }
        // 12: levels beyond the page.
        assert_eq!(refused(&one(6, 0, Forged::data(1, 6, 0, 0), &[], 1)).kind, FaultKind::Unparsable);
        // 13: a dictionary with one long text, repeated in every row.
        let text = [&40_000u32.to_le_bytes()[..], &[b'a'; 40_000]].concat();
        let broken = refused(&one(6, 0, Forged::dictionary(1, 40_004, 40_004), &text, 1000));
        assert_eq!(broken.kind, FaultKind::Limit);
        // 14: an index of more bits than there are.
        let pages = vec![(Forged::dictionary(1, 8, 8), vec![0; 8]), (Forged::data(4, 8, 3, 3), vec![0xff, 0x08, 0xff])];
        assert_eq!(refused(&Forged { pages, rows: 4, ..Forged::default() }.bytes()).kind, FaultKind::Unparsable);
        // 15: version 2 with more nulls than values.
        let data = Thrift::default().i32(1, 1).i32(2, 9).i32(3, 1).i32(4, 0).i32(5, 0).i32(6, 0);
        let header = Thrift::default().i32(1, 3).i32(2, 8).i32(3, 8).inner(8, &data);
        assert!(refused(&one(5, 0, header, &[0; 8], 1)).detail.contains("plausible"));
        // 16: prefixes that share all of the text before, a thousand times.
        let step = |value: i64, minimum: i64, count: u8| {
            let zigzag = |value: i64| (value << 1) as u64;
            let mut bytes = vec![0x80, 0x01, 0x04, count, 0];
            bytes.truncate(4);
            for mut number in [zigzag(value), zigzag(minimum)] {
                while number >= 0x80 {
                    bytes.push(number as u8 | 0x80);
                    number >>= 7;
                }
                bytes.push(number as u8);
            }
            bytes.extend([0; 4]);
            bytes
        };
        // Prefixes 0, 60000, 120000 ...; each suffix is 60000 bytes, of which the page has as many as it says.
        let texts = [step(0, 60_000, 8), step(60_000, 0, 8), vec![b'a'; 480_000]].concat();
        let header = Forged::data(8, 7, texts.len() as i32, texts.len() as i32);
        let broken = refused(&one(6, 0, header, &texts, 8));
        assert_eq!((broken.kind, broken.detail.contains("unfold")), (FaultKind::Limit, true), "{}", broken.detail);
        // 17: a value of 2 GiB of fixed length.
        let wide = Forged {
            physical: 7,
            length: i32::MAX,
            pages: page(Forged::data(1, 0, 8, 8), &[0; 8]),
            ..Forged::default()
        };
        assert_eq!(refused(&wide.bytes()).kind, FaultKind::Limit);
    }

    #[test]
    fn a_list_of_any_length_in_the_arrow_schema_reserves_nothing() {
        let item = Arc::new(Field::new("item", DataType::Float32, true));
        let schema = Schema::new(vec![Field::new("x", DataType::FixedSizeList(item, i32::MAX), true)]);
        let arrow = parquet::arrow::encode_arrow_schema(&schema);
        let lists = testing::nested(20).project(&[0]).unwrap();
        let renamed = RecordBatch::try_from_iter_with_nullable([("x", Arc::clone(lists.column(0)), true)]).unwrap();
        let pair = KeyValue::new(ARROW_SCHEMA_META_KEY.to_owned(), arrow);
        let options = parquet::arrow::arrow_writer::ArrowWriterOptions::new()
            .with_skip_arrow_metadata(true)
            .with_properties(properties().set_key_value_metadata(Some(vec![pair])).build());
        let mut writer =
            parquet::arrow::ArrowWriter::try_new_with_options(Vec::new(), renamed.schema(), options).unwrap();
        writer.write(&renamed).unwrap();
        let bytes = writer.into_inner().unwrap();
        let table = opened(open, &bytes, &Limits::default()).unwrap();
        let (_, broken) = read(&*table, &[0], 1000);
        let is_list = matches!(table.schema().field(0).data_type(), DataType::List(_));
        assert!(is_list == broken.is_empty(), "{:?} {broken:?}", table.schema());
    }

    #[test]
    fn a_column_of_an_unknown_type_costs_only_itself() {
        // An integer of a logical type of the future.
        let schema = [
            Thrift::default().binary(4, b"r").i32(5, 3),
            Thrift::default().i32(1, 5).i32(3, 0).binary(4, b"a"),
            Thrift::default()
                .i32(1, 1)
                .i32(3, 0)
                .binary(4, b"b")
                .inner(10, &Thrift::default().inner(99, &Thrift::default())),
            Thrift::default().i32(1, 5).i32(3, 0).binary(4, b"c"),
        ];
        let header = Forged::data(1, 0, 8, 8).done();
        let mut bytes = b"PAR1".to_vec();
        let mut chunks = Vec::new();
        for value in [1f64, 2.0, 3.0] {
            let at = bytes.len() as i64;
            bytes.extend(&header);
            bytes.extend(value.to_le_bytes());
            let column =
                Thrift::default().i32(1, 5).i32(4, 0).i64(5, 1).i64(6, 8).i64(7, bytes.len() as i64 - at).i64(9, at);
            chunks.push(Thrift::default().i64(2, at).inner(3, &column));
        }
        let group = Thrift::default().list(1, 3, &chunks).i64(2, 0).i64(3, 1);
        let footer = Thrift::default().i32(1, 1).list(2, 4, &schema).i64(3, 1).list(4, 1, &[group]);
        let table = opened(open, &with_footer(bytes, &footer), &Limits::default()).unwrap();
        let (batches, broken) = read(&*table, &[0, 2], 10);
        assert_eq!(broken, []);
        let values: Vec<f64> =
            batches[0].columns().iter().map(|column| column.as_primitive::<Float64Type>().value(0)).collect();
        assert_eq!(values, [1.0, 3.0]);
        let field = table.schema().field(1);
        if field.metadata().contains_key(UNSUPPORTED) {
            let (_, broken) = read(&*table, &[1], 10);
            assert_eq!((broken[0].code, broken[0].kind), ("unsupported", FaultKind::Version));
            assert!(broken[0].detail.contains("column b"));
        } else {
            panic!("{field:?} is of a known type");
        }
    }
}
