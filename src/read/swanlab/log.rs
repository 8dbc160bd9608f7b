//! Logs of both generations: records are protobuf messages since 0.8, JSON texts before.

use std::collections::HashMap;

use chrono::DateTime;

use crate::model::{Role, roles};
use crate::read::builder::{Builder, Want};
use crate::read::clock;
use crate::read::transactions::Records;
use crate::wire::json::{Cursor, Kind, Stop, Text};
use crate::wire::leveldb::{FileHeader, Record};
use crate::wire::numbers::{Cell, parse_f64, parse_text_value};
use crate::wire::protobuf::{Fields, Malformed, Value};

/// The header: `:SWL`, 0xE1D6, version 1 (JSON) or 2 (protobuf).
pub const HEADER: FileHeader = FileHeader { ident: *b":SWL", magic: [0xd6, 0xe1], versions: &[1, 2] };

/// Numbers of the fields of a record that are read.
mod field {
    pub const START: u32 = 10;
    pub const FINISH: u32 = 11;
    pub const SCALAR: u32 = 13;
}

/// Texts of a `StartRecord`: number of the field, name in the metadata.
const TEXTS: [(u32, &str); 6] =
    [(10, "run_id"), (4, "name"), (1, "project"), (2, "workspace"), (7, "group"), (8, "job_type")];

/// What is known of a metric.
#[derive(Clone, Copy, Debug)]
struct Metric {
    column: u32,
    is_wanted: bool,
    /// Its steps show how far the training went.
    reaches: bool,
}

/// A run while its records stream by.
#[derive(Debug, Default)]
pub struct Log {
    metrics: Vec<(Box<[u8]>, Metric)>,
    index: HashMap<Box<[u8]>, usize>,
    /// The metric that came last; they come in rounds.
    last: usize,
    run: Run,
}

#[derive(Debug, Default)]
struct Run {
    texts: [String; TEXTS.len()],
    started: Option<i64>,
    state: Option<&'static str>,
    error: String,
    has_record: bool,
    parts: u32,
}

/// One point as a record holds it.
struct Point<'a> {
    key: &'a [u8],
    step: i64,
    /// Seconds since 1970, or NaN.
    time: f64,
    value: f64,
}

impl Records for Log {
    fn record(&mut self, record: Record<'_>, into: &mut Builder<'_>) -> bool {
        if record.bytes.first() == Some(&b'{') {
            self.text(&record, into).is_ok()
        } else {
            self.message(&record, into).is_ok()
        }
    }
}

impl Log {
    /// Another log of the run: it may end otherwise.
    pub fn begin_part(&mut self) {
        self.run.state = None;
        self.run.error.clear();
        self.run.parts += 1;
    }

    /// Gives what is known of the run to the recording.
    pub fn describe(self, into: &mut Builder<'_>) {
        let run = self.run;
        for ((_, name), text) in TEXTS.iter().zip(&run.texts) {
            if !text.is_empty() {
                into.describe(name, text);
            }
        }
        if let Some(started) = run.started.and_then(DateTime::from_timestamp_millis) {
            into.describe("started", &started.format("%Y-%m-%dT%H:%M:%S%.3fZ").to_string());
        }
        if run.parts > 1 {
            into.describe("resumed", "true");
        }
        if run.has_record {
            into.describe("state", run.state.unwrap_or("running or killed"));
        }
        if !run.error.is_empty() {
            into.describe("error", &run.error);
        }
        let [_, name, ..] = run.texts;
        into.name = Some(name).filter(|name| !name.is_empty());
    }

