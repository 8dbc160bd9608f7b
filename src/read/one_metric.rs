//! Delimited text of one metric: a step, a value and perhaps a time a row. A header may come again where a run was resumed.

use super::apart::{Cut, Shape, Value};
use super::clock;
use crate::model::{Entry, EntryKind, Format, Part, Source};
use crate::wire::csv::{self, Delimiter, Ended, Quotes};
use crate::wire::numbers::{Cell, parse_f64, parse_i64_step, parse_text_value, parse_word};

/// Where the cells of a row stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Columns {
    step: usize,
    time: Option<usize>,
    value: usize,
}

/// What a cell of text lacks.
const WANTED: &str = "want a number as the value";

/// Cells looked at in a line.
const CELLS: usize = 16;

/// A table whose cells `DELIMITER` separates.
#[derive(Debug, Default)]
pub struct Table<const DELIMITER: u8> {
    columns: Option<Columns>,
    /// A number was read: what is none from now on is damage, and no text or truth value that somebody logged.
    has_number: bool,
}

impl<const DELIMITER: u8> Table<DELIMITER> {
    /// Contents and ends of the cells of a line.
    fn cells(line: &[u8]) -> Vec<(Vec<u8>, Ended)> {
        let mut scratch = Vec::new();
        let cells = csv::cells(line, Delimiter::Byte(DELIMITER), Quotes::Rfc4180).take(CELLS);
        cells.map(|cell| (cell.content(line, &mut scratch).trim_ascii().to_vec(), cell.ended)).collect()
    }

    /// The columns that a header names.
    fn columns(cells: &[(Vec<u8>, Ended)]) -> Option<Columns> {
        let is = |name: &str| {
            cells.iter().position(|(cell, _)| cell.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(cell) == name.as_bytes())
        };
        let (step, time) = (is("step")?, is("timestamp"));
        let value = (0..cells.len()).rev().find(|at| *at != step && Some(*at) != time)?;
        Some(Columns { step, time, value })
    }

    fn value(columns: Columns, cells: &[(Vec<u8>, Ended)]) -> Result<Option<Value>, &'static str> {
        let cell = |at: usize| cells.get(at).map(|(cell, _)| cell.as_slice());
        let step = cell(columns.step).and_then(step).ok_or("want a number as the step")?;
        let value = match cell(columns.value).map(parse_text_value) {
            None => return Err("want a step and a value"),
            Some(Cell::Missing) => return Ok(None),
            Some(Cell::Text) => return Err(WANTED),
            Some(Cell::Value(value)) => value,
        };
        let time = columns.time.and_then(cell).and_then(|cell| clock::from_text(std::str::from_utf8(cell).ok()?));
        Ok(Some(Value { time, value, step: Some(step) }))
    }
}

fn step(cell: &[u8]) -> Option<i64> {
    let whole = std::str::from_utf8(cell).ok().and_then(|cell| cell.parse().ok());
    whole.or_else(|| parse_f64(cell).and_then(parse_i64_step).map(|(step, _)| step))
}

impl<const DELIMITER: u8> Shape for Table<DELIMITER> {
    fn line(&mut self, line: &[u8]) -> Result<Option<Value>, &'static str> {
        let cells = Self::cells(line);
        if let Some(columns) = Self::columns(&cells) {
            self.columns = Some(columns);
            return Ok(None);
        }
        match Self::value(self.columns.ok_or("want a header that names the step")?, &cells) {
            Err(WANTED) if !self.has_number => Ok(None),
            found => {
                self.has_number |= matches!(found, Ok(Some(_)));
                found
            }
        }
    }

    fn cut(&mut self, line: &[u8]) -> Cut {
        let cells = Self::cells(line);
        let Some(columns) = self.columns else { return Cut::Nothing };
        let is_whole = |at: usize| matches!(cells.get(at), Some((_, Ended::Delimiter | Ended::Line)));
        let is_word = cells.get(columns.value).is_some_and(|(cell, _)| parse_word(cell).is_some());
        match Self::value(columns, &cells) {
            Ok(Some(value)) if is_whole(columns.step) && (is_whole(columns.value) || is_word) => Cut::Kept(value),
            _ if is_word && !is_whole(columns.step) => Cut::Lost,
            _ => Cut::Nothing,
        }
    }
}

