//! `Event` messages: the fields that matter to us (`tensorflow/core/util/event.proto`, `framework/summary.proto`).

use crate::wire::protobuf::{Fields, Malformed, Value, varint};

/// A record that holds one old-style scalar, laid out as every common writer lays it out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlainScalar<'a> {
    pub step: i64,
    /// Seconds since 1970.
    pub wall_time: f64,
    pub tag: &'a [u8],
    pub value: f32,
}

const WALL_TIME: u8 = 1 << 3 | 1;
const STEP: u8 = 2 << 3;
const SUMMARY: u8 = 5 << 3 | 2;
const SUMMARY_VALUE: u8 = 1 << 3 | 2;
const TAG: u8 = 1 << 3 | 2;
const SIMPLE_VALUE: u8 = 2 << 3 | 5;

/// The scalar of a record that is laid out as usual; `None` sends it to [`Event::parse`], which reads any layout.
#[inline]
pub fn plain_scalar(payload: &[u8]) -> Option<PlainScalar<'_>> {
    let (head, mut rest) = payload.split_first_chunk::<9>()?;
    let [WALL_TIME, wall_time @ ..] = head else { return None };
    let wall_time = f64::from_le_bytes(*wall_time);
    let mut step = 0;
    if let Some((&STEP, behind)) = rest.split_first() {
        rest = behind;
        step = varint(&mut rest)? as i64;
    }
    let value = enter(enter(rest, SUMMARY)?, SUMMARY_VALUE)?;
    let (tag, number) = match value {
        [TAG, length @ 0..0x80, rest @ ..] => rest.split_at_checked(usize::from(*length))?,
        _ => return None,
    };
    let [SIMPLE_VALUE, a, b, c, d] = *number else { return None };
    Some(PlainScalar { step, wall_time, tag, value: f32::from_le_bytes([a, b, c, d]) })
}

/// How the scalars of one tag are laid out: all but wall time, step and value stays the same from one to the next.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Bytes of the step.
    step: usize,
    /// What stands between step and value: the lengths and the tag.
    middle: Box<[u8]>,
    /// What stands behind the value: metadata, if anything.
    tail: Box<[u8]>,
}

/// Bytes before the step: wall time and the key of the step.
const HEAD: usize = 10;
/// Bytes of the value, a 32-bit float.
const VALUE: usize = 4;

impl Layout {
    /// The layout of a payload that holds one scalar, `value`; `None` if its step is not where it usually is.
    pub fn of(payload: &[u8], step: i64, value: &[u8]) -> Option<Self> {
        let at = value.as_ptr().addr().checked_sub(payload.as_ptr().addr()).filter(|_| value.len() == VALUE)?;
        let behind = payload.get(HEAD..at).filter(|_| payload[HEAD - 1] == STEP)?;
        let length = behind.iter().position(|byte| *byte < 0x80)? + 1;
        let layout = Self { step: length, middle: behind[length..].into(), tail: payload.get(at + VALUE..)?.into() };
        layout.read(payload).filter(|(read, ..)| *read == step).map(|_| layout)
    }

    /// Step, wall time and value of a payload that is laid out so.
    #[inline(always)]
    pub fn read(&self, payload: &[u8]) -> Option<(i64, f64, f32)> {
        let (head, rest) = payload.split_first_chunk::<HEAD>()?;
        let [WALL_TIME, wall_time @ .., STEP] = head else { return None };
        let (step, rest) = rest.split_at_checked(self.step)?;
        let (middle, rest) = rest.split_at_checked(self.middle.len())?;
        let (value, tail) = rest.split_first_chunk::<VALUE>()?;
        if !is_same(middle, &self.middle) || !is_same(tail, &self.tail) {
            return None;
        }
        let (last, before) = step.split_last()?;
        let mut number = 0;
        for (index, byte) in before.iter().enumerate() {
            if *byte < 0x80 {
                return None;
            }
            number |= u64::from(byte & 0x7f) << (7 * index);
        }
        if *last >= 0x80 {
            return None;
        }
        number |= u64::from(*last) << (7 * before.len());
        Some((number as i64, f64::from_le_bytes(*wall_time), f32::from_le_bytes(*value)))
    }
}

/// Whether two texts are equal, without a call: they are a few words long.
#[inline(always)]
fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    if a.is_empty() {
        return true;
    }
    let (Some(a_last), Some(b_last)) = (a.last_chunk::<8>(), b.last_chunk::<8>()) else { return a == b };
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    let different = words.fold(0, |different, (a, b)| different | (u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b)));
    (different | (u64::from_le_bytes(*a_last) ^ u64::from_le_bytes(*b_last))) == 0
}

/// The contents of a field that is all that is left.
#[inline]
fn enter(bytes: &[u8], key: u8) -> Option<&[u8]> {
    let (&first, mut rest) = bytes.split_first()?;
    (first == key && varint(&mut rest)? == rest.len() as u64).then_some(rest)
}

/// An event of any layout.
#[derive(Clone, Copy, Debug, Default)]
pub struct Event<'a> {
    /// Absent means 0.
    pub step: i64,
    /// Seconds since 1970; NaN where none is recorded.
    pub wall_time: f64,
    /// The path of a `SessionLog` of status CHECKPOINT.
    pub checkpoint: Option<&'a [u8]>,
    summary: &'a [u8],
}

/// `SessionLog.SessionStatus.CHECKPOINT`.
const CHECKPOINT: u64 = 3;

