//! An Arrow IPC file (Feather V2) or stream as a table, over [`Ranges`].
//!
//! Of a record batch only the wanted columns are read: its message is taken apart here, buffers are held against the
//! body and the limits and unpacked, and a message of the wanted columns alone goes to the `arrow-ipc` crate, which
//! validates and makes arrays of it. The crate itself would read whole bodies, reserve what buffers claim to unpack to,
//! and let LZ4 unpack to any length.
//!
//! A file without a footer (its writer died) is walked as the stream that it is behind its magic.

use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_buffer::Buffer;
use arrow_ipc::convert::fb_to_schema;
use arrow_ipc::reader::{RecordBatchDecoder, read_dictionary};
use arrow_ipc::{
    CompressionType, DictionaryBatchArgs, Endianness, FieldNode, MessageHeader, MetadataVersion, RecordBatchArgs,
    root_as_footer, root_as_message,
};
use arrow_schema::{DataType, Schema, SchemaRef, UnionMode};
use bytes::Bytes;
use flatbuffers::FlatBufferBuilder;

use super::file::TableFile;
use super::guard::tried;
use crate::model::{FaultKind, Limits};
use crate::read::broken::Broken;
use crate::read::parquet_columns::{ROWS_FREE, ROWS_PER_BYTE, Window, unzstd};
use crate::read::{Ranges, is_git_lfs_pointer};

/// The bytes at both ends of a file.
pub const MAGIC: &[u8; 6] = b"ARROW1";
/// Before the length of a message, since Arrow 0.15.
pub const CONTINUATION: u32 = 0xffff_ffff;
/// Bytes at the end of a file: the footer's length and the magic.
const TAIL: u64 = 10;
/// Read at once while messages are walked.
const READ_AHEAD: u64 = 64 << 10;
/// Unwanted bytes between wanted ones that cost less than a second read.
const GAP: u64 = 64 << 10;
/// Longest schema of a file without a footer that has no length.
const BARE_SCHEMA: u64 = 4 << 20;
/// Bytes that unpack from one, beyond [`Limits::page`].
const RATIO: u64 = 64;
/// Bytes reserved for what is unpacked; beyond, memory grows as bytes come.
const TRUSTED: usize = 8 << 20;
/// Where buffers are put together they begin at multiples of this.
const ALIGNMENT: usize = 64;
/// Depth of a schema.
const DEPTH: usize = 64;

/// Opens an IPC file or stream: reads its schema and where its batches are.
///
/// Units are record batches. Where a stream is cut, or goes on with something else, a last unit without rows follows,
/// whose read says what is wrong; so does a unit of a file whose place lies outside of it. Errors: `git-lfs-pointer`,
/// `cut-header` (no whole schema), `limit`, `unsupported` (Feather V1, big-endian, an unknown type), `io-error`.
pub fn open(ranges: Arc<dyn Ranges>, limits: &Limits) -> Result<Box<dyn TableFile>, Broken> {
    let size = ranges.size();
    let mut walk = Walk { ranges: &*ranges, window: Window::default(), size, limits };
    let head = walk.bytes(0..size.min(64))?;
    if is_git_lfs_pointer(&head) {
        let detail = "a Git LFS pointer in place of the file";
        return Err(Broken::new("git-lfs-pointer", FaultKind::Unparsable, 0, detail));
    }
    if head.starts_with(b"FEA1") {
        return Err(Broken::new("unsupported", FaultKind::Version, 0, "a file of Feather's first version"));
    }
    let found = if head.starts_with(MAGIC) {
        match walk.footer()? {
            Some(footer) => walk.blocks(&footer)?,
            None => {
                let at = walk.first_message()?;
                let mut found = walk.stream(at)?;
                let missing = Broken::new("cut-header", FaultKind::Truncated, size, "the file ends without its footer");
                // A tail that is no message is what is left of the footer.
                match found.units.last_mut() {
                    Some(unit) if unit.broken.is_some() => unit.broken = Some(missing),
                    _ => found.units.push(Unit::broken(missing)),
                }
                found
            }
        }
    } else {
        walk.stream(0)?
    };
    let Found { schema, units, dictionaries } = found;
    let rows = units.iter().fold(0u64, |sum, unit| sum.saturating_add(unit.rows));
    if rows > ROWS_FREE + size.saturating_mul(ROWS_PER_BYTE) {
        let detail = format!("{rows} rows in a file of {size} bytes are not plausible");
        return Err(Broken::new("limit", FaultKind::Limit, 0, detail));
    }
    if schema.fields.len() > limits.columns {
        let detail = format!("{} columns, at most {} are read", schema.fields.len(), limits.columns);
        return Err(Broken::new("limit", FaultKind::Limit, 0, detail));
    }
    let state = Mutex::new(Dictionaries::default());
    Ok(Box::new(IpcFile { ranges, schema: Arc::new(schema), units, dictionaries, state, limits: limits.clone() }))
}

/// What is known of a file before its batches are read.
struct Found {
    schema: Schema,
    units: Vec<Unit>,
    dictionaries: Vec<Place>,
}

/// Where a message is.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Offset of its length.
    at: u64,
    /// Bytes up to its body.
    head: u64,
    /// Bytes of its body.
    body: u64,
}

/// A record batch.
#[derive(Debug, Default)]
struct Unit {
    place: Place,
    rows: u64,
    /// Nulls of each field node.
    nulls: Vec<u64>,
    /// Dictionaries that stand before it.
    dictionaries: usize,
    /// Why there is none.
    broken: Option<Broken>,
}

impl Unit {
    fn broken(broken: Broken) -> Self {
        Self { broken: Some(broken), ..Self::default() }
    }
}

/// Goes through the messages of a file.
struct Walk<'a> {
    ranges: &'a dyn Ranges,
    window: Window,
    size: u64,
    limits: &'a Limits,
}

/// A message of which the head was read.
struct Head {
    place: Place,
    bytes: Bytes,
}

