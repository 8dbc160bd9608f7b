//! Arrays of numpy: `.npy` of versions 1 to 3, in C and Fortran order, either byte order, with fields.
//!
//! The header is a literal of Python's; the few kinds that it may hold are read here, and nothing is ever evaluated or
//! unpickled.

use std::borrow::Cow;

use super::counter::{Counter, Layout, Rows};
use super::window::{Input, Window};
use super::{Report, Tensor, corrupt, failed, limit, product, truncated, unsupported};
use crate::kernel::nonfinite::{Float, Order};
use crate::model::{FaultKind, Limits};
use crate::read::broken::Broken;

/// Begin of a file.
pub const MAGIC: &[u8] = b"\x93NUMPY";

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// What stands at each place; one without a name where there are no fields.
    pub fields: Vec<Field>,
    /// Bytes of a place.
    pub item: u64,
    /// Extents.
    pub shape: Vec<u64>,
    /// Whether the first axis runs fastest.
    pub is_fortran: bool,
}

/// One field of a structure, or all of a plain array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Names from the outermost structure on, with points between; empty for a plain array.
    pub name: String,
    /// Its type as numpy writes it.
    pub dtype: Cow<'static, str>,
    /// Where it begins in its place.
    pub offset: u64,
    /// Extents of a field that is an array itself.
    pub shape: Vec<u64>,
    /// Values at one place.
    pub values: u64,
    /// How they stand; `None`: none can be NaN or infinite.
    pub layout: Option<Layout>,
}

/// A literal of Python's, as far as headers hold them.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Literal {
    Text(String),
    Number(u64),
    Bool(bool),
    None,
    /// A tuple or a list.
    Several(Vec<Literal>),
    Pairs(Vec<(Literal, Literal)>),
}

