#![doc = include_str!("neptune.md")]

use super::json_events::{self, Dialect, Found, Point, enters, string};
use super::{About, Builder, Confidence, Reader, Rejected, Session, Tracker};
use crate::model::source::plain;
use crate::model::{Entry, Format, Part, PlaceUnit, Recording, Source};
use crate::wire::json::{Cursor, Kind, Stop};
use crate::wire::lines::{Ending, Lines};

/// What a container says of itself.
const METADATA: &str = "metadata.json";

/// The reader of the queues that Neptune 1.x keeps on disk.
pub struct Neptune;

impl Reader for Neptune {
    fn format(&self) -> Format {
        Format::Neptune
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "container directory below .neptune/: data-*.log, metadata.json",
            nonfinite: "lost: the client drops NaN and Inf with a warning; read if they stand there",
            missing: "no operation",
            not_read: "series of texts, single values, files; data-*.log that were sent are deleted by the client",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[Tracker {
            name: "Neptune",
            version: "1.14.0.post2",
            files: ".neptune/offline/<container>/data-*.log, .neptune/async/**/data-*.log",
            nonfinite: "dropped by the client when they are logged",
            missing: "no operation",
            not_read: "Neptune Scale's databases; series of texts; what was sent and deleted",
        }]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let is_inside = parent.split('/').any(|part| part == ".neptune");
        match (number(name).is_some(), name == METADATA, is_inside) {
            (true, ..) => Confidence::Maybe,
            (_, true, true) => Confidence::Certain,
            (_, true, false) => Confidence::Maybe,
            _ => Confidence::No,
        }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        let name = path.rsplit('/').next().unwrap_or(path);
        if name == METADATA {
            // The folder that was named may be the container itself.
            let by_name = self.recognise_name(path);
            let is_neptunes =
                by_name == Confidence::Certain || memchr::memmem::find(head, b"\"containerId\"").is_some();
            return if is_neptunes { Confidence::Certain } else { Confidence::No };
        }
        let is_inside = path.split('/').any(|part| part == ".neptune");
        if head.trim_ascii().is_empty() {
            return if is_inside && number(name).is_some() { Confidence::Likely } else { Confidence::No };
        }
        let Some(first) = Lines::new(head, true, Ending::Newline).find(|line| !line.bytes.trim_ascii().is_empty())
        else {
            return Confidence::No;
        };
        // Every record is `{"obj": {"type": ...`, whatever the operation.
        let begins = |bytes: &[u8]| -> Result<bool, Stop> {
            let mut cursor = Cursor::new(bytes);
            cursor.enter_object()?;
            let is_obj = cursor.next_key()?.is_some_and(|key| key.is("obj")) && cursor.kind()? == Kind::Object;
            if !is_obj {
                return Ok(false);
            }
            cursor.enter_object()?;
            Ok(cursor.next_key()?.is_some_and(|key| key.is("type")))
        };
        if begins(first.bytes).unwrap_or(false) { Confidence::Certain } else { Confidence::No }
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        let mut sources: Vec<Source> = Vec::new();
        let mut homes = std::collections::HashMap::new();
        for entry in own.iter().map(|index| &entries[*index]) {
            let home = entry.parent();
            let at = *homes.entry(home).or_insert_with(|| {
                let (path, directory) = (home.to_owned(), home.to_owned());
                sources.push(Source { format: Format::Neptune, path, directory, parts: Vec::new() });
                sources.len() - 1
            });
            let part = Part { path: entry.path.clone(), name: entry.name().to_owned(), size: entry.size };
            sources[at].parts.push(part);
        }
        // The number of a file is the version of its first operation.
        sources.iter_mut().for_each(|source| source.parts.sort_by_key(|part| number(plain(&part.name))));
        // Of a container that was sent whole only its metadata is left.
        sources.retain(|source| source.parts.iter().any(is_log));
        sources
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        let mut builder = Builder::of_points(Format::Neptune, session.request, session.limits, PlaceUnit::Line, false);
        for part in source.parts.iter().filter(|part| plain(&part.name) == METADATA) {
            let keys = [("containerId", "run_id"), ("containerType", "kind"), ("createdAt", "start_time")];
            json_events::describe(part, &keys, session, &mut builder)?;
        }
        json_events::read::<Operations>(source, session, builder, &is_log)
    }
}

fn is_log(part: &Part) -> bool {
    number(plain(&part.name)).is_some()
}

/// The number of `data-12.log`.
fn number(name: &str) -> Option<u64> {
    name.strip_prefix("data-")?.strip_suffix(".log")?.parse().ok()
}

/// `{"obj": {"type": "LogFloats", "path": [...], "values": [{"value": 0.5, "step": 1, "ts": 1.7e9}]}, "version": 1}`
#[derive(Debug, Default)]
struct Operations;

