//! Wanted columns of a Parquet file, row by row in batches, over [`Ranges`].
//!
//! One read for the footer (and the whole file where it is small), one for each stretch of wanted columns. Decoding and
//! its guards are in [`parquet_pages`](crate::wire::parquet_pages); decompression is here: Zstandard by a context that is
//! kept from page to page, Snappy and gzip after the page's header was held against the file and the limits.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::broken::Broken;
use super::{Ranges, is_git_lfs_pointer};
use crate::model::{FaultKind, Limits};
use crate::wire::parquet_pages::{
    Batch, Chunk, Codec, Decoder, ENCRYPTED, Footer, Leaf, PAGE_HEADER, PageHeader, PageKind, TAIL, footer_length,
};

/// Read at the end of a file at first: footers of fifty columns take about 10 KiB.
const FIRST_READ: u64 = 64 << 10;
/// Wanted columns of a row group that are read before decoding; larger ones are read page by page.
const PREFETCH: u64 = 4 << 20;
/// Unwanted bytes between wanted ones that cost less than a second read.
const GAP: u64 = 16 << 10;
/// Read at once within a large column.
const READ_AHEAD: u64 = 256 << 10;
/// Rows decoded at once.
const BATCH: usize = 1024;
/// Bytes reserved for a decompressed page by its header; beyond, the buffer grows as bytes come.
pub(super) const TRUSTED_PAGE: usize = 1 << 20;
/// Largest ratio of Snappy: a copy of 64 bytes takes three.
const LARGEST_RATIO: usize = 22;
/// Rows that a file of no size may hold, and more for each of its bytes. A step column alone takes a bit a row.
pub(super) const ROWS_FREE: u64 = 1 << 20;
pub(super) const ROWS_PER_BYTE: u64 = 64;

/// Bytes of the file that are at hand.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    pub at: u64,
    pub bytes: Bytes,
}

impl Window {
    /// The bytes of a range, if they are all at hand.
    pub fn slice(&self, range: &Range<u64>) -> Option<Bytes> {
        let from = range.start.checked_sub(self.at)?;
        let to = range.end.checked_sub(self.at)?;
        (to <= self.bytes.len() as u64).then(|| self.bytes.slice(from as usize..to as usize))
    }
}

/// The end of a file, read and held against the file.
pub(super) struct End {
    /// The last bytes of the file.
    tail: Window,
    /// The footer as it stands.
    pub bytes: Bytes,
    /// What it says.
    pub footer: Footer,
    /// Its offset.
    pub at: u64,
}

impl End {
    /// Reads it; nothing of it is believed that the file's size or the limits contradict.
    pub fn read(ranges: &dyn Ranges, limits: &Limits) -> Result<Self, Broken> {
        let size = ranges.size();
        let from = size.saturating_sub(FIRST_READ);
        let bytes = ranges.read(from..size).map_err(|error| Broken::io(from, &error))?;
        let cut = |detail: &str| Broken::new("cut-header", FaultKind::Truncated, size, detail);
        let Some(tail) = bytes.last_chunk::<TAIL>() else {
            return Err(cut(&format!("the file ends after {size} bytes: want a Parquet footer")));
        };
        let length = footer_length(tail).map_err(|damage| {
            if &tail[4..] == b"PARE" {
                Broken::new("unsupported", FaultKind::Version, 0, "an encrypted Parquet file")
            } else if is_git_lfs_pointer(&bytes) {
                Broken::new("git-lfs-pointer", FaultKind::Unparsable, 0, "a Git LFS pointer in place of the file")
            } else {
                cut(damage.what)
            }
        })?;
        let body = size.checked_sub(TAIL as u64 + length).filter(|body| *body >= TAIL as u64 / 2);
        let Some(body) = body else {
            return Err(Broken::damage(size - TAIL as u64, format!("a footer of {length} bytes in a file of {size}")));
        };
        if length > limits.footer {
            let detail = format!("a footer of {length} bytes, at most {} are read", limits.footer);
            return Err(Broken::new("limit", FaultKind::Limit, body, detail));
        }
        let tail = Window { at: from, bytes };
        let range = body..body + length;
        let bytes = match tail.slice(&range) {
            Some(bytes) => bytes,
            None => ranges.read(range).map_err(|error| Broken::io(body, &error))?,
        };
        let footer = Footer::parse(&bytes, body).map_err(|damage| match damage.what {
            ENCRYPTED => Broken::new("unsupported", FaultKind::Version, body, "an encrypted Parquet file"),
            _ => Broken::damage(body + damage.at as u64, format!("broken footer: {damage}")),
        })?;
        let rows = footer.groups.iter().fold(0u64, |rows, group| rows.saturating_add(group.rows));
        if rows > ROWS_FREE + size.saturating_mul(ROWS_PER_BYTE) {
            let detail = format!("{rows} rows in a file of {size} bytes are not plausible");
            return Err(Broken::new("limit", FaultKind::Limit, body, detail));
        }
        Ok(Self { tail, bytes, footer, at: body })
    }
}

