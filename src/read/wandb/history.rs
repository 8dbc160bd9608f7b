//! History records: one is a row. Items come in any order (the writer walks a hash map), so a row is gathered first and
//! given to the builder column by column.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::metrics::Metrics;
use crate::model::recording::Doubt;
use crate::model::{Role, roles};
use crate::read::builder::{Builder, Want, is_primary};
use crate::wire::json::{Cursor, Kind, Stop};
use crate::wire::leveldb::Record;
use crate::wire::numbers::{Cell, number_at, parse_f64, parse_text_value, parse_word};
use crate::wire::protobuf::{Fields, Malformed, Value};

/// W&B's own counter of rows.
const OWN_STEP: &[u8] = b"_step";
/// What tells that the keys beside it describe an image, a histogram, a table.
const MEDIA_TYPE: &[u8] = b"._type";
/// The tag of an item, and those of its fields `key`, `nested_key` and `value_json`.
const ITEM: u8 = 0x0a;
const KEY: u8 = 0x0a;
const NESTED_KEY: u8 = 0x12;
const VALUE_JSON: [u8; 2] = [0x82, 0x01];
/// Depth of JSON objects that are taken apart.
const DEPTH: usize = 64;

/// A value of the current row. Ranges are of the record.
#[derive(Clone, Copy, Debug)]
enum Held {
    Json { start: u32, length: u32 },
    Number(f64),
    Text { start: u32, length: u32 },
    Null,
}

/// What is known of a column.
#[derive(Debug)]
struct Column {
    name: Box<[u8]>,
    id: u32,
    want: Want,
    /// It describes an image, a histogram, a table: filled, and no number.
    is_media: bool,
    /// The training's own: gradient norms, losses.
    role: Option<Role>,
}

/// Places of the cache of columns, by a hash of what [`Key`] holds of their names.
const CACHE: usize = 1 << 10;
/// Bytes of a name that a [`Key`] holds whole.
const WHOLE: usize = 24;

/// A name as three words and its length, in which nearly all names are whole: they come in any order, and a loop over their
/// bytes would be guessed wrong at every one.
#[derive(Clone, Copy, Debug)]
struct Key {
    words: [u64; 3],
    length: usize,
}

impl Key {
    /// `behind` begins with the name.
    #[inline(always)]
    fn new(name: &[u8], behind: &[u8]) -> Self {
        let length = name.len();
        let word = |at: usize| name.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_le_bytes(*word));
        let words = if length >= 8 {
            let last = length - 8;
            [word(0), word(if length <= WHOLE { last.min(8) } else { last / 2 }), word(last)]
        } else if let Some(word) = behind.first_chunk() {
            [u64::from_le_bytes(*word) & !(u64::MAX << (8 * length)), 0, 0]
        } else {
            [name.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)), 0, 0]
        };
        Self { words, length }
    }

    /// Word by word: a comparison of both as one would wait for the stores of the words.
    #[inline(always)]
    fn is(&self, other: &Self) -> bool {
        let ([a, b, c], [d, e, f]) = (self.words, other.words);
        (a ^ d) | (b ^ e) | (c ^ f) | (self.length ^ other.length) as u64 == 0
    }

    #[inline(always)]
    fn place(&self) -> usize {
        let [first, middle, last] = self.words;
        let mixed = first ^ middle.rotate_left(23) ^ last.rotate_left(41) ^ self.length as u64;
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % CACHE
    }
}

/// The rows of a run, and what must be remembered between them.
#[derive(Debug)]
pub struct History {
    columns: Vec<Column>,
    index: HashMap<Box<[u8]>, u32>,
    cache: Box<[(Key, u32)]>,
    /// Names before [`MEDIA_TYPE`].
    media: HashSet<Box<[u8]>>,
    /// Which columns the current row has, a bit each, and its values.
    present: Vec<u64>,
    cells: Vec<Held>,
    name: Vec<u8>,
    text: String,
    own_step: Option<u32>,
    last_steps: HashMap<u32, i64>,
    doubts: BTreeMap<u32, Doubt>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            columns: Vec::new(),
            index: HashMap::new(),
            // No name is as long.
            cache: vec![(Key { words: [0; 3], length: usize::MAX }, 0); CACHE].into(),
            media: HashSet::new(),
            present: Vec::new(),
            cells: Vec::new(),
            name: Vec::new(),
            text: String::new(),
            own_step: None,
            last_steps: HashMap::new(),
            doubts: BTreeMap::new(),
        }
    }
}

