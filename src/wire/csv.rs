//! Cells of delimited text, from slices that may be cut anywhere.
//!
//! Quotes are those of RFC 4180: a cell that begins with `"` (blanks before it aside) ends at the next `"` that is not
//! doubled, and may hold delimiters and line ends. A quote anywhere else is text. A line ends at `\n`, `\r\n` or `\r`.
//!
//! A Python script that prints tensors writes `tensor(0.5, device='cuda:0')` without quotes: the comma inside is none
//! that separates.

use memchr::{memchr, memchr3};

/// What separates the cells of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delimiter {
    /// One byte; two in a row have an empty cell between them.
    Byte(u8),
    /// A run of spaces and tabs; blanks at the begin and end of the line separate nothing.
    Blanks,
}

/// Whether quotes mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quotes {
    /// As RFC 4180 says.
    Rfc4180,
    /// They are text: for a line whose quote is never closed.
    Literal,
}

/// What came after a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A delimiter.
    Delimiter,
    /// The end of the line.
    Line,
    /// Nothing: the slice ends, the cell may go on.
    Open,
    /// Nothing, and a quote is open.
    OpenQuote,
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Where its content begins, without the quote.
    pub start: usize,
    /// Where its content ends.
    pub end: usize,
    /// Whether it stands in quotes.
    pub quoted: bool,
    /// Whether its content holds doubled quotes.
    pub doubled: bool,
    /// What came after it.
    pub ended: Ended,
    /// Where the next cell begins, or the line end, or the end of the slice.
    pub next: usize,
}

impl Cell {
    /// The content, its doubled quotes halved in `scratch`.
    pub fn content<'a>(&self, bytes: &'a [u8], scratch: &'a mut Vec<u8>) -> &'a [u8] {
        let raw = &bytes[self.start..self.end];
        if !self.doubled {
            return raw;
        }
        scratch.clear();
        let mut rest = raw;
        while let Some(at) = memchr(b'"', rest) {
            scratch.extend_from_slice(&rest[..=at]);
            rest = rest.get(at + 2..).unwrap_or_default();
        }
        scratch.extend_from_slice(rest);
        scratch
    }
}

/// The cell that begins at `at`, which may be the end of the slice.
pub fn cell(bytes: &[u8], at: usize, delimiter: Delimiter, quotes: Quotes) -> Cell {
    let mut start = at;
    let mut first = bytes.get(start).copied();
    // Blanks before a cell hide neither its quote nor, where they are the delimiter, the cell itself.
    while matches!(first, Some(b' ' | b'\t')) && first.map(Delimiter::Byte) != Some(delimiter) {
        start += 1;
        first = bytes.get(start).copied();
    }
    if first == Some(b'"') && quotes == Quotes::Rfc4180 {
        return quoted(bytes, start, delimiter);
    }
    if delimiter != Delimiter::Blanks {
        start = at;
    }
    let mut stop = find_end(bytes, start, delimiter);
    if delimiter == Delimiter::Byte(b',') && bytes.get(stop) == Some(&b',') && is_open_repr(&bytes[start..stop]) {
        match memchr3(b')', b'\n', b'\r', &bytes[stop..]) {
            Some(more) if bytes[stop + more] == b')' => stop = find_end(bytes, stop + more, delimiter),
            Some(_) => {}
            None => stop = bytes.len(),
        }
    }
    ended(bytes, Cell { start, end: stop, quoted: false, doubled: false, ended: Ended::Open, next: stop }, delimiter)
}

/// The cell whose quote opens at `open`.
fn quoted(bytes: &[u8], open: usize, delimiter: Delimiter) -> Cell {
    let start = open + 1;
    let mut cell =
        Cell { start, end: bytes.len(), quoted: true, doubled: false, ended: Ended::OpenQuote, next: bytes.len() };
    let mut at = start;
    loop {
        match memchr(b'"', &bytes[at..]) {
            None => return cell,
            Some(more) if bytes.get(at + more + 1) == Some(&b'"') => {
                cell.doubled = true;
                at += more + 2;
            }
            Some(more) => {
                at += more;
                break;
            }
        }
    }
    let stop = find_end(bytes, at + 1, delimiter);
    cell.end = at;
    if !bytes[at + 1..stop].trim_ascii().is_empty() {
        // Text after the closing quote: all of it is what somebody wrote, and no number.
        cell = Cell { start: open, end: stop, quoted: false, doubled: false, ..cell };
    }
    cell.next = stop;
    ended(bytes, cell, delimiter)
}