/// An open file.
pub(super) struct Table {
    ranges: Arc<dyn Ranges>,
    tail: Window,
    footer: Footer,
}

impl Table {
    /// Reads the footer.
    pub fn open(ranges: Arc<dyn Ranges>, limits: &Limits) -> Result<Self, Broken> {
        let End { tail, footer, .. } = End::read(&*ranges, limits)?;
        Ok(Self { ranges, tail, footer })
    }

    /// The columns.
    pub fn leaves(&self) -> &[Leaf] {
        &self.footer.leaves
    }

    /// Gives the rows in batches to `rows`: a batch a wanted leaf, and the number of rows; it answers whether to go on.
    /// Wanted leaves must be numbers and not of type Null. A damaged page costs its column the page's rows, a damaged
    /// page header the rest of the row group; both are told to `faults` with the leaf.
    pub fn scan(
        &self,
        wanted: &[usize],
        scratch: &mut Scratch,
        limits: &Limits,
        mut faults: impl FnMut(usize, Broken),
        mut rows: impl FnMut(&[Batch], usize) -> bool,
    ) {
        scratch.columns.resize_with(scratch.columns.len().max(wanted.len()), ColumnState::default);
        scratch.batches.resize_with(wanted.len(), Batch::default);
        let Scratch { columns, batches, zstd } = scratch;
        let columns = &mut columns[..wanted.len()];
        for group in &self.footer.groups {
            let windows = self.prefetch(wanted.iter().map(|leaf| &group.chunks[*leaf]));
            for (column, leaf) in columns.iter_mut().zip(wanted) {
                let chunk = &group.chunks[*leaf];
                column.start(&self.footer.leaves[*leaf], chunk, group.rows);
                let range = chunk.offset..chunk.offset + chunk.length;
                column.window =
                    windows.iter().find(|window| window.slice(&range).is_some()).cloned().unwrap_or_default();
                if chunk.values != group.rows {
                    let detail = format!("{} values of {} in {} rows", chunk.values, self.name(*leaf), group.rows);
                    faults(*leaf, Broken::damage(chunk.offset, detail));
                }
            }
            let mut left = group.rows;
            while left > 0 {
                let count = left.min(BATCH as u64) as usize;
                for ((column, batch), leaf) in columns.iter_mut().zip(&mut *batches).zip(wanted) {
                    batch.clear();
                    column.fill(count, batch, &Pages { table: self, limits, leaf: *leaf }, zstd, &mut faults);
                }
                if !rows(batches, count) {
                    return;
                }
                left -= count as u64;
            }
        }
    }

    fn name(&self, leaf: usize) -> &str {
        &self.footer.leaves[leaf].name
    }

    /// Reads the chunks, neighbours together, if they are small. What cannot be read here is read again, and its fault
    /// told, where it is needed.
    fn prefetch<'a>(&'a self, chunks: impl Iterator<Item = &'a Chunk>) -> Vec<Window> {
        let mut windows = vec![self.tail.clone()];
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for chunk in chunks {
            let range = chunk.offset..chunk.offset + chunk.length;
            if self.tail.slice(&range).is_none() {
                ranges.push(range);
            }
        }
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, range| {
            let near = next.start <= range.end.saturating_add(GAP);
            if near {
                range.end = range.end.max(next.end);
            }
            near
        });
        if ranges.iter().fold(0u64, |sum, range| sum.saturating_add(range.end - range.start)) <= PREFETCH {
            for range in ranges {
                if let Ok(bytes) = self.ranges.read(range.clone()) {
                    windows.push(Window { at: range.start, bytes });
                }
            }
        }
        windows
    }
}

