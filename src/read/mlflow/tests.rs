use super::*;
use crate::model::{Limits, Role, Signal};
use crate::read::Request;
use crate::read::testing::Memory;

const RUN: &str = "mlruns/0/0123456789abcdef0123456789abcdef";
const META_YAML: &str = "artifact_uri: /a\nexperiment_id: '7'\nlifecycle_stage: active\nrun_id: \
                         0123456789abcdef0123456789abcdef\nrun_name: merry-shrew-1\nstatus: 4\nstart_time: 1700000000000\n";

fn entries(paths: &[String]) -> Vec<Entry> {
    let mut entries: Vec<Entry> =
        paths.iter().map(|path| Entry { path: path.clone(), size: 1, kind: EntryKind::File }).collect();
    entries.sort();
    entries
}

/// What the reader makes of files, all of which it is asked of by their heads.
fn sources(files: &Memory) -> Vec<Source> {
    let entries = entries(&files.parts.keys().cloned().collect::<Vec<_>>());
    let is_own = |index: &usize| {
        let path = &entries[*index].path;
        match Mlflow.recognise_name(path) {
            Confidence::No => false,
            Confidence::Certain => true,
            _ => Mlflow.recognise(path, &files.parts[path]) >= Confidence::Likely,
        }
    };
    let own: Vec<usize> = (0..entries.len()).filter(is_own).collect();
    Mlflow.group(&entries, &own)
}