/// One source a directory, of the files that belong to it: `home` gives the directory and the file's name in it.
pub fn group<'e>(
    format: Format,
    entries: &'e [Entry],
    own: &[usize],
    home: impl Fn(&'e str) -> Option<(&'e str, &'e str)>,
) -> Vec<Source> {
    let mut sources: Vec<Source> = Vec::new();
    let mut homes = std::collections::HashMap::new();
    for entry in own.iter().map(|index| &entries[*index]).filter(|entry| entry.kind == EntryKind::File) {
        let Some((directory, name)) = home(&entry.path) else {
            sources.push(super::single(format, entry));
            continue;
        };
        let at = *homes.entry(directory).or_insert_with(|| {
            let (path, directory) = (directory.to_owned(), directory.to_owned());
            sources.push(Source { format, path, directory, parts: Vec::new() });
            sources.len() - 1
        });
        sources[at].parts.push(Part { path: entry.path.clone(), name: name.to_owned(), size: entry.size });
    }
    sources.iter_mut().for_each(|source| source.parts.sort_by(|a, b| a.name.cmp(&b.name)));
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    type Row = Option<(i64, f64, Option<i64>)>;

    fn table(lines: &[&str]) -> Vec<Result<Row, &'static str>> {
        let mut table = Table::<b'\t'>::default();
        let found = |value: Value| (value.step.expect("a row has a step"), value.value, value.time);
        lines.iter().map(|line| table.line(line.as_bytes()).map(|value| value.map(found))).collect()
    }

    #[test]
    fn rows_below_a_header_that_may_come_again() {
        let found =
            table(&["step\tloss", "1\t0.5", "2\tinf", "3\t", "timestamp\tstep\tloss", "1700000000123\t2\t-inf"]);
        let want = [
            Ok(None),
            Ok(Some((1, 0.5, None))),
            Ok(Some((2, f64::INFINITY, None))),
            Ok(None),
            Ok(None),
            Ok(Some((2, f64::NEG_INFINITY, Some(1_700_000_000_123)))),
        ];
        assert_eq!(found, want);
    }

    #[test]
    fn what_is_no_row() {
        assert!(table(&["1\t0.5"])[0].is_err());
        let found = table(&["\u{feff}step\tmy\"loss\"", "x\t0.5", "7", "9.0\tnan\tmore", "8\tbad"]);
        assert_eq!(found[0], Ok(None));
        assert!([1, 2, 4].iter().all(|row: &usize| found[*row].is_err()), "{found:?}");
        assert!(matches!(found[3], Ok(Some((9, value, None))) if value.is_nan()));
        // A metric of texts or truth values is none of numbers; among numbers a text is damage.
        assert_eq!(table(&["step\tnote", "0\tNaN in text 0", "1\tTrue"])[1..], [Ok(None), Ok(None)]);
        assert_eq!(table(&["step\tloss", "0\t1", "1\t0.5x"])[2], Err(WANTED));
    }

    #[test]
    fn what_a_cut_leaves() {
        let cut = |header: &str, line: &str| {
            let mut table = Table::<b','>::default();
            assert_eq!(table.line(header.as_bytes()), Ok(None));
            match table.cut(line.as_bytes()) {
                Cut::Nothing => "nothing",
                Cut::Kept(_) => "kept",
                Cut::Lost => "lost",
            }
        };
        for (line, want) in [("12,0.5", "nothing"), ("12,nan", "kept"), ("12,-Inf", "kept"), ("12,na", "nothing")] {
            assert_eq!(cut("step,loss", line), want, "{line}");
        }
        for (line, want) in [("12,0.5\r", "kept"), ("12,", "nothing"), ("12", "nothing"), ("", "nothing")] {
            assert_eq!(cut("step,loss", line), want, "{line}");
        }
        assert_eq!((cut("loss,step", "nan,12"), cut("loss,step", "nan,12\r")), ("lost", "kept"));
        assert_eq!(cut("loss,step", "0.5,12"), "nothing");
    }
}