/// Buffers that are reused from file to file.
#[derive(Default)]
pub(super) struct Scratch {
    columns: Vec<ColumnState>,
    batches: Vec<Batch>,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

/// What a column needs to find its pages.
struct Pages<'a> {
    table: &'a Table,
    limits: &'a Limits,
    leaf: usize,
}

/// One wanted column of the row group that is read.
struct ColumnState {
    decoder: Decoder,
    codec: Codec,
    /// Offset of the next page.
    at: u64,
    end: u64,
    /// Values in the pages to come.
    values: u64,
    window: Window,
    /// The open page where it had to be decompressed by us.
    page: Vec<u8>,
    /// The open page else.
    raw: Option<Bytes>,
    /// Nulls still to give for values that were lost.
    lost: u64,
}

impl Default for ColumnState {
    fn default() -> Self {
        Self {
            decoder: Decoder::new(crate::wire::parquet_pages::Physical::Double, false),
            codec: Codec::None,
            at: 0,
            end: 0,
            values: 0,
            window: Window::default(),
            page: Vec::new(),
            raw: None,
            lost: 0,
        }
    }
}

impl ColumnState {
    fn start(&mut self, leaf: &Leaf, chunk: &Chunk, rows: u64) {
        match leaf.physical {
            Some(physical) => self.decoder.restart(physical, leaf.optional),
            None => self.decoder.close(),
        }
        self.codec = chunk.codec;
        self.at = chunk.offset;
        self.end = chunk.offset + chunk.length;
        self.values = chunk.values.min(rows);
        self.raw = None;
        self.lost = 0;
    }

    /// Appends exactly `count` values, nulls in place of lost ones.
    fn fill(
        &mut self,
        count: usize,
        into: &mut Batch,
        pages: &Pages<'_>,
        zstd: &mut Option<zstd::bulk::Decompressor<'static>>,
        faults: &mut impl FnMut(usize, Broken),
    ) {
        while into.values.len() < count {
            let missing = count - into.values.len();
            if self.lost > 0 {
                let nulls = self.lost.min(missing as u64);
                into.push_nulls(nulls as usize);
                self.lost -= nulls;
                continue;
            }
            let left = self.decoder.left();
            if left > 0 {
                let page = self.raw.as_deref().unwrap_or(&self.page);
                if let Err(damage) = self.decoder.read(page, missing, into) {
                    self.lost = left as u64;
                    let detail = format!("column {}: {damage}", pages.table.name(pages.leaf));
                    faults(pages.leaf, Broken::damage(self.at, detail));
                }
                continue;
            }
            if self.values == 0 {
                into.push_nulls(missing);
                return;
            }
            if let Err(mut broken) = self.next_page(pages, zstd) {
                if self.lost == 0 {
                    // Where the next page begins is not known: all that were to come are lost.
                    self.lost = std::mem::take(&mut self.values);
                }
                broken.detail = format!("column {}: {}", pages.table.name(pages.leaf), broken.detail);
                faults(pages.leaf, broken);
            }
        }
    }

    /// Opens the next page. On an error after its header, [`lost`](Self::lost) is the number of its values.
    fn next_page(
        &mut self,
        pages: &Pages<'_>,
        zstd: &mut Option<zstd::bulk::Decompressor<'static>>,
    ) -> Result<(), Broken> {
        let begin = self.at;
        if begin >= self.end {
            return Err(Broken::damage(begin, "fewer values than the footer says"));
        }
        let head = self.bytes(begin..self.end.min(begin + PAGE_HEADER as u64), pages)?;
        let (header, length) =
            PageHeader::parse(&head).map_err(|damage| Broken::damage(begin + damage.at as u64, damage.what))?;
        let start = begin + length as u64;
        let end = start + u64::from(header.stored);
        if end > self.end {
            return Err(Broken::damage(begin, "a page reaches beyond its column"));
        }
        self.at = end;
        let values = match header.kind {
            PageKind::Data { values, .. } | PageKind::DataV2 { values, .. } => u64::from(values),
            PageKind::Dictionary { .. } => 0,
            PageKind::Other => return Ok(()),
        };
        if values > self.values {
            return Err(Broken::damage(begin, "more values than the footer says"));
        }
        self.values -= values;
        self.lost = values;
        let largest = u64::from(header.plain.max(header.stored));
        if largest > pages.limits.page {
            let detail = format!("a page of {largest} bytes, at most {} are read", pages.limits.page);
            return Err(Broken::new("limit", FaultKind::Limit, begin, detail));
        }
        let whole = self.bytes(begin..end, pages)?;
        self.decompress(&header, &whole, length, zstd).map_err(|detail| Broken::damage(start, detail))?;
        let page = self.raw.as_deref().unwrap_or(&self.page);
        match header.kind {
            PageKind::Dictionary { values } => self.decoder.dictionary(page, values),
            kind => self.decoder.open(page, kind),
        }
        .map_err(|damage| Broken::damage(start, damage.what))?;
        self.lost = 0;
        Ok(())
    }

