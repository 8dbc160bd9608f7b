#![doc = include_str!("hf_trainer.md")]

use memchr::memmem;

use super::json_rows::{Cut, JsonRows, fingerprint};
use super::{
    About, Builder, Confidence, Progress, Reader, Rejected, Request, Session, StreamDecoder, Tracker,
    is_git_lfs_pointer, single,
};
use crate::model::source::plain;
use crate::model::{Entry, Fault, FaultKind, Format, Part, PlaceUnit, Recording, Severity, Source, checkpoint_name};
use crate::wire::json::{Cursor, Kind, Rows, Skip, Skipper, Stop};
use crate::wire::utf16;

const FILE_NAME: &str = "trainer_state.json";

/// The reader of `trainer_state.json`.
pub struct HfTrainer;

impl Reader for HfTrainer {
    fn format(&self) -> Format {
        Format::HfTrainer
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "trainer_state.json, in an output directory and its checkpoint-N directories",
            nonfinite: "NaN, Infinity, also quoted",
            missing: "key absent, null (TRL: NaN in every sample)",
            not_read: "stateful_callbacks; the summary entry at the end of a history",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[Tracker {
            name: "Hugging Face Trainer",
            version: "built",
            files: "trainer_state.json of the output directory and its checkpoints",
            nonfinite: "bare NaN, Infinity; NaN losses are averaged away by default (logging_nan_inf_filter)",
            missing: "key absent; null in TRL",
            not_read: "the end of a run that died before its first checkpoint",
        }]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name {
            FILE_NAME => Confidence::Certain,
            _ if name.ends_with(".json") => Confidence::Maybe,
            _ => Confidence::No,
        }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        if self.recognise_name(path) == Confidence::Certain {
            return Confidence::Certain;
        }
        let head = utf16::head_as_utf8(head);
        let has = |key: &[u8]| memmem::find(&head, key).is_some();
        if has(b"\"log_history\"") && has(b"\"global_step\"") && !head.trim_ascii_start().starts_with(b"[") {
            // The summary that ms-swift appends to its JSON Lines holds both keys too, on one of many lines.
            if has(b"\n{") { Confidence::No } else { Confidence::Certain }
        } else {
            Confidence::No
        }
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        let mut sources: Vec<Source> = Vec::new();
        for index in own {
            let entry = &entries[*index];
            if entry.plain_name() != FILE_NAME {
                sources.push(single(Format::HfTrainer, entry));
                continue;
            }
            let output = output_directory(entry.parent());
            let name = entry.path[output.len()..].trim_start_matches('/').to_owned();
            let part = Part { path: entry.path.clone(), name, size: entry.size };
            match sources
                .iter_mut()
                .rev()
                .find(|source| source.path == output && plain(&source.parts[0].name).ends_with(FILE_NAME))
            {
                Some(source) => source.parts.push(part),
                None => sources.push(Source {
                    format: Format::HfTrainer,
                    path: output.to_owned(),
                    directory: output.to_owned(),
                    parts: vec![part],
                }),
            }
        }
        for source in &mut sources {
            source.parts.sort_by_key(|part| std::cmp::Reverse(reach_by_name(&part.name)));
        }
        sources
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        let mut builder = session.builder(Format::HfTrainer, PlaceUnit::Byte);
        let order = order(source, session)?;
        // What is wrong with copies that are not read; the faults of those that are come with reading them.
        order.faults.into_iter().for_each(|fault| builder.fault(fault));
        for reading in order.readings {
            builder.begin_part(reading.part as u32);
            let mut decoder = Decoder::new(reading.skip);
            session.stream_text(&source.parts[reading.part], &mut decoder, &mut builder)?;
            decoder.verdict(&source.parts[reading.part])?;
        }
        Ok(vec![builder.finish()])
    }
}

/// The directory of the training: a `checkpoint-N` holds a copy of its parent's state.
fn output_directory(directory: &str) -> &str {
    let (parent, name) = directory.rsplit_once('/').unwrap_or(("", directory));
    let is_copy = checkpoint_name::parse(name, true).is_some_and(|checkpoint| checkpoint.layout == "hf");
    if is_copy { parent } else { directory }
}

