//! The pages of one column in one row group of a Parquet file, decompressed, for the `parquet` crate to decode.
//!
//! The crate's own page reader believes headers: gzip and Brotli grow to what the bytes unfold to, dictionaries and
//! lengths are reserved by their counts. Here every count is held against the page, the footer and the limits first.

use std::io::Read;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use parquet::basic::{Encoding, Type as Physical};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};

use crate::model::FaultKind;
use crate::read::Ranges;
use crate::read::broken::Broken;
use crate::read::parquet_columns::{Window, gunzip, unsnap, unzstd};
use crate::wire::parquet_pages::{Chunk, Codec, PAGE_HEADER, PageHeader, PageKind, UNFOLDED, check_differences};

/// Chunks up to this size are read at once.
const WHOLE_CHUNK: u64 = 32 << 20;
/// Read at once within larger ones.
const READ_AHEAD: u64 = 8 << 20;
/// Longest header of a page: its statistics may hold long texts.
const LONG_HEADER: u64 = 16 << 20;
/// Bytes reserved for a decompressed page by its header; beyond, the buffer grows as bytes come.
const TRUSTED_PAGE: usize = 8 << 20;
/// Largest ratio of LZ4: a byte of a length stands for 255.
const LZ4_RATIO: usize = 255;

/// What a column is, as far as its pages tell nothing of it.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// For faults.
    pub name: String,
    /// What is stored.
    pub physical: Physical,
    /// Bytes of a value of fixed length.
    pub length: u64,
    /// Whether definition levels stand before the values.
    pub has_definition: bool,
    /// Whether repetition levels do.
    pub has_repetition: bool,
}

/// Where the error of a page waits: the crate passes on no more than its text.
pub(super) type Slot = Arc<Mutex<Option<Broken>>>;

/// The pages.
pub(super) struct Pages {
    ranges: Arc<dyn Ranges>,
    shape: Shape,
    codec: Codec,
    at: u64,
    end: u64,
    /// Values in the pages to come.
    values: u64,
    /// Bytes of the largest page.
    limit: u64,
    /// Rows that are decoded at once.
    batch: u64,
    window: Window,
    /// Whether the dictionary came by.
    has_dictionary: bool,
    /// The header of the page at `at`, and its length.
    header: Option<(PageHeader, usize)>,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    slot: Slot,
}

impl Pages {
    /// `chunk` lies within the file.
    pub fn new(ranges: Arc<dyn Ranges>, chunk: &Chunk, shape: Shape, limit: u64, batch: u64, slot: Slot) -> Self {
        Self {
            ranges,
            shape,
            codec: chunk.codec,
            at: chunk.offset,
            end: chunk.offset + chunk.length,
            values: chunk.values,
            limit,
            batch,
            window: Window::default(),
            has_dictionary: false,
            header: None,
            zstd: None,
            slot,
        }
    }

    /// Keeps the error for the caller of the crate.
    fn fail(&self, mut broken: Broken) -> ParquetError {
        broken.detail = format!("column {}: {}", self.shape.name, broken.detail);
        let text = broken.detail.clone();
        if let Ok(mut slot) = self.slot.lock() {
            slot.get_or_insert(broken);
        }
        ParquetError::General(text)
    }

    /// Bytes of the column, with more of it behind them.
    fn bytes(&mut self, range: Range<u64>) -> std::result::Result<Bytes, Broken> {
        if let Some(bytes) = self.window.slice(&range) {
            return Ok(bytes);
        }
        let left = self.end - range.start;
        let ahead = if left <= WHOLE_CHUNK { left } else { READ_AHEAD.max(range.end - range.start).min(left) };
        let ahead = range.start..range.start + ahead;
        let bytes = self.ranges.read(ahead).map_err(|error| Broken::io(range.start, &error))?;
        self.window = Window { at: range.start, bytes };
        self.window.slice(&range).ok_or_else(|| {
            Broken::new("io-error", FaultKind::Io, range.start, "the file is shorter than when it was opened")
        })
    }

