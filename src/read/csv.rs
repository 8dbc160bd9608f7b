#![doc = include_str!("csv.md")]

mod export;
mod header;
#[cfg(feature = "tables")]
mod melt;
mod runs;
#[cfg_attr(not(feature = "tables"), allow(dead_code, reason = "only wide tables are read then"))]
mod shape;
mod table;

use std::collections::{HashMap, HashSet};

use memchr::memchr2;

use self::export::JsonChart;
use self::header::{Known, Line, Seeker};
use self::shape::Long;
use self::table::Table;
use super::{About, Confidence, Reader, Rejected, Request, Session, Tracker, is_git_lfs_pointer};
use crate::model::{Format, PlaceUnit, Recording, Role, Source, roles};
use crate::wire::csv::{Quotes, cells, line_end};
use crate::wire::numbers::{Cell, parse_text_value};
use crate::wire::utf16;

/// The reader of delimited text.
pub struct Csv;

impl Reader for Csv {
    fn format(&self) -> Format {
        Format::Csv
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "*.csv, *.tsv: a header with a step column and numbers, or a known metric, of one run or several; long \
                    tables (a metric's name and value a row); charts of W&B, TensorBoard's CSV and JSON of one chart",
            nonfinite: "nan, NaN, inf, -Infinity, 1.#QNAN, tensor(nan) ..., also quoted",
            missing: "empty cell, NA, N/A, None, null, -, a row that is too short",
            not_read: "cells beyond the header; text, units, percent signs, booleans; tables without a header",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[
            Tracker {
                name: "Lightning CSVLogger",
                version: "built",
                files: "lightning_logs/version_<n>/metrics.csv",
                nonfinite: "nan, inf, -inf",
                missing: "empty cell",
                not_read: "hparams.yaml",
            },
            Tracker {
                name: "Keras CSVLogger",
                version: "3.15.1",
                files: "the user's file, a row an epoch",
                nonfinite: "nan, inf, -inf",
                missing: "NA for keys that are absent in a later epoch",
                not_read: "gradient norms: none are logged",
            },
            Tracker {
                name: "Stable-Baselines3",
                version: "2.9.2",
                files: "progress.csv",
                nonfinite: "nan, inf",
                missing: "empty cell",
                not_read: "log.txt; gradient norms: none are logged",
            },
            Tracker {
                name: "RLlib, Ray Tune",
                version: "built",
                files: "progress.csv",
                nonfinite: "nan, inf",
                missing: "empty cell",
                not_read: "keys that the first result lacks: the file never has them (result.json has)",
            },
            Tracker {
                name: "W&B chart export",
                version: "built",
                files: "wandb_export_*.csv",
                nonfinite: "NaN, Infinity, in quotes",
                missing: "empty cell",
                not_read: "points that the chart does not show: it samples",
            },
            Tracker {
                name: "TensorBoard's CSV and JSON of a chart",
                version: "built",
                files: "run-<run>-tag-<tag>.csv, *.json",
                nonfinite: "NaN, Infinity",
                missing: "no row",
                not_read: "points that the page does not load: it samples 1,000",
            },
        ]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        let name = file_name(path);
        if USUAL_NAMES.contains(&name.as_str()) {
            // Where the head cannot be read, the name alone says that a recording is missing.
            return Confidence::Likely;
        }
        let ends = |suffix: &&str| name.ends_with(*suffix);
        if [".csv", ".tsv", ".json"].iter().any(ends) { Confidence::Maybe } else { Confidence::No }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        let name = file_name(path);
        let is_table = name.ends_with(".csv") || name.ends_with(".tsv");
        if is_git_lfs_pointer(head) {
            // A pointer has no cells; only the name says what it stands for.
            return if is_table { Confidence::Likely } else { Confidence::No };
        }
        let head = utf16::head_as_utf8(head);
        if name.ends_with(".json") {
            return if export::is_json_chart(&head) { Confidence::Likely } else { Confidence::No };
        }
        let is_usual = USUAL_NAMES.contains(&name.as_str());
        if head.trim_ascii().is_empty() {
            return if is_usual { Confidence::Likely } else { Confidence::No };
        }
        match glance(&head, is_table) {
            Some(glance) if glance.is_recording(is_table, is_usual) => Confidence::Likely,
            // Its columns may be called as only the user knows.
            _ if is_table => Confidence::Maybe,
            _ => Confidence::No,
        }
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        // A source of this format is one file.
        let Some(part) = source.parts.first() else { return Ok(Vec::new()) };
        if export::is_json(&part.name) {
            // It is one line.
            let mut builder = session.builder(Format::Csv, PlaceUnit::Byte);
            builder.begin_part(0);
            let mut decoder = JsonChart::new(&part.name);
            session.stream_text(part, &mut decoder, &mut builder)?;
            if decoder.triples == 0 && decoder.broken > 0 {
                let detail = "no triple of wall time, step and value in it";
                return Err(Rejected::unreadable("not-a-recording", detail));
            }
            return Ok(vec![builder.finish()]);
        }
        let mut builder = session.builder(Format::Csv, PlaceUnit::Line);
        builder.begin_part(0);
        let mut decoder = Table::new(session.request, session.limits, &part.path);
        session.stream_text(part, &mut decoder, &mut builder)?;
        if decoder.is_pointer {
            return Err(Rejected::unreadable("git-lfs-pointer", "a Git LFS pointer in place of the file"));
        }
        if !decoder.has_header() && (decoder.cut_header || decoder.passed() > 0) {
            return Err(match decoder.passed() {
                0 => Rejected::unreadable("cut-header", "the file ends inside its header"),
                _ => Rejected::unreadable("not-a-recording", "no line names a step or a known metric"),
            });
        }
        Ok(decoder.finish(builder))
    }
}

/// Names under which trainers are known to write tables (FORMATS F): an empty file of such a name is a recording with
/// nothing in it.
const USUAL_NAMES: &[&str] = &[
    "metrics.csv",
    "progress.csv",
    "measurements.csv",
    "log.csv",
    "logs.csv",
    "train_log.csv",
    "training_log.csv",
    "training.csv",
    "history.csv",
    "results.csv",
    "scalars.csv",
    "loss.csv",
    "loss.tsv",
    "metrics.tsv",
    "log.tsv",
    "progress.tsv",
];

fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase()
}

