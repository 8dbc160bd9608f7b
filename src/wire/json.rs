//! JSON as training tools write it, from slices that may be cut anywhere.
//!
//! Three tools over one set of token rules:
//! - [`Cursor`] walks a document token by token. It is iterative and keeps no stack: the caller knows what it entered.
//! - [`Skipper`] passes over one value of any size, window by window, in constant memory.
//! - [`RowScanner`] reads thousands of objects of similar shape. It learns the bytes between the values, and compares
//!   where the cursor would tokenise.
//!
//! # What is accepted
//! JSON, and what is found in real recordings: bare `NaN`, `nan`, `-NaN`, `Infinity`, `-inf` and their kin in any case
//! and with either sign; a trailing comma; a byte order mark; runs of NUL and other stray bytes (controls and bytes above
//! 0x7E, never printable ASCII) between tokens, which are counted; raw control characters in strings; numbers with a
//! leading `+`, leading zeros, or a bare point on one side.
//!
//! # What a cut means
//! A token counts when the byte after it was seen: at the end of a slice a number or a bare word is
//! [`Stop::Incomplete`], unless the caller said that nothing follows. Closed strings, arrays and objects are complete.

use super::numbers::{number_end, parse_word};
use memchr::memchr2;
use std::fmt;

mod rows;
mod skip;

pub use rows::{MAX_COLUMNS, MAX_DEPTH, Path, RowScanner, Rows, Sink, Want};
pub use skip::{Skip, Skipper};

/// Why reading stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The slice ended inside the value: more bytes may make it whole.
    Incomplete,
    /// A byte that fits no JSON.
    Invalid {
        /// Index of the byte in the slice.
        at: usize,
        /// What was wanted there, as in "got ..., want ...".
        expected: &'static str,
    },
}

impl fmt::Display for Stop {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Incomplete => out.write_str("the JSON value is cut"),
            Stop::Invalid { at, expected } => write!(out, "no JSON at byte {at}: want {expected}"),
        }
    }
}

impl std::error::Error for Stop {}

/// What kind of value comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `{`
    Object,
    /// `[`
    Array,
    /// `"`
    String,
    /// A decimal number.
    Number,
    /// `true`
    True,
    /// `false`
    False,
    /// `null`
    Null,
    /// A bare NaN, of either sign.
    NaN,
    /// A bare positive infinity.
    Infinity,
    /// A bare negative infinity.
    NegInfinity,
}

/// The bytes of a string token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<'a> {
    /// What lies between the quotes, as written.
    pub raw: &'a [u8],
    /// Whether `raw` holds escapes. If not, it is the text itself.
    pub escaped: bool,
}

impl Text<'_> {
    /// Appends the text. It never fails: bad UTF-8, bad escapes and lone surrogates become U+FFFD.
    pub fn decode(&self, into: &mut String) {
        if !self.escaped {
            push_lossy(self.raw, into);
            return;
        }
        let mut rest = self.raw;
        while let Some(at) = memchr::memchr(b'\\', rest) {
            push_lossy(&rest[..at], into);
            rest = unescape(&rest[at + 1..], into);
        }
        push_lossy(rest, into);
    }

    /// Whether the text is `other`.
    pub fn is(&self, other: &str) -> bool {
        if !self.escaped {
            return self.raw == other.as_bytes();
        }
        let mut text = String::new();
        self.decode(&mut text);
        text == other
    }
}

fn push_lossy(bytes: &[u8], into: &mut String) {
    for chunk in bytes.utf8_chunks() {
        into.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            into.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Decodes the escape whose backslash comes before `rest`, and returns what follows it.
fn unescape<'a>(rest: &'a [u8], into: &mut String) -> &'a [u8] {
    let Some(&kind) = rest.first() else {
        into.push(char::REPLACEMENT_CHARACTER);
        return rest;
    };
    let after = &rest[1..];
    let plain = match kind {
        b'"' | b'\\' | b'/' => kind as char,
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let Some(high) = hex4(after) else {
                into.push(char::REPLACEMENT_CHARACTER);
                return after;
            };
            let after = &after[4..];
            if (0xD800..0xDC00).contains(&high) {
                let low = after.strip_prefix(b"\\u").and_then(hex4).filter(|low| (0xDC00..0xE000).contains(low));
                if let Some(low) = low {
                    let code = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                    into.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    return &after[6..];
                }
            }
            into.push(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER));
            return after;
        }
        _ => {
            // The byte after the backslash may begin a character: it is kept, the escape is not.
            into.push(char::REPLACEMENT_CHARACTER);
            return rest;
        }
    };
    into.push(plain);
    after
}

