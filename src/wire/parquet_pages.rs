//! Parquet at the level of bytes: the footer, the headers of pages, and the values of flat numeric columns.
//!
//! Written for archives of thousands of small files with dozens of columns of which a handful is wanted: the footer is
//! walked once without statistics, and a column is decoded in batches of the caller's size, so that neither a page's
//! nor a row group's count of values sizes anything. Every offset, length and count is untrusted: what does not fit in
//! the slice is [`Damage`], never a panic.
//!
//! Decoded: booleans, 32-bit and 64-bit integers and floats, optional or required, in data pages of version 1 and 2,
//! encoded plainly, by dictionary, as runs (booleans), as differences (`DELTA_BINARY_PACKED`) or split by byte
//! (`BYTE_STREAM_SPLIT`). Decompression is the caller's.

use std::fmt;

use super::thrift::{Broken, Cursor, kind};

/// The four bytes at both ends of a file.
pub const MAGIC: &[u8; 4] = b"PAR1";
/// Bytes after the footer: its length and the magic.
pub const TAIL: usize = 8;

/// Why a footer, page or value cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Index of the byte in the slice, 0 where there is none.
    pub at: usize,
    /// What is wrong, in plain words.
    pub what: &'static str,
}

impl Damage {
    const fn new(what: &'static str) -> Self {
        Self { at: 0, what }
    }
}

impl From<Broken> for Damage {
    fn from(broken: Broken) -> Self {
        Self { at: broken.at, what: broken.what }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.what)
    }
}

impl std::error::Error for Damage {}

/// How numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Physical {
    /// One bit.
    Boolean,
    /// 32 bits, signed or not.
    Int32 {
        /// Whether the sign bit is a value bit.
        unsigned: bool,
    },
    /// 64 bits, signed or not.
    Int64 {
        /// Whether the sign bit is a value bit.
        unsigned: bool,
    },
    /// IEEE single.
    Float,
    /// IEEE double.
    Double,
}

impl Physical {
    /// Bytes of a plain value; booleans are packed and have none.
    fn width(self) -> usize {
        match self {
            Self::Boolean => 0,
            Self::Int32 { .. } | Self::Float => 4,
            Self::Int64 { .. } | Self::Double => 8,
        }
    }

    #[inline(always)]
    fn of_integer(self, value: i64) -> f64 {
        match self {
            Self::Int32 { unsigned: true } => f64::from(value as u32),
            Self::Int32 { unsigned: false } => f64::from(value as i32),
            Self::Int64 { unsigned: true } => value as u64 as f64,
            _ => value as f64,
        }
    }
}

/// One leaf of the schema, that is, one column as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Its path, parts joined by `.`.
    pub name: String,
    /// What it stores, where it is a number at the top level of a row. `None` for texts, lists, decimals and the rest.
    pub physical: Option<Physical>,
    /// Whether it can be null.
    pub optional: bool,
    /// Its type is Null: it holds no value.
    pub null: bool,
}

/// How a page is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// Not at all.
    #[default]
    None,
    /// Snappy.
    Snappy,
    /// Gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// Brotli.
    Brotli,
    /// LZ4 blocks in Hadoop's frames, or bare.
    Lz4,
    /// One LZ4 block.
    Lz4Raw,
    /// One that is not read: LZO, or one of the future.
    Unknown,
}

impl Codec {
    fn from_number(number: i64) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Snappy,
            2 => Self::Gzip,
            4 => Self::Brotli,
            5 => Self::Lz4,
            6 => Self::Zstd,
            7 => Self::Lz4Raw,
            _ => Self::Unknown,
        }
    }
}

/// The pages of one column in one row group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Compression of its pages.
    pub codec: Codec,
    /// Offset of its first page, the dictionary if there is one.
    pub offset: u64,
    /// Bytes of its pages, headers included.
    pub length: u64,
    /// Values, nulls included.
    pub values: u64,
    /// Nulls, where the statistics say.
    pub nulls: Option<u64>,
    /// Whether it has a dictionary.
    pub dictionary: bool,
}

/// A stretch of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowGroup {
    /// Rows.
    pub rows: u64,
    /// Its columns, in the order of the leaves.
    pub chunks: Vec<Chunk>,
}

/// What a footer says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// Columns.
    pub leaves: Vec<Leaf>,
    /// Row groups in order.
    pub groups: Vec<RowGroup>,
}

/// Length of the footer by the last [`TAIL`] bytes of a file.
pub fn footer_length(tail: &[u8; TAIL]) -> Result<u64, Damage> {
    if &tail[4..] != MAGIC {
        return Err(Damage::new("the file does not end with a Parquet footer: it is cut"));
    }
    Ok(u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]])))
}