/// What the first rows of a table hold.
#[derive(Debug, Default)]
struct Glance {
    /// A column is named like a step, and a metric is one that the checks know.
    has_step: bool,
    has_metric: bool,
    rows: usize,
    /// Rows with as many cells as the header.
    whole_rows: usize,
    /// The step column holds numbers, and so does another that is no mere row number; a metric is a number or missing.
    step_is_number: bool,
    other_is_number: bool,
    metric_is_number: bool,
    /// Names of runs or models, told apart, and the rows that have one.
    labels: HashSet<Vec<u8>>,
    labelled: usize,
    /// The newest step of each run, and how many rows of a run seen before were above and not above it.
    runs: HashMap<Vec<u8>, f64>,
    follows: usize,
    repeats: usize,
    /// Smallest and largest step.
    steps: Option<(f64, f64)>,
    /// A row is one value of one metric.
    is_long: bool,
    /// The newest step, and how many were above and below the one before them.
    step: Option<f64>,
    rises: usize,
    falls: usize,
}

impl Glance {
    /// `is_table`: the name says that it is a table. Else the rows must say so.
    fn is_recording(&self, is_table: bool, is_usual: bool) -> bool {
        if self.is_of_results() {
            return false;
        }
        if self.rows == 0 {
            return is_table && (self.has_metric || (self.has_step && is_usual));
        }
        let has_numbers = (self.has_step && self.step_is_number && self.other_is_number)
            || (self.has_metric && self.metric_is_number);
        has_numbers && (is_table || (self.whole_rows * 2 > self.rows && self.other_is_number))
    }
}

impl Glance {
    /// A row a run or model (a leaderboard, the list of a project's runs), not a row a step.
    fn is_of_results(&self) -> bool {
        let rises = self.rises > 0 && self.falls == 0;
        // Rows of a run follow each other by step; or all runs are at their first one.
        let follow = self.follows > self.repeats;
        let begin = !self.runs.is_empty()
            && self.steps.is_some_and(|(low, high)| low == high && (0.0..=1.0).contains(&low))
            && self.repeats == 0;
        let is_apart = self.labels.len() >= 2 && self.labels.len() * 2 > self.labelled;
        is_apart && !self.is_long && !rises && !follow && !begin
    }

    /// Later rows may tell what these do not.
    fn is_open(&self) -> bool {
        self.rows < ROWS || (!self.runs.is_empty() && self.is_of_results())
    }
}

/// Rows looked at, unless later ones tell whether a run has more than one.
const ROWS: usize = 32;
/// Cells looked at in a line of a head.
const CELLS: usize = 65_536;

/// Looks at the first rows of a head, the last of which may be cut.
fn glance(head: &[u8], is_table: bool) -> Option<Glance> {
    let mut rest = head.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(head);
    let (mut seeker, mut header) = (Seeker::default(), None);
    let mut glance = Glance::default();
    let mut uses: Vec<Use> = Vec::new();
    while !rest.is_empty() && glance.is_open() && !seeker.gave_up() {
        let end = memchr2(b'\n', b'\r', rest);
        let line = &rest[..end.unwrap_or(rest.len())];
        rest = end.map_or(&[][..], |end| &rest[end + line_end(rest, end)..]);
        let line = &line[line.iter().take_while(|byte| **byte == 0).count()..];
        if line.trim_ascii().is_empty() {
            continue;
        }
        let Some(delimiter) = header else {
            let (found, is_row) = match seeker.line(line, Known(None), CELLS) {
                Line::Passed => continue,
                Line::Header(found) => (found, false),
                Line::Row(found) => (found, true),
            };
            header = Some(found.delimiter);
            uses = found.names.iter().map(|name| Use::of(name)).collect();
            let request = Request::default();
            if let Some(run) = shape::run_column(&found.names, &request) {
                uses[run] = Use::Run;
            }
            if let Some(long) = Long::of(&found.names, &request) {
                glance.is_long = true;
                uses[long.name] = Use::Index;
                uses[long.value] = Use::Other;
            }
            glance.has_step = uses.contains(&Use::Step);
            glance.has_metric = uses.contains(&Use::Metric);
            if is_row {
                glance.row(line, found.delimiter, &uses);
            }
            continue;
        };
        // A line that the head cuts says nothing, unless it is the only one.
        if end.is_some() || glance.rows == 0 {
            glance.row(line, delimiter, &uses);
        }
        if is_table
            && !uses.iter().any(|usage| matches!(usage, Use::Label | Use::Run))
            && glance.is_recording(true, false)
        {
            break;
        }
    }
    header.map(|_| glance)
}

/// What a column's name makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Step,
    Metric,
    /// A number of the row or of what it is about.
    Index,
    /// The name of a run or model.
    Label,
    /// Which run a row is of.
    Run,
    Other,
}

/// Names of columns that tell rows of different runs or models apart.
const LABELS: &[&str] = &[
    "name",
    "model",
    "model_name",
    "run",
    "run_name",
    "run name",
    "run_id",
    "run id",
    "id",
    "experiment",
    "experiment_name",
];

impl Use {
    fn of(name: &str) -> Self {
        if roles::step_rank(name).is_some() {
            return Self::Step;
        }
        // Rewards, rates, counts of NaN stand in tables of other things too: without a step they are no sign of a training.
        let is_sign = |role| {
            use Role::{EvalLoss, GradNorm, GradNormPostClip, LayerGradNorm, Loss, LossPart};
            matches!(role, GradNorm | GradNormPostClip | LayerGradNorm | Loss | LossPart | EvalLoss)
        };
        if roles::role_of(name).is_some_and(is_sign) {
            return Self::Metric;
        }
        let lower = name.to_ascii_lowercase();
        if LABELS.contains(&lower.as_str()) {
            return Self::Label;
        }
        let is_index = ["", "idx", "index", "row", "uid", "no", "no.", "#"].contains(&lower.as_str());
        if is_index || lower.ends_with("_id") { Self::Index } else { Self::Other }
    }
}