/// How far a copy reaches by its name; the whole run's own file first.
fn reach_by_name(name: &str) -> u64 {
    let directory = name.rsplit_once('/').map_or("", |(directory, _)| directory);
    match checkpoint_name::parse(directory, true) {
        Some(checkpoint) => checkpoint.number,
        None => u64::MAX,
    }
}

/// One copy to read, from its `skip`th entry on.
struct Reading {
    part: usize,
    skip: u64,
}

/// Which copies to read, in which order: abandoned branches from where they fork, then the copy that reaches furthest.
struct Order {
    readings: Vec<Reading>,
    faults: Vec<Fault>,
}

fn order(source: &Source, session: &mut Session<'_>) -> Result<Order, Rejected> {
    let first = || Order { readings: vec![Reading { part: 0, skip: 0 }], faults: Vec::new() };
    if source.parts.len() == 1 {
        return Ok(first());
    }
    let mut copies: Vec<Copy> = Vec::new();
    let mut faults = Vec::new();
    for part in 0..source.parts.len() {
        match glance(source, part, session) {
            Ok(copy) => copies.push(copy),
            Err(Rejected::Cancelled) => return Err(Rejected::Cancelled),
            Err(rejected) => {
                let place = crate::model::Place { part: part as u32, unit: PlaceUnit::Byte, at: 0 };
                let mut fault = Fault::new(FaultKind::Unparsable, place, format!("a copy of the state: {rejected}"));
                fault.severity = Severity::Warning;
                faults.push(fault);
            }
        }
    }
    let Some(furthest) =
        copies.iter().enumerate().max_by_key(|(at, copy)| (copy.last_step, copy.entries.len(), std::cmp::Reverse(*at)))
    else {
        return Ok(first());
    };
    let furthest = copies.swap_remove(furthest.0);
    let common = |a: &Copy, b: &Copy| a.entries.iter().zip(&b.entries).take_while(|(a, b)| a == b).count();
    let mut drop_faults = |copy: &mut Copy| faults.append(&mut copy.faults);
    copies.retain_mut(|copy| {
        let forks = common(copy, &furthest) < copy.entries.len();
        if !forks {
            drop_faults(copy);
        }
        forks
    });
    // A prefix of another abandoned branch adds nothing either.
    copies.sort_by_key(|copy| (copy.last_step, copy.entries.len(), copy.part));
    let kept: Vec<bool> = (0..copies.len())
        .map(|at| !copies[at + 1..].iter().any(|other| common(&copies[at], other) == copies[at].entries.len()))
        .collect();
    let mut kept = kept.into_iter();
    copies.retain_mut(|copy| {
        let keep = kept.next().unwrap_or(true);
        if !keep {
            drop_faults(copy);
        }
        keep
    });
    copies.push(furthest);
    let mut readings = Vec::new();
    for (at, copy) in copies.iter().enumerate() {
        let skip = at.checked_sub(1).map_or(0, |before| common(&copies[before], copy));
        readings.push(Reading { part: copy.part, skip: skip as u64 });
    }
    Ok(Order { readings, faults })
}

/// What is compared of a copy: one fingerprint an entry.
struct Copy {
    part: usize,
    entries: Vec<u64>,
    last_step: Option<i64>,
    faults: Vec<Fault>,
}