impl Walk<'_> {
    /// Bytes within the file.
    fn bytes(&mut self, range: Range<u64>) -> Result<Bytes, Broken> {
        if let Some(bytes) = self.window.slice(&range) {
            return Ok(bytes);
        }
        let ahead = range.start..range.end.max(self.size.min(range.start.saturating_add(READ_AHEAD)));
        let bytes = self.ranges.read(ahead).map_err(|error| Broken::io(range.start, &error))?;
        self.window = Window { at: range.start, bytes };
        self.window.slice(&range).ok_or_else(|| {
            Broken::new("io-error", FaultKind::Io, range.start, "the file is shorter than when it was opened")
        })
    }

    /// The footer of a file, if there is one.
    fn footer(&mut self) -> Result<Option<Bytes>, Broken> {
        let Some(from) = self.size.checked_sub(TAIL).filter(|from| *from >= 8) else { return Ok(None) };
        let tail = self.bytes(from..self.size)?;
        if !tail.ends_with(MAGIC) {
            return Ok(None);
        }
        let length = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
        if length > from - 8 {
            let detail = format!("a footer of {length} bytes in a file of {}", self.size);
            return Err(Broken::damage(from, detail));
        }
        if length > self.limits.footer {
            let detail = format!("a footer of {length} bytes, at most {} are read", self.limits.footer);
            return Err(Broken::new("limit", FaultKind::Limit, from - length, detail));
        }
        self.bytes(from - length..from).map(Some)
    }

    /// Where the messages of a file begin: writers fill up behind the magic.
    fn first_message(&mut self) -> Result<u64, Broken> {
        let head = self.bytes(0..self.size.min(64 + 8))?;
        let filled = head.get(8..).unwrap_or(&[]).chunks_exact(8).take_while(|bytes| **bytes == [0; 8]).count();
        Ok(8 + 8 * filled as u64)
    }

    /// What a footer says, each block held against the file.
    fn blocks(&mut self, bytes: &Bytes) -> Result<Found, Broken> {
        let at = self.size - TAIL - bytes.len() as u64;
        let footer = tried(at, || root_as_footer(bytes))?;
        let missing = || Broken::damage(at, "broken footer: no schema");
        let schema = schema(footer.schema().ok_or_else(missing)?, at)?;
        let mut found = Found { schema, units: Vec::new(), dictionaries: Vec::new() };
        let place = |block: &arrow_ipc::Block| {
            let number = |number: i64| u64::try_from(number).ok();
            let place = Place {
                at: number(block.offset())?,
                head: number(i64::from(block.metaDataLength()))?,
                body: number(block.bodyLength())?,
            };
            let end = place.at.checked_add(place.head)?.checked_add(place.body)?;
            (end <= at && place.head <= self.limits.footer).then_some(place)
        };
        let outside = || Broken::damage(at, "broken footer: a block outside the file");
        for block in footer.dictionaries().into_iter().flatten() {
            found.dictionaries.push(place(block).ok_or_else(outside)?);
        }
        let mut places = Vec::new();
        places.extend(footer.recordBatches().into_iter().flatten().map(place));
        for place in places {
            let unit = match place {
                None => Err(outside()),
                Some(place) => self.head(place.at).and_then(|head| match head {
                    Some(head) if head.place.head == place.head => record_batch(&head).map(|mut unit| {
                        unit.place.body = place.body;
                        unit.dictionaries = found.dictionaries.len();
                        unit
                    }),
                    _ => Err(Broken::damage(place.at, "no message where the footer says")),
                }),
            };
            found.units.push(unit.unwrap_or_else(Unit::broken));
        }
        Ok(found)
    }

    /// Walks the messages that begin at `at`.
    fn stream(&mut self, mut at: u64) -> Result<Found, Broken> {
        let missing = || Broken::damage(at, "no schema at the begin of the file");
        let (bytes, next) = match self.bare_schema(at)? {
            Some(bare) => bare,
            None => {
                let head = self.head(at)?.ok_or_else(missing)?;
                (head.bytes, at + head.place.head + head.place.body)
            }
        };
        let message = tried(at, || root_as_message(&bytes))?;
        let stored = message.header_as_schema().ok_or_else(missing)?;
        let mut found = Found { schema: schema(stored, at)?, units: Vec::new(), dictionaries: Vec::new() };
        at = next;
        loop {
            let head = match self.head(at) {
                Ok(Some(head)) => head,
                Ok(None) => return Ok(found),
                Err(broken) => {
                    found.units.push(Unit::broken(broken));
                    return Ok(found);
                }
            };
            let end = at + head.place.head + head.place.body;
            if end > self.size {
                let detail = format!("the file ends {} bytes before its last message does", end - self.size);
                found.units.push(Unit::broken(Broken::new("cut-header", FaultKind::Truncated, at, detail)));
                return Ok(found);
            }
            match root_as_message(&head.bytes).map(|message| message.header_type()) {
                Ok(MessageHeader::RecordBatch) => {
                    let mut unit = record_batch(&head).unwrap_or_else(Unit::broken);
                    unit.dictionaries = found.dictionaries.len();
                    found.units.push(unit);
                }
                Ok(MessageHeader::DictionaryBatch) => found.dictionaries.push(head.place),
                Ok(MessageHeader::Schema) => {
                    found.units.push(Unit::broken(Broken::damage(at, "a second schema")));
                    return Ok(found);
                }
                // Tensors are no rows.
                Ok(_) => {}
                Err(error) => {
                    let broken = Broken::damage(at, format!("no message: {error}"));
                    found.units.push(Unit::broken(broken));
                    return Ok(found);
                }
            }
            at = end;
        }
    }

    /// The schema behind a file's magic as polars writes it, without the length that other messages have before them, and
    /// where the next message begins.
    fn bare_schema(&mut self, at: u64) -> Result<Option<(Bytes, u64)>, Broken> {
        if at == 0 || at >= self.size {
            return Ok(None);
        }
        let bytes = self.bytes(at..self.size.min(at.saturating_add(BARE_SCHEMA)))?;
        if bytes.starts_with(&CONTINUATION.to_le_bytes()) {
            return Ok(None);
        }
        if !tried(at, || root_as_message(&bytes)).is_ok_and(|message| message.header_as_schema().is_some()) {
            return Ok(None);
        }
        for place in memchr::memmem::find_iter(&bytes, &CONTINUATION.to_le_bytes()).filter(|place| place % 8 == 0) {
            let next = at + place as u64;
            // Bytes of the schema may look like a begin.
            let Ok(Some(head)) = self.head(next) else { continue };
            let is_rows = |message: arrow_ipc::Message<'_>| {
                matches!(message.header_type(), MessageHeader::RecordBatch | MessageHeader::DictionaryBatch)
            };
            if root_as_message(&head.bytes).is_ok_and(is_rows) {
                return Ok(Some((bytes, next)));
            }
        }
        Ok(Some((bytes, self.size)))
    }

    /// The message at an offset; `None` where the stream ends.
    fn head(&mut self, at: u64) -> Result<Option<Head>, Broken> {
        let cut = || Broken::new("cut-header", FaultKind::Truncated, at, "the file ends inside a message");
        let left = self.size.checked_sub(at).ok_or_else(cut)?;
        if left == 0 {
            return Ok(None);
        }
        if left < 4 {
            return Err(cut());
        }
        let start = self.bytes(at..at + left.min(8))?;
        let word = |at: usize| {
            let bytes = start.get(at..)?.first_chunk::<4>()?;
            Some(u32::from_le_bytes(*bytes))
        };
        let (before, length) = match word(0) {
            Some(CONTINUATION) => (8, word(4).ok_or_else(cut)?),
            length => (4, length.unwrap_or(0)),
        };
        if length == 0 {
            return Ok(None);
        }
        let length = u64::from(length);
        if length > self.limits.footer {
            let detail = format!("a message of {length} bytes, at most {} are read", self.limits.footer);
            return Err(Broken::new("limit", FaultKind::Limit, at, detail));
        }
        if before + length > left {
            return Err(cut());
        }
        let bytes = self.bytes(at + before..at + before + length)?;
        let message = tried(at, || root_as_message(&bytes))?;
        let body = u64::try_from(message.bodyLength()).ok().filter(|body| *body <= i64::MAX as u64 / 2);
        let body = body.ok_or_else(|| Broken::damage(at, "a message of negative length"))?;
        Ok(Some(Head { place: Place { at, head: before + length, body }, bytes }))
    }
}