    /// The header of the next page that holds values or a dictionary; `None` behind the last.
    fn peek(&mut self) -> std::result::Result<Option<(PageHeader, usize)>, Broken> {
        loop {
            if let Some(header) = self.header {
                return Ok(Some(header));
            }
            if self.values == 0 {
                return Ok(None);
            }
            let begin = self.at;
            if begin >= self.end {
                return Err(Broken::damage(begin, "fewer values than the footer says"));
            }
            let (header, length) = self.parse()?;
            let stop = begin + length as u64 + u64::from(header.stored);
            if stop > self.end {
                return Err(Broken::damage(begin, "a page reaches beyond its column"));
            }
            let values = match header.kind {
                PageKind::Data { values, .. } | PageKind::DataV2 { values, .. } => u64::from(values),
                PageKind::Dictionary { .. } => 0,
                PageKind::Other => {
                    self.at = stop;
                    continue;
                }
            };
            if values > self.values {
                return Err(Broken::damage(begin, "more values than the footer says"));
            }
            let largest = u64::from(header.plain.max(header.stored));
            if largest > self.limit {
                let detail = format!("a page of {largest} bytes, at most {} are read", self.limit);
                return Err(Broken::new("limit", FaultKind::Limit, begin, detail));
            }
            self.header = Some((header, length));
        }
    }

    fn parse(&mut self) -> std::result::Result<(PageHeader, usize), Broken> {
        let mut most = PAGE_HEADER as u64;
        loop {
            let stop = self.end.min(self.at + most);
            let head = self.bytes(self.at..stop)?;
            match PageHeader::parse(&head) {
                Ok(header) => return Ok(header),
                Err(_) if stop < self.end && most < LONG_HEADER => most = LONG_HEADER,
                Err(damage) => return Err(Broken::damage(self.at + damage.at as u64, damage.what)),
            }
        }
    }

    /// Passes over the page of a header.
    fn advance(&mut self, header: &PageHeader, length: usize) {
        self.at += length as u64 + u64::from(header.stored);
        if let PageKind::Data { values, .. } | PageKind::DataV2 { values, .. } = header.kind {
            self.values -= u64::from(values);
        }
        self.header = None;
    }

    fn next_page(&mut self) -> std::result::Result<Option<Page>, Broken> {
        let Some((header, length)) = self.peek()? else { return Ok(None) };
        let begin = self.at;
        let start = begin + length as u64;
        let stored = self.bytes(start..start + u64::from(header.stored))?;
        self.advance(&header, length);
        let damage = |detail: String| Broken::damage(start, detail);
        if let Some(want) = header.checksum {
            let mut crc = flate2::Crc::new();
            crc.update(&stored);
            if crc.sum() != want {
                let detail = "the bytes of a page are not those of its checksum";
                return Err(Broken::new("cut-header", FaultKind::BadChecksum, start, detail));
            }
        }
        let plain = self.decompress(&header, stored).map_err(damage)?;
        self.check(&header, &plain).map_err(|(kind, detail)| match kind {
            FaultKind::Limit => Broken::new("limit", kind, start, detail),
            _ => damage(detail),
        })?;
        let encoded = |number: u8| encoding(number).ok_or_else(|| damage(format!("unknown encoding {number}")));
        Ok(Some(match header.kind {
            PageKind::Dictionary { values } => {
                self.has_dictionary = true;
                Page::DictionaryPage { buf: plain, num_values: values, encoding: Encoding::PLAIN, is_sorted: false }
            }
            PageKind::Data { values, encoding } => Page::DataPage {
                buf: plain,
                num_values: values,
                encoding: encoded(encoding)?,
                def_level_encoding: Encoding::RLE,
                rep_level_encoding: Encoding::RLE,
                statistics: None,
            },
            PageKind::DataV2 { values, nulls, rows, encoding, levels, repetition, .. } => Page::DataPageV2 {
                buf: plain,
                num_values: values,
                encoding: encoded(encoding)?,
                num_nulls: nulls,
                num_rows: rows,
                def_levels_byte_len: levels - repetition,
                rep_levels_byte_len: repetition,
                is_compressed: false,
                statistics: None,
            },
            // `peek` passes over these.
            PageKind::Other => return Ok(None),
        }))
    }