    /// Bytes of the file, with more of the column behind them.
    fn bytes(&mut self, range: Range<u64>, pages: &Pages<'_>) -> Result<Bytes, Broken> {
        if let Some(bytes) = self.window.slice(&range) {
            return Ok(bytes);
        }
        let ahead = range.start..range.end.max(self.end.min(range.start + READ_AHEAD));
        let bytes = pages.table.ranges.read(ahead).map_err(|error| Broken::io(range.start, &error))?;
        self.window = Window { at: range.start, bytes };
        self.window.slice(&range).ok_or_else(|| {
            Broken::new("io-error", FaultKind::Io, range.start, "the file is shorter than when it was opened")
        })
    }

    /// Makes [`raw`](Self::raw) or [`page`](Self::page) the plain bytes of a page, given with its header of `length`.
    fn decompress(
        &mut self,
        header: &PageHeader,
        whole: &Bytes,
        length: usize,
        zstd: &mut Option<zstd::bulk::Decompressor<'static>>,
    ) -> Result<(), String> {
        let stored = whole.slice(length..);
        self.raw = None;
        self.page.clear();
        let (levels, compressed) = match header.kind {
            PageKind::DataV2 { levels, compressed, .. } => (levels as usize, compressed),
            _ => (0, true),
        };
        let plain = header.plain as usize;
        match self.codec {
            Codec::Unknown | Codec::Brotli | Codec::Lz4 | Codec::Lz4Raw => {
                return Err("compressed by a codec that is not read".to_owned());
            }
            Codec::None => self.raw = Some(stored),
            _ if !compressed => self.raw = Some(stored),
            // A page of nulls: nothing was compressed.
            _ if plain == levels => self.page.extend_from_slice(&stored[..levels]),
            Codec::Zstd => {
                self.page.extend_from_slice(&stored[..levels]);
                unzstd(&stored[levels..], plain, TRUSTED_PAGE, &mut self.page, zstd)
                    .map_err(|error| error.to_string())?;
            }
            Codec::Snappy => {
                self.page.extend_from_slice(&stored[..levels]);
                unsnap(&stored[levels..], plain, &mut self.page)?;
            }
            Codec::Gzip => {
                self.page.extend_from_slice(&stored[..levels]);
                gunzip(&stored[levels..], plain, &mut self.page)?;
            }
        }
        let got = self.raw.as_deref().unwrap_or(&self.page).len();
        if got != plain {
            return Err(format!("a page of {got} bytes, its header says {plain}"));
        }
        Ok(())
    }
}

/// Appends what a Zstandard frame holds until `into` has `plain` bytes; more is an error. Up to `trusted` bytes the
/// buffer is reserved at once.
pub(super) fn unzstd(
    frame: &[u8],
    plain: usize,
    trusted: usize,
    into: &mut Vec<u8>,
    context: &mut Option<zstd::bulk::Decompressor<'static>>,
) -> std::io::Result<()> {
    if plain > trusted {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(frame)?;
        decoder.window_log_max(24)?;
        decoder.take((plain - into.len()) as u64 + 1).read_to_end(into)?;
        return Ok(());
    }
    let context = match context {
        Some(context) => context,
        None => context.insert(zstd::bulk::Decompressor::new()?),
    };
    into.reserve(plain - into.len());
    let mut cursor = std::io::Cursor::new(into);
    cursor.set_position(cursor.get_ref().len() as u64);
    context.decompress_to_buffer(frame, &mut cursor)?;
    Ok(())
}