impl Glance {
    fn row(&mut self, line: &[u8], delimiter: crate::wire::csv::Delimiter, uses: &[Use]) {
        let (mut count, mut scratch) = (0, Vec::new());
        let (mut step, mut label, mut run) = (None, None, None);
        for (cell, usage) in cells(line, delimiter, Quotes::Rfc4180).zip(uses) {
            count += 1;
            let content = cell.content(line, &mut scratch).trim_ascii();
            let mut value = parse_text_value(content);
            let is_fraction = |content: &[u8]| {
                let digits = content.iter().take_while(|byte| byte.is_ascii_digit()).count();
                digits > 0 && matches!(content.get(digits), Some(b'/' | b','))
            };
            if value == Cell::Text && is_fraction(content) {
                // `10/438`, and a decimal comma.
                value = Cell::Value(0.0);
            }
            let is_number = matches!(value, Cell::Value(_));
            match usage {
                Use::Step => {
                    self.step_is_number |= is_number;
                    step = step.or(if let Cell::Value(value) = value { Some(value) } else { None });
                }
                Use::Metric => {
                    self.metric_is_number |= value != Cell::Text;
                    self.other_is_number |= is_number;
                }
                Use::Index => {}
                Use::Label if value == Cell::Text => label = label.or(Some(content.to_vec())),
                Use::Label => {}
                Use::Run if value != Cell::Missing => {
                    run = Some(content.to_vec());
                    label = label.or(Some(content.to_vec()));
                }
                Use::Run => {}
                Use::Other => self.other_is_number |= is_number,
            }
        }
        if let Some(label) = label {
            self.labels.insert(label);
            self.labelled += 1;
        }
        if let (Some(run), Some(step)) = (run, step)
            && let Some(before) = self.runs.insert(run, step)
        {
            self.follows += usize::from(step > before);
            self.repeats += usize::from(step <= before);
        }
        if let Some(step) = step {
            let (low, high) = self.steps.unwrap_or((step, step));
            self.steps = Some((low.min(step), high.max(step)));
            self.rises += usize::from(self.step.is_some_and(|before| step > before));
            self.falls += usize::from(self.step.is_some_and(|before| step < before));
            self.step = Some(step);
        }
        self.rows += 1;
        self.whole_rows += usize::from(count == uses.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FaultKind, Limits, Signal};
    use crate::read::TableColumns;
    use crate::read::testing::Memory;
    use proptest::prelude::*;

    fn read_with(name: &str, text: impl Into<Vec<u8>>, chunk: usize, limits: &Limits) -> Result<Recording, Rejected> {
        let mut files = Memory::new([(name, text)]);
        files.chunk = chunk;
        let source =
            Source { format: Format::Csv, path: name.into(), directory: String::new(), parts: vec![files.part(name)] };
        let request = Request { everything: true, ..Request::default() };
        let mut found = files.read_with(&Csv, &source, &request, limits)?;
        Ok(found.remove(0))
    }

    fn read_runs(text: impl Into<Vec<u8>>, request: &Request, limits: &Limits) -> Vec<Recording> {
        let files = Memory::new([("a.csv", text)]);
        let source = Source {
            format: Format::Csv,
            path: "a.csv".into(),
            directory: String::new(),
            parts: vec![files.part("a.csv")],
        };
        files.read_with(&Csv, &source, request, limits).unwrap()
    }

    fn read_all(text: impl Into<Vec<u8>>) -> Vec<Recording> {
        read_runs(text, &Request { everything: true, ..Request::default() }, &Limits::default())
    }

    type Named = (Option<String>, Vec<(i64, String)>);

    /// Id and gradient norms of each run.
    fn by_run(recordings: &[Recording]) -> Vec<Named> {
        recordings.iter().map(|recording| (recording.run_id.clone(), norms(recording))).collect()
    }

    fn of_run(id: &str, rows: &[(i64, &str)]) -> Named {
        (Some(id.to_owned()), want(rows))
    }

    #[test]
    fn rows_go_to_their_runs() {
        let contiguous = "run_id,step,grad_norm\na,0,1\na,1,2\n,2,3\nb,0,nan\nb,1,5\n,2,6\n";
        let interleaved = "run_id,step,grad_norm\na,0,1\nb,0,nan\na,1,2\nb,1,5\na,2,3\nb,2,6\n";
        let quoted =
            "step,note,run_id,grad_norm\n0,\"x\ny\",\"a\",1\n0,,b,nan\n1,\"1,5\",a,2\n1,,b,5\n2,,a,3\n2,,b,6\n";
        let expected = [of_run("a", &[(0, "1"), (1, "2"), (2, "3")]), of_run("b", &[(0, "NaN"), (1, "5"), (2, "6")])];
        for text in [contiguous, interleaved, quoted] {
            let recordings = read_all(text);
            assert_eq!(by_run(&recordings), expected, "{text}");
            assert!(recordings.iter().all(|recording| recording.faults.is_empty() && recording.records == 3));
            let axis = &recordings[1].axis;
            assert_eq!((axis.step_name.as_deref(), axis.attempts.len()), (Some("step"), 1));
        }
        // Places are lines of the file.
        let recordings = read_all(interleaved);
        assert_eq!(recordings[1].part_starts, [(0, 0)]);
        let Signal::Kept(kept) = &recordings[1].series[0].signal else { panic!() };
        assert_eq!(kept.places.get(2), Some(7));
    }

    #[test]
    fn runs_under_headers_of_their_own() {
        let text = "run,step,grad_norm\na,0,1\nb,0,2\nrun,step,loss,grad_norm\na,1,9,3\nb,1,9,inf\nc,0,9,5\nrun,step,grad_norm\n\
                    b,2,6\na,2,7\n";
        let expected = [
            of_run("a", &[(0, "1"), (1, "3"), (2, "7")]),
            of_run("b", &[(0, "2"), (1, "inf"), (2, "6")]),
            of_run("c", &[(0, "5")]),
        ];
        assert_eq!(by_run(&read_all(text)), expected);
    }

    #[test]
    fn the_end_cuts_a_row_of_one_run() {
        let text = "run_id,step,grad_norm\na,0,1\nb,0,2\na,1,3\nb,1,";
        for (tail, second) in [("", vec![(0, "2")]), ("nan", vec![(0, "2"), (1, "NaN")]), ("5", vec![(0, "2")])] {
            let found = by_run(&read_all(format!("{text}{tail}")));
            assert_eq!(found, [of_run("a", &[(0, "1"), (1, "3")]), of_run("b", &second)], "{tail}");
        }
        // A run's name that the end may have cut is none, unless it is that of the row before.
        let text = "step,grad_norm,run_id\n0,1,a1\n0,2,b1\n1,nan,";
        for (tail, second, kind) in [
            ("b1", vec![(0, "2"), (1, "NaN")], None),
            ("b1\n", vec![(0, "2"), (1, "NaN")], None),
            ("b", vec![(0, "2")], Some(FaultKind::Unparsable)),
            ("a1", vec![(0, "2")], Some(FaultKind::Unparsable)),
            ("", vec![(0, "2")], Some(FaultKind::Unparsable)),
        ] {
            let recordings = read_all(format!("{text}{tail}"));
            assert_eq!(by_run(&recordings), [of_run("a1", &[(0, "1")]), of_run("b1", &second)], "{tail}");
            assert_eq!(recordings[1].faults.last().map(|fault| fault.kind), kind, "{tail}");
        }
    }

    #[test]
    fn what_names_no_run() {
        // One run, and lines that are no rows: nothing to tell apart.
        let recordings = read_all("run_id,step,grad_norm\na,0,1\nTraceback,most recent\na,1,nan\n");
        assert_eq!(by_run(&recordings), [(None, want(&[(0, "1"), (1, "NaN")]))]);
        assert_eq!(recordings[0].faults.len(), 1);
        // The user's column goes before the usual names.
        let table = TableColumns { run: Some("model".into()), ..TableColumns::default() };
        let request = Request { table, everything: true, ..Request::default() };
        let text = "run_id,model,step,grad_norm\na,x,0,1\na,y,0,2\n";
        let found = read_runs(text, &request, &Limits::default());
        assert_eq!(by_run(&found), [of_run("x", &[(0, "1")]), of_run("y", &[(0, "2")])]);
        let limits = Limits { runs: 2, ..Limits::default() };
        let text = "run,step,grad_norm\na,0,1\nb,0,2\nc,0,nan\n,1,nan\nd,0,nan\nb,1,3\n";
        let found = read_runs(text, &Request { everything: true, ..Request::default() }, &limits);
        assert_eq!(by_run(&found), [of_run("a", &[(0, "1")]), of_run("b", &[(0, "2"), (1, "3")])]);
        assert_eq!(faults(&found[0]), [(FaultKind::Limit, 4)]);
    }

    #[cfg(feature = "tables")]
    #[test]
    fn long_tables_by_step_and_by_metric() {
        let by_step = "run_id,step,metric,value\na,0,grad_norm,1\na,0,loss,3\na,1,grad_norm,nan\na,1,loss,2\nb,0,grad_norm,5\n\
                       b,0,loss,4\nb,1,grad_norm,6\nb,1,loss,\n";
        let by_metric = "step,name,value,run\n0,grad_norm,1,a\n1,grad_norm,NaN,a\n0,grad_norm,5,b\n1,grad_norm,6,b\n0,loss,3,a\n\
                         1,loss,2,a\n0,loss,4,b\n";
        let expected = [of_run("a", &[(0, "1"), (1, "NaN")]), of_run("b", &[(0, "5"), (1, "6")])];
        for (text, line) in [(by_step, 4), (by_metric, 3)] {
            let recordings = read_all(text);
            assert_eq!(by_run(&recordings), expected, "{text}");
            assert_eq!(points(&recordings[0], "loss"), want(&[(0, "3"), (1, "2")]), "{text}");
            let norm = recordings[0].series.iter().find(|series| series.name == "grad_norm").unwrap();
            let Signal::Kept(kept) = &norm.signal else { panic!() };
            assert_eq!(kept.places.get(1), Some(line), "{text}");
        }
        let one = read_all("step,variable,value\n0,grad_norm,1\n0,other,x\n1,grad_norm,inf\n");
        assert_eq!(by_run(&one), [(None, want(&[(0, "1"), (1, "inf")]))]);
        assert_eq!(read_all("step,name,value\n")[0].records, 0);
    }

    #[cfg(feature = "tables")]
    #[test]
    fn exports_of_mlflow() {
        let text = "key,value,timestamp,step,is_nan,run_uuid\n\
                    grad_norm,0.5,1700000000000,0,False,a\ngrad_norm,0.0,1700000001000,1,True,a\n\
                    grad_norm,1.7976931348623157e308,1700000002000,2,0,a\ngrad_norm,-1.7976931348623157e+308,1700000003000,3,f,a\n\
                    loss,2,1700000000000,0,False,a\n";
        let found = read_all(text);
        let expected = want(&[(0, "0.5"), (1, "NaN"), (2, "inf"), (3, "-inf")]);
        assert_eq!(by_run(&found), [(None, expected.clone())]);
        assert_eq!((found[0].started, found[0].ended), (Some(1_700_000_000_000), Some(1_700_000_003_000)));
        // What the end cuts before it says whether it is NaN does not count; an infinity does, if all else is known.
        for (tail, rows) in [
            ("grad_norm,inf,1700000004000,4,False,a", 5),
            ("grad_norm,inf,1700000004000,4,False,", 4),
            ("grad_norm,0.5,1700000004000,4,Fal", 4),
        ] {
            assert_eq!(norms(&read_all(format!("{text}{tail}"))[0]).len(), rows, "{tail}");
        }
    }

    #[cfg(feature = "tables")]
    #[test]
    fn charts_of_wandb() {
        let text = "\"Step\",\"a - b - grad_norm\",\"a - b - grad_norm__MIN\",\"a - b - grad_norm__MAX\",\"Group: c - grad_norm\",\
                    \"Group: c - grad_norm__MIN\",\"Group: c - grad_norm__MAX\"\n\
                    \"0\",\"1\",\"1\",\"1\",\"\",\"\",\"\"\n\"10\",\"2\",\"NaN\",\"3\",\"5\",\"4\",\"6\"\n";
        let found = read_all(text);
        assert_eq!(by_run(&found), [of_run("a - b", &[(0, "1"), (10, "2")]), of_run("Group: c", &[(10, "5")])]);
        assert_eq!(points(&found[0], "grad_norm__MIN"), want(&[(0, "1"), (10, "NaN")]));
        assert_eq!(points(&found[1], "grad_norm__MAX"), want(&[(10, "6")]));
        assert!(found[0].series.iter().all(|series| series.role == Some(Role::GradNorm)));
        // One run needs no id; an axis of another name counts steps, one of times does not.
        let one = read_all("\"my axis\",\"a - loss\",\"a - grad_norm\"\n\"10\",\"1\",\"1\"\n\"20\",\"1\",\"inf\"\n");
        assert_eq!(by_run(&one), [(None, want(&[(10, "1"), (20, "inf")]))]);
        assert_eq!(one[0].axis.step_name.as_deref(), Some("my axis"));
        let one = read_all("\"Relative Time (Process)\",\"a - grad_norm\"\n\"10.5\",\"1\"\n\"20\",\"inf\"\n");
        assert_eq!(by_run(&one), [(None, want(&[(0, "1"), (1, "inf")]))]);
        assert_eq!(one[0].axis.step_name, None);
        let cut = read_all(format!("{text}\"20\",\"7\",\"7\",\"NaN\",\"7"));
        assert_eq!(norms(&cut[0]), want(&[(0, "1"), (10, "2"), (20, "7")]));
        assert_eq!(norms(&cut[1]), want(&[(10, "5")]));
    }

    fn read(text: impl Into<Vec<u8>>) -> Recording {
        read_with("metrics.csv", text, usize::MAX, &Limits::default()).unwrap()
    }

    /// Steps and values; NaN as its text, so that it can be compared.
    fn points(recording: &Recording, name: &str) -> Vec<(i64, String)> {
        let Some(series) = recording.series.iter().find(|series| series.name == name) else { return Vec::new() };
        let Signal::Kept(kept) = &series.signal else { panic!("{name} is not kept") };
        kept.steps.iter().zip((0..kept.values.len()).map(|row| kept.values.get(row).to_string())).collect()
    }

    fn norms(recording: &Recording) -> Vec<(i64, String)> {
        points(recording, "grad_norm")
    }

    fn want(points: &[(i64, &str)]) -> Vec<(i64, String)> {
        points.iter().map(|(step, value)| (*step, (*value).to_owned())).collect()
    }

    fn faults(recording: &Recording) -> Vec<(FaultKind, u64)> {
        recording.faults.iter().map(|fault| (fault.kind, fault.place.at)).collect()
    }

    const PLAIN: &str = "step,grad_norm,loss\n1,0.5,2.5\n2,0.25,2\n";

    #[test]
    fn delimiters_line_ends_and_marks() {
        let expected = want(&[(1, "0.5"), (2, "0.25")]);
        let spellings = [
            PLAIN.to_owned(),
            PLAIN.replace(',', "\t"),
            PLAIN.replace(',', ";").replace('.', ","),
            PLAIN.replace(',', " | "),
            PLAIN.replace(',', "   "),
            PLAIN.replace(',', " , "),
            PLAIN.replace('\n', "\r\n"),
            PLAIN.replace('\n', "\r"),
            PLAIN.replace('\n', "\r\r\n"),
            format!("\u{feff}{PLAIN}"),
            format!("# a comment\n\n# loss, of run 7\n{PLAIN}"),
            format!("# {}", PLAIN.replace(',', " ")),
            format!("\n{}\n\n", PLAIN.replace('\n', "\n\n")),
            PLAIN.replace("0.5", "\"0.5\"").replace("step", "\"step\""),
        ];
        for text in spellings {
            let recording = read(text.as_str());
            assert_eq!(norms(&recording), expected, "{text:?}");
            assert_eq!(points(&recording, "loss"), want(&[(1, "2.5"), (2, "2")]), "{text:?}");
            assert!(recording.faults.is_empty() && !recording.unterminated, "{text:?}: {:?}", recording.faults);
            assert_eq!(recording.records, 2, "{text:?}");
        }
        let utf16: Vec<u8> = PLAIN.encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert_eq!(norms(&read(utf16)), expected);
    }

    #[test]
    fn missing_is_not_nan() {
        for missing in ["", " ", "NA", "N/A", "None", "null", "-", "<NA>", "\"\"", "\"NA\""] {
            let recording = read(format!("step,grad_norm,loss\n1,{missing},1\n2,nan,1\n3,{missing},nan\n"));
            assert_eq!(norms(&recording), want(&[(2, "NaN")]), "{missing:?}");
            let series = recording.series.iter().find(|series| series.name == "grad_norm").unwrap();
            assert_eq!(series.gaps, 2, "{missing:?}");
        }
        for text in ["0.5%", "12 s", "true", "0.5abc", "1 2", "\"{\"\"a\"\": 1}\"", "1,000"] {
            let text = if text == "1,000" { "\"1,000\"" } else { text };
            let recording = read(format!("step,grad_norm\n1,{text}\n2,0.5\n"));
            assert_eq!(norms(&recording), want(&[(2, "0.5")]), "{text:?}");
            assert_eq!(recording.series[0].gaps, 0, "{text:?}: the cell was filled");
        }
    }

    #[test]
    fn every_spelling_of_a_value() {
        for (text, value) in [
            ("NaN", "NaN"),
            ("-nan", "NaN"),
            ("1.#QNAN", "NaN"),
            ("\"nan\"", "NaN"),
            (" inf ", "inf"),
            ("-Infinity", "-inf"),
            ("tensor(0.5)", "0.5"),
            ("tensor(nan, device='cuda:0')", "NaN"),
            ("\"tensor(0.5, device='cuda:0')\"", "0.5"),
            ("np.float64(0.5)", "0.5"),
            ("5e-1", "0.5"),
            ("+.5", "0.5"),
            ("1e999", "inf"),
        ] {
            let recording = read(format!("step,grad_norm,loss\n1,{text},2\n"));
            assert_eq!(norms(&recording), want(&[(1, value)]), "{text:?}");
            assert_eq!(points(&recording, "loss"), want(&[(1, "2")]), "{text:?}");
        }
    }

    #[test]
    fn steps_are_exact_whole_and_sometimes_fractions_or_blank() {
        let recording = read("step,grad_norm\n9007199254740993,1\n9223372036854775807,2\n");
        assert_eq!(norms(&recording), want(&[(9_007_199_254_740_993, "1"), (i64::MAX, "2")]));
        let recording = read("step,grad_norm\n1/2046,1\n\"2/2046\",2\n,3\n4.0,4\n5.5,5\n");
        assert_eq!(norms(&recording), want(&[(1, "1"), (2, "2"), (2, "3"), (4, "4"), (5, "5")]));
        assert!(recording.axis.fractional);
        let recording = read("grad_norm,epoch,global_step\n1,0,10\n2,0,20\n");
        assert_eq!(norms(&recording), want(&[(10, "1"), (20, "2")]));
        assert_eq!(recording.axis.step_name.as_deref(), Some("global_step"));
        let recording = read("loss\n0.5\n0.25\n");
        assert_eq!(points(&recording, "loss"), want(&[(0, "0.5"), (1, "0.25")]));
    }

    #[test]
    fn headers_again_and_others() {
        let recording = read("step,grad_norm\n1,1\n2,2\nstep,grad_norm\n2,3\n");
        assert_eq!((norms(&recording), recording.records), (want(&[(1, "1"), (2, "2"), (2, "3")]), 3));
        let recording = read(",step,grad_norm\n0,1,1\n,step,grad_norm\n0,2,2\n");
        assert_eq!((norms(&recording), recording.records), (want(&[(1, "1"), (2, "2")]), 2));
        let recording = read("step,grad_norm\n1,1\nepoch,step,kl,grad_norm\n0,2,9,2\n0,3,9,3\n");
        assert_eq!(norms(&recording), want(&[(1, "1"), (2, "2"), (3, "3")]));
        assert_eq!(points(&recording, "kl"), want(&[(2, "9"), (3, "9")]));
        let recording = read("\"step\",\"a\nb\",grad_norm\n1,7,1\n\"step\",\"a\nb\",grad_norm\n2,7,2\nx,7\n");
        assert_eq!(norms(&recording), want(&[(1, "1"), (2, "2")]));
        assert_eq!(recording.series[0].name, "a\nb");
        assert_eq!(recording.records, 3);
        // Prose is no header, though it names a metric.
        let recording = read("step,grad_norm\n1,1\nresumed: new loss scale, gradient norm\n2,2\n");
        assert_eq!(norms(&recording), want(&[(1, "1"), (2, "2")]));
    }

    #[test]
    fn a_byte_order_mark_before_any_line_is_passed_over() {
        let mark = "\u{feff}";
        let block = format!("{mark}step,grad_norm\n1,1\n");
        let text = format!("{block}{}{mark}3,3\n{mark}4,nan\n", block.replace("1,1", "2,2"));
        for chunk in [1, 2, 3, 7, usize::MAX] {
            let recording = read_with("metrics.csv", text.as_str(), chunk, &Limits::default()).unwrap();
            assert_eq!(norms(&recording), want(&[(1, "1"), (2, "2"), (3, "3"), (4, "NaN")]), "{chunk}");
            assert!(recording.faults.is_empty(), "{:?}", recording.faults);
        }
    }

    #[test]
    fn names_are_trimmed_and_told_apart() {
        let recording = read(", step ,\"grad_norm\" ,x,x,x.1,x,\n0,1,0.5,1,2,3,4,5\n");
        let names: Vec<&str> = recording.series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["Unnamed: 0", "grad_norm", "x", "x.1", "x.1.1", "x.2", "Unnamed: 7"]);
        let header = format!("step,grad_norm{}\n1,2{}\n", ",a".repeat(70_000), ",1".repeat(70_000));
        let recording = read(header);
        assert_eq!(norms(&recording), want(&[(1, "2")]));
        assert_eq!(faults(&recording)[0], (FaultKind::Limit, 1));
    }