/// Structures in structures; beyond, a header only means to cost.
const MOST_DEPTH: usize = 32;
/// Axes of an array or field: as many as numpy knows.
const MOST_EXTENTS: usize = 64;
/// Fields of one structure. Each is counted apart.
const MOST_FIELDS: usize = 65_536;

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn peek(&mut self) -> Option<u8> {
        self.at += self.text[self.at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.text.get(self.at).copied()
    }

    fn takes(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn word(&mut self, word: &str) -> bool {
        let is_next = self.text[self.at..].starts_with(word.as_bytes());
        self.at += if is_next { word.len() } else { 0 };
        is_next
    }

    fn literal(&mut self, depth: usize) -> Option<Literal> {
        if depth > MOST_DEPTH {
            return None;
        }
        match self.peek()? {
            quote @ (b'\'' | b'"') => {
                self.at += 1;
                let mut bytes = Vec::new();
                loop {
                    match *self.text.get(self.at)? {
                        b'\\' => {
                            // Of escapes only those that stand for a byte as it is are undone.
                            bytes.push(*self.text.get(self.at + 1)?);
                            self.at += 2;
                        }
                        byte => {
                            self.at += 1;
                            if byte == quote {
                                break;
                            }
                            bytes.push(byte);
                        }
                    }
                }
                Some(Literal::Text(String::from_utf8_lossy(&bytes).into_owned()))
            }
            open @ (b'(' | b'[') => {
                self.at += 1;
                let close = if open == b'(' { b')' } else { b']' };
                let mut several = Vec::new();
                while !self.takes(close) {
                    several.push(self.literal(depth + 1)?);
                    if !self.takes(b',') {
                        if !self.takes(close) {
                            return None;
                        }
                        break;
                    }
                }
                Some(Literal::Several(several))
            }
            b'{' => {
                self.at += 1;
                let mut pairs = Vec::new();
                while !self.takes(b'}') {
                    let key = self.literal(depth + 1)?;
                    if !self.takes(b':') {
                        return None;
                    }
                    pairs.push((key, self.literal(depth + 1)?));
                    if !self.takes(b',') {
                        if !self.takes(b'}') {
                            return None;
                        }
                        break;
                    }
                }
                Some(Literal::Pairs(pairs))
            }
            b'0'..=b'9' => {
                let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                let text = std::str::from_utf8(&self.text[self.at..self.at + digits]).ok()?;
                self.at += digits;
                // Python 2 wrote long integers.
                self.word("L");
                Some(Literal::Number(text.parse().ok()?))
            }
            b'u' if matches!(self.text.get(self.at + 1), Some(b'\'' | b'"')) => {
                self.at += 1;
                self.literal(depth)
            }
            _ if self.word("True") => Some(Literal::Bool(true)),
            _ if self.word("False") => Some(Literal::Bool(false)),
            _ if self.word("None") => Some(Literal::None),
            _ => None,
        }
    }
}

fn extents(literal: &Literal) -> Option<Vec<u64>> {
    let number = |literal: &Literal| if let Literal::Number(number) = literal { Some(*number) } else { None };
    match literal {
        Literal::Number(one) => Some(vec![*one]),
        Literal::Several(several) if several.len() <= MOST_EXTENTS => several.iter().map(number).collect(),
        _ => None,
    }
}

/// A type by its code: its bytes, how it is called, how it stands.
fn plain(code: &str, at: u64) -> Result<(u64, Cow<'static, str>, Option<Layout>), Broken> {
    let wrong = || corrupt(at, format!("the type {code:?} is none of numpy's"));
    let (order, rest) = match code.as_bytes().first() {
        Some(b'>') => (Order::Big, &code[1..]),
        Some(b'<' | b'|' | b'=') => (Order::Little, &code[1..]),
        _ => (Order::Little, code),
    };
    let mut letters = rest.chars();
    let kind = letters.next().ok_or_else(wrong)?;
    let digits = letters.as_str();
    let digits = digits.split('[').next().unwrap_or(digits);
    let size: u64 = if digits.is_empty() { 1 } else { digits.parse().map_err(|_| wrong())? };
    let known = |name: &'static str, float, parts| {
        let name = if order == Order::Big { Cow::Owned(code.to_owned()) } else { Cow::Borrowed(name) };
        Ok((size, name, Some(Layout { float, order, parts })))
    };
    match (kind, size) {
        ('f', 2) => known("float16", Float::F16, 1),
        ('f', 4) => known("float32", Float::F32, 1),
        ('f', 8) => known("float64", Float::F64, 1),
        ('c', 8) => known("complex64", Float::F32, 2),
        ('c', 16) => known("complex128", Float::F64, 2),
        ('f' | 'c', _) => Err(unsupported(at, format!("floats of type {code:?}, which differ between machines"))),
        ('O', _) => {
            Err(unsupported(at, "an array of Python objects, which are pickled and never loaded: save it as floats"))
        }
        ('b' | 'i' | 'u' | 'S' | 'a' | '?', _) => Ok((size, Cow::Owned(code.to_owned()), None)),
        ('m' | 'M', _) => Ok((8, Cow::Owned(code.to_owned()), None)),
        ('U', _) => Ok((size.checked_mul(4).ok_or_else(wrong)?, Cow::Owned(code.to_owned()), None)),
        ('V', _) => {
            let detail = format!(
                "raw bytes ({code:?}): their type is not in the file; numpy saves bfloat16 and float8 of ml_dtypes so"
            );
            Err(unsupported(at, detail))
        }
        _ => Err(wrong()),
    }
}