fn hex4(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk::<4>()?.iter().try_fold(0, |code, &byte| Some(code << 4 | char::from(byte).to_digit(16)?))
}

/// A walk over one slice of JSON.
///
/// The cursor stands before a value, or after one inside an object or array. [`Cursor::kind`] tells what comes; exactly
/// one of the methods that take a value follows. After [`Cursor::enter_object`] call [`Cursor::next_key`] until it gives
/// `None`, taking the value of each key; after [`Cursor::enter_array`] likewise [`Cursor::next_item`].
///
/// After a [`Stop`] the cursor stands where the failing token begins or inside it; only [`Cursor::position`] has a
/// meaning then.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    at_end: bool,
    /// Directly after an opening bracket: no comma comes first.
    fresh: bool,
    stray: u64,
}

impl<'a> Cursor<'a> {
    /// A walk from the begin of `bytes`, which more bytes may follow.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, at_end: false, fresh: true, stray: 0 }
    }

    /// The same; `at_end` says that nothing follows the slice.
    pub fn with_end(bytes: &'a [u8], at_end: bool) -> Self {
        Self { at_end, ..Self::new(bytes) }
    }

    /// A walk that continues at byte `at` of the slice, inside an object or array: after its opening bracket if `fresh`,
    /// else after one of its values.
    pub fn resume(bytes: &'a [u8], at: usize, at_end: bool, fresh: bool) -> Self {
        Self { at, fresh, ..Self::with_end(bytes, at_end) }
    }

    /// Bytes of the slice that were passed.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Bytes between tokens that were passed though they are no white space.
    pub fn stray(&self) -> u64 {
        self.stray
    }

    /// The kind of the next value. Passes white space, nothing else.
    pub fn kind(&mut self) -> Result<Kind, Stop> {
        let first = self.peek()?;
        Ok(match first {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b'0'..=b'9' | b'.' => Kind::Number,
            b'-' | b'+' => match self.bytes.get(self.at + 1) {
                Some(byte) if byte.is_ascii_alphabetic() => self.word()?.0,
                Some(_) => Kind::Number,
                None if self.at_end => return Err(self.invalid("a value")),
                None => return Err(Stop::Incomplete),
            },
            b'a'..=b'z' | b'A'..=b'Z' => self.word()?.0,
            _ => return Err(self.invalid("a value")),
        })
    }

    /// Takes `{`.
    pub fn enter_object(&mut self) -> Result<(), Stop> {
        self.enter(b'{', "an object")
    }

    /// Takes `[`.
    pub fn enter_array(&mut self) -> Result<(), Stop> {
        self.enter(b'[', "an array")
    }

    fn enter(&mut self, open: u8, expected: &'static str) -> Result<(), Stop> {
        if self.peek()? != open {
            return Err(self.invalid(expected));
        }
        self.at += 1;
        self.fresh = true;
        Ok(())
    }

    /// Goes to the next key of the object: takes the comma, the key and the colon. `None` takes the closing brace.
    pub fn next_key(&mut self) -> Result<Option<Text<'a>>, Stop> {
        if !self.next(b'}', "a comma or the end of the object")? {
            return Ok(None);
        }
        if self.peek()? != b'"' {
            return Err(self.invalid("a key in quotes"));
        }
        let key = self.string()?;
        if self.peek()? != b':' {
            return Err(self.invalid("a colon"));
        }
        self.at += 1;
        Ok(Some(key))
    }

    /// Goes to the next item of the array: takes the comma. `false` takes the closing bracket.
    pub fn next_item(&mut self) -> Result<bool, Stop> {
        self.next(b']', "a comma or the end of the array")
    }

    fn next(&mut self, close: u8, expected: &'static str) -> Result<bool, Stop> {
        let mut byte = self.peek()?;
        if !self.fresh && byte == b',' {
            self.at += 1;
            byte = self.peek()?;
        } else if !self.fresh && byte != close {
            return Err(self.invalid(expected));
        }
        self.fresh = false;
        if byte == close {
            self.at += 1;
            return Ok(false);
        }
        Ok(true)
    }

    /// Takes a string.
    pub fn string(&mut self) -> Result<Text<'a>, Stop> {
        if self.peek()? != b'"' {
            return Err(self.invalid("a string"));
        }
        let (text, end) = string_at(self.bytes, self.at).ok_or(Stop::Incomplete)?;
        self.took(end);
        Ok(text)
    }

    /// Takes a number and returns its bytes.
    pub fn number(&mut self) -> Result<&'a [u8], Stop> {
        self.peek()?;
        let mut end = number_end(self.bytes, self.at).map_err(|at| self.broken_number(at))?;
        let sharp = end;
        if self.bytes.get(sharp) == Some(&b'#') {
            // Microsoft's older runtime: 1.#QNAN, -1.#INF00.
            end += 1;
            end += self.bytes[end..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        }
        if end == self.bytes.len() && !self.at_end {
            return Err(Stop::Incomplete);
        }
        if end > sharp && parse_word(&self.bytes[self.at..end]).is_none() {
            return Err(Stop::Invalid { at: sharp, expected: "a number" });
        }
        let token = &self.bytes[self.at..end];
        self.took(end);
        Ok(token)
    }

    fn broken_number(&self, at: usize) -> Stop {
        if at == self.bytes.len() && !self.at_end {
            Stop::Incomplete
        } else {
            Stop::Invalid { at, expected: "a number" }
        }
    }

    /// Takes a bare word: `true`, `false`, `null`, and the non-finite numbers.
    pub fn bare(&mut self) -> Result<Kind, Stop> {
        self.peek()?;
        let (kind, end) = self.word()?;
        self.took(end);
        Ok(kind)
    }

    /// Passes over one value of any kind. Inside objects and arrays only quotes and the depth of brackets are looked at:
    /// nesting costs no memory, and what lies between is not checked.
    pub fn skip_value(&mut self) -> Result<(), Stop> {
        match self.kind()? {
            Kind::Object | Kind::Array => {
                let mut skipper = Skipper::new();
                match skipper.feed(&self.bytes[self.at..], self.at_end) {
                    Ok(Skip::Done(used)) => self.took(self.at + used),
                    Ok(Skip::More) => return Err(Stop::Incomplete),
                    Err(stop) => return Err(shift(stop, self.at)),
                }
            }
            Kind::String => {
                self.string()?;
            }
            Kind::Number => {
                self.number()?;
            }
            _ => {
                self.bare()?;
            }
        }
        Ok(())
    }

    fn took(&mut self, end: usize) {
        self.at = end;
        self.fresh = false;
    }

    /// The word that begins here, and the index after it.
    fn word(&self) -> Result<(Kind, usize), Stop> {
        let rest = &self.bytes[self.at..];
        let sign = usize::from(matches!(rest.first(), Some(b'-' | b'+')));
        let length = sign + rest[sign..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        if length == rest.len() && !self.at_end {
            return Err(Stop::Incomplete);
        }
        let word = &rest[..length];
        let kind = match word {
            b"true" => Kind::True,
            b"false" => Kind::False,
            b"null" => Kind::Null,
            _ => match parse_word(word) {
                Some(value) if value.is_nan() => Kind::NaN,
                Some(value) if value > 0.0 => Kind::Infinity,
                Some(_) => Kind::NegInfinity,
                None => return Err(self.invalid("a value")),
            },
        };
        Ok((kind, self.at + length))
    }

    /// The next byte that is no blank.
    fn peek(&mut self) -> Result<u8, Stop> {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                Some(&byte) if is_stray(byte) => {
                    if self.bytes[self.at..].starts_with(b"\xEF\xBB\xBF") {
                        self.at += 3;
                    } else {
                        self.stray += 1;
                        self.at += 1;
                    }
                }
                Some(&byte) => return Ok(byte),
                None => return Err(Stop::Incomplete),
            }
        }
    }

    fn invalid(&self, expected: &'static str) -> Stop {
        Stop::Invalid { at: self.at, expected }
    }
}

/// Bytes that can begin no token and are passed over between tokens.
fn is_stray(byte: u8) -> bool {
    !(b' '..0x7F).contains(&byte)
}

/// The same stop, seen from `by` bytes earlier.
fn shift(stop: Stop, by: usize) -> Stop {
    match stop {
        Stop::Incomplete => stop,
        Stop::Invalid { at, expected } => Stop::Invalid { at: at + by, expected },
    }
}

/// The string whose opening quote is at `at`, and the index after its closing quote; `None` if that is not in the slice.
#[inline]
fn string_at(bytes: &[u8], at: usize) -> Option<(Text<'_>, usize)> {
    let begin = at + 1;
    let mut end = begin;
    let mut escaped = false;
    loop {
        end += memchr2(b'"', b'\\', bytes.get(end..)?)?;
        if bytes[end] == b'"' {
            return Some((Text { raw: &bytes[begin..end], escaped }, end + 1));
        }
        escaped = true;
        // Whatever the escape is, its second byte closes nothing.
        end += 2;
    }
}

#[cfg(test)]
mod tests;