    #[test]
    fn rows_of_other_lengths() {
        let recording =
            read("step,loss,grad_norm\n1,1\n2,1,2,\n3,1,3,9\n4,1,4,9,9\nTraceback:\n  File \"a\", line 5\n,,\n5,1,5\n");
        assert_eq!(norms(&recording), want(&[(2, "2"), (3, "3"), (4, "4"), (5, "5")]));
        assert_eq!(points(&recording, "loss").len(), 5);
        assert_eq!(
            faults(&recording),
            [(FaultKind::Unparsable, 4), (FaultKind::Unparsable, 6), (FaultKind::Unparsable, 7)]
        );
        assert_eq!(recording.records, 5);
    }

    #[test]
    fn a_stray_quote_costs_its_cell() {
        let text = "step,note,grad_norm\n1,a,1\n2,\"b,2\n3,c,3\n4,d,4\n";
        let recording = read(text);
        assert_eq!(norms(&recording), want(&[(1, "1"), (2, "2"), (3, "3"), (4, "4")]));
        assert_eq!(faults(&recording), [(FaultKind::Unparsable, 3)]);
        // Two stray quotes make a pair, with text behind it.
        let recording = read("step,grad_norm,note\n1,1,\"a\n2,2,\"b\n3,3,\"c\n4,4,d\n");
        assert_eq!(norms(&recording), want(&[(1, "1"), (2, "2"), (3, "3"), (4, "4")]));
        // Text of several lines is no row of the table, and places count its lines.
        let recording = read("step,note,grad_norm\n1,\"two\nlines, here\r\nand there\",1\n2,x,nan\n");
        assert_eq!(norms(&recording), want(&[(1, "1"), (2, "NaN")]));
        let Signal::Kept(kept) = &recording.series[0].signal else { panic!("kept") };
        let places: Vec<_> = (0..kept.places.len()).filter_map(|row| kept.places.get(row)).collect();
        assert_eq!(places, [2, 5]);
        // Nor are rows inside a text that closes and leaves its record whole.
        let text = "step,note,grad_norm\n1,x,1\n2,\"first\n3,4,nan\nlast\",1.5\n3,x,1\n";
        let recording = read(text);
        assert_eq!(norms(&recording), want(&[(1, "1"), (2, "1.5"), (3, "1")]));
        assert_eq!(faults(&recording), [(FaultKind::Stray, 3)]);
        // A cut inside the text leaves its quote open, and that is a stray one once a row stands in it.
        let inside = text.find("nan").unwrap()..text.find("last").unwrap() + 5;
        for cut in (0..text.len()).filter(|cut| !inside.contains(cut)) {
            let Ok(part) = read_with("a.csv", &text[..cut], 5, &Limits::default()) else { continue };
            assert!(norms(&recording).starts_with(&norms(&part)), "{:?}", &text[..cut]);
        }
        let recording = read("step,note,grad_norm\n2,\"b,2\n3,c,3\n4,d\",4,4\n5,e,5\n");
        assert_eq!(norms(&recording), want(&[(2, "2"), (3, "3"), (4, "4"), (5, "5")]));
        // What stands before it counts, in quotes or not.
        let recording = read("step,grad_norm,note\n\"1\",\"1\",\"a\"\"\n\"2\",\"2\",\"b\"\n");
        assert_eq!(norms(&recording), want(&[(1, "1"), (2, "2")]));
        // In the header it does not swallow the file.
        let recording = read("step,\"loss,grad_norm\n1,2,1\n2,2,2\n3,2,3\n4,2,4\n5,2,5\n");
        assert_eq!(norms(&recording).len(), 5);
        assert_eq!(faults(&recording), [(FaultKind::Unparsable, 1)]);
    }

