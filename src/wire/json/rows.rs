//! Many objects of similar shape.
//!
//! A machine writes the keys of a row in the same order with the same blanks, time after time. The scanner keeps a graph:
//! a node is a key path, an edge the literal bytes that came between the value of one and the value of another
//! (`, "loss": `). On the next row it compares these bytes and takes the next value; only where they differ it tokenises
//! with the [`Cursor`], from the value before up to the next value, and remembers that way too. Since a key path fixes
//! which objects are open around its value, equal bytes after it mean equal tokens: both ways give the same cells.

use std::collections::HashMap;

use super::super::numbers::{Cell, number_at, number_end, parse_f64, parse_text_value, parse_word};
use super::{Cursor, Kind, Stop, Text, is_stray};
use memchr::memchr;

/// Key paths that a scanner tells apart, open objects included. Values beyond are skipped.
pub const MAX_COLUMNS: usize = 65_536;
/// Parts of a key path. An object that lies deeper is one cell.
pub const MAX_DEPTH: usize = 32;
/// Bytes of a joined path; the values of longer ones are skipped.
const MAX_NAME: usize = 4_096;
/// Bytes of all keys together.
const MAX_NAMES: usize = 16 << 20;
/// Ways on from one column that are remembered; a new one takes the place of the oldest.
const MAX_WAYS: usize = 8;
/// Bytes between two values that are worth remembering.
const MAX_LITERAL: usize = 256;
/// Ways on that are remembered in all.
const MAX_EDGES: usize = 65_536;

/// Where an object may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One object a line: a raw newline inside an object is invalid. It keeps a cut line from swallowing the next.
    Lines,
    /// White space is free, as in a JSON array.
    Free,
}

/// What a [`Sink`] wants of a column. The number is the sink's own name for the column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Nothing.
    Skip,
    /// Only whether a cell was filled or null.
    Note(u32),
    /// Numbers.
    Number(u32),
    /// Strings.
    Text(u32),
}

/// The keys that lead to a value.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    /// The keys joined with `/`.
    pub joined: &'a str,
    /// The keys, outermost first. A key may hold `/` itself.
    pub parts: &'a [&'a str],
}

