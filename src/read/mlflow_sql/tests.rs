use rusqlite::Connection;

use super::*;
use crate::detect::{self, Worker};
use crate::model::{FaultKind, Knobs, Signal, Status};
use crate::read::testing::Memory;

const RUNS: &[u8] = include_bytes!("../../../tests/data/mlflow_sql/runs/mlflow.db");
const LIVE: &[u8] = include_bytes!("../../../tests/data/mlflow_sql/wal/mlflow.db");
const LOG: &[u8] = include_bytes!("../../../tests/data/mlflow_sql/wal/mlflow.db-wal");

/// The tables as MLflow 3.17 makes them, as far as they matter.
const TABLES: &str = "
    CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name VARCHAR(256) NOT NULL, lifecycle_stage VARCHAR(32));
    CREATE TABLE runs (run_uuid VARCHAR(32) NOT NULL PRIMARY KEY, name VARCHAR(250), status VARCHAR(9), start_time BIGINT,
        end_time BIGINT, lifecycle_stage VARCHAR(20), experiment_id INTEGER);
    CREATE TABLE metrics (\"key\" VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL,
        run_uuid VARCHAR(32) NOT NULL, step BIGINT DEFAULT '0' NOT NULL, is_nan BOOLEAN DEFAULT '0' NOT NULL,
        CONSTRAINT metric_pk PRIMARY KEY (\"key\", timestamp, step, run_uuid, value, is_nan));
    CREATE TABLE latest_metrics (\"key\" VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT,
        step BIGINT NOT NULL, is_nan BOOLEAN NOT NULL, run_uuid VARCHAR(32) NOT NULL, PRIMARY KEY (\"key\", run_uuid));
    INSERT INTO experiments VALUES (1, 'exp', 'active');
";

const START: i64 = 1_700_000_000_000;

fn database(sql: &str) -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(sql).unwrap();
    connection
}

fn run(connection: &Connection, id: &str) {
    let sql = "INSERT INTO runs VALUES (?, ?, 'FINISHED', ?, ?, 'active', 1)";
    connection.execute(sql, (id, format!("name of {id}"), START, START + 60_000)).unwrap();
}

fn row(connection: &Connection, id: &str, key: &str, step: i64, time: i64, value: f64) {
    let (value, is_nan) = if value.is_nan() { (0.0, 1) } else { (value.clamp(f64::MIN, f64::MAX), 0) };
    let sql = "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, ?)";
    connection.execute(sql, (key, value, START + time, id, step, is_nan)).unwrap();
}

fn bytes(connection: &Connection) -> Vec<u8> {
    connection.serialize(c"main").unwrap().to_vec()
}

fn source(memory: &Memory) -> Source {
    let part = memory.part("mlflow.db");
    Source { format: Format::MlflowSql, path: "mlflow.db".into(), directory: String::new(), parts: vec![part] }
}

fn read(bytes: impl Into<Vec<u8>>) -> Result<Vec<Recording>, Rejected> {
    let memory = Memory::new([("mlflow.db", bytes.into())]);
    memory.read(&MlflowSql, &source(&memory))
}

fn everything(bytes: impl Into<Vec<u8>>) -> Vec<Recording> {
    let memory = Memory::new([("mlflow.db", bytes.into())]);
    let request = Request { everything: true, ..Request::default() };
    memory.read_with(&MlflowSql, &source(&memory), &request, &Limits::default()).unwrap()
}

fn named<'r>(recordings: &'r [Recording], name: &str) -> &'r Recording {
    recordings.iter().find(|recording| recording.name.as_deref() == Some(name)).expect("the run is there")
}

/// Steps and values of a series of a full read.
fn points(recording: &Recording, name: &str) -> Vec<(i64, f64)> {
    let series = recording.series.iter().find(|series| series.name == name).expect("the series is there");
    let Signal::Kept(kept) = &series.signal else { panic!("a full read keeps every series") };
    (0..kept.values.len()).map(|at| (kept.steps.get(at), kept.values.get(at))).collect()
}

/// Step of the first bad value of each finding.
fn findings(recording: &Recording) -> Vec<(&'static str, Option<i64>, u64)> {
    let verdict = detect::judge(recording, &Knobs::default(), &mut Worker::default());
    verdict.findings.iter().map(|finding| (finding.check.as_str(), finding.first_step, finding.count)).collect()
}

#[test]
fn runs_that_mlflow_wrote() {
    let recordings = read(RUNS).unwrap();
    let names: Vec<&str> = recordings.iter().filter_map(|recording| recording.name.as_deref()).collect();
    assert_eq!(names.len(), 8, "{names:?}");
    assert!(!names.contains(&"deleted") && !names.contains(&"in a deleted experiment"), "{names:?}");
    let mut ids: Vec<&str> = recordings.iter().filter_map(|recording| recording.run_id.as_deref()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert!(ids.len() == 8 && ids.iter().all(|id| id.len() == 32), "{ids:?}");
    let bad = |name: &str| findings(named(&recordings, name));
    assert_eq!(bad("healthy"), []);
    assert_eq!(bad("nonfinite"), [("nonfinite", Some(31), 3)]);
    assert_eq!(bad("failed"), [("nonfinite", Some(15), 6)]);
    assert_eq!(bad("stopped"), []);
    assert_eq!(bad("killed"), [("nonfinite", Some(18), 2)]);
    assert_eq!(bad("resumed"), [("nonfinite", Some(20), 2)]);
    for recording in &recordings {
        assert_eq!(recording.faults, []);
    }
}

#[test]
fn values_of_every_metric() {
    let recordings = everything(RUNS);
    let norms = points(named(&recordings, "nonfinite"), "train/grad_norm");
    assert_eq!(norms.len(), 40);
    let odd: Vec<(i64, String)> =
        norms.iter().filter(|(_, value)| !value.is_finite()).map(|(step, value)| (*step, value.to_string())).collect();
    assert_eq!(odd, [(31, "NaN".to_owned()), (34, "inf".to_owned()), (36, "-inf".to_owned())]);
    assert_eq!(norms[0], (1, 0.486_149_845_108_122_76));
    // A missing value is no row.
    assert_eq!(points(named(&recordings, "nonfinite"), "eval/loss").len(), 5);
    let other = named(&recordings, "names / of: metrics");
    assert_eq!(points(other, "größe")[1], (2, 0.5));
    assert_eq!(points(other, "a/b/c d").len(), 24);
    // All rows of one time are in the order of their steps.
    let steps: Vec<i64> =
        points(named(&recordings, "one timestamp"), "grad_norm").iter().map(|(step, _)| *step).collect();
    assert!(steps.len() == 41 && steps.is_sorted(), "{steps:?}");
    assert!(points(named(&recordings, "one timestamp"), "without_step")[0].1.is_nan());
}

#[test]
fn what_mlflow_says_of_a_run() {
    let recordings = read(RUNS).unwrap();
    let said = |name: &str, what: &str| {
        let metadata = &named(&recordings, name).metadata;
        metadata.iter().find(|(known, _)| known == what).map(|(_, text)| text.clone())
    };
    assert_eq!(said("stopped", "status").as_deref(), Some("KILLED"));
    assert_eq!(said("stopped", "experiment").as_deref(), Some("fine tuning"));
    assert_eq!(said("killed", "status").as_deref(), Some("RUNNING"));
    assert_eq!(said("killed", "ended"), None);
    assert!(said("healthy", "ended").is_some_and(|date| date.starts_with("20")));
    assert_eq!(said("healthy", "run_id").as_deref(), Some("65aa9c8279f248b08cb4a0d7d6225675"));
    let healthy = named(&recordings, "healthy");
    // What the checks do not know is listed, and read no further.
    assert_eq!(healthy.unrecognised, ["train/learning_rate", "eval/accuracy"]);
    assert_eq!((healthy.records, healthy.axis.last_step), (32, Some(32)));
    assert!(healthy.started.is_some() && healthy.ended >= healthy.started);
}

#[test]
fn a_resumed_run_shows_its_attempts() {
    let recordings = read(RUNS).unwrap();
    let axis = &named(&recordings, "resumed").axis;
    let attempts: Vec<_> = axis.attempts.iter().map(|own| (own.first_step, own.last_step, own.training)).collect();
    assert_eq!(attempts, [(1, 24, 1), (17, 32, 1)]);
}

#[test]
fn metrics_of_one_call_are_one_row_and_come_by_time() {
    let connection = database(TABLES);
    run(&connection, "a");
    run(&connection, "b");
    for step in 0..20 {
        // log_metric takes a time for each metric; runs log at the same time.
        row(&connection, "a", "loss", step, step * 100, 1.0);
        row(&connection, "a", "grad_norm", step, step * 100 + 1, if step == 7 { f64::INFINITY } else { 1.0 });
        row(&connection, "b", "loss", step, step * 100, 2.0);
    }
    // b goes on at step 10, with a loss that is NaN at once.
    row(&connection, "b", "loss", 10, 9_000, f64::NAN);
    row(&connection, "b", "loss", 11, 9_100, 2.0);
    let recordings = read(bytes(&connection)).unwrap();
    let shape = |name: &str| {
        let recording = named(&recordings, name);
        (recording.records, recording.axis.attempts.len(), findings(recording))
    };
    assert_eq!(recordings.len(), 2);
    assert_eq!(shape("name of a"), (20, 1, vec![("nonfinite", Some(7), 1)]));
    assert_eq!(shape("name of b"), (22, 2, vec![("nonfinite", Some(10), 1)]));
}

#[test]
fn the_last_metric_says_how_far_a_run_went() {
    let connection = database(TABLES);
    run(&connection, "a");
    for step in 0..30 {
        row(&connection, "a", "grad_norm", step, step, 1.0);
    }
    let sql = "INSERT INTO latest_metrics VALUES ('grad_norm', 1.0, 0, 29, 0, 'a'), ('learning_rate', 1.0, 0, 99, 0, 'a'), \
               ('reward', 1.0, 0, 5000, 0, 'a'), ('memory', 1.0, 0, 9000, 0, 'a')";
    connection.execute(sql, ()).unwrap();
    let recordings = read(bytes(&connection)).unwrap();
    assert_eq!(recordings[0].axis.last_step, Some(99));
    assert_eq!(recordings[0].unrecognised, ["learning_rate", "reward", "memory"]);
}

#[test]
fn runs_without_metrics_and_rows_without_runs() {
    let connection = database(TABLES);
    run(&connection, "empty");
    run(&connection, "other");
    connection.execute("INSERT INTO latest_metrics VALUES ('gpu', 1.0, 0, 40, 0, 'other')", ()).unwrap();
    for step in 0..12 {
        row(&connection, "stranger", "grad_norm", step, step, 1.0);
        row(&connection, "other", "gpu", step, step, 1.0);
    }
    let recordings = read(bytes(&connection)).unwrap();
    let judge = |id: &str| {
        let recording = recordings.iter().find(|recording| recording.run_id.as_deref() == Some(id)).unwrap();
        let verdict = detect::judge(recording, &Knobs::default(), &mut Worker::default());
        (verdict.status, verdict.reason.map(|(code, _)| code))
    };
    assert_eq!(recordings.len(), 3);
    assert_eq!(judge("empty"), (Status::NotAssessable, Some("empty")));
    assert_eq!(judge("stranger"), (Status::Clean, None));
    assert_eq!(judge("other").0, Status::NotAssessable);
    assert_ne!(judge("other").1, Some("empty"));
}

#[test]
fn stores_of_old_versions() {
    // Before steps and flags, and with a key that does not begin with the metric.
    let connection = database(
        "CREATE TABLE runs (run_uuid TEXT PRIMARY KEY, name TEXT);
         CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, PRIMARY KEY (run_uuid, key, timestamp));
         INSERT INTO runs VALUES ('a', 'old');",
    );
    for step in (0..12).rev() {
        let sql = "INSERT INTO metrics VALUES (?, ?, ?, 'a')";
        connection.execute(sql, ("grad_norm", step as f64, START + step)).unwrap();
        connection.execute(sql, ("other", step as f64, START + step)).unwrap();
    }
    let recordings = everything(bytes(&connection));
    let values: Vec<f64> = points(&recordings[0], "grad_norm").iter().map(|(_, value)| *value).collect();
    assert_eq!(values, (0..12).map(f64::from).collect::<Vec<_>>());
    assert_eq!(points(&recordings[0], "other").len(), 12);
}

#[test]
fn views_and_computed_columns_are_no_metrics() {
    let code = |sql: &str| read(bytes(&database(sql))).map(|found| found.len()).map_err(|rejected| rejected.code());
    let runs = "CREATE TABLE runs (run_uuid TEXT PRIMARY KEY);";
    let view = "CREATE VIEW metrics AS SELECT 'loss' AS key, 1.0 AS value, 0 AS timestamp, 'a' AS run_uuid, 0 AS step;";
    let computed =
        "CREATE TABLE metrics (key TEXT, value REAL AS (abs(step)), timestamp INT, run_uuid TEXT, step INT);";
    assert_eq!(code(&format!("{runs}{view}")), Err("not-a-recording"));
    assert_eq!(code(&format!("{runs}{computed}")), Err("not-a-recording"));
    assert_eq!(code("CREATE TABLE t (a INT);"), Err("not-a-recording"));
    assert_eq!(code(TABLES), Ok(0));
}

#[test]
fn the_log_of_a_packed_database_is_applied() {
    let with = |log: &[u8]| {
        let memory = Memory::new([("mlflow.db", LIVE), ("mlflow.db-wal", log)]);
        let recordings = memory.read(&MlflowSql, &source(&memory)).unwrap();
        assert_eq!(recordings.len(), 1);
        let kinds: Vec<FaultKind> = recordings[0].faults.iter().map(|fault| fault.kind).collect();
        (recordings[0].records, findings(&recordings[0]), kinds)
    };
    let damaged = vec![("nonfinite", Some(35), 2)];
    assert_eq!(with(LOG), (40, damaged.clone(), vec![]));
    assert_eq!(with(b""), (20, vec![], vec![]));
    // Only whole transactions count (this one ends with the log), and nothing behind a wrong sum; both are told.
    for cut in (512..LOG.len()).step_by(512) {
        // Between two pages it is a transaction that did not end, as a killed writer leaves it.
        let is_between = (cut - 32) % (24 + 1024) == 0;
        let told = if is_between { vec![] } else { vec![FaultKind::Truncated] };
        assert_eq!(with(&LOG[..cut]), (20, vec![], told), "cut at {cut}");
        let mut flipped = LOG.to_vec();
        flipped[cut] ^= 1;
        assert_eq!(with(&flipped), (20, vec![], vec![FaultKind::BadChecksum]), "flip at {cut}");
    }
    let mut headless = LOG.to_vec();
    headless[5] ^= 1;
    assert_eq!(with(&headless), (20, vec![], vec![FaultKind::BadChecksum]));
    // What an older log left behind is none of this one's.
    assert_eq!(with(&[LOG, &[7; 3000]].concat()), (40, damaged, vec![]));
    // A log that is too long is told.
    let limits = Limits { whole: LIVE.len() as u64, ..Limits::default() };
    let long = [LOG, &vec![0; LIVE.len()]].concat();
    let memory = Memory::new([("mlflow.db", LIVE.to_vec()), ("mlflow.db-wal", long)]);
    let recordings = memory.read_with(&MlflowSql, &source(&memory), &Request::default(), &limits).unwrap();
    let kinds: Vec<FaultKind> = recordings[0].faults.iter().map(|fault| fault.kind).collect();
    assert_eq!((kinds, recordings[0].records), (vec![FaultKind::Limit], 20));
}

#[test]
fn a_journal_of_a_cut_transaction_is_told() {
    let journal = [0xd9u8, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7, 0, 0, 0, 1].to_vec();
    let told = |journal: Vec<u8>| {
        let memory = Memory::new([("mlflow.db", RUNS.to_vec()), ("mlflow.db-journal", journal)]);
        let recordings = memory.read(&MlflowSql, &source(&memory)).unwrap();
        recordings.iter().flat_map(|recording| &recording.faults).map(|fault| fault.kind).collect::<Vec<_>>()
    };
    assert_eq!(told(journal), [FaultKind::Conflict; 8]);
    // A journal whose transaction ended is empty, or begins with zeros.
    assert_eq!(told(vec![0; 512]), []);
}

/// Rows of norms in all recordings, and whether all of them have a fault.
fn rows_of_norms(bytes: Vec<u8>) -> Option<(usize, bool)> {
    let recordings = read(bytes).ok()?;
    let series = recordings.iter().flat_map(|recording| &recording.series);
    let rows = series.filter(|series| series.name == "grad_norm").map(|series| series.tally.rows as usize).sum();
    Some((rows, recordings.iter().all(|recording| !recording.faults.is_empty())))
}

#[test]
fn cut_anywhere_rows_before_the_damage_stay() {
    let connection = database(TABLES);
    (0..4).for_each(|id| run(&connection, &format!("{id:032}")));
    for step in 0..1500 {
        for id in 0..4 {
            row(&connection, &format!("{id:032}"), "grad_norm", step, step * 10 + id, 1.0 + (step % 7) as f64);
        }
    }
    let whole = bytes(&connection);
    assert_eq!(rows_of_norms(whole.clone()), Some((6000, false)));
    let (mut read, mut most) = (0, 0);
    for cut in (0..whole.len()).step_by(4096).chain([1, 99, 100, 101, 5000, whole.len() - 1]) {
        let Some((rows, is_told)) = rows_of_norms(whole[..cut].to_vec()) else { continue };
        assert!(is_told, "cut at {cut}: {rows} rows and no fault");
        read += 1;
        most = most.max(rows);
    }
    assert!(read > 20 && most > 3000, "{read} cuts were read, at most {most} rows");
    let judge = |bytes: Vec<u8>| {
        let recordings = super::tests::read(bytes).unwrap();
        let judged = recordings.iter().map(|r| detect::judge(r, &Knobs::default(), &mut Worker::default()).status);
        judged.collect::<Vec<_>>()
    };
    assert_eq!(judge(whole.clone()), [Status::Clean; 4]);
    // Half of the rows are gone: none is clean.
    assert_eq!(judge(whole[..whole.len() / 2].to_vec()), [Status::NotAssessable; 4]);
}

#[test]
fn rows_behind_a_broken_page_are_read_from_the_end() {
    let connection = database(TABLES);
    run(&connection, "a");
    (0..3000).for_each(|step| row(&connection, "a", "grad_norm", step, step, 1.0));
    let whole = bytes(&connection);
    // Leaves of the index that holds the key, in the order of the file, which is that of the steps.
    const LEAF: u8 = 10;
    let leaves: Vec<usize> = (1..whole.len() / 4096).filter(|page| whole[page * 4096] == LEAF).collect();
    assert!(leaves.len() > 10, "{leaves:?}");
    for leaf in [leaves[leaves.len() / 3], leaves[leaves.len() / 2]] {
        let mut broken = whole.clone();
        broken[leaf * 4096] = 0x7f;
        let recordings = everything(broken);
        let points = points(&recordings[0], "grad_norm");
        assert!((2700..3000).contains(&points.len()), "{} rows", points.len());
        assert_eq!((points[0].0, points.last().map(|point| point.0)), (0, Some(2999)));
        assert!(points.is_sorted_by(|a, b| a.0 < b.0));
        assert!(recordings[0].has_lost_rows && recordings[0].faults.len() == 1, "{:?}", recordings[0].faults);
    }
}

#[test]
fn flips_never_panic_nor_hang() {
    let connection = database(TABLES);
    run(&connection, "a");
    (0..300).for_each(|step| row(&connection, "a", "grad_norm", step, step, 1.0));
    let whole = bytes(&connection);
    let (mut seed, mut changed) = (0x9e37_79b9_7f4a_7c15u64, 0);
    for _ in 0..400 {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let mut flipped = whole.clone();
        let at = (seed % whole.len() as u64) as usize;
        flipped[at] ^= 1 << (seed >> 61);
        changed += usize::from(rows_of_norms(flipped) != Some((300, false)));
    }
    assert!(changed > 10, "only {changed} flips changed anything");
}

#[test]
fn names_of_any_bytes() {
    let connection = database(TABLES);
    run(&connection, "a");
    let sql = "INSERT INTO metrics VALUES (CAST(x'677261645f6e6f726d2fff00' AS TEXT), 1.0, ?, 'a', 3, 0)";
    connection.execute(sql, [START]).unwrap();
    row(&connection, "a", "grad_norm", 5, 10, 2.0);
    let recordings = everything(bytes(&connection));
    let names: Vec<&str> = recordings[0].series.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names, ["grad_norm", "grad_norm/\u{fffd}\0"]);
    assert_eq!(points(&recordings[0], names[1]), [(3, 1.0)]);
}