impl History {
    /// Cells that may have been NaN or missing.
    pub fn doubts(self) -> Vec<Doubt> {
        self.doubts.into_values().collect()
    }

    /// Takes a `HistoryRecord`, which lies in a record. `is_old`: its writer puts null for some NaN.
    #[inline]
    pub fn row(
        &mut self,
        record: &Record<'_>,
        message: &[u8],
        is_old: bool,
        metrics: &Metrics,
        into: &mut Builder<'_>,
    ) -> Result<(), Malformed> {
        into.begin_row(record.at);
        let known = self.columns.len();
        let mut own_step = None;
        let gathered = self.gather(record.bytes, message, &mut own_step, into);
        if gathered.is_err() {
            self.present.fill(0);
            return gathered;
        }
        if let Some(step) = own_step
            && let Some(column) = self.own_step(into)
            && !self.is_present(column)
        {
            into.whole_step(self.columns[column as usize].id, step);
        }
        if self.columns.len() > known && !metrics.is_empty() {
            self.choose_step(metrics, into);
        }
        self.give(record.bytes, is_old, into);
        into.end_row(Some(record.fingerprint));
        if into.wants_changed() {
            self.ask_again(into);
        }
        Ok(())
    }

    /// Gathers the items of a row.
    #[inline]
    fn gather(
        &mut self,
        record: &[u8],
        message: &[u8],
        own_step: &mut Option<i64>,
        into: &mut Builder<'_>,
    ) -> Result<(), Malformed> {
        let base = offset(record, message);
        let (mut rest, mut at) = (message, base);
        loop {
            // The common item: a name of one part, a short value.
            if let [ITEM, length, behind @ ..] = rest
                && *length < 0x80
                && let Some((item, after)) = behind.split_at_checked(usize::from(*length))
                && let [KEY | NESTED_KEY, length, behind @ ..] = item
                && *length < 0x80
                && let Some((name, value)) = behind.split_at_checked(usize::from(*length))
                && let names = behind
                && let [a, b, length, value @ ..] = value
                && [*a, *b] == VALUE_JSON
                && usize::from(*length) == value.len()
                && let [first, ..] = value
                && *first != b'{'
            {
                at += 2 + item.len();
                rest = after;
                if let Some(column) = self.column(name, names, into) {
                    let (start, length) = ((at - value.len()) as u32, value.len() as u32);
                    self.put(column, Held::Json { start, length });
                }
                continue;
            }
            let mut fields = Fields::new(rest);
            let Some(field) = fields.next() else { return Ok(()) };
            match field? {
                (1, Value::Bytes(item)) => {
                    let behind = offset(record, item) + item.len();
                    self.item(record, item, into)?;
                    rest = &message[behind - base..];
                    at = behind;
                }
                (2, Value::Bytes(step)) => {
                    let mut number = 0;
                    for field in Fields::new(step) {
                        if let (1, Value::Varint(value)) = field? {
                            number = value as i64;
                        }
                    }
                    *own_step = Some(number);
                    let behind = offset(record, step) + step.len();
                    rest = &message[behind - base..];
                    at = behind;
                }
                _ => {
                    rest = fields.rest();
                    at = base + message.len() - rest.len();
                }
            }
        }
    }

