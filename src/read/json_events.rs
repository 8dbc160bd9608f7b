//! Logs of JSON records that hold single points: what trackers keep of a run until they can send it.
//!
//! What a record holds is the format's business ([`Dialect`]); lines, cuts, damage and the points' way into the builder
//! are here. Points that are whole count, whatever becomes of the record around them.

use std::collections::HashMap;

use super::apart::reaches;
use super::builder::Builder;
use super::{Progress, Rejected, Session, StreamDecoder, Want, clock, is_git_lfs_pointer};
use crate::model::{Fault, FaultKind, Part, PlaceUnit, Recording, Source};
use crate::wire::json::{Cursor, Kind, Stop, Text};
use crate::wire::lines::{Ending, Lines};
use crate::wire::numbers::{Cell, parse_f64, parse_i64_step, parse_text_value, parse_word};

/// One value of a metric as its record has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Index of the metric's name in [`Found::names`].
    pub name: usize,
    /// The value.
    pub value: f64,
    /// The step; values of a metric without any are numbered.
    pub step: Option<f64>,
    /// Wall time, in seconds or milliseconds since 1970.
    pub time: Option<f64>,
}

/// What was read of a record, as far as it could be read.
#[derive(Debug, Default)]
pub struct Found {
    /// Names of its metrics.
    pub names: Vec<String>,
    /// Points that are whole.
    pub points: Vec<Point>,
    /// What it says of the run itself.
    pub facts: Vec<(&'static str, String)>,
    /// The point that is being read is NaN or Inf.
    pub is_bad: bool,
}

impl Found {
    fn clear(&mut self) {
        self.names.clear();
        self.points.clear();
        self.facts.clear();
        self.is_bad = false;
    }

    /// Adds a name; gives its index.
    pub fn name(&mut self, name: String) -> usize {
        self.names.push(name);
        self.names.len() - 1
    }