#[test]
fn several_workers_find_what_one_finds() {
    let memory = Memory::new([("mlflow.db", RUNS)]);
    let source = source(&memory);
    let (request, limits) = (Request::default(), Limits::default());
    let mut buffer = Vec::new();
    let mut session = Session { files: &memory, request: &request, limits: &limits, buffer: &mut buffer };
    let one = MlflowSql.read(&source, &mut session).unwrap();
    let shards = MlflowSql.shards(&source, &request, &limits, &mut session).unwrap().unwrap();
    // Groups of runs before the rows that they are made of.
    let mut many = Vec::new();
    for shard in (0..shards.count()).rev() {
        shards.read(shard, &mut session, &mut |recording| many.push(recording));
    }
    assert!(many.is_empty());
    assert_eq!(shards.finish(&mut |recording| many.push(recording)), []);
    many.sort_by(|a, b| a.run_id.cmp(&b.run_id));
    let mut one = one;
    one.sort_by(|a, b| a.run_id.cmp(&b.run_id));
    assert_eq!(format!("{one:?}"), format!("{many:?}"));
    assert!(one.len() == 8 && !shards.is_empty());
}

#[test]
fn recognised_by_tables() {
    let head = |bytes: &[u8]| bytes[..bytes.len().min(64 << 10)].to_vec();
    assert_eq!(MlflowSql.recognise("mlflow.db", &head(RUNS)), Confidence::Certain);
    assert_eq!(MlflowSql.recognise("x.sqlite", &head(&bytes(&database(TABLES)))), Confidence::Certain);
    let other = bytes(&database("CREATE TABLE t (a INT);"));
    assert_eq!(MlflowSql.recognise("x.db", &other), Confidence::No);
    assert_eq!(MlflowSql.recognise("x.db", b"no database"), Confidence::No);
    assert_eq!(MlflowSql.recognise_name("a/mlflow.db"), Confidence::Likely);
    assert_eq!(MlflowSql.recognise_name("a/x.db"), Confidence::Maybe);
    assert_eq!(MlflowSql.recognise_name("a/x.csv"), Confidence::No);
    // A schema of many tables does not stand on the first page: only the tables themselves can tell.
    let many: String = (0..200).map(|table| format!("CREATE TABLE t{table} (a INT, b INT, c TEXT);")).collect();
    let many = bytes(&database(&many));
    assert_eq!(MlflowSql.recognise("x.db", &many[..4096]), Confidence::Maybe);
    assert_eq!(MlflowSql.recognise("x.db", &head(&many)), Confidence::Likely);
    assert_eq!(read(many).map(|found| found.len()).map_err(|rejected| rejected.code()), Err("not-a-recording"));
}

#[test]
fn companions_belong_to_their_database() {
    let entry = |path: &str| Entry { path: path.into(), size: 9, kind: crate::model::EntryKind::File };
    let entries =
        ["a/mlflow.db", "a/mlflow.db-journal", "a/mlflow.db-shm", "a/mlflow.db-wal", "b/lost.db-wal"].map(entry);
    assert!(entries.iter().all(|entry| MlflowSql.recognise_name(&entry.path) == Confidence::Likely));
    let paths: Vec<String> =
        MlflowSql.group(&entries, &[0, 1, 2, 3, 4]).into_iter().map(|source| source.path).collect();
    assert_eq!(paths, ["a/mlflow.db", "b/lost.db-wal"]);
}
