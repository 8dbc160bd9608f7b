//! Databases on disk leave no trace: what lies in a folder is the same before and after they are read, and nothing new
//! comes to lie beside them.
#![cfg(feature = "sqlite")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use gradscan::model::Status;
use gradscan::scan::{Options, Outcome, Scan, scan};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Name, bytes and time of change of every file of a folder, and its own.
fn listing(folder: &Path) -> BTreeMap<String, (Vec<u8>, SystemTime)> {
    let mut all = BTreeMap::new();
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).expect("a time");
    all.insert(".".to_owned(), (Vec::new(), changed(folder)));
    for entry in fs::read_dir(folder).expect("the folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        all.insert(name, (fs::read(&path).expect("a file"), changed(&path)));
    }
    all
}

fn scanned(path: &Path) -> Scan {
    scan(&[path.to_owned()], &Options::default(), &mut |_| true)
}

/// A folder with copies of fixtures.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (from, to) in files {
        fs::copy(data(from), folder.path().join(to)).expect("a copy");
    }
    folder
}

fn only(scan: &Scan) -> &Outcome {
    assert_eq!(scan.outcomes.len(), 1, "{:?}", scan.outcomes);
    &scan.outcomes[0]
}

#[test]
fn a_database_with_a_log_is_read_with_it_and_left_alone() {
    let folder =
        folder(&[("mlflow_sql/wal/mlflow.db", "mlflow.db"), ("mlflow_sql/wal/mlflow.db-wal", "mlflow.db-wal")]);
    let before = listing(folder.path());
    let found = scanned(folder.path());
    // Steps 21 to 40, the damaged ones among them, are in the log alone.
    let run = only(&found);
    assert_eq!((run.status, run.records, run.faults.len()), (Status::Damaged, 40, 0), "{:?}", run.faults);
    assert_eq!(run.findings[0].finding.first_step, Some(35));
    assert_eq!(found.skipped, 0);
    assert_eq!(listing(folder.path()), before);
    assert!(before.len() == 3);
}

#[test]
fn a_database_without_its_log_is_read_and_left_alone() {
    // Its header says that there is a log; SQLite would make one.
    let folder = folder(&[("mlflow_sql/wal/mlflow.db", "mlflow.db")]);
    let before = listing(folder.path());
    let found = scanned(folder.path());
    assert_eq!((only(&found).status, only(&found).records), (Status::Clean, 20));
    assert_eq!(listing(folder.path()), before);
    // Nor does an empty log change anything.
    fs::write(folder.path().join("mlflow.db-wal"), b"").expect("a file");
    let before = listing(folder.path());
    assert_eq!(only(&scanned(folder.path())).records, 20);
    assert_eq!(listing(folder.path()), before);
}

#[test]
fn a_hot_journal_is_neither_rolled_back_nor_removed() {
    let folder = folder(&[("mlflow_sql/wal/mlflow.db", "mlflow.db")]);
    let mut journal = vec![0xd9u8, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    journal.resize(512, 1);
    fs::write(folder.path().join("mlflow.db-journal"), journal).expect("a file");
    let before = listing(folder.path());
    let found = scanned(folder.path());
    assert_eq!(only(&found).records, 20);
    let kinds: Vec<&str> = found.faults.iter().map(|told| told.fault.kind.as_str()).collect();
    assert_eq!(kinds, ["conflict"]);
    assert_eq!(listing(folder.path()), before);
}

#[cfg(unix)]
#[test]
fn a_read_only_folder_is_no_obstacle() {
    use std::os::unix::fs::PermissionsExt;
    let folder =
        folder(&[("mlflow_sql/wal/mlflow.db", "mlflow.db"), ("mlflow_sql/wal/mlflow.db-wal", "mlflow.db-wal")]);
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    for name in ["mlflow.db", "mlflow.db-wal"] {
        mode(&folder.path().join(name), 0o444);
    }
    mode(folder.path(), 0o555);
    let before = listing(folder.path());
    let found = scanned(folder.path());
    let after = listing(folder.path());
    mode(folder.path(), 0o755);
    assert_eq!((only(&found).records, only(&found).faults.len()), (40, 0));
    assert_eq!(after, before);
}

#[test]
fn names_that_are_no_plain_words() {
    for name in ["a b?mode=rwc#x%41.db", "größe&vfs=unix.db", "a'b\"c;.db"] {
        let folder = folder(&[("trackio/killed/fixtures.db", name)]);
        let before = listing(folder.path());
        let found = scanned(folder.path());
        assert_eq!((only(&found).records, only(&found).status), (29, Status::Damaged), "{name}");
        assert_eq!(listing(folder.path()), before, "{name}");
    }
}

#[test]
fn workers_agree_on_a_store_of_several_runs() {
    let read = |threads: usize| {
        let options = Options { threads: Some(threads), ..Options::default() };
        let found = scan(&[data("mlflow_sql/runs")], &options, &mut |_| true);
        found.outcomes.iter().map(|run| format!("{run:?}")).collect::<Vec<_>>()
    };
    let one = read(1);
    assert_eq!(one.len(), 8);
    for threads in [2, 4] {
        assert_eq!(read(threads), one);
    }
}

#[test]
fn a_database_of_something_else_is_skipped() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("other.db");
    // So many tables that only opening it tells what they are.
    let tables: String = (0..300).map(|table| format!("CREATE TABLE t{table} (a INT, b INT);")).collect();
    rusqlite::Connection::open(&path).and_then(|made| made.execute_batch(&tables)).expect("a database");
    assert!(fs::metadata(&path).expect("a file").len() > 64 << 10);
    let before = listing(folder.path());
    let found = scanned(folder.path());
    assert_eq!((found.outcomes.len(), found.skipped), (0, 1));
    assert_eq!(listing(folder.path()), before);
    // A file that the user names is an outcome.
    assert_eq!(only(&scanned(&path)).status, Status::Unreadable);
}