    #[test]
    fn stray_bytes_cost_their_cell_or_nothing() {
        let recording = read(b"step,loss,grad_norm\n1,1,1\n\0\0\0\n\0\0\x002,1,2\n3,\0\0,3\n4,1,4\n".to_vec());
        assert_eq!(norms(&recording), want(&[(1, "1"), (2, "2"), (3, "3"), (4, "4")]));
        assert_eq!(faults(&recording), [(FaultKind::Stray, 3), (FaultKind::Stray, 4), (FaultKind::Unparsable, 5)]);
        // What is left without them is read.
        let recording = read(b"step,loss,grad_norm\n1,1,\0nan\n\x002\0,1,n\0an\n3,1,\"1\0\"\n4,1,a\0\n".to_vec());
        assert_eq!(norms(&recording), want(&[(1, "NaN"), (2, "NaN"), (3, "1")]));
        let kinds = [(FaultKind::Stray, 2), (FaultKind::Stray, 3), (FaultKind::Stray, 3), (FaultKind::Stray, 4)];
        assert_eq!(faults(&recording)[..4], kinds);
        assert_eq!(faults(&recording)[4..], [(FaultKind::Unparsable, 5)]);
        // UTF-16 appended to UTF-8, with and without a last line end.
        for order in [u16::to_le_bytes, u16::to_be_bytes] {
            for (tail, last) in [("3,\"1\",nan\n4,1,0.5\n", "0.5"), ("3,1,nan\r\n4,1,inf", "inf")] {
                let mut text = b"step,loss,grad_norm\n1,1,1\n2,1,1\n".to_vec();
                text.extend(tail.encode_utf16().flat_map(order));
                let recording = read(text);
                assert_eq!(norms(&recording), want(&[(1, "1"), (2, "1"), (3, "NaN"), (4, last)]), "{tail:?}");
            }
        }
        let recording = read(b"step,\xff\xfe,grad_norm\n1,\xff,1\n".to_vec());
        assert_eq!(norms(&recording), want(&[(1, "1")]));
    }

