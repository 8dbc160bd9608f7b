//! `.safetensors`: a length of eight bytes, a header of JSON, and the tensors without holes behind it.
//!
//! Before a tensor is looked at it is checked that the header is JSON to the letter, with no name and no key of a tensor
//! twice and metadata of texts alone; that sizes follow from types and extents; and that tensors lie one behind the other
//! from the begin of the data to its end. What breaks one of these was made by something else than a writer of this format:
//! two readers may see two files in it.

use std::borrow::Cow;
use std::collections::HashSet;

use super::counter::{Counter, Layout, Rows};
use super::window::{Input, Window};
use super::{Report, Tensor, corrupt, failed, limit, product, truncated, unsupported};
use crate::kernel::nonfinite::Float;
use crate::model::Limits;
use crate::read::broken::Broken;
use crate::wire::json::{Cursor, Kind, Stop, Text};

/// One tensor as the header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its type.
    pub dtype: Cow<'static, str>,
    /// How its values stand; `None`: its type can hold no NaN and no infinity, or is not known.
    pub layout: Option<Layout>,
    /// Whether its type is one of the format's.
    pub is_known: bool,
    /// Its extents.
    pub shape: Vec<u64>,
    /// Number of its values.
    pub values: u64,
    /// Where it begins behind the header.
    pub begin: u64,
    /// Where it ends.
    pub end: u64,
}

/// Extents of one tensor; frameworks know at most 64.
const MOST_EXTENTS: usize = 1024;

const LE: fn(Float) -> Layout = Layout::little;