impl Footer {
    /// Reads a footer without its length and magic. `body` is the number of bytes before it in the file: chunks that
    /// reach beyond are damage.
    pub fn parse(bytes: &[u8], body: u64) -> Result<Self, Damage> {
        let mut footer = Self::default();
        let mut cursor = Cursor::new(bytes);
        let mut last = 0;
        while let Some(field) = cursor.field(&mut last)? {
            match (field.id, field.kind) {
                (2, kind::LIST) => footer.leaves = schema(&mut cursor)?,
                (4, kind::LIST) => {
                    let (kind, count) = cursor.list()?;
                    if kind != kind::STRUCT && count > 0 {
                        return Err(Damage::new("the row groups are no list of structs"));
                    }
                    for _ in 0..count {
                        footer.groups.push(row_group(&mut cursor, body)?);
                    }
                    // What follows is metadata of the writer.
                    break;
                }
                _ => cursor.skip(field.kind)?,
            }
        }
        if footer.leaves.is_empty() {
            return Err(Damage::new("the footer holds no schema"));
        }
        if footer.groups.iter().any(|group| group.chunks.len() != footer.leaves.len()) {
            return Err(Damage::new("a row group does not hold a chunk a column"));
        }
        Ok(footer)
    }
}

/// What [`Footer::parse`] says of a column whose place only its key tells.
pub const ENCRYPTED: &str = "an encrypted column";

/// The value of a key in the writer's own metadata of a footer; `None` too where that is damaged.
pub fn metadata<'a>(footer: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let mut cursor = Cursor::new(footer);
    let mut last = 0;
    while let Some(field) = cursor.field(&mut last).ok()? {
        if (field.id, field.kind) != (5, kind::LIST) {
            cursor.skip(field.kind).ok()?;
            continue;
        }
        let (kind, count) = cursor.list().ok()?;
        if kind != kind::STRUCT {
            return None;
        }
        for _ in 0..count {
            let (mut found, mut value) = (false, None);
            let mut last = 0;
            while let Some(field) = cursor.field(&mut last).ok()? {
                match (field.id, field.kind) {
                    (1, kind::BINARY) => found = cursor.binary().ok()? == key,
                    (2, kind::BINARY) => value = Some(cursor.binary().ok()?),
                    _ => cursor.skip(field.kind).ok()?,
                }
            }
            if found {
                return value;
            }
        }
        return None;
    }
    None
}

/// One element of the schema as it is written: a tree in depth-first order.
#[derive(Default)]
struct Element<'a> {
    physical: Option<i64>,
    repetition: i64,
    name: &'a [u8],
    children: u64,
    converted: Option<i64>,
    logical: i16,
    logical_unsigned: bool,
}

fn element<'a>(cursor: &mut Cursor<'a>) -> Result<Element<'a>, Damage> {
    let mut element = Element::default();
    let mut last = 0;
    while let Some(field) = cursor.field(&mut last)? {
        match (field.id, field.kind) {
            (1, kind::I32) => element.physical = Some(cursor.integer()?),
            (3, kind::I32) => element.repetition = cursor.integer()?,
            (4, kind::BINARY) => element.name = cursor.binary()?,
            (5, kind::I32) => element.children = u64::try_from(cursor.integer()?).unwrap_or(0),
            (6, kind::I32) => element.converted = Some(cursor.integer()?),
            (10, kind::STRUCT) => {
                let mut last = 0;
                while let Some(field) = cursor.field(&mut last)? {
                    element.logical = field.id;
                    if (field.id, field.kind) == (LOGICAL_INTEGER, kind::STRUCT) {
                        let mut last = 0;
                        while let Some(field) = cursor.field(&mut last)? {
                            element.logical_unsigned |= (field.id, field.kind) == (2, kind::FALSE);
                            cursor.skip(field.kind)?;
                        }
                    } else {
                        cursor.skip(field.kind)?;
                    }
                }
            }
            _ => cursor.skip(field.kind)?,
        }
    }
    Ok(element)
}

const LOGICAL_DECIMAL: i16 = 5;
const LOGICAL_INTEGER: i16 = 10;
const LOGICAL_NULL: i16 = 11;
const CONVERTED_DECIMAL: i64 = 5;
const CONVERTED_UNSIGNED: std::ops::RangeInclusive<i64> = 11..=14;
const REPEATED: i64 = 2;
/// Depth of a schema.
const SCHEMA_DEPTH: usize = 64;
/// Elements of a schema.
const SCHEMA_ELEMENTS: u64 = 1 << 18;