/// Appends what a Snappy block holds: `plain` bytes less what `into` has, or an error.
pub(super) fn unsnap(block: &[u8], plain: usize, into: &mut Vec<u8>) -> Result<(), String> {
    plausible(plain, block.len())?;
    let from = into.len();
    if snap::raw::decompress_len(block).map_err(|error| error.to_string())? != plain - from {
        return Err("a page of another size than its header says".to_owned());
    }
    into.resize(plain, 0);
    snap::raw::Decoder::new().decompress(block, &mut into[from..]).map_err(|error| error.to_string())?;
    Ok(())
}

/// Appends what gzip members hold until `into` has `plain` bytes; one more is read so that the caller sees a longer page.
pub(super) fn gunzip(members: &[u8], plain: usize, into: &mut Vec<u8>) -> Result<(), String> {
    let more = (plain - into.len()) as u64 + 1;
    flate2::read::MultiGzDecoder::new(members).take(more).read_to_end(into).map_err(|error| error.to_string())?;
    Ok(())
}

/// Snappy blocks are decompressed at once: their size is held against what so many bytes can hold.
fn plausible(plain: usize, stored: usize) -> Result<(), String> {
    if plain > TRUSTED_PAGE + stored * LARGEST_RATIO {
        return Err(format!("a page of {plain} bytes from {stored} is not plausible"));
    }
    Ok(())
}

/// Writes Parquet files for tests, by the `parquet` crate.
#[cfg(test)]
pub(super) mod writing {
    use std::sync::Arc;

    use parquet::basic::{LogicalType, Repetition, Type as PhysicalType};
    use parquet::data_type::{BoolType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
    use parquet::schema::types::Type;

    /// A column of some type; `None` is null.
    #[derive(Clone, Debug)]
    pub enum Cells {
        Bool(Vec<Option<bool>>),
        I32(Vec<Option<i32>>),
        I64(Vec<Option<i64>>),
        F32(Vec<Option<f32>>),
        F64(Vec<Option<f64>>),
        /// Of type Null: so many rows.
        Null(usize),
    }

    impl Cells {
        /// Doubles without nulls.
        pub fn doubles(values: impl IntoIterator<Item = f64>) -> Self {
            Self::F64(values.into_iter().map(Some).collect())
        }

        /// Integers without nulls.
        pub fn integers(values: impl IntoIterator<Item = i64>) -> Self {
            Self::I64(values.into_iter().map(Some).collect())
        }

        pub fn len(&self) -> usize {
            match self {
                Self::Bool(cells) => cells.len(),
                Self::I32(cells) => cells.len(),
                Self::I64(cells) => cells.len(),
                Self::F32(cells) => cells.len(),
                Self::F64(cells) => cells.len(),
                Self::Null(rows) => *rows,
            }
        }

        /// The cell as a reader gives it.
        pub fn get(&self, row: usize) -> Option<f64> {
            match self {
                Self::Bool(cells) => cells[row].map(|value| f64::from(u8::from(value))),
                Self::I32(cells) => cells[row].map(f64::from),
                Self::I64(cells) => cells[row].map(|value| value as f64),
                Self::F32(cells) => cells[row].map(f64::from),
                Self::F64(cells) => cells[row],
                Self::Null(_) => None,
            }
        }

        fn slice(&self, rows: std::ops::Range<usize>) -> Self {
            match self {
                Self::Bool(cells) => Self::Bool(cells[rows].to_vec()),
                Self::I32(cells) => Self::I32(cells[rows].to_vec()),
                Self::I64(cells) => Self::I64(cells[rows].to_vec()),
                Self::F32(cells) => Self::F32(cells[rows].to_vec()),
                Self::F64(cells) => Self::F64(cells[rows].to_vec()),
                Self::Null(_) => Self::Null(rows.len()),
            }
        }

        fn physical(&self) -> PhysicalType {
            match self {
                Self::Bool(_) => PhysicalType::BOOLEAN,
                Self::I32(_) | Self::Null(_) => PhysicalType::INT32,
                Self::I64(_) => PhysicalType::INT64,
                Self::F32(_) => PhysicalType::FLOAT,
                Self::F64(_) => PhysicalType::DOUBLE,
            }
        }

        fn write<W: std::io::Write + Send>(&self, group: &mut SerializedRowGroupWriter<'_, W>) {
            match self {
                Self::Bool(cells) => write::<BoolType, W>(group, cells),
                Self::I32(cells) => write::<Int32Type, W>(group, cells),
                Self::I64(cells) => write::<Int64Type, W>(group, cells),
                Self::F32(cells) => write::<FloatType, W>(group, cells),
                Self::F64(cells) => write::<DoubleType, W>(group, cells),
                Self::Null(rows) => write::<Int32Type, W>(group, &vec![None; *rows]),
            }
        }
    }

    fn write<T: DataType, W: std::io::Write + Send>(
        group: &mut SerializedRowGroupWriter<'_, W>,
        cells: &[Option<T::T>],
    ) {
        let mut column = group.next_column().unwrap().unwrap();
        let levels: Vec<i16> = cells.iter().map(|cell| i16::from(cell.is_some())).collect();
        let values: Vec<T::T> = cells.iter().flatten().cloned().collect();
        column.typed::<T>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
    }

    /// A file with row groups of at most `rows`.
    pub fn file(columns: &[(&str, Cells)], properties: WriterProperties, rows: usize) -> Vec<u8> {
        let fields = columns.iter().map(|(name, cells)| {
            let logical = matches!(cells, Cells::Null(_)).then_some(LogicalType::Unknown);
            let field = Type::primitive_type_builder(name, cells.physical())
                .with_repetition(Repetition::OPTIONAL)
                .with_logical_type(logical);
            Arc::new(field.build().unwrap())
        });
        let schema = Type::group_type_builder("schema").with_fields(fields.collect()).build().unwrap();
        let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties)).unwrap();
        let total = columns[0].1.len();
        for start in (0..total.max(1)).step_by(rows) {
            let mut group = writer.next_row_group().unwrap();
            for (_, cells) in columns {
                cells.slice(start..total.min(start + rows)).write(&mut group);
            }
            group.close().unwrap();
        }
        writer.into_inner().unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::writing::{Cells, file};
    use super::*;
    use crate::read::Files;
    use crate::read::testing::Memory;
    use parquet::basic::{Compression, Encoding};
    use parquet::file::properties::{WriterProperties, WriterVersion};
    use proptest::prelude::*;