    /// Any item.
    #[inline(never)]
    fn item(&mut self, record: &[u8], item: &[u8], into: &mut Builder<'_>) -> Result<(), Malformed> {
        let mut name = std::mem::take(&mut self.name);
        name.clear();
        let mut parts = 0;
        let (mut json, mut typed) = (None, None);
        let range = |bytes: &[u8]| (offset(record, bytes) as u32, bytes.len() as u32);
        for field in Fields::new(item) {
            match field? {
                (1, Value::Bytes(key)) if parts == 0 => {
                    name.clear();
                    name.extend_from_slice(key);
                }
                (2, Value::Bytes(part)) => {
                    if parts == 0 {
                        name.clear();
                    } else {
                        name.push(b'.');
                    }
                    name.extend_from_slice(part);
                    parts += 1;
                }
                (16, Value::Bytes(value)) if !value.is_empty() => json = Some(range(value)),
                (8, Value::Bytes(value)) if !value.is_empty() && json.is_none() => json = Some(range(value)),
                (3, Value::Varint(_)) => typed = Some(Held::Null),
                (4, Value::Varint(value)) => typed = Some(Held::Number(f64::from(u8::from(value != 0)))),
                // Zigzag: the sign is the lowest bit.
                (5, Value::Varint(value)) => {
                    typed = Some(Held::Number(((value >> 1) as i64 ^ -((value & 1) as i64)) as f64));
                }
                (6, Value::Fixed64(bits)) => typed = Some(Held::Number(f64::from_bits(bits))),
                (7, Value::Bytes(text)) => {
                    let (start, length) = range(text);
                    typed = Some(Held::Text { start, length });
                }
                _ => {}
            }
        }
        match (json, typed) {
            (Some((start, length)), _) => self.json(record, &mut name, start, length, into),
            (None, Some(cell)) => {
                if let Some(column) = self.column(&name, &name, into) {
                    self.put(column, cell);
                }
            }
            (None, None) => {}
        }
        self.name = name;
        Ok(())
    }

    /// A value in JSON: objects become columns named by their keys, as the server makes them.
    fn json(&mut self, record: &[u8], name: &mut Vec<u8>, start: u32, length: u32, into: &mut Builder<'_>) {
        let value = &record[start as usize..(start + length) as usize];
        let is_taken_apart = value.trim_ascii_start().starts_with(b"{") && {
            let mut cells = Vec::new();
            let whole = flatten(value, name, into.limits().name, &mut |name, at| cells.push((name.to_vec(), at)));
            if whole.is_ok() {
                for (name, (from, to)) in &cells {
                    if let Some(column) = self.column(name, name, into) {
                        let (start, length) = (start + *from as u32, (to - from) as u32);
                        self.put(column, Held::Json { start, length });
                    }
                }
            }
            whole.is_ok()
        };
        if !is_taken_apart && let Some(column) = self.column(name, name, into) {
            self.put(column, Held::Json { start, length });
        }
    }

    #[inline(always)]
    fn put(&mut self, column: u32, cell: Held) {
        self.present[column as usize / 64] |= 1 << (column % 64);
        self.cells[column as usize] = cell;
    }

    fn is_present(&self, column: u32) -> bool {
        self.present[column as usize / 64] & 1 << (column % 64) != 0
    }

    fn own_step(&mut self, into: &mut Builder<'_>) -> Option<u32> {
        if self.own_step.is_none() {
            self.own_step = self.column(OWN_STEP, OWN_STEP, into);
        }
        self.own_step
    }

    /// The column of a name, with which `behind` begins; `None` beyond the limits.
    #[inline(always)]
    fn column(&mut self, name: &[u8], behind: &[u8], into: &mut Builder<'_>) -> Option<u32> {
        let key = Key::new(name, behind);
        let (known, column) = self.cache[key.place()];
        if known.is(&key) && (name.len() <= WHOLE || *self.columns[column as usize].name == *name) {
            return Some(column);
        }
        self.find(key, name, into)
    }

    #[inline(never)]
    fn find(&mut self, key: Key, name: &[u8], into: &mut Builder<'_>) -> Option<u32> {
        let column = match self.index.get(name) {
            Some(column) => *column,
            None => self.introduce(name, into)?,
        };
        self.cache[key.place()] = (key, column);
        Some(column)
    }

