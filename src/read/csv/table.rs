//! The decoder of tables: records into rows of a builder.

use std::collections::HashMap;

use memchr::{memchr, memchr2};

use super::export;
use super::header::{Header, Known, Line, Seeker, name_of};
#[cfg(feature = "tables")]
use super::melt::{Melt, Texts};
use super::runs::{FIRST, Runs};
use super::shape::{self, Shape};
#[cfg(feature = "tables")]
use crate::model::roles;
use crate::model::{Fault, FaultKind, Limits, PlaceUnit, Recording};
use crate::read::json_rows::fingerprint;
use crate::read::{Builder, Column, Progress, Request, StreamDecoder, Want, is_git_lfs_pointer};
use crate::wire::csv::{Cell, Delimiter, Ended, Quotes, cell, cells, count_lines, find_end, line_end};
use crate::wire::numbers::{self, number_at, parse_f64, parse_text_value};

/// Filled cells of a column that nothing is wanted of which are looked at, to know whether it holds numbers.
const LOOKS: u8 = 4;
/// Lines that a quoted name in a header may span.
const HEADER_LINES: u64 = 4;
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
/// Lines like rows of the table in one quoted text that make its quotes stray ones, however they close.
const MOST_ROWS: usize = 64;
/// Records among which a repetition is a duplicate, as in the builder.
const RECENT: usize = 64;

/// A column of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    id: u32,
    want: Want,
    is_step: bool,
    looks: u8,
}

impl Planned {
    /// A column as a builder wants it.
    pub fn new(column: Column, is_step: bool) -> Self {
        Self { id: column.id, want: column.want, is_step, looks: 0 }
    }
}

/// The table of one part.
#[derive(Debug)]
pub(super) struct Table<'r> {
    request: &'r Request,
    file: &'r str,
    shape: Shape,
    seeker: Seeker,
    delimiter: Delimiter,
    columns: Vec<Planned>,
    names: Vec<String>,
    /// The header as it was written, without its line end.
    header: Vec<u8>,
    line: u64,
    scratch: Vec<u8>,
    /// What stands before the last cell of the newest records, in brief.
    heads: [u64; RECENT],
    heads_next: usize,
    /// Inside a line that is passed over.
    skipping: bool,
    /// The window before ended with `\r`, whose `\n` may come.
    after_return: bool,
    /// Inside a run of NUL bytes.
    in_nul: bool,
    told_extra: bool,
    /// The runs of a wide table.
    runs: Runs<'r>,
    /// Takes the values of any other.
    #[cfg(feature = "tables")]
    melt: Option<Box<Melt<'r>>>,
    pub is_pointer: bool,
    /// The file ended before its header did.
    pub cut_header: bool,
}

/// Why a record could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The slice ends inside it.
    Open,
    /// The slice ends inside the quoted cell that begins here.
    OpenQuote(usize),
    /// A quoted cell holds a whole row of the table, or lines and then text behind its quote: the quote is a stray one.
    StrayQuote(usize),
}

/// What one record held.
#[derive(Clone, Copy, Debug, Default)]
struct Scanned {
    /// Where its line end stands.
    end: usize,
    /// Where the cell of the last column begins.
    head: usize,
    cells: usize,
    /// No cell holds anything.
    blank: bool,
    /// A cell holds a number.
    has_number: bool,
    /// There are more filled cells than columns.
    extra: bool,
    /// A quoted cell holds a line end.
    spans_lines: bool,
    /// A cell that should be a number held NUL bytes, and was read without them; or could not be read.
    has_nul: bool,
    lost_to_nul: bool,
    /// A quoted cell that is believed holds a line like a row of the table.
    holds_row: bool,
    /// A value is NaN or an infinity.
    has_bad: bool,
}

/// How far a step of the decoder got.
enum Step {
    Used(usize),
    /// The record goes on behind the window.
    More,
}

impl<'r> Table<'r> {
    /// The table of a file of this path.
    pub fn new(request: &'r Request, limits: &'r Limits, file: &'r str) -> Self {
        Self {
            request,
            file,
            shape: Shape::Wide,
            seeker: Seeker::default(),
            delimiter: Delimiter::Byte(b','),
            columns: Vec::new(),
            names: Vec::new(),
            header: Vec::new(),
            line: 1,
            scratch: Vec::new(),
            heads: [0; RECENT],
            heads_next: 0,
            skipping: false,
            after_return: false,
            in_nul: false,
            told_extra: false,
            runs: Runs::new(request, limits),
            #[cfg(feature = "tables")]
            melt: None,
            is_pointer: false,
            cut_header: false,
        }
    }

    /// Whether a header was found.
    pub fn has_header(&self) -> bool {
        !self.columns.is_empty()
    }

    /// Lines that were passed over in search of a header.
    pub fn passed(&self) -> u64 {
        self.seeker.passed
    }

    /// The recordings of all runs; `into` is the builder that the table was read with.
    pub fn finish(self, into: Builder<'_>) -> Vec<Recording> {
        #[cfg(feature = "tables")]
        if let Some(melt) = self.melt {
            return melt.finish(into);
        }
        self.runs.finish(into)
    }