    fn open(bytes: &[u8], limits: &Limits) -> Result<Table, Broken> {
        let memory = Memory::new([("t", bytes)]);
        Table::open(memory.ranges(&memory.part("t")).unwrap(), limits)
    }

    /// Cells by column and row.
    type Grid = Vec<Vec<Option<f64>>>;

    /// Every cell of every numeric column, and the faults.
    fn cells(bytes: &[u8], limits: &Limits) -> Result<(Grid, Vec<Broken>), Broken> {
        let table = open(bytes, limits)?;
        let numeric = |leaf: &Leaf| leaf.physical.is_some() && !leaf.null;
        let wanted: Vec<usize> = (0..table.leaves().len()).filter(|leaf| numeric(&table.leaves()[*leaf])).collect();
        let mut columns = vec![Vec::new(); wanted.len()];
        let mut faults = Vec::new();
        table.scan(
            &wanted,
            &mut Scratch::default(),
            limits,
            |_, broken| faults.push(broken),
            |batches, count| {
                for (column, batch) in columns.iter_mut().zip(batches) {
                    assert_eq!(batch.values.len(), count);
                    column.extend((0..count).map(|row| batch.get(row)));
                }
                columns[0].len() < 1 << 20
            },
        );
        Ok((columns, faults))
    }

    fn compressions() -> impl Strategy<Value = Compression> {
        prop_oneof![
            3 => Just(Compression::ZSTD(Default::default())),
            1 => Just(Compression::UNCOMPRESSED),
            1 => Just(Compression::SNAPPY),
            1 => Just(Compression::GZIP(Default::default())),
        ]
    }