fn schema(cursor: &mut Cursor<'_>) -> Result<Vec<Leaf>, Damage> {
    let (kind, count) = cursor.list()?;
    if kind != kind::STRUCT || count == 0 {
        return Err(Damage::new("the schema is no list of structs"));
    }
    if count > SCHEMA_ELEMENTS {
        return Err(Damage::new("the schema has more than 262,144 elements"));
    }
    let mut leaves = Vec::new();
    // Groups that are open: children still to come, and their names.
    let mut open = vec![(element(cursor)?.children, String::new())];
    for _ in 1..count {
        let element = element(cursor)?;
        while open.last().is_some_and(|(left, _)| *left == 0) {
            open.pop();
        }
        let depth = open.len();
        let Some((left, prefix)) = open.last_mut() else {
            return Err(Damage::new("the schema has more elements than its groups"));
        };
        *left -= 1;
        let mut name = String::new();
        if depth > 1 {
            name.push_str(prefix);
            name.push('.');
        }
        name.push_str(&String::from_utf8_lossy(element.name));
        if element.children > 0 {
            if depth >= SCHEMA_DEPTH {
                return Err(Damage::new("the schema is nested too deep"));
            }
            open.push((element.children, name));
            continue;
        }
        let unsigned =
            element.logical_unsigned || element.converted.is_some_and(|kind| CONVERTED_UNSIGNED.contains(&kind));
        let decimal = element.logical == LOGICAL_DECIMAL || element.converted == Some(CONVERTED_DECIMAL);
        let physical = match element.physical {
            _ if depth > 1 || element.repetition == REPEATED || decimal => None,
            Some(0) => Some(Physical::Boolean),
            Some(1) => Some(Physical::Int32 { unsigned }),
            Some(2) => Some(Physical::Int64 { unsigned }),
            Some(4) => Some(Physical::Float),
            Some(5) => Some(Physical::Double),
            _ => None,
        };
        leaves.push(Leaf { name, physical, optional: element.repetition != 0, null: element.logical == LOGICAL_NULL });
    }
    Ok(leaves)
}

fn row_group(cursor: &mut Cursor<'_>, body: u64) -> Result<RowGroup, Damage> {
    let mut group = RowGroup::default();
    let mut last = 0;
    while let Some(field) = cursor.field(&mut last)? {
        match (field.id, field.kind) {
            (1, kind::LIST) => {
                let (kind, count) = cursor.list()?;
                if kind != kind::STRUCT && count > 0 {
                    return Err(Damage::new("the columns of a row group are no list of structs"));
                }
                for _ in 0..count {
                    group.chunks.push(chunk(cursor, body)?);
                }
            }
            (3, kind::I64) => {
                group.rows = u64::try_from(cursor.integer()?).map_err(|_| Damage::new("a negative number of rows"))?;
            }
            _ => cursor.skip(field.kind)?,
        }
    }
    Ok(group)
}

fn chunk(cursor: &mut Cursor<'_>, body: u64) -> Result<Chunk, Damage> {
    let (mut codec, mut values, mut length, mut data, mut dictionary) = (Codec::Unknown, -1, -1, -1, 0);
    let mut nulls = None;
    let mut last = 0;
    while let Some(field) = cursor.field(&mut last)? {
        if (field.id, field.kind) != (3, kind::STRUCT) {
            if field.id == 8 {
                return Err(Damage::new(ENCRYPTED));
            }
            cursor.skip(field.kind)?;
            continue;
        }
        let mut last = 0;
        while let Some(field) = cursor.field(&mut last)? {
            match (field.id, field.kind) {
                (4, kind::I32) => codec = Codec::from_number(cursor.integer()?),
                (5, kind::I64) => values = cursor.integer()?,
                (7, kind::I64) => length = cursor.integer()?,
                (9, kind::I64) => data = cursor.integer()?,
                (11, kind::I64) => dictionary = cursor.integer()?,
                (12, kind::STRUCT) => {
                    let mut last = 0;
                    while let Some(field) = cursor.field(&mut last)? {
                        match (field.id, field.kind) {
                            (3, kind::I64) => nulls = u64::try_from(cursor.integer()?).ok(),
                            _ => cursor.skip(field.kind)?,
                        }
                    }
                }
                _ => cursor.skip(field.kind)?,
            }
        }
    }
    // Some writers say 0 for "no dictionary".
    let offset = if dictionary > 0 { data.min(dictionary) } else { data };
    match (u64::try_from(offset), u64::try_from(length), u64::try_from(values)) {
        (Ok(offset), Ok(length), Ok(values)) if offset.checked_add(length).is_some_and(|end| end <= body) => {
            let nulls = nulls.filter(|nulls| *nulls <= values);
            Ok(Chunk { codec, offset, length, values, nulls, dictionary: dictionary > 0 })
        }
        _ => Err(Damage::new("a column lies outside the file")),
    }
}

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// The dictionary of its chunk.
    Dictionary {
        /// Its values.
        values: u32,
    },
    /// Values; levels and values are compressed together.
    Data {
        /// Values, nulls included.
        values: u32,
        /// Number of the encoding.
        encoding: u8,
    },
    /// Values of version 2: levels stand uncompressed before the values.
    DataV2 {
        /// Values, nulls included.
        values: u32,
        /// Of these, nulls.
        nulls: u32,
        /// Rows; fewer than values where lists are stored.
        rows: u32,
        /// Number of the encoding.
        encoding: u8,
        /// Bytes of the levels, repetition first.
        levels: u32,
        /// Bytes of the repetition levels; flat columns have none.
        repetition: u32,
        /// Whether the values are compressed.
        compressed: bool,
    },
    /// Something to pass over.
    Other,
}