    fn fault(&self, kind: FaultKind, detail: &str, into: &mut Builder<'_>) {
        let place = into.place(PlaceUnit::Line, self.line);
        into.fault(Fault::new(kind, place, detail));
    }

    /// Passes the line end at `end`, and gives where the next line begins.
    fn end_line(&mut self, bytes: &[u8], end: usize) -> usize {
        self.line += 1;
        self.after_return = bytes[end] == b'\r' && end + 1 == bytes.len();
        end + line_end(bytes, end)
    }

    // --- the header ------------------------------------------------------------------------------------------------

    fn seek(&mut self, rest: &[u8], into: &mut Builder<'_>) -> Step {
        let Some(end) = memchr2(b'\n', b'\r', rest) else { return Step::More };
        let line = &rest[..end];
        if line.trim_ascii().is_empty() {
            return Step::Used(self.end_line(rest, end));
        }
        let most = into.limits().columns + 1;
        match self.seeker.line(line, Known(Some(self.request)), most) {
            Line::Passed => Step::Used(self.end_line(rest, end)),
            Line::Row(header) => {
                self.begin_table(&header, b"", into);
                Step::Used(0)
            }
            Line::Header(header) if header.open_quote => self.long_header(rest, end, header.delimiter, most, into),
            Line::Header(header) => {
                self.begin_table(&header, line, into);
                Step::Used(self.end_line(rest, end))
            }
        }
    }

    /// A header with a quote that its first line leaves open: a name of several lines, or a stray quote.
    fn long_header(
        &mut self,
        rest: &[u8],
        first_end: usize,
        delimiter: Delimiter,
        most: usize,
        into: &mut Builder<'_>,
    ) -> Step {
        let last = cells(rest, delimiter, Quotes::Rfc4180).last();
        let (ended, next) = last.map_or((Ended::Open, 0), |cell| (cell.ended, cell.next));
        let lines = count_lines(&rest[..next]);
        if ended == Ended::Line && lines < HEADER_LINES {
            let header = Header::cut(&rest[..next], delimiter, Quotes::Rfc4180, most);
            self.begin_table(&header, &rest[..next], into);
            self.line += lines;
            return Step::Used(self.end_line(rest, next));
        }
        if lines <= HEADER_LINES && rest.len() < into.limits().record {
            return Step::More;
        }
        self.fault(FaultKind::Unparsable, "a quote in the header is never closed", into);
        let line = &rest[..first_end];
        self.begin_table(&Header::cut(line, delimiter, Quotes::Literal, most), line, into);
        Step::Used(self.end_line(rest, first_end))
    }

    /// The columns from here on are those of `header`.
    fn begin_table(&mut self, header: &Header, written: &[u8], into: &mut Builder<'_>) {
        if self.columns.is_empty() && self.seeker.passed > 0 {
            let detail = match self.seeker.passed {
                1 => "a line before the header".to_owned(),
                lines => format!("{lines} lines before the header"),
            };
            self.fault(FaultKind::Stray, &detail, into);
        }
        let most = into.limits().columns;
        if header.names.len() > most {
            self.fault(FaultKind::Limit, &format!("more than {most} columns"), into);
        }
        self.delimiter = header.delimiter;
        self.header = written.to_vec();
        self.names = self.unique_names(header, most);
        self.begin_shape(written, into);
        let names = std::mem::take(&mut self.names);
        let is_chart = matches!(self.shape, Shape::Chart(_));
        let run = shape::run_column(&names, self.request).filter(|_| !is_chart);
        self.runs.begin_table(run, &mut self.columns);
        self.columns = names.iter().map(|name| Planned::new(into.column(name), self.is_step(name))).collect();
        self.names = names;
    }

    fn is_step(&self, name: &str) -> bool {
        Known(Some(self.request)).is_step(name)
    }

    /// The names of the columns; blank ones and those that repeat as pandas calls them.
    fn unique_names(&self, header: &Header, most: usize) -> Vec<String> {
        let is_chart = export::is_chart(&header.names);
        let (mut names, mut taken) = (Vec::new(), HashMap::<String, u32>::new());
        for (index, name) in header.names.iter().enumerate().take(most) {
            let name = match name.as_str() {
                "" => format!("Unnamed: {index}"),
                name if export::dvclive_metric(self.file, name).is_some() => {
                    export::dvclive_metric(self.file, name).unwrap_or(name).to_owned()
                }
                _ if is_chart && index == 2 => export::metric_of(self.file).to_owned(),
                name => name.to_owned(),
            };
            let mut unique = name.clone();
            while let Some(times) = taken.get(&unique).copied() {
                let times = taken.get(&name).copied().unwrap_or(times) + 1;
                taken.insert(name.clone(), times);
                unique = format!("{name}.{times}");
            }
            taken.insert(unique.clone(), 0);
            names.push(unique);
        }
        names
    }