fn glance(source: &Source, part: usize, session: &mut Session<'_>) -> Result<Copy, Rejected> {
    let request = Request::default();
    let mut throwaway = Builder::new(Format::HfTrainer, &request, session.limits, PlaceUnit::Byte);
    let mut decoder = Decoder::new(0);
    decoder.fingerprints = Some(Vec::new());
    throwaway.begin_part(part as u32);
    session.stream_text(&source.parts[part], &mut decoder, &mut throwaway)?;
    decoder.verdict(&source.parts[part])?;
    let entries = decoder.fingerprints.take().unwrap_or_default();
    let read = throwaway.finish();
    Ok(Copy { part, entries, last_step: read.axis.last_step, faults: read.faults })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before the opening brace of the document.
    Start,
    /// Between the keys of the document, before the history.
    Keys,
    /// Passing over the value of a key that is not wanted.
    Skipping,
    /// Between the entries of the history.
    Entries,
    /// After a broken entry, looking for the next that begins.
    Resync { comma: bool },
    /// Passing over an entry that is longer than the limit.
    LongEntry,
    /// After the history: only whether the document ends is of interest.
    Tail { depth: Depth },
    /// Past the end of the document, or of what can be read.
    Done,
}

/// Nesting after the history; strings may hold brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Depth {
    open: u64,
    string: bool,
    escape: bool,
}

#[derive(Debug)]
struct Decoder {
    rows: JsonRows,
    place: Place,
    skipper: Skipper,
    /// Entries still to pass over: an earlier copy had them.
    skip: u64,
    fingerprints: Option<Vec<u64>>,
    is_pointer: bool,
    saw_history: bool,
    saw_document: bool,
    broken: bool,
    empty: bool,
}

impl Decoder {
    fn new(skip: u64) -> Self {
        Self {
            rows: JsonRows::new(Rows::Free),
            place: Place::Start,
            skipper: Skipper::new(),
            skip,
            fingerprints: None,
            is_pointer: false,
            saw_history: false,
            saw_document: false,
            broken: false,
            empty: true,
        }
    }

    /// Whether what was streamed was a trainer state at all.
    fn verdict(&self, part: &Part) -> Result<(), Rejected> {
        let name = &part.name;
        if self.is_pointer {
            return Err(Rejected::unreadable("git-lfs-pointer", "a Git LFS pointer in place of the file"));
        }
        if self.saw_history {
            return Ok(());
        }
        Err(if self.empty {
            Rejected::unreadable("cut-header", format!("{name}: the file is empty"))
        } else if self.saw_document && !self.broken {
            Rejected::unreadable("not-a-recording", format!("{name}: no log_history in it"))
        } else {
            Rejected::unreadable("cut-header", format!("{name}: cut or broken before log_history"))
        })
    }

    fn truncated(&mut self, at: u64, into: &mut Builder<'_>) {
        if self.saw_history {
            let place = into.place(PlaceUnit::Byte, at);
            into.fault(Fault::new(FaultKind::Truncated, place, "the file ends inside the document"));
        }
        self.broken = true;
        self.place = Place::Done;
    }

    /// Goes on between the keys of the document: gives the bytes used.
    fn keys(&mut self, rest: &[u8], end: bool) -> Result<usize, Stop> {
        let fresh = self.place == Place::Start;
        let mut cursor = Cursor::resume(rest, 0, end, fresh);
        if fresh {
            if cursor.kind()? != Kind::Object {
                return Err(Stop::Invalid { at: cursor.position(), expected: "a JSON object" });
            }
            cursor.enter_object()?;
        }
        let Some(key) = cursor.next_key()? else {
            self.place = Place::Done;
            self.saw_document = true;
            return Ok(cursor.position());
        };
        let is_history = key.is("log_history");
        if is_history && cursor.kind()? == Kind::Array {
            cursor.enter_array()?;
            self.place = Place::Entries;
            self.saw_history = true;
        } else {
            // A history of null is one without entries.
            self.saw_history |= is_history && cursor.kind()? == Kind::Null;
            self.place = Place::Skipping;
            self.skipper = Skipper::new();
        }
        Ok(cursor.position())
    }