/// The cell with what comes after it, `next` being where its last byte was followed by something else.
fn ended(bytes: &[u8], mut cell: Cell, delimiter: Delimiter) -> Cell {
    if delimiter == Delimiter::Blanks {
        let blanks = bytes[cell.next..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        cell.next += blanks;
        cell.ended = match bytes.get(cell.next) {
            Some(b'\n' | b'\r') => Ended::Line,
            _ if blanks > 0 => Ended::Delimiter,
            _ => Ended::Open,
        };
        return cell;
    }
    cell.ended = match bytes.get(cell.next) {
        None => Ended::Open,
        Some(b'\n' | b'\r') => Ended::Line,
        Some(_) => {
            cell.next += 1;
            Ended::Delimiter
        }
    };
    cell
}

/// Whether a cell is the begin of a scalar's `repr` whose bracket is not closed yet.
fn is_open_repr(cell: &[u8]) -> bool {
    let cell = cell.trim_ascii_start();
    [&b"tensor("[..], b"Tensor(", b"Array(", b"array("].iter().any(|repr| cell.starts_with(repr))
        && memchr(b')', cell).is_none()
}

/// Index of the first delimiter or line end at or after `at`, or the length of the slice.
#[inline]
pub fn find_end(bytes: &[u8], at: usize, delimiter: Delimiter) -> usize {
    match delimiter {
        Delimiter::Byte(byte) => find_byte(bytes, at, byte),
        Delimiter::Blanks => {
            let end = bytes[at..].iter().position(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
            end.map_or(bytes.len(), |end| at + end)
        }
    }
}

/// Cells are short: eight bytes at a time in a register beat a call into a vectorised search.
#[inline(always)]
fn find_byte(bytes: &[u8], mut at: usize, delimiter: u8) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = ONES << 7;
    const SHORT: usize = 64;
    let wanted = u64::from(delimiter) * ONES;
    // The lowest set bit is exact; only those above it may be false.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
    let begin = at;
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*chunk);
        let hits = zeros(word ^ wanted) | zeros(word ^ (ONES * b'\n' as u64)) | zeros(word ^ (ONES * b'\r' as u64));
        if hits != 0 {
            return at + hits.trailing_zeros() as usize / 8;
        }
        at += 8;
        if at - begin >= SHORT {
            return memchr3(delimiter, b'\n', b'\r', &bytes[at..]).map_or(bytes.len(), |more| at + more);
        }
    }
    let is_end = |byte: &u8| *byte == delimiter || matches!(*byte, b'\n' | b'\r');
    bytes[at.min(bytes.len())..].iter().position(is_end).map_or(bytes.len(), |more| at + more)
}

/// Bytes of the line end that stands at `at`: 2 for `\r\n`, else 1.
#[inline]
pub fn line_end(bytes: &[u8], at: usize) -> usize {
    if bytes[at] == b'\r' && bytes.get(at + 1) == Some(&b'\n') { 2 } else { 1 }
}

/// Line ends in a text, each of `\n`, `\r\n` and `\r` one.
pub fn count_lines(bytes: &[u8]) -> u64 {
    let pairs = bytes.windows(2).filter(|pair| pair == b"\r\n").count();
    let ends = bytes.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count();
    (ends - pairs) as u64
}