/// Takes the cells of objects.
///
/// Cells come as they are met. Only when [`RowScanner::object`] returns is their object known to be whole: those given
/// before an error belong to no row.
pub trait Sink {
    /// Called once for each new path, also if the object that holds it then turns out to be cut or invalid.
    fn column(&mut self, path: &Path<'_>) -> Want;
    /// A number, in a `Number` or `Text` column: a JSON number, a bare or quoted non-finite word, a quoted number (in
    /// `Number` columns only), and 1 and 0 for `true` and `false`.
    fn number(&mut self, column: u32, value: f64);
    /// A string, in a `Text` column, or in a `Number` column if it spells no number.
    fn text(&mut self, column: u32, text: Text<'_>);
    /// A null, in all but `Skip` columns.
    fn null(&mut self, column: u32);
    /// Any value but null in a `Note` column; in the others an array, an empty object or one that lies too deep.
    /// `numeric`: whether it is a number.
    fn filled(&mut self, column: u32, numeric: bool);
}

/// Reads objects of similar shape, one after the other.
///
/// Nested objects are flattened to paths. Cells come in the order of the file, a duplicate key twice.
#[derive(Debug)]
pub struct RowScanner {
    rows: Rows,
    nodes: Vec<Node>,
    /// Node of a parent node (four bytes) and a key.
    index: HashMap<Box<[u8]>, u32>,
    names: usize,
    edges: Vec<Edge>,
    /// The edge taken last. It carries over from one object to the next.
    last: u32,
    scratch: Vec<u8>,
}

/// A key path, and what was seen to follow its value.
#[derive(Debug)]
struct Node {
    parent: u32,
    depth: u32,
    key: Box<str>,
    want: Option<Want>,
    /// Edges that begin here.
    edges: Vec<u32>,
}

/// The bytes from the end of one value to the begin of the next, or to the end of the object.
#[derive(Debug)]
struct Edge {
    /// The first 32 bytes, zero-padded, and ones where they count.
    head: [u64; 4],
    mask: [u64; 4],
    length: u32,
    /// The node of the next value, or [`ROOT`] at the end of the object, or [`UNKNOWN`].
    to: u32,
    /// What is wanted of the next value.
    want: Want,
    /// The edge that followed last time.
    next: u32,
    literal: Box<[u8]>,
}

/// The node of the object itself: before its first key, and after its end.
const ROOT: u32 = 0;
/// A value that has no node.
const UNKNOWN: u32 = u32::MAX;
/// The edge that leads to the first object.
const BEGIN: u32 = 0;
/// The edge that leads to every value without a node.
const ASIDE: u32 = 1;

impl Edge {
    fn new(to: u32, want: Want, literal: &[u8]) -> Self {
        let mut bytes = [0; 32];
        let mut ones = [0; 32];
        for (i, &byte) in literal.iter().take(32).enumerate() {
            bytes[i] = byte;
            ones[i] = 0xFF;
        }
        let words = |bytes: [u8; 32]| {
            let chunks = bytes.as_chunks::<8>().0;
            std::array::from_fn(|i| u64::from_le_bytes(chunks[i]))
        };
        let (head, mask) = (words(bytes), words(ones));
        Self { head, mask, length: literal.len() as u32, to, want, next: u32::MAX, literal: literal.into() }
    }

    #[inline(always)]
    fn matches(&self, bytes: &[u8], at: usize) -> bool {
        let Some(block) = bytes.get(at..).and_then(<[u8]>::first_chunk::<32>) else {
            return self.matches_slice(bytes, at);
        };
        let chunks = block.as_chunks::<8>().0;
        let differ = |i: usize| (u64::from_le_bytes(chunks[i]) ^ self.head[i]) & self.mask[i];
        if differ(0) | differ(1) != 0 {
            return false;
        }
        self.length <= 16 || differ(2) | differ(3) == 0 && (self.length <= 32 || self.matches_slice(bytes, at))
    }

    #[inline(never)]
    fn matches_slice(&self, bytes: &[u8], at: usize) -> bool {
        bytes.get(at..).is_some_and(|rest| rest.starts_with(&self.literal))
    }
}

impl RowScanner {
    /// A scanner that has seen nothing yet.
    pub fn new(rows: Rows) -> Self {
        let root = Node { parent: ROOT, depth: 0, key: "".into(), want: None, edges: Vec::new() };
        Self {
            rows,
            nodes: vec![root],
            index: HashMap::new(),
            names: 0,
            edges: vec![Edge::new(ROOT, Want::Skip, b""), Edge::new(UNKNOWN, Want::Skip, b"")],
            last: BEGIN,
            scratch: Vec::new(),
        }
    }

    /// Reads the object that comes next in `bytes`, white space before it included, and returns the bytes used. `at_end`
    /// says that nothing follows the slice; bytes after the object are not looked at.
    ///
    /// [`Stop::Incomplete`]: call again with the same bytes and more. [`Stop::Invalid`]: this object is broken, or what
    /// comes is no object.
    pub fn object(&mut self, bytes: &[u8], at_end: bool, sink: &mut impl Sink) -> Result<usize, Stop> {
        let mut begin = 0;
        while bytes.get(begin).is_some_and(|&byte| byte == b' ' || is_stray(byte)) {
            begin += 1;
        }
        let mut walk = Walk { bytes, at_end, at: begin, container: ROOT, aside: UNKNOWN, tokenised: false };
        let result = self.walk(&mut walk, sink);
        if result.is_err() {
            self.last = BEGIN;
        }
        if self.rows == Rows::Lines && (walk.tokenised || result.is_err()) {
            // Literals that are compared hold no newline, nor do numbers: only what was tokenised is looked at.
            let end = match result {
                Ok(()) => walk.at,
                Err(Stop::Incomplete) => bytes.len(),
                Err(Stop::Invalid { at, .. }) => at,
            };
            if let Some(length) = memchr(b'\n', &bytes[begin..end]) {
                return Err(Stop::Invalid { at: begin + length, expected: "the end of the object on its line" });
            }
        }
        result?;
        Ok(walk.at)
    }

    /// Asks the sink again what it wants of every column: its answers may change once it knows the first rows.
    pub fn ask_again(&mut self, sink: &mut impl Sink) {
        self.nodes.iter_mut().for_each(|node| node.want = None);
        for edge in 0..self.edges.len() {
            let to = self.edges[edge].to;
            if to != ROOT && to != UNKNOWN {
                self.edges[edge].want = self.want(to, sink);
            }
        }
    }

    #[inline]
    fn walk(&mut self, walk: &mut Walk<'_>, sink: &mut impl Sink) -> Result<(), Stop> {
        loop {
            let guess = self.edges[self.last as usize].next;
            if let Some(edge) = self.edges.get(guess as usize)
                && edge.matches(walk.bytes, walk.at)
            {
                let at = walk.at + edge.length as usize;
                if edge.to == ROOT {
                    walk.at = at;
                    self.last = guess;
                    return Ok(());
                }
                if walk.number(edge.want, at, sink) || walk.plain(edge.want, at, sink)? {
                    self.last = guess;
                    continue;
                }
            }
            if self.step(walk, sink)? {
                return Ok(());
            }
        }
    }

    /// Goes on to the next value and takes it, by another known way or by the cursor. True at the end of the object.
    #[inline(never)]
    fn step(&mut self, walk: &mut Walk<'_>, sink: &mut impl Sink) -> Result<bool, Stop> {
        let from = if self.last == ASIDE { walk.aside } else { self.edges[self.last as usize].to };
        let known = self.nodes.get(from as usize).map_or(&[][..], |node| &node.edges);
        // One may extend another, where an object stands in the place of a plain value.
        let known = known
            .iter()
            .filter(|&&edge| self.edges[edge as usize].matches(walk.bytes, walk.at))
            .max_by_key(|&&edge| self.edges[edge as usize].length);
        if let Some(&known) = known {
            let edge = &self.edges[known as usize];
            let at = walk.at + edge.length as usize;
            let end = edge.to == ROOT;
            if end {
                walk.at = at;
            }
            if end || walk.plain(edge.want, at, sink)? {
                self.go(known);
                return Ok(end);
            }
        }
        self.tokenise(from, walk, sink)
    }

    /// Takes an edge from where we are.
    fn go(&mut self, edge: u32) {
        if self.last != ASIDE {
            self.edges[self.last as usize].next = edge;
        }
        self.last = edge;
    }

    /// Goes on from the value of node `from` to the next value and takes it, or to the end of the object.
    fn tokenise(&mut self, from: u32, walk: &mut Walk<'_>, sink: &mut impl Sink) -> Result<bool, Stop> {
        walk.tokenised = true;
        let begin = walk.at;
        let mut cursor = Cursor::resume(walk.bytes, begin, walk.at_end, false);
        if from == ROOT {
            cursor.enter_object()?;
            walk.container = ROOT;
        } else if let Some(node) = self.nodes.get(from as usize) {
            walk.container = node.parent;
        }
        loop {
            let Some(key) = cursor.next_key()? else {
                if walk.container == ROOT {
                    walk.at = cursor.position();
                    match self.learn(from, ROOT, Want::Skip, &walk.bytes[begin..walk.at], cursor.stray()) {
                        Some(edge) => self.go(edge),
                        None => self.last = BEGIN,
                    }
                    return Ok(true);
                }
                walk.container = self.nodes[walk.container as usize].parent;
                continue;
            };
            let node = self.node(walk.container, &key);
            if cursor.kind()? == Kind::Object
                && let Some(node) = node
                && self.nodes[node as usize].depth < MAX_DEPTH as u32
            {
                let mut inside = cursor.clone();
                inside.enter_object()?;
                if inside.peek()? != b'}' {
                    cursor = inside;
                    walk.container = node;
                    continue;
                }
            }
            let want = node.map_or(Want::Skip, |node| self.want(node, sink));
            let to = node.unwrap_or(UNKNOWN);
            walk.at = cursor.position();
            match self.learn(from, to, want, &walk.bytes[begin..walk.at], cursor.stray()) {
                Some(edge) => self.go(edge),
                None => {
                    self.last = ASIDE;
                    walk.aside = to;
                }
            }
            walk.value(want, sink)?;
            return Ok(false);
        }
    }

    /// The node of a key in an object, unless there are too many.
    fn node(&mut self, parent: u32, key: &Text<'_>) -> Option<u32> {
        self.scratch.clear();
        self.scratch.extend_from_slice(&parent.to_le_bytes());
        if key.escaped || std::str::from_utf8(key.raw).is_err() {
            let mut text = String::new();
            key.decode(&mut text);
            self.scratch.extend_from_slice(text.as_bytes());
        } else {
            self.scratch.extend_from_slice(key.raw);
        }
        if let Some(&node) = self.index.get(self.scratch.as_slice()) {
            return Some(node);
        }
        let key = std::str::from_utf8(&self.scratch[4..]).ok()?;
        if self.nodes.len() > MAX_COLUMNS || key.len() > MAX_NAME || self.names + key.len() > MAX_NAMES {
            return None;
        }
        let node = self.nodes.len() as u32;
        let depth = self.nodes[parent as usize].depth + 1;
        self.names += key.len();
        self.nodes.push(Node { parent, depth, key: key.into(), want: None, edges: Vec::new() });
        self.index.insert(self.scratch.as_slice().into(), node);
        Some(node)
    }

    /// What the sink wants of a column; asked for once.
    fn want(&mut self, node: u32, sink: &mut impl Sink) -> Want {
        if let Some(want) = self.nodes[node as usize].want {
            return want;
        }
        let mut parts = Vec::new();
        let mut length = 0;
        let mut at = node;
        while at != ROOT {
            let node = &self.nodes[at as usize];
            length += node.key.len() + 1;
            parts.push(&*node.key);
            at = node.parent;
        }
        parts.reverse();
        let want = if length > MAX_NAME + 1 {
            Want::Skip
        } else {
            sink.column(&Path { joined: &parts.join("/"), parts: &parts })
        };
        self.nodes[node as usize].want = Some(want);
        want
    }

    /// How many ways are known.
    #[cfg(test)]
    pub(super) fn learned(&self) -> usize {
        self.edges.len() - 2
    }

    /// Remembers that `literal` leads from node `from` to node `to`, if it may and should.
    fn learn(&mut self, from: u32, to: u32, want: Want, literal: &[u8], stray: u64) -> Option<u32> {
        let unusual = stray > 0 || literal.len() > MAX_LITERAL || self.rows == Rows::Lines && literal.contains(&b'\n');
        if from == UNKNOWN || to == UNKNOWN || unusual {
            return None;
        }
        let ways = &mut self.nodes[from as usize].edges;
        let same = |&&edge: &&u32| self.edges[edge as usize].to == to && *self.edges[edge as usize].literal == *literal;
        if let Some(&known) = ways.iter().find(same) {
            return Some(known);
        }
        let new = Edge::new(to, want, literal);
        if ways.len() == MAX_WAYS {
            // Those that guess the replaced edge still guess one that begins here.
            ways.rotate_left(1);
            let oldest = ways[MAX_WAYS - 1];
            self.edges[oldest as usize] = new;
            return Some(oldest);
        }
        if self.edges.len() >= MAX_EDGES {
            return None;
        }
        ways.push(self.edges.len() as u32);
        self.edges.push(new);
        ways.last().copied()
    }
}

/// The place in an object.
struct Walk<'a> {
    bytes: &'a [u8],
    at_end: bool,
    at: usize,
    /// The innermost open object, as the tokeniser left it.
    container: u32,
    /// Where we are when the last edge is [`ASIDE`].
    aside: u32,
    /// Whether anything but known literals and numbers was passed.
    tokenised: bool,
}

impl Walk<'_> {
    /// Takes the value at `at` if it is a number, which is nearly all that machines log, and well inside the slice.
    #[inline(always)]
    fn number(&mut self, want: Want, at: usize, sink: &mut impl Sink) -> bool {
        let end = match want {
            Want::Number(column) => match number_at(self.bytes, at) {
                Ok((value, end)) if self.ends_number(end) => {
                    sink.number(column, value);
                    end
                }
                _ => return false,
            },
            Want::Skip | Want::Note(_) => match number_end(self.bytes, at) {
                Ok(end) if self.ends_number(end) => {
                    if let Want::Note(column) = want {
                        sink.filled(column, true);
                    }
                    end
                }
                _ => return false,
            },
            Want::Text(_) => return false,
        };
        self.at = end;
        true
    }