/// The schema, unless something of it is of no known type.
fn schema(stored: arrow_ipc::Schema<'_>, at: u64) -> Result<Schema, Broken> {
    if stored.endianness() != Endianness::Little {
        return Err(Broken::new("unsupported", FaultKind::Version, at, "numbers in big-endian order"));
    }
    // The crate says so of types that it does not know; of all else that it unwraps the bytes are to blame.
    let unknown = |broken: Broken| match broken.detail.contains("not supported") {
        true => Broken::new("unsupported", FaultKind::Version, at, broken.detail),
        false => broken,
    };
    let schema = super::guard::guarded(at, || fb_to_schema(stored)).map_err(unknown)?;
    match schema.fields.iter().all(|field| is_shallow(field.data_type(), DEPTH)) {
        true => Ok(schema),
        false => Err(Broken::damage(at, "the schema is nested too deep")),
    }
}

fn is_shallow(kind: &DataType, left: usize) -> bool {
    left > 0 && children(kind).into_iter().all(|child| is_shallow(child, left - 1))
}

/// The types inside a type whose arrays are stored with it.
fn children(kind: &DataType) -> Vec<&DataType> {
    match kind {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => vec![item.data_type()],
        DataType::Struct(fields) => fields.iter().map(|field| field.data_type()).collect(),
        DataType::Union(fields, _) => fields.iter().map(|(_, field)| field.data_type()).collect(),
        DataType::RunEndEncoded(ends, values) => vec![ends.data_type(), values.data_type()],
        _ => Vec::new(),
    }
}

/// Buffers of an array itself, those of views left out that it has any number of.
fn own_buffers(kind: &DataType, version: MetadataVersion) -> usize {
    match kind {
        DataType::Null | DataType::RunEndEncoded(..) => 0,
        DataType::Struct(_) | DataType::FixedSizeList(..) => 1,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => 3,
        DataType::ListView(_) | DataType::LargeListView(_) => 3,
        DataType::Union(_, mode) => {
            1 + usize::from(version < MetadataVersion::V5) + usize::from(*mode == UnionMode::Dense)
        }
        _ => 2,
    }
}

/// Counts of what stands in a message for some fields.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    nodes: usize,
    buffers: usize,
    views: usize,
}

impl Counts {
    /// Adds those of a type. `views`: buffers of each array of views.
    fn add(&mut self, kind: &DataType, version: MetadataVersion, views: &[u64]) -> Option<()> {
        self.nodes += 1;
        self.buffers += own_buffers(kind, version);
        if matches!(kind, DataType::Utf8View | DataType::BinaryView) {
            self.buffers = self.buffers.checked_add(usize::try_from(*views.get(self.views)?).ok()?)?;
            self.views += 1;
        }
        children(kind).into_iter().try_for_each(|child| self.add(child, version, views))
    }
}

/// What the message of a record batch says of its rows.
fn record_batch(head: &Head) -> Result<Unit, Broken> {
    let at = head.place.at;
    let message = tried(at, || root_as_message(&head.bytes))?;
    let batch = message.header_as_record_batch().ok_or_else(|| Broken::damage(at, "no record batch"))?;
    let rows = u64::try_from(batch.length()).map_err(|_| Broken::damage(at, "a negative number of rows"))?;
    let mut nulls = Vec::new();
    nulls.extend(batch.nodes().into_iter().flatten().map(|node| u64::try_from(node.null_count()).unwrap_or(u64::MAX)));
    Ok(Unit { place: head.place, rows, nulls, dictionaries: 0, broken: None })
}