/// Adds the fields of a type at `offset`; gives its bytes.
fn describe(descr: &Literal, name: &str, offset: u64, at: u64, fields: &mut Vec<Field>) -> Result<u64, Broken> {
    let wrong = |what: &str| corrupt(at, format!("the header's descr {what}"));
    match descr {
        Literal::Text(code) => {
            let (bytes, dtype, layout) = plain(code, at)?;
            fields.push(Field { name: name.to_owned(), dtype, offset, shape: Vec::new(), values: 1, layout });
            Ok(bytes)
        }
        Literal::Several(list) => {
            let mut bytes = 0u64;
            for field in list {
                let Literal::Several(parts) = field else { return Err(wrong("holds a field that is no tuple")) };
                let (label, descr, shape) = match &parts[..] {
                    [label, descr] => (label, descr, Vec::new()),
                    [label, descr, shape] => {
                        (label, descr, extents(shape).ok_or_else(|| wrong("holds a field with a broken shape"))?)
                    }
                    _ => return Err(wrong("holds a field that is no pair")),
                };
                let label = match label {
                    Literal::Text(label) => label,
                    // A title before the name.
                    Literal::Several(both) => match &both[..] {
                        [_, Literal::Text(label)] => label,
                        _ => return Err(wrong("holds a field without a name")),
                    },
                    _ => return Err(wrong("holds a field without a name")),
                };
                if fields.len() >= MOST_FIELDS {
                    return Err(limit(at, format!("more than {MOST_FIELDS} fields")));
                }
                let own = if name.is_empty() { label.clone() } else { format!("{name}.{label}") };
                let here = offset.checked_add(bytes).ok_or_else(|| wrong("is larger than 64 bits can hold"))?;
                let first = fields.len();
                let is_padding = matches!(descr, Literal::Text(code) if label.is_empty() && code.contains('V'));
                let one = match descr {
                    Literal::Text(code) if is_padding => {
                        let digits = code.rsplit('V').next().unwrap_or_default();
                        digits.parse().map_err(|_| wrong("holds a broken padding"))?
                    }
                    _ => describe(descr, &own, here, at, fields)?,
                };
                let repeats = product(&shape).ok_or_else(|| wrong("holds a field of too many values"))?;
                if !shape.is_empty() {
                    let has_structure = fields[first..].iter().any(|field| !field.shape.is_empty());
                    if fields.len() - first > 1 || has_structure || matches!(descr, Literal::Several(_)) {
                        return Err(unsupported(at, format!("field {own:?}: an array of structures in a structure")));
                    }
                    for field in &mut fields[first..] {
                        (field.values, field.shape) = (repeats, shape.clone());
                    }
                }
                let all = one.checked_mul(repeats).and_then(|all| all.checked_add(bytes));
                bytes = all.ok_or_else(|| wrong("is larger than 64 bits can hold"))?;
            }
            Ok(bytes)
        }
        _ => Err(wrong("is neither a text nor a list")),
    }
}

/// Reads the text of a header that begins at byte `at`.
pub fn header(text: &[u8], at: u64) -> Result<Header, Broken> {
    let mut parser = Parser { text, at: 0 };
    let literal = parser.literal(0);
    let is_whole = parser.peek().is_none();
    let Some(Literal::Pairs(pairs)) = literal.filter(|_| is_whole) else {
        return Err(corrupt(at + parser.at as u64, "the header is no dictionary of Python's"));
    };
    let value = |name: &str| {
        let mut named = pairs.iter().filter(|(key, _)| matches!(key, Literal::Text(key) if key == name));
        match (named.next(), named.next()) {
            (Some((_, value)), None) => Ok(value),
            (None, _) => Err(corrupt(at, format!("the header has no {name}"))),
            // Python takes the last of them, other readers the first.
            _ => Err(corrupt(at, format!("the header has {name} twice"))),
        }
    };
    let Literal::Bool(is_fortran) = *value("fortran_order")? else {
        return Err(corrupt(at, "the header's fortran_order is neither True nor False"));
    };
    let shape = value("shape")?;
    let shape = extents(shape).filter(|_| matches!(shape, Literal::Several(_)));
    let shape = shape.ok_or_else(|| corrupt(at, "the header's shape is no tuple of at most 64 whole numbers"))?;
    let mut fields = Vec::new();
    let item = describe(value("descr")?, "", 0, at, &mut fields)?;
    Ok(Header { fields, item, shape, is_fortran })
}

/// Audits an array from the begin of its file. `size`: its bytes, where that is known; `name`: what it is called.
pub fn audit(input: &mut dyn Input, size: Option<u64>, name: &str, limits: &Limits, buffer: &mut Vec<u8>) -> Report {
    let mut window = Window::new(input, buffer);
    let mut report = Report::default();
    let result = head(&mut window, limits).and_then(|header| {
        let places = product(&header.shape).and_then(|places| Some((places, places.checked_mul(header.item)?)));
        let Some((places, bytes)) = places else {
            return Err(corrupt(window.at(), "the extents multiply to more than 64 bits can hold"));
        };
        let behind = size.map(|size| size.saturating_sub(window.at()));
        body(&mut window, &header, name, places, bytes, limits, &mut report)?;
        let at = window.at();
        let more = match behind {
            Some(behind) => behind > bytes,
            None => !window.next(1).map_err(|error| failed(at, &error))?.is_empty(),
        };
        if more {
            // numpy reads arrays that were saved one behind the other; each call gives the next.
            let detail = "bytes behind the array, which were not looked at";
            return Err(Broken::new(FaultKind::Stray.as_str(), FaultKind::Stray, at, detail));
        }
        Ok(())
    });
    report.faults.extend(result.err());
    report
}

