//! SwanLab's local board: values in text files, their names in a database beside all runs.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use memchr::memchr;
use rusqlite::Connection;

use super::DATABASE;
use super::log::Sample;
use crate::model::source::DATABASE_COMPANIONS;
use crate::model::source::plain;
use crate::model::{Entry, Fault, FaultKind, Format, Part, Place, PlaceUnit, Recording, Role, Severity, Source, roles};
use crate::read::database::{Database, Trouble, integer, table, text};
use crate::read::merge::{Apart, Merge};
use crate::read::{Builder, Progress, Rejected, Session, StreamDecoder, Want, single};
use crate::wire::json::{Cursor, Stop};

/// What a run directory and a log in it are called: `run-*/logs/<folder>/<n>000.log`. Gives the directory's path, and the
/// folder.
fn log_of(path: &str) -> Option<(&str, &str)> {
    let (folder, name) = plain(path).rsplit_once('/')?;
    let number = name.strip_suffix("000.log")?;
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (logs, folder) = folder.rsplit_once('/')?;
    let run = logs.strip_suffix("/logs")?;
    let is_run = run.rsplit('/').next().is_some_and(|name| name.starts_with("run-"));
    is_run.then_some((run, folder))
}

/// The database, or a companion of it.
fn is_database(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    plain(name) == DATABASE || is_companion(name)
}

fn is_companion(name: &str) -> bool {
    name.strip_prefix(DATABASE).is_some_and(|suffix| DATABASE_COMPANIONS.contains(&suffix))
}