/// The types of the format: bits of a value, and how it stands if it can be NaN or infinite.
fn dtype(name: &Text<'_>) -> Option<(&'static str, u64, Option<Layout>)> {
    let known: &[(&'static str, u64, Option<Layout>)] = &[
        ("F32", 32, Some(LE(Float::F32))),
        ("BF16", 16, Some(LE(Float::Bf16))),
        ("F16", 16, Some(LE(Float::F16))),
        ("F64", 64, Some(LE(Float::F64))),
        ("F8_E4M3", 8, Some(LE(Float::F8E4M3))),
        ("F8_E5M2", 8, Some(LE(Float::F8E5M2))),
        ("F8_E8M0", 8, Some(LE(Float::F8E8M0))),
        ("F8_E4M3FNUZ", 8, Some(LE(Float::F8E4M3Fnuz))),
        ("F8_E5M2FNUZ", 8, Some(LE(Float::F8E5M2Fnuz))),
        ("C64", 64, Some(Layout::complex(Float::F32))),
        ("BOOL", 8, None),
        ("U8", 8, None),
        ("I8", 8, None),
        ("I16", 16, None),
        ("U16", 16, None),
        ("I32", 32, None),
        ("U32", 32, None),
        ("I64", 64, None),
        ("U64", 64, None),
        ("F4", 4, None),
        ("F6_E2M3", 6, None),
        ("F6_E3M2", 6, None),
    ];
    known.iter().copied().find(|(known, ..)| name.is(known))
}

/// Whether values of a type of the format, by its name, can be NaN or infinite, and are counted.
pub fn is_counted(dtype: &str) -> bool {
    matches!(dtype, "F64" | "F32" | "F16" | "BF16" | "C64") || dtype.starts_with("F8_")
}

/// Reads a header. `data`: bytes behind it, where that is known.
pub fn header(json: &[u8], data: Option<u64>) -> Result<Vec<Entry>, Broken> {
    let begin = 8 + json.len() as u64;
    if json.first() != Some(&b'{') {
        return Err(corrupt(8, "the header does not begin with '{'"));
    }
    strict(json).map_err(|(at, what)| corrupt(8 + at as u64, format!("the header is no JSON: {what}")))?;
    let mut cursor = Cursor::with_end(json, true);
    let mut entries = entries(&mut cursor).map_err(|fault| match fault {
        Fault::Json(Stop::Incomplete) => corrupt(begin, "the header is no whole JSON object"),
        Fault::Json(Stop::Invalid { at, expected }) => {
            corrupt(8 + at as u64, format!("the header is no JSON: want {expected}"))
        }
        Fault::Broken(broken) => broken,
    })?;
    entries.sort_by_key(|entry| (entry.begin, entry.end));
    let mut at = 0;
    for entry in &entries {
        if entry.begin != at {
            let what = if entry.begin > at { "a hole before" } else { "an overlap at" };
            return Err(corrupt(
                begin.saturating_add(at),
                format!("{what} tensor {:?}: it begins at {}, want {at}", entry.name, entry.begin),
            ));
        }
        at = entry.end;
    }
    let mut names: HashSet<&str> = HashSet::new();
    if let Some(twice) = entries.iter().find(|entry| !names.insert(&entry.name)) {
        return Err(corrupt(8, format!("two tensors of the name {:?}", twice.name)));
    }
    match data {
        Some(data) if data > at => {
            Err(corrupt(begin + at, format!("{} bytes behind the last tensor belong to none", data - at)))
        }
        _ => Ok(entries),
    }
}

/// Objects and lists in each other, at most; as many as the format's own reader takes.
const MOST_DEPTH: usize = 128;

/// Checks that `json` is one JSON value to the letter. The cursor forgives what recordings get wrong; in a header what one
/// reader forgives and another does not would be two files in one.
fn strict(json: &[u8]) -> Result<(), (usize, &'static str)> {
    if let Err(error) = std::str::from_utf8(json) {
        return Err((error.valid_up_to(), "it is not UTF-8"));
    }
    let blank = |at: usize| {
        let blanks = json[at..].iter().take_while(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t'));
        at + blanks.count()
    };
    let mut open: Vec<u8> = Vec::new();
    let mut at = blank(0);
    loop {
        // A value, behind its key in an object.
        let mut is_open = false;
        if open.last() == Some(&b'{') {
            at = blank(strict_string(json, at)?);
            if json.get(at) != Some(&b':') {
                return Err((at, "want a colon"));
            }
            at = blank(at + 1);
        }
        match json.get(at) {
            Some(bracket @ (b'{' | b'[')) => {
                if open.len() == MOST_DEPTH {
                    return Err((at, "it is nested too deeply"));
                }
                open.push(*bracket);
                at = blank(at + 1);
                is_open = true;
            }
            Some(b'"') => at = strict_string(json, at)?,
            Some(b'-' | b'0'..=b'9') => at = strict_number(json, at)?,
            _ => {
                let word = ["true", "false", "null"].iter().find(|word| json[at..].starts_with(word.as_bytes()));
                at += word.ok_or((at, "want a value"))?.len();
            }
        }
        // What closes behind it; then a comma, or the first of what was opened.
        loop {
            at = blank(at);
            let Some(last) = open.last() else {
                return if at == json.len() {
                    Ok(())
                } else {
                    Err((at, "something else than spaces behind its object"))
                };
            };
            match (json.get(at), last) {
                (Some(b'}'), b'{') | (Some(b']'), b'[') => {
                    open.pop();
                    at += 1;
                    is_open = false;
                }
                _ if is_open => break,
                (Some(b','), _) => {
                    at = blank(at + 1);
                    break;
                }
                _ => return Err((at, "want a comma or an end")),
            }
        }
    }
}

/// The end of the string at `at`.
fn strict_string(json: &[u8], at: usize) -> Result<usize, (usize, &'static str)> {
    if json.get(at) != Some(&b'"') {
        return Err((at, "want a string"));
    }
    let unit = |at: usize| {
        let digits = json.get(at..at + 6).filter(|escape| escape.starts_with(b"\\u"))?;
        let digits = digits[2..].iter().all(u8::is_ascii_hexdigit).then_some(&digits[2..])?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut end = at + 1;
    loop {
        match json.get(end) {
            Some(b'"') => return Ok(end + 1),
            Some(b'\\') => match json.get(end + 1) {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => end += 2,
                Some(b'u') => match unit(end) {
                    Some(0xd800..=0xdbff) if matches!(unit(end + 6), Some(0xdc00..=0xdfff)) => end += 12,
                    Some(0xd800..=0xdfff) | None => return Err((end, "a broken escape")),
                    Some(_) => end += 6,
                },
                _ => return Err((end, "a broken escape")),
            },
            Some(0..=0x1f) => return Err((end, "a control character in a string")),
            Some(_) => end += 1,
            None => return Err((end, "it ends inside a string")),
        }
    }
}

/// The end of the number at `at`.
fn strict_number(json: &[u8], at: usize) -> Result<usize, (usize, &'static str)> {
    let digits = |at: usize| {
        let digits = json.get(at..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 { Err((at, "a broken number")) } else { Ok(at + digits) }
    };
    let begin = at + usize::from(json.get(at) == Some(&b'-'));
    let mut end = digits(begin)?;
    if json.get(begin) == Some(&b'0') && end > begin + 1 {
        return Err((begin, "a number that begins with 0"));
    }
    if json.get(end) == Some(&b'.') {
        end = digits(end + 1)?;
    }
    if matches!(json.get(end), Some(b'e' | b'E')) {
        end = digits(end + 1 + usize::from(matches!(json.get(end + 1), Some(b'+' | b'-'))))?;
    }
    Ok(end)
}

enum Fault {
    Json(Stop),
    Broken(Broken),
}

impl From<Stop> for Fault {
    fn from(stop: Stop) -> Self {
        Self::Json(stop)
    }
}

fn entries(cursor: &mut Cursor<'_>) -> Result<Vec<Entry>, Fault> {
    let mut entries = Vec::new();
    let mut has_metadata = false;
    cursor.enter_object()?;
    while let Some(key) = cursor.next_key()? {
        if key.is("__metadata__") {
            let at = 8 + cursor.position() as u64;
            let wrong = |what: &str| Fault::Broken(corrupt(at, format!("__metadata__ {what}")));
            if std::mem::replace(&mut has_metadata, true) {
                return Err(wrong("stands there twice"));
            }
            if cursor.kind()? != Kind::Object {
                return Err(wrong("is no object"));
            }
            cursor.enter_object()?;
            while cursor.next_key()?.is_some() {
                if cursor.kind()? != Kind::String {
                    return Err(wrong("holds something else than texts"));
                }
                cursor.string()?;
            }
            continue;
        }
        let mut name = String::new();
        key.decode(&mut name);
        let at = 8 + cursor.position() as u64;
        let wrong = |what: String| Fault::Broken(corrupt(at, format!("tensor {name:?}: {what}")));
        if cursor.kind()? != Kind::Object {
            return Err(wrong("want an object with dtype, shape and data_offsets".into()));
        }
        let (mut kind, mut shape, mut offsets): (Option<Text<'_>>, _, _) = (None, None, None);
        cursor.enter_object()?;
        while let Some(key) = cursor.next_key()? {
            let is_again = key.is("dtype") && kind.is_some()
                || key.is("shape") && shape.is_some()
                || key.is("data_offsets") && offsets.is_some();
            if is_again {
                return Err(wrong("dtype, shape or data_offsets stands there twice".into()));
            }
            if key.is("dtype") {
                if cursor.kind()? != Kind::String {
                    return Err(wrong("want a text as dtype".into()));
                }
                kind = Some(cursor.string()?);
            } else if key.is("shape") || key.is("data_offsets") {
                let field = if key.is("shape") { "shape" } else { "data_offsets" };
                let Some(numbers) = numbers(cursor)? else {
                    return Err(wrong(format!("want whole numbers of at most 64 bits in {field}")));
                };
                if numbers.len() > MOST_EXTENTS {
                    return Err(Fault::Broken(limit(at, format!("tensor {name:?} has more than {MOST_EXTENTS} axes"))));
                }
                *(if field == "shape" { &mut shape } else { &mut offsets }) = Some(numbers);
            } else {
                cursor.skip_value()?;
            }
        }
        let (Some(kind), Some(shape), Some(offsets)) = (kind, shape, offsets) else {
            return Err(wrong("dtype, shape or data_offsets is missing".into()));
        };
        let [begin, end] = offsets[..] else {
            return Err(wrong(format!("got {} data_offsets, want 2", offsets.len())));
        };
        if begin > end {
            return Err(wrong(format!("it ends at {end}, before its begin at {begin}")));
        }
        let Some(values) = product(&shape) else {
            return Err(wrong("its extents multiply to more than 64 bits can hold".into()));
        };
        let known = dtype(&kind);
        let bytes =
            known.map(|(_, bits, _)| values.checked_mul(bits).filter(|bits| bits % 8 == 0).map(|bits| bits / 8));
        if bytes.is_some_and(|bytes| bytes != Some(end - begin)) {
            let dtype = known.map_or("", |(name, ..)| name);
            return Err(wrong(format!("{values} values of {dtype} are not the {} bytes that it has", end - begin)));
        }
        let dtype = known.map_or_else(
            || {
                let mut text = String::new();
                kind.decode(&mut text);
                Cow::Owned(text)
            },
            |(name, ..)| Cow::Borrowed(name),
        );
        let layout = known.and_then(|(.., layout)| layout);
        entries.push(Entry { name, dtype, layout, is_known: known.is_some(), shape, values, begin, end });
    }
    Ok(entries)
}

/// A list of numbers; `None`: something else.
fn numbers(cursor: &mut Cursor<'_>) -> Result<Option<Vec<u64>>, Stop> {
    if cursor.kind()? != Kind::Array {
        return Ok(None);
    }
    cursor.enter_array()?;
    let mut numbers = Vec::new();
    while cursor.next_item()? {
        if cursor.kind()? != Kind::Number {
            return Ok(None);
        }
        let digits = cursor.number()?;
        let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
        let Some(number) = number.filter(|_| digits.iter().all(u8::is_ascii_digit)) else { return Ok(None) };
        numbers.push(number);
        if numbers.len() > MOST_EXTENTS {
            break;
        }
    }
    Ok(Some(numbers))
}

/// Audits a file from its begin. `size`: its bytes, where that is known.
pub fn audit(input: &mut dyn Input, size: Option<u64>, limits: &Limits, buffer: &mut Vec<u8>) -> Report {
    let mut window = Window::new(input, buffer);
    let json = match head(&mut window, size, limits) {
        Ok(json) => json,
        Err(broken) => return broken.into(),
    };
    let begin = window.at();
    let entries = match header(&json, size.map(|size| size.saturating_sub(begin))) {
        Ok(entries) => entries,
        Err(broken) => return broken.into(),
    };
    drop(json);
    let mut report = Report::default();
    let count = entries.len();
    for (index, entry) in entries.into_iter().enumerate() {
        let Entry { name, dtype, layout, is_known, shape, values, begin, end } = entry;
        let bytes = end - begin;
        if !is_known {
            let detail = format!("tensor {name:?} is of type {dtype:?}, which is not known");
            report.faults.push(unsupported(window.at(), detail));
        }
        let rows = Rows::major(&shape, 1);
        let mut counter = layout.map(|layout| Counter::new(layout, rows, 0));
        let got = match &mut counter {
            Some(counter) => window.each(bytes, |piece| counter.feed(piece)),
            None => window.pass(bytes),
        };
        let broken = match &got {
            Ok(got) if *got == bytes => None,
            Ok(_) => {
                let detail =
                    format!("the file ends inside tensor {name:?}, {} of {count} were not read", count - index - 1);
                Some(truncated(window.at(), detail))
            }
            Err(error) => Some(failed(window.at(), error)),
        };
        let (nan, inf, first_row, bad_rows) = counter.as_ref().map_or((0, 0, None, Some(0)), Counter::totals);
        let seen = counter.as_ref().map_or(values, Counter::values);
        // What stands before a cut is as bad as it is.
        if is_known && (broken.is_none() || seen > 0 && counter.is_some()) {
            report.tensors.push(Tensor { name, dtype, shape, values: seen, nan, inf, first_row, bad_rows });
        }
        if let Some(broken) = broken {
            report.faults.push(broken);
            return report;
        }
    }
    if size.is_none() {
        let at = window.at();
        match window.next(1) {
            Ok([]) => {}
            Ok(_) => report.faults.push(corrupt(at, "bytes behind the last tensor belong to none")),
            Err(error) => report.faults.push(failed(at, &error)),
        }
    }
    report
}

/// The header's bytes.
fn head(window: &mut Window<'_>, size: Option<u64>, limits: &Limits) -> Result<Vec<u8>, Broken> {
    let length = window.take(8).map_err(|error| failed(0, &error))?;
    if length == b"version " {
        // As a number it is far beyond any header.
        return Err(super::git_lfs_pointer());
    }
    let Some(length) = length.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
        return Err(truncated(length.len() as u64, "the file ends before the length of its header"));
    };
    if length > limits.tensor_header {
        let most = limits.tensor_header;
        return Err(limit(
            0,
            format!("a header of {length} bytes, at most {most} are read: this may be another format"),
        ));
    }
    if size.is_some_and(|size| length > size.saturating_sub(8)) {
        return Err(truncated(8, format!("the header has {length} bytes, the file ends before")));
    }
    let json = window.take(length).map_err(|error| failed(window.at(), &error))?;
    if (json.len() as u64) < length {
        return Err(truncated(window.at(), format!("the header has {length} bytes, the file ends before")));
    }
    Ok(json)
}

/// Which file holds which tensor of a model: (tensor, name of the file beside the index).
pub fn index(json: &[u8]) -> Result<Vec<(String, String)>, Broken> {
    if let Some(pointer) = super::pointer(json) {
        return Err(pointer);
    }
    let mut cursor = Cursor::with_end(json, true);
    let mut map = None;
    let read = |cursor: &mut Cursor<'_>, map: &mut Option<Vec<(String, String)>>| -> Result<(), Stop> {
        cursor.enter_object()?;
        while let Some(key) = cursor.next_key()? {
            if !key.is("weight_map") || cursor.kind()? != Kind::Object {
                cursor.skip_value()?;
                continue;
            }
            let pairs = map.insert(Vec::new());
            cursor.enter_object()?;
            while let Some(key) = cursor.next_key()? {
                let (mut tensor, mut file) = (String::new(), String::new());
                key.decode(&mut tensor);
                cursor.string()?.decode(&mut file);
                pairs.push((tensor, file));
            }
        }
        Ok(())
    };
    read(&mut cursor, &mut map).map_err(|stop| corrupt(cursor.position() as u64, stop.to_string()))?;
    map.filter(|map| !map.is_empty()).ok_or_else(|| corrupt(0, "an index without a weight_map that names a tensor"))
}

/// Whether a name in an index leads to a file beside it and nowhere else.
pub fn is_beside(file: &str) -> bool {
    let is_plain = |c: char| !matches!(c, '/' | '\\' | ':' | '\0');
    file.ends_with(".safetensors") && file.chars().all(is_plain)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::audit::window::Streamed;
    use proptest::prelude::*;

    /// A file of a header and data.
    pub(crate) fn file(json: &str, data: &[u8]) -> Vec<u8> {
        [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), data].concat()
    }

    fn audited(bytes: &[u8], knows_size: bool) -> Report {
        let limits = Limits { tensor_header: 1 << 20, ..Limits::default() };
        let size = knows_size.then_some(bytes.len() as u64);
        audit(&mut Streamed(bytes), size, &limits, &mut Vec::new())
    }

    /// The only fault, which is the same whether the size is known or not, and that nothing else is said.
    fn refused(bytes: &[u8]) -> (&'static str, String) {
        let [known, unknown] = [true, false].map(|knows| audited(bytes, knows));
        for report in [&known, &unknown] {
            assert_eq!(report.faults.len(), 1, "{report:?}");
            assert!(report.tensors.is_empty(), "{report:?}");
        }
        assert_eq!(known.faults[0].code, unknown.faults[0].code);
        (known.faults[0].code, known.faults[0].detail.clone())
    }

    fn one(dtype: &str, shape: &str, offsets: &str) -> String {
        format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    }

    #[test]
    fn tensors_are_counted_where_they_lie() {
        let json = r#"{"__metadata__":{"format":"pt"},
            "b":{"dtype":"F32","shape":[2,2],"data_offsets":[3,19]},
            "a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
            "e":{"dtype":"F32","shape":[0,7],"data_offsets":[19,19]},
            "c":{"dtype":"BF16","shape":[],"data_offsets":[19,21]}}   "#;
        let floats = [1.0f32, f32::NAN, f32::INFINITY, 2.0].map(f32::to_le_bytes).concat();
        let bytes = file(json, &[&[0xff; 3][..], &floats, &[0x80, 0xff]].concat());
        for knows_size in [true, false] {
            let report = audited(&bytes, knows_size);
            assert_eq!(report.faults, []);
            let rows: Vec<_> = report
                .tensors
                .iter()
                .map(|t| (t.name.as_str(), &*t.dtype, t.values, t.nan, t.inf, t.first_row, t.bad_rows))
                .collect();
            assert_eq!(rows[0], ("a", "U8", 3, 0, 0, None, Some(0)));
            assert_eq!(rows[1], ("b", "F32", 4, 1, 1, Some(0), Some(2)));
            assert_eq!(rows[2], ("e", "F32", 0, 0, 0, None, Some(0)));
            assert_eq!(rows[3], ("c", "BF16", 1, 0, 1, Some(0), Some(1)));
            assert_eq!(report.tensors[1].shape, [2, 2]);
        }
    }

    #[test]
    fn hostile_01_a_header_of_256_tebibytes_in_eight_bytes() {
        let (code, detail) = refused(&[&(1u64 << 48).to_le_bytes()[..], b"{}"].concat());
        assert_eq!(code, "limit", "{detail}");
    }

    #[test]
    fn hostile_02_a_header_longer_than_its_file() {
        assert_eq!(refused(&[&1000u64.to_le_bytes()[..], b"{}"].concat()).0, "truncated");
        assert_eq!(refused(b"\x02\0\0").0, "truncated");
        assert_eq!(refused(b"").0, "truncated");
    }

    #[test]
    fn hostile_03_a_shape_whose_product_wraps_to_four_bytes() {
        let (code, detail) = refused(&file(&one("F32", "[4611686018427387905,4]", "[0,16]"), &[0; 16]));
        assert!(code == "unparsable" && detail.contains("64 bits"), "{code} {detail}");
        assert_eq!(refused(&file(&one("F64", "[2305843009213693953]", "[0,8]"), &[0; 8])).0, "unparsable");
    }

    #[test]
    fn hostile_04_two_tensors_on_the_same_bytes_double_the_work() {
        let json = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
        assert!(refused(&file(json, &[0; 4])).1.contains("overlap"));
    }

    #[test]
    fn hostile_05_a_hole_hides_a_polyglot() {
        let json = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}}"#;
        assert!(refused(&file(json, &[0; 4])).1.contains("hole"));
        assert!(refused(&file(&one("U8", "[1]", "[1,2]"), &[0; 2])).1.contains("hole"));
    }

    #[test]
    fn hostile_06_bytes_behind_the_last_tensor() {
        let bytes = file(&one("F32", "[1]", "[0,4]"), &[0; 9]);
        assert_eq!(audited(&bytes, true).faults[0].code, "unparsable");
        // Of a stream it shows at its end.
        let late = audited(&bytes, false);
        assert_eq!((late.faults[0].code, late.tensors.len()), ("unparsable", 1));
    }

    #[test]
    fn hostile_07_offsets_that_run_backwards_or_are_no_pair() {
        for offsets in
            ["[4,0]", "[0]", "[0,2,4]", "[]", "[-4,0]", "[0,4.0]", "[0,1e1]", "[0,18446744073709551616]", "4"]
        {
            assert_eq!(refused(&file(&one("F32", "[1]", offsets), &[0; 4])).0, "unparsable", "{offsets}");
        }
    }

    #[test]
    fn hostile_08_the_same_name_twice() {
        let json = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
        assert!(refused(&file(json, &[0; 2])).1.contains("two tensors"));
    }

    #[test]
    fn hostile_09_a_header_that_is_no_object_or_goes_on_behind_it() {
        for json in ["[]", " {}", "{", "{}x", r#"{"a":1}"#, r#"{"a":{}}"#, "{}\u{0}", "nul"] {
            assert_eq!(refused(&file(json, b"")).0, "unparsable", "{json:?}");
        }
    }

    #[test]
    fn hostile_10_a_million_brackets() {
        let json = format!(r#"{{"a":{}"#, "[".repeat(500_000));
        assert_eq!(refused(&file(&json, b"")).0, "unparsable");
        let json = format!(r#"{{"__metadata__":{}"#, "{\"a\":".repeat(100_000));
        assert_eq!(refused(&file(&json, b"")).0, "unparsable");
    }

    #[test]
    fn hostile_11_a_shape_of_a_million_axes() {
        let shape = format!("[{}1]", "1,".repeat(100_000));
        assert_eq!(refused(&file(&one("U8", &shape, "[0,1]"), &[0])).0, "limit");
    }

    #[test]
    fn hostile_12_sizes_that_do_not_fit_the_type() {
        for (dtype, shape, bytes) in [("F16", "[3]", 5), ("F4", "[3]", 2), ("F6_E2M3", "[2]", 2), ("C64", "[1]", 4)] {
            let json = one(dtype, shape, &format!("[0,{bytes}]"));
            assert_eq!(refused(&file(&json, &vec![0; bytes])).0, "unparsable", "{dtype}");
        }
        let whole = one("F4", "[4]", "[0,2]");
        assert_eq!(audited(&file(&whole, &[0xff; 2]), true).tensors[0].values, 4);
    }

    #[test]
    fn hostile_13_a_pointer_in_place_of_the_file() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n";
        assert_eq!(refused(pointer).0, "git-lfs-pointer");
    }

    #[test]
    fn hostile_14_an_index_that_leads_elsewhere() {
        for file in
            ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "C:x.safetensors", "a\\b.safetensors", "x.bin"]
        {
            assert!(!is_beside(file), "{file}");
        }
        assert!(is_beside("model-00001-of-00002.safetensors"));
        assert!(index(br#"{"weight_map":{}}"#).is_err() && index(b"{}").is_err() && index(b"[").is_err());
        let map = index(br#"{"metadata":{"total_size":9},"weight_map":{"a":"x.safetensors"}}"#);
        assert_eq!(map, Ok(vec![("a".to_owned(), "x.safetensors".to_owned())]));
    }

    #[test]
    fn hostile_15_what_two_readers_read_differently() {
        let data = [0; 4];
        let good =
            r#"{"__metadata__":{"a":"b","\ud83d\ude00":"x"},"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} "#;
        assert!(audited(&file(good, &data), true).faults.is_empty());
        for json in [
            r#"{"t":{"dtype":"I32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            r#"{"t":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}}"#,
            r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"data\u005foffsets":[0,4]}}"#,
            r#"{"__metadata__":{},"__metadata__":{},"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            r#"{"__metadata__":[],"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            r#"{"__metadata__":{"a":1},"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            r#"{"__metadata__":{"a":{}},"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},}"#,
            r#"{"t":{"dtype":"F32","shape":[1,],"data_offsets":[0,4]}}"#,
            r#"{"t":{"dtype":"F32","shape":[01],"data_offsets":[0,4]}}"#,
            r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}{}"#,
            r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":NaN}}"#,
            r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":[}]}}"#,
            r#"{"t\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            r#"{"t\x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            "{\"t\n\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
            "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}\u{c}",
            "{\"t\":{\u{feff}\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
        ] {
            assert_eq!(refused(&file(json, &data)).0, "unparsable", "{json}");
        }
        let mut latin = file(r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, &data);
        latin[10] = 0xe9;
        assert!(refused(&latin).1.contains("UTF-8"));
    }

    #[test]
    fn a_type_of_the_future_costs_itself_alone() {
        let json = r#"{"a":{"dtype":"F3","shape":[5],"data_offsets":[0,2]},"b":{"dtype":"F8_E5M2","shape":[2],"data_offsets":[2,4]}}"#;
        let report = audited(&file(json, &[0xff, 0xff, 0x7c, 0x7f]), true);
        assert_eq!(report.faults[0].code, "unsupported");
        assert_eq!((report.tensors.len(), report.tensors[0].nan, report.tensors[0].inf), (1, 1, 1));
    }

    #[test]
    fn every_cut_keeps_what_stands_before_it() {
        let json = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"I8","shape":[3],"data_offsets":[8,11]},"c":{"dtype":"F16","shape":[2],"data_offsets":[11,15]}}"#;
        let data = [&f32::NAN.to_le_bytes()[..], &1f32.to_le_bytes(), &[1, 2, 3], &[0, 0x7c, 0, 0]].concat();
        let bytes = file(json, &data);
        let header = bytes.len() - data.len();
        for cut in 0..bytes.len() {
            for knows_size in [true, false] {
                let report = audited(&bytes[..cut], knows_size);
                assert_eq!((report.faults.len(), report.faults[0].code), (1, "truncated"), "{cut}");
                let bad: u64 = report.tensors.iter().map(|t| t.nan + t.inf).sum();
                let want = u64::from(cut >= header + 4) + u64::from(cut >= header + 13);
                assert_eq!(bad, want, "{cut}");
            }
        }
    }

    proptest! {
        #[test]
        fn flipped_bytes_are_outcomes(at in 0usize..90, byte: u8) {
            let mut bytes = file(&one("F32", "[2,2]", "[0,16]"), &[0; 16]);
            let at = at % bytes.len();
            bytes[at] = byte;
            for knows_size in [true, false] {
                let report = audited(&bytes, knows_size);
                prop_assert!(report.tensors.len() <= 1 && report.faults.len() <= 1);
            }
        }
    }
}
