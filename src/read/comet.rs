#![doc = include_str!("comet.md")]

use std::collections::BTreeMap;

use memchr::memmem;

use super::json_events::{self, Dialect, Found, Point, enters, string};
use super::{About, Builder, Confidence, Reader, Rejected, Session, Tracker};
use crate::model::{Entry, EntryKind, Format, Part, PlaceUnit, Recording, Source};
use crate::wire::json::{Cursor, Stop};

/// The log of an experiment, and what it says of itself.
const MESSAGES: &str = "messages.json";
const EXPERIMENT: &str = "experiment.json";

/// The reader of Comet's offline experiments.
pub struct Comet;

impl Reader for Comet {
    fn format(&self) -> Format {
        Format::Comet
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "messages.json beside experiment.json, in an offline experiment's zip or unpacked",
            nonfinite: "\"NaN\", \"Infinity\", \"-Infinity\"",
            missing: "no message",
            not_read: "parameters, console output, system metrics, files",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[Tracker {
            name: "Comet offline",
            version: "3.58.8",
            files: "<key>.zip: messages.json, experiment.json",
            nonfinite: "\"NaN\", \"Infinity\", \"-Infinity\"",
            missing: "no message",
            not_read: "epochs, contexts, parameters, system metrics; archives of other names than *.zip",
        }]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        if path.rsplit('/').next() == Some(MESSAGES) { Confidence::Maybe } else { Confidence::No }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        if self.recognise_name(path) == Confidence::No {
            return Confidence::No;
        }
        let has = |mark: &str| memmem::find(head, mark.as_bytes()).is_some();
        let is_log = head.trim_ascii_start().starts_with(b"{") && has("\"type\"") && has("\"payload\"");
        if is_log && has("\"local_timestamp\"") { Confidence::Certain } else { Confidence::No }
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        let mut runs: BTreeMap<(&str, &str), Vec<&Entry>> = BTreeMap::new();
        for entry in own.iter().map(|index| &entries[*index]) {
            runs.entry(run(entry)).or_default().push(entry);
        }
        let part = |entry: &Entry, from: usize| Part {
            path: entry.path.clone(),
            name: entry.path[from..].to_owned(),
            size: entry.size,
        };
        let source = |mut logs: Vec<&Entry>| {
            // `key.zip` came before all `key-*.zip`, which sort by their times.
            logs.sort_by_key(|log| {
                (log.parent().ends_with(".zip") && key_of(log.parent()) != stem(log.parent()), &log.path)
            });
            let first = *logs.first()?;
            let home = first.parent();
            let inside = if home.is_empty() { 0 } else { home.len() + 1 };
            let outside = home.rfind('/').map_or(0, |at| at + 1);
            let from = if logs.len() > 1 { outside } else { inside };
            let mut parts: Vec<Part> = logs.iter().map(|log| part(log, from)).collect();
            let beside = format!("{}{EXPERIMENT}", &first.path[..inside]);
            let beside = entries.binary_search_by(|entry| entry.path.cmp(&beside)).ok().map(|at| &entries[at]);
            let beside = beside.filter(|entry| entry.kind == EntryKind::File);
            let mut source = super::single(Format::Comet, first);
            if let Some(beside) = beside {
                source.path = home.to_owned();
                parts.push(part(beside, from));
            }
            source.parts = parts;
            Some(source)
        };
        runs.into_values().filter_map(source).collect()
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        let mut builder = Builder::of_points(Format::Comet, session.request, session.limits, PlaceUnit::Line, false);
        for part in source.parts.iter().filter(|part| is_experiment(part)) {
            let keys = [("offline_id", "run_id"), ("project_name", "project"), ("workspace", "workspace")];
            json_events::describe(part, &keys, session, &mut builder)?;
        }
        json_events::read::<Messages>(source, session, builder, &|part| !is_experiment(part))
    }
}

/// The name of an archive without its suffix.
fn stem(home: &str) -> &str {
    let name = home.rsplit('/').next().unwrap_or(home);
    name.strip_suffix(".zip").unwrap_or(name)
}

/// The experiment's key in the name of its archive.
fn key_of(home: &str) -> &str {
    let stem = stem(home);
    stem.split('-').next().unwrap_or(stem)
}

/// Shortest key that tells experiments apart; Comet's have 32 characters and more.
const KEY: usize = 32;

/// What messages of one experiment have in common: a resumed one writes another archive, `<key>-<time>-<random>.zip`.
fn run(entry: &Entry) -> (&str, &str) {
    let home = entry.parent();
    let key = key_of(home);
    let is_key = home.ends_with(".zip") && key.len() >= KEY && key.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_key { (home.rsplit_once('/').map_or("", |(outer, _)| outer), key) } else { (&entry.path, "") }
}