    /// What the rows under this header hold. The first header of a file decides whether they are rows of the recording.
    #[cfg(feature = "tables")]
    fn begin_shape(&mut self, written: &[u8], into: &mut Builder<'_>) {
        self.shape = Shape::of(&self.names, written, self.request);
        if self.columns.is_empty() && self.shape != Shape::Wide {
            self.melt = Some(Box::new(Melt::new(self.request, self.runs.limits)));
        }
        let rank = |name: &String| match &self.request.step {
            Some(step) if step == name => Some(0),
            _ => roles::step_rank(name).map(|rank| rank + 1),
        };
        let steps = self.names.iter().filter_map(|name| Some((rank(name)?, name)));
        let step = steps.min().map(|(_, name)| name);
        if self.melt.is_some() && self.shape == Shape::Wide {
            self.fault(FaultKind::Unparsable, "a header of another kind of table, whose rows are not read", into);
        }
        match &mut self.melt {
            Some(melt) => melt.begin_table(&self.shape, &self.names, step, into),
            None => self.shape = Shape::Wide,
        }
    }

    #[cfg(not(feature = "tables"))]
    fn begin_shape(&mut self, _written: &[u8], _into: &mut Builder<'_>) {
        self.shape = Shape::Wide;
    }

    /// A line that stands where a row could and is a header: the same one again (a logger that was started anew), or
    /// one with other columns (a key appeared).
    fn header_again(&mut self, rest: &[u8], into: &mut Builder<'_>) -> Option<Step> {
        if !self.header.is_empty() {
            let known = self.header.len().min(rest.len());
            if rest[..known] == self.header[..known] {
                match rest.get(self.header.len()) {
                    None => return Some(Step::More),
                    Some(b'\n' | b'\r') => {
                        self.line += count_lines(&self.header);
                        return Some(Step::Used(self.end_line(rest, self.header.len())));
                    }
                    Some(_) => {}
                }
            }
        }
        let (mut at, mut count, mut is_related) = (0, 0, false);
        let end = loop {
            let cell = cell(rest, at, self.delimiter, Quotes::Rfc4180);
            if cell.ended == Ended::OpenQuote {
                return None;
            }
            if cell.ended == Ended::Open {
                return Some(Step::More);
            }
            match parse_text_value(cell.content(rest, &mut self.scratch)) {
                numbers::Cell::Text => {
                    let name = name_of(&cell, rest, &mut self.scratch);
                    is_related |= Known(Some(self.request)).is_step(&name) || self.names.contains(&name);
                }
                // pandas leaves the name of its index blank.
                numbers::Cell::Missing if count == 0 && cell.end == cell.start => {}
                _ => return None,
            }
            count += 1;
            if cell.ended == Ended::Line {
                break cell.next;
            }
            at = cell.next;
        };
        if !is_related || (count == 1 && self.columns.len() > 1) {
            return None;
        }
        let header = Header::cut(&rest[..end], self.delimiter, Quotes::Rfc4180, into.limits().columns + 1);
        if !header.names.iter().any(|name| Known(Some(self.request)).has(name)) {
            return None;
        }
        let lines = count_lines(&rest[..end]);
        self.begin_table(&header, &rest[..end], into);
        self.line += lines;
        Some(Step::Used(self.end_line(rest, end)))
    }

    // --- rows ------------------------------------------------------------------------------------------------------

    /// The record at the begin of `rest`; `at_end`: nothing follows `rest`.
    fn row(&mut self, rest: &[u8], at_end: bool, into: &mut Builder<'_>) -> Step {
        let is_number = matches!(rest[0], b'0'..=b'9' | b'-' | b'+' | b'.');
        if !is_number && let Some(step) = self.header_again(rest, into) {
            return step;
        }
        let (mut record, mut literal) = (rest, usize::MAX);
        loop {
            let run = self.route(record, literal, into);
            let mut further = self.runs.enter(run, &mut self.columns, &self.names, self.request);
            let tried = match &mut further {
                Some(builder) => self.record(rest, record, literal, at_end, builder),
                None => self.record(rest, record, literal, at_end, into),
            };
            self.runs.leave(run, further);
            match tried {
                Ok(step) => return step,
                Err((at, end)) => {
                    // What stands before it counts; from here to the end of this line quotes are text.
                    record = &rest[..=end];
                    literal = at;
                }
            }
        }
    }

    /// The cell of a column in the record that begins in `bytes`, if it is whole.
    fn cell_of(&self, bytes: &[u8], literal: usize, column: usize) -> Option<Cell> {
        let mut at = 0;
        for index in 0.. {
            let quotes = if at < literal { Quotes::Rfc4180 } else { Quotes::Literal };
            let found = cell(bytes, at, self.delimiter, quotes);
            match found.ended {
                Ended::Open | Ended::OpenQuote => return None,
                _ if index == column => return Some(found),
                Ended::Line => return None,
                Ended::Delimiter => at = found.next,
            }
        }
        None
    }

    /// The run of a record of a wide table; one that names none is of the run before it.
    fn route(&mut self, record: &[u8], literal: usize, into: &mut Builder<'_>) -> usize {
        let Some(column) = self.runs.column.filter(|_| self.shape == Shape::Wide) else { return FIRST };
        match self.cell_of(record, literal, column) {
            Some(cell) => {
                let name = cell.content(record, &mut self.scratch).trim_ascii();
                self.runs.find(name, self.names.len(), self.line, into)
            }
            None => self.runs.newest,
        }
    }

