#![doc = include_str!("clearml.md")]

use memchr::memmem;

use super::json_events::{self, Dialect, Found, Point, string};
use super::{About, Builder, Confidence, Reader, Rejected, Session, Tracker};
use crate::model::source::plain;
use crate::model::{Entry, EntryKind, Format, Part, PlaceUnit, Recording, Source};
use crate::wire::json::{Cursor, Kind, Stop};

/// The log of a task, and what it says of itself.
const METRICS: &str = "metrics.jsonl";
const TASK: &str = "task.json";
/// The type of an event that holds a scalar.
const SCALAR: &str = "training_stats_scalar";
/// Stands for the step of a single value (`report_single_value`).
const SINGLE: f64 = i32::MIN as f64;

/// The reader of ClearML's offline sessions.
pub struct Clearml;

impl Reader for Clearml {
    fn format(&self) -> Format {
        Format::Clearml
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "metrics.jsonl of an offline session: a list of events a line; task.json beside it",
            nonfinite: "lost: NaN and Inf are replaced by 0.0 before they are written, unless told otherwise",
            missing: "no event",
            not_read: "plots, images, console output (log.jsonl), single values",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[Tracker {
            name: "ClearML offline",
            version: "2.1.12",
            files: "<task id>/metrics.jsonl, also in offline-*.zip",
            nonfinite: "0.0 by default (set_reporting_nan_value, set_reporting_inf_value change it)",
            missing: "no event",
            not_read: "plots, images, console output; what a NaN was: a sudden exact 0.0 is all that is left of it",
        }]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        if path.rsplit('/').next() == Some(METRICS) { Confidence::Maybe } else { Confidence::No }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        let has = |mark: &str| memmem::find(head, mark.as_bytes()).is_some();
        let is_list = head.trim_ascii_start().starts_with(b"[");
        let is_events = is_list && has("\"type\"") && has("\"task\"") && has("\"timestamp\"");
        if is_events && self.recognise_name(path) != Confidence::No { Confidence::Certain } else { Confidence::No }
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        let find =
            |path: &str| entries.binary_search_by(|entry| entry.path.as_str().cmp(path)).ok().map(|at| &entries[at]);
        let source = |entry: &Entry| {
            let home = entry.parent();
            let beside = if home.is_empty() { TASK.to_owned() } else { format!("{home}/{TASK}") };
            let mut source = super::single(Format::Clearml, entry);
            if let Some(beside) = find(&beside).filter(|entry| entry.kind == EntryKind::File) {
                source.parts.push(Part { path: beside.path.clone(), name: TASK.to_owned(), size: beside.size });
            }
            source
        };
        own.iter().map(|index| source(&entries[*index])).collect()
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        let mut builder = Builder::of_points(Format::Clearml, session.request, session.limits, PlaceUnit::Line, false);
        for part in source.parts.iter().filter(|part| part.name == TASK) {
            let keys = [("id", "run_id"), ("name", "name"), ("status", "status"), ("project_name", "project")];
            json_events::describe(part, &keys, session, &mut builder)?;
        }
        json_events::read::<Events>(source, session, builder, &|part| plain(&part.name) != TASK)
    }
}

/// `[{"type": "training_stats_scalar", "metric": "train", "variant": "loss", "iter": 1, "value": 0.5, ...}, ...]`
#[derive(Debug, Default)]
struct Events;

impl Dialect for Events {
    fn record(&mut self, cursor: &mut Cursor<'_>, found: &mut Found) -> Result<(), Stop> {
        if cursor.kind()? == Kind::Object {
            return event(cursor, found);
        }
        cursor.enter_array()?;
        while cursor.next_item()? {
            if cursor.kind()? == Kind::Object {
                event(cursor, found)?;
            } else {
                cursor.skip_value()?;
            }
        }
        Ok(())
    }
}

/// One event.
#[derive(Debug, Default)]
struct Event {
    kind: Option<String>,
    metric: Option<String>,
    variant: Option<String>,
    value: Option<f64>,
    step: Option<f64>,
    time: Option<f64>,
}

