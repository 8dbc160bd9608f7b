#![doc = include_str!("rlprobe.md")]

use std::collections::HashMap;

use memchr::memmem;

use super::broken::Broken;
use super::builder::rows::mix;
use super::parquet_columns::{Scratch, Table};
use super::{About, Builder, Confidence, Progress, Reader, Rejected, Session, StreamDecoder, Tracker, Want, clock};
use crate::model::checkpoint_name::Unit;
use crate::model::{
    Checkpoint, Entry, EntryKind, Event, Fault, FaultKind, Format, Limits, Part, Place, PlaceUnit, Recording, Severity,
    Source,
};
use crate::wire::json::{Cursor, Kind, Stop, Text};
use crate::wire::lines::{Ending, Lines};
use crate::wire::numbers::{parse_f64, parse_i64_step};
use crate::wire::parquet_pages::{Batch, Physical};

const MANIFEST: &str = "manifest.json";
const STEPS: &str = "steps.parquet";
const EVENTS: &str = "events.jsonl";
const PARTS: &str = "steps/part-";
/// The newest schema known; rlprobe itself refuses newer ones.
const SCHEMA_VERSION: f64 = 1.0;
/// Columns of rewards: never gradients or losses, whatever a reward function is called.
const REWARDS: &str = "reward_component.";

/// The reader of rlprobe run directories.
pub struct Rlprobe;

impl Reader for Rlprobe {
    fn format(&self) -> Format {
        Format::Rlprobe
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "run directory: manifest.json, steps.parquet or steps/part-*.parquet, events.jsonl",
            nonfinite: "IEEE NaN and Inf; the TRL adapter drops NaN and leaves a null",
            missing: "null",
            not_read: "samples/, lists (kl_positional), texts",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[Tracker {
            name: "rlprobe",
            version: "0.1.0",
            files: "manifest.json, steps.parquet or steps/part-*.parquet, events.jsonl",
            nonfinite: "IEEE NaN and Inf; its TRL adapter drops NaN",
            missing: "null",
            not_read: "samples/",
        }]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        if path.rsplit('/').next() == Some(MANIFEST) { Confidence::Maybe } else { Confidence::No }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        if self.recognise_name(path) == Confidence::No {
            return Confidence::No;
        }
        let (manifest, stop) = Manifest::parse(head);
        match stop {
            None if manifest.is_whole() => Confidence::Certain,
            None => Confidence::No,
            // Broken, or longer than the head: by what stands before the damage, or at least its marks.
            Some(_) if manifest.is_whole() => Confidence::Likely,
            Some(_) => {
                let marks = ["\"schema_version\"", "\"run_id\"", "\"created_at\""];
                let has = |mark: &&str| memmem::find(head, mark.as_bytes()).is_some();
                if marks.iter().filter(|mark| has(mark)).count() >= 2 { Confidence::Likely } else { Confidence::No }
            }
        }
    }

    fn claims_directory(&self) -> bool {
        true
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        let runs: Vec<&str> = own.iter().map(|index| entries[*index].parent()).collect();
        let mut sources: Vec<Source> = Vec::new();
        for run in &runs {
            let home = rank_home(run).filter(|home| runs.contains(home)).unwrap_or(run);
            sources.push(source(entries, run, home));
            // A rank whose own manifest is missing or beyond recognition still holds what only that rank saw.
            for rank in below(entries, run).iter().filter(|entry| entry.kind == EntryKind::Directory) {
                if rank_home(&rank.path) == Some(*run) && !runs.contains(&rank.path.as_str()) {
                    let orphan = source(entries, &rank.path, run);
                    if orphan.parts.iter().any(|part| part.name != MANIFEST) {
                        sources.push(orphan);
                    }
                }
            }
        }
        sources
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        let mut builder = session.builder(Format::Rlprobe, PlaceUnit::Row);
        read_manifest(source, session, &mut builder)?;
        let events = read_events(source, session, &mut builder)?;
        let seen = events.iter().filter(|pending| pending.event.kind == "nan_detected");
        if let Some(step) = seen.filter_map(|pending| pending.event.step).min() {
            builder.expect_event(step);
        }
        let mut steps = Steps { session, source, builder, events, next_event: 0, scratch: Scratch::default() };
        let failure = steps.read()?;
        let Steps { mut builder, mut events, next_event, .. } = steps;
        if let Some((part, broken)) = failure
            && builder.records() == 0
            && !events.iter().any(|pending| pending.event.kind == "nan_detected")
        {
            return Err(Rejected::unreadable(broken.code, format!("{}: {}", source.parts[part].name, broken.detail)));
        }
        let records = builder.records();
        events.iter_mut().skip(next_event).for_each(|pending| pending.event.record = records);
        events.into_iter().for_each(|pending| builder.event(pending.event));
        Ok(vec![builder.finish()])
    }
}

/// The run that a path `RUN/rank-NNN` belongs to.
fn rank_home(path: &str) -> Option<&str> {
    let (home, name) = path.rsplit_once('/').unwrap_or(("", path));
    let number = name.strip_prefix("rank-")?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(home)
}

/// The entries below a directory; they are sorted by path.
fn below<'a>(entries: &'a [Entry], directory: &str) -> &'a [Entry] {
    if directory.is_empty() {
        return entries;
    }
    let prefix = format!("{directory}/");
    let start = entries.partition_point(|entry| entry.path.as_str() < prefix.as_str());
    let length = entries[start..].partition_point(|entry| entry.path.starts_with(&prefix));
    &entries[start..start + length]
}