fn head(window: &mut Window<'_>, limits: &Limits) -> Result<Header, Broken> {
    let start = window.take(8).map_err(|error| failed(0, &error))?;
    if start == b"version " {
        return Err(super::git_lfs_pointer());
    }
    let cut = |at: u64| truncated(at, "the file ends inside the header");
    if !start.starts_with(&MAGIC[..start.len().min(MAGIC.len())]) {
        return Err(corrupt(0, "the file does not begin as an array of numpy"));
    }
    let &[.., major, _minor] = &start[..] else { return Err(cut(0)) };
    if start.len() < 8 {
        return Err(cut(start.len() as u64));
    }
    let wide = match major {
        1 => false,
        2 | 3 => true,
        _ => return Err(unsupported(6, format!("version {major} of the format, 1 to 3 are read"))),
    };
    let digits = window.take(if wide { 4 } else { 2 }).map_err(|error| failed(8, &error))?;
    let length = match digits[..] {
        [a, b] if !wide => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        _ => return Err(cut(window.at())),
    };
    if length > limits.array_header {
        return Err(limit(8, format!("a header of {length} bytes, at most {} are read", limits.array_header)));
    }
    let at = window.at();
    let text = window.take(length).map_err(|error| failed(at, &error))?;
    if (text.len() as u64) < length {
        return Err(cut(window.at()));
    }
    if major < 3 {
        // Latin-1: a byte is a character.
        let text: String = text.iter().copied().map(char::from).collect();
        return header(text.as_bytes(), at);
    }
    header(&text, at)
}

fn body(
    window: &mut Window<'_>,
    header: &Header,
    name: &str,
    places: u64,
    bytes: u64,
    limits: &Limits,
    report: &mut Report,
) -> Result<(), Broken> {
    let rows = |field: &Field| {
        let order = if header.is_fortran { Rows::minor } else { Rows::major };
        order(&header.shape, field.values)
    };
    // Fields share what there is.
    let marks = limits.row_marks / header.fields.len().max(1) as u64;
    let mut counters: Vec<Option<Counter>> =
        header.fields.iter().map(|field| field.layout.map(|layout| Counter::new(layout, rows(field), marks))).collect();
    let is_plain = matches!(&header.fields[..], [field] if field.name.is_empty());
    let got = match &mut counters[..] {
        [] => window.pass(bytes),
        [None] => window.pass(bytes),
        [Some(counter)] if is_plain => window.each(bytes, |piece| counter.feed(piece)),
        counters => {
            let mut inside = 0u64;
            window.each(bytes, |piece| {
                scatter(piece, inside, header, counters);
                inside = (inside + piece.len() as u64) % header.item;
            })
        }
    };
    for (field, counter) in header.fields.iter().zip(&counters) {
        let all = places.saturating_mul(field.values);
        let (nan, inf, first_row, bad_rows) = counter.as_ref().map_or((0, 0, None, Some(0)), Counter::totals);
        let seen = counter.as_ref().map_or(all, Counter::values);
        let name = if field.name.is_empty() { name.to_owned() } else { format!("{name}.{}", field.name) };
        if bad_rows.is_none() {
            let detail = format!("{name:?}: bad rows beyond {} bits are not told apart", marks.saturating_mul(8));
            report.faults.push(limit(window.at(), detail));
        }
        let shape = header.shape.iter().chain(&field.shape).copied().collect();
        report.tensors.push(Tensor {
            name,
            dtype: field.dtype.clone(),
            shape,
            values: seen,
            nan,
            inf,
            first_row,
            bad_rows,
        });
    }
    match got {
        Ok(got) if got == bytes => Ok(()),
        Ok(got) => Err(truncated(window.at(), format!("the file ends after {got} of the array's {bytes} bytes"))),
        Err(error) => Err(failed(window.at(), &error)),
    }
}