/// Dictionaries by their number, as they stand behind the first so many messages.
#[derive(Default)]
struct Dictionaries {
    applied: usize,
    by_id: HashMap<i64, ArrayRef>,
}

/// An open file or stream.
struct IpcFile {
    ranges: Arc<dyn Ranges>,
    schema: SchemaRef,
    units: Vec<Unit>,
    dictionaries: Vec<Place>,
    /// The newest state, kept from unit to unit.
    state: Mutex<Dictionaries>,
    limits: Limits,
}

impl TableFile for IpcFile {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn units(&self) -> usize {
        self.units.len()
    }

    fn rows(&self, unit: usize) -> u64 {
        self.units.get(unit).map_or(0, |unit| unit.rows)
    }

    fn nulls(&self, unit: usize, column: usize) -> Option<u64> {
        let unit = self.units.get(unit)?;
        let mut counts = Counts::default();
        for field in self.schema.fields.get(..column)? {
            // Views do not change the number of nodes.
            add_nodes(field.data_type(), &mut counts);
        }
        match self.schema.fields.get(column)?.data_type() {
            DataType::Null => Some(unit.rows),
            _ => unit.nulls.get(counts.nodes).copied().filter(|nulls| *nulls <= unit.rows),
        }
    }

    fn read(
        &self,
        unit: usize,
        columns: &[usize],
        batch: usize,
        give: &mut dyn FnMut(RecordBatch) -> bool,
    ) -> Result<(), Broken> {
        let unit = &self.units[unit];
        if let Some(broken) = &unit.broken {
            return Err(broken.clone());
        }
        let rows = self.whole(unit, columns)?;
        let batch = batch.max(1);
        let mut at = 0;
        while at < rows.num_rows() {
            let count = batch.min(rows.num_rows() - at);
            if !give(rows.slice(at, count)) {
                break;
            }
            at += count;
        }
        Ok(())
    }
}

fn add_nodes(kind: &DataType, counts: &mut Counts) {
    counts.nodes += 1;
    children(kind).into_iter().for_each(|child| add_nodes(child, counts));
}

fn has_dictionary(kind: &DataType) -> bool {
    matches!(kind, DataType::Dictionary(..)) || children(kind).into_iter().any(has_dictionary)
}

impl IpcFile {
    /// The wanted columns of a batch.
    fn whole(&self, unit: &Unit, columns: &[usize]) -> Result<RecordBatch, Broken> {
        let at = unit.place.at;
        let schema = self.schema.project(columns).map_err(|error| Broken::damage(at, error.to_string()))?;
        let schema = Arc::new(schema);
        if columns.is_empty() {
            let options = RecordBatchOptions::new().with_row_count(Some(unit.rows as usize));
            return RecordBatch::try_new_with_options(schema, Vec::new(), &options)
                .map_err(|error| Broken::damage(at, error.to_string()));
        }
        let message = self.message(&unit.place)?;
        let stored = tried(at, || root_as_message(&message))?;
        let version = stored.version();
        let batch = stored.header_as_record_batch().ok_or_else(|| Broken::damage(at, "no record batch"))?;
        let types: Vec<&DataType> = self.schema.fields.iter().map(|field| field.data_type()).collect();
        let wanted = self.take_apart(&unit.place, batch, version, &types, columns)?;
        let mut builder = FlatBufferBuilder::new();
        let root = wanted.batch(&mut builder);
        builder.finish_minimal(root);
        let bytes = builder.finished_data();
        let needs_dictionaries = schema.fields.iter().any(|field| has_dictionary(field.data_type()));
        let decode = |by_id: &HashMap<i64, ArrayRef>| {
            tried(at, || {
                let batch = flatbuffers::root::<arrow_ipc::RecordBatch<'_>>(bytes)
                    .map_err(|error| arrow_schema::ArrowError::IpcError(error.to_string()))?;
                let decoder = RecordBatchDecoder::try_new(&wanted.body, batch, Arc::clone(&schema), by_id, &version)?;
                decoder.read_record_batch()
            })
        };
        let rows = if needs_dictionaries {
            // A panic under the lock leaves no half of anything: dictionaries are put in whole.
            let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            self.apply(&mut state, unit.dictionaries)?;
            decode(&state.by_id)?
        } else {
            decode(&HashMap::new())?
        };
        match rows.num_rows() as u64 == unit.rows {
            true => Ok(rows),
            false => Err(Broken::damage(at, format!("{} rows in a batch of {}", rows.num_rows(), unit.rows))),
        }
    }

    /// Bytes of a message without its length and body.
    fn message(&self, place: &Place) -> Result<Bytes, Broken> {
        let bytes = self.read_range(place.at..place.at + place.head)?;
        let before = if bytes.starts_with(&CONTINUATION.to_le_bytes()) { 8 } else { 4 };
        match bytes.len() >= before {
            true => Ok(bytes.slice(before..)),
            false => Err(Broken::damage(place.at, "no message")),
        }
    }

    fn read_range(&self, range: Range<u64>) -> Result<Bytes, Broken> {
        let want = range.end - range.start;
        let bytes = self.ranges.read(range.clone()).map_err(|error| Broken::io(range.start, &error))?;
        match bytes.len() as u64 == want {
            true => Ok(bytes),
            false => {
                let detail = "the file is shorter than when it was opened";
                Err(Broken::new("io-error", FaultKind::Io, range.start, detail))
            }
        }
    }