    /// One record of one run. The error: where a quote stands that is a stray one, and where its line ends.
    fn record(
        &mut self,
        rest: &[u8],
        record: &[u8],
        literal: usize,
        at_end: bool,
        into: &mut Builder<'_>,
    ) -> Result<Step, (usize, usize)> {
        let scanned = match self.scan(record, literal, into) {
            Ok(scanned) => scanned,
            Err(Stop::Open) => return Ok(Step::More),
            Err(stop @ (Stop::OpenQuote(at) | Stop::StrayQuote(at))) => {
                let is_over = matches!(stop, Stop::StrayQuote(_))
                    || rest.len() >= into.limits().record
                    || (at_end && self.stays_open(rest, at));
                let end = memchr2(b'\n', b'\r', &rest[at..]).filter(|_| is_over && literal == usize::MAX);
                let Some(end) = end else { return Ok(Step::More) };
                self.fault(FaultKind::Unparsable, "a quote that is never closed", into);
                return Err((at, at + end));
            }
        };
        let bytes = &rest[..scanned.end];
        let is_row = self.tell(&scanned, bytes, into);
        if is_row {
            if scanned.cells >= self.columns.len() {
                self.heads[self.heads_next] = brief(&bytes[..scanned.head]);
                self.heads_next = (self.heads_next + 1) % RECENT;
            }
            self.end_record(record, literal, bytes, into);
        }
        #[cfg(feature = "tables")]
        if let Some(melt) = &mut self.melt {
            melt.take_faults(into);
        }
        if scanned.spans_lines {
            self.line += count_lines(bytes);
        }
        Ok(Step::Used(self.end_line(rest, scanned.end)))
    }

    /// Ends a record of which all cells are with the builder.
    fn end_record(&mut self, record: &[u8], literal: usize, bytes: &[u8], into: &mut Builder<'_>) {
        #[cfg(feature = "tables")]
        if self.melt.is_some() {
            let long = match self.shape {
                Shape::Long(long) => Some(long),
                _ => None,
            };
            let cell = |column: Option<usize>| self.cell_of(record, literal, column?);
            let cells = long.map(|long| (cell(self.runs.column), cell(Some(long.name)), cell(long.is_nan)));
            let (run, name, is_nan) = cells.unwrap_or_default();
            let (mut of_run, mut of_name, mut of_nan) = (Vec::new(), Vec::new(), Vec::new());
            let texts = Texts {
                run: run.map(|cell| cell.content(record, &mut of_run).trim_ascii()),
                name: name.map_or(&[], |cell| cell.content(record, &mut of_name).trim_ascii()),
                is_nan: is_nan.map(|cell| cell.content(record, &mut of_nan).trim_ascii()),
            };
            if let Some(melt) = &mut self.melt {
                melt.take(texts, self.line, true, into);
            }
            return;
        }
        let _ = (record, literal);
        if !self.runs.accept() {
            return;
        }
        into.end_row(Some(fingerprint(bytes)));
        if into.wants_changed() {
            self.columns.iter_mut().for_each(|column| column.want = into.want(column.id));
        }
    }

    /// Says what is odd about a record, and whether it is a row.
    fn tell(&mut self, scanned: &Scanned, bytes: &[u8], into: &mut Builder<'_>) -> bool {
        if scanned.blank {
            return false;
        }
        if scanned.cells < self.columns.len() && !scanned.has_number && !self.has_number(bytes) {
            if memchr(0, bytes).is_some() {
                self.fault(FaultKind::Stray, "a run of NUL bytes", into);
            } else if !bytes.trim_ascii_start().starts_with(b"#") {
                self.fault(FaultKind::Unparsable, "a line that is no row of the table", into);
            }
            return false;
        }
        if scanned.lost_to_nul {
            self.fault(FaultKind::Unparsable, "NUL bytes in a cell, which is no number without them", into);
        } else if scanned.has_nul {
            self.fault(FaultKind::Stray, "NUL bytes in a cell, which was read without them", into);
        }
        if scanned.holds_row {
            self.fault(FaultKind::Stray, "a quoted text in which a line reads as a row: it is taken as text", into);
        }
        if scanned.extra && !self.told_extra {
            self.told_extra = true;
            let detail = format!("a row of {} cells, the header names {}", scanned.cells, self.columns.len());
            self.fault(FaultKind::Unparsable, &detail, into);
        }
        true
    }

    fn has_number(&mut self, record: &[u8]) -> bool {
        let scratch = &mut self.scratch;
        cells(record, self.delimiter, Quotes::Rfc4180)
            .any(|cell| matches!(parse_text_value(cell.content(record, scratch)), numbers::Cell::Value(_)))
    }