fn is_experiment(part: &Part) -> bool {
    part.name.rsplit('/').next() == Some(EXPERIMENT)
}

/// `{"payload": {"local_timestamp": ..., "metric": {"metricName": "loss", "metricValue": 0.5, "step": 1}}, "type": "metric_msg"}`
#[derive(Debug, Default)]
struct Messages;

impl Dialect for Messages {
    fn record(&mut self, cursor: &mut Cursor<'_>, found: &mut Found) -> Result<(), Stop> {
        cursor.enter_object()?;
        while let Some(key) = cursor.next_key()? {
            if key.is("payload") && enters(cursor)? {
                payload(cursor, found)?;
            } else if !key.is("payload") {
                cursor.skip_value()?;
            }
        }
        Ok(())
    }
}

fn payload(cursor: &mut Cursor<'_>, found: &mut Found) -> Result<(), Stop> {
    let (mut key_of_other, mut other, mut context, mut time) = (None, None, None, None);
    while let Some(key) = cursor.next_key()? {
        if key.is("metric") {
            metric(cursor, context.as_deref(), time, found)?;
        } else if key.is("local_timestamp") {
            time = json_events::number(cursor)?;
            found.points.iter_mut().for_each(|point| point.time = time);
        } else if key.is("context") {
            context = string(cursor)?;
        } else if key.is("key") {
            key_of_other = string(cursor)?;
        } else if key.is("value") {
            other = string(cursor)?;
        } else {
            cursor.skip_value()?;
        }
    }
    if let (Some("Name"), Some(name)) = (key_of_other.as_deref(), other) {
        found.facts.push(("name", name));
    }
    Ok(())
}