/// Whether a file belongs to a board.
pub fn is_board(path: &str) -> bool {
    is_database(path) || log_of(path).is_some()
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The recordings of boards: a run directory each, but for those whose `others` (transaction logs) hold the same points.
pub fn group(entries: &[Entry], board: &[usize], others: &[usize]) -> Vec<Source> {
    let mut runs: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    for entry in board.iter().map(|index| &entries[*index]) {
        if let Some((run, _)) = log_of(&entry.path) {
            runs.entry(run).or_default().push(entry);
        }
    }
    let with_log: Vec<&str> = others.iter().map(|index| entries[*index].parent()).collect();
    let names = |home: &str| {
        let is_names = |entry: &&Entry| entry.parent() == home && plain(entry.name()) == DATABASE;
        board.iter().map(|index| &entries[*index]).find(is_names)
    };
    let mut sources = Vec::new();
    for (run, mut logs) in runs.iter().map(|(run, logs)| (*run, logs.clone())) {
        if with_log.contains(&run) {
            continue;
        }
        let part =
            |entry: &Entry, name: &str| Part { path: entry.path.clone(), name: name.to_owned(), size: entry.size };
        logs.sort_by(|a, b| order(&a.path).cmp(&order(&b.path)));
        let mut parts: Vec<Part> = names(parent(run)).map(|entry| part(entry, DATABASE)).into_iter().collect();
        parts.extend(logs.iter().map(|entry| part(entry, &entry.path[run.len() + 1..])));
        sources.push(Source { format: Format::Swanlab, path: run.to_owned(), directory: run.to_owned(), parts });
    }
    // A database alone promises runs that are not there.
    for entry in board.iter().map(|index| &entries[*index]).filter(|entry| is_database(&entry.path)) {
        let home = entry.parent();
        let is_used = runs.keys().chain(&with_log).any(|run| parent(run) == home);
        let of_another = is_companion(entry.name()) && names(home).is_some();
        if !is_used && !of_another {
            sources.push(single(Format::Swanlab, entry));
        }
    }
    sources
}

/// Folders and files in the order of the numbers that they are called.
fn order(path: &str) -> (Option<u64>, &str, u64) {
    let (folder, name) = plain(path).rsplit_once('/').unwrap_or(("", path));
    let number = name.trim_end_matches(".log").parse().unwrap_or(u64::MAX);
    (folder.rsplit('/').next().and_then(|folder| folder.parse().ok()), folder, number)
}

/// What the database says of one run.
#[derive(Debug, Default)]
struct Names {
    /// Name by folder; `None` where the tag holds no numbers.
    folders: HashMap<String, Option<String>>,
    said: Vec<(&'static str, String)>,
    is_known: bool,
}

/// Reads a run directory.
pub fn read(source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
    let run = source.path.rsplit('/').next().unwrap_or(&source.path);
    let run = if run.is_empty() { session.files.root_name() } else { run };
    let mut builder = Builder::of_points(Format::Swanlab, session.request, session.limits, PlaceUnit::Line, false);
    let mut names = Names::default();
    let database = source.parts.iter().position(|part| is_database(&part.path));
    if source.parts.len() == usize::from(database.is_some()) {
        let detail = "names of metrics (a database) without the logs that hold their values";
        return Err(Rejected::unreadable("not-a-recording", detail));
    }
    let at_begin = |part: usize| Place { part: part as u32, unit: PlaceUnit::Byte, at: 0 };
    match database {
        None => {
            let mut fault = Fault::new(FaultKind::Conflict, at_begin(0), format!("no {DATABASE} beside it"));
            fault.detail.push_str(": what its metrics are called is not known");
            builder.fault(fault);
        }
        Some(index) => match Database::open(&source.parts[index], index as u32, session) {
            Ok(mut database) => {
                database.faults.drain(..).for_each(|fault| builder.fault(fault));
                let asked = database.with(|connection| names.ask(connection, run)).and_then(|asked| asked);
                if let Err(trouble) = asked {
                    builder.fault(trouble.fault(index as u32, 0));
                } else if !names.is_known {
                    let detail = format!("it does not know the run {run}: what its metrics are called is not known");
                    builder.fault(Fault::new(FaultKind::Conflict, at_begin(index), detail));
                }
            }
            Err(rejected) => {
                let mut fault = Fault::new(FaultKind::Unparsable, at_begin(index), rejected.to_string());
                fault.severity = Severity::Error;
                builder.fault(fault);
            }
        },
    }
    for (name, text) in &names.said {
        builder.describe(name, text);
        if *name == "name" {
            builder.name = Some(text.clone());
        }
    }
    let mut logs = Logs::default();
    let mut newest: Option<(&str, Option<usize>)> = None;
    for (index, part) in source.parts.iter().enumerate() {
        let Some((_, folder)) = log_of(&part.path) else { continue };
        let name = match names.name_of(folder) {
            Some(Some(name)) => name,
            // Pictures, texts.
            Some(None) => continue,
            None => folder,
        };
        let series = match newest {
            Some((known, series)) if known == folder => series,
            _ => logs.begin(name, &mut builder),
        };
        newest = Some((folder, series));
        builder.turn_to(index as u32);
        (logs.series, logs.part, logs.line, logs.is_long) = (series, index as u32, 0, false);
        match session.stream(part, &mut logs, &mut builder) {
            Ok(()) => {}
            Err(Rejected::Cancelled) => return Err(Rejected::Cancelled),
            Err(rejected) => builder.fault(Fault::new(FaultKind::Io, at_begin(index), rejected.to_string())),
        }
    }
    let Logs { merge, reach, last, .. } = logs;
    let is_empty = merge.is_empty();
    merge.give(&mut builder);
    if let Some((step, time)) = reach.or(last.filter(|_| is_empty)) {
        builder.begin_points(0, step, time.map_or(f64::NAN, |time| time as f64 / 1e3));
        builder.pass_point(reach.is_some());
    }
    Ok(vec![builder.finish()])
}

impl Names {
    /// The name of a folder's metric; `None` if it is not known, `Some(None)` if it holds no numbers.
    fn name_of(&self, folder: &str) -> Option<Option<&str>> {
        self.folders.get(folder).map(Option::as_deref)
    }

    fn ask(&mut self, connection: &Connection, run: &str) -> Result<(), Trouble> {
        let (Some(experiments), Some(tags)) = (table(connection, "experiment")?, table(connection, "tag")?) else {
            return Ok(());
        };
        let has = |name: &str| experiments.iter().any(|column| column.name == name);
        let column = |name: &'static str| if has(name) { name } else { "NULL" };
        let names = ["id", "run_id", "name", "status", "create_time", "finish_time", "version"];
        if !names[..3].iter().all(|name| has(name)) {
            return Ok(());
        }
        let list = names.map(column).join(", ");
        let mut query = connection.prepare(&format!("SELECT {list} FROM experiment WHERE run_id = ?"))?;
        let mut rows = query.query([run])?;
        let Some(row) = rows.next()? else { return Ok(()) };
        self.is_known = true;
        let id = integer(row.get_ref(0)?);
        self.said.push(("run_id", run.to_owned()));
        let state = match integer(row.get_ref(3)?) {
            Some(1) => Some("finished"),
            Some(-1) => Some("crashed"),
            Some(0) => Some("running or killed"),
            _ => None,
        };
        self.said.extend(state.map(|state| ("state", state.to_owned())));
        for (name, at) in [("name", 2), ("started", 4), ("ended", 5), ("version", 6)] {
            let said = text(row.get_ref(at)?).filter(|text| !text.is_empty());
            self.said.extend(said.map(|text| (name, text.into_owned())));
        }
        let has = |name: &str| tags.iter().any(|column| column.name == name);
        if !has("experiment_id") || !has("name") {
            return Ok(());
        }
        let folder = if has("folder") { "folder" } else { "NULL" };
        let kind = if has("type") { "type" } else { "'line'" };
        let sql = format!("SELECT name, {folder}, {kind} FROM tag WHERE experiment_id = ?");
        let mut query = connection.prepare(&sql)?;
        let mut rows = query.query([id])?;
        while let Some(row) = rows.next()? {
            let Some(name) = text(row.get_ref(0)?).map(Cow::into_owned) else { continue };
            // Before there were folders a metric's own name was one, quoted as in a URL.
            let folder = text(row.get_ref(1)?).map_or_else(|| quoted(&name), Cow::into_owned);
            let is_line = text(row.get_ref(2)?).is_none_or(|kind| kind == "line");
            self.folders.insert(folder, is_line.then_some(name));
        }
        Ok(())
    }
}

/// A name as Python's `urllib.parse.quote(name, safe="")` has it.
fn quoted(name: &str) -> String {
    let mut quoted = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte) {
            quoted.push(char::from(byte));
        } else {
            quoted.push_str(&format!("%{byte:02X}"));
        }
    }
    quoted
}