/// The header of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHeader {
    /// What follows.
    pub kind: PageKind,
    /// Bytes that follow in the file.
    pub stored: u32,
    /// Bytes after decompression, levels included.
    pub plain: u32,
    /// CRC-32 (IEEE) of the bytes that follow in the file, where the writer gave one.
    pub checksum: Option<u32>,
}

/// Longest page header without statistics of long texts.
pub const PAGE_HEADER: usize = 64 << 10;

impl PageHeader {
    /// Reads the header at the begin of `bytes`, and its length.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), Damage> {
        const RLE: i64 = 3;
        let mut cursor = Cursor::new(bytes);
        let mut last = 0;
        let (mut number, mut stored, mut plain) = (-1, -1, -1);
        let (mut values, mut encoding, mut level_encoding) = (-1, -1, RLE);
        let (mut definition, mut repetition, mut compressed) = (0, 0, true);
        let (mut nulls, mut rows) = (0, 0);
        let mut checksum = None;
        while let Some(field) = cursor.field(&mut last)? {
            match (field.id, field.kind) {
                (1, kind::I32) => number = cursor.integer()?,
                (2, kind::I32) => plain = cursor.integer()?,
                (3, kind::I32) => stored = cursor.integer()?,
                // A signed integer of the same bits.
                (4, kind::I32) => checksum = Some(cursor.integer()? as u32),
                (5 | 7 | 8, kind::STRUCT) => {
                    let version_2 = field.id == 8;
                    let mut last = 0;
                    while let Some(field) = cursor.field(&mut last)? {
                        match (field.id, field.kind) {
                            (1, kind::I32) => values = cursor.integer()?,
                            (2, kind::I32) if !version_2 => encoding = cursor.integer()?,
                            (3, kind::I32) if !version_2 => level_encoding = cursor.integer()?,
                            (2, kind::I32) if version_2 => nulls = cursor.integer()?,
                            (3, kind::I32) if version_2 => rows = cursor.integer()?,
                            (4, kind::I32) if version_2 => encoding = cursor.integer()?,
                            (5, kind::I32) if version_2 => definition = cursor.integer()?,
                            (6, kind::I32) if version_2 => repetition = cursor.integer()?,
                            (7, kind::TRUE) => compressed = true,
                            (7, kind::FALSE) => compressed = false,
                            _ => cursor.skip(field.kind)?,
                        }
                    }
                }
                _ => cursor.skip(field.kind)?,
            }
        }
        let small = |value: i64| u32::try_from(value).map_err(|_| Damage::new("a page header is not plausible"));
        let encoded = || u8::try_from(encoding).map_err(|_| Damage::new("a page header is not plausible"));
        let kind = match number {
            0 if level_encoding != RLE => return Err(Damage::new("levels in an encoding that is not read")),
            0 => PageKind::Data { values: small(values)?, encoding: encoded()? },
            2 => PageKind::Dictionary { values: small(values)? },
            3 => PageKind::DataV2 {
                values: small(values)?,
                nulls: small(nulls)?,
                rows: small(rows)?,
                encoding: encoded()?,
                levels: small(i64::from(small(definition)?) + i64::from(small(repetition)?))?,
                repetition: small(repetition)?,
                compressed,
            },
            _ => PageKind::Other,
        };
        let header = Self { kind, stored: small(stored)?, plain: small(plain)?, checksum };
        if let PageKind::DataV2 { levels, .. } = header.kind
            && (levels > header.stored || levels > header.plain)
        {
            return Err(Damage::new("a page header is not plausible"));
        }
        Ok((header, cursor.position()))
    }
}