    /// Brings the dictionaries to where they stand behind the first `count` messages.
    fn apply(&self, state: &mut Dictionaries, count: usize) -> Result<(), Broken> {
        if state.applied > count {
            *state = Dictionaries::default();
        }
        while state.applied < count {
            let place = self.dictionaries[state.applied];
            let message = self.message(&place)?;
            let stored = tried(place.at, || root_as_message(&message))?;
            let version = stored.version();
            let missing = || Broken::damage(place.at, "no dictionary where there should be one");
            let dictionary = stored.header_as_dictionary_batch().ok_or_else(missing)?;
            let batch = dictionary.data().ok_or_else(missing)?;
            #[allow(deprecated, reason = "the number stands nowhere else; the crate itself reads it so")]
            let fields = self.schema.fields_with_dict_id(dictionary.id());
            let Some(DataType::Dictionary(_, values)) = fields.first().map(|field| field.data_type()) else {
                return Err(Broken::damage(place.at, "a dictionary of no column"));
            };
            let wanted = self.take_apart(&place, batch, version, &[values.as_ref()], &[0])?;
            let mut builder = FlatBufferBuilder::new();
            let data = Some(wanted.batch(&mut builder));
            let arguments = DictionaryBatchArgs { id: dictionary.id(), data, isDelta: dictionary.isDelta() };
            let root = arrow_ipc::DictionaryBatch::create(&mut builder, &arguments);
            builder.finish_minimal(root);
            tried(place.at, || {
                let dictionary = flatbuffers::root::<arrow_ipc::DictionaryBatch<'_>>(builder.finished_data())
                    .map_err(|error| arrow_schema::ArrowError::IpcError(error.to_string()))?;
                read_dictionary(&wanted.body, dictionary, &self.schema, &mut state.by_id, &version)
            })?;
            state.applied += 1;
        }
        Ok(())
    }

    /// Takes what belongs to some columns out of a batch: nodes, and buffers, unpacked.
    fn take_apart(
        &self,
        place: &Place,
        batch: arrow_ipc::RecordBatch<'_>,
        version: MetadataVersion,
        types: &[&DataType],
        columns: &[usize],
    ) -> Result<Wanted, Broken> {
        let at = place.at;
        let odd = |what: &str| Broken::damage(at, what);
        let mut views: Vec<u64> = Vec::new();
        for count in batch.variadicBufferCounts().into_iter().flatten() {
            views.push(u64::try_from(count).map_err(|_| odd("a negative number of buffers"))?);
        }
        let (nodes, buffers) = batch.nodes().zip(batch.buffers()).ok_or_else(|| odd("a batch without buffers"))?;
        let codec = match batch.compression().map(|compression| compression.codec()) {
            None => None,
            Some(codec @ (CompressionType::LZ4_FRAME | CompressionType::ZSTD)) => Some(codec),
            Some(_) => return Err(Broken::new("unsupported", FaultKind::Version, at, "an unknown compression")),
        };
        let mut wanted = Wanted { rows: batch.length(), ..Wanted::default() };
        let mut places: Vec<Range<u64>> = Vec::new();
        let (mut counts, mut next) = (Counts::default(), columns.iter().peekable());
        for (column, kind) in types.iter().enumerate() {
            if next.peek().is_none() {
                break;
            }
            let from = counts;
            counts.add(kind, version, &views).ok_or_else(|| odd("more views than a batch has"))?;
            if counts.nodes > nodes.len() || counts.buffers > buffers.len() {
                return Err(odd("fewer buffers than the schema asks for"));
            }
            if next.next_if(|wanted| **wanted == column).is_none() {
                continue;
            }
            wanted.nodes.extend((from.nodes..counts.nodes).map(|node| *nodes.get(node)));
            wanted.views.extend(views[from.views..counts.views].iter().map(|count| *count as i64));
            for buffer in (from.buffers..counts.buffers).map(|buffer| buffers.get(buffer)) {
                let number = |number: i64| u64::try_from(number).ok();
                let range = number(buffer.offset()).zip(number(buffer.length()));
                let range = range.and_then(|(offset, length)| Some(offset..offset.checked_add(length)?));
                // Some writers let an empty buffer point anywhere.
                let range = range.filter(|range| range.end <= place.body || range.is_empty());
                places.push(range.ok_or_else(|| odd("a buffer outside its batch"))?);
            }
            let Some(top) = wanted.nodes.len().checked_sub(counts.nodes - from.nodes) else { continue };
            if wanted.nodes[top].length() != wanted.rows {
                return Err(odd("a column of another length than its batch"));
            }
        }
        let most = ROWS_FREE + place.body.saturating_mul(ROWS_PER_BYTE);
        let is_plausible = |node: &FieldNode| {
            let length = u64::try_from(node.length()).unwrap_or(u64::MAX);
            length <= most && u64::try_from(node.null_count()).is_ok_and(|nulls| nulls <= length)
        };
        if !wanted.nodes.iter().all(is_plausible) {
            return Err(odd("a number of values that is not plausible"));
        }
        // Buffers that share bytes would make more of them than the file has.
        let sum = places.iter().fold(0u64, |sum, range| sum.saturating_add(range.end - range.start));
        if sum > place.body {
            return Err(odd("buffers that overlap"));
        }
        self.fill(place, &places, codec, &mut wanted)?;
        Ok(wanted)
    }

    /// Reads the buffers at `places` of a body, neighbours together, and unpacks them.
    fn fill(
        &self,
        place: &Place,
        places: &[Range<u64>],
        codec: Option<CompressionType>,
        wanted: &mut Wanted,
    ) -> Result<(), Broken> {
        let begin = place.at + place.head;
        let mut spans: Vec<Range<u64>> = places.iter().filter(|range| !range.is_empty()).cloned().collect();
        spans.sort_unstable_by_key(|range| range.start);
        spans.dedup_by(|next, span| {
            let near = next.start <= span.end.saturating_add(GAP);
            if near {
                span.end = span.end.max(next.end);
            }
            near
        });
        let mut windows = Vec::new();
        for span in spans {
            let bytes = self.read_range(begin + span.start..begin + span.end)?;
            windows.push(Window { at: span.start, bytes });
        }
        let slice = |range: &Range<u64>| {
            let found = windows.iter().find_map(|window| window.slice(range));
            found.filter(|_| !range.is_empty()).unwrap_or_default()
        };
        if let ([window], None) = (&windows[..], codec) {
            // Nothing to unpack and nothing between: the bytes are the body as they are.
            let offset = |range: &Range<u64>| if range.is_empty() { 0 } else { (range.start - window.at) as i64 };
            let length = |range: &Range<u64>| (range.end - range.start) as i64;
            wanted.buffers.extend(places.iter().map(|range| arrow_ipc::Buffer::new(offset(range), length(range))));
            wanted.body = Buffer::from(window.bytes.clone());
            return Ok(());
        }
        let mut body: Vec<u8> = Vec::new();
        let mut unpacker = None;
        for range in places {
            body.resize(body.len().next_multiple_of(ALIGNMENT), 0);
            let from = body.len();
            let stored = slice(range);
            match codec {
                Some(codec) if !stored.is_empty() => {
                    unpack(&stored, codec, self.limits.page, &mut body, &mut unpacker).map_err(|mut broken| {
                        broken.at = begin + range.start;
                        broken
                    })?;
                }
                _ => body.extend_from_slice(&stored),
            }
            wanted.buffers.push(arrow_ipc::Buffer::new(from as i64, (body.len() - from) as i64));
        }
        wanted.body = Buffer::from_vec(body);
        Ok(())
    }
}