    #[cold]
    fn introduce(&mut self, name: &[u8], into: &mut Builder<'_>) -> Option<u32> {
        let text = String::from_utf8_lossy(name);
        let column = into.column(&text);
        let is_beyond = name.len() > into.limits().name
            || (self.columns.len() >= into.limits().columns && column.want == Want::Note);
        if is_beyond {
            return None;
        }
        let role = match roles::role_of(&text) {
            // What the user named is the gradient norm until something says otherwise.
            None => into.has_role(column.id).then_some(Role::GradNorm),
            role => role,
        };
        let new = self.columns.len() as u32;
        let is_media = name.iter().enumerate().any(|(at, byte)| *byte == b'.' && self.media.contains(&name[..at]));
        let want = if is_media { Want::Note } else { column.want };
        let role = role.filter(|role| is_primary(*role) && into.is_series(column.id));
        self.columns.push(Column { name: name.into(), id: column.id, want, is_media, role });
        self.index.insert(name.into(), new);
        self.cells.push(Held::Null);
        self.present.resize(self.columns.len().div_ceil(64), 0);
        if let Some(parent) = name.strip_suffix(MEDIA_TYPE)
            && !parent.is_empty()
            && self.media.insert(parent.into())
        {
            for column in &mut self.columns {
                let is_below = column.name.strip_prefix(parent).is_some_and(|rest| rest.first() == Some(&b'.'));
                if is_below {
                    (column.is_media, column.want, column.role) = (true, Want::Note, None);
                }
            }
        }
        Some(new)
    }

    /// Tells the builder the step of the gradient norm, or else of the loss, where the run defines one.
    pub fn choose_step(&mut self, metrics: &Metrics, into: &mut Builder<'_>) {
        let order = |role: Role| match role {
            Role::GradNorm => 0,
            Role::GradNormPostClip => 1,
            Role::Loss => 2,
            _ => 3,
        };
        let signals = self.columns.iter().filter_map(|column| Some((order(column.role?), column)));
        let step = signals
            .filter_map(|(order, column)| Some((order, metrics.step_of(std::str::from_utf8(&column.name).ok()?)?)))
            .min_by_key(|(order, _)| *order);
        if let Some((_, step)) = step {
            into.declare_step(step);
            if into.wants_changed() {
                self.ask_again(into);
            }
        }
    }

    fn ask_again(&mut self, into: &Builder<'_>) {
        for column in self.columns.iter_mut().filter(|column| !column.is_media) {
            column.want = into.want(column.id);
        }
    }

    /// Gives what was gathered, column by column.
    #[inline]
    fn give(&mut self, record: &[u8], is_old: bool, into: &mut Builder<'_>) {
        let mut nulls = Vec::new();
        for word in 0..self.present.len() {
            let mut bits = std::mem::take(&mut self.present[word]);
            while bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let column = &self.columns[index];
                let (start, length) = match self.cells[index] {
                    Held::Json { start, length } => (start as usize, length as usize),
                    other => {
                        self.typed(record, index, other, into);
                        if is_old && matches!(other, Held::Null) && self.columns[index].role.is_some() {
                            nulls.push(index as u32);
                        }
                        continue;
                    }
                };
                let first = record[start];
                if column.want == Want::Note {
                    let numeric = matches!(first, b'0'..=b'9' | b'-' | b'N' | b'I' | b't' | b'f') && !column.is_media;
                    if first != b'n' {
                        into.filled(column.id, numeric);
                        continue;
                    }
                } else if let Some(value) = plain_number(record, start, length) {
                    into.number(column.id, value);
                    continue;
                }
                let is_null = self.unusual(&record[start..start + length], index, into);
                if is_null && is_old && self.columns[index].role.is_some() {
                    nulls.push(index as u32);
                }
            }
        }
        if is_old {
            self.remember(&nulls, into);
        }
    }

    /// A value that is no plain number; gives whether it is null.
    #[inline(never)]
    fn unusual(&mut self, value: &[u8], column: usize, into: &mut Builder<'_>) -> bool {
        let Column { id, want, is_media, .. } = self.columns[column];
        let mut cursor = Cursor::with_end(value, true);
        let number = match cursor.kind() {
            Ok(Kind::Null) => return true,
            Ok(Kind::True) => Some(1.0),
            Ok(Kind::False) => Some(0.0),
            Ok(Kind::NaN) => Some(f64::NAN),
            Ok(Kind::Infinity) => Some(f64::INFINITY),
            Ok(Kind::NegInfinity) => Some(f64::NEG_INFINITY),
            Ok(Kind::Number) => cursor.number().ok().and_then(|token| parse_f64(token).or_else(|| parse_word(token))),
            Ok(Kind::String) if want != Want::Note => {
                let Ok(text) = cursor.string() else { return false };
                if let (Want::Number, Cell::Value(value)) = (want, parse_text_value(text.raw)) {
                    into.number(id, value);
                } else {
                    self.text.clear();
                    text.decode(&mut self.text);
                    into.text(id, &self.text);
                }
                return false;
            }
            _ => None,
        };
        match number {
            Some(value) if want != Want::Note => into.number(id, value),
            _ => into.filled(id, number.is_some() && !is_media),
        }
        false
    }

    /// A value of the typed fields.
    #[inline(never)]
    fn typed(&mut self, record: &[u8], column: usize, cell: Held, into: &mut Builder<'_>) {
        let Column { id, want, is_media, .. } = self.columns[column];
        match cell {
            Held::Number(value) if want != Want::Note => into.number(id, value),
            Held::Number(_) => into.filled(id, !is_media),
            Held::Text { start, length } => {
                let text = String::from_utf8_lossy(&record[start as usize..(start + length) as usize]);
                match (want, parse_text_value(text.as_bytes())) {
                    (Want::Number, Cell::Value(value)) => into.number(id, value),
                    (Want::Number | Want::Text, _) => into.text(id, &text),
                    (Want::Note, _) => into.filled(id, false),
                }
            }
            Held::Json { .. } | Held::Null => {}
        }
    }

    /// Remembers nulls of signals that may have been NaN, and where each signal had its last value.
    #[inline(never)]
    fn remember(&mut self, nulls: &[u32], into: &Builder<'_>) {
        let (step, _, filled) = into.row();
        for null in nulls {
            let column = &self.columns[*null as usize];
            let last_good_step = self.last_steps.get(&column.id).copied();
            self.doubts.entry(*null).or_insert_with(|| Doubt {
                metric: String::from_utf8_lossy(&column.name).into_owned(),
                first_step: step,
                last_good_step,
            });
        }
        if let Some(step) = step {
            for (id, _) in filled.filter(|(_, value)| value.is_finite()) {
                self.last_steps.insert(id, step);
            }
        }
    }
}