/// The cells of one line, or of a record whose quoted cells hold line ends. Nothing comes after the last one that the
/// slice holds.
pub fn cells(bytes: &[u8], delimiter: Delimiter, quotes: Quotes) -> impl Iterator<Item = Cell> {
    let mut at = Some(0);
    std::iter::from_fn(move || {
        let cell = cell(bytes, at?, delimiter, quotes);
        let goes_on = cell.ended == Ended::Delimiter && (delimiter != Delimiter::Blanks || cell.next < bytes.len());
        at = goes_on.then_some(cell.next);
        Some(cell)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COMMA: Delimiter = Delimiter::Byte(b',');

    fn texts(line: &str, delimiter: Delimiter) -> Vec<String> {
        let mut scratch = Vec::new();
        cells(line.as_bytes(), delimiter, Quotes::Rfc4180)
            .map(|cell| String::from_utf8(cell.content(line.as_bytes(), &mut scratch).to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn quotes_open_at_the_begin_of_a_cell_only() {
        assert_eq!(texts("a,\"b,c\",d", COMMA), ["a", "b,c", "d"]);
        assert_eq!(texts("a, \"b\"\"c\" ,", COMMA), ["a", "b\"c", ""]);
        assert_eq!(texts("5\" disk,a\"b\"", COMMA), ["5\" disk", "a\"b\""]);
        assert_eq!(texts("\"{\"\"a\"\": 1}\"", COMMA), ["{\"a\": 1}"]);
        assert_eq!(texts("\"a\nb\",c\nd", COMMA), ["a\nb", "c"]);
        assert_eq!(texts("\"a\"b,c", COMMA), ["\"a\"b", "c"]);
        assert_eq!(texts("\"\"\"\",\"\"", COMMA), ["\"", ""]);
    }

    #[test]
    fn delimiters() {
        assert_eq!(texts("a;b,c;", Delimiter::Byte(b';')), ["a", "b,c", ""]);
        assert_eq!(texts("\ta\t\tb", Delimiter::Byte(b'\t')), ["", "a", "", "b"]);
        assert_eq!(texts("  a \t b  c  ", Delimiter::Blanks), ["a", "b", "c"]);
        assert_eq!(texts("  a  b \r\n", Delimiter::Blanks), ["a", "b"]);
        assert_eq!(texts("\"a b\"  c", Delimiter::Blanks), ["a b", "c"]);
        assert_eq!(texts("", COMMA), [""]);
    }

    #[test]
    fn a_printed_tensor_is_one_cell() {
        assert_eq!(texts("5,tensor(0.5, device='cuda:0'),1", COMMA), ["5", "tensor(0.5, device='cuda:0')", "1"]);
        assert_eq!(texts("5,tensor(0.5),1", COMMA), ["5", "tensor(0.5)", "1"]);
        assert_eq!(texts("5,tensor(0.5,1\n", COMMA), ["5", "tensor(0.5", "1"]);
        let open = cells(b"5,tensor(0.5, dev", COMMA, Quotes::Rfc4180).last().unwrap();
        assert_eq!((open.start, open.ended), (2, Ended::Open));
    }

    #[test]
    fn what_comes_after_a_cell() {
        let last = |line: &str| cells(line.as_bytes(), COMMA, Quotes::Rfc4180).last().unwrap().ended;
        assert_eq!(last("a,b\n"), Ended::Line);
        assert_eq!(last("a,b\r"), Ended::Line);
        assert_eq!(last("a,b"), Ended::Open);
        assert_eq!(last("a,\"b\""), Ended::Open);
        assert_eq!(last("a,\"b\n"), Ended::OpenQuote);
        assert_eq!(last("a,\"b\"\"\n"), Ended::OpenQuote);
        let literal = cells(b"a,\"b\nc", COMMA, Quotes::Literal).last().unwrap();
        assert_eq!((literal.start, literal.end, literal.ended), (2, 4, Ended::Line));
    }

    #[test]
    fn line_ends_are_counted_once() {
        assert_eq!(count_lines(b"a\nb\r\nc\rd\r\r\n"), 5);
        assert_eq!(line_end(b"a\r\nb", 1), 2);
        assert_eq!(line_end(b"a\r", 1), 1);
    }

    /// All records by the `csv-core` crate.
    fn oracle(bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
        let mut reader = csv_core::Reader::new();
        let (mut records, mut at) = (Vec::new(), 0);
        let (mut output, mut ends) = ([0; 256], [0; 256]);
        loop {
            let (result, used, _, fields) = reader.read_record(&bytes[at..], &mut output, &mut ends);
            at += used;
            match result {
                csv_core::ReadRecordResult::Record => {
                    let starts = std::iter::once(0).chain(ends.iter().copied());
                    records
                        .push(starts.zip(&ends[..fields]).map(|(start, end)| output[start..*end].to_vec()).collect());
                }
                csv_core::ReadRecordResult::End => return records,
                csv_core::ReadRecordResult::InputEmpty => {}
                other => panic!("{other:?}"),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn records_are_those_of_csv_core(
            text in "((|[a1]{1,3}|a\"1|\"([a1,\r\n]|\"\"){0,5}\")(,|\n|\r\n|\r)){0,12}(\"[a,]{0,3})?",
        ) {
            // Without the line end it drops a last cell that is empty and quoted.
            let text = format!("{text}\n");
            let bytes = text.as_bytes();
            let (mut records, mut at, mut scratch, mut is_open) = (Vec::new(), 0, Vec::new(), false);
            while at < bytes.len() {
                if matches!(bytes[at], b'\n' | b'\r') {
                    at += 1;
                    continue;
                }
                let (mut record, mut last) = (Vec::new(), None);
                for cell in cells(&bytes[at..], COMMA, Quotes::Rfc4180) {
                    record.push(cell.content(&bytes[at..], &mut scratch).to_vec());
                    last = Some(cell);
                }
                let last = last.expect("a line has a cell");
                is_open = last.ended == Ended::OpenQuote;
                records.push(record);
                at += last.next;
            }
            let mut theirs = oracle(bytes);
            if is_open {
                // Of a quote that the end leaves open theirs makes one cell with the one before.
                records.pop();
                theirs.pop();
            }
            prop_assert_eq!(records, theirs);
        }

        #[test]
        fn the_end_of_a_cell_is_the_first_there_is(text in "[a,\n\r\u{8a}]{0,120}", at in 0usize..120) {
            let bytes = text.as_bytes();
            let at = at.min(bytes.len());
            let first = bytes[at..].iter().position(|byte| matches!(byte, b',' | b'\n' | b'\r'));
            prop_assert_eq!(find_end(bytes, at, COMMA), first.map_or(bytes.len(), |more| at + more));
        }
    }
}