const SHORT: Damage = Damage::new("a page holds fewer values than it says");

/// `width` bits at bit `bit` of `bytes`; beyond the slice they are 0. `width` is at most 32.
#[inline(always)]
fn bits(bytes: &[u8], bit: usize, width: u32) -> u64 {
    let at = bit / 8;
    let word = match bytes.get(at..at + 8) {
        Some(word) => u64::from_le_bytes(word.try_into().unwrap_or([0; 8])),
        None => {
            let rest = bytes.get(at..).unwrap_or(&[]);
            rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
        }
    };
    (word >> (bit % 8)) & ((1u64 << width) - 1)
}

/// Runs and bit-packed groups of small integers: levels, dictionary indices, booleans.
#[derive(Clone, Debug, Default)]
struct Hybrid {
    at: usize,
    end: usize,
    width: u32,
    run: u64,
    value: u32,
    packed: u64,
    bit: usize,
}

impl Hybrid {
    fn new(at: usize, end: usize, width: u32) -> Result<Self, Damage> {
        if width > 32 {
            return Err(Damage::new("integers of more than 32 bits in a dictionary page"));
        }
        Ok(Self { at, end, width, ..Self::default() })
    }

    /// Makes sure that a run or a packed group is open.
    fn open(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        while self.run == 0 && self.packed == 0 {
            let rest = bytes.get(self.at..self.end).unwrap_or(&[]);
            let mut cursor = Cursor::new(rest);
            let head = cursor.varint().map_err(|_| SHORT)?;
            self.at += cursor.position();
            if head & 1 == 0 {
                let size = self.width.div_ceil(8) as usize;
                let stored = rest.get(cursor.position()..cursor.position() + size).ok_or(SHORT)?;
                self.value = stored.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
                self.at += size;
                self.run = head >> 1;
            } else {
                // The last group may be cut short; its missing bytes hold padding only, or else values run out.
                let groups = head >> 1;
                let have = (self.end - self.at) as u64;
                let bytes = groups.saturating_mul(u64::from(self.width)).min(have);
                self.bit = self.at * 8;
                self.packed = match self.width {
                    0 => groups.saturating_mul(8),
                    width => groups.saturating_mul(8).min(bytes * 8 / u64::from(width)),
                };
                self.at += bytes as usize;
            }
        }
        Ok(())
    }

    /// Where the next `count` values are one and the same, takes them.
    #[inline]
    fn take_run(&mut self, bytes: &[u8], count: usize) -> Result<Option<u32>, Damage> {
        self.open(bytes)?;
        if self.run < count as u64 {
            return Ok(None);
        }
        self.run -= count as u64;
        Ok(Some(self.value))
    }

    /// The next `count` values, each given to `each` with its index.
    #[inline(always)]
    fn take(&mut self, bytes: &[u8], count: usize, mut each: impl FnMut(usize, u32)) -> Result<(), Damage> {
        let mut done = 0;
        while done < count {
            self.open(bytes)?;
            if self.run > 0 {
                let length = self.run.min((count - done) as u64) as usize;
                (done..done + length).for_each(|index| each(index, self.value));
                self.run -= length as u64;
                done += length;
            } else {
                let length = self.packed.min((count - done) as u64) as usize;
                let slice = &bytes[..self.end];
                for index in done..done + length {
                    each(index, bits(slice, self.bit, self.width) as u32);
                    self.bit += self.width as usize;
                }
                self.packed -= length as u64;
                done += length;
            }
        }
        Ok(())
    }
}

/// Integers as bit-packed differences, in blocks.
#[derive(Clone, Debug, Default)]
struct Delta {
    at: usize,
    miniblock: u64,
    miniblocks: usize,
    left: u64,
    value: i64,
    first: bool,
    minimum: i64,
    widths: Vec<u8>,
    next_width: usize,
    width: u32,
    in_miniblock: u64,
    bit: usize,
}

impl Delta {
    fn new(bytes: &[u8], at: usize) -> Result<Self, Damage> {
        let mut cursor = Cursor::new(bytes.get(at..).unwrap_or(&[]));
        let (block, miniblocks, left) = (cursor.varint()?, cursor.varint()?, cursor.varint()?);
        let value = cursor.integer()?;
        if miniblocks == 0 || miniblocks > 1 << 10 || block == 0 || block > 1 << 20 || block % miniblocks != 0 {
            return Err(Damage::new("blocks of differences of an odd size"));
        }
        Ok(Self {
            at: at + cursor.position(),
            miniblock: block / miniblocks,
            miniblocks: miniblocks as usize,
            left,
            value,
            first: true,
            ..Self::default()
        })
    }