    /// The plain bytes of a page.
    fn decompress(&mut self, header: &PageHeader, stored: Bytes) -> std::result::Result<Bytes, String> {
        let (levels, compressed) = match header.kind {
            PageKind::DataV2 { levels, compressed, .. } => (levels as usize, compressed),
            _ => (0, true),
        };
        let plain = header.plain as usize;
        let page = if self.codec == Codec::None || !compressed {
            stored
        } else {
            let mut page = stored[..levels].to_vec();
            let packed = &stored[levels..];
            // Of a page of nulls nothing was compressed.
            if plain > levels {
                self.unpack(packed, plain, &mut page)?;
            }
            Bytes::from(page)
        };
        if page.len() != plain {
            return Err(format!("a page of {} bytes, its header says {plain}", page.len()));
        }
        Ok(page)
    }

    fn unpack(&mut self, packed: &[u8], plain: usize, page: &mut Vec<u8>) -> std::result::Result<(), String> {
        match self.codec {
            Codec::None => page.extend_from_slice(packed),
            Codec::Unknown => return Err("compressed by a codec that is not read".to_owned()),
            Codec::Zstd => {
                unzstd(packed, plain, TRUSTED_PAGE, page, &mut self.zstd).map_err(|error| error.to_string())?;
            }
            Codec::Snappy => unsnap(packed, plain, page)?,
            Codec::Gzip => gunzip(packed, plain, page)?,
            Codec::Brotli => {
                // One byte more, so that a longer page is seen.
                let more = (plain - page.len()) as u64 + 1;
                let mut unpacked = brotli_decompressor::Decompressor::new(packed, 4096).take(more);
                unpacked.read_to_end(page).map_err(|error| error.to_string())?;
            }
            Codec::Lz4Raw => unlz4(packed, plain, page)?,
            Codec::Lz4 => {
                let from = page.len();
                if unlz4_hadoop(packed, plain, page).is_err() {
                    // Old writers of C++ left the frame out.
                    page.truncate(from);
                    unlz4(packed, plain, page)?;
                }
            }
        }
        Ok(())
    }

    /// Holds the counts by which the crate sizes buffers against the page.
    fn check(&self, header: &PageHeader, page: &Bytes) -> std::result::Result<(), (FaultKind, String)> {
        let damage = |detail: &str| Err((FaultKind::Unparsable, detail.to_owned()));
        let (values, encoding, from) = match header.kind {
            PageKind::Dictionary { values } => {
                let each = match self.shape.physical {
                    Physical::BOOLEAN => return damage("a dictionary of booleans"),
                    Physical::INT32 | Physical::FLOAT | Physical::BYTE_ARRAY => 4,
                    Physical::INT64 | Physical::DOUBLE => 8,
                    Physical::INT96 => 12,
                    Physical::FIXED_LEN_BYTE_ARRAY => self.shape.length.max(1),
                };
                if u64::from(values) * each > page.len() as u64 {
                    return damage("a dictionary of more values than bytes");
                }
                // Where texts are not kept as a dictionary, a batch may repeat the longest in every row.
                let longest = if self.shape.physical == Physical::BYTE_ARRAY { longest_text(page) } else { 0 };
                if longest.saturating_mul(self.batch) > self.limit {
                    let detail = format!("a dictionary with a text of {longest} bytes");
                    return Err((FaultKind::Limit, detail));
                }
                return Ok(());
            }
            PageKind::Data { values, encoding } => {
                let mut from = 0usize;
                for has_levels in [self.shape.has_repetition, self.shape.has_definition] {
                    if has_levels {
                        let Some(length) = page.get(from..).and_then(|rest| rest.first_chunk::<4>()) else {
                            return damage("a page holds fewer values than it says");
                        };
                        from = from.saturating_add(4).saturating_add(u32::from_le_bytes(*length) as usize);
                    }
                }
                (values, encoding, from)
            }
            PageKind::DataV2 { values, nulls, rows, .. } if nulls > values || rows > values => {
                return damage("a page header is not plausible");
            }
            PageKind::DataV2 { values, encoding, levels, .. } => (values, encoding, levels as usize),
            PageKind::Other => return Ok(()),
        };
        let Some(bytes) = page.get(from..) else { return damage("levels reach beyond their page") };
        if matches!(encoding, 2 | 8) && !self.has_dictionary && self.shape.physical != Physical::BOOLEAN {
            return damage("indices without their dictionary");
        }
        check_differences(bytes, encoding, values, self.limit).map_err(|damage| {
            let kind = if damage.what == UNFOLDED { FaultKind::Limit } else { FaultKind::Unparsable };
            (kind, damage.what.to_owned())
        })
    }
}

