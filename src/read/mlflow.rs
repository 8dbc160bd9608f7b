#![doc = include_str!("mlflow.md")]

mod meta;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

use self::meta::Meta;
use super::builder::points;
use super::merge::{Apart, Merge};
use super::{
    About, Builder, Confidence, Progress, Reader, Rejected, Session, StreamDecoder, Tracker, Want, clock,
    is_git_lfs_pointer,
};
use crate::model::source::plain;
use crate::model::{Entry, EntryKind, Fault, FaultKind, Format, Part, PlaceUnit, Recording, Role, Source, roles};
use crate::wire::lines::{Ending, Lines};
use crate::wire::numbers::{Cell, parse_f64, parse_i64_step, parse_text_value};
use crate::wire::utf16;

const META: &str = "meta.yaml";
/// Where old versions keep the name of a run.
const RUN_NAME: &str = "tags/mlflow.runName";
const METRICS: &str = "metrics/";
/// Where deleted experiments are moved to.
const TRASH: &str = ".trash";

/// The reader of run directories of MLflow's file store.
pub struct Mlflow;

impl Reader for Mlflow {
    fn format(&self) -> Format {
        Format::Mlflow
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "run directory of the file store: metrics/**, a file a metric, and meta.yaml",
            nonfinite: "nan, inf, -inf",
            missing: "no line",
            not_read: "params, tags, artifacts (files below artifacts/ are recordings of their own); deleted runs and \
                       what lies in .trash; values of metrics without a role",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[Tracker {
            name: "MLflow file store",
            version: "3.17.2",
            files: "mlruns/<experiment>/<run>/metrics/**, meta.yaml",
            nonfinite: "nan, inf, -inf",
            missing: "no line",
            not_read: "params, tags, deleted runs, .trash, registered models",
        }]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        if in_trash(path) {
            return Confidence::No;
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        match inside_run(path) {
            Some((_, META | RUN_NAME)) => return Confidence::Certain,
            // Other tools name directories by hashes too, and keep files of their own in them.
            Some((_, inside)) if !has_known_suffix(name) => {
                let kinds = [METRICS, "params/", "tags/"];
                if kinds.iter().any(|kind| inside.starts_with(kind)) {
                    return Confidence::Certain;
                }
            }
            _ => {}
        }
        let is_below_metrics = path.starts_with(METRICS) || path.contains("/metrics/");
        if name == META || is_below_metrics { Confidence::Maybe } else { Confidence::No }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        if in_trash(path) {
            return Confidence::No;
        }
        if self.recognise_name(path) == Confidence::Certain {
            return Confidence::Certain;
        }
        if path.rsplit('/').next() == Some(META) {
            return if Meta::parse(head).is_run() { Confidence::Certain } else { Confidence::No };
        }
        if are_metric_lines(&utf16::head_as_utf8(head)) { Confidence::Likely } else { Confidence::No }
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        let recognised: HashSet<&str> = own.iter().map(|index| entries[*index].path.as_str()).collect();
        let mut runs: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        let mut alone: Vec<Source> = Vec::new();
        for entry in own.iter().map(|index| &entries[*index]) {
            let Some((run, inside)) = home(&entry.path, &recognised) else {
                alone.push(super::single(Format::Mlflow, entry));
                continue;
            };
            let parts = runs.entry(run).or_default();
            if [META, RUN_NAME].contains(&inside) || inside.starts_with(METRICS) {
                parts.push(entry);
            }
        }
        let runs = runs.into_iter().filter_map(|(run, mut parts)| {
            let has_meta = parts.iter().any(|part| part.name() == META && part.parent() == run);
            if has_meta {
                // In a directory of another name than usual they were not recognised by their own.
                let metrics = join(run, METRICS);
                let start = entries.partition_point(|entry| entry.path < metrics);
                let below = entries[start..].iter().take_while(|entry| entry.path.starts_with(&metrics));
                let is_metric = |entry: &&Entry| {
                    let is_new = !recognised.contains(entry.path.as_str());
                    is_new && entry.kind == EntryKind::File && !has_known_suffix(entry.name())
                };
                parts.extend(below.filter(is_metric));
            }
            let skip = if run.is_empty() { 0 } else { run.len() + 1 };
            let order = |name: &str| (name != META, name != RUN_NAME);
            let mut parts: Vec<Part> = parts
                .into_iter()
                .map(|entry| (entry, &entry.path[skip..]))
                .map(|(entry, name)| Part { path: entry.path.clone(), name: name.to_owned(), size: entry.size })
                .collect();
            parts.sort_by(|a, b| (order(&a.name), &a.name).cmp(&(order(&b.name), &b.name)));
            // A tag alone is no run.
            let is_run = parts.iter().any(|part| part.name != RUN_NAME);
            let (path, directory) = (run.to_owned(), run.to_owned());
            is_run.then_some(Source { format: Format::Mlflow, path, directory, parts })
        });
        let mut sources: Vec<Source> = runs.collect();
        sources.append(&mut alone);
        sources
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        let (request, limits) = (session.request, session.limits);
        let mut builder = Builder::of_points(Format::Mlflow, request, limits, PlaceUnit::Line, false);
        if read_meta(source, session, &mut builder)? {
            return Err(Rejected::unreadable("deleted", "the run was deleted (lifecycle_stage: deleted)"));
        }
        let mut merge = Merge::default();
        let mut others = Others::default();
        let (mut readable, mut refused) = (0, None);
        for (index, part) in source.parts.iter().enumerate() {
            let Some(name) = metric_of(part) else { continue };
            builder.turn_to(index as u32);
            let column = builder.column(name);
            builder.numeric(column.id);
            if column.want != Want::Number {
                if reaches(name) {
                    others.look(part, session);
                }
                continue;
            }
            let mut decoder = Decoder::new(index as u32, merge.begin(column.id), &mut merge);
            match session.stream_text(part, &mut decoder, &mut builder) {
                Err(Rejected::Cancelled) => return Err(Rejected::Cancelled),
                Err(Rejected::Io(error)) => {
                    let place = builder.place(PlaceUnit::Line, 0);
                    builder.fault(Fault::new(FaultKind::Io, place, error.to_string()));
                    builder.lost(column.id);
                    refused.get_or_insert(Rejected::Io(error));
                }
                Err(rejected) => return Err(rejected),
                Ok(()) if decoder.is_pointer => {
                    let detail = "a Git LFS pointer in place of the file";
                    let place = builder.place(PlaceUnit::Line, 1);
                    builder.fault(Fault::new(FaultKind::Unparsable, place, detail));
                    builder.lost(column.id);
                    refused.get_or_insert(Rejected::unreadable("git-lfs-pointer", detail));
                }
                Ok(()) => readable += 1,
            }
        }
        if readable == 0
            && let Some(rejected) = refused
        {
            return Err(rejected);
        }
        merge.give(&mut builder);
        if let Some(point) = others.largest {
            builder.begin_points(0, point.step, point.time.map_or(f64::NAN, |time| time as f64 / 1e3));
            builder.pass_point(true);
        }
        Ok(vec![builder.finish()])
    }
}

/// Whether a path lies among what was deleted.
fn in_trash(path: &str) -> bool {
    path.split('/').any(|part| part == TRASH)
}

/// The run directory that a path lies in by its name of 32 hexadecimal digits, and the path inside it.
fn inside_run(path: &str) -> Option<(&str, &str)> {
    let is_id = |part: &str| part.len() == 32 && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let mut begin = 0;
    path.match_indices('/').find_map(|(end, _)| {
        let part = &path[std::mem::replace(&mut begin, end + 1)..end];
        is_id(part).then(|| (&path[..end], &path[end + 1..]))
    })
}

/// The run directory that a file belongs to, and its path inside; `None` for a metric's file all by itself.
fn home<'a>(path: &'a str, recognised: &HashSet<&str>) -> Option<(&'a str, &'a str)> {
    if let Some(found) = inside_run(path) {
        return Some(found);
    }
    if let Some((run, META)) = path.rsplit_once('/').or(Some(("", path))) {
        return Some((run, META));
    }
    let mut splits = path.match_indices(METRICS).map(|(at, _)| at).filter(|at| *at == 0 || path[..*at].ends_with('/'));
    let first = splits.clone().next()?;
    let has_meta = |at: &usize| recognised.contains(format!("{}{META}", &path[..*at]).as_str());
    let at = splits.find(has_meta).unwrap_or(first);
    Some((path[..at].trim_end_matches('/'), &path[at..]))
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

/// Whether a file is named like one of another kind. Names of metrics may hold points (`val.loss`).
fn has_known_suffix(name: &str) -> bool {
    const SUFFIXES: &[&str] = &[
        "csv",
        "tsv",
        "json",
        "jsonl",
        "ndjson",
        "parquet",
        "arrow",
        "npy",
        "npz",
        "png",
        "jpg",
        "jpeg",
        "txt",
        "log",
        "yaml",
        "yml",
        "html",
        "md",
        "zip",
        "tar",
        "tgz",
        "pt",
        "pth",
        "ckpt",
        "pkl",
        "safetensors",
        "db",
        "wandb",
    ];
    let suffix = name.rsplit_once('.').map_or("", |(_, suffix)| suffix).to_ascii_lowercase();
    SUFFIXES.contains(&suffix.as_str()) || name.contains("tfevents")
}

/// The metric that a part holds.
fn metric_of(part: &Part) -> Option<&str> {
    if [META, RUN_NAME].contains(&part.name.as_str()) {
        return None;
    }
    Some(plain(part.name.strip_prefix(METRICS).unwrap_or(&part.name)))
}

/// Whether the steps of a metric show how far the training went.
fn reaches(name: &str) -> bool {
    let role = roles::role_of(name);
    role.is_some_and(|role| !matches!(role, Role::Reward | Role::CompletionLength))
        && points::step_name(name) == points::STEP
}

/// Reads what the run says of itself; gives whether it was deleted.
fn read_meta(source: &Source, session: &mut Session<'_>, builder: &mut Builder<'_>) -> Result<bool, Rejected> {
    let mut name = None;
    for (index, part) in source.parts.iter().enumerate() {
        let is_meta = part.name == META;
        if !is_meta && part.name != RUN_NAME {
            continue;
        }
        builder.turn_to(index as u32);
        let bytes = match session.whole(part) {
            Ok(bytes) => bytes,
            Err(Rejected::Cancelled) => return Err(Rejected::Cancelled),
            Err(error) => {
                let kind = if error.code() == "limit" { FaultKind::Limit } else { FaultKind::Io };
                let place = builder.place(PlaceUnit::Line, 1);
                builder.fault(Fault::new(kind, place, error.to_string()));
                continue;
            }
        };
        if !is_meta {
            name = name.or_else(|| Some(String::from_utf8_lossy(&bytes).trim().to_owned()));
            continue;
        }
        let meta = Meta::parse(&bytes);
        if meta.is_deleted() {
            return Ok(true);
        }
        name = meta.name();
        for (key, text) in meta.facts() {
            builder.describe(key, &text);
        }
    }
    if let Some(name) = name.filter(|name| !name.is_empty() && name.len() <= builder.limits().name) {
        builder.describe("name", &name);
        builder.name = Some(name);
    }
    Ok(false)
}

/// The furthest point of metrics whose values are not wanted.
#[derive(Debug, Default)]
struct Others {
    largest: Option<Line>,
}

/// Bytes at the end of a file that hold its last line.
const TAIL: u64 = 4 << 10;

impl Others {
    /// Looks at the last line of a metric's file. What cannot be read says nothing of how far the training went.
    fn look(&mut self, part: &Part, session: &Session<'_>) {
        let Ok(file) = session.files.ranges(part) else { return };
        let size = file.size();
        let Ok(tail) = file.read(size.saturating_sub(TAIL)..size) else { return };
        let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let last = Lines::new(&tail[..whole], true, Ending::Newline).filter_map(|line| Line::parse(line.bytes).ok());
        for line in last.filter(|line| line.has_step) {
            if self.largest.is_none_or(|largest| line.step > largest.step) {
                self.largest = Some(line);
            }
        }
    }
}

/// One line of a metric's file.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    /// Milliseconds since 1970.
    time: Option<i64>,
    value: f64,
    step: i64,
    has_step: bool,
}