    fn next(&mut self, bytes: &[u8]) -> Result<i64, Damage> {
        self.left = self.left.checked_sub(1).ok_or(SHORT)?;
        if std::mem::take(&mut self.first) {
            return Ok(self.value);
        }
        if self.in_miniblock == 0 {
            if self.next_width == self.widths.len() {
                let mut cursor = Cursor::new(bytes.get(self.at..).ok_or(SHORT)?);
                self.minimum = cursor.integer()?;
                self.at += cursor.position();
                let widths = bytes.get(self.at..self.at + self.miniblocks).ok_or(SHORT)?;
                self.widths.clear();
                self.widths.extend_from_slice(widths);
                self.at += self.miniblocks;
                self.next_width = 0;
            }
            self.width = u32::from(self.widths[self.next_width]);
            self.next_width += 1;
            self.in_miniblock = self.miniblock;
            self.bit = self.at * 8;
            if self.width > 64 || self.at > bytes.len() {
                return Err(SHORT);
            }
            self.at += (self.miniblock * u64::from(self.width)).div_ceil(8) as usize;
        }
        self.in_miniblock -= 1;
        if self.bit + self.width as usize > bytes.len() * 8 {
            return Err(SHORT);
        }
        let low = bits(bytes, self.bit, self.width.min(32));
        let high = if self.width > 32 { bits(bytes, self.bit + 32, self.width - 32) << 32 } else { 0 };
        self.bit += self.width as usize;
        self.value = self.value.wrapping_add(self.minimum).wrapping_add((low | high) as i64);
        Ok(self.value)
    }
}

/// Holds the counts inside values that are stored as differences or shared prefixes against the `values` that the page
/// has and the bytes (at most `limit`) that they unfold to: decoders size buffers by them. Other encodings pass.
pub fn check_differences(bytes: &[u8], encoding: u8, values: u32, limit: u64) -> Result<(), Damage> {
    const ODD: Damage = Damage::new("more differences than values in a page");
    if !(5..=7).contains(&encoding) || bytes.is_empty() {
        return Ok(());
    }
    let first = Delta::new(bytes, 0)?;
    if first.left > u64::from(values) {
        return Err(ODD);
    }
    if encoding != 7 {
        return Ok(());
    }
    // Prefixes, then the lengths of suffixes: a value may repeat all of the one before it at no cost.
    let (mut prefixes, mut end) = (first.clone(), first);
    while end.left > 0 {
        end.next(bytes)?;
    }
    let rest = bytes.get(end.at..).ok_or(SHORT)?;
    let mut suffixes = Delta::new(rest, 0)?;
    if suffixes.left != prefixes.left {
        return Err(ODD);
    }
    let (mut length, mut total) = (0i64, 0u64);
    while prefixes.left > 0 {
        let (prefix, suffix) = (prefixes.next(bytes)?, suffixes.next(rest)?);
        if !(0..=length).contains(&prefix) || !(0..=bytes.len() as i64).contains(&suffix) {
            return Err(Damage::new("a text that shares more than there is"));
        }
        length = prefix + suffix;
        total = total.saturating_add(length as u64);
    }
    if total > limit {
        return Err(Damage::new(UNFOLDED));
    }
    Ok(())
}

/// What [`check_differences`] says of values beyond its limit.
pub const UNFOLDED: &str = "shared prefixes that unfold beyond the limit of a page";

/// Where the values of the open page come from.
#[derive(Clone, Debug, Default)]
enum Encoded {
    #[default]
    Nothing,
    Plain {
        at: usize,
    },
    Dictionary(Hybrid),
    Runs(Hybrid),
    Bits {
        bit: usize,
    },
    Delta(Delta),
    Split {
        start: usize,
        stride: usize,
        next: usize,
    },
}

/// A batch of one column.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Values; those of nulls mean nothing. Integers above 2^53 are rounded.
    pub values: Vec<f64>,
    /// Which values are there; empty where all are.
    pub present: Vec<bool>,
}

impl Batch {
    /// The value at `index`; `None` for a null, and beyond the end.
    #[inline]
    pub fn get(&self, index: usize) -> Option<f64> {
        if self.present.is_empty() || self.present.get(index).copied().unwrap_or(false) {
            self.values.get(index).copied()
        } else {
            None
        }
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.values.clear();
        self.present.clear();
    }

    /// Appends nulls.
    pub fn push_nulls(&mut self, count: usize) {
        if count > 0 {
            self.present.resize(self.values.len(), true);
            self.values.resize(self.values.len() + count, 0.0);
            self.present.resize(self.values.len(), false);
        }
    }
}