/// Bytes of the longest text of a plain page of them.
fn longest_text(page: &[u8]) -> u64 {
    let (mut rest, mut longest) = (page, 0);
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length);
        longest = longest.max(length);
        rest = behind.get(length as usize..).unwrap_or(&[]);
    }
    u64::from(longest)
}

/// Appends one block: `plain` bytes less what `into` has, or an error.
fn unlz4(block: &[u8], plain: usize, into: &mut Vec<u8>) -> std::result::Result<(), String> {
    if plain > TRUSTED_PAGE + block.len() * LZ4_RATIO {
        return Err(format!("a page of {plain} bytes from {} is not plausible", block.len()));
    }
    let from = into.len();
    into.resize(plain, 0);
    let count = lz4_flex::block::decompress_into(block, &mut into[from..]).map_err(|error| error.to_string())?;
    into.truncate(from + count);
    Ok(())
}

/// Appends the blocks of Hadoop's frames: the plain and the packed length before each, big-endian.
fn unlz4_hadoop(mut frames: &[u8], plain: usize, into: &mut Vec<u8>) -> std::result::Result<(), String> {
    let cut = || "a frame of LZ4 is cut".to_owned();
    while into.len() < plain {
        let (head, rest) = frames.split_first_chunk::<8>().ok_or_else(cut)?;
        let length = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
        let (whole, packed) = (length(0), length(4));
        let block = rest.get(..packed).ok_or_else(cut)?;
        let want = into.len().saturating_add(whole);
        if want > plain || whole == 0 {
            return Err("a frame of LZ4 longer than its page".to_owned());
        }
        unlz4(block, want, into)?;
        if into.len() != want {
            return Err(cut());
        }
        frames = &rest[packed..];
    }
    Ok(())
}

/// By its number in the format.
fn encoding(number: u8) -> Option<Encoding> {
    Some(match number {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        _ => return None,
    })
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.next_page().map_err(|broken| self.fail(broken))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        let header = self.peek().map_err(|broken| self.fail(broken))?;
        Ok(header.map(|(header, _)| match header.kind {
            PageKind::DataV2 { values, rows, .. } => {
                PageMetadata { num_rows: Some(rows as usize), num_levels: Some(values as usize), is_dict: false }
            }
            PageKind::Data { values, .. } => {
                PageMetadata { num_rows: None, num_levels: Some(values as usize), is_dict: false }
            }
            _ => PageMetadata { num_rows: None, num_levels: None, is_dict: true },
        }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        if let Some((header, length)) = self.peek().map_err(|broken| self.fail(broken))? {
            self.advance(&header, length);
        }
        Ok(())
    }
}
