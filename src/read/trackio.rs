#![doc = include_str!("trackio.md")]

use std::borrow::Cow;
use std::collections::HashMap;

use rusqlite::types::{Type, ValueRef};
use rusqlite::{Connection, Row, Statement};

use super::database::{self, Database, Trouble, bytes, head_says, integer, is_database_name, text};
use super::json_rows::JsonRows;
use super::{About, Builder, Confidence, Files, Reader, Rejected, Request, Session, Tracker};
use crate::model::{Fault, FaultKind, Format, Limits, Place, PlaceUnit, Recording, Severity, Source};
use crate::wire::json::Rows;

/// The reader of trackio's databases.
pub struct Trackio;

impl Reader for Trackio {
    fn format(&self) -> Format {
        Format::Trackio
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "<project>.db and other SQLite databases with trackio's table: every run is a recording",
            nonfinite: "\"NaN\", \"Infinity\", \"-Infinity\" in JSON",
            missing: "key absent, null",
            not_read: "values inside arrays, media; system metrics",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[Tracker {
            name: "trackio",
            version: "0.43",
            files: "<project>.db; its Parquet files are read as tables",
            nonfinite: "\"NaN\", \"Infinity\", \"-Infinity\"",
            missing: "key absent",
            not_read: "system metrics, media, arrays",
        }]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        let name = path.rsplit('/').next().unwrap_or(path);
        if is_database_name(name) { Confidence::Maybe } else { Confidence::No }
    }

    fn recognise(&self, _path: &str, head: &[u8]) -> Confidence {
        let is_ours = head_says(head, &["CREATE TABLE metrics", "run_name TEXT", "metrics TEXT"]);
        if is_ours { Confidence::Certain } else { Confidence::No }
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        let Some(part) = source.parts.first() else {
            return Err(Rejected::unreadable("not-a-recording", "no file"));
        };
        let mut database = Database::open(part, 0, session)?;
        let name = part.name.rsplit('/').next().unwrap_or(&part.name);
        let project = name.rsplit_once('.').map_or(name, |(project, _)| project);
        let mut runs = Runs::new(session, project);
        runs.faults.append(&mut database.faults);
        let read = database.with(|connection| runs.read(connection)).and_then(|read| read);
        if session.files.cancelled() {
            return Err(Rejected::Cancelled);
        }
        if !read.map_err(|trouble| trouble.rejected())? {
            return Err(Rejected::unreadable("not-a-recording", "a database without trackio's table `metrics`"));
        }
        Ok(runs.finish())
    }
}

/// Rows between two looks at whether the scan was cancelled.
const LOOK: u64 = 256;

/// Places of damage behind which reading goes on.
const DAMAGES: usize = 1_000;

/// One run while its rows stream by.
struct Run<'a> {
    builder: Builder<'a>,
    rows: JsonRows,
    step: u32,
    time: u32,
}

/// The runs of a database.
struct Runs<'a> {
    request: &'a Request,
    limits: &'a Limits,
    files: &'a dyn Files,
    project: String,
    runs: Vec<Run<'a>>,
    /// By id, or by name where there is none.
    index: HashMap<Vec<u8>, usize>,
    has_lost_rows: bool,
    faults: Vec<Fault>,
}

/// The columns of `metrics` that are asked for, in this order.
const ROW: [&str; 6] = ["id", "run_id", "run_name", "timestamp", "step", "metrics"];

impl<'a> Runs<'a> {
    fn new(session: &Session<'a>, project: &str) -> Self {
        Self {
            request: session.request,
            limits: session.limits,
            files: session.files,
            project: project.to_owned(),
            runs: Vec::new(),
            index: HashMap::new(),
            has_lost_rows: false,
            faults: Vec::new(),
        }
    }

    fn fault(&mut self, kind: FaultKind, id: i64, detail: String) {
        let at = u64::try_from(id).unwrap_or_default();
        if self.faults.len() < self.limits.faults {
            self.faults.push(Fault::new(kind, Place { part: 0, unit: PlaceUnit::Row, at }, detail));
        }
    }