/// Decodes the pages of one chunk, one after the other, in batches.
#[derive(Clone, Debug)]
pub struct Decoder {
    physical: Physical,
    optional: bool,
    dictionary: Vec<f64>,
    levels: Option<Hybrid>,
    encoded: Encoded,
    left: usize,
}

impl Decoder {
    /// For a column that stores `physical`, and can hold nulls if `optional`.
    pub fn new(physical: Physical, optional: bool) -> Self {
        Self { physical, optional, dictionary: Vec::new(), levels: None, encoded: Encoded::Nothing, left: 0 }
    }

    /// The same again for another chunk, with the memory of this one.
    pub fn restart(&mut self, physical: Physical, optional: bool) {
        self.physical = physical;
        self.optional = optional;
        self.dictionary.clear();
        self.close();
    }

    /// Gives up what is left of the open page.
    pub fn close(&mut self) {
        self.left = 0;
        self.levels = None;
        self.encoded = Encoded::Nothing;
    }

    /// Values left in the open page, nulls included.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Takes over a dictionary, decompressed.
    pub fn dictionary(&mut self, page: &[u8], values: u32) -> Result<(), Damage> {
        let width = self.physical.width();
        if width == 0 {
            return Err(Damage::new("a dictionary of booleans"));
        }
        if u64::from(values) * width as u64 > page.len() as u64 {
            return Err(Damage::new("a dictionary is shorter than it says"));
        }
        self.dictionary.clear();
        plain(self.physical, &page[..values as usize * width], &mut self.dictionary);
        Ok(())
    }

    /// Opens a data page, decompressed: version 1 with its levels inside, version 2 with them in front.
    pub fn open(&mut self, page: &[u8], kind: PageKind) -> Result<(), Damage> {
        self.close();
        let (values, encoding, levels) = match kind {
            PageKind::Data { values, encoding } if self.optional => {
                let length = page.first_chunk::<4>().ok_or(SHORT)?;
                let length = u32::from_le_bytes(*length) as usize;
                if length > page.len() - 4 {
                    return Err(SHORT);
                }
                (values, encoding, 4..4 + length)
            }
            PageKind::Data { values, encoding } => (values, encoding, 0..0),
            PageKind::DataV2 { repetition: 1.., .. } => return Err(Damage::new("repetition levels in a flat column")),
            PageKind::DataV2 { values, encoding, levels, .. } => (values, encoding, 0..levels as usize),
            PageKind::Dictionary { .. } | PageKind::Other => return Err(Damage::new("not a data page")),
        };
        let at = levels.end;
        if at > page.len() {
            return Err(SHORT);
        }
        if self.optional {
            self.levels = Some(Hybrid::new(levels.start, at, 1)?);
        }
        let whole = page.len() - at;
        let boolean = self.physical == Physical::Boolean;
        self.encoded = match encoding {
            // A page of nulls may end with its levels.
            _ if whole == 0 => Encoded::Nothing,
            0 if boolean => Encoded::Bits { bit: at * 8 },
            0 => Encoded::Plain { at },
            2 | 8 if !boolean => Encoded::Dictionary(Hybrid::new(at + 1, page.len(), u32::from(page[at]))?),
            3 if boolean => {
                let length = page.get(at..at + 4).ok_or(SHORT)?;
                let length = u32::from_le_bytes(length.try_into().unwrap_or([0; 4])) as usize;
                if length > page.len() - at - 4 {
                    return Err(SHORT);
                }
                Encoded::Runs(Hybrid::new(at + 4, at + 4 + length, 1)?)
            }
            5 if matches!(self.physical, Physical::Int32 { .. } | Physical::Int64 { .. }) => {
                Encoded::Delta(Delta::new(page, at)?)
            }
            9 if !boolean => Encoded::Split { start: at, stride: whole / self.physical.width(), next: 0 },
            _ => return Err(Damage::new("values in an encoding that is not read")),
        };
        self.left = values as usize;
        Ok(())
    }

    /// Appends the next values of the open page, at most `count` and what is [`left`](Self::left). `page` is what was
    /// given to [`open`](Self::open). After damage the page is closed; what was not appended is lost.
    pub fn read(&mut self, page: &[u8], count: usize, into: &mut Batch) -> Result<(), Damage> {
        let count = count.min(self.left);
        let start = into.values.len();
        let result = self.append(page, count, into);
        if result.is_err() {
            into.values.truncate(start);
            if !into.present.is_empty() {
                into.present.truncate(start);
            }
            self.close();
        } else {
            self.left -= count;
        }
        result
    }

