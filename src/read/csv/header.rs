//! Finds the header of a table: its delimiter and its column names.

use memchr::memchr;

use super::export;
use crate::model::roles;
use crate::read::Request;
use crate::wire::csv::{Cell, Delimiter, Ended, Quotes, cells};
use crate::wire::numbers::{self, parse_text_value};

/// Delimiters of one byte, the more usual ones first.
const DELIMITERS: [u8; 4] = [b',', b'\t', b';', b'|'];

/// A line that names columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub delimiter: Delimiter,
    pub names: Vec<String>,
    /// A quote is open at the end of the line.
    pub open_quote: bool,
    /// Names of a step or of a metric with a role.
    known: usize,
}

/// Which names make a line a header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a>(pub Option<&'a Request>);

impl Known<'_> {
    /// A step's name.
    pub fn is_step(self, name: &str) -> bool {
        roles::step_rank(name).is_some() || self.0.is_some_and(|request| request.step.as_deref() == Some(name))
    }

    /// A step's name, or that of a metric with a role.
    pub fn has(self, name: &str) -> bool {
        let is_asked = |request: &Request| {
            let table = &request.table;
            let named = [&table.run, &table.name, &table.value].iter().any(|asked| asked.as_deref() == Some(name));
            named || request.metrics.iter().any(|(_, glob)| glob.is_match(name))
        };
        self.is_step(name) || roles::role_of(name).is_some() || self.0.is_some_and(is_asked)
    }
}

/// A column name as it is written in a cell.
pub(super) fn name_of(cell: &Cell, line: &[u8], scratch: &mut Vec<u8>) -> String {
    let mut content = cell.content(line, scratch).trim_ascii();
    if !cell.quoted {
        // What is left of a quote that its line does not close.
        content = content.trim_ascii_start();
        content = content.strip_prefix(b"\"").unwrap_or(content).trim_ascii();
    }
    String::from_utf8_lossy(content).into_owned()
}

impl Header {
    /// The line (or the record, where quoted names hold line ends) as names, cut at `delimiter`.
    pub fn cut(line: &[u8], delimiter: Delimiter, quotes: Quotes, most: usize) -> Self {
        let (mut names, mut open_quote, mut scratch) = (Vec::new(), false, Vec::new());
        for cell in cells(line, delimiter, quotes).take(most) {
            open_quote |= cell.ended == Ended::OpenQuote;
            names.push(name_of(&cell, line, &mut scratch));
        }
        Self { delimiter, names, open_quote, known: 0 }
    }

    /// The header that a line is, if it is one: a name that is known, and no more numbers than names.
    pub fn of(line: &[u8], known: Known<'_>, most: usize) -> Option<Self> {
        let line = line.trim_ascii_end();
        if matches!(line.first(), None | Some(b'{' | b'[' | b'<')) {
            return None;
        }
        let cut = |delimiter| Self::cut(line, Delimiter::Byte(delimiter), Quotes::Rfc4180, most);
        let occurs = |delimiter: &u8| memchr(*delimiter, line).is_some();
        let mut cuts: Vec<Self> = DELIMITERS.into_iter().filter(occurs).map(cut).collect();
        cuts.retain(|header| header.names.len() > 1);
        // Names are compared with the whole table of roles: where there is nothing to choose, one known name will do.
        let enough = if cuts.len() == 1 { 1 } else { usize::MAX };
        let mut best: Option<Self> = None;
        for mut header in cuts {
            header.known = header.names.iter().filter(|name| known.has(name)).take(enough).count();
            let better = |best: &Self| (header.known, header.names.len()) > (best.known, best.names.len());
            if best.as_ref().is_none_or(better) {
                best = Some(header);
            }
        }
        if best.is_none() {
            let is_number = |name: &String| parse_text_value(name.as_bytes()) != numbers::Cell::Text;
            let mut words = Self::cut(line, Delimiter::Blanks, Quotes::Rfc4180, most);
            let mut column = Self::cut(line, Delimiter::Byte(b','), Quotes::Rfc4180, most);
            // A single name may hold blanks; words in a row are names only if nothing else is among them.
            column.known = column.names.iter().filter(|name| known.has(name)).count();
            words.known = words.names.iter().filter(|name| known.has(name)).count();
            let has_number = words.names.iter().any(is_number);
            let is_words = words.names.len() > 1 && words.known > 0 && !has_number;
            if has_number {
                return None;
            }
            let is_one = column.known > 0 && (!is_words || words.known <= 1 && words.names.len() <= 2);
            best = Some(if is_one { column } else { words }).filter(|header| header.known > 0);
            best.as_ref().filter(|header| header.names.len() == 1 || is_words)?;
        }
        let best = best.filter(|header| header.known > 0 || export::is_chart(&header.names))?;
        let is_value = |name: &&String| matches!(parse_text_value(name.as_bytes()), numbers::Cell::Value(_));
        let values = best.names.iter().filter(is_value).count();
        let texts = best.names.iter().filter(|name| !name.is_empty()).count() - values;
        (texts >= values).then_some(best)
    }
}