    /// Gives the cells of the record that begins in `bytes` to the builder, and ends no row. In cells from `literal` on,
    /// quotes are text.
    fn scan(&mut self, bytes: &[u8], literal: usize, into: &mut Builder<'_>) -> Result<Scanned, Stop> {
        into.begin_row(self.line);
        let delimiter = self.delimiter;
        let byte = match delimiter {
            Delimiter::Byte(byte) => byte,
            // A line end ends a cell too, so that this byte says nothing new.
            Delimiter::Blanks => b'\n',
        };
        let is_end = |stop: usize| bytes.get(stop).is_some_and(|next| *next == byte || matches!(next, b'\n' | b'\r'));
        let quotes = |at: usize| if at < literal { Quotes::Rfc4180 } else { Quotes::Literal };
        let mut scanned = Scanned { blank: true, ..Scanned::default() };
        let mut at = 0;
        for index in 0..self.columns.len() {
            let planned = &mut self.columns[index];
            scanned.head = at;
            scanned.cells += 1;
            let Some(first) = bytes.get(at) else { return Err(Stop::Open) };
            // What most cells are: blank, a number, or something of which only the end is wanted.
            let fast = match planned.want {
                _ if *first == byte || matches!(first, b'\n' | b'\r') => Some(at),
                Want::Note if planned.looks >= LOOKS && is_plain(*first, bytes.get(at + 1)) => {
                    let stop = find_end(bytes, at, delimiter);
                    is_end(stop).then(|| {
                        scanned.blank = false;
                        into.filled(planned.id, false);
                        stop
                    })
                }
                Want::Note => None,
                Want::Number | Want::Text if planned.is_step => {
                    whole_at(bytes, at).filter(|(_, stop)| is_end(*stop)).map(|(step, stop)| {
                        scanned.blank = false;
                        scanned.has_number = true;
                        into.whole_step(planned.id, step);
                        stop
                    })
                }
                Want::Number | Want::Text => {
                    number_at(bytes, at).ok().filter(|(_, stop)| is_end(*stop)).map(|(value, stop)| {
                        scanned.blank = false;
                        scanned.has_number = true;
                        into.number(planned.id, value);
                        stop
                    })
                }
            };
            if let Some(stop) = fast {
                if bytes[stop] == byte && delimiter != Delimiter::Blanks {
                    at = stop + 1;
                    continue;
                }
                scanned.end = stop;
                return Ok(scanned);
            }
            let found = cell(bytes, at, delimiter, quotes(at));
            self.check(bytes, at, index, &found, &mut scanned)?;
            let planned = &mut self.columns[index];
            give(planned, &found, bytes, delimiter, &mut self.scratch, &mut scanned, into);
            if found.ended == Ended::Line {
                scanned.end = found.next;
                return Ok(scanned);
            }
            at = found.next;
        }
        // What lies beyond the columns.
        loop {
            let found = cell(bytes, at, delimiter, quotes(at));
            self.check(bytes, at, self.columns.len(), &found, &mut scanned)?;
            let is_blank = found.start == found.end || bytes[found.start..found.end].trim_ascii().is_empty();
            scanned.cells += usize::from(!is_blank);
            scanned.extra |= !is_blank;
            scanned.blank &= is_blank;
            if found.ended == Ended::Line {
                scanned.end = found.next;
                return Ok(scanned);
            }
            at = found.next;
        }
    }

    /// Whether a cell is whole, and if its quotes hold line ends, whether they are to be believed.
    fn check(&self, bytes: &[u8], at: usize, index: usize, cell: &Cell, scanned: &mut Scanned) -> Result<(), Stop> {
        let inside = &bytes[cell.start..cell.end];
        if (cell.quoted || inside.first() == Some(&b'"'))
            && let Some(first) = memchr2(b'\n', b'\r', inside)
        {
            scanned.spans_lines = true;
            // Text behind the closing quote of several lines: two stray quotes make the pair.
            if !cell.quoted {
                return Err(Stop::StrayQuote(at));
            }
            match self.rows_in(&inside[first..]) {
                0 => {}
                MOST_ROWS.. => return Err(Stop::StrayQuote(at)),
                _ if cell.ended == Ended::OpenQuote => {}
                _ => match self.is_whole(bytes, index, cell) {
                    Some(true) => scanned.holds_row = true,
                    Some(false) => return Err(Stop::StrayQuote(at)),
                    // What follows may still make the quote a stray one.
                    None => return Err(Stop::OpenQuote(at)),
                },
            }
        }
        match cell.ended {
            Ended::Delimiter | Ended::Line => Ok(()),
            Ended::Open => Err(Stop::Open),
            Ended::OpenQuote => Err(Stop::OpenQuote(at)),
        }
    }

    /// Whether the quoted cell that begins at `at` is open at the end of the slice and holds a row of the table.
    fn stays_open(&self, bytes: &[u8], at: usize) -> bool {
        let cell = cell(bytes, at, self.delimiter, Quotes::Rfc4180);
        let inside = &bytes[cell.start..cell.end];
        let first = memchr2(b'\n', b'\r', inside).filter(|_| cell.ended == Ended::OpenQuote);
        first.is_some_and(|first| self.rows_in(&inside[first..]) > 0)
    }

    /// Whether the record has as many cells as the table has columns, `cell` being that of column `index`; `None` if the
    /// slice ends before that is known.
    fn is_whole(&self, bytes: &[u8], index: usize, cell: &Cell) -> Option<bool> {
        let (mut count, mut ended, mut at) = (index + 1, cell.ended, cell.next);
        while count <= self.columns.len() && ended == Ended::Delimiter {
            let next = self::cell(bytes, at, self.delimiter, Quotes::Rfc4180);
            (count, ended, at) = (count + 1, next.ended, next.next);
        }
        match ended {
            _ if count > self.columns.len() => Some(false),
            Ended::Line => Some(count == self.columns.len()),
            Ended::Delimiter => Some(false),
            Ended::Open | Ended::OpenQuote => None,
        }
    }