fn metric(cursor: &mut Cursor<'_>, context: Option<&str>, time: Option<f64>, found: &mut Found) -> Result<(), Stop> {
    if !enters(cursor)? {
        return Ok(());
    }
    let (mut name, mut value, mut step) = (None, None, None);
    while let Some(key) = cursor.next_key()? {
        if key.is("metricName") {
            name = string(cursor)?;
        } else if key.is("metricValue") {
            value = found.value(cursor)?;
        } else if key.is("step") {
            step = json_events::number(cursor)?;
        } else {
            cursor.skip_value()?;
        }
    }
    if let (Some(name), Some(value)) = (name, value) {
        // As Comet shows it: the loss of a test must not pass for that of the training.
        let name = found.name(context.map_or_else(|| name.clone(), |context| format!("{context}_{name}")));
        found.point(Point { name, value, step, time });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FaultKind, Limits, Role, Signal};
    use crate::read::Request;
    use crate::read::testing::Memory;

    fn sources(files: &Memory) -> Vec<Source> {
        let mut paths: Vec<&String> = files.parts.keys().collect();
        paths.sort();
        let entries: Vec<Entry> =
            paths.iter().map(|path| Entry { path: (*path).clone(), size: 1, kind: EntryKind::File }).collect();
        let is_own =
            |at: &usize| Comet.recognise(&entries[*at].path, &files.parts[&entries[*at].path]) >= Confidence::Likely;
        let own: Vec<usize> = (0..entries.len()).filter(is_own).collect();
        Comet.group(&entries, &own)
    }

    fn read_with(files: &Memory, limits: &Limits) -> Recording {
        let sources = sources(files);
        assert_eq!(sources.len(), 1, "{sources:?}");
        let request = Request { everything: true, ..Request::default() };
        files.read_with(&Comet, &sources[0], &request, limits).expect("it can be read").remove(0)
    }

    fn points(recording: &Recording, name: &str) -> Vec<(i64, String)> {
        let series = recording.series.iter().find(|series| series.name == name).expect("the metric is there");
        let Signal::Kept(kept) = &series.signal else { panic!("every series of a full read is kept") };
        (0..kept.values.len()).map(|row| (kept.steps.get(row), kept.values.get(row).to_string())).collect()
    }

    fn message(name: &str, value: &str, step: &str) -> String {
        format!(
            "{{\"type\": \"metric_msg\", \"payload\": {{\"local_timestamp\": 1700000000250, \"metric\": \
             {{\"metricName\": \"{name}\", \"metricValue\": {value}, \"step\": {step}, \"epoch\": null}}}}}}\n"
        )
    }

    fn log() -> String {
        let mut log = String::from(
            "{\"type\": \"ws_msg\", \"payload\": {\"local_timestamp\": 1, \"stdout\": \"loss nan\"}}\n\
             {\"type\": \"log_other\", \"payload\": {\"key\": \"Name\", \"value\": \"a run\"}}\n\
             {\"type\": \"parameter_msg\", \"payload\": {\"param\": {\"paramName\": \"lr\", \"paramValue\": \"NaN\", \"step\": 0}}}\n",
        );
        for (step, norm) in [("1", "0.5"), ("2", "\"NaN\""), ("3", "\"-Infinity\""), ("null", "1")] {
            log += &message("train_loss", "2.5", step);
            log += &message("grad_norm", norm, step);
        }
        log
    }

    #[test]
    fn an_experiment_is_its_directory() {
        let files = Memory::new([
            ("out/abc.zip/messages.json", log()),
            (
                "out/abc.zip/experiment.json",
                "{\"offline_id\": \"abc\", \"project_name\": \"p\", \"start_time\": 1}".into(),
            ),
            ("out/messages.json", "{\"role\": \"user\"}\n".into()),
        ]);
        assert_eq!(sources(&files)[0].path, "out/abc.zip");
        let recording = read_with(&files, &Limits::default());
        let want = [(1, "0.5".into()), (2, "NaN".into()), (3, "-inf".into()), (3, "1".into())];
        assert_eq!(points(&recording, "grad_norm"), want);
        assert_eq!(points(&recording, "train_loss").len(), 4);
        assert_eq!(recording.series.len(), 2);
        assert_eq!((recording.started, recording.name.as_deref()), (Some(1_700_000_000_250), Some("a run")));
        let metadata: Vec<(&str, &str)> = recording.metadata.iter().map(|(key, text)| (&key[..], &text[..])).collect();
        assert_eq!(metadata, [("run_id", "abc"), ("project", "p"), ("name", "a run")]);
        // A log alone is a recording as well.
        let alone = Memory::new([("messages.json", log())]);
        assert_eq!(sources(&alone)[0].path, "messages.json");
        assert_eq!(points(&read_with(&alone, &Limits::default()), "grad_norm").len(), 4);
    }

    #[test]
    fn a_context_is_a_part_of_the_name() {
        let within = |context: &str| {
            let message = message("loss", "\"NaN\"", "7");
            message.replace("{\"local_timestamp\"", &format!("{{\"context\": \"{context}\", \"local_timestamp\""))
        };
        let log = [within("train"), within("test"), within("validate")].concat();
        let recording = read_with(&Memory::new([("messages.json", log)]), &Limits::default());
        let roles: Vec<_> = recording.series.iter().map(|series| (series.name.as_str(), series.role)).collect();
        let (loss, eval) = (Some(Role::Loss), Some(Role::EvalLoss));
        assert_eq!(roles, [("train_loss", loss), ("test_loss", eval), ("validate_loss", eval)]);
    }

    #[test]
    fn archives_of_one_key_are_attempts() {
        let key = "resumed1".repeat(5);
        let log = |steps: std::ops::Range<i64>| -> String {
            let first = steps.start;
            steps.map(|step| message("grad_norm", &format!("{first}.{step}"), &step.to_string())).collect()
        };
        let files = Memory::new([
            (format!("runs/{key}.zip/messages.json"), log(1..9)),
            (format!("runs/{key}.zip/experiment.json"), format!("{{\"offline_id\": \"{key}\"}}")),
            (format!("runs/{key}-1700000000-ab.zip/messages.json"), log(5..12)),
            (format!("runs/{key}-1700000000-ab.zip/experiment.json"), "{}".to_owned()),
        ]);
        let source = sources(&files).remove(0);
        assert_eq!(source.path, format!("runs/{key}.zip"));
        let names: Vec<&str> = source.parts.iter().map(|part| part.name.as_str()).collect();
        let want = [".zip/messages.json", "-1700000000-ab.zip/messages.json", ".zip/experiment.json"];
        assert_eq!(names, want.map(|name| format!("{key}{name}")));
        let recording = read_with(&files, &Limits::default());
        let attempts: Vec<_> = recording.axis.attempts.iter().map(|own| (own.record, own.first_step)).collect();
        assert_eq!(attempts, [(0, 1), (8, 5)]);
        // Names that are no keys tell nothing.
        let others = Memory::new([("a-1.zip/messages.json", log(1..3)), ("a-2.zip/messages.json", log(1..3))]);
        assert_eq!(sources(&others).len(), 2);
    }

    #[test]
    fn cuts_and_windows() {
        let text = format!("{}{{\"type\": \n{}", log(), message("grad_norm", "\"Infinity\"", "9").trim_end());
        let file = |text: &str| Memory::new([("messages.json", text.to_owned())]);
        let whole = read_with(&file(&text), &Limits::default());
        assert_eq!(points(&whole, "grad_norm").last(), Some(&(9, "inf".into())));
        let faults: Vec<_> = whole.faults.iter().map(|fault| (fault.kind, fault.place.at)).collect();
        assert_eq!(faults, [(FaultKind::Unparsable, 12)]);
        for (record, chunk) in [(256, 1), (300, 7), (512, usize::MAX)] {
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