fn source(entries: &[Entry], run: &str, home: &str) -> Source {
    let skip = if run.is_empty() { 0 } else { run.len() + 1 };
    let mut parts: Vec<((u8, u64), Part)> = Vec::new();
    for entry in below(entries, run).iter().filter(|entry| entry.kind == EntryKind::File) {
        let name = &entry.path[skip..];
        let order = match name {
            MANIFEST => (0, 0),
            STEPS => (1, 0),
            EVENTS => (3, 0),
            _ => match part_number(name) {
                Some(number) => (2, number),
                None => continue,
            },
        };
        parts.push((order, Part { path: entry.path.clone(), name: name.to_owned(), size: entry.size }));
    }
    parts.sort_by_key(|(order, _)| *order);
    Source {
        format: Format::Rlprobe,
        path: run.to_owned(),
        directory: home.to_owned(),
        parts: parts.into_iter().map(|(_, part)| part).collect(),
    }
}

/// The number of `steps/part-00012.parquet`.
fn part_number(name: &str) -> Option<u64> {
    name.strip_prefix(PARTS)?.strip_suffix(".parquet")?.parse().ok()
}

fn find_part(source: &Source, name: &str) -> Option<usize> {
    source.parts.iter().position(|part| part.name == name)
}

/// What is needed of `manifest.json`.
#[derive(Debug, Default)]
struct Manifest {
    schema_version: Option<f64>,
    run_id: Option<String>,
    model_name: Option<String>,
    has_algorithm: bool,
    has_created_at: bool,
}

impl Manifest {
    /// What stands before the damage, and the damage.
    fn parse(bytes: &[u8]) -> (Self, Option<Stop>) {
        let mut manifest = Self::default();
        let stop = manifest.fill(bytes).err();
        (manifest, stop)
    }

    fn fill(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        let mut cursor = Cursor::with_end(bytes, true);
        cursor.enter_object()?;
        while let Some(key) = cursor.next_key()? {
            match (key.raw, cursor.kind()?) {
                (b"schema_version", Kind::Number) => self.schema_version = parse_f64(cursor.number()?),
                (b"run_id", Kind::String) => self.run_id = Some(decoded(&cursor.string()?)),
                (b"model_name", Kind::String) => self.model_name = Some(decoded(&cursor.string()?)),
                (name, Kind::String) => {
                    cursor.string()?;
                    self.has_algorithm |= name == b"algorithm";
                    self.has_created_at |= name == b"created_at";
                }
                _ => cursor.skip_value()?,
            }
        }
        Ok(())
    }

    /// Whether it holds what every rlprobe manifest holds.
    fn is_whole(&self) -> bool {
        self.schema_version.is_some() && self.run_id.is_some() && self.has_algorithm && self.has_created_at
    }
}

fn decoded(text: &Text<'_>) -> String {
    let mut decoded = String::new();
    text.decode(&mut decoded);
    decoded
}

fn read_manifest(source: &Source, session: &mut Session<'_>, builder: &mut Builder<'_>) -> Result<(), Rejected> {
    let Some(index) = find_part(source, MANIFEST) else {
        let place = builder.place(PlaceUnit::Byte, 0);
        builder.fault(Fault::new(FaultKind::Unparsable, place, "no manifest.json"));
        return Ok(());
    };
    let place = |at| Place { part: index as u32, unit: PlaceUnit::Byte, at };
    let bytes = match session.whole(&source.parts[index]) {
        Ok(bytes) => bytes,
        Err(Rejected::Cancelled) => return Err(Rejected::Cancelled),
        Err(Rejected::Io(error)) => {
            builder.fault(Fault::new(FaultKind::Io, place(0), error.to_string()));
            return Ok(());
        }
        Err(error) => {
            builder.fault(Fault::new(FaultKind::Limit, place(0), error.to_string()));
            return Ok(());
        }
    };
    let (manifest, stop) = Manifest::parse(&bytes);
    match stop {
        None => {}
        Some(stop @ Stop::Incomplete) => {
            builder.fault(Fault::new(FaultKind::Truncated, place(bytes.len() as u64), stop.to_string()));
        }
        Some(stop @ Stop::Invalid { at, .. }) => {
            builder.fault(Fault::new(FaultKind::Unparsable, place(at as u64), stop.to_string()));
        }
    }
    if let Some(version) = manifest.schema_version.filter(|version| *version > SCHEMA_VERSION) {
        let detail = format!("{MANIFEST}: schema_version {version}, want at most {SCHEMA_VERSION}");
        return Err(Rejected::unreadable("version", detail));
    }
    builder.name = manifest.run_id.or(manifest.model_name);
    Ok(())
}

/// An event that waits for its place among the rows.
struct Pending {
    /// As recorded, in seconds.
    timestamp: Option<f64>,
    event: Event,
}

fn read_events(
    source: &Source,
    session: &mut Session<'_>,
    builder: &mut Builder<'_>,
) -> Result<Vec<Pending>, Rejected> {
    let Some(index) = find_part(source, EVENTS) else { return Ok(Vec::new()) };
    builder.begin_part(index as u32);
    let mut log = EventLog { part: index as u32, line: 0, skipping: false, events: Vec::new() };
    match session.stream(&source.parts[index], &mut log, builder) {
        Err(Rejected::Io(error)) => {
            let place = builder.place(PlaceUnit::Line, log.line + 1);
            builder.fault(Fault::new(FaultKind::Io, place, error.to_string()));
        }
        result => result?,
    }
    Ok(log.events)
}