    #[test]
    fn the_last_cell_counts_if_its_end_was_seen() {
        let header = "step,loss,grad_norm\n1,2,1\n";
        for (tail, found, unterminated) in [
            ("2,2,2\n", "2", false),
            ("2,2,2", "", true),
            ("2,2,nan", "NaN", true),
            ("2,2,-in", "", true),
            ("2,2,-inf", "-inf", true),
            ("2,2,-infi", "-inf", true),
            ("2,2,\"2\"", "", true),
            ("2,2,\"nan\"", "NaN", true),
            ("2,2,\"nan", "", true),
            ("2,2,\"2", "", true),
            ("2,2,2,", "2", true),
            ("2,2,", "", true),
            ("2,nan", "", false),
            ("2,2", "", false),
            ("2", "", false),
            ("2,\"a\n", "", false),
        ] {
            let recording = read(format!("{header}{tail}"));
            let second: Vec<String> = norms(&recording).into_iter().skip(1).map(|(_, value)| value).collect();
            assert_eq!(second.concat(), found, "{tail:?}");
            assert_eq!(recording.unterminated, unterminated, "{tail:?}");
            let cut = if unterminated || tail.ends_with("2\n") { vec![] } else { vec![(FaultKind::Truncated, 3)] };
            assert_eq!(faults(&recording), cut, "{tail:?}");
            let losses = points(&recording, "loss").len();
            assert_eq!(
                losses,
                if unterminated || tail.ends_with("2\n") || tail.contains("nan") { 2 } else { 1 },
                "{tail:?}"
            );
        }
        // A step that is still to come would place what came before it.
        let recording = read("grad_norm,step\n1,1\nnan,2");
        assert_eq!(norms(&recording), want(&[(1, "1")]));
        assert_eq!(faults(&recording), [(FaultKind::Truncated, 3), (FaultKind::Unparsable, 3)]);
        // What may repeat a record does not count either.
        let recording = read("step,loss,grad_norm\n1,2,1\n1,2,1\n1,2,1");
        assert_eq!((norms(&recording), recording.records), (want(&[(1, "1")]), 1));
    }