impl<'a> Event<'a> {
    /// Reads an event; what it holds beside summary and session log is passed over.
    pub fn parse(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut event = Self { wall_time: f64::NAN, ..Self::default() };
        for field in Fields::new(payload) {
            match field? {
                (1, Value::Fixed64(bits)) => event.wall_time = f64::from_bits(bits),
                (2, Value::Varint(step)) => event.step = step as i64,
                (5, Value::Bytes(summary)) => event.summary = summary,
                (7, Value::Bytes(log)) => event.checkpoint = checkpoint(log)?,
                _ => {}
            }
        }
        Ok(event)
    }

    /// The values of its summary.
    pub fn values(&self) -> impl Iterator<Item = Result<SummaryValue<'a>, Malformed>> + use<'a> {
        Fields::new(self.summary).filter_map(|field| match field {
            Ok((1, Value::Bytes(value))) => Some(SummaryValue::parse(value)),
            Ok(_) => None,
            Err(malformed) => Some(Err(malformed)),
        })
    }
}

fn checkpoint(log: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let (mut status, mut path) = (0, None);
    for field in Fields::new(log) {
        match field? {
            (1, Value::Varint(code)) => status = code,
            (2, Value::Bytes(bytes)) => path = Some(bytes),
            _ => {}
        }
    }
    Ok((status == CHECKPOINT).then(|| path.unwrap_or_default()))
}

/// What a value of a summary holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Data<'a> {
    /// `simple_value`: a scalar of TensorBoard's first years, and of PyTorch to this day.
    Simple(f32),
    /// A `TensorProto`.
    Tensor(&'a [u8]),
    /// An image, a histogram, or metadata alone.
    Other,
}

/// One value of a summary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SummaryValue<'a> {
    pub tag: &'a [u8],
    pub data: Data<'a>,
    /// Name of the plugin that its metadata names.
    pub plugin: Option<&'a [u8]>,
}

impl<'a> SummaryValue<'a> {
    fn parse(value: &'a [u8]) -> Result<Self, Malformed> {
        let mut parsed = Self { tag: b"", data: Data::Other, plugin: None };
        for field in Fields::new(value) {
            match field? {
                (1, Value::Bytes(tag)) => parsed.tag = tag,
                (2, Value::Fixed32(bits)) => parsed.data = Data::Simple(f32::from_bits(bits)),
                (8, Value::Bytes(tensor)) => parsed.data = Data::Tensor(tensor),
                (9, Value::Bytes(metadata)) => {
                    parsed.plugin = nested(metadata, 1)?.map(|plugin| nested(plugin, 1)).transpose()?.flatten();
                }
                _ => {}
            }
        }
        Ok(parsed)
    }
}

/// The last field `number` of a message that holds bytes.
fn nested(message: &[u8], number: u32) -> Result<Option<&[u8]>, Malformed> {
    let mut found = None;
    for field in Fields::new(message) {
        if let (this, Value::Bytes(bytes)) = field?
            && this == number
        {
            found = Some(bytes);
        }
    }
    Ok(found)
}

/// Whether the first bytes of a record are those of an event: its wall time.
pub fn begins(payload: &[u8]) -> bool {
    matches!(payload, [WALL_TIME, rest @ ..] if rest.len() >= 8)
}

/// Whether the first bytes of a long record of `length` bytes show that it holds no scalar: a graph, run metadata, or a
/// summary of one value that is an image, a histogram, audio or a large tensor.
pub fn is_opaque(begin: &[u8], length: u64) -> bool {
    is_opaque_event(begin, length).unwrap_or(false)
}

fn is_opaque_event(begin: &[u8], length: u64) -> Option<bool> {
    let mut walk = Begin { rest: begin, left: length };
    loop {
        let (number, inner) = walk.field()?;
        match (number, inner) {
            (_, None) => {}
            (4 | 6 | 8 | 9 | 10, Some(inner)) => return Some(inner == walk.left),
            (5, Some(inner)) if inner == walk.left => break,
            _ => return Some(false),
        }
    }
    // The summary, and the only value in it.
    let (1, Some(inner)) = walk.field()? else { return Some(false) };
    if inner != walk.left {
        return Some(false);
    }
    loop {
        match walk.field()? {
            (1 | 7 | 9, Some(inner)) => walk.pass(inner)?,
            (3 | 4 | 5 | 6 | 8, Some(inner)) => return Some(inner == walk.left),
            _ => return Some(false),
        }
    }
}

/// The begin of a message of which the rest is not there.
struct Begin<'a> {
    rest: &'a [u8],
    /// Bytes of the message from here on.
    left: u64,
}

impl Begin<'_> {
    /// Takes a number, or the key and length of a field that holds bytes.
    fn field(&mut self) -> Option<(u64, Option<u64>)> {
        let before = self.rest.len();
        let key = varint(&mut self.rest)?;
        let inner = match key & 7 {
            0 => varint(&mut self.rest).map(|_| None)?,
            1 => self.rest.split_at_checked(8).map(|(_, rest)| self.rest = rest).map(|()| None)?,
            2 => Some(varint(&mut self.rest)?),
            5 => self.rest.split_at_checked(4).map(|(_, rest)| self.rest = rest).map(|()| None)?,
            _ => return None,
        };
        self.left = self.left.checked_sub((before - self.rest.len()) as u64)?;
        Some((key >> 3, inner))
    }

    fn pass(&mut self, bytes: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(bytes).ok()?..)?;
        self.left = self.left.checked_sub(bytes)?;
        Some(())
    }
}