/// The wanted columns of a batch, unpacked.
#[derive(Debug, Default)]
struct Wanted {
    rows: i64,
    nodes: Vec<FieldNode>,
    buffers: Vec<arrow_ipc::Buffer>,
    views: Vec<i64>,
    body: Buffer,
}

impl Wanted {
    /// The head of a batch of nothing else.
    fn batch<'a>(&self, builder: &mut FlatBufferBuilder<'a>) -> flatbuffers::WIPOffset<arrow_ipc::RecordBatch<'a>> {
        let nodes = Some(builder.create_vector(&self.nodes));
        let buffers = Some(builder.create_vector(&self.buffers));
        let views = (!self.views.is_empty()).then(|| builder.create_vector(&self.views));
        let arguments =
            RecordBatchArgs { length: self.rows, nodes, buffers, compression: None, variadicBufferCounts: views };
        arrow_ipc::RecordBatch::create(builder, &arguments)
    }
}

/// Appends what a compressed buffer holds: its plain length in eight bytes (-1: it is not compressed), then a frame.
fn unpack(
    stored: &Bytes,
    codec: CompressionType,
    page: u64,
    into: &mut Vec<u8>,
    zstd: &mut Option<zstd::bulk::Decompressor<'static>>,
) -> Result<(), Broken> {
    let damage = |what: String| Broken::damage(0, what);
    let Some((length, frame)) = stored.split_first_chunk::<8>() else {
        return Err(damage("a compressed buffer of less than eight bytes".to_owned()));
    };
    let length = i64::from_le_bytes(*length);
    if length == -1 {
        into.extend_from_slice(frame);
        return Ok(());
    }
    let length = u64::try_from(length).map_err(|_| damage("a buffer of negative length".to_owned()))?;
    if length > page.saturating_add((frame.len() as u64).saturating_mul(RATIO)) {
        let detail = format!("a buffer of {length} bytes from {}, at most {page} are read", frame.len());
        return Err(Broken::new("limit", FaultKind::Limit, 0, detail));
    }
    let from = into.len();
    let end = from + length as usize;
    match codec {
        CompressionType::ZSTD => {
            unzstd(frame, end, TRUSTED + from, into, zstd).map_err(|error| damage(error.to_string()))?;
        }
        _ => {
            // One byte more, so that a longer buffer is seen.
            let frames = lz4_flex::frame::FrameDecoder::new(frame);
            frames.take(length + 1).read_to_end(into).map_err(|error| damage(error.to_string()))?;
        }
    }
    match into.len() == end {
        true => Ok(()),
        false => Err(damage(format!("a buffer of {} bytes, its prefix says {length}", into.len() - from))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::table::testing::{self, Memory, damage, flat, ipc_file, ipc_stream, nested, opened, read};
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float64Type, Int32Type};
    use arrow_array::{Array, DictionaryArray, Float64Array, Int64Array, StringArray};
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::{DictionaryHandling, IpcWriteOptions};
    use arrow_schema::Field;

    fn options(compression: Option<CompressionType>) -> IpcWriteOptions {
        IpcWriteOptions::default().try_with_compression(compression).unwrap()
    }

    fn write(is_file: bool, batches: &[RecordBatch], options: IpcWriteOptions) -> Vec<u8> {
        if is_file { ipc_file(batches, options) } else { ipc_stream(batches, options) }
    }

    /// Two columns, of which the first is compressible.
    fn small(from: i64, rows: i64) -> RecordBatch {
        let norm = |step: i64| if step % 10 == 7 { f64::NAN } else { 1.0 / (step + 1) as f64 };
        RecordBatch::try_from_iter([
            ("step", Arc::new(Int64Array::from_iter_values(from..from + rows)) as ArrayRef),
            ("grad_norm", Arc::new(Float64Array::from_iter_values((from..from + rows).map(norm)))),
        ])
        .unwrap()
    }

    #[test]
    fn every_type_in_files_and_streams() {
        let mut seen = 0;
        for compression in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)] {
            for (is_file, written) in
                [true, false].iter().flat_map(|file| [flat(100), nested(100)].map(|all| (*file, all)))
            {
                let (first, rest) = (written.slice(0, 60), written.slice(60, 40));
                let bytes = write(is_file, &[first, rest], options(compression));
                let table = opened(open, &bytes, &Limits::default()).unwrap();
                assert_eq!((table.units(), table.rows(0), table.rows(1)), (2, 60, 40));
                let all: Vec<usize> = (0..written.num_columns()).collect();
                for columns in all.iter().map(std::slice::from_ref).chain([&all[..], &[0, 4]]) {
                    let (batches, broken) = read(&*table, columns, 33);
                    assert_eq!(broken, []);
                    let mut at = 0;
                    for rows in &batches {
                        let want = written.slice(at, rows.num_rows()).project(columns).unwrap();
                        assert_eq!(format!("{rows:?}"), format!("{want:?}"));
                        at += rows.num_rows();
                        seen += 1;
                    }
                    assert_eq!(at, 100);
                }
                for column in all {
                    let nulls = written.column(column).slice(0, 60).logical_null_count() as u64;
                    assert_eq!(table.nulls(0, column), Some(nulls), "{}", table.schema().field(column).name());
                }
                assert_eq!(table.nulls(0, 99), None);
            }
        }
        assert!(seen > 100);
    }

    #[test]
    fn old_framing_is_read() {
        for alignment in [8, 64] {
            let old = IpcWriteOptions::try_new(alignment, true, MetadataVersion::V4).unwrap();
            for is_file in [true, false] {
                let bytes = write(is_file, &[small(0, 5), small(5, 5)], old.clone());
                let table = opened(open, &bytes, &Limits::default()).unwrap();
                let (batches, broken) = read(&*table, &[1], 100);
                assert_eq!((batches.len(), broken), (2, vec![]));
            }
        }
    }

    fn runs(names: &[&str]) -> RecordBatch {
        let names: DictionaryArray<Int32Type> = names.iter().copied().map(Some).collect();
        RecordBatch::try_from_iter([("run", Arc::new(names) as ArrayRef)]).unwrap()
    }

    fn texts(batches: &[RecordBatch]) -> Vec<String> {
        let text = |rows: &RecordBatch| {
            let cast = arrow_cast::cast(rows.column(0), &DataType::Utf8).unwrap();
            let texts: &StringArray = cast.as_string();
            texts.iter().map(|text| text.unwrap_or("null").to_owned()).collect::<Vec<_>>()
        };
        batches.iter().flat_map(text).collect()
    }

    #[test]
    fn dictionaries_stand_as_they_did_at_their_batch() {
        let batches = [runs(&["a", "b"]), runs(&["a", "b", "c"]), runs(&["x"])];
        let replaced = ipc_stream(&batches, options(None));
        let grown = options(Some(CompressionType::ZSTD)).with_dictionary_handling(DictionaryHandling::Delta);
        let grown_stream = ipc_stream(&batches[..2], grown.clone());
        let grown_file = ipc_file(&batches[..2], grown);
        for (bytes, want) in [
            (replaced, &["a", "b", "a", "b", "c", "x"][..]),
            (grown_stream, &["a", "b", "a", "b", "c"]),
            (grown_file, &["a", "b", "a", "b", "c"]),
        ] {
            let table = opened(open, &bytes, &Limits::default()).unwrap();
            let (batches, broken) = read(&*table, &[0], 100);
            assert_eq!((texts(&batches), broken), (want.iter().map(|text| (*text).to_owned()).collect(), vec![]));
            // Backwards, each unit for itself.
            let mut back = Vec::new();
            for unit in (0..table.units()).rev() {
                table
                    .read(unit, &[0], 100, &mut |rows| {
                        back.insert(0, rows);
                        true
                    })
                    .unwrap();
            }
            assert_eq!(texts(&back), want);
        }
    }

    #[test]
    fn whole_batches_of_a_cut_stream_count() {
        let batches = [small(0, 50), small(50, 50), small(100, 50)];
        for is_file in [true, false] {
            let bytes = write(is_file, &batches, options(None));
            let (mut most, mut told, mut open_at) = (0, 0, 0);
            for cut in 0..bytes.len() {
                let Ok(table) = opened(open, &bytes[..cut], &Limits::default()) else {
                    assert_eq!(open_at, 0, "a longer piece is refused");
                    continue;
                };
                open_at = cut;
                let (batches, broken) = read(&*table, &[0, 1], 100);
                let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
                assert!(rows >= most && rows.is_multiple_of(50), "{rows} rows after {most}");
                most = rows;
                assert!(broken.iter().all(|broken| broken.kind == FaultKind::Truncated), "{cut}: {broken:?}");
                told += usize::from(!broken.is_empty());
            }
            assert_eq!(most, 150);
            assert!(told > 500, "{told} cuts were told");
        }
    }

    #[test]
    fn only_wanted_columns_are_read() {
        #[derive(Debug)]
        struct Counting(Memory, std::sync::atomic::AtomicU64);
        impl Ranges for Counting {
            fn size(&self) -> u64 {
                self.0.size()
            }
            fn read(&self, range: Range<u64>) -> std::io::Result<Bytes> {
                self.1.fetch_add(range.end - range.start, std::sync::atomic::Ordering::Relaxed);
                self.0.read(range)
            }
        }
        let column = |at: i64| Arc::new(Int64Array::from_iter_values((0..50_000).map(|row| row * at))) as ArrayRef;
        let names: Vec<String> = (0..10).map(|at| format!("c{at}")).collect();
        let wide = RecordBatch::try_from_iter(names.iter().zip(0..).map(|(name, at)| (name, column(at)))).unwrap();
        let bytes = ipc_file(std::slice::from_ref(&wide), options(None));
        let file = Arc::new(Counting(Memory(bytes.into()), Default::default()));
        let table = open(file.clone(), &Limits::default()).unwrap();
        let (batches, broken) = read(&*table, &[2, 9], 1 << 20);
        assert_eq!((broken, &batches), (vec![], &vec![wide.project(&[2, 9]).unwrap()]));
        let read = file.1.load(std::sync::atomic::Ordering::Relaxed);
        assert!((800_000..1_200_000).contains(&read), "{read} bytes read");
    }

    #[test]
    fn any_cut_and_any_byte_give_an_outcome() {
        let few = flat(6).project(&[0, 4, 12, 13, 15, 17, 22, 24]).unwrap();
        let files = [
            ipc_file(std::slice::from_ref(&few), options(None)),
            ipc_stream(
                &[few, flat(3).project(&[0, 4, 12, 13, 15, 17, 22, 24]).unwrap()],
                options(Some(CompressionType::LZ4_FRAME)),
            ),
            ipc_file(&[nested(10)], options(Some(CompressionType::ZSTD))),
        ];
        let (mut whole, mut faulty, mut refused) = (0, 0, 0);
        for bytes in &files {
            let found = damage(open, bytes, &Limits { page: 1 << 20, ..Limits::default() });
            (whole, faulty, refused) = (whole + found.0, faulty + found.1, refused + found.2);
        }
        assert!(whole > 500 && faulty > 500 && refused > 500, "{whole} {faulty} {refused}");
    }

    #[test]
    fn limits_and_refusals() {
        let code = |bytes: &[u8], limits: &Limits| opened(open, bytes, limits).err().map(|broken| broken.code);
        let file = ipc_file(&[flat(100)], options(None));
        assert_eq!(code(&file, &Limits { footer: 100, ..Limits::default() }), Some("limit"));
        assert_eq!(code(&file, &Limits { columns: 3, ..Limits::default() }), Some("limit"));
        assert_eq!(code(b"FEA1 and more", &Limits::default()), Some("unsupported"));
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n";
        assert_eq!(code(pointer, &Limits::default()), Some("git-lfs-pointer"));
        for bytes in [&b""[..], b"ARROW1", b"ARROW1\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\x10\0\0\0"] {
            assert_eq!(code(bytes, &Limits::default()), Some("cut-header"), "{bytes:?}");
        }
    }

    /// A stream of the batch, and the place of a number in it.
    fn place_of(bytes: &[u8], number: i64) -> usize {
        memchr::memmem::find(bytes, &number.to_le_bytes()).expect("the number stands in the file")
    }

    #[test]
    fn forged_numbers() {
        let limits = Limits { page: 1 << 16, ..Limits::default() };
        let faults = |bytes: &[u8]| {
            let table = opened(open, bytes, &limits).unwrap();
            read(&*table, &[0, 1], 100).1
        };
        // 1: a compressed buffer that claims to hold 2^40 bytes: reserving them would end the process.
        let rows = RecordBatch::try_from_iter([
            ("x", Arc::new(Int64Array::from(vec![7; 4321])) as ArrayRef),
            ("y", Arc::new(Int64Array::from(vec![9; 4321]))),
        ])
        .unwrap();
        for codec in [CompressionType::ZSTD, CompressionType::LZ4_FRAME] {
            let sound = ipc_stream(std::slice::from_ref(&rows), options(Some(codec)));
            assert_eq!(faults(&sound), []);
            let at = place_of(&sound, 4321 * 8);
            let mut bytes = sound.clone();
            bytes[at..at + 8].copy_from_slice(&(1i64 << 40).to_le_bytes());
            assert_eq!(faults(&bytes)[0].kind, FaultKind::Limit);
            // 2: one that holds more than it says, and would be unpacked to its end.
            bytes[at..at + 8].copy_from_slice(&64i64.to_le_bytes());
            assert_eq!(faults(&bytes)[0].kind, FaultKind::Unparsable);
            // 3: one of negative length.
            bytes[at..at + 8].copy_from_slice(&(-2i64).to_le_bytes());
            assert_eq!(faults(&bytes)[0].kind, FaultKind::Unparsable);
        }
        // 4: a batch of 2^40 rows in a small file.
        let nulls =
            RecordBatch::try_from_iter([("n", Arc::new(arrow_array::NullArray::new(54321)) as ArrayRef)]).unwrap();
        let mut bytes = ipc_stream(&[nulls], options(None));
        while let Some(at) = memchr::memmem::find(&bytes, &54321i64.to_le_bytes()) {
            bytes[at..at + 8].copy_from_slice(&(1i64 << 40).to_le_bytes());
        }
        assert_eq!(opened(open, &bytes, &limits).err().unwrap().code, "limit");
        // 5: a schema nested 500 deep, against walks by recursion.
        let mut deep = DataType::Int8;
        for _ in 0..500 {
            deep = DataType::List(Arc::new(Field::new("item", deep, true)));
        }
        let schema = Arc::new(Schema::new(vec![Field::new("x", deep, true)]));
        let bytes = ipc_stream(&[RecordBatch::new_empty(schema)], options(None));
        assert!(opened(open, &bytes, &limits).is_err_and(|broken| !broken.detail.is_empty()));
    }

    #[test]
    fn a_batch_outside_the_file_costs_itself() {
        let bytes = ipc_file(&[small(0, 5), small(5, 5)], options(None));
        let tail = bytes.len() - 10;
        let length = u32::from_le_bytes(bytes[tail..tail + 4].try_into().unwrap()) as usize;
        let footer = root_as_footer(&bytes[tail - length..tail]).unwrap();
        let second = footer.recordBatches().unwrap().get(1).offset();
        let at = tail - length + memchr::memmem::find(&bytes[tail - length..], &second.to_le_bytes()).unwrap();
        for forged in [1i64 << 40, -8, second + 8] {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&forged.to_le_bytes());
            let table = opened(open, &bytes, &Limits::default()).unwrap();
            let (batches, broken) = read(&*table, &[1], 100);
            assert_eq!((batches.len(), broken.len(), table.units()), (1, 1, 2), "{forged}");
            assert_eq!(batches[0].column(0).as_primitive::<Float64Type>().len(), 5);
        }
    }

    #[test]
    fn nothing_is_shared() {
        // Two buffers in the same place: bytes would count twice.
        let bytes = testing::ipc_stream(&[small(0, 400)], options(None));
        let table = opened(open, &bytes, &Limits::default()).unwrap();
        assert_eq!(read(&*table, &[0, 1], 1000).1, []);
        let at = place_of(&bytes, 3200);
        let forged = (at..bytes.len() - 8).filter(|at| bytes[*at..*at + 8] == 3200i64.to_le_bytes());
        let mut refused = 0;
        for at in forged {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&6000i64.to_le_bytes());
            if let Ok(table) = opened(open, &bytes, &Limits::default()) {
                refused += read(&*table, &[0, 1], 1000).1.len();
            }
        }
        assert!(refused >= 1);
    }
}