/// Lines before a header; more, and the file is no table.
const MOST_PREAMBLE: u64 = 256;

/// Finds the header among the first lines of a file.
#[derive(Debug, Default)]
pub(super) struct Seeker {
    /// A header behind `#` (numpy's `savetxt`), or one of words that could be prose: it counts if a row follows it.
    doubtful: Option<Header>,
    /// Lines passed over that are neither blank nor comments.
    pub passed: u64,
}

/// What a line before the table is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A comment, or text before the table.
    Passed,
    /// The header.
    Header(Header),
    /// The first row; the header is the doubtful line above it.
    Row(Header),
}

impl Seeker {
    /// Looks at the next line that is not blank.
    pub fn line(&mut self, line: &[u8], known: Known<'_>, most: usize) -> Line {
        if let Some(comment) = line.trim_ascii_start().strip_prefix(b"#") {
            let header = Header::of(comment.trim_ascii_start(), known, most).filter(|header| !header.open_quote);
            self.doubtful = header.or(self.doubtful.take());
            return Line::Passed;
        }
        match Header::of(line, known, most) {
            Some(header) if header.delimiter == Delimiter::Blanks => {
                self.doubtful = Some(header);
                return Line::Passed;
            }
            Some(header) => return Line::Header(header),
            None => {}
        }
        if let Some(header) = &self.doubtful {
            let row = Header::cut(line.trim_ascii_end(), header.delimiter, Quotes::Rfc4180, most);
            let is_value = |cell: &String| matches!(parse_text_value(cell.as_bytes()), numbers::Cell::Value(_));
            if row.names.len() == header.names.len() && row.names.iter().any(is_value) {
                return Line::Row(header.clone());
            }
        }
        self.passed += 1;
        Line::Passed
    }

    /// So many lines were passed over that this is no table.
    pub fn gave_up(&self) -> bool {
        self.passed > MOST_PREAMBLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(line: &str) -> Option<(Delimiter, Vec<String>)> {
        Header::of(line.as_bytes(), Known(None), 1000).map(|header| (header.delimiter, header.names))
    }

    fn names(line: &str) -> Vec<String> {
        header(line).expect(line).1
    }

    #[test]
    fn the_delimiter_is_the_one_that_gives_known_names() {
        for (delimiter, text) in [(b',', ","), (b'\t', "\t"), (b';', ";"), (b'|', "|")] {
            let line = ["epoch", " train loss ", "\"grad_norm\"", "a, b"].join(text);
            let line = if delimiter == b',' { line.replace(" b", "\tb") } else { line };
            let (found, names) = header(&line).unwrap();
            assert_eq!(found, Delimiter::Byte(delimiter), "{line:?}");
            assert_eq!(names[..3], ["epoch", "train loss", "grad_norm"]);
        }
        assert_eq!(header("step  loss grad_norm").unwrap().0, Delimiter::Blanks);
        assert_eq!(names("train loss"), ["train loss"]);
        assert_eq!(names("grad_norm"), ["grad_norm"]);
        assert_eq!(names(",step,loss"), ["", "step", "loss"]);
    }

    #[test]
    fn rows_and_prose_are_no_headers() {
        for line in
            ["", "1,2,3", "1,train/loss,0.5", "{\"step\": 1, \"loss\": 2}", "a,b,c", "Training log", "step 1 loss 0.5"]
        {
            assert_eq!(header(line), None, "{line}");
        }
        assert_eq!(names("step,loss,0"), ["step", "loss", "0"]);
    }

    #[test]
    fn a_doubtful_header_counts_before_a_row() {
        let known = Known(None);
        let mut seeker = Seeker::default();
        assert_eq!(seeker.line(b"# run of step 7", known, 99), Line::Passed);
        assert_eq!(seeker.line(b"# step loss grad_norm", known, 99), Line::Passed);
        assert!(matches!(seeker.line(b"1 0.5 0.25", known, 99), Line::Row(header) if header.names.len() == 3));
        assert_eq!(seeker.line(b"the loss of a run", known, 99), Line::Passed);
        assert!(matches!(seeker.line(b"step,loss", known, 99), Line::Header(header) if header.names.len() == 2));
    }
}