    /// How many whole lines of a quoted text, which begins with a line end, read as rows of this table; at most
    /// [`MOST_ROWS`]. Nothing after these is looked at, so that a cut behind them changes nothing.
    fn rows_in(&self, mut text: &[u8]) -> usize {
        let (count, mut rows) = (self.columns.len(), 0);
        if count < 2 {
            return 0;
        }
        while rows < MOST_ROWS {
            text = &text[line_end(text, 0)..];
            let Some(end) = memchr2(b'\n', b'\r', text) else { break };
            let line = &text[..end];
            let (mut found, mut steps, mut values, mut others, mut wrong) = (0, 0, 0, 0, false);
            for cell in cells(line, self.delimiter, Quotes::Literal) {
                let Some(planned) = self.columns.get(found) else {
                    wrong = true;
                    break;
                };
                found += 1;
                match parse_text_value(&line[cell.start..cell.end]) {
                    numbers::Cell::Value(_) if planned.is_step => steps += 1,
                    numbers::Cell::Value(_) => values += 1,
                    numbers::Cell::Text if planned.is_step => wrong = true,
                    numbers::Cell::Text => others += 1,
                    numbers::Cell::Missing => {}
                }
            }
            rows += usize::from(!wrong && found == count && (steps > 0 || (values > 0 && others == 0)));
            text = &text[end..];
        }
        rows
    }

    // --- the end of the file ---------------------------------------------------------------------------------------

    /// What the file ends in without a line end. Cells whose delimiter was seen are whole, and the record counts if
    /// these are all but the last one; of the last one only a NaN or Inf does.
    fn cut(&mut self, rest: &[u8], into: &mut Builder<'_>) {
        if rest.iter().all(|byte| byte.is_ascii_whitespace() || *byte == 0) {
            return;
        }
        if self.columns.is_empty() {
            match Header::of(rest, Known(Some(self.request)), into.limits().columns + 1) {
                Some(header) if !header.open_quote => {
                    self.begin_table(&header, rest, into);
                    into.unterminated = true;
                }
                _ => self.cut_header = true,
            }
            return;
        }
        let run = self.route(rest, usize::MAX, into);
        let mut further = self.runs.enter(run, &mut self.columns, &self.names, self.request);
        match &mut further {
            Some(builder) => self.cut_record(rest, builder),
            None => self.cut_record(rest, into),
        }
        self.runs.leave(run, further);
    }

    /// Whether the run of a record is told by its first `closed` cells, or by an open one that names the run before it.
    fn is_run_told(&mut self, rest: &[u8], found: &[Cell], closed: usize) -> bool {
        let Some(column) = self.runs.column.filter(|column| *column >= closed) else { return true };
        let name = found.get(column).map(|cell| cell.content(rest, &mut self.scratch).trim_ascii());
        #[cfg(feature = "tables")]
        if let Some(melt) = &self.melt {
            return melt.is_same_run(name);
        }
        self.runs.is_newest(name)
    }

    fn cut_record(&mut self, rest: &[u8], into: &mut Builder<'_>) {
        let count = self.columns.len();
        let mut found: Vec<Cell> = Vec::new();
        let mut all = 0;
        for cell in cells(rest, self.delimiter, Quotes::Rfc4180) {
            all += 1;
            if found.len() < count {
                found.push(cell);
            }
        }
        let Some(last) = found.last().copied() else { return };
        let holds_row = |cell: &Cell| {
            let inside = &rest[cell.start..cell.end];
            let first = memchr2(b'\n', b'\r', inside).filter(|_| cell.quoted && cell.ended != Ended::OpenQuote);
            first.is_some_and(|first| self.rows_in(&inside[first..]) > 0)
        };
        if found.iter().any(holds_row) {
            // Whether its quotes are stray ones depends on what the end cut off.
            self.fault(FaultKind::Truncated, "the file ends inside a record", into);
            return;
        }
        let is_open = last.ended != Ended::Delimiter;
        let closed = found.len() - usize::from(is_open);
        let mut scanned = Scanned::default();
        let mut last_is_bad = false;
        into.begin_row(self.line);
        for (planned, cell) in self.columns.iter_mut().zip(&found[..closed]) {
            give(planned, cell, rest, self.delimiter, &mut self.scratch, &mut scanned, into);
        }
        if is_open {
            let planned = &mut self.columns[closed];
            let content = last.content(rest, &mut self.scratch);
            let stripped = memchr(0, content).map(|_| without_nul(content));
            let word = open_word(stripped.as_deref().unwrap_or(content))
                .filter(|_| last.ended == Ended::Open && planned.want != Want::Note);
            if let Some(value) = word {
                into.number(planned.id, value);
                last_is_bad = !planned.is_step;
                scanned.has_bad |= last_is_bad;
            } else if !content.trim_ascii().is_empty() {
                // It was filled, whatever with: the row is of the kind that it would have been.
                into.filled(planned.id, false);
            }
        }
        // A step that is still to come would place all that came before it.
        let awaits_step = self.columns[closed..].iter().any(|column| column.is_step && column.want != Want::Note)
            || !self.is_run_told(rest, &found, closed);
        let is_whole = all >= count && scanned.has_number && !awaits_step;
        #[cfg(feature = "tables")]
        if self.melt.is_some() {
            self.cut_melted(rest, &found[..closed], is_whole, awaits_step, &scanned, into);
            return;
        }
        if is_whole && !self.runs.accept() {
            return;
        }
        if is_whole {
            let head = if count > 1 { found[count - 2].next } else { 0 };
            let hash = brief(&rest[..head]);
            // What it may repeat is known by all of it but the cell that is open.
            let may_repeat = count > 1 && self.columns.iter().any(|column| column.is_step);
            if last_is_bad || !(may_repeat && self.heads.contains(&hash)) {
                into.end_row(Some(fingerprint(rest)));
                into.unterminated = true;
                return;
            }
        }
        self.fault(FaultKind::Truncated, "the file ends inside a record", into);
        let is_lost = match (is_whole, awaits_step) {
            (true, _) => false,
            (_, true) => scanned.has_bad,
            (_, false) => into.end_cut_row(),
        };
        if is_lost {
            self.fault(FaultKind::Unparsable, LOST, into);
        }
    }