impl Dialect for Operations {
    fn record(&mut self, cursor: &mut Cursor<'_>, found: &mut Found) -> Result<(), Stop> {
        cursor.enter_object()?;
        while let Some(key) = cursor.next_key()? {
            if key.is("obj") && cursor.kind()? == Kind::Object {
                let result = operation(cursor, found);
                if result.is_err() {
                    // Whose they are was not read.
                    found.points.retain(|point| point.name < found.names.len());
                }
                result?;
            } else {
                cursor.skip_value()?;
            }
        }
        Ok(())
    }
}

/// Keys of the run itself, and what they are called here.
const FACTS: [(&str, &str); 3] =
    [("sys/name", "name"), ("sys/failed", "failed"), ("sys/custom_run_id", "custom_run_id")];

fn operation(cursor: &mut Cursor<'_>, found: &mut Found) -> Result<(), Stop> {
    cursor.enter_object()?;
    let (mut kind, mut path) = (None, None);
    while let Some(key) = cursor.next_key()? {
        if key.is("type") {
            kind = string(cursor)?;
        } else if key.is("path") && cursor.kind()? == Kind::Array {
            let mut parts: Vec<String> = Vec::new();
            cursor.enter_array()?;
            while cursor.next_item()? {
                parts.extend(string(cursor)?);
            }
            path = Some(parts.join("/"));
        } else if key.is("values") && kind.as_deref() == Some("LogFloats") && cursor.kind()? == Kind::Array {
            let name = path.clone().map_or(usize::MAX, |path| found.name(path));
            cursor.enter_array()?;
            while cursor.next_item()? {
                logged(cursor, name, found)?;
            }
        } else if key.is("value")
            && let Some(path) = &path
            && let Some((_, fact)) = FACTS.iter().find(|(known, _)| known == path)
        {
            let text = match cursor.kind()? {
                Kind::True | Kind::False => Some((cursor.bare()? == Kind::True).to_string()),
                _ => string(cursor)?,
            };
            found.facts.extend(text.map(|text| (*fact, text)));
        } else {
            cursor.skip_value()?;
        }
    }
    found.points.retain(|point| point.name < found.names.len());
    Ok(())
}