    /// Whether a number that seems to end before `end` does: the slice goes on, and not as in `1.#QNAN`.
    #[inline(always)]
    fn ends_number(&self, end: usize) -> bool {
        self.bytes.get(end).is_some_and(|&next| next != b'#')
    }

    /// Takes the value at `at`, unless it is for the tokeniser: after a blank more than usual, or an object.
    #[inline]
    fn plain(&mut self, want: Want, at: usize, sink: &mut impl Sink) -> Result<bool, Stop> {
        let plain = self.bytes.get(at).is_some_and(|&byte| byte > b' ' && byte < 0x7F && byte != b'{');
        if plain {
            self.at = at;
            self.value(want, sink)?;
        }
        Ok(plain)
    }

    /// Takes the value that begins here.
    #[inline(never)]
    fn value(&mut self, want: Want, sink: &mut impl Sink) -> Result<(), Stop> {
        self.tokenised = true;
        let mut cursor = Cursor::resume(self.bytes, self.at, self.at_end, false);
        let kind = cursor.kind()?;
        let mut number = None;
        let mut text = None;
        match kind {
            Kind::Number => {
                let token = cursor.number()?;
                number = parse_f64(token).or_else(|| parse_word(token));
            }
            Kind::String => text = Some(cursor.string()?),
            Kind::Object | Kind::Array => cursor.skip_value()?,
            Kind::True | Kind::False | Kind::Null | Kind::NaN | Kind::Infinity | Kind::NegInfinity => {
                cursor.bare()?;
                number = match kind {
                    Kind::True => Some(1.0),
                    Kind::False => Some(0.0),
                    Kind::NaN => Some(f64::NAN),
                    Kind::Infinity => Some(f64::INFINITY),
                    Kind::NegInfinity => Some(f64::NEG_INFINITY),
                    _ => None,
                };
            }
        }
        self.at = cursor.position();
        let (Want::Note(column) | Want::Number(column) | Want::Text(column)) = want else {
            return Ok(());
        };
        if kind == Kind::Null {
            sink.null(column);
            return Ok(());
        }
        // Some loggers quote every value.
        if let (Want::Number(_), Some(quoted)) = (want, text)
            && let Cell::Value(value) = parse_text_value(quoted.raw)
        {
            number = Some(value);
        }
        match (want, number, text) {
            (Want::Number(_) | Want::Text(_), Some(value), _) => sink.number(column, value),
            (Want::Number(_) | Want::Text(_), None, Some(text)) => sink.text(column, text),
            _ => sink.filled(column, number.is_some()),
        }
        Ok(())
    }
}