    #[test]
    fn headers_that_the_end_cuts() {
        let recording = read("step,loss,grad_norm");
        assert_eq!((recording.records, recording.unterminated), (0, true));
        let code = |text: &str| match read_with("a.csv", text, usize::MAX, &Limits::default()) {
            Err(Rejected::Unreadable { code, .. }) => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code("id,\"st"), "cut-header");
        assert_eq!(code("some text\nand more of it\n"), "not-a-recording");
        assert_eq!(code("version https://git-lfs.github.com/spec/v1\noid"), "git-lfs-pointer");
        assert_eq!(read("").records, 0);
        assert_eq!(norms(&read("run_id,step,grad_norm\na,0,1\n,1,1\na,2,nan\n")).len(), 3);
    }

    #[test]
    fn a_line_over_the_limit_is_passed_over_whatever_the_windows() {
        let text = format!("step,note,grad_norm\n1,a,1\n2,{},2\n3,\"{}\n4,a,4\n", "x".repeat(3000), "y".repeat(900));
        let limits = Limits { record: 1024, ..Limits::default() };
        for chunk in [usize::MAX, 100] {
            let recording = read_with("a.csv", text.as_str(), chunk, &limits).unwrap();
            assert_eq!(norms(&recording), want(&[(1, "1"), (4, "4")]));
            assert_eq!(faults(&recording), [(FaultKind::Limit, 3), (FaultKind::Unparsable, 4)]);
        }
    }

    #[test]
    fn charts_of_tensorboard() {
        let csv = "Wall time,Step,Value\r\n1748869402.75,250,107.25\r\n1748869403.5,500,nan\r\n";
        let json = "[[1748869402.75, 250, 107.25], [1748869403.5, 500, NaN]]";
        let quoted = "[\n  [1748869402.75, 250, 107.25],\n  [1748869403.5, 500, \"NaN\"]\n]\n";
        for (name, text) in [
            ("run-a-tag-grad_norm.csv", csv),
            ("grad_norm (2).csv", csv),
            ("grad_norm.json", json),
            ("grad_norm.json", quoted),
        ] {
            assert_eq!(Csv.recognise(name, text.as_bytes()), Confidence::Likely, "{name}");
            let recording = read_with(name, text, 7, &Limits::default()).unwrap();
            assert_eq!(norms(&recording), want(&[(250, "107.25"), (500, "NaN")]), "{name}");
            assert_eq!(recording.started, Some(1_748_869_402_750));
            assert!(recording.faults.is_empty());
        }
        let cut = read_with("grad_norm.json", &json[..json.len() - 2], 7, &Limits::default()).unwrap();
        assert_eq!(norms(&cut), want(&[(250, "107.25"), (500, "NaN")]));
        assert_eq!(cut.faults[0].kind, FaultKind::Truncated);
        let broken = "[[1.5, 1, 1], [2, oops], [2.5, 3, 3], {}, [3.5, 4, 4]]";
        let broken = read_with("grad_norm.json", broken, 7, &Limits::default()).unwrap();
        assert_eq!(norms(&broken), want(&[(1, "1"), (3, "3"), (4, "4")]));
        assert_eq!(broken.faults[0].kind, FaultKind::Unparsable);
    }

    #[test]
    fn dvclive_keeps_a_metric_a_file() {
        let text = "step\ttimestamp\tloss\n1\t1748869402\t0.5\n";
        let recording = read_with("dvclive/plots/metrics/eval/loss.tsv", text, 5, &Limits::default()).unwrap();
        assert_eq!(points(&recording, "eval/loss"), want(&[(1, "0.5")]));
    }