    /// Runs, repetitions, noise and nulls.
    fn doubles() -> impl Strategy<Value = Vec<Option<f64>>> {
        let cell = prop_oneof![
            4 => any::<f64>().prop_map(Some),
            3 => (0u8..4).prop_map(|value| Some(f64::from(value))),
            1 => Just(Some(f64::NAN)),
            2 => Just(None),
        ];
        let run = (cell, prop_oneof![3 => 1usize..3, 1 => 8usize..300]);
        prop::collection::vec(run, 0..60)
            .prop_map(|runs| runs.into_iter().flat_map(|(cell, count)| std::iter::repeat_n(cell, count)).collect())
    }

    fn bits(cells: &[Option<f64>]) -> Vec<Option<u64>> {
        cells.iter().map(|cell| cell.map(f64::to_bits)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn what_was_written_is_read(
            values in doubles(),
            compression in compressions(),
            encoding in prop_oneof![Just(None), Just(Some(Encoding::PLAIN)), Just(Some(Encoding::DELTA_BINARY_PACKED)), Just(Some(Encoding::BYTE_STREAM_SPLIT))],
            version_2 in any::<bool>(),
            page_rows in 1usize..500,
            group_rows in 1usize..3000,
        ) {
            let columns = [
                ("f64", Cells::F64(values.clone())),
                ("null", Cells::Null(values.len())),
                ("i64", Cells::I64(values.iter().map(|cell| cell.map(|value| value.to_bits() as i64 >> 11)).collect())),
                ("i32", Cells::I32(values.iter().map(|cell| cell.map(|value| value.to_bits() as i32)).collect())),
                ("f32", Cells::F32(values.iter().map(|cell| cell.map(|value| value as f32)).collect())),
                ("bool", Cells::Bool(values.iter().map(|cell| cell.map(|value| value > 1.0)).collect())),
            ];
            let mut properties = WriterProperties::builder()
                .set_compression(compression)
                .set_data_page_row_count_limit(page_rows)
                .set_write_batch_size(page_rows)
                .set_dictionary_page_size_limit(600)
                .set_writer_version(if version_2 { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 });
            if let Some(encoding) = encoding {
                properties = properties.set_dictionary_enabled(false);
                for (name, cells) in &columns {
                    let fits = match (encoding, cells) {
                        (Encoding::PLAIN, _) => true,
                        (Encoding::DELTA_BINARY_PACKED, Cells::I32(_) | Cells::I64(_)) => true,
                        (Encoding::BYTE_STREAM_SPLIT, cells) => !matches!(cells, Cells::Bool(_) | Cells::Null(_)),
                        _ => false,
                    };
                    if fits {
                        properties = properties.set_column_encoding((*name).into(), encoding);
                    }
                }
            }
            let bytes = file(&columns, properties.build(), group_rows);
            let (got, faults) = cells(&bytes, &Limits::default()).unwrap();
            prop_assert_eq!(faults, vec![]);
            let numeric = columns.iter().filter(|(_, cells)| !matches!(cells, Cells::Null(_)));
            for (got, (name, cells)) in got.iter().zip(numeric) {
                let want: Vec<Option<f64>> = (0..cells.len()).map(|row| cells.get(row)).collect();
                prop_assert_eq!(bits(got), bits(&want), "{}", name);
            }
        }
    }

    /// Small files of several kinds, to be damaged.
    fn fixtures() -> Vec<Vec<u8>> {
        let rows = 300;
        let columns = [
            ("step", Cells::integers(0..rows)),
            ("grad_norm", Cells::F64((0..rows).map(|k| (k % 7 != 0).then_some(1.0 / k as f64)).collect())),
            ("inf_count", Cells::integers((0..rows).map(|k| k / 100))),
        ];
        let mut files = Vec::new();
        for (compression, version, dictionary) in [
            (Compression::ZSTD(Default::default()), WriterVersion::PARQUET_1_0, true),
            (Compression::UNCOMPRESSED, WriterVersion::PARQUET_2_0, false),
            (Compression::SNAPPY, WriterVersion::PARQUET_2_0, true),
            (Compression::GZIP(Default::default()), WriterVersion::PARQUET_1_0, true),
        ] {
            let properties = WriterProperties::builder()
                .set_compression(compression)
                .set_writer_version(version)
                .set_dictionary_enabled(dictionary)
                .set_data_page_row_count_limit(100)
                .set_write_batch_size(100);
            files.push(file(&columns, properties.build(), 200));
        }
        files
    }

    #[test]
    fn every_cut_ends_in_a_result() {
        let limits = Limits::default();
        let mut seen = 0;
        for bytes in fixtures() {
            for end in 0..bytes.len() {
                let broken = cells(&bytes[..end], &limits).unwrap_err();
                assert_eq!((broken.code, broken.kind), ("cut-header", FaultKind::Truncated));
                seen += 1;
            }
        }
        assert!(seen > 5_000);
    }

    #[test]
    fn every_flip_ends_in_a_result_of_bounded_size() {
        let limits = Limits::default();
        let (mut whole, mut faulty, mut refused) = (0, 0, 0);
        for mut bytes in fixtures() {
            for at in 0..bytes.len() {
                for mask in [0x01, 0x80, 0xff] {
                    bytes[at] ^= mask;
                    match cells(&bytes, &limits) {
                        Ok((_, faults)) if faults.is_empty() => whole += 1,
                        Ok(_) => faulty += 1,
                        Err(_) => refused += 1,
                    }
                    bytes[at] ^= mask;
                }
            }
        }
        assert!(whole > 0 && faulty > 100 && refused > 100, "{whole} {faulty} {refused}");
    }

    #[test]
    fn a_damaged_page_costs_its_rows_only() {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(Default::default()))
            .set_dictionary_enabled(false)
            .set_data_page_row_count_limit(100)
            .set_write_batch_size(100);
        let values = |k: i64| 1.0 / (k as f64 + 1.0);
        let columns = [("step", Cells::integers(0..1000)), ("grad_norm", Cells::doubles((0..1000).map(values)))];
        let mut bytes = file(&columns, properties.build(), 1000);
        // Zstandard frames begin with this; the second of `grad_norm` is damaged.
        let frames: Vec<usize> = memchr::memmem::find_iter(&bytes, &[0x28, 0xb5, 0x2f, 0xfd]).collect();
        assert_eq!(frames.len(), 20);
        bytes[frames[11]] ^= 0xff;
        let (got, faults) = cells(&bytes, &Limits::default()).unwrap();
        assert_eq!(faults.len(), 1);
        assert!(faults[0].detail.contains("grad_norm"), "{}", faults[0].detail);
        let steps: Vec<Option<f64>> = (0..1000).map(|row| Some(f64::from(row))).collect();
        let norms: Vec<Option<f64>> = (0..1000).map(|row| (row / 100 != 1).then_some(values(row))).collect();
        assert_eq!(got, [steps, norms]);
    }