    /// The same for values that go to their runs one by one.
    #[cfg(feature = "tables")]
    fn cut_melted(
        &mut self,
        rest: &[u8],
        closed: &[Cell],
        is_whole: bool,
        awaits_step: bool,
        scanned: &Scanned,
        into: &mut Builder<'_>,
    ) {
        let content = |column: Option<usize>| {
            let mut scratch = Vec::new();
            Some(closed.get(column?)?.content(rest, &mut scratch).trim_ascii().to_vec())
        };
        let (run, name, is_nan, is_told) = match &self.shape {
            Shape::Long(long) => {
                let told = long.is_told(closed.len());
                (content(self.runs.column), content(Some(long.name)), content(long.is_nan), told)
            }
            _ => (None, None, None, !closed.is_empty()),
        };
        let is_told = is_told && !awaits_step;
        let texts = Texts { run: run.as_deref(), name: name.as_deref().unwrap_or_default(), is_nan: is_nan.as_deref() };
        let line = self.line;
        let Some(melt) = &mut self.melt else { return };
        let took = is_told && melt.take(texts, line, is_whole, into);
        if is_whole && is_told {
            into.unterminated = true;
            return;
        }
        self.fault(FaultKind::Truncated, "the file ends inside a record", into);
        if scanned.has_bad && !took {
            self.fault(FaultKind::Unparsable, LOST, into);
        }
    }
}

const LOST: &str = "the record that the end cuts holds a NaN or Inf, but its step or run was not read";

/// Equal for equal bytes, and seldom for others: its length and both ends. It is asked for once a file, and made once a
/// record.
#[inline]
fn brief(bytes: &[u8]) -> u64 {
    let word = |word: Option<&[u8; 8]>| word.map_or(0, |word| u64::from_le_bytes(*word));
    let ends = if bytes.len() < 8 {
        bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
    } else {
        word(bytes.first_chunk()) ^ word(bytes.last_chunk()).rotate_left(29)
    };
    ends ^ (bytes.len() as u64).rotate_left(48)
}

/// Whether a cell that begins so ends at the next delimiter and is filled, whatever it holds: no quote, no word for
/// "missing", no call that may hold a comma.
#[inline(always)]
fn is_plain(first: u8, second: Option<&u8>) -> bool {
    match first {
        b'-' => second.is_some_and(u8::is_ascii_digit),
        b'"' | b' ' | b'\t' | b'<' | b'N' | b'n' | b't' | b'T' | b'A' | b'a' => false,
        _ => true,
    }
}

/// The integer that begins at `at`, and the index after it; `None` beyond 18 digits.
#[inline(always)]
fn whole_at(bytes: &[u8], at: usize) -> Option<(i64, usize)> {
    let negative = bytes.get(at) == Some(&b'-');
    let begin = at + usize::from(negative);
    let (mut value, mut stop) = (0i64, begin);
    while let Some(digit) = bytes.get(stop).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
        if stop - begin >= 18 {
            return None;
        }
        value = value * 10 + i64::from(digit);
        stop += 1;
    }
    (stop > begin).then_some((if negative { -value } else { value }, stop))
}