    #[test]
    fn only_recordings_are_recognised() {
        let sure = |name: &str, head: &str| Csv.recognise(name, head.as_bytes());
        for (name, head) in [
            ("a.csv", "step,x\n1,2\n"),
            ("a.csv", "epoch;x\n1;0,5\n"),
            ("a.tsv", "method\tloss\na\t0.5\n"),
            ("a.csv", "loss,grad_norm\n"),
            ("a.csv", "step,grad_norm\n1,"),
            ("metrics.csv", ""),
            ("progress.csv", "step,x\n"),
            ("a.csv", "# seed 3\nstep,loss\n1,\n"),
            ("a.txt", "step loss\n1 0.5\n2 0.25\n"),
            ("a.log", "step,grad_norm\n1,0.5\n"),
            ("a.csv", "model,step,loss\nG,1,2\nD,1,3\nG,2,2\nD,2,3\n"),
            ("a.csv", "name,step,loss\na,1,2\na,2,3\na,3,2\n"),
            ("a.csv", "run_id,step,loss\nx,1,2\nx,2,3\ny,1,2\ny,2,3\n"),
            ("a.csv", "run_id,step,loss\nx,0,2\ny,0,3\nz,0,2\nu,0,3\n"),
            ("a.csv", "run,step,loss\nx,5,2\ny,7,3\nz,2,2\ny,8,2\nx,6,3\n"),
            ("a.csv", "run,step,name,value\nx,5,a,2\ny,7,b,2\nz,7,c,2\n"),
            ("a.csv", "key,value,timestamp,step,is_nan,run_uuid\nloss,2,1700000000000,0,False,a\n"),
            ("a.csv", "\"Step\",\"a - x/y\",\"a - x/y__MIN\"\n\"0\",\"1\",\"1\"\n"),
            ("a.csv", "version https://git-lfs.github.com/spec/v1\noid"),
        ] {
            assert_eq!(sure(name, head), Confidence::Likely, "{name}: {head:?}");
        }
        for (name, head) in [
            ("a.csv", "id,step,text\n1,1,crack\n2,2,stir\n"),
            ("a.csv", "step,instruction\none,stir\n"),
            ("a.csv", "prompt,completion\na,b\n"),
            ("a.csv", "metric,n_nan,n_inf\na,1,2\n"),
            ("a.csv", "text,loss\na,what was lost\n"),
            ("a.csv", "Name,State,Step,train/grad_norm\na,finished,1000,1\nb,finished,500,1\nc,crashed,1000,50\n"),
            ("results.csv", "model,params,loss\na,7B,0.5\nb,13B,nan\n"),
            ("a.csv", "run_id,step,loss\na,1000,2\nb,1000,3\nc,1000,2\n"),
            ("a.csv", "trial,epoch,loss\n1,10,2\n2,7,3\n3,10,2\n"),
            ("a.csv", "name,value\na,1\nb,2\n"),
            ("a.csv", "step,key,value\none,a,b\n"),
            ("a.csv", ""),
            ("a.csv", "{\"step\": 1, \"loss\": 2}\n"),
            ("a.jsonl", "{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"loss\": 2}\n"),
            ("a.json", "[{\"step\": 1, \"loss\": 2}]"),
            ("a.json", "[[0.5, 0.25, 1], [1, 2, 3]]"),
            ("a.log", "step 1 loss 0.5\nstep 2 loss 0.25\n"),
            ("a.log", "step, loss and gradient norm\nare printed below\n"),
            ("a.txt", "version https://git-lfs.github.com/spec/v1\noid"),
        ] {
            assert!(sure(name, head) <= Confidence::Maybe, "{name}: {head:?}");
        }
        assert_eq!(Csv.recognise_name("a/B.CSV"), Confidence::Maybe);
        assert_eq!(Csv.recognise_name("a/b.txt"), Confidence::No);
        // By name a recording, though none by what is in it.
        assert_eq!(Csv.recognise_name("a/Metrics.csv"), Confidence::Likely);
        assert!(sure("metrics.csv", "prompt,completion\na,b\n") <= Confidence::Maybe);
    }

    #[test]
    fn later_rows_tell_whether_runs_have_more_than_one() {
        let rows = |step: u32, order: &[u32]| -> String {
            order.iter().map(|run| format!("run-{run},{},0.5\n", step + 97 * run % 13)).collect()
        };
        let forth: Vec<u32> = (0..200).collect();
        let once = format!("run_id,step,grad_norm\n{}", rows(100, &forth));
        assert!(Csv.recognise("a.csv", once.as_bytes()) <= Confidence::Maybe);
        let twice = once + &rows(200, &forth);
        assert_eq!(Csv.recognise("a.csv", twice.as_bytes()), Confidence::Likely);
    }

    #[test]
    fn columns_that_are_not_asked_for_are_told_by_their_first_cells() {
        let mut text = String::from("step,grad_norm,host,x,date\n");
        for step in 0..20 {
            text += &format!("{step},0.5,172.31.19.219,{step}.5,2020-04-22_15-32-51\n");
        }
        let files = Memory::new([("metrics.csv", text)]);
        let source = Source {
            format: Format::Csv,
            path: "metrics.csv".into(),
            directory: String::new(),
            parts: vec![files.part("metrics.csv")],
        };
        let recording = files.read(&Csv, &source).unwrap().remove(0);
        assert_eq!(recording.unrecognised, ["x"]);
        assert_eq!(recording.series.len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3_000))]

        #[test]
        fn any_text_reads_alike_in_any_windows(
            rows in "([0-9nN.,;\"\r\n\0 a-]|,0\\.5|\n[0-9],|step,grad_norm,loss\n|nan|\"\"){0,60}",
            chunk in 1usize..40,
        ) {
            let text = format!("step,grad_norm,loss\n{rows}");
            let limits = Limits { record: 256, ..Limits::default() };
            let whole = read_with("a.csv", text.as_str(), usize::MAX, &limits).unwrap();
            let chopped = read_with("a.csv", text.as_str(), chunk, &limits).unwrap();
            prop_assert_eq!(format!("{whole:?}"), format!("{chopped:?}"));
        }

        #[test]
        fn a_cut_takes_points_from_the_end_only(
            rows in proptest::collection::vec(
                "(0\\.[0-9]{1,2}|nan|-inf|\"1\"|NA|),([0-9]|x|\"a,b\"|inf|\"c\nd\")(\n|\r\n|\r)", 1..8),
            cut in 0usize..200,
        ) {
            let rows: String = rows.iter().enumerate().map(|(step, row)| format!("{step},{row}")).collect();
            let text = format!("step,grad_norm,loss\n{rows}");
            let cut = cut.min(text.len());
            let whole = read(text.as_str());
            let Ok(part) = read_with("a.csv", &text[..cut], usize::MAX, &Limits::default()) else { return Ok(()) };
            for name in ["grad_norm", "loss"] {
                let (whole, part) = (points(&whole, name), points(&part, name));
                prop_assert!(whole.starts_with(&part), "{name}: {part:?} of {whole:?}");
            }
        }
    }
}