/// The number that all of a range of the record spells, if it is a plain one.
#[inline(always)]
fn plain_number(record: &[u8], start: usize, length: usize) -> Option<f64> {
    // Numbers are read fastest where some bytes follow, whatever they are.
    const ROOM: usize = 64;
    if start + ROOM > record.len() && length < ROOM / 2 {
        let mut room = [0; ROOM];
        room[..length].copy_from_slice(&record[start..start + length]);
        return number_at(&room, 0).ok().filter(|(_, end)| *end == length).map(|(value, _)| value);
    }
    number_at(record, start).ok().filter(|(_, end)| *end == start + length).map(|(value, _)| value)
}

/// Gives every value of an object that is none itself, by its name and its place in `value`. `name` is that of the object,
/// and is left as it was. What is nested deeper than [`DEPTH`], or longer named than `longest`, is one value.
fn flatten(
    value: &[u8],
    name: &mut Vec<u8>,
    longest: usize,
    give: &mut dyn FnMut(&[u8], (usize, usize)),
) -> Result<(), Stop> {
    let own = name.len();
    let mut cursor = Cursor::with_end(value, true);
    let mut open = vec![own];
    let mut key_text = String::new();
    let walked = (|| {
        cursor.enter_object()?;
        while let Some(length) = open.last().copied() {
            name.truncate(length);
            let Some(key) = cursor.next_key()? else {
                open.pop();
                continue;
            };
            key_text.clear();
            key.decode(&mut key_text);
            name.push(b'.');
            name.extend_from_slice(key_text.as_bytes());
            if cursor.kind()? == Kind::Object && open.len() < DEPTH && name.len() <= longest {
                cursor.enter_object()?;
                open.push(name.len());
                continue;
            }
            let from = cursor.position();
            cursor.skip_value()?;
            give(name, (from, cursor.position()));
        }
        Ok(())
    })();
    name.truncate(own);
    walked
}

/// Where a slice of `whole` begins in it.
#[inline]
fn offset(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr().wrapping_sub(whole.as_ptr().addr())
}
