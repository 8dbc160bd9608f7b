#![doc = include_str!("mlflow.md")]

mod meta;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

use self::meta::Meta;
use super::apart::{self, Cut, Shape, Value};
use super::{About, Builder, Confidence, Reader, Rejected, Session, Tracker, clock};
use crate::model::source::plain;
use crate::model::{Entry, EntryKind, Fault, FaultKind, Format, Part, PlaceUnit, Recording, Source};
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
        let metric = |part: &Part| metric_of(part).map(str::to_owned);
        apart::read::<Metric>(source, session, builder, &metric)
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

/// The lines of a metric's file.
#[derive(Debug, Default)]
struct Metric {
    /// Lines with a step, and without one.
    with_step: u64,
    without: u64,
}

/// Two fields (no step), three, or five (a data set's name, in which there may be blanks, and digest).
fn parse(line: &[u8]) -> Result<Value, &'static str> {
    let mut fields = fields(line);
    let time = fields.next().and_then(|field| std::str::from_utf8(field).ok()?.parse::<i64>().ok());
    let time = clock::from_number(time.ok_or("want a timestamp in milliseconds")? as f64);
    let value = match fields.next().map(parse_text_value) {
        None => return Err("one field: want a timestamp, a value and a step"),
        Some(Cell::Value(value)) => value,
        Some(_) => return Err("want a number as the value"),
    };
    let Some(step) = fields.next() else { return Ok(Value { time, value, step: None }) };
    let whole = || std::str::from_utf8(step).ok()?.parse().ok();
    let step = whole().or_else(|| parse_f64(step).and_then(parse_i64_step).map(|(step, _)| step));
    Ok(Value { time, value, step: Some(step.ok_or("want a number as the step")?) })
}

fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| byte.is_ascii_whitespace()).filter(|field| !field.is_empty())
}

impl Shape for Metric {
    fn line(&mut self, line: &[u8]) -> Result<Option<Value>, &'static str> {
        let value = parse(line)?;
        self.with_step += u64::from(value.step.is_some());
        self.without += u64::from(value.step.is_none());
        Ok(Some(value))
    }

    fn cut(&mut self, line: &[u8]) -> Cut {
        let Ok(read) = parse(line) else { return Cut::Nothing };
        // A field counts when the byte after it was seen; a word that reads as NaN or Inf counts in any case.
        let is_open = line.last().is_some_and(|byte| !byte.is_ascii_whitespace());
        let count = fields(line).count();
        let is_whole = match count {
            // A step may follow, unless this file has none.
            2 => self.with_step == 0 && self.without > 0,
            count => count > 3 || !is_open,
        };
        match is_whole {
            true if count > 2 || !is_open || !read.value.is_finite() => Cut::Kept(read),
            false if !read.value.is_finite() => Cut::Lost,
            _ => Cut::Nothing,
        }
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
        if is_time && parse(line.bytes).is_ok() { metrics += 1 } else { others += 1 }
    }
    metrics > others
}