fn logged(cursor: &mut Cursor<'_>, name: usize, found: &mut Found) -> Result<(), Stop> {
    if !enters(cursor)? {
        return Ok(());
    }
    let (mut value, mut step, mut time) = (None, None, None);
    while let Some(key) = cursor.next_key()? {
        if key.is("value") {
            value = found.value(cursor)?;
        } else if key.is("step") {
            step = json_events::number(cursor)?;
        } else if key.is("ts") {
            time = json_events::number(cursor)?;
        } else {
            cursor.skip_value()?;
        }
    }
    if let Some(value) = value {
        found.point(Point { name, value, step, time });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EntryKind, FaultKind, Limits, Signal};
    use crate::read::Request;
    use crate::read::testing::Memory;

    const RUN: &str = ".neptune/offline/run__1__2__x";

    fn sources(files: &Memory) -> Vec<Source> {
        let mut paths: Vec<&String> = files.parts.keys().collect();
        paths.sort();
        let entries: Vec<Entry> =
            paths.iter().map(|path| Entry { path: (*path).clone(), size: 1, kind: EntryKind::File }).collect();
        let is_own = |at: &usize| match Neptune.recognise_name(&entries[*at].path) {
            Confidence::No => false,
            _ => Neptune.recognise(&entries[*at].path, &files.parts[&entries[*at].path]) >= Confidence::Likely,
        };
        let own: Vec<usize> = (0..entries.len()).filter(is_own).collect();
        Neptune.group(&entries, &own)
    }

    fn read_with(files: &Memory, limits: &Limits) -> Recording {
        let sources = sources(files);
        assert_eq!(sources.len(), 1, "{sources:?}");
        let request = Request { everything: true, ..Request::default() };
        files.read_with(&Neptune, &sources[0], &request, limits).expect("it can be read").remove(0)
    }

    fn points(recording: &Recording, name: &str) -> Vec<(i64, String)> {
        let series = recording.series.iter().find(|series| series.name == name).expect("the metric is there");
        let Signal::Kept(kept) = &series.signal else { panic!("every series of a full read is kept") };
        (0..kept.values.len()).map(|row| (kept.steps.get(row), kept.values.get(row).to_string())).collect()
    }

    fn floats(path: &str, values: &str) -> String {
        format!(
            "{{\"obj\": {{\"type\": \"LogFloats\", \"path\": [{path}], \"values\": [{values}]}}, \"version\": 6, \"at\": 1.7}}\n"
        )
    }

    fn value(value: &str, step: &str) -> String {
        format!("{{\"value\": {value}, \"step\": {step}, \"ts\": 1700000000.25}}")
    }

    #[test]
    fn a_container_is_its_files_in_the_order_of_their_versions() {
        let files = Memory::new([
            (
                format!("{RUN}/data-1.log"),
                format!(
                    "{}{}{}",
                    "{\"obj\": {\"type\": \"AssignString\", \"path\": [\"sys\", \"name\"], \"value\": \"n\\u00e4me\"}, \"version\": 1}\n",
                    "{\"obj\": {\"type\": \"LogStrings\", \"path\": [\"out\"], \"values\": [{\"value\": \"nan\", \"step\": null}]}, \"version\": 2}\n",
                    floats("\"train\", \"a.b\"", &[value("0.5", "0.5"), value("0.25", "2")].join(", ")),
                ),
            ),
            (format!("{RUN}/data-10.log"), floats("\"train\", \"a.b\"", &value("4", "4"))),
            (format!("{RUN}/data-9.log"), floats("\"train\", \"a.b\"", &value("3", "3"))),
            (
                format!("{RUN}/metadata.json"),
                "{\"mode\": \"offline\", \"containerId\": \"0-1\", \"containerType\": \"run\"}".into(),
            ),
            (".neptune/offline/run__sent/metadata.json".into(), "{}".into()),
            ("logs/data-1.log".into(), "step 1 loss 2\n".into()),
        ]);
        let recording = read_with(&files, &Limits::default());
        let want = [(0, "0.5".into()), (2, "0.25".into()), (3, "3".into()), (4, "4".into())];
        assert_eq!(points(&recording, "train/a.b"), want);
        assert_eq!(recording.series.len(), 1);
        assert!(recording.axis.fractional);
        assert_eq!(recording.name.as_deref(), Some("n\u{e4}me"));
        let metadata: Vec<(&str, &str)> = recording.metadata.iter().map(|(key, text)| (&key[..], &text[..])).collect();
        assert_eq!(metadata, [("run_id", "0-1"), ("kind", "run"), ("name", "n\u{e4}me")]);
        assert_eq!(recording.started, Some(1_700_000_000_250));
    }

    #[test]
    fn values_without_a_step_are_numbered() {
        let text: String =
            ["1.5", "NaN", "\"Infinity\""].iter().map(|text| floats("\"loss\"", &value(text, "null"))).collect();
        let recording = read_with(&Memory::new([(format!("{RUN}/data-1.log"), text)]), &Limits::default());
        assert_eq!(points(&recording, "loss"), [(0, "1.5".into()), (1, "NaN".into()), (2, "inf".into())]);
        let Signal::Kept(kept) = &recording.series[0].signal else { panic!("every series of a full read is kept") };
        assert_eq!(kept.stepless, [0, 1, 2]);
    }

    #[test]
    fn cuts_damage_and_windows() {
        let good = |step: i64| floats("\"grad_norm\"", &value("0.5", &step.to_string()));
        let many = floats("\"grad_norm\"", &[value("1", "4"), value("NaN", "5")].join(", "));
        let text = format!("{}{}{{\"obj\": x}}\n\0\0{}{}", good(1), good(2), good(3), many.trim_end());
        let file = |text: &str| Memory::new([(format!("{RUN}/data-1.log"), text.to_owned())]);
        let whole = read_with(&file(&text), &Limits::default());
        assert_eq!(points(&whole, "grad_norm").len(), 5);
        assert!(whole.unterminated);
        let faults: Vec<_> = whole.faults.iter().map(|fault| (fault.kind, fault.place.at)).collect();
        assert_eq!(faults, [(FaultKind::Unparsable, 3), (FaultKind::Stray, 4)]);
        for (record, chunk) in [(256, 1), (300, 7), (512, usize::MAX)] {
            let chopped = Memory { chunk, ..file(&text) };
            let limits = Limits { record, ..Limits::default() };
            assert_eq!(format!("{:?}", read_with(&chopped, &limits)), format!("{whole:?}"));
        }
        let (mut before, first) = (0, good(1).len());
        for cut in first..=text.len() {
            let recording = read_with(&file(&text[..cut]), &Limits::default());
            let count = recording.series.first().map_or(0, |series| series.tally.rows);
            assert!(count >= before, "cut at byte {cut}");
            before = count;
        }
        assert_eq!(before, 5);
        // The value is there, its step is not.
        let at = text.rfind("\"step\"").expect("a step");
        let cut = read_with(&file(&text[..at]), &Limits::default());
        let kinds: Vec<_> = cut.faults.iter().map(|fault| fault.kind).collect();
        assert_eq!(kinds[2..], [FaultKind::Truncated, FaultKind::Unparsable]);
    }
}