fn run<B: Into<Vec<u8>>>(files: impl IntoIterator<Item = (&'static str, B)>) -> Memory {
    Memory::new(files.into_iter().map(|(name, bytes)| (format!("{RUN}/{name}"), bytes)))
}

fn read_with(files: &Memory, request: &Request, limits: &Limits) -> Result<Recording, Rejected> {
    let sources = sources(files);
    assert_eq!(sources.len(), 1, "{sources:?}");
    Ok(files.read_with(&Mlflow, &sources[0], request, limits)?.remove(0))
}

fn everything() -> Request {
    Request { everything: true, ..Request::default() }
}

fn read(files: &Memory) -> Recording {
    read_with(files, &everything(), &Limits::default()).expect("the run can be read")
}

/// Steps and values of a metric.
fn points(recording: &Recording, name: &str) -> Vec<(i64, String)> {
    let series = recording.series.iter().find(|series| series.name == name).expect("the metric is there");
    let Signal::Kept(kept) = &series.signal else { panic!("every series of a full read is kept") };
    (0..kept.values.len()).map(|row| (kept.steps.get(row), kept.values.get(row).to_string())).collect()
}

fn faults(recording: &Recording) -> Vec<(FaultKind, u32, u64)> {
    recording.faults.iter().map(|fault| (fault.kind, fault.place.part, fault.place.at)).collect()
}

fn lines(steps: impl IntoIterator<Item = i64>, late: i64) -> String {
    let line = |(row, step): (usize, i64)| {
        let value = if step == 7 { "nan".to_owned() } else { format!("{}", row as f64 / 4.0) };
        format!("{} {value} {step}\n", 1_700_000_000_000 + 1_000 * row as i64 + late)
    };
    steps.into_iter().enumerate().map(line).collect()
}

#[test]
fn a_run_is_its_directory() {
    let files = run([
        ("meta.yaml", META_YAML.to_owned()),
        ("metrics/train/loss", lines(0..12, 0)),
        ("metrics/grad norm", lines(0..12, 2)),
        ("metrics/eval.accuracy", lines([11], 9)),
        ("params/lr", "0.1".to_owned()),
        ("tags/mlflow.runName", "other".to_owned()),
        ("artifacts/metrics.csv", "step,loss\n1,2\n".to_owned()),
        ("inputs/x/meta.yaml", "source_id: 1\n".to_owned()),
    ]);
    let sources = sources(&files);
    assert_eq!(sources.len(), 1);
    assert_eq!((sources[0].path.as_str(), sources[0].directory.as_str()), (RUN, RUN));
    let names: Vec<&str> = sources[0].parts.iter().map(|part| part.name.as_str()).collect();
    let want = ["meta.yaml", "tags/mlflow.runName", "metrics/eval.accuracy", "metrics/grad norm", "metrics/train/loss"];
    assert_eq!(names, want);
    let recording = read(&files);
    assert_eq!(recording.name.as_deref(), Some("merry-shrew-1"));
    let metadata: Vec<(&str, &str)> = recording.metadata.iter().map(|(key, text)| (&key[..], &text[..])).collect();
    let want = [
        ("run_id", "0123456789abcdef0123456789abcdef"),
        ("experiment_id", "7"),
        ("status", "FAILED"),
        ("start_time", "2023-11-14T22:13:20.000Z"),
        ("name", "merry-shrew-1"),
    ];
    assert_eq!(metadata, want);
    // The evaluation came when its step was not reached yet: a record of its own.
    assert_eq!((recording.records, recording.started), (13, Some(1_700_000_000_000)));
    assert_eq!(points(&recording, "grad norm")[6..9], [(6, "1.5".into()), (7, "NaN".into()), (8, "2".into())]);
    assert_eq!(points(&recording, "eval.accuracy"), [(11, "0".into())]);
    assert!(recording.faults.is_empty());
    // What the checks need no values of is only listed.
    let sparse = read_with(&files, &Request::default(), &Limits::default()).expect("the run can be read");
    assert_eq!(sparse.unrecognised, ["eval.accuracy"]);
    let loss = sparse.series.iter().find(|series| series.name == "train/loss").expect("a loss");
    let Signal::Reduced(reduced) = &loss.signal else { panic!("a loss is reduced") };
    let place = sparse.place_in(loss, reduced.bad[0].record, reduced.bad[0].place);
    assert_eq!(place.describe(&sources[0].parts[place.part as usize].name), "metrics/train/loss line 8");
}

#[test]
fn lines_of_two_three_and_more_fields() {
    let line = |text: &str| parse(text.as_bytes());
    let time = Some(1_700_000_000_000);
    assert_eq!(line("1700000000000 0.5"), Ok(Value { time, value: 0.5, step: None }));
    assert_eq!(line("1700000000000 -inf 3\r"), Ok(Value { time, value: f64::NEG_INFINITY, step: Some(3) }));
    assert_eq!(line("1700000000000 1e-20 -4"), Ok(Value { time, value: 1e-20, step: Some(-4) }));
    assert_eq!(line("1700000000000 2 9 train set 0f3a"), Ok(Value { time, value: 2.0, step: Some(9) }));
    assert_eq!(line("0 2 9.0"), Ok(Value { time: None, value: 2.0, step: Some(9) }));
    for broken in ["17000", "1.5 2 3", "1700000000000 x 3", "1700000000000 0.5 x", "1700000000000  ", "nan"] {
        assert!(line(broken).is_err(), "{broken:?}");
    }
    let recording = read(&run([("metrics/loss", "1700000000000 0.5\r\n1700000001000 inf\r\n1700000002000 0.25\r\n")]));
    assert_eq!(points(&recording, "loss"), [(0, "0.5".into()), (1, "inf".into()), (2, "0.25".into())]);
    let Signal::Kept(kept) = &recording.series[0].signal else { panic!("every series of a full read is kept") };
    assert_eq!(kept.stepless, [0, 1, 2]);
}

#[test]
fn a_malformed_line_costs_itself_only() {
    let text = "1700000000000 1.0 1\n17000000\n1700000002000 nan 3\n\n1700000004000 o.5 5\n\0\0\n\
                \0\x001700000006000 2.0 7\n1700000007000 3.0 8";
    let recording = read(&run([("metrics/grad_norm", text)]));
    assert_eq!(points(&recording, "grad_norm"), [(1, "1".into()), (3, "NaN".into()), (7, "2".into())]);
    use FaultKind::{Stray, Truncated, Unparsable};
    assert_eq!(
        faults(&recording),
        [(Unparsable, 0, 2), (Unparsable, 0, 5), (Stray, 0, 6), (Stray, 0, 7), (Truncated, 0, 8)]
    );
}

#[test]
fn what_a_cut_leaves() {
    let kept = |tail: &str| {
        let recording = read(&run([("metrics/grad_norm", format!("1700000000000 1.0 1\n{tail}"))]));
        let is_lost = recording.faults.iter().any(|fault| fault.kind == FaultKind::Unparsable);
        (points(&recording, "grad_norm").len(), is_lost)
    };
    // The step may go on.
    assert_eq!(kept("1700000001000 2.0 12"), (1, false));
    assert_eq!(kept("1700000001000 nan 12"), (1, true));
    assert_eq!(kept("1700000001000 nan"), (1, true));
    assert_eq!(kept("1700000001000 2.0 12 "), (2, false));
    assert_eq!(kept("1700000001000 nan 12 data 0f"), (2, false));
    assert_eq!(kept("17000000"), (1, false));
    let without =
        |tail: &str| points(&read(&run([("metrics/loss", format!("1700000000000 1.0\n{tail}"))])), "loss").len();
    assert_eq!((without("1700000001000 2.0"), without("1700000001000 nan")), (1, 2));
    assert_eq!((without("1700000001000 2.0 "), without("1700000001000 2.0\n")), (2, 2));
}

#[test]
fn a_resumed_run_shows_its_attempts() {
    let steps = || (0..20).chain(10..30);
    let recording = read(&run([("metrics/loss", lines(steps(), 0)), ("metrics/grad_norm", lines(steps(), 1))]));
    let attempts: Vec<_> =
        recording.axis.attempts.iter().map(|own| (own.record, own.first_step, own.last_step)).collect();
    assert_eq!(attempts, [(0, 0, 19), (20, 10, 29)]);
    assert_eq!(points(&recording, "loss").len(), 40);
}

#[test]
fn deleted_runs_are_left_out() {
    let deleted = META_YAML.replace("active", "deleted");
    let files = run([("meta.yaml", deleted), ("metrics/loss", lines(0..5, 0))]);
    let rejected = read_with(&files, &everything(), &Limits::default()).expect_err("a deleted run");
    assert_eq!(rejected.code(), "deleted");
    let trash = format!("mlruns/.trash/{RUN}");
    for path in [format!("{trash}/metrics/loss"), format!("{trash}/meta.yaml"), ".trash/metrics/loss".into()] {
        assert_eq!(Mlflow.recognise_name(&path), Confidence::No, "{path}");
        assert_eq!(Mlflow.recognise(&path, lines(0..5, 0).as_bytes()), Confidence::No, "{path}");
    }
}

#[test]
fn runs_of_other_names_and_roots() {
    let loss = lines(0..5, 0);
    // A root that is the run directory itself, and a run without meta.yaml.
    let files = Memory::new([("metrics/train/loss", loss.as_str()), ("metrics/lr", "17\n"), ("params/lr", "1")]);
    assert_eq!(points(&read(&files), "train/loss").len(), 5);
    // A custom id: what stands in its metrics is no question once meta.yaml is known.
    let files = Memory::new([
        ("runs/my-run/meta.yaml", META_YAML),
        ("runs/my-run/metrics/a/metrics/loss", &loss),
        ("runs/my-run/metrics/broken", "17\n"),
        ("runs/meta.yaml", "artifact_location: /a\nexperiment_id: '0'\nname: Default\n"),
        ("runs/other/metrics.txt", &loss),
    ]);
    let found = sources(&files);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].path, "runs/my-run");
    let recording = read(&files);
    assert_eq!(points(&recording, "a/metrics/loss").len(), 5);
    assert_eq!(recording.faults.len(), 1);
    // The file of one metric.
    let one = Memory::new([("grad_norm", loss.as_str())]);
    assert_eq!(Mlflow.recognise("grad_norm", loss.as_bytes()), Confidence::Likely);
    let entry = Entry { path: "grad_norm".into(), size: loss.len() as u64, kind: EntryKind::File };
    let source = Mlflow.group(&[entry], &[0]).remove(0);
    let recording = one.read_with(&Mlflow, &source, &everything(), &Limits::default()).expect("it is read").remove(0);
    assert_eq!(points(&recording, "grad_norm").len(), 5);
    // Other tools call directories by hashes.
    let other = "0123456789abcdef0123456789abcdef/metrics/events.out.tfevents.1";
    assert_eq!(Mlflow.recognise_name(other), Confidence::Maybe);
    assert_eq!(Mlflow.recognise(other, b"\x18\0\0\0"), Confidence::No);
    assert_eq!(Mlflow.recognise_name("0123456789abcdef0123456789abcdef/artifacts/x"), Confidence::No);
}