impl Line {
    /// Two fields (no step), three, or five (a data set's name, in which there may be blanks, and digest).
    fn parse(line: &[u8]) -> Result<Self, &'static str> {
        let mut fields = line.split(|byte| byte.is_ascii_whitespace()).filter(|field| !field.is_empty());
        let time = fields.next().and_then(|field| std::str::from_utf8(field).ok()?.parse::<i64>().ok());
        let time = clock::from_number(time.ok_or("want a timestamp in milliseconds")? as f64);
        let value = match fields.next().map(parse_text_value) {
            None => return Err("one field: want a timestamp, a value and a step"),
            Some(Cell::Value(value)) => value,
            Some(_) => return Err("want a number as the value"),
        };
        let Some(step) = fields.next() else { return Ok(Self { time, value, step: 0, has_step: false }) };
        let whole = || std::str::from_utf8(step).ok()?.parse().ok();
        let step = whole().or_else(|| parse_f64(step).and_then(parse_i64_step).map(|(step, _)| step));
        Ok(Self { time, value, step: step.ok_or("want a number as the step")?, has_step: true })
    }
}

/// Lines of a head that tell.
const LINES: usize = 8;

/// Whether a head holds lines of a metric: a timestamp in milliseconds and a number each.
fn are_metric_lines(head: &[u8]) -> bool {
    let (mut metrics, mut others) = (0, 0);
    for line in Lines::new(head, false, Ending::Newline).take(LINES) {
        let digits = line.bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let is_time = digits == 13 && line.bytes.get(digits).is_some_and(|byte| *byte == b' ');
        if is_time && Line::parse(line.bytes).is_ok() { metrics += 1 } else { others += 1 }
    }
    metrics > others
}