/// Gives each field its own bytes of a piece whose first byte is byte `inside` of a place.
fn scatter(piece: &[u8], inside: u64, header: &Header, counters: &mut [Option<Counter>]) {
    for (field, counter) in header.fields.iter().zip(counters) {
        let (Some(counter), Some(layout)) = (counter, field.layout) else { continue };
        let (begin, length) = (field.offset, field.values.saturating_mul(layout.width()));
        if length == 0 {
            // Any number of these may share a place of one byte.
            continue;
        }
        // From the place that the piece begins in, which begins before it.
        let mut at = 0u64;
        let end = inside + piece.len() as u64;
        while at < end {
            let clip = |offset: u64| (at.saturating_add(offset).clamp(inside, end) - inside) as usize;
            let part = clip(begin)..clip(begin + length);
            if !part.is_empty() {
                counter.feed(&piece[part]);
            }
            at += header.item;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::audit::window::Streamed;
    use proptest::prelude::*;

    /// A file of version 1.
    pub(crate) fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let length = (header.len() as u16).to_le_bytes();
        [MAGIC, b"\x01\0", &length, header.as_bytes(), data].concat()
    }

    fn dict(descr: &str, order: &str, shape: &str) -> String {
        format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n")
    }

    fn audited(bytes: &[u8], knows_size: bool) -> Report {
        let size = knows_size.then_some(bytes.len() as u64);
        audit(&mut Streamed(bytes), size, "a", &Limits { array_header: 5000, ..Limits::default() }, &mut Vec::new())
    }

    fn refused(bytes: &[u8]) -> &'static str {
        let [known, unknown] = [true, false].map(|knows| audited(bytes, knows));
        assert_eq!(known, unknown);
        assert!(known.tensors.is_empty() && known.faults.len() == 1, "{known:?}");
        known.faults[0].code
    }

    fn row(report: &Report, index: usize) -> (&str, &str, u64, u64, u64, Option<u64>, Option<u64>) {
        assert_eq!(report.faults, []);
        let t = &report.tensors[index];
        (&t.name, &t.dtype, t.values, t.nan, t.inf, t.first_row, t.bad_rows)
    }

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    const NAN: f32 = f32::NAN;

    #[test]
    fn a_key_twice_is_refused() {
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}";
        assert!(header(good.as_bytes(), 10).is_ok());
        for key in ["'descr': '<i4'", "'fortran_order': True", "'shape': (1,)"] {
            let text = good.replace('}', &format!(", {key}}}"));
            let broken = header(text.as_bytes(), 10).unwrap_err();
            assert!(broken.code == "unparsable" && broken.detail.contains("twice"), "{broken:?}");
        }
    }

    #[test]
    fn names_of_old_versions_are_latin_1() {
        let text = b"{'descr': [('\xe9', '<f4'), ('\xf1', '<f4')], 'fortran_order': False, 'shape': (1,)}";
        let mut bytes = [MAGIC, &[1, 0], &(text.len() as u16).to_le_bytes()[..], text].concat();
        bytes.extend([1f32, f32::NAN].iter().flat_map(|value| value.to_le_bytes()));
        let mut stream = super::super::Streamed(&bytes[..]);
        let report = audit(&mut stream, Some(bytes.len() as u64), "a", &Limits::default(), &mut Vec::new());
        let names: Vec<(&str, u64)> = report.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.nan)).collect();
        assert_eq!(names, [("a.\u{e9}", 0), ("a.\u{f1}", 1)]);
    }

    #[test]
    fn rows_are_those_of_the_first_axis_in_either_order() {
        let data = f32s(&[1.0, 1.0, NAN, 1.0, 1.0, NAN]);
        let c = audited(&file(&dict("'<f4'", "False", "(2, 3)"), &data), true);
        assert_eq!(row(&c, 0), ("a", "float32", 6, 2, 0, Some(0), Some(2)));
        let fortran = audited(&file(&dict("'<f4'", "True", "(2, 3)"), &data), true);
        assert_eq!(row(&fortran, 0), ("a", "float32", 6, 2, 0, Some(0), Some(2)));
        let tall = audited(&file(&dict("'<f4'", "True", "(3, 2)"), &data), false);
        assert_eq!(row(&tall, 0), ("a", "float32", 6, 2, 0, Some(2), Some(1)));
        let scalar = audited(&file(&dict("'<f4'", "False", "()"), &f32s(&[NAN])), true);
        assert_eq!(row(&scalar, 0), ("a", "float32", 1, 1, 0, Some(0), Some(1)));
        let line = audited(&file(&dict("'<f4'", "True", "(6,)"), &data), true);
        assert_eq!(row(&line, 0), ("a", "float32", 6, 2, 0, Some(2), Some(2)));
        let none = audited(&file(&dict("'<f4'", "False", "(0, 4)"), &[]), true);
        assert_eq!(row(&none, 0), ("a", "float32", 0, 0, 0, None, Some(0)));
    }

    #[test]
    fn either_byte_order_and_every_version() {
        let big: Vec<u8> = [1.0f64, f64::INFINITY].iter().flat_map(|value| value.to_be_bytes()).collect();
        let report = audited(&file(&dict("'>f8'", "False", "(2L,)"), &big), true);
        assert_eq!(row(&report, 0), ("a", ">f8", 2, 0, 1, Some(1), Some(1)));
        for major in [2, 3] {
            let text = dict("'<c8'", "False", "(1,)");
            let head = [MAGIC, &[major, 0], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
            let report = audited(&[head, f32s(&[1.0, NAN])].concat(), true);
            assert_eq!(row(&report, 0), ("a", "complex64", 1, 1, 0, Some(0), Some(1)));
        }
    }

    #[test]
    fn fields_are_counted_apart() {
        let descr = "[('id', '<i2'), (('title', 'v'), '<f4', (2,)), ('', '|V1'), ('in', [('x', '<f2')])]";
        let place =
            |id: i16, v: [f32; 2], x: u16| [&id.to_le_bytes()[..], &f32s(&v), &[0xff], &x.to_le_bytes()].concat();
        let data = [place(-1, [1.0, 2.0], 0), place(-1, [NAN, NAN], 0x7c00), place(-1, [1.0, NAN], 0)].concat();
        for order in ["False", "True"] {
            let report = audited(&file(&dict(descr, order, "(3,)"), &data), true);
            assert_eq!(row(&report, 0), ("a.id", "<i2", 3, 0, 0, None, Some(0)));
            assert_eq!(row(&report, 1), ("a.v", "float32", 6, 3, 0, Some(1), Some(2)));
            assert_eq!(row(&report, 2), ("a.in.x", "float16", 3, 0, 1, Some(1), Some(1)));
            assert_eq!(report.tensors[1].shape, [3, 2]);
        }
    }

    #[test]
    fn hostile_01_objects_are_pickles() {
        assert_eq!(refused(&file(&dict("'|O'", "False", "(1,)"), b"\x80\x04cposix\nsystem\n")), "unsupported");
        assert_eq!(refused(&file(&dict("[('a', '<f4'), ('b', '|O')]", "False", "(1,)"), &[0; 12])), "unsupported");
    }

    #[test]
    fn hostile_02_a_header_of_four_gibibytes() {
        assert_eq!(refused(&[MAGIC, &[2, 0, 0xff, 0xff, 0xff, 0xff], b"{}"].concat()), "limit");
    }

    #[test]
    fn hostile_03_extents_that_wrap_to_nothing() {
        for shape in ["(4294967296, 4294967296)", "(4611686018427387904, 4)", "(99999999999999999999,)"] {
            assert_eq!(refused(&file(&dict("'<f4'", "False", shape), &[])), "unparsable", "{shape}");
        }
        assert_eq!(refused(&file(&dict("[('a', '<f8', (2305843009213693952,))]", "False", "(1,)"), &[])), "unparsable");
    }

    #[test]
    fn hostile_04_a_thousand_brackets_and_code_in_place_of_a_literal() {
        for text in ["(".repeat(4000), "{".repeat(4000), format!("{{'descr': {}", "[('a', ".repeat(600))] {
            assert_eq!(refused(&file(&text, &[])), "unparsable");
        }
        let code = "{'descr': __import__('os').system('id'), 'fortran_order': False, 'shape': (1,)}";
        assert_eq!(refused(&file(code, &[0; 4])), "unparsable");
        for text in ["", "{}", "[]", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': 1, 'shape': ()}"] {
            assert_eq!(refused(&file(text, &[0; 4])), "unparsable", "{text}");
        }
    }

    #[test]
    fn hostile_05_types_that_are_none_or_not_known() {
        for code in ["'<f16'", "'|V2'", "'<c32'"] {
            assert_eq!(refused(&file(&dict(code, "False", "(1,)"), &[0; 32])), "unsupported", "{code}");
        }
        for code in ["'<x4'", "''", "'<'", "'<f99999999999999999999'", "4", "'é4'", "'<U9223372036854775807'"] {
            assert_eq!(refused(&file(&dict(code, "False", "(1,)"), &[0; 4])), "unparsable", "{code}");
        }
        assert_eq!(refused(&[MAGIC, &[9, 0, 0, 0]].concat()), "unsupported");
        assert_eq!(refused(b"version https://git-lfs.github.com/spec/v1\n"), "git-lfs-pointer");
    }

    #[test]
    fn hostile_06_places_of_no_bytes_and_no_places_of_many() {
        let report = audited(&file(&dict("'|S0'", "False", "(18446744073709551615,)"), &[]), true);
        assert_eq!(row(&report, 0).2, u64::MAX);
        let report = audited(&file(&dict("[]", "False", "(7,)"), &[]), true);
        assert_eq!(report, Report::default());
        let report = audited(&file(&dict("[('a', '<f8', (0,))]", "False", "(9,)"), &[]), true);
        assert_eq!(row(&report, 0).2, 0);
    }

    #[test]
    fn hostile_07_a_thousand_fields_of_no_bytes_beside_one_of_a_byte() {
        let fields: String = (0..1000).map(|k| format!("('{k}','<f4',(0,)),")).collect();
        let text = dict(&format!("[{fields}('x','|S1')]"), "False", "(4000000,)");
        let head = [MAGIC, &[2, 0], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
        let limits = Limits::default();
        let bytes = [head, vec![0; 4_000_000]].concat();
        let start = std::time::Instant::now();
        let report = audit(&mut Streamed(&bytes[..]), None, "a", &limits, &mut Vec::new());
        assert_eq!((report.faults.len(), report.tensors.len()), (0, 1001));
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    }

    #[test]
    fn what_follows_an_array_is_said() {
        for knows_size in [true, false] {
            let report = audited(&file(&dict("'<f4'", "False", "(1,)"), &[0; 9]), knows_size);
            assert_eq!((report.faults[0].code, report.tensors.len()), ("stray-bytes", 1));
        }
    }

    #[test]
    fn every_cut_is_told() {
        let bytes = file(&dict("'<f4'", "False", "(3,)"), &f32s(&[NAN, 1.0, NAN]));
        for cut in 0..bytes.len() {
            for knows_size in [true, false] {
                let report = audited(&bytes[..cut], knows_size);
                assert_eq!(report.faults.len(), 1, "{cut}");
                assert_eq!(report.faults[0].code, "truncated", "{cut}");
                assert_eq!(report.tensors.iter().any(Tensor::is_bad), cut + 12 >= bytes.len() + 4, "{cut}");
            }
        }
    }

    proptest! {
        #[test]
        fn structures_in_pieces_of_any_size(values in prop::collection::vec((any::<bool>(), any::<bool>()), 1..200)) {
            // Places of 11 bytes do not divide the window.
            let float = |bad: bool| if bad { NAN } else { 1.0 };
            let places = values.iter().map(|(a, b)| [&float(*a).to_le_bytes()[..], &[0xff; 3], &float(*b).to_be_bytes()].concat());
            let data = places.collect::<Vec<_>>().concat();
            let descr = "[('a', '<f4'), ('c', '|S3'), ('b', '>f4')]";
            let header = header(dict(descr, "False", &format!("({},)", values.len())).as_bytes(), 0).expect("a header");
            for cut in [1, 2, 7, 11, 13, 4096] {
                let mut counters: Vec<Option<Counter>> = header.fields.iter()
                    .map(|field| field.layout.map(|layout| Counter::new(layout, Rows::Major(1), 0))).collect();
                let mut inside = 0;
                for piece in data.chunks(cut) {
                    scatter(piece, inside, &header, &mut counters);
                    inside = (inside + piece.len() as u64) % header.item;
                }
                for (index, bad) in [(0, values.iter().map(|v| v.0).collect::<Vec<_>>()), (2, values.iter().map(|v| v.1).collect())] {
                    let (nan, _, first, rows) = counters[index].as_ref().expect("a float").totals();
                    let count = bad.iter().filter(|bad| **bad).count() as u64;
                    prop_assert_eq!((nan, rows), (count, Some(count)));
                    prop_assert_eq!(first, bad.iter().position(|bad| *bad).map(|at| at as u64));
                }
            }
        }

        #[test]
        fn flipped_bytes_are_outcomes(at in 0usize..100, byte: u8) {
            let mut bytes = file(&dict("[('a', '<f4'), ('b', '>f2', (2,))]", "True", "(2, 1)"), &[0; 16]);
            let at = at % bytes.len();
            bytes[at] = byte;
            for knows_size in [true, false] {
                prop_assert!(audited(&bytes, knows_size).faults.len() <= 3);
            }
        }
    }
}