#[test]
fn a_run_that_logged_nothing_is_a_run() {
    let recording = read(&run([("meta.yaml", META_YAML)]));
    assert_eq!((recording.records, recording.series.len()), (0, 0));
}

#[test]
fn coverage_is_told_by_metrics_with_a_role() {
    let files = run([
        ("metrics/grad_norm", lines(0..10, 0)),
        ("metrics/learning_rate", lines((0..6_000).map(|step| step * 10), 1)),
        ("metrics/system/cpu", lines([1_000_000], 2)),
    ]);
    let recording = read_with(&files, &Request::default(), &Limits::default()).expect("the run can be read");
    assert_eq!(recording.axis.last_step, Some(59_990));
    assert_eq!(recording.unrecognised, ["learning_rate", "system/cpu"]);
}

#[test]
fn any_window_gives_the_same() {
    let text = format!("{}17\n\0\0{}1700000009000 nan 9", lines(0..30, 0), lines(20..25, 40_000));
    let whole = run([("metrics/grad_norm", text.clone()), ("metrics/loss", lines(0..30, 3))]);
    let want = format!("{:?}", read(&whole));
    for (record, chunk) in [(64, 1), (80, 7), (100, usize::MAX), (1 << 16, 3)] {
        let files = Memory { chunk, ..whole.clone() };
        let limits = Limits { record, ..Limits::default() };
        let got = read_with(&files, &everything(), &limits).expect("the run can be read");
        assert_eq!(format!("{got:?}"), want, "windows of {record} bytes, reads of {chunk}");
    }
    // Every cut keeps what stands before it.
    let mut before = 0;
    for cut in 0..=text.len() {
        let count = points_of(&read(&run([("metrics/grad_norm", text[..cut].to_owned())])));
        assert!(count >= before, "cut at byte {cut}");
        before = count;
    }
    assert_eq!(before, 35);
}

fn points_of(recording: &Recording) -> usize {
    recording.series.iter().map(|series| series.tally.rows as usize).sum()
}

#[test]
fn a_line_beyond_the_limit_is_passed_over() {
    let text = format!("{}1700000005000 1.0 5 {} 0f\n{}", lines(0..5, 0), "x".repeat(300), lines(6..9, 7_000));
    let limits = Limits { record: 128, ..Limits::default() };
    let recording = read_with(&run([("metrics/loss", text)]), &everything(), &limits).expect("the run can be read");
    assert_eq!(points_of(&recording), 8);
    assert_eq!(faults(&recording), [(FaultKind::Limit, 0, 6)]);
}

#[test]
fn pointers_of_git_lfs() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    let rejected = read_with(&run([("metrics/loss", pointer)]), &everything(), &Limits::default());
    assert_eq!(rejected.expect_err("nothing can be read").code(), "git-lfs-pointer");
    let recording = read(&run([("metrics/loss", pointer.to_owned()), ("metrics/grad_norm", lines(0..3, 0))]));
    assert_eq!(recording.lost, [("loss".to_owned(), Role::Loss)]);
    assert_eq!(faults(&recording).len(), 1);
}