/// Decodes the file of one metric.
#[derive(Debug)]
struct Decoder<'m> {
    part: u32,
    series: usize,
    merge: &'m mut Merge,
    line: u64,
    /// Inside a line that is passed over.
    skipping: bool,
    /// Some line had a step.
    has_steps: bool,
    is_pointer: bool,
}

impl<'m> Decoder<'m> {
    fn new(part: u32, series: usize, merge: &'m mut Merge) -> Self {
        Self { part, series, merge, line: 0, skipping: false, has_steps: false, is_pointer: false }
    }

    fn fault(&self, kind: FaultKind, detail: &str, into: &mut Builder<'_>) {
        let place = into.place(PlaceUnit::Line, self.line);
        into.fault(Fault::new(kind, place, detail));
    }

    fn take(&mut self, line: Line) {
        // Where no step is recorded, values are numbered.
        let step = if line.has_step { line.step } else { self.merge.count(self.series) as i64 };
        self.has_steps |= line.has_step;
        let Line { time, value, has_step, .. } = line;
        self.merge.push(self.series, Apart { step, has_step, value, time, part: self.part, at: self.line });
    }

    fn whole_line(&mut self, line: &[u8], into: &mut Builder<'_>) {
        let begin = line.iter().take_while(|byte| **byte == 0).count();
        if begin > 0 {
            self.fault(FaultKind::Stray, "a run of NUL bytes", into);
        }
        let line = &line[begin..];
        if line.trim_ascii().is_empty() {
            return;
        }
        match Line::parse(line) {
            Ok(line) => self.take(line),
            Err(detail) => self.fault(FaultKind::Unparsable, detail, into),
        }
    }