    /// Reads the number of the point that is being read.
    pub fn value(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<f64>, Stop> {
        let value = number(cursor)?;
        self.is_bad |= value.is_some_and(|value| !value.is_finite());
        Ok(value)
    }

    /// Takes a point that was read to its end.
    pub fn point(&mut self, point: Point) {
        self.is_bad = false;
        self.points.push(point);
    }
}

/// The records of one format.
pub trait Dialect: Default {
    /// Reads the record at the cursor. After an error that which was found so far counts.
    fn record(&mut self, cursor: &mut Cursor<'_>, found: &mut Found) -> Result<(), Stop>;
}

/// A number, bare or in quotes, NaN and Inf in any spelling; `None` for null and for what is no number.
pub fn number(cursor: &mut Cursor<'_>) -> Result<Option<f64>, Stop> {
    Ok(match cursor.kind()? {
        Kind::Number => {
            let token = cursor.number()?;
            parse_f64(token).or_else(|| parse_word(token))
        }
        Kind::String => match parse_text_value(text(&cursor.string()?).as_bytes()) {
            Cell::Value(value) => Some(value),
            Cell::Missing | Cell::Text => None,
        },
        Kind::Object | Kind::Array => {
            cursor.skip_value()?;
            None
        }
        _ => match cursor.bare()? {
            Kind::NaN => Some(f64::NAN),
            Kind::Infinity => Some(f64::INFINITY),
            Kind::NegInfinity => Some(f64::NEG_INFINITY),
            Kind::True => Some(1.0),
            Kind::False => Some(0.0),
            _ => None,
        },
    })
}

/// A string; `None` for anything else.
pub fn string(cursor: &mut Cursor<'_>) -> Result<Option<String>, Stop> {
    if cursor.kind()? == Kind::String {
        return Ok(Some(text(&cursor.string()?)));
    }
    cursor.skip_value()?;
    Ok(None)
}

fn text(text: &Text<'_>) -> String {
    let mut decoded = String::new();
    text.decode(&mut decoded);
    decoded
}

/// Enters an object; passes over anything else.
pub fn enters(cursor: &mut Cursor<'_>) -> Result<bool, Stop> {
    if cursor.kind()? == Kind::Object {
        cursor.enter_object()?;
        return Ok(true);
    }
    cursor.skip_value()?;
    Ok(false)
}

/// Texts, numbers and truth values of the given keys of an object, up to where it is broken.
pub fn facts(bytes: &[u8], keys: &[(&str, &'static str)]) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let mut walk = || -> Result<(), Stop> {
        let mut cursor = Cursor::with_end(bytes, true);
        cursor.enter_object()?;
        while let Some(key) = cursor.next_key()? {
            let Some((_, name)) = keys.iter().find(|(known, _)| key.is(known)) else {
                cursor.skip_value()?;
                continue;
            };
            let fact = match cursor.kind()? {
                Kind::String => Some(text(&cursor.string()?)),
                Kind::Number => Some(String::from_utf8_lossy(cursor.number()?).into_owned()),
                Kind::True | Kind::False => Some((cursor.bare()? == Kind::True).to_string()),
                _ => {
                    cursor.skip_value()?;
                    None
                }
            };
            found.extend(fact.map(|fact| (*name, fact)));
        }
        Ok(())
    };
    // What stands before the damage counts.
    let _ = walk();
    found
}

/// Describes the run by a small file beside its log.
pub fn describe(
    part: &Part,
    keys: &[(&str, &'static str)],
    session: &mut Session<'_>,
    into: &mut Builder<'_>,
) -> Result<(), Rejected> {
    match session.whole(part) {
        Ok(bytes) => facts(&bytes, keys).into_iter().for_each(|(key, fact)| tell(key, fact, into)),
        Err(Rejected::Cancelled) => return Err(Rejected::Cancelled),
        Err(error) => {
            let kind = if error.code() == "limit" { FaultKind::Limit } else { FaultKind::Io };
            let place = into.place(PlaceUnit::Line, 1);
            into.fault(Fault::new(kind, place, error.to_string()));
        }
    }
    Ok(())
}

fn tell(key: &'static str, fact: String, into: &mut Builder<'_>) {
    if fact.is_empty() || fact.len() > into.limits().name {
        return;
    }
    into.describe(key, &fact);
    if key == "name" {
        into.name = Some(fact);
    }
}

/// Reads the logs of a source into a builder of points, and ends it. `is_log` tells them from files beside them.
pub fn read<D: Dialect>(
    source: &Source,
    session: &mut Session<'_>,
    mut builder: Builder<'_>,
    is_log: &dyn Fn(&Part) -> bool,
) -> Result<Vec<Recording>, Rejected> {
    let mut decoder = Decoder::<D>::default();
    for (index, part) in source.parts.iter().enumerate().filter(|(_, part)| is_log(part)) {
        builder.begin_part(index as u32);
        (decoder.line, decoder.skipping) = (0, false);
        session.stream_text(part, &mut decoder, &mut builder)?;
        if decoder.is_pointer {
            return Err(Rejected::unreadable("git-lfs-pointer", "a Git LFS pointer in place of the file"));
        }
    }
    if decoder.records == 0 && decoder.broken > 0 {
        let detail = format!("none of its {} lines is a record", decoder.broken);
        return Err(Rejected::unreadable("not-a-recording", detail));
    }
    Ok(vec![builder.finish()])
}

/// What is known of a metric.
#[derive(Debug)]
struct Tag {
    column: u32,
    is_wanted: bool,
    reaches: bool,
    /// Where a point without a step stands: with the point before it, or as its number where none has a step.
    here: Option<i64>,
    count: i64,
}

/// Decodes the logs of one run.
#[derive(Debug, Default)]
struct Decoder<D> {
    dialect: D,
    found: Found,
    tags: HashMap<String, Tag>,
    line: u64,
    records: u64,
    broken: u64,
    /// Inside a line that is passed over.
    skipping: bool,
    is_pointer: bool,
}

impl<D: Dialect> Decoder<D> {
    fn fault(&self, kind: FaultKind, detail: &str, into: &mut Builder<'_>) {
        let place = into.place(PlaceUnit::Line, self.line);
        into.fault(Fault::new(kind, place, detail));
    }

    /// Reads the records of a line, mostly one.
    fn read_line(&mut self, line: &[u8], is_whole: bool, into: &mut Builder<'_>) {
        let begin = line.iter().take_while(|byte| **byte == 0).count();
        if begin > 0 && is_whole {
            self.fault(FaultKind::Stray, "a run of NUL bytes", into);
        }
        let mut rest = &line[begin..];
        while rest.iter().any(|byte| byte.is_ascii_graphic()) {
            self.found.clear();
            let mut cursor = Cursor::with_end(rest, is_whole);
            let result = self.dialect.record(&mut cursor, &mut self.found);
            rest = &rest[cursor.position().min(rest.len())..];
            self.give(into);
            let Err(stop) = result else {
                self.records += 1;
                into.unterminated = !is_whole;
                continue;
            };
            match stop {
                Stop::Incomplete if !is_whole => {
                    self.fault(FaultKind::Truncated, "the file ends inside a record", into)
                }
                stop => {
                    self.broken += 1;
                    self.fault(FaultKind::Unparsable, &stop.to_string(), into);
                }
            }
            if self.found.is_bad {
                let detail = "the record that is cut holds a NaN or Inf, but its step was not read";
                self.fault(FaultKind::Unparsable, detail, into);
            }
            return;
        }
        if begin > 0 && !is_whole {
            self.fault(FaultKind::Truncated, "the file ends in zero bytes", into);
        }
    }

    /// Gives what was found to the builder.
    fn give(&mut self, into: &mut Builder<'_>) {
        for (key, fact) in self.found.facts.drain(..) {
            tell(key, fact, into);
        }
        for point in &self.found.points {
            let Some(name) = self.found.names.get(point.name) else { continue };
            if !self.tags.contains_key(name) {
                let column = into.column(name);
                into.numeric(column.id);
                let tag = Tag {
                    column: column.id,
                    is_wanted: column.want == Want::Number,
                    reaches: reaches(name),
                    here: None,
                    count: 0,
                };
                // Names beyond the limits are one column; what they are called is not kept.
                if self.tags.len() <= into.limits().columns {
                    self.tags.insert(name.clone(), tag);
                } else {
                    continue;
                }
            }
            let Some(tag) = self.tags.get_mut(name) else { continue };
            let step = point.step.and_then(parse_i64_step);
            let time = point.time.and_then(clock::from_number).map_or(f64::NAN, |time| time as f64 / 1e3);
            tag.here = step.map(|(step, _)| step).or(tag.here);
            into.begin_points(self.line, tag.here.unwrap_or(tag.count), time);
            match step {
                None => into.forget_step(),
                Some((_, true)) => into.fractional_step(),
                Some((_, false)) => {}
            }
            tag.count += 1;
            let reaches = tag.reaches && step.is_some();
            if !tag.is_wanted {
                into.pass_point(reaches);
                continue;
            }
            into.point(tag.column, point.value);
            if reaches {
                into.reach();
            }
        }
    }
}

impl<D: Dialect> StreamDecoder for Decoder<D> {
    fn feed(&mut self, window: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> Progress {
        if at == 0 && is_git_lfs_pointer(window) {
            self.is_pointer = true;
            return Progress::Used(window.len());
        }
        let mut lines = Lines::new(window, end, Ending::Newline);
        for line in lines.by_ref() {
            self.line += 1;
            if !std::mem::take(&mut self.skipping) {
                self.read_line(line.bytes, line.terminated, into);
            }
        }
        let used = lines.used();
        if used == 0 && window.len() >= into.limits().record {
            if !self.skipping {
                let place = into.place(PlaceUnit::Line, self.line + 1);
                let detail = format!("a line of more than {} bytes was passed over", window.len());
                into.fault(Fault::new(FaultKind::Limit, place, detail));
            }
            self.skipping = true;
            return Progress::Used(window.len());
        }
        Progress::Used(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_every_spelling() {
        let read = |text: &str| number(&mut Cursor::with_end(text.as_bytes(), true));
        for (text, want) in [("0.5", 0.5), ("\"-1e3\"", -1e3), ("true", 1.0), ("Infinity", f64::INFINITY)] {
            assert_eq!(read(text), Ok(Some(want)), "{text}");
        }
        assert_eq!(read("\"-Infinity\""), Ok(Some(f64::NEG_INFINITY)));
        for text in ["NaN", "\"nan\"", "nan", "\"NaN\""] {
            assert!(read(text).is_ok_and(|value| value.is_some_and(f64::is_nan)), "{text}");
        }
        for text in ["null", "\"a text\"", "[1]", "{\"a\": NaN}", "\"\""] {
            assert_eq!(read(text), Ok(None), "{text}");
        }
        assert!(read("x").is_err());
    }

    #[test]
    fn facts_up_to_the_damage() {
        let keys = [("id", "run_id"), ("n", "count"), ("ok", "is_ok"), ("z", "last")];
        let found = facts(b"{\"id\": \"a\\u00e9\", \"x\": {\"id\": 1}, \"n\": 12, \"ok\": false, \"id\"", &keys);
        assert_eq!(found, [("run_id", "a\u{e9}".into()), ("count", "12".into()), ("is_ok", "false".into())]);
        assert_eq!(facts(b"[1]", &keys), []);
    }
}