fn event(cursor: &mut Cursor<'_>, found: &mut Found) -> Result<(), Stop> {
    let mut event = Event::default();
    cursor.enter_object()?;
    while let Some(key) = cursor.next_key()? {
        if key.is("type") {
            event.kind = string(cursor)?;
        } else if key.is("metric") {
            event.metric = string(cursor)?;
        } else if key.is("variant") {
            event.variant = string(cursor)?;
        } else if key.is("value") && event.kind.as_deref().is_none_or(|kind| kind == SCALAR) {
            event.value = found.value(cursor)?;
        } else if key.is("iter") {
            event.step = json_events::number(cursor)?;
        } else if key.is("timestamp") {
            event.time = json_events::number(cursor)?;
        } else {
            cursor.skip_value()?;
        }
    }
    let Event { kind, metric, variant, value, step, time } = event;
    found.is_bad = false;
    let is_single = step == Some(SINGLE);
    if let (Some(SCALAR), Some(metric), Some(value), false) = (kind.as_deref(), metric, value, is_single) {
        // A chart of one series is often called like it: `loss`, `loss`.
        let variant = variant.filter(|variant| !variant.is_empty() && *variant != metric);
        let name = found.name(variant.map_or_else(|| metric.clone(), |variant| format!("{metric}/{variant}")));
        found.point(Point { name, value, step, time });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FaultKind, Limits, Signal};
    use crate::read::Request;
    use crate::read::testing::Memory;

    fn sources(files: &Memory) -> Vec<Source> {
        let mut paths: Vec<&String> = files.parts.keys().collect();
        paths.sort();
        let entries: Vec<Entry> =
            paths.iter().map(|path| Entry { path: (*path).clone(), size: 1, kind: EntryKind::File }).collect();
        let is_own =
            |at: &usize| Clearml.recognise(&entries[*at].path, &files.parts[&entries[*at].path]) >= Confidence::Likely;
        let own: Vec<usize> = (0..entries.len()).filter(is_own).collect();
        Clearml.group(&entries, &own)
    }

    fn read_with(files: &Memory, limits: &Limits) -> Recording {
        let sources = sources(files);
        assert_eq!(sources.len(), 1, "{sources:?}");
        let request = Request { everything: true, ..Request::default() };
        files.read_with(&Clearml, &sources[0], &request, limits).expect("it can be read").remove(0)
    }

    fn points(recording: &Recording, name: &str) -> Vec<(i64, String)> {
        let series = recording.series.iter().find(|series| series.name == name).expect("the metric is there");
        let Signal::Kept(kept) = &series.signal else { panic!("every series of a full read is kept") };
        (0..kept.values.len()).map(|row| (kept.steps.get(row), kept.values.get(row).to_string())).collect()
    }

    fn scalar(metric: &str, variant: &str, value: &str, iter: i64) -> String {
        format!(
            "{{\"task\": \"t\", \"timestamp\": 1700000000250, \"metric\": \"{metric}\", \"variant\": \"{variant}\", \"iter\": {iter}, \
             \"type\": \"training_stats_scalar\", \"value\": {value}}}"
        )
    }

    fn line(events: &[String]) -> String {
        format!("[{}]\n", events.join(", "))
    }

    fn log() -> String {
        let plot = "{\"task\": \"t\", \"metric\": \"train\", \"variant\": \"p\", \"type\": \"plot\", \"value\": \"nan\", \"plot_str\": \"{}\"}";
        let mut log = line(&[plot.to_owned(), scalar("Summary", "best", "0.25", i64::from(i32::MIN))]);
        for (step, norm) in [(1, "0.5"), (2, "0.0"), (3, "NaN"), (4, "null")] {
            log += &line(&[scalar("train", "loss", "2.5", step), scalar("grad_norm", "grad_norm", norm, step)]);
        }
        log
    }

    #[test]
    fn every_line_is_a_list_of_events() {
        let files = Memory::new([
            ("offline/t/metrics.jsonl", log()),
            (
                "offline/t/task.json",
                "{\"name\": \"a run\", \"id\": \"t\", \"project_name\": \"p\", \"status\": \"stopped\"}".into(),
            ),
            ("other/metrics.jsonl", "{\"step\": 1, \"loss\": 2}\n".into()),
        ]);
        let recording = read_with(&files, &Limits::default());
        assert_eq!(points(&recording, "train/loss").len(), 4);
        assert_eq!(points(&recording, "grad_norm"), [(1, "0.5".into()), (2, "0".into()), (3, "NaN".into())]);
        assert_eq!(recording.series.len(), 2);
        assert_eq!((recording.records, recording.started), (4, Some(1_700_000_000_250)));
        let metadata: Vec<(&str, &str)> = recording.metadata.iter().map(|(key, text)| (&key[..], &text[..])).collect();
        assert_eq!(metadata, [("name", "a run"), ("run_id", "t"), ("project", "p"), ("status", "stopped")]);
    }

    #[test]
    fn cuts_and_windows() {
        let last = line(&[scalar("train", "loss", "1", 5), scalar("train", "loss", "Infinity", 6)]);
        let text = format!("{}[{{\"task\": x]\n{}", log(), last.trim_end());
        let file = |text: &str| Memory::new([("metrics.jsonl", text.to_owned())]);
        let whole = read_with(&file(&text), &Limits::default());
        assert_eq!(points(&whole, "train/loss")[4..], [(5, "1".into()), (6, "inf".into())]);
        let faults: Vec<_> = whole.faults.iter().map(|fault| (fault.kind, fault.place.at)).collect();
        assert_eq!(faults, [(FaultKind::Unparsable, 6)]);
        for (record, chunk) in [(400, 1), (450, 7), (512, usize::MAX)] {
            let chopped = Memory { chunk, ..file(&text) };
            let limits = Limits { record, ..Limits::default() };
            assert_eq!(format!("{:?}", read_with(&chopped, &limits)), format!("{whole:?}"));
        }
        let mut before = 0;
        for cut in 200..=text.len() {
            let recording = read_with(&file(&text[..cut]), &Limits::default());
            let count: u64 = recording.series.iter().map(|series| series.tally.rows).sum();
            assert!(count >= before, "cut at byte {cut}");
            before = count;
        }
        assert_eq!(before, 9);
    }
}
