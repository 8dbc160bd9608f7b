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
    let plain = FileMetaData::new(1, 0, None, None, Arc::clone(&descriptor), None);
    Ok(Box::new(ParquetFile {
        ranges,
        footer,
        schema: Arc::new(Schema::new(fields)),
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
            _ => group.chunks[leaf].nulls,
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
            let mut stopped = false;
            let result = self.read_from(unit, columns, batch, done, &mut |rows| {
                done += rows.num_rows() as u64;
                stopped = !give(rows);
                !stopped
            });
            match result {
                _ if stopped => return Ok(()),
                Ok(()) if done < group.rows => {
                    let detail = format!("{done} rows in a row group of {}", group.rows);
                    return Err(Broken::damage(offset, detail));
                }
                Ok(()) => return Ok(()),
                // The batch that met the damage was lost with it: what stands before is read again in smaller ones.
                Err(broken) if broken.kind == FaultKind::Unparsable && batch > 1 => batch = (batch / 16).max(1),
                Err(broken) => return Err(broken),
            }
        }
    }
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
    use crate::read::table::testing::{self, exhaust, flat, nested, opened, read};
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
}