/// Reads `events.jsonl`.
struct EventLog {
    part: u32,
    /// Lines read.
    line: u64,
    /// Inside a line that is longer than the limit.
    skipping: bool,
    events: Vec<Pending>,
}

impl StreamDecoder for EventLog {
    fn feed(&mut self, window: &[u8], _at: u64, end: bool, into: &mut Builder<'_>) -> Progress {
        let mut lines = Lines::new(window, end, Ending::Newline);
        for line in lines.by_ref() {
            self.line += 1;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            self.read_line(line.bytes, line.terminated, into);
        }
        let used = lines.used();
        if used == 0 && window.len() >= into.limits().record {
            if !self.skipping {
                let detail = format!("a line of more than {} bytes", window.len());
                into.fault(Fault::new(FaultKind::Limit, self.place(1), detail));
            }
            self.skipping = true;
            return Progress::Used(window.len());
        }
        Progress::Used(used)
    }
}

impl EventLog {
    fn place(&self, ahead: u64) -> Place {
        Place { part: self.part, unit: PlaceUnit::Line, at: self.line + ahead }
    }

    /// Reads the events of a line: one, or after a crash in the middle of a line the rest of it and those that the
    /// resumed run appended.
    fn read_line(&mut self, line: &[u8], terminated: bool, into: &mut Builder<'_>) {
        let mut rest = line;
        while rest.iter().any(|byte| byte.is_ascii_graphic()) {
            let mut cursor = Cursor::with_end(rest, true);
            let found = RawEvent::parse(&mut cursor, into.limits());
            match found {
                Ok(event) => {
                    rest = &rest[cursor.position()..];
                    self.take(event, into);
                }
                Err(stop) => {
                    let (kind, detail) = match stop {
                        Stop::Incomplete if !terminated => (FaultKind::Truncated, "the last line is cut".to_owned()),
                        stop => (FaultKind::Unparsable, stop.to_string()),
                    };
                    into.fault(Fault::new(kind, self.place(0), detail));
                    match memmem::find(&rest[1..], b"{\"timestamp\"") {
                        Some(next) => rest = &rest[1 + next..],
                        None => return,
                    }
                }
            }
        }
    }

    fn take(&mut self, raw: RawEvent, into: &mut Builder<'_>) {
        let place = self.place(0);
        if matches!(raw.kind.as_str(), "recorder_drops" | "bad_record") {
            into.fault(Fault::new(FaultKind::Dropped, place, raw.message.clone()));
        }
        if raw.kind == "checkpoint"
            && let Some(number) = raw.step.and_then(|step| u64::try_from(step).ok())
        {
            into.checkpoint(Checkpoint { number, unit: Unit::Step, path: raw.path, complete: true });
            return;
        }
        // One more than the limit, for the builder to say so.
        if self.events.len() <= into.limits().events {
            let time = raw.timestamp.and_then(clock::from_number);
            let event = Event { kind: raw.kind, step: raw.step, time, message: raw.message, place, record: 0 };
            self.events.push(Pending { timestamp: raw.timestamp, event });
        }
    }
}

/// One line of `events.jsonl`.
#[derive(Debug, Default)]
struct RawEvent {
    timestamp: Option<f64>,
    kind: String,
    step: Option<i64>,
    message: String,
    path: String,
}

impl RawEvent {
    fn parse(cursor: &mut Cursor<'_>, limits: &Limits) -> Result<Self, Stop> {
        let mut event = Self::default();
        let mut has_kind = false;
        cursor.enter_object()?;
        while let Some(key) = cursor.next_key()? {
            match (key.raw, cursor.kind()?) {
                (b"timestamp", Kind::Number) => event.timestamp = parse_f64(cursor.number()?),
                (b"step", Kind::Number) => {
                    event.step = parse_f64(cursor.number()?).and_then(parse_i64_step).map(|(step, _)| step);
                }
                (b"kind", Kind::String) => {
                    event.kind = short(&cursor.string()?, limits);
                    has_kind = true;
                }
                (b"message", Kind::String) => event.message = short(&cursor.string()?, limits),
                (b"data", Kind::Object) => {
                    cursor.enter_object()?;
                    while let Some(key) = cursor.next_key()? {
                        let is_path = matches!(key.raw, b"path" | b"checkpoint_path" | b"checkpoint_dir");
                        if is_path && cursor.kind()? == Kind::String {
                            event.path = short(&cursor.string()?, limits);
                        } else {
                            cursor.skip_value()?;
                        }
                    }
                }
                _ => cursor.skip_value()?,
            }
        }
        if !has_kind {
            return Err(Stop::Invalid { at: cursor.position(), expected: "an event with a kind" });
        }
        Ok(event)
    }
}