    /// The last line, of which nobody knows whether it is whole.
    fn cut_line(&mut self, line: &[u8], into: &mut Builder<'_>) {
        if line.iter().all(|byte| *byte == 0 || byte.is_ascii_whitespace()) {
            if line.contains(&0) {
                self.fault(FaultKind::Truncated, "the file ends in zero bytes", into);
            }
            return;
        }
        self.fault(FaultKind::Truncated, "the file ends inside a line", into);
        let open = line.last().is_some_and(|byte| !byte.is_ascii_whitespace());
        let fields = line.split(|byte| byte.is_ascii_whitespace()).filter(|field| !field.is_empty()).count();
        let Ok(read) = Line::parse(line) else { return };
        // A field counts when the byte after it was seen; a word that reads as NaN or Inf counts in any case.
        let has_step = fields > 3 || (fields == 3 && !open);
        let has_value = fields > 2 || !open;
        if has_step || (fields == 2 && !self.has_steps && self.merge.count(self.series) > 0) {
            if has_value || !read.value.is_finite() {
                self.take(read);
            }
        } else if !read.value.is_finite() {
            let detail = "the line that the end cuts holds a NaN or Inf, but its step was not read";
            self.fault(FaultKind::Unparsable, detail, into);
        }
    }
}

impl StreamDecoder for Decoder<'_> {
    fn feed(&mut self, window: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> Progress {
        if at == 0 && is_git_lfs_pointer(window) {
            self.is_pointer = true;
            return Progress::Used(window.len());
        }
        let mut lines = Lines::new(window, end, Ending::Newline);
        for line in lines.by_ref() {
            self.line += 1;
            let skipped = std::mem::take(&mut self.skipping);
            match (skipped, line.terminated) {
                (true, _) => {}
                (false, true) => self.whole_line(line.bytes, into),
                (false, false) => self.cut_line(line.bytes, into),
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