    fn append(&mut self, page: &[u8], count: usize, into: &mut Batch) -> Result<(), Damage> {
        let start = into.values.len();
        let Some(levels) = &mut self.levels else {
            self.numbers(page, count, &mut into.values)?;
            if !into.present.is_empty() {
                into.present.resize(into.values.len(), true);
            }
            return Ok(());
        };
        match levels.take_run(page, count)? {
            Some(0) => {
                into.push_nulls(count);
                return Ok(());
            }
            Some(_) => {
                self.numbers(page, count, &mut into.values)?;
                if !into.present.is_empty() {
                    into.present.resize(into.values.len(), true);
                }
                return Ok(());
            }
            None => {}
        }
        into.present.resize(start, true);
        let mut filled = 0;
        let present = &mut into.present;
        levels.take(page, count, |_, level| {
            present.push(level != 0);
            filled += usize::from(level != 0);
        })?;
        self.numbers(page, filled, &mut into.values)?;
        // Spread the values from the back to where their levels are.
        into.values.resize(start + count, 0.0);
        let mut from = start + filled;
        for to in (start..start + count).rev() {
            if from == to + 1 {
                break;
            }
            if into.present[to] {
                from -= 1;
                into.values[to] = into.values[from];
            }
        }
        Ok(())
    }

    /// Appends the next `count` values that are no nulls.
    fn numbers(&mut self, page: &[u8], count: usize, into: &mut Vec<f64>) -> Result<(), Damage> {
        if count == 0 {
            return Ok(());
        }
        let physical = self.physical;
        match &mut self.encoded {
            Encoded::Nothing => return Err(SHORT),
            Encoded::Plain { at } => {
                let bytes = page.get(*at..*at + count * physical.width()).ok_or(SHORT)?;
                *at += bytes.len();
                plain(physical, bytes, into);
            }
            Encoded::Dictionary(indices) => {
                let dictionary = &self.dictionary[..];
                let mut outside = false;
                match indices.take_run(page, count)? {
                    Some(index) => {
                        let value = dictionary.get(index as usize);
                        outside = value.is_none();
                        into.resize(into.len() + count, value.copied().unwrap_or(0.0));
                    }
                    None => {
                        let start = into.len();
                        into.resize(start + count, 0.0);
                        let slots = &mut into[start..];
                        indices.take(page, count, |slot, index| match dictionary.get(index as usize) {
                            Some(value) => slots[slot] = *value,
                            None => outside = true,
                        })?;
                    }
                }
                if outside {
                    return Err(Damage::new("a value is not in the dictionary"));
                }
            }
            Encoded::Runs(runs) => runs.take(page, count, |_, value| into.push(f64::from(value)))?,
            Encoded::Bits { bit } => {
                if *bit + count > page.len() * 8 {
                    return Err(SHORT);
                }
                (0..count).for_each(|index| into.push(bits(page, *bit + index, 1) as f64));
                *bit += count;
            }
            Encoded::Delta(delta) => {
                for _ in 0..count {
                    into.push(physical.of_integer(delta.next(page)?));
                }
            }
            Encoded::Split { start, stride, next } => {
                if *next + count > *stride {
                    return Err(SHORT);
                }
                let width = physical.width();
                for index in *next..*next + count {
                    let mut bytes = [0; 8];
                    for (byte, stored) in bytes.iter_mut().take(width).enumerate() {
                        *stored = page[*start + byte * *stride + index];
                    }
                    plain(physical, &bytes[..width], into);
                }
                *next += count;
            }
        }
        Ok(())
    }
}

/// Appends plain values; a rest shorter than one is left.
#[inline]
fn plain(physical: Physical, bytes: &[u8], into: &mut Vec<f64>) {
    match physical {
        Physical::Boolean => {}
        Physical::Int32 { .. } => {
            let (values, _) = bytes.as_chunks::<4>();
            into.extend(values.iter().map(|value| physical.of_integer(i64::from(i32::from_le_bytes(*value)))));
        }
        Physical::Int64 { .. } => {
            let (values, _) = bytes.as_chunks::<8>();
            into.extend(values.iter().map(|value| physical.of_integer(i64::from_le_bytes(*value))));
        }
        Physical::Float => {
            let (values, _) = bytes.as_chunks::<4>();
            into.extend(values.iter().map(|value| f64::from(f32::from_le_bytes(*value))));
        }
        Physical::Double => {
            let (values, _) = bytes.as_chunks::<8>();
            into.extend(values.iter().map(|value| f64::from_le_bytes(*value)));
        }
    }
}