/// The logs of a run, file by file.
#[derive(Debug, Default)]
struct Logs {
    merge: Merge,
    /// The series of this file; `None` where its values are not wanted.
    series: Option<usize>,
    reaches: bool,
    part: u32,
    line: u64,
    /// Inside a line that is passed over.
    is_long: bool,
    /// Largest step, with its time, of the metrics that show how far the training went, and of all.
    reach: Option<(i64, Option<i64>)>,
    last: Option<(i64, Option<i64>)>,
}

impl Logs {
    /// Begins the logs of a metric.
    fn begin(&mut self, name: &str, builder: &mut Builder<'_>) -> Option<usize> {
        let column = builder.column(name);
        builder.numeric(column.id);
        // Rewards and lengths may be logged by environment steps, which are no steps of the training.
        let role = roles::role_of(name);
        self.reaches = role.is_some_and(|role| !matches!(role, Role::Reward | Role::CompletionLength));
        (column.want == Want::Number).then(|| self.merge.begin(column.id))
    }

    fn fault(&self, kind: FaultKind, detail: &str, into: &mut Builder<'_>) {
        let place = Place { part: self.part, unit: PlaceUnit::Line, at: self.line };
        into.fault(Fault::new(kind, place, detail));
    }

    /// Takes a line, which `is_cut` where the file ends in it.
    fn take(&mut self, bytes: &[u8], is_cut: bool, into: &mut Builder<'_>) {
        self.line += 1;
        if bytes.trim_ascii().is_empty() {
            return;
        }
        let sample = match Sample::parse(&mut Cursor::with_end(bytes, true)) {
            Ok(sample) => sample,
            Err(Stop::Incomplete) if is_cut => {
                return self.fault(FaultKind::Truncated, "the file ends inside a line", into);
            }
            Err(stop) => return self.fault(FaultKind::Unparsable, &format!("no value of a metric: {stop}"), into),
        };
        let Some(step) = sample.step.filter(|step| step.is_finite()).map(|step| step.floor() as i64) else {
            return self.fault(FaultKind::Unparsable, "a value without a step", into);
        };
        let largest = |known: Option<(i64, Option<i64>)>| known.max(Some((step, sample.time)));
        self.last = largest(self.last);
        if self.reaches {
            self.reach = largest(self.reach);
        }
        if let (Some(series), Some(value)) = (self.series, sample.value) {
            let (time, part, at) = (sample.time, self.part, self.line);
            self.merge.push(series, Apart { step, has_step: true, value, time, part, at });
        }
    }
}