    fn message(&mut self, record: &Record<'_>, into: &mut Builder<'_>) -> Result<(), Malformed> {
        for field in Fields::new(record.bytes) {
            match field? {
                (field::SCALAR, Value::Bytes(scalar)) => {
                    if let Some(point) = scalar_of(scalar)? {
                        self.point(record.at, &point, into);
                    }
                }
                (field::START, Value::Bytes(start)) => self.run.start(start)?,
                (field::FINISH, Value::Bytes(finish)) => self.run.finish(finish)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn point(&mut self, at: u64, point: &Point<'_>, into: &mut Builder<'_>) {
        into.begin_points(at, point.step, point.time);
        let Some(metric) = self.metric(point.key, into) else {
            into.pass_point(false);
            return;
        };
        if metric.is_wanted {
            into.point(metric.column, point.value);
            if metric.reaches {
                into.reach();
            }
        } else {
            into.pass_point(metric.reaches);
        }
    }

    /// The metric of a key; `None` beyond the limits.
    fn metric(&mut self, key: &[u8], into: &mut Builder<'_>) -> Option<Metric> {
        let next = self.last + 1;
        if let Some((known, metric)) = self.metrics.get(if next < self.metrics.len() { next } else { 0 })
            && **known == *key
        {
            self.last = if next < self.metrics.len() { next } else { 0 };
            return Some(*metric);
        }
        if let Some(index) = self.index.get(key) {
            self.last = *index;
            return Some(self.metrics[*index].1);
        }
        let name = String::from_utf8_lossy(key);
        let column = into.column(&name);
        if key.len() > into.limits().name || (column.want == Want::Note && self.metrics.len() >= into.limits().columns)
        {
            return None;
        }
        into.numeric(column.id);
        let role = roles::role_of(&name);
        // Rewards and lengths may be logged by environment steps, which are no steps of the training.
        let reaches = role.is_some_and(|role| !matches!(role, Role::Reward | Role::CompletionLength));
        let metric = Metric { column: column.id, is_wanted: column.want == Want::Number, reaches };
        self.last = self.metrics.len();
        self.index.insert(key.into(), self.last);
        self.metrics.push((key.into(), metric));
        Some(metric)
    }

    /// A record of the older generation: `{"model_type": ..., "data": {...}}`.
    fn text(&mut self, record: &Record<'_>, into: &mut Builder<'_>) -> Result<(), Stop> {
        let mut cursor = Cursor::with_end(record.bytes, true);
        cursor.enter_object()?;
        let mut kind = String::new();
        while let Some(key) = cursor.next_key()? {
            match (key.raw, cursor.kind()?) {
                (b"model_type", Kind::String) => cursor.string()?.decode(&mut kind),
                (b"data", Kind::Object) => match kind.as_str() {
                    "Scalar" => self.text_scalar(record.at, &mut cursor, into)?,
                    "Project" | "Experiment" | "Footer" | "Header" => self.run.text(&kind, &mut cursor)?,
                    _ => cursor.skip_value()?,
                },
                _ => cursor.skip_value()?,
            }
        }
        Ok(())
    }

    fn text_scalar(&mut self, at: u64, cursor: &mut Cursor<'_>, into: &mut Builder<'_>) -> Result<(), Stop> {
        let (mut name, mut own_step, mut sample) = (String::new(), None, Sample::default());
        cursor.enter_object()?;
        while let Some(key) = cursor.next_key()? {
            match (key.raw, cursor.kind()?) {
                (b"key", Kind::String) => cursor.string()?.decode(&mut name),
                (b"step", Kind::Number) => own_step = parse_f64(cursor.number()?),
                (b"metric", Kind::Object) => sample = Sample::parse(cursor)?,
                _ => cursor.skip_value()?,
            }
        }
        if let (Some(value), Some(step)) = (sample.value, sample.step.or(own_step)) {
            let time = sample.time.map_or(f64::NAN, |time| time as f64 / 1e3);
            self.point(at, &Point { key: name.as_bytes(), step: step.floor() as i64, time, value }, into);
        }
        Ok(())
    }
}

/// One value of a metric as the older generation writes it: `{"index": step, "data": value, "create_time": ...}`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// The step.
    pub step: Option<f64>,
    /// The value; `None` where it is no number.
    pub value: Option<f64>,
    /// Milliseconds since 1970.
    pub time: Option<i64>,
}

impl Sample {
    /// Reads the object that the cursor stands at.
    pub fn parse(cursor: &mut Cursor<'_>) -> Result<Self, Stop> {
        let mut sample = Self::default();
        cursor.enter_object()?;
        while let Some(key) = cursor.next_key()? {
            match (key.raw, cursor.kind()?) {
                (b"index", Kind::Number) => sample.step = parse_f64(cursor.number()?),
                (b"index", Kind::String) => sample.step = parse_f64(cursor.string()?.raw),
                (b"data", _) => sample.value = number(cursor)?,
                (b"create_time", Kind::String) => sample.time = clock::from_text(&decoded(&cursor.string()?)),
                _ => cursor.skip_value()?,
            }
        }
        Ok(sample)
    }
}

/// A number in JSON, or NaN and Inf in quotes.
fn number(cursor: &mut Cursor<'_>) -> Result<Option<f64>, Stop> {
    Ok(match cursor.kind()? {
        Kind::Number => parse_f64(cursor.number()?),
        Kind::String => match parse_text_value(cursor.string()?.raw) {
            Cell::Value(value) => Some(value),
            Cell::Missing | Cell::Text => None,
        },
        Kind::Object | Kind::Array => {
            cursor.skip_value()?;
            None
        }
        _ => match cursor.bare()? {
            Kind::True => Some(1.0),
            Kind::False => Some(0.0),
            Kind::NaN => Some(f64::NAN),
            Kind::Infinity => Some(f64::INFINITY),
            Kind::NegInfinity => Some(f64::NEG_INFINITY),
            _ => None,
        },
    })
}

fn decoded(text: &Text<'_>) -> String {
    let mut decoded = String::new();
    text.decode(&mut decoded);
    decoded
}

/// The point of a `ScalarRecord`, if it has a value; a value without a number is 0, as everywhere in protobuf.
fn scalar_of(message: &[u8]) -> Result<Option<Point<'_>>, Malformed> {
    let mut point = Point { key: b"", step: 0, time: f64::NAN, value: 0.0 };
    let mut has_value = false;
    for field in Fields::new(message) {
        match field? {
            (1, Value::Bytes(key)) => point.key = key,
            (2, Value::Varint(step)) => point.step = step as i64,
            (4, Value::Bytes(time)) => point.time = seconds(time)?,
            (5, Value::Bytes(value)) => {
                has_value = true;
                for field in Fields::new(value) {
                    if let (1, Value::Fixed64(bits)) = field? {
                        point.value = f64::from_bits(bits);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(Some(point).filter(|_| has_value))
}

/// Seconds since 1970 of a protobuf `Timestamp`.
fn seconds(message: &[u8]) -> Result<f64, Malformed> {
    let (mut seconds, mut nanos) = (0i64, 0i64);
    for field in Fields::new(message) {
        match field? {
            (1, Value::Varint(value)) => seconds = value as i64,
            (2, Value::Varint(value)) => nanos = value as i64,
            _ => {}
        }
    }
    Ok(seconds as f64 + nanos as f64 / 1e9)
}

impl Run {
    fn start(&mut self, message: &[u8]) -> Result<(), Malformed> {
        self.has_record = true;
        for field in Fields::new(message) {
            match field? {
                (12, Value::Bytes(time)) if self.started.is_none() => self.started = clock::from_number(seconds(time)?),
                (number, Value::Bytes(text)) => {
                    if let Some(index) = TEXTS.iter().position(|(known, _)| *known == number)
                        && !text.is_empty()
                    {
                        self.texts[index] = String::from_utf8_lossy(text).into_owned();
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn finish(&mut self, message: &[u8]) -> Result<(), Malformed> {
        let mut state = 0;
        for field in Fields::new(message) {
            match field? {
                (1, Value::Varint(value)) => state = value,
                (2, Value::Bytes(error)) => self.error = String::from_utf8_lossy(error).into_owned(),
                _ => {}
            }
        }
        self.state = match state {
            1 => Some("finished"),
            2 => Some("crashed"),
            3 => Some("aborted"),
            _ => None,
        };
        Ok(())
    }

    /// The data of a `Project`, `Experiment`, `Header` or `Footer` of the older generation.
    fn text(&mut self, record: &str, cursor: &mut Cursor<'_>) -> Result<(), Stop> {
        self.has_record = true;
        cursor.enter_object()?;
        while let Some(key) = cursor.next_key()? {
            let place = match (record, key.raw) {
                ("Experiment", b"id") => Some(0),
                ("Experiment", b"name") => Some(1),
                ("Project", b"name") => Some(2),
                ("Project", b"workspace") => Some(3),
                _ => None,
            };
            match (place, cursor.kind()?) {
                (Some(place), Kind::String) => self.texts[place] = decoded(&cursor.string()?),
                (_, Kind::String) if (record, key.raw) == ("Header", b"create_time") => {
                    self.started = self.started.or(clock::from_text(&decoded(&cursor.string()?)));
                }
                (_, Kind::True | Kind::False) if (record, key.raw) == ("Footer", b"success") => {
                    self.state = Some(if cursor.bare()? == Kind::True { "finished" } else { "crashed" });
                }
                _ => cursor.skip_value()?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