/// The text, cut at the limit of names.
fn short(text: &Text<'_>, limits: &Limits) -> String {
    let mut text = decoded(text);
    let mut end = limits.name.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// What a pass over a file's rows is for.
enum Pass<'a> {
    /// Rows into the builder.
    Rows,
    /// The same, and a hash of each.
    RowsAndHashes(&'a mut Vec<u64>),
    /// Hashes alone.
    Hashes(&'a mut Vec<u64>),
}

/// Reads the rows.
struct Steps<'s, 'a> {
    session: &'s mut Session<'a>,
    source: &'s Source,
    builder: Builder<'a>,
    events: Vec<Pending>,
    next_event: usize,
    scratch: Scratch,
}

impl Steps<'_, '_> {
    /// Reads every file of rows that counts. The last one that could not be opened is given back.
    fn read(&mut self) -> Result<Option<(usize, Broken)>, Rejected> {
        let mut failure = None;
        let parts = &self.source.parts;
        let live: Vec<usize> = (0..parts.len()).filter(|index| part_number(&parts[*index].name).is_some()).collect();
        let compact = find_part(self.source, STEPS);
        let opened = compact.map(|index| (index, self.open(index)));
        let alone = usize::from(compact.is_some()) + live.len() == 1;
        match opened {
            Some((index, Ok(table))) if live.is_empty() => self.rows(&table, index, alone, Pass::Rows)?,
            Some((index, Ok(table))) => self.both(&table, index, &live, &mut failure)?,
            other => {
                if let Some((index, Err(broken))) = other {
                    self.fault(index, &broken);
                    failure = Some((index, broken));
                }
                for index in self.in_order(live)? {
                    match self.open(index) {
                        Ok(table) => self.rows(&table, index, false, Pass::Rows)?,
                        Err(broken) => {
                            self.fault(index, &broken);
                            failure = Some((index, broken));
                        }
                    }
                }
            }
        }
        Ok(failure)
    }

    /// Reads `steps.parquet`, and the parts beside it unless they are what it was made of.
    fn both(
        &mut self,
        table: &Table,
        index: usize,
        live: &[usize],
        failure: &mut Option<(usize, Broken)>,
    ) -> Result<(), Rejected> {
        let (mut whole, mut rest) = (Vec::new(), Vec::new());
        for part in live {
            match self.open(*part) {
                Ok(table) => self.rows(&table, *part, false, Pass::Hashes(&mut rest))?,
                Err(broken) => {
                    self.fault(*part, &broken);
                    *failure = Some((*part, broken));
                }
            }
        }
        self.rows(table, index, false, Pass::RowsAndHashes(&mut whole))?;
        if whole.ends_with(&rest) {
            return Ok(());
        }
        let place = Place { part: live[0] as u32, unit: PlaceUnit::Row, at: self.builder.records() };
        let detail = "steps/ holds rows that steps.parquet does not: read as a later attempt";
        let fault = Fault { severity: Severity::Info, ..Fault::new(FaultKind::Conflict, place, detail) };
        self.builder.fault(fault);
        for part in self.in_order(live.to_vec())? {
            // What could not be opened was told above.
            if let Ok(table) = self.open(part) {
                self.rows(&table, part, false, Pass::Rows)?;
            }
        }
        Ok(())
    }

    fn open(&self, index: usize) -> Result<Table, Broken> {
        let part = &self.source.parts[index];
        let ranges = self.session.files.ranges(part).map_err(|error| Broken::io(0, &error))?;
        Table::open(ranges, self.session.limits)
    }

    fn fault(&mut self, index: usize, broken: &Broken) {
        let place = Place { part: index as u32, unit: PlaceUnit::Byte, at: broken.at };
        self.builder.fault(Fault::new(broken.kind, place, broken.detail.clone()));
    }

    /// Parts in the order in which they were written. A resumed run numbers its parts from 0 again, over those of the
    /// run before; only the time of the first rows tells.
    fn in_order(&mut self, mut live: Vec<usize>) -> Result<Vec<usize>, Rejected> {
        if live.len() < 2 {
            return Ok(live);
        }
        let mut times = HashMap::new();
        for index in &live {
            if self.session.files.cancelled() {
                return Err(Rejected::Cancelled);
            }
            // A part that cannot be read gives no rows: its place does not matter.
            let Ok(table) = self.open(*index) else { continue };
            let Some(leaf) = table.leaves().iter().position(|leaf| leaf.name == "timestamp") else { return Ok(live) };
            if table.leaves()[leaf].physical.is_none() || table.leaves()[leaf].null {
                return Ok(live);
            }
            let mut first = None;
            table.scan(
                &[leaf],
                &mut self.scratch,
                self.session.limits,
                |_, _| {},
                |batches, count| {
                    first = (0..count).find_map(|row| batches[0].get(row)).filter(|time| time.is_finite());
                    false
                },
            );
            let Some(time) = first else { return Ok(live) };
            times.insert(*index, time);
        }
        live.sort_by(|a, b| match (times.get(a), times.get(b)) {
            (Some(a), Some(b)) => a.total_cmp(b),
            (a, b) => b.is_some().cmp(&a.is_some()),
        });
        Ok(live)
    }

    /// Goes over the rows of one file. `alone` says that no other file gives rows.
    fn rows(&mut self, table: &Table, index: usize, alone: bool, mut pass: Pass<'_>) -> Result<(), Rejected> {
        let limits = self.session.limits;
        let emit = !matches!(pass, Pass::Hashes(_));
        if emit {
            self.builder.begin_part(index as u32);
        }
        let columns = Columns::choose(table, &mut self.builder, self.session, alone);
        let (builder, events, next_event) = (&mut self.builder, &mut self.events, &mut self.next_event);
        let files = self.session.files;
        let mut faults = Vec::new();
        let mut cancelled = false;
        table.scan(
            &columns.wanted,
            &mut self.scratch,
            limits,
            |leaf, broken| {
                // The builder lists `Limits::faults` and counts the rest; a forged file must not make us hold millions.
                if faults.len() <= limits.faults {
                    faults.push((leaf, broken));
                }
            },
            |batches, count| {
                for row in 0..count {
                    if emit {
                        columns.pass_events(batches, row, builder.records(), events, next_event);
                        builder.begin_row(builder.records());
                        for (batch, id) in batches.iter().zip(&columns.ids) {
                            if let Some(value) = batch.get(row) {
                                builder.number(*id, value);
                            }
                        }
                        builder.end_row(None);
                    }
                    if let Pass::Hashes(hashes) | Pass::RowsAndHashes(hashes) = &mut pass {
                        hashes.push(columns.hash(batches, row));
                    }
                }
                cancelled = files.cancelled();
                !cancelled
            },
        );
        if emit {
            for (leaf, broken) in &faults {
                self.fault(index, broken);
                if let Some(id) = columns.wanted.iter().position(|wanted| wanted == leaf).map(|at| columns.ids[at]) {
                    self.builder.lost(id);
                }
            }
        }
        if cancelled { Err(Rejected::Cancelled) } else { Ok(()) }
    }
}

/// The columns of one file that are read.
struct Columns {
    /// Leaves.
    wanted: Vec<usize>,
    /// Their ids.
    ids: Vec<u32>,
    /// Hashes of their names.
    names: Vec<u64>,
    /// Which of them is the timestamp, and which the step.
    time: Option<usize>,
    step: Option<usize>,
}

impl Columns {
    fn choose(table: &Table, builder: &mut Builder<'_>, session: &Session<'_>, alone: bool) -> Self {
        let mut columns = Self { wanted: Vec::new(), ids: Vec::new(), names: Vec::new(), time: None, step: None };
        let request = session.request;
        for (index, leaf) in table.leaves().iter().enumerate().take(session.limits.columns) {
            let Some(physical) = leaf.physical.filter(|_| !leaf.null && leaf.name.len() <= session.limits.name) else {
                continue;
            };
            let is_asked = || request.everything || request.metrics.iter().any(|(_, glob)| glob.is_match(&leaf.name));
            if leaf.name.starts_with(REWARDS) && !is_asked() {
                continue;
            }
            let column = builder.column(&leaf.name);
            if column.want == Want::Note {
                builder.numeric(column.id);
                continue;
            }
            if alone && physical == Physical::Float {
                builder.narrow(column.id);
            }
            match leaf.name.as_str() {
                "timestamp" => columns.time = Some(columns.wanted.len()),
                "step" => columns.step = Some(columns.wanted.len()),
                _ => {}
            }
            columns.wanted.push(index);
            columns.ids.push(column.id);
            columns.names.push(leaf.name.bytes().fold(0, |hash, byte| mix(hash, u64::from(byte))));
        }
        columns
    }

    /// Gives the events that come before a row their place: by time, or by step where rows have no time.
    #[inline]
    fn pass_events(&self, batches: &[Batch], row: usize, record: u64, events: &mut [Pending], next: &mut usize) {
        while let Some(pending) = events.get_mut(*next) {
            let comes_before = match (self.time, self.step) {
                (Some(time), _) => match (pending.timestamp, batches[time].get(row)) {
                    (Some(event), Some(row)) => event <= row,
                    _ => false,
                },
                (None, Some(step)) => match (pending.event.step, batches[step].get(row)) {
                    (Some(event), Some(row)) => event as f64 <= row,
                    _ => false,
                },
                (None, None) => false,
            };
            if !comes_before {
                return;
            }
            pending.event.record = record;
            *next += 1;
        }
    }

    /// A hash of what a row holds; its missing cells do not matter, parts may lack their columns.
    fn hash(&self, batches: &[Batch], row: usize) -> u64 {
        let cells = batches.iter().zip(&self.names);
        cells
            .filter_map(|(batch, name)| batch.get(row).map(|value| mix(*name, value.to_bits())))
            .fold(0, |hash, cell| hash.wrapping_add(mix(cell, 0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::recording::{Series, Signal};
    use crate::read::Request;
    use crate::read::parquet_columns::writing::{Cells, file};
    use crate::read::testing::Memory;
    use parquet::basic::Compression;
    use parquet::file::properties::WriterProperties;

    const WHOLE: &str = r#"{"schema_version": 1, "run_id": "toy", "created_at": "2026-01-01T00:00:00+00:00",
        "algorithm": "grpo", "model_name": null, "world_size": 8, "trainer_config": {"lr": 1e-6}, "extra": {}}"#;

    fn parquet(columns: &[(&str, Cells)]) -> Vec<u8> {
        let zstd = WriterProperties::builder().set_compression(Compression::ZSTD(Default::default()));
        file(columns, zstd.build(), 1 << 20)
    }

    /// Rows of some steps as rlprobe writes them, with a NaN in the gradient norm at one of them.
    fn steps(range: std::ops::Range<i64>, nan_at: i64, start: f64) -> Vec<u8> {
        let norm = |step: i64| if step == nan_at { f64::NAN } else { 1.0 + (step % 7) as f64 / 10.0 };
        parquet(&[
            ("step", Cells::integers(range.clone())),
            ("timestamp", Cells::doubles(range.clone().map(|step| start + step as f64))),
            ("rank", Cells::integers(range.clone().map(|_| 0))),
            ("kl_max", Cells::Null(range.clone().count())),
            ("loss", Cells::doubles(range.clone().map(|step| 2.0 - step as f64 / 1e4))),
            ("grad_norm", Cells::doubles(range.clone().map(norm))),
            ("nan_count", Cells::integers(range.clone().map(|step| i64::from(step == nan_at)))),
            ("reward_component.loss", Cells::doubles(range.map(|_| f64::NAN))),
        ])
    }

    fn event(time: f64, kind: &str, step: &str, rest: &str) -> String {
        format!(r#"{{"timestamp":{time},"kind":"{kind}","step":{step},"rank":0,"message":"m","data":{{{rest}}}}}"#)
    }

    /// All files of a run at `run`.
    fn run(files: Vec<(&str, Vec<u8>)>) -> (Memory, Source) {
        let memory = Memory::new(files.into_iter().map(|(name, bytes)| (format!("run/{name}"), bytes)));
        let mut entries: Vec<Entry> = memory
            .parts
            .iter()
            .map(|(path, bytes)| Entry { path: path.clone(), size: bytes.len() as u64, kind: EntryKind::File })
            .collect();
        entries.sort();
        (memory, source(&entries, "run", "run"))
    }

    fn read(files: Vec<(&str, Vec<u8>)>) -> Recording {
        try_read(files).unwrap()
    }

    fn try_read(files: Vec<(&str, Vec<u8>)>) -> Result<Recording, Rejected> {
        let (memory, source) = run(files);
        memory.read(&Rlprobe, &source).map(|mut recordings| {
            assert_eq!(recordings.len(), 1);
            recordings.remove(0)
        })
    }

    fn series<'a>(recording: &'a Recording, name: &str) -> &'a Series {
        recording.series.iter().find(|series| series.name == name).unwrap()
    }

    fn attempts(recording: &Recording) -> Vec<(u64, i64, i64)> {
        recording.axis.attempts.iter().map(|attempt| (attempt.record, attempt.first_step, attempt.last_step)).collect()
    }

    fn kinds(recording: &Recording) -> Vec<FaultKind> {
        recording.faults.iter().map(|fault| fault.kind).collect()
    }

    #[test]
    fn a_closed_run() {
        let events = [
            event(1.76e9 + 100.0, "train_begin", "0", ""),
            event(1.76e9 + 500.0, "checkpoint", "500", r#""path": "ckpt/500""#),
            event(1.76e9 + 699.5, "nan_detected", "700", r#""metric": null"#),
        ];
        let recording = read(vec![
            (MANIFEST, WHOLE.into()),
            (STEPS, steps(1..1001, 700, 1.76e9)),
            (EVENTS, events.join("\n").into()),
            ("samples/shard-00000.parquet", vec![0; 10]),
        ]);
        assert_eq!(recording.name.as_deref(), Some("toy"));
        assert_eq!((recording.records, recording.axis.step_name.as_deref()), (1000, Some("step")));
        assert_eq!(recording.axis.last_step, Some(1000));
        assert_eq!(recording.faults, []);
        let norm = series(&recording, "grad_norm");
        assert_eq!((norm.tally.rows, norm.tally.nan, norm.first_step), (1000, 1, 1));
        let Signal::Kept(kept) = &norm.signal else { panic!("a gradient norm is kept") };
        assert!(kept.values.get(699).is_nan());
        assert_eq!((kept.steps.get(699), kept.times.get(699)), (700, Some(1_760_000_700_000)));
        let Signal::Reduced(count) = &series(&recording, "nan_count").signal else { panic!("a counter is reduced") };
        assert_eq!((count.bad.len(), count.bad[0].first_step), (1, 700));
        assert!(!recording.series.iter().any(|series| series.name.starts_with(REWARDS)));
        let checkpoint = &recording.checkpoints[0];
        assert_eq!((checkpoint.number, checkpoint.unit, checkpoint.path.as_str()), (500, Unit::Step, "ckpt/500"));
        let events: Vec<_> = recording.events.iter().map(|e| (e.kind.as_str(), e.step, e.record)).collect();
        assert_eq!(events, [("train_begin", Some(0), 99), ("nan_detected", Some(700), 699)]);
    }

    #[test]
    fn parts_are_read_by_number_whatever_their_types() {
        let ints = |range: std::ops::Range<i64>| Cells::integers(range);
        let first = [("step", ints(0..5)), ("grad_norm", Cells::Null(5)), ("loss", Cells::doubles([1.0; 5]))];
        let second =
            [("step", ints(5..10)), ("grad_norm", Cells::integers([1; 5])), ("extra.x", Cells::doubles([0.5; 5]))];
        let last = [("grad_norm", Cells::F64(vec![Some(f64::INFINITY), None])), ("step", ints(10..12))];
        let recording = read(vec![
            (MANIFEST, WHOLE.into()),
            ("steps/part-00002.parquet", parquet(&second)),
            ("steps/part-100000.parquet", parquet(&last)),
            ("steps/part-00000.parquet", parquet(&first)),
        ]);
        assert_eq!(attempts(&recording), [(0, 0, 11)]);
        let norm = series(&recording, "grad_norm");
        assert_eq!((norm.tally.rows, norm.tally.inf), (6, 1));
        assert_eq!(recording.part_starts, [(0, 1), (5, 2), (10, 3)]);
        assert_eq!(recording.unrecognised, ["extra.x"]);
    }

    #[test]
    fn parts_left_by_a_crash_after_compaction_are_not_read_twice() {
        let recording = read(vec![
            (MANIFEST, WHOLE.into()),
            (STEPS, steps(0..600, 450, 1.76e9)),
            ("steps/part-00001.parquet", steps(200..400, -1, 1.76e9)),
            ("steps/part-00002.parquet", steps(400..600, 450, 1.76e9)),
        ]);
        assert_eq!((recording.records, recording.faults.len()), (600, 0));
    }

    #[test]
    fn a_resumed_run_that_died_is_a_later_attempt() {
        let recording = read(vec![
            (MANIFEST, WHOLE.into()),
            (STEPS, steps(0..600, -1, 1.76e9)),
            ("steps/part-00000.parquet", steps(500..550, 520, 1.77e9)),
        ]);
        assert_eq!(attempts(&recording), [(0, 0, 599), (600, 500, 549)]);
        assert_eq!(series(&recording, "grad_norm").tally.nan, 1);
        assert_eq!((kinds(&recording), recording.faults[0].severity), (vec![FaultKind::Conflict], Severity::Info));
    }

    #[test]
    fn parts_of_two_attempts_are_ordered_by_time() {
        let recording = read(vec![
            (MANIFEST, WHOLE.into()),
            ("steps/part-00000.parquet", steps(500..550, 520, 1.77e9)),
            ("steps/part-00001.parquet", steps(200..400, -1, 1.76e9)),
            ("steps/part-00002.parquet", steps(400..600, -1, 1.76e9)),
        ]);
        assert_eq!(attempts(&recording), [(0, 200, 599), (400, 500, 549)]);
        assert_eq!(recording.part_starts, [(0, 2), (200, 3), (400, 1)]);
    }

    #[test]
    fn a_broken_compaction_leaves_the_parts() {
        let mut cut = steps(0..600, 450, 1.76e9);
        cut.truncate(3000);
        let recording = read(vec![
            (MANIFEST, WHOLE.into()),
            (STEPS, cut.clone()),
            ("steps/part-00000.parquet", steps(0..600, 450, 1.76e9)),
        ]);
        assert_eq!(kinds(&recording), [FaultKind::Truncated]);
        assert_eq!((recording.records, series(&recording, "grad_norm").tally.nan), (600, 1));

        let alone = try_read(vec![(MANIFEST, WHOLE.into()), (STEPS, cut.clone())]).unwrap_err();
        assert!(matches!(alone, Rejected::Unreadable { code: "cut-header", .. }), "{alone}");
        let nan = event(1.76e9, "nan_detected", "450", "");
        let recording = read(vec![(MANIFEST, WHOLE.into()), (STEPS, cut), (EVENTS, nan.into())]);
        assert_eq!((recording.records, recording.events.len(), recording.faults.len()), (0, 1, 1));
    }

    #[test]
    fn death_before_the_first_flush() {
        let events = event(1.76e9, "train_begin", "0", "") + "\n";
        let recording = read(vec![(MANIFEST, WHOLE.into()), (EVENTS, events.into())]);
        assert_eq!((recording.records, recording.events.len(), recording.faults.len()), (0, 1, 0));
    }

    #[test]
    fn bad_lines_cost_themselves_alone() {
        let lines = [
            event(1.0, "nan_detected", "3", ""),
            r#"{"timestamp":2.0,"kind":"che"#.to_owned() + &event(3.0, "nan_detected", "4", r#""x": [{"a": NaN}]"#),
            "not json".to_owned(),
            String::new(),
            r#"{"timestamp":3.5}"#.to_owned(),
            event(4.0, "recorder_drops", "null", r#""count": 17"#),
            event(5.0, "checkpoint", "8", ""),
            r#"{"timestamp":6.0,"kind":"cra"#.to_owned(),
        ];
        let files = vec![(MANIFEST, WHOLE.into()), (EVENTS, lines.join("\n").into_bytes())];
        let recording = read(files.clone());
        let found: Vec<_> = recording.events.iter().map(|e| (e.kind.as_str(), e.step, e.place.at)).collect();
        assert_eq!(found, [("nan_detected", Some(3), 1), ("nan_detected", Some(4), 2), ("recorder_drops", None, 6)]);
        let faults: Vec<_> = recording.faults.iter().map(|fault| (fault.kind, fault.place.at)).collect();
        let want = [
            (FaultKind::Unparsable, 2),
            (FaultKind::Unparsable, 3),
            (FaultKind::Unparsable, 5),
            (FaultKind::Dropped, 6),
            (FaultKind::Truncated, 8),
        ];
        assert_eq!(faults, want);
        assert_eq!(recording.checkpoints.len(), 1);

        let (mut memory, source) = run(files);
        for chunk in [1, 7, 100] {
            memory.chunk = chunk;
            for record in [8, 64, 1 << 20] {
                let limits = Limits { record, ..Limits::default() };
                let chopped = memory.read_with(&Rlprobe, &source, &Request::default(), &limits).unwrap().remove(0);
                if record > 1000 {
                    assert_eq!((&chopped.events, &chopped.faults), (&recording.events, &recording.faults));
                } else {
                    assert!(kinds(&chopped).contains(&FaultKind::Limit));
                }
            }
        }
    }

    #[test]
    fn manifests() {
        let newer = WHOLE.replace("\"schema_version\": 1", "\"schema_version\": 2");
        let rejected = try_read(vec![(MANIFEST, newer.into()), (STEPS, steps(0..9, -1, 0.0))]).unwrap_err();
        assert!(matches!(rejected, Rejected::Unreadable { code: "version", .. }));
        let cut = &WHOLE[..WHOLE.len() / 2];
        let recording = read(vec![(MANIFEST, cut.into()), (STEPS, steps(0..9, -1, 0.0))]);
        assert_eq!((kinds(&recording), recording.records), (vec![FaultKind::Truncated], 9));
        assert_eq!(recording.name.as_deref(), Some("toy"));
    }

    #[test]
    fn recognised_by_content() {
        let recognise = |head: &str| Rlprobe.recognise("a/manifest.json", head.as_bytes());
        assert_eq!(recognise(WHOLE), Confidence::Certain);
        assert_eq!(recognise(&WHOLE[..WHOLE.len() - 20]), Confidence::Likely);
        assert_eq!(recognise(&WHOLE[..60]), Confidence::Likely);
        assert_eq!(recognise(r#"{"name": "app", "icons": [], "schema_version": 1, "run_id": "x"}"#), Confidence::No);
        assert_eq!(recognise(r#"{"short_name": "app", "start_url": "/"}"#), Confidence::No);
        assert_eq!(recognise(""), Confidence::No);
        assert_eq!(Rlprobe.recognise("a/other.json", WHOLE.as_bytes()), Confidence::No);
        assert_eq!(Rlprobe.recognise_name("manifest.json"), Confidence::Maybe);
    }

    #[test]
    fn each_rank_is_a_recording_of_its_own() {
        let file = |path: &str| Entry { path: path.to_owned(), size: 1, kind: EntryKind::File };
        let directory = |path: &str| Entry { path: path.to_owned(), size: 0, kind: EntryKind::Directory };
        let mut entries = vec![
            directory("a"),
            file("a/events.jsonl"),
            file("a/manifest.json"),
            directory("a/rank-001"),
            file("a/rank-001/manifest.json"),
            file("a/rank-001/steps.parquet"),
            directory("a/rank-002"),
            file("a/rank-002/events.jsonl"),
            directory("a/rank-003"),
            file("a/samples/shard-00000.parquet"),
            file("a/steps/part-00000.parquet"),
            file("a/steps/part-00010.parquet"),
            file("a/steps/part-00002.parquet"),
            file("a/steps.parquet"),
            file("ab/manifest.json"),
            file("ab/rank-x/manifest.json"),
        ];
        entries.sort();
        let own: Vec<usize> = (0..entries.len()).filter(|at| entries[*at].name() == MANIFEST).collect();
        let sources = Rlprobe.group(&entries, &own);
        let found: Vec<_> = sources.iter().map(|s| (s.path.as_str(), s.directory.as_str(), s.parts.len())).collect();
        let want = [
            ("a", "a", 6),
            ("a/rank-002", "a", 1),
            ("a/rank-001", "a", 2),
            ("ab", "ab", 1),
            ("ab/rank-x", "ab/rank-x", 1),
        ];
        assert_eq!(found, want);
        let names: Vec<&str> = sources[0].parts.iter().map(|part| part.name.as_str()).collect();
        let parts = ["steps/part-00000.parquet", "steps/part-00002.parquet", "steps/part-00010.parquet"];
        assert_eq!(names, [&[MANIFEST, STEPS][..], &parts, &[EVENTS]].concat());
        let root: Vec<Entry> = entries[..14]
            .iter()
            .map(|e| Entry { path: e.path["a".len()..].trim_start_matches('/').to_owned(), ..e.clone() })
            .filter(|e| !e.path.is_empty())
            .collect();
        let own: Vec<usize> = (0..root.len()).filter(|at| root[*at].path == MANIFEST).collect();
        let sources = Rlprobe.group(&root, &own);
        assert_eq!((sources[0].path.as_str(), sources[0].parts.len()), ("", 6));
        assert!(sources.iter().any(|source| source.path == "rank-002" && source.directory.is_empty()));
    }

    #[test]
    fn a_cancelled_read_ends() {
        struct Stopped(Memory);
        impl crate::read::Files for Stopped {
            fn open(&self, part: &Part) -> std::io::Result<Box<dyn std::io::Read + '_>> {
                self.0.open(part)
            }
            fn ranges(&self, part: &Part) -> std::io::Result<std::sync::Arc<dyn crate::read::Ranges>> {
                self.0.ranges(part)
            }
            fn cancelled(&self) -> bool {
                true
            }
        }
        let (memory, source) = run(vec![(MANIFEST, WHOLE.into()), (STEPS, steps(0..9, -1, 0.0))]);
        let (request, limits) = (Request::default(), Limits::default());
        let files = Stopped(memory);
        let mut session = Session { files: &files, request: &request, limits: &limits, buffer: &mut Vec::new() };
        assert!(matches!(Rlprobe.read(&source, &mut session), Err(Rejected::Cancelled)));
    }

    #[test]
    fn damage_never_hides_an_event() {
        let nan = event(1.76e9, "nan_detected", "450", "");
        let whole = steps(0..60, 45, 1.76e9);
        let mut seen = 0;
        for end in (0..whole.len()).step_by(37) {
            for flip in [false, true] {
                let mut bytes = whole.clone();
                if flip {
                    bytes[end] ^= 0x55
                } else {
                    bytes.truncate(end)
                }
                let files = vec![(MANIFEST, WHOLE.into()), (STEPS, bytes), (EVENTS, nan.clone().into())];
                assert_eq!(read(files).events.len(), 1);
                seen += 1;
            }
        }
        assert!(seen > 100, "{seen}");
    }
}