    /// Reads entries until the window is used up or something else comes; gives the bytes used.
    fn entries(&mut self, window: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> Result<usize, Stop> {
        let mut used = 0;
        loop {
            let rest = &window[used..];
            let blank = rest.iter().take_while(|byte| byte.is_ascii_whitespace() || matches!(**byte, b',' | 0)).count();
            used += blank;
            let rest = &rest[blank..];
            match rest.first() {
                None => return Ok(used),
                Some(b']') => {
                    self.place = Place::Tail { depth: Depth { open: 1, string: false, escape: false } };
                    return Ok(used + 1);
                }
                Some(_) => {}
            }
            match self.entry(rest, at + used as u64, end, into) {
                Ok(length) => used += length,
                Err(Stop::Incomplete) if !end && rest.len() < into.limits().record => return Ok(used),
                Err(Stop::Incomplete) if !end => {
                    let place = into.place(PlaceUnit::Byte, at + used as u64);
                    let detail = format!("an entry is longer than {} bytes and was passed over", rest.len());
                    into.fault(Fault::new(FaultKind::Limit, place, detail));
                    self.place = Place::LongEntry;
                    self.skipper = Skipper::new();
                    return Ok(used);
                }
                Err(_) if end && self.is_cut(rest, at + used as u64, into) => return Err(Stop::Incomplete),
                Err(Stop::Incomplete) => return Err(Stop::Incomplete),
                Err(Stop::Invalid { at: broken, expected }) => {
                    into.end_cut_row();
                    let place = into.place(PlaceUnit::Byte, at + (used + broken) as u64);
                    into.fault(Fault::new(FaultKind::Unparsable, place, format!("want {expected}")));
                    self.place = Place::Resync { comma: false };
                    return Ok(used + broken.max(1).min(rest.len()));
                }
            }
        }
    }

    #[inline]
    fn entry(&mut self, rest: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> Result<usize, Stop> {
        if self.skip > 0 {
            let mut cursor = Cursor::resume(rest, 0, end, false);
            cursor.skip_value()?;
            self.skip -= 1;
            return Ok(cursor.position());
        }
        let used = self.rows.row(rest, end, at, into)?;
        if let Some(fingerprints) = &mut self.fingerprints {
            fingerprints.push(fingerprint(&rest[..used]));
        }
        Ok(used)
    }

    /// Whether the entry that could not be read is cut by the end of the file; takes of it what counts.
    fn is_cut(&mut self, rest: &[u8], at: u64, into: &mut Builder<'_>) -> bool {
        if self.skip > 0 {
            return false;
        }
        let cut = self.rows.cut_row(rest, at, into);
        if cut == Cut::Lost {
            let detail = "the entry that the end cuts holds a NaN or Inf, but its step was not read";
            into.fault(Fault::new(FaultKind::Unparsable, into.place(PlaceUnit::Byte, at), detail));
        }
        cut != Cut::Broken
    }

    /// Looks for the next object that begins after a comma; gives the bytes used.
    fn resync(&mut self, window: &[u8], mut comma: bool) -> usize {
        for (at, byte) in window.iter().enumerate() {
            match byte {
                b'{' if comma => {
                    self.place = Place::Entries;
                    return at;
                }
                b',' => comma = true,
                byte if byte.is_ascii_whitespace() => {}
                _ => comma = false,
            }
        }
        self.place = Place::Resync { comma };
        window.len()
    }

    /// Follows the nesting after the history; gives the bytes used.
    fn tail(&mut self, window: &[u8], mut depth: Depth) -> usize {
        for (at, byte) in window.iter().enumerate() {
            if depth.string {
                match byte {
                    _ if depth.escape => depth.escape = false,
                    b'\\' => depth.escape = true,
                    b'"' => depth.string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => depth.string = true,
                b'{' | b'[' => depth.open += 1,
                b'}' | b']' => {
                    depth.open -= 1;
                    if depth.open == 0 {
                        self.place = Place::Done;
                        return at + 1;
                    }
                }
                _ => {}
            }
        }
        self.place = Place::Tail { depth };
        window.len()
    }
}

impl StreamDecoder for Decoder {
    fn feed(&mut self, window: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> Progress {
        if at == 0 && is_git_lfs_pointer(window) {
            self.is_pointer = true;
            self.place = Place::Done;
        }
        let mut used = 0;
        loop {
            let rest = &window[used..];
            self.empty &= rest.is_empty();
            let here = at + used as u64;
            let step = match self.place {
                Place::Done => return Progress::Used(window.len()),
                Place::Start | Place::Keys => self.keys(rest, end),
                Place::Skipping | Place::LongEntry => {
                    let back = if self.place == Place::Skipping { Place::Keys } else { Place::Entries };
                    match self.skipper.feed(rest, end) {
                        Ok(Skip::Done(length)) => {
                            self.place = back;
                            Ok(length)
                        }
                        Ok(Skip::More) => return Progress::Used(window.len()),
                        Err(stop) => Err(stop),
                    }
                }
                Place::Entries => match self.entries(rest, here, end, into) {
                    Ok(0) if self.place == Place::Entries => {
                        if end {
                            self.truncated(here, into);
                        }
                        return Progress::Used(if end { window.len() } else { used });
                    }
                    other => other,
                },
                Place::Resync { comma } => Ok(self.resync(rest, comma)),
                Place::Tail { depth } => Ok(self.tail(rest, depth)),
            };
            match step {
                Ok(length) => used += length,
                Err(Stop::Incomplete) if !end && rest.len() < into.limits().record => return Progress::Used(used),
                Err(Stop::Incomplete) => {
                    self.truncated(at + window.len() as u64, into);
                    return Progress::Used(window.len());
                }
                Err(Stop::Invalid { at: broken, expected }) => {
                    let place = into.place(PlaceUnit::Byte, here + broken as u64);
                    into.fault(Fault::new(FaultKind::Unparsable, place, format!("want {expected}")));
                    self.broken = true;
                    self.place = Place::Done;
                }
            }
            if used == window.len() && self.place != Place::Done {
                if end {
                    self.truncated(at + window.len() as u64, into);
                }
                return Progress::Used(window.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EntryKind, Signal};
    use crate::read::testing::Memory;

    fn state(entries: &[String], global_step: u64) -> String {
        format!(
            "{{\n  \"best_metric\": null,\n  \"global_step\": {global_step},\n  \"log_history\": [\n{}\n  ],\n  \
             \"stateful_callbacks\": {{\"a\": [\"}}]\", 1]}}\n}}",
            entries.join(",\n")
        )
    }

    fn entry(step: u64, norm: &str) -> String {
        format!(
            "    {{\n      \"epoch\": 0.5,\n      \"grad_norm\": {norm},\n      \"loss\": 2.5,\n      \"step\": {step}\n    }}"
        )
    }

    fn source(files: &Memory, paths: &[&str]) -> Source {
        let entries: Vec<Entry> = paths
            .iter()
            .map(|path| Entry { path: (*path).into(), size: files.part(path).size, kind: EntryKind::File })
            .collect();
        let mut sources = HfTrainer.group(&entries, &(0..entries.len()).collect::<Vec<_>>());
        assert_eq!(sources.len(), 1);
        sources.remove(0)
    }

    fn read(text: &str, chunk: usize) -> Result<Recording, Rejected> {
        let mut files = Memory::new([(FILE_NAME, text)]);
        files.chunk = chunk;
        Ok(files.read(&HfTrainer, &source(&files, &[FILE_NAME]))?.remove(0))
    }

    fn norms(recording: &Recording) -> Vec<(i64, f64)> {
        let Signal::Kept(kept) = &recording.series.iter().find(|series| series.name == "grad_norm").unwrap().signal
        else {
            panic!("gradient norms are kept")
        };
        kept.steps.iter().zip((0..kept.values.len()).map(|row| kept.values.get(row))).collect()
    }

    #[test]
    fn entries_with_every_spelling_and_a_summary_that_is_no_point() {
        let summary = "{\"step\": 5, \"train_loss\": 7.0, \"train_runtime\": 3.5}".to_owned();
        let spelled =
            [entry(1, "0.5"), entry(2, "NaN"), entry(3, "-Infinity"), entry(4, "\"nan\""), entry(5, "1e-3"), summary];
        for chunk in [1, 7, 64, usize::MAX] {
            let recording = read(&state(&spelled, 5), chunk).unwrap();
            let series = &recording.series[0];
            assert_eq!((series.tally.rows, series.tally.nan, series.tally.inf), (5, 2, 1));
            assert_eq!(norms(&recording).iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
            assert!(recording.series.iter().all(|series| series.name != "train_loss"));
            assert!(recording.faults.is_empty(), "{:?}", recording.faults);
        }
    }

    #[test]
    fn every_cut_keeps_the_entries_before_it() {
        let text = state(&[entry(1, "0.5"), entry(2, "NaN"), entry(3, "0.25")], 3);
        let ends: Vec<usize> = text.match_indices("\n    }").map(|(at, end)| at + end.len()).collect();
        for cut in 0..text.len() {
            let complete = ends.iter().filter(|end| **end <= cut).count();
            // Of the entry that a cut leaves open its NaN counts once its step was read.
            let nan_and_step = text.find("\"step\": 2\n").unwrap() + "\"step\": 2\n".len();
            let want = if cut >= nan_and_step { complete.max(2) } else { complete };
            match read(&text[..cut], usize::MAX) {
                Ok(recording) => {
                    let found = recording.series.iter().find(|s| s.name == "grad_norm").map_or(0, |s| s.tally.rows);
                    assert_eq!(found, want as u64, "cut at {cut}");
                    assert!(recording.faults.iter().any(|fault| fault.kind == FaultKind::Truncated), "cut at {cut}");
                }
                Err(Rejected::Unreadable { code, .. }) => {
                    assert_eq!((code, complete), ("cut-header", 0), "cut at {cut}");
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn a_broken_entry_costs_itself() {
        let text = state(&[entry(1, "0.5"), entry(2, "0.!5"), entry(3, "0.25")], 3);
        for chunk in [5, usize::MAX] {
            let recording = read(&text, chunk).unwrap();
            assert_eq!(norms(&recording), [(1, 0.5), (3, 0.25)]);
            assert_eq!(recording.faults.iter().map(|fault| fault.kind).collect::<Vec<_>>(), [FaultKind::Unparsable]);
        }
    }

    #[test]
    fn copies_are_one_recording_and_a_fork_is_an_attempt() {
        let steps =
            |range: std::ops::RangeInclusive<u64>, norm: &str| range.map(|s| entry(s, norm)).collect::<Vec<_>>();
        let abandoned = [steps(1..=4, "0.5"), steps(5..=8, "NaN")].concat();
        let resumed = [steps(1..=4, "0.5"), steps(5..=12, "0.25")].concat();
        let files = Memory::new([
            ("out/checkpoint-4/trainer_state.json", state(&resumed[..4], 4)),
            ("out/checkpoint-8/trainer_state.json", state(&abandoned, 8)),
            ("out/checkpoint-12/trainer_state.json", state(&resumed, 12)),
        ]);
        let source = source(
            &files,
            &[
                "out/checkpoint-12/trainer_state.json",
                "out/checkpoint-4/trainer_state.json",
                "out/checkpoint-8/trainer_state.json",
            ],
        );
        assert_eq!((source.path.as_str(), source.parts[0].name.as_str()), ("out", "checkpoint-12/trainer_state.json"));
        let recording = files.read(&HfTrainer, &source).unwrap().remove(0);
        let steps: Vec<i64> = norms(&recording).iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, (1..=8).chain(5..=12).collect::<Vec<_>>());
        assert_eq!(recording.axis.attempts.len(), 2);
        assert_eq!(recording.series[0].tally.nan, 4);
    }

    #[test]
    fn what_is_no_trainer_state_says_so() {
        let code = |text: &str| match read(text, usize::MAX) {
            Err(Rejected::Unreadable { code, .. }) => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code(""), "cut-header");
        assert_eq!(code("{\"global_step\": 5}"), "not-a-recording");
        assert_eq!(code("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "git-lfs-pointer");
        assert_eq!(code("[1, 2]"), "cut-header");
        let empty = read("{\"log_history\": []}", usize::MAX).unwrap();
        assert_eq!((empty.records, empty.faults.len()), (0, 0));
    }
}