    /// Reads all runs; gives whether the tables are trackio's.
    fn read(&mut self, connection: &Connection) -> Result<bool, Trouble> {
        let Some(columns) = database::table(connection, "metrics")? else { return Ok(false) };
        let has = |name: &str| columns.iter().any(|column| column.name == name);
        if !["run_name", "metrics"].iter().all(|name| has(name)) {
            return Ok(false);
        }
        let column = |name: &&'static str| match *name {
            "id" => "rowid",
            name if has(name) => name,
            _ => "NULL",
        };
        let list = ROW.iter().map(column).collect::<Vec<_>>().join(", ");
        let sql = format!("SELECT {list} FROM metrics WHERE rowid > ?1 ORDER BY rowid");
        self.rows(connection, &sql)?;
        // A run that logged nothing is still a run.
        if let Err(trouble) = self.silent_runs(connection) {
            self.fault(trouble.kind, 0, format!("table configs: {}", trouble.detail));
        }
        Ok(true)
    }

    fn rows(&mut self, connection: &Connection, sql: &str) -> Result<(), Trouble> {
        let mut query = connection.prepare(sql)?;
        let (mut newest, mut leap, mut damages) = (i64::MIN, 0u32, 0);
        loop {
            let from = newest.saturating_add(if leap == 0 { 0 } else { 1 << (leap - 1).min(62) });
            let before = newest;
            let trouble = match self.rows_from(&mut query, from, &mut newest) {
                Ok(()) => return Ok(()),
                Err(trouble) => trouble,
            };
            if self.files.cancelled() {
                return Ok(());
            }
            self.has_lost_rows = true;
            if newest != before || leap == 0 {
                // Rows were reached: this is damage of its own.
                damages += 1;
                let after =
                    if newest == i64::MIN { "before the first row".into() } else { format!("after id {newest}") };
                self.fault(trouble.kind, newest.max(0), format!("rows are missing {after}: {}", trouble.detail));
                (newest, leap) = (newest.max(0), 0);
            }
            leap += 1;
            // Ids end at 2^63; work that was given up stays so.
            if leap > 62 || damages > DAMAGES || trouble.kind != FaultKind::Unparsable {
                return Ok(());
            }
        }
    }

    /// Reads the rows behind an id; `newest` is the last one that was read.
    fn rows_from(&mut self, query: &mut Statement<'_>, from: i64, newest: &mut i64) -> Result<(), Trouble> {
        let mut seen = 0u64;
        let mut found = query.query([from])?;
        while let Some(row) = found.next()? {
            seen += 1;
            if seen.is_multiple_of(LOOK) && self.files.cancelled() {
                break;
            }
            let id = integer(row.get_ref(0)?).unwrap_or_default();
            // Pages that form a circle give the same ids again.
            if id <= *newest {
                return Err(Trouble { kind: FaultKind::Unparsable, detail: "ids that do not rise".to_owned() });
            }
            *newest = id;
            self.row(row, id)?;
        }
        Ok(())
    }

    fn row(&mut self, row: &Row<'_>, id: i64) -> Result<(), Trouble> {
        let Some(run) = self.run(row.get_ref(1)?, row.get_ref(2)?) else { return Ok(()) };
        let Some(object) = bytes(row.get_ref(5)?) else {
            if row.get_ref(5)?.data_type() != Type::Null {
                self.fault(FaultKind::Unparsable, id, "`metrics` is no JSON object: passed over".to_owned());
            }
            return Ok(());
        };
        let time = text(row.get_ref(3)?);
        let step = integer(row.get_ref(4)?);
        let Run { builder, rows, step: step_column, time: time_column } = &mut self.runs[run];
        let (step_column, time_column) = (*step_column, *time_column);
        let beside = |builder: &mut Builder<'a>| {
            if let Some(step) = step {
                builder.whole_step(step_column, step);
            }
            if let Some(time) = &time {
                builder.text(time_column, time);
            }
        };
        if let Err(stop) = rows.row_beside(object, true, u64::try_from(id).unwrap_or_default(), builder, beside) {
            self.fault(FaultKind::Unparsable, id, format!("`metrics` is no JSON object, passed over: {stop}"));
            self.has_lost_rows = true;
        }
        Ok(())
    }

    /// The run of a row, unless there are too many.
    fn run(&mut self, id: ValueRef<'_>, name: ValueRef<'_>) -> Option<usize> {
        let key = bytes(id).filter(|id| !id.is_empty()).or_else(|| bytes(name))?;
        if let Some(run) = self.index.get(key) {
            return Some(*run);
        }
        if self.runs.len() >= self.limits.runs {
            let detail = format!("more than {} runs: the rows of further ones are not read", self.limits.runs);
            if !self.faults.iter().any(|fault| fault.detail == detail) {
                self.fault(FaultKind::Limit, 0, detail);
                self.faults.iter_mut().last().into_iter().for_each(|fault| fault.severity = Severity::Error);
            }
            return None;
        }
        let mut builder = Builder::new(Format::Trackio, self.request, self.limits, PlaceUnit::Row);
        builder.place_each_row();
        builder.begin_part(0);
        let id = String::from_utf8_lossy(key).into_owned();
        let name = text(name).map(Cow::into_owned);
        builder.describe("run_id", &id);
        if let Some(name) = &name {
            builder.describe("name", name);
        }
        builder.describe("project", &self.project);
        (builder.run_id, builder.name) = (Some(id), name);
        // trackio's own step counts calls of `log`, as W&B's `_step` does; the user may still ask for it by its name.
        let step = if self.request.step.as_deref() == Some("step") { "step" } else { "_step" };
        let (step, time) = (builder.column(step).id, builder.column("timestamp").id);
        self.index.insert(key.to_vec(), self.runs.len());
        self.runs.push(Run { builder, rows: JsonRows::new(Rows::Lines), step, time });
        Some(self.runs.len() - 1)
    }

    fn silent_runs(&mut self, connection: &Connection) -> Result<(), Trouble> {
        let Some(columns) = database::table(connection, "configs")? else { return Ok(()) };
        let has = |name: &str| columns.iter().any(|column| column.name == name);
        if !has("run_name") {
            return Ok(());
        }
        let id = if has("run_id") { "run_id" } else { "NULL" };
        let mut query = connection.prepare(&format!("SELECT {id}, run_name FROM configs"))?;
        let mut found = query.query([])?;
        while let Some(row) = found.next()? {
            if self.files.cancelled() || self.run(row.get_ref(0)?, row.get_ref(1)?).is_none() {
                break;
            }
        }
        Ok(())
    }

    fn finish(self) -> Vec<Recording> {
        let Self { runs, faults, has_lost_rows, .. } = self;
        let finish = |run: Run<'a>| {
            let mut recording = run.builder.finish();
            recording.faults.extend(faults.iter().cloned());
            recording.has_lost_rows = has_lost_rows;
            recording
        };
        runs.into_iter().map(finish).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::{self, Worker};
    use crate::model::{Knobs, Signal, Status};
    use crate::read::testing::Memory;

    const RUNS: &[u8] = include_bytes!("../../tests/data/trackio/runs/fixtures.db");
    const KILLED: &[u8] = include_bytes!("../../tests/data/trackio/killed/fixtures.db");

    fn read_with(bytes: impl Into<Vec<u8>>, request: &Request) -> Result<Vec<Recording>, Rejected> {
        let memory = Memory::new([("p.db", bytes.into())]);
        let parts = vec![memory.part("p.db")];
        let source = Source { format: Format::Trackio, path: "p.db".into(), directory: String::new(), parts };
        memory.read_with(&Trackio, &source, request, &Limits::default())
    }

    fn read(bytes: impl Into<Vec<u8>>) -> Vec<Recording> {
        read_with(bytes, &Request::default()).unwrap()
    }

    fn named<'r>(recordings: &'r [Recording], name: &str) -> &'r Recording {
        recordings.iter().find(|recording| recording.name.as_deref() == Some(name)).expect("the run is there")
    }

    fn points(recording: &Recording, name: &str) -> Vec<(i64, f64)> {
        let series = recording.series.iter().find(|series| series.name == name).expect("the series is there");
        let Signal::Kept(kept) = &series.signal else { panic!("the series is kept") };
        (0..kept.values.len()).map(|at| (kept.steps.get(at), kept.values.get(at))).collect()
    }

    fn odd(recording: &Recording, name: &str) -> Vec<(i64, String)> {
        let points = points(recording, name).into_iter();
        points.filter(|(_, value)| !value.is_finite()).map(|(step, value)| (step, value.to_string())).collect()
    }

    fn status(recording: &Recording) -> Status {
        detect::judge(recording, &Knobs::default(), &mut Worker::default()).status
    }

    /// A database of an old version: no ids of runs, JSON as text.
    fn old(rows: &[(&str, i64, &str)]) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        let table = "CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp TEXT NOT NULL, \
                     run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL)";
        connection.execute(table, ()).unwrap();
        for (run, step, metrics) in rows {
            let sql = "INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?)";
            connection.execute(sql, ("2025-08-01T00:00:00", run, step, metrics)).unwrap();
        }
        connection
    }

    fn serialized(connection: &Connection) -> Vec<u8> {
        connection.serialize(c"main").unwrap().to_vec()
    }

    #[test]
    fn runs_that_trackio_wrote() {
        let recordings = read(RUNS);
        let names: Vec<&str> = recordings.iter().filter_map(|recording| recording.name.as_deref()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        assert_eq!(status(named(&recordings, "healthy")), Status::Clean);
        let nonfinite = named(&recordings, "nonfinite");
        // By the trainer's step, not by the number of calls.
        assert_eq!(nonfinite.axis.step_name.as_deref(), Some("train/global_step"));
        let want = [(310, "NaN".to_owned()), (340, "inf".to_owned()), (360, "-inf".to_owned())];
        assert_eq!(odd(nonfinite, "train/grad_norm"), want);
        let resumed = named(&recordings, "resumed");
        assert_eq!(resumed.axis.step_name.as_deref(), Some("_step"));
        let attempts: Vec<_> = resumed.axis.attempts.iter().map(|own| (own.first_step, own.last_step)).collect();
        assert_eq!(attempts, [(1, 30), (21, 40)]);
        assert_eq!(odd(resumed, "train/grad_norm"), [(26, "NaN".to_owned())]);
        assert!(recordings.iter().all(|recording| recording.faults.is_empty() && recording.started.is_some()));
        let said = |what: &str| healthy_says(&recordings, what);
        assert_eq!(said("project").as_deref(), Some("p"));
        assert_eq!(said("run_id").map(|id| id.len()), Some(32));
    }

    fn healthy_says(recordings: &[Recording], what: &str) -> Option<String> {
        let metadata = &named(recordings, "healthy").metadata;
        metadata.iter().find(|(known, _)| known == what).map(|(_, text)| text.clone())
    }

    #[test]
    fn a_killed_run_keeps_what_reached_the_disk() {
        let recordings = read(KILLED);
        assert_eq!((recordings.len(), recordings[0].records), (1, 29));
        let want = [(25, "NaN".to_owned()), (26, "-inf".to_owned())];
        assert_eq!(odd(&recordings[0], "train/grad_norm"), want);
    }

    #[test]
    fn the_users_step_is_the_column() {
        let request = Request { step: Some("step".into()), ..Request::default() };
        let recordings = read_with(RUNS, &request).unwrap();
        let nonfinite = named(&recordings, "nonfinite");
        assert_eq!(nonfinite.axis.step_name.as_deref(), Some("step"));
        assert_eq!(odd(nonfinite, "train/grad_norm")[0], (30, "NaN".to_owned()));
    }

    #[test]
    fn old_databases_tell_runs_by_name() {
        let mut rows: Vec<(&str, i64, &str)> = Vec::new();
        for step in 0..12 {
            rows.push((
                "a",
                step,
                r#"{"loss": 1.0, "nested": {"grad_norm": 0.5}, "image": {"_type": "trackio.image"}}"#,
            ));
            rows.push(("b", step, r#"{"loss": "NaN"}"#));
        }
        rows.push(("a", 5, r#"{"loss": "-Infinity"}"#));
        let recordings = read(serialized(&old(&rows)));
        let shape = |name: &str| {
            let recording = named(&recordings, name);
            (recording.records, recording.axis.attempts.len(), status(recording))
        };
        assert_eq!(shape("a"), (13, 2, Status::Damaged));
        assert_eq!(shape("b"), (12, 1, Status::Damaged));
        assert_eq!(points(named(&recordings, "a"), "nested/grad_norm").len(), 12);
        assert_eq!(recordings[0].run_id.as_deref(), Some("a"));
    }

    #[test]
    fn rows_that_are_no_objects_are_passed_over() {
        let good = r#"{"grad_norm": 1.0}"#;
        let mut rows: Vec<(&str, i64, &str)> = (0..20).map(|step| ("a", step, good)).collect();
        rows[7].2 = r#"{"grad_norm": 1.0"#;
        rows[9].2 = "17";
        let recordings = read(serialized(&old(&rows)));
        assert_eq!(recordings[0].records, 18);
        let faults: Vec<_> = recordings[0].faults.iter().map(|fault| (fault.kind, fault.place.at)).collect();
        assert_eq!(faults, [(FaultKind::Unparsable, 8), (FaultKind::Unparsable, 10)]);
        assert_eq!(status(&recordings[0]), Status::NotAssessable);
    }

    #[test]
    fn a_run_that_logged_nothing_is_a_run() {
        let connection = old(&[("a", 0, r#"{"loss": 1.0}"#)]);
        connection
            .execute_batch("CREATE TABLE configs (run_name TEXT); INSERT INTO configs VALUES ('a'), ('b');")
            .unwrap();
        let recordings = read(serialized(&connection));
        let records: Vec<_> =
            recordings.iter().map(|recording| (recording.run_id.as_deref(), recording.records)).collect();
        assert_eq!(records, [(Some("a"), 1), (Some("b"), 0)]);
    }

    #[test]
    fn reading_goes_on_behind_damage() {
        let object = format!("{{\"grad_norm\": 1.0, \"note\": \"{}\"}}", "x".repeat(300));
        let rows: Vec<(&str, i64, &str)> = (0..400).map(|step| ("a", step, object.as_str())).collect();
        let whole = serialized(&old(&rows));
        let pages = whole.len() / 4096;
        assert!(pages > 20);
        let (mut lost, mut most) = (0, 0);
        for page in 3..pages {
            let mut broken = whole.clone();
            // A leaf that is none.
            broken[page * 4096] = 0x7f;
            let recordings = read(broken);
            let read = recordings[0].records;
            if read < 400 {
                lost += 1;
                most = most.max(400 - read);
                assert!(!recordings[0].faults.is_empty() && recordings[0].has_lost_rows, "page {page}");
                assert_eq!(status(&recordings[0]), Status::NotAssessable, "page {page}");
            }
        }
        assert!(lost > pages / 2, "{lost} of {pages} pages");
        // A page holds a dozen rows; at most as many behind it are passed over.
        assert!((5..40).contains(&most), "{most}");
    }

    #[test]
    fn cuts_and_flips_never_panic() {
        let mut read = 0;
        for cut in (0..KILLED.len()).step_by(1021) {
            let Ok(recordings) = read_with(&KILLED[..cut], &Request::default()) else { continue };
            assert!(recordings.iter().all(|recording| !recording.faults.is_empty()), "cut at {cut}");
            read += 1;
        }
        assert!(read > 10, "{read}");
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut changed = 0;
        for _ in 0..300 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let mut flipped = KILLED.to_vec();
            flipped[(seed % KILLED.len() as u64) as usize] ^= 1 << (seed >> 61);
            let found = read_with(flipped, &Request::default());
            changed += usize::from(found.is_ok_and(|found| found.iter().any(|recording| !recording.faults.is_empty())));
        }
        assert!(changed > 0);
    }

    #[test]
    fn recognised_by_its_table() {
        // Pages of a kilobyte: the schema is not all on the first.
        let head = &RUNS[..RUNS.len().min(64 << 10)];
        assert_eq!(Trackio.recognise("p.db", head), Confidence::Certain);
        assert_eq!(Trackio.recognise("p.db", &serialized(&old(&[]))), Confidence::Certain);
        assert_eq!(Trackio.recognise("p.db", b"SQLite format 3\0"), Confidence::No);
        assert_eq!(Trackio.recognise_name("a/p.db"), Confidence::Maybe);
        assert_eq!(Trackio.recognise_name("a/p.csv"), Confidence::No);
        let mlflow = include_bytes!("../../tests/data/mlflow_sql/runs/mlflow.db");
        assert_eq!(Trackio.recognise("mlflow.db", mlflow), Confidence::No);
        assert!(super::super::mlflow_sql::MlflowSql.recognise("p.db", head) < Confidence::Certain);
    }
}