/// Gives one whole cell to the builder.
fn give(
    planned: &mut Planned,
    cell: &Cell,
    bytes: &[u8],
    delimiter: Delimiter,
    scratch: &mut Vec<u8>,
    scanned: &mut Scanned,
    into: &mut Builder<'_>,
) {
    let content = cell.content(bytes, scratch).trim_ascii();
    if content.is_empty() {
        return;
    }
    if planned.is_step
        && planned.want != Want::Note
        && let Some((step, stop)) = whole_at(content, 0)
        && stop == content.len()
    {
        scanned.blank = false;
        scanned.has_number = true;
        into.whole_step(planned.id, step);
        return;
    }
    let mut parsed = parse_text_value(content);
    if parsed == numbers::Cell::Text && delimiter == Delimiter::Byte(b';') {
        parsed = decimal_comma(content).map_or(parsed, numbers::Cell::Value);
    }
    if parsed == numbers::Cell::Text && planned.want != Want::Note && memchr(0, content).is_some() {
        // A crash left them, or UTF-16 was appended to bytes of another encoding.
        let rest = without_nul(content);
        parsed = parse_text_value(&rest);
        scanned.has_nul = true;
        if planned.is_step
            && let Some((step, stop)) = whole_at(&rest, 0)
            && stop == rest.len()
        {
            scanned.blank = false;
            scanned.has_number = true;
            into.whole_step(planned.id, step);
            return;
        }
        if !matches!(parsed, numbers::Cell::Value(_)) {
            scanned.lost_to_nul = true;
            parsed = numbers::Cell::Text;
        }
    }
    match parsed {
        numbers::Cell::Missing => return,
        numbers::Cell::Value(value) => {
            scanned.has_number = true;
            if planned.want == Want::Note {
                into.filled(planned.id, planned.looks < LOOKS);
            } else {
                scanned.has_bad |= !planned.is_step && !value.is_finite();
                into.number(planned.id, value);
            }
        }
        numbers::Cell::Text if planned.want == Want::Note => into.filled(planned.id, false),
        numbers::Cell::Text => {
            into.text(planned.id, &String::from_utf8_lossy(content));
        }
    }
    planned.looks = planned.looks.saturating_add(1);
    scanned.blank = false;
}

/// What a cell holds besides NUL bytes, without the quotes that these kept from being seen.
fn without_nul(content: &[u8]) -> Vec<u8> {
    let rest: Vec<u8> = content.iter().copied().filter(|byte| *byte != 0).collect();
    let rest = rest.trim_ascii();
    let quoted = rest.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    quoted.unwrap_or(rest).trim_ascii().to_vec()
}

/// A number with a comma for its point, as spreadsheets write beside semicolons.
fn decimal_comma(content: &[u8]) -> Option<f64> {
    let comma = memchr(b',', content)?;
    if content.len() > 64 || memchr(b'.', content).is_some() {
        return None;
    }
    let mut number = content.to_vec();
    number[comma] = b'.';
    parse_f64(&number)
}

/// The NaN or infinity that a word reads as although its end was not seen, or that it is on its way to.
pub(super) fn open_word(text: &[u8]) -> Option<f64> {
    let text = text.trim_ascii();
    if parse_f64(text).is_some() {
        return None;
    }
    if let numbers::Cell::Value(value) = parse_text_value(text) {
        return Some(value).filter(|value| !value.is_finite());
    }
    let is_negative = text.starts_with(b"-");
    let word = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    let begins = |whole: &[u8]| whole.len() >= word.len() && whole[..word.len()].eq_ignore_ascii_case(word);
    if word.len() > 3 && begins(b"infinity") {
        return Some(if is_negative { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    let is_payload =
        word.len() > 3 && word[..3].eq_ignore_ascii_case(b"nan") && word[3] == b'(' && !word.contains(&b')');
    is_payload.then_some(f64::NAN)
}

impl StreamDecoder for Table<'_> {
    fn feed(&mut self, window: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> Progress {
        let mut used = 0;
        if at == 0 && is_git_lfs_pointer(window) {
            self.is_pointer = true;
            return Progress::Used(window.len());
        }
        while let Some(first) = window.get(used) {
            let rest = &window[used..];
            let after_return = std::mem::take(&mut self.after_return);
            let in_nul = std::mem::take(&mut self.in_nul);
            match first {
                b'\n' if after_return => {
                    used += 1;
                    continue;
                }
                _ if self.skipping => {
                    let Some(stop) = memchr2(b'\n', b'\r', rest) else { return Progress::Used(window.len()) };
                    self.skipping = false;
                    used += self.end_line(rest, stop);
                    continue;
                }
                b'\n' | b'\r' => {
                    used += self.end_line(rest, 0);
                    continue;
                }
                // Of a block that was appended, or of the file.
                0xEF if rest.starts_with(BYTE_ORDER_MARK) => {
                    used += BYTE_ORDER_MARK.len();
                    continue;
                }
                0xEF if !end && BYTE_ORDER_MARK.starts_with(rest) => return Progress::Used(used),
                // A file system that crashed leaves them before what is appended later.
                0 => {
                    if !in_nul {
                        self.fault(FaultKind::Stray, "a run of NUL bytes", into);
                    }
                    self.in_nul = true;
                    used += rest.iter().take_while(|byte| **byte == 0).count();
                    continue;
                }
                _ => {}
            }
            if self.columns.is_empty() && self.seeker.gave_up() {
                return Progress::Used(window.len());
            }
            let step = if self.columns.is_empty() { self.seek(rest, into) } else { self.row(rest, end, into) };
            match step {
                Step::Used(length) => used += length,
                Step::More if end => {
                    self.cut(rest, into);
                    return Progress::Used(window.len());
                }
                Step::More if rest.len() >= into.limits().record => {
                    let detail = format!("the line is longer than {} bytes and was passed over", rest.len());
                    self.fault(FaultKind::Limit, &detail, into);
                    self.skipping = true;
                }
                Step::More => return Progress::Used(used),
            }
        }
        Progress::Used(used)
    }
}