    #[test]
    fn limits_are_faults() {
        let bytes = &fixtures()[0];
        let (got, faults) = cells(bytes, &Limits { page: 40, ..Limits::default() }).unwrap();
        assert!(faults.iter().any(|broken| broken.kind == FaultKind::Limit));
        assert_eq!(got[0].len(), 300);
        let broken = cells(bytes, &Limits { footer: 10, ..Limits::default() }).unwrap_err();
        assert_eq!((broken.code, broken.kind), ("limit", FaultKind::Limit));
    }

    #[test]
    fn large_columns_are_read_page_by_page() {
        let noise = |k: i64| f64::from_bits((k as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2);
        let rows = 400_000;
        let columns = [("step", Cells::integers(0..rows)), ("grad_norm", Cells::doubles((0..rows).map(noise)))];
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(Default::default()))
            .set_data_page_size_limit(3 << 20)
            .set_data_page_row_count_limit(1 << 20);
        let bytes = file(&columns, properties.build(), rows as usize);
        let (got, faults) = cells(&bytes, &Limits::default()).unwrap();
        assert_eq!(faults, []);
        assert!((0..rows as usize).all(|row| got[1][row] == Some(noise(row as i64))));
    }

    #[test]
    fn a_pointer_is_told_from_a_cut_file() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n";
        assert_eq!(cells(pointer, &Limits::default()).unwrap_err().code, "git-lfs-pointer");
        assert_eq!(cells(b"PAR1", &Limits::default()).unwrap_err().code, "cut-header");
        assert_eq!(cells(b"\xff\xff\xff\xffPAR1", &Limits::default()).unwrap_err().code, "cut-header");
    }
}