impl StreamDecoder for Logs {
    fn feed(&mut self, window: &[u8], _at: u64, end: bool, into: &mut Builder<'_>) -> Progress {
        let mut used = 0;
        while let Some(length) = memchr(b'\n', &window[used..]) {
            if std::mem::take(&mut self.is_long) {
                self.line += 1;
            } else {
                self.take(&window[used..used + length], false, into);
            }
            used += length + 1;
        }
        let rest = &window[used..];
        if end {
            if !self.is_long {
                self.take(rest, true, into);
            }
            return Progress::Used(window.len());
        }
        if self.is_long {
            return Progress::Used(window.len());
        }
        if used == 0 && rest.len() >= into.limits().record {
            self.line += 1;
            self.fault(FaultKind::Limit, "a line longer than the limit: passed over", into);
            self.line -= 1;
            self.is_long = true;
            return Progress::Used(window.len());
        }
        Progress::Used(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::{self, Worker};
    use crate::model::{EntryKind, Knobs, Limits, Signal, Status};
    use crate::read::swanlab::Swanlab;
    use crate::read::testing::Memory;
    use crate::read::{Confidence, Reader, Request};

    const NAMES: &[u8] = include_bytes!("../../../tests/data/swanlab/board-0.6/runs.swanlab");
    const FIRST: &str = "run-20260102_030405-abcdefghijklmnopqrs00";
    const SECOND: &str = "run-20260103_030405-abcdefghijklmnopqrs01";

    /// Lines of a log with a value at each step from 1, a second apart, as SwanLab writes them.
    fn lines(values: &[&str]) -> String {
        let line = |(at, value): (usize, &&str)| {
            let time = format!("2026-01-03T03:{:02}:{:02}.5+00:00", at / 60, at % 60);
            format!("{{\"index\": {}, \"data\": {value}, \"create_time\": \"{time}\"}}\n", at + 1)
        };
        values.iter().enumerate().map(line).collect()
    }

    fn board(with_names: bool) -> Memory {
        let losses = vec!["0.5"; 30];
        let mut norms = vec!["1.5"; 30];
        (norms[20], norms[22]) = ("\"NaN\"", "\"INF\"");
        let mut memory = Memory::new([
            (format!("b/{SECOND}/logs/0/1000.log"), lines(&losses)),
            (format!("b/{SECOND}/logs/1/1000.log"), lines(&norms)),
            (
                format!("b/{SECOND}/logs/1/2000.log"),
                lines(&["1.5"]).replace("\"index\": 1,", "\"index\": 31,").replace("T03:", "T04:"),
            ),
            (format!("b/{SECOND}/logs/2/1000.log"), lines(&["1e-5"; 40])),
        ]);
        if with_names {
            memory.parts.insert("b/runs.swanlab".into(), NAMES.to_vec());
        }
        memory
    }

    fn sources(memory: &Memory) -> Vec<Source> {
        let entry =
            |path: &String| Entry { path: path.clone(), size: memory.parts[path].len() as u64, kind: EntryKind::File };
        let mut entries: Vec<Entry> = memory.parts.keys().map(entry).collect();
        entries.sort_unstable();
        let is_own = |index: &usize| Swanlab.recognise_name(&entries[*index].path) > Confidence::No;
        let own: Vec<usize> = (0..entries.len()).filter(is_own).collect();
        Swanlab.group(&entries, &own)
    }

    fn read_all(memory: &Memory, request: &Request) -> Vec<Recording> {
        let sources = sources(memory);
        let read = |source: &Source| memory.read_with(&Swanlab, source, request, &Limits::default()).unwrap();
        sources.iter().flat_map(read).collect()
    }

    fn judge(recording: &Recording) -> (Status, Vec<Option<i64>>) {
        let verdict = detect::judge(recording, &Knobs::default(), &mut Worker::default());
        (verdict.status, verdict.findings.iter().map(|finding| finding.first_step).collect())
    }

    #[test]
    fn names_come_from_the_database() {
        let memory = board(true);
        let found = sources(&memory);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, format!("b/{SECOND}"));
        let names: Vec<&str> = found[0].parts.iter().map(|part| part.name.as_str()).collect();
        let want = ["runs.swanlab", "logs/0/1000.log", "logs/1/1000.log", "logs/1/2000.log", "logs/2/1000.log"];
        assert_eq!(names, want);
        let recordings = read_all(&memory, &Request::default());
        assert_eq!(judge(&recordings[0]), (Status::Damaged, vec![Some(21)]));
        assert_eq!((recordings[0].records, recordings[0].faults.len()), (31, 0));
        // The learning rate is logged for longer.
        assert_eq!(recordings[0].axis.last_step, Some(40));
        assert_eq!(recordings[0].unrecognised, ["train/learning_rate"]);
        let said =
            |what: &str| recordings[0].metadata.iter().find(|(name, _)| name == what).map(|(_, text)| text.as_str());
        assert_eq!((said("name"), said("state")), (Some("nonfinite"), Some("finished")));
        let request = Request { everything: true, ..Request::default() };
        let all = read_all(&memory, &request);
        let norm = all[0].series.iter().find(|series| series.name == "train/grad_norm").unwrap();
        let Signal::Kept(kept) = &norm.signal else { panic!("a full read keeps every series") };
        let steps: Vec<i64> = (0..kept.values.len()).map(|at| kept.steps.get(at)).collect();
        assert_eq!(steps, (1..=31).collect::<Vec<_>>());
        assert!(kept.values.get(20).is_nan() && kept.values.get(22) == f64::INFINITY);
    }

    #[test]
    fn without_names_nothing_is_judged() {
        let recordings = read_all(&board(false), &Request::default());
        assert_eq!(judge(&recordings[0]).0, Status::NotAssessable);
        assert_eq!(recordings[0].unrecognised, ["0", "1", "2"]);
        assert_eq!(recordings[0].faults.len(), 1);
        // Nor with names of other runs.
        let mut memory = board(true);
        memory.parts =
            memory.parts.into_iter().map(|(path, bytes)| (path.replace(SECOND, "run-other"), bytes)).collect();
        let recordings = read_all(&memory, &Request::default());
        assert_eq!((judge(&recordings[0]).0, recordings[0].faults.len()), (Status::NotAssessable, 1));
    }

    #[test]
    fn points_are_not_read_twice() {
        let mut memory = board(true);
        let backup = include_bytes!(
            "../../../tests/data/swanlab/board-0.6/run-20260102_030405-abcdefghijklmnopqrs00/backup.swanlab"
        );
        memory.parts.insert(format!("b/{FIRST}/backup.swanlab"), backup.to_vec());
        memory.parts.insert(format!("b/{FIRST}/logs/0/1000.log"), lines(&["1.0"; 5]).into_bytes());
        memory.parts.insert("b/runs.swanlab-shm".into(), vec![0; 9]);
        let found = sources(&memory);
        let parts: Vec<usize> = found.iter().map(|source| source.parts.len()).collect();
        assert_eq!(parts, [1, 5], "{found:?}");
        // A database alone is no recording.
        let alone = Memory::new([("b/runs.swanlab", NAMES)]);
        let found = sources(&alone);
        assert_eq!(found.len(), 1);
        assert_eq!(
            alone.read(&Swanlab, &found[0]).map(|_| ()).map_err(|rejected| rejected.code()),
            Err("not-a-recording")
        );
    }

    #[test]
    fn broken_and_cut_lines() {
        let mut memory = board(true);
        let path = format!("b/{SECOND}/logs/1/1000.log");
        let mut text = String::from_utf8(memory.parts[&path].clone()).unwrap();
        text = text.replacen("\"index\": 3,", "\"index\" 3,", 1);
        let whole = text.len();
        memory.parts.insert(path.clone(), text.as_bytes()[..whole - 20].to_vec());
        for chunk in [usize::MAX, 1, 7] {
            memory.chunk = chunk;
            let recordings = read_all(&memory, &Request::default());
            let faults: Vec<_> = recordings[0].faults.iter().map(|fault| (fault.kind, fault.place.at)).collect();
            assert_eq!(faults, [(FaultKind::Unparsable, 3), (FaultKind::Truncated, 30)]);
            assert_eq!(judge(&recordings[0]), (Status::Damaged, vec![Some(21)]));
        }
    }

    #[test]
    fn names_of_files() {
        assert_eq!(log_of("a/run-1/logs/0/1000.log"), Some(("a/run-1", "0")));
        assert_eq!(log_of("run-1/logs/x/12000.log.gz"), Some(("run-1", "x")));
        for path in
            ["run-1/logs/0/000.log", "run-1/logs/0/1234.log", "run-1/log/0/1000.log", "exp/logs/0/1000.log", "1000.log"]
        {
            assert_eq!(log_of(path), None, "{path}");
        }
        assert!(is_board("runs.swanlab-wal") && is_board("a/runs.swanlab") && !is_board("a/run-1.swanlab"));
        assert_eq!(quoted("train/loss x"), "train%2Floss%20x");
    }
}
