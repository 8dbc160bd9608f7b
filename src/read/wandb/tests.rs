use super::*;
use crate::model::FaultKind;
use crate::model::recording::Doubt;
use crate::model::{EntryKind, Limits, Role, Signal};
use crate::read::Request;
use crate::read::testing::Memory;
use crate::wire::leveldb::writer::log;

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn bytes(field: u32, inner: &[u8]) -> Vec<u8> {
    [varint(u64::from(field) << 3 | 2), varint(inner.len() as u64), inner.to_vec()].concat()
}

fn number(field: u32, value: u64) -> Vec<u8> {
    [varint(u64::from(field) << 3), varint(value)].concat()
}

/// An item as the Go core writes it: the key in parts, the value in JSON.
fn item(key: &str, value: &str) -> Vec<u8> {
    let parts: Vec<u8> = key.split('|').flat_map(|part| bytes(2, part.as_bytes())).collect();
    bytes(1, &[parts, bytes(16, value.as_bytes())].concat())
}

/// An item as older Python writers have it.
fn old_item(key: &str, value: &str) -> Vec<u8> {
    bytes(1, &[bytes(1, key.as_bytes()), bytes(16, value.as_bytes())].concat())
}

fn history(items: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    bytes(2, &items.into_iter().flatten().collect::<Vec<u8>>())
}

fn row(cells: &[(&str, &str)]) -> Vec<u8> {
    history(cells.iter().map(|(key, value)| item(key, value)))
}

fn metric(name: &str, step: &str) -> Vec<u8> {
    let field = if name.ends_with('*') { 2 } else { 1 };
    bytes(12, &[bytes(field, name.as_bytes()), bytes(4, step.as_bytes())].concat())
}

/// A run record of a version of the package.
fn run(version: &str) -> Vec<u8> {
    let texts = [bytes(1, b"abc"), bytes(3, b"proj"), bytes(8, "n\u{e4}me".as_bytes())].concat();
    let time = bytes(17, &[number(1, 1_700_000_000), number(2, 250_000_000)].concat());
    bytes(17, &[texts, time, bytes(19, &bytes(5, version.as_bytes()))].concat())
}

fn exit(code: u64) -> Vec<u8> {
    bytes(18, &if code == 0 { Vec::new() } else { number(1, code) })
}

fn file(records: &[Vec<u8>]) -> Vec<u8> {
    log(HEADER.bytes(0), records)
}

fn read_with(files: &[Vec<u8>], chunk: usize, request: &Request, limits: &Limits) -> Result<Recording, Rejected> {
    let named = files.iter().enumerate().map(|(at, file)| (format!("{at}.wandb"), file.clone()));
    let mut memory = Memory::new(named);
    memory.chunk = chunk;
    let parts = (0..files.len()).map(|at| memory.part(&format!("{at}.wandb"))).collect();
    let source = Source { format: Format::Wandb, path: "run".into(), directory: String::new(), parts };
    Ok(memory.read_with(&Wandb, &source, request, limits)?.remove(0))
}

fn read(records: &[Vec<u8>]) -> Recording {
    read_with(&[file(records)], usize::MAX, &Request::default(), &Limits::default()).unwrap()
}

fn everything(records: &[Vec<u8>]) -> Recording {
    let request = Request { everything: true, ..Request::default() };
    read_with(&[file(records)], usize::MAX, &request, &Limits::default()).unwrap()
}

fn points(recording: &Recording, name: &str) -> Vec<(i64, f64)> {
    let series = recording.series.iter().find(|series| series.name == name).unwrap_or_else(|| panic!("no {name}"));
    let Signal::Kept(kept) = &series.signal else { panic!("{name} is not kept") };
    kept.steps.iter().zip((0..kept.values.len()).map(|row| kept.values.get(row))).collect()
}

fn said<'r>(recording: &'r Recording, name: &str) -> Option<&'r str> {
    recording.metadata.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
}

fn faults(recording: &Recording) -> Vec<(FaultKind, u64)> {
    recording.faults.iter().map(|fault| (fault.kind, fault.place.at)).collect()
}

#[test]
fn rows_in_any_order_of_items() {
    let recording = read(&[
        run("0.29.0"),
        row(&[("_step", "0"), ("train/grad_norm", "0.5"), ("lr", "1e-05"), ("_timestamp", "1700000000.5")]),
        row(&[("lr", "2e-05"), ("train/grad_norm", "NaN"), ("_timestamp", "1.7000000105e+09"), ("_step", "1")]),
        row(&[("train/grad_norm", "Infinity"), ("_step", "2"), ("lr", "2")]),
        row(&[("_step", "3"), ("train/grad_norm", "\"-Infinity\""), ("lr", "2")]),
        row(&[("train/grad_norm", "-0.25"), ("_step", "4"), ("lr", "2")]),
        exit(0),
    ]);
    let found = points(&recording, "train/grad_norm");
    assert_eq!(found.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert!(found[1].1.is_nan());
    assert_eq!([found[0].1, found[2].1, found[3].1, found[4].1], [0.5, f64::INFINITY, f64::NEG_INFINITY, -0.25]);
    assert_eq!(recording.axis.step_name.as_deref(), Some("_step"));
    assert_eq!((recording.started, recording.ended), (Some(1_700_000_000_500), Some(1_700_000_010_500)));
    assert_eq!(recording.series[0].gaps, 0);
    assert_eq!((recording.records, recording.faults.len()), (5, 0));
    let all =
        ["run_id", "name", "project", "started", "exit_code", "state", "wandb_version"].map(|n| said(&recording, n));
    let want = ["abc", "n\u{e4}me", "proj", "2023-11-14T22:13:20.250Z", "0", "finished", "0.29.0"];
    assert_eq!(all, want.map(Some));
    assert_eq!(recording.name.as_deref(), Some("n\u{e4}me"));
}

#[test]
fn old_keys_nested_keys_objects_and_typed_values_name_the_same_columns() {
    let typed = |name: &str, value: Vec<u8>| bytes(1, &[bytes(2, name.as_bytes()), value].concat());
    let double = |value: f64| [varint(6 << 3 | 1), value.to_le_bytes().to_vec()].concat();
    let recording = everything(&[
        history([old_item("_step", "0"), old_item("optim", "{\"grad\": {\"norm\": 1.5, \"x\": [1]}, \"lr\": 0.1}")]),
        history([item("_step", "1"), item("optim|grad|norm", "2.5"), item("optim|lr", "0.2")]),
        history([
            typed("_step", number(5, 4)),
            typed("optim.grad.norm", double(f64::NAN)),
            typed("optim.lr", number(4, 1)),
            typed("empty", number(3, 0)),
            typed("note", bytes(7, b"text")),
            typed("list", bytes(8, b"[1]")),
        ]),
        history([
            typed("_step", number(5, 6)),
            bytes(1, &[bytes(2, b"optim.grad.norm"), bytes(16, b"3.5"), double(9.0)].concat()),
            typed("optim.lr", number(5, 3)),
        ]),
    ]);
    let norm = points(&recording, "optim.grad.norm");
    assert_eq!([norm[0], norm[1], norm[3]], [(0, 1.5), (1, 2.5), (3, 3.5)]);
    assert!(norm[2].0 == 2 && norm[2].1.is_nan());
    assert_eq!(points(&recording, "optim.lr"), [(0, 0.1), (1, 0.2), (2, 1.0), (3, -2.0)]);
    assert_eq!(recording.series.len(), 2);
}

#[test]
fn a_name_that_repeats_or_is_long_is_found_again() {
    let names: Vec<String> = (0..300).map(|at| format!("layers.{at}.very.long.name.of.a.weight/grad_norm")).collect();
    let rows: Vec<Vec<u8>> = (0..3)
        .map(|step| {
            let cells = names.iter().enumerate().map(|(at, name)| item(name, &format!("{}", at * 10 + step)));
            history(cells.chain([item("_step", &step.to_string())]).chain([item("s", "\"x\"")]))
        })
        .collect();
    let recording = everything(&rows);
    assert_eq!(recording.series.len(), 300);
    for (at, name) in names.iter().enumerate() {
        let want: Vec<(i64, f64)> = (0..3).map(|step| (step, (at * 10) as f64 + step as f64)).collect();
        assert_eq!(points(&recording, name), want);
    }
}

#[test]
fn the_trainers_own_step_goes_before_the_counter_of_rows() {
    let recording = read(&[
        row(&[("_step", "0"), ("train/global_step", "10"), ("train/grad_norm", "1")]),
        row(&[("_step", "1"), ("eval/accuracy", "0.5"), ("train/global_step", "10")]),
        row(&[("train/grad_norm", "2"), ("_step", "2"), ("train/global_step", "20")]),
    ]);
    assert_eq!(points(&recording, "train/grad_norm"), [(10, 1.0), (20, 2.0)]);
    assert_eq!(recording.axis.step_name.as_deref(), Some("train/global_step"));
}

#[test]
fn a_step_metric_of_the_gradient_norm_is_the_step() {
    let rows = [
        row(&[
            ("train/grad_norm", "1"),
            ("_step", "0"),
            ("updates/done", "100"),
            ("eval/n", "7"),
            ("global_step", "5"),
        ]),
        row(&[("_step", "1"), ("eval/loss", "0.5"), ("eval/n", "8")]),
        row(&[("updates/done", "200"), ("_step", "2"), ("train/grad_norm", "2"), ("global_step", "6")]),
        // Without the step metric: the last one holds.
        row(&[("_step", "3"), ("train/grad_norm", "3"), ("global_step", "7")]),
    ];
    let with = |definitions: &[Vec<u8>]| read(&[definitions, &rows].concat());
    let glob = [metric("*", "updates/done"), metric("eval/*", "eval/n")];
    let recording = with(&glob);
    assert_eq!(points(&recording, "train/grad_norm"), [(100, 1.0), (200, 2.0), (200, 3.0)]);
    assert_eq!(recording.axis.step_name.as_deref(), Some("updates/done"));
    // The longest begin counts, then the name itself; a point in a name is escaped; `_step` says nothing.
    let named = |extra: &[Vec<u8>]| with(&[&glob, extra].concat()).axis.step_name;
    assert_eq!(named(&[metric("train/*", "eval/n")]).as_deref(), Some("eval/n"));
    assert_eq!(
        named(&[metric("train/*", "eval/n"), metric("train/grad_norm", "updates/done")]).unwrap(),
        "updates/done"
    );
    assert_eq!(named(&[metric("train/grad_norm", "_step")]).as_deref(), Some("global_step"));
    let by_index = bytes(12, &[bytes(1, b"train/grad_norm"), number(5, 1)].concat());
    let recording = read(&[&[bytes(12, &bytes(1, b"updates/done")), by_index][..], &rows].concat());
    assert_eq!(recording.axis.step_name.as_deref(), Some("updates/done"));
    // What the user asks goes before it.
    let request = Request { step: Some("global_step".into()), ..Request::default() };
    let bytes = file(&[&glob[..], &rows].concat());
    let recording = read_with(&[bytes], usize::MAX, &request, &Limits::default()).unwrap();
    assert_eq!(points(&recording, "train/grad_norm"), [(5, 1.0), (6, 2.0), (7, 3.0)]);
}

#[test]
fn a_loss_has_its_step_metric_where_no_gradient_norm_is() {
    let recording = read(&[
        metric("my\\.loss", "count.it"),
        row(&[("my.loss", "1"), ("_step", "0"), ("count.it", "4")]),
        row(&[("my.loss", "1"), ("_step", "1"), ("count.it", "8")]),
    ]);
    assert_eq!(recording.axis.step_name.as_deref(), Some("count.it"));
    assert_eq!((recording.axis.first_step, recording.axis.last_step), (Some(4), Some(8)));
}

#[test]
fn steps_of_every_kind_and_none() {
    // What a step may be found as; texts and booleans count as they do in JSON Lines.
    let steps = ["\"5\"", "5.5", "null", "true", "{\"a\":1}", "[1]", "7"];
    let recording = read(&steps.map(|step| row(&[("_step", step), ("grad_norm", "1")])));
    assert_eq!(recording.records, 7);
    let found: Vec<i64> = points(&recording, "grad_norm").iter().map(|(step, _)| *step).collect();
    assert_eq!(found, [5, 5, 5, 1, 1, 1, 7]);
    assert!(recording.axis.fractional);
    // `HistoryStep.num` where `_step` is absent; of 0 it is absent itself.
    let stepped = |step: &[u8], norm: &str| bytes(2, &[item("grad_norm", norm), bytes(2, step)].concat());
    let recording = read(&[stepped(&[], "1"), stepped(&number(1, 3), "2"), stepped(&number(1, 4), "3")]);
    assert_eq!(points(&recording, "grad_norm"), [(0, 1.0), (3, 2.0), (4, 3.0)]);
    assert_eq!(recording.axis.step_name.as_deref(), Some("_step"));
    // None anywhere: record order.
    let recording = read(&[row(&[("grad_norm", "1")]), row(&[("grad_norm", "2")])]);
    assert_eq!(points(&recording, "grad_norm"), [(0, 1.0), (1, 2.0)]);
    assert_eq!(recording.axis.step_name, None);
}

#[test]
fn media_is_filled_and_no_number() {
    let recording = everything(&[
        row(&[("_step", "0"), ("grad_norm", "1"), ("w|bins", "[1,2]"), ("w|count", "3"), ("w|_type", "\"histogram\"")]),
        row(&[("_step", "1"), ("w|count", "3"), ("w|later", "4"), ("w|_type", "\"histogram\"")]),
        history([item("_step", "2"), old_item("image", "{\"width\": 5, \"_type\": \"image-file\"}")]),
        row(&[("_step", "3"), ("grad_norm", "1")]),
    ]);
    assert_eq!(recording.series.iter().map(|series| series.name.as_str()).collect::<Vec<_>>(), ["grad_norm"]);
    assert_eq!(recording.unrecognised, [""; 0]);
    // Rows of media alone are of another kind than those with the norm.
    assert_eq!(recording.series[0].gaps, 0);
}

#[test]
fn null_is_missing_and_in_old_files_doubtful() {
    let rows = [
        row(&[("_step", "0"), ("train/loss", "2"), ("grad_norm", "1")]),
        row(&[("_step", "1"), ("train/loss", "2"), ("grad_norm", "null"), ("other", "null")]),
        row(&[("_step", "2"), ("train/loss", "NaN"), ("grad_norm", "1")]),
        row(&[("_step", "3"), ("train/loss", "null"), ("grad_norm", "null")]),
    ];
    let with = |version: &str| read(&[&[run(version)][..], &rows].concat());
    let doubt = |metric: &str, first_step, good| Doubt {
        metric: metric.into(),
        first_step: Some(first_step),
        last_good_step: Some(good),
    };
    for (version, want) in [("0.28.1", 0), ("0.31.0", 0), ("1.0", 0), ("0.28.0", 2), ("0.15.12", 2), ("0.9rc1", 2)] {
        let recording = with(version);
        assert_eq!(points(&recording, "grad_norm"), [(0, 1.0), (2, 1.0)]);
        assert_eq!(recording.doubts.len(), want, "{version}");
        if want > 0 {
            let mut doubts = recording.doubts;
            doubts.sort_by(|a, b| a.metric.cmp(&b.metric));
            assert_eq!(doubts, [doubt("grad_norm", 1, 0), doubt("train/loss", 3, 1)]);
        }
    }
    assert_eq!(read(&rows).doubts.len(), 2, "no version: it may be an old one");
}

#[test]
fn a_run_that_was_killed_or_failed_is_no_fault() {
    let rows = [run("0.29.0"), row(&[("_step", "0"), ("grad_norm", "1")])];
    let recording = read(&rows);
    assert_eq!((said(&recording, "state"), said(&recording, "exit_code")), (Some("running or killed"), None));
    let failed = read(&[&rows[..], &[exit(255)]].concat());
    assert_eq!((said(&failed, "state"), said(&failed, "exit_code")), (Some("failed"), Some("255")));
    let negative = read(&[&rows[..], &[exit(-9i64 as u64)]].concat());
    assert_eq!(said(&negative, "exit_code"), Some("-9"));
    assert!([recording, failed, negative].iter().all(|recording| recording.faults.is_empty()));
}

#[test]
fn a_resumed_run_is_one_recording_with_its_attempts() {
    let norm = |step: u32, norm: &str| row(&[("train/global_step", &step.to_string()), ("grad_norm", norm)]);
    let first: Vec<Vec<u8>> =
        [run("0.29.0")].into_iter().chain((1..=9).map(|step| norm(step, "1"))).chain([exit(1)]).collect();
    let second: Vec<Vec<u8>> = [run("0.29.0")].into_iter().chain((6..=12).map(|step| norm(step, "2"))).collect();
    let files = [file(&first), file(&second)];
    let recording = read_with(&files, usize::MAX, &Request::default(), &Limits::default()).unwrap();
    let attempts: Vec<_> = recording.axis.attempts.iter().map(|a| (a.record, a.first_step, a.training)).collect();
    assert_eq!(attempts, [(0, 1, 1), (9, 6, 1)]);
    assert_eq!(recording.part_starts, [(0, 0), (9, 1)]);
    // How the last part ended is how the run did.
    assert_eq!((said(&recording, "state"), said(&recording, "resumed")), (Some("running or killed"), Some("true")));
    assert_eq!(said(&recording, "exit_code"), None);
    // One part that is none costs itself.
    let files = [file(&first), b":W&".to_vec(), file(&second)];
    let recording = read_with(&files, usize::MAX, &Request::default(), &Limits::default()).unwrap();
    assert_eq!(recording.records, 16);
    assert_eq!(
        recording.faults.iter().map(|f| (f.kind, f.place.part)).collect::<Vec<_>>(),
        [(FaultKind::Truncated, 1)]
    );
}

#[test]
fn a_repeated_record_is_dropped_and_one_with_other_values_is_not() {
    let a = row(&[("_step", "0"), ("grad_norm", "1"), ("_timestamp", "1700000000.1")]);
    let b = row(&[("_step", "0"), ("grad_norm", "1"), ("_timestamp", "1700000000.2")]);
    let recording = read(&[a.clone(), a.clone(), b, a]);
    assert_eq!(recording.records, 2);
    assert_eq!(points(&recording, "grad_norm").len(), 2);
}

#[test]
fn damage_costs_what_it_hits_and_a_cut_is_no_damage() {
    let rows: Vec<Vec<u8>> =
        (0..20).map(|step| row(&[("_step", &step.to_string()), ("grad_norm", &format!("{step}.5"))])).collect();
    let whole = file(&rows);
    let begin = |record: usize| file(&rows[..record]).len();
    let read = |bytes: Vec<u8>| read_with(&[bytes], 100, &Request::default(), &Limits::default()).unwrap();
    let mut changed = whole.clone();
    changed[begin(4) + 12] ^= 1;
    let recording = read(changed);
    let steps: Vec<i64> = points(&recording, "grad_norm").iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, (0..20).filter(|step| *step != 4).collect::<Vec<_>>());
    assert_eq!(faults(&recording), [(FaultKind::BadChecksum, begin(4) as u64)]);
    for cut in begin(19) + 1..whole.len() {
        let recording = read(whole[..cut].to_vec());
        assert_eq!(recording.records, 19);
        assert_eq!(faults(&recording), [(FaultKind::Truncated, begin(19) as u64)]);
    }
    // Sound framing around what is no message.
    let recording = read(file(&[rows[0].clone(), b"\x12\x7fxx".to_vec(), rows[1].clone()]));
    assert_eq!((recording.records, faults(&recording)), (2, vec![(FaultKind::Unparsable, begin(1) as u64)]));
    // A row that breaks off inside leaves nothing behind.
    let half = bytes(2, &[item("grad_norm", "9"), item("left", "1"), b"\x0a\x70".to_vec()].concat());
    let recording = read(file(&[rows[0].clone(), half, rows[1].clone()]));
    assert_eq!(points(&recording, "grad_norm"), [(0, 0.5), (1, 1.5)]);
    assert_eq!(recording.series[0].gaps, 0);
}

#[test]
fn every_window_reads_the_same() {
    let long = format!("\"{}\"", "x".repeat(70_000));
    let records: Vec<Vec<u8>> = (0..400)
        .map(|step| {
            let text = if step % 100 == 50 { &long } else { "1" };
            row(&[("note", text), ("_step", &step.to_string()), ("grad_norm", "0.125")])
        })
        .collect();
    let bytes = file(&records);
    let read = |chunk, record| {
        let limits = Limits { record, ..Limits::default() };
        format!("{:?}", read_with(std::slice::from_ref(&bytes), chunk, &Request::default(), &limits).unwrap())
    };
    let want = read(usize::MAX, 64 << 20);
    assert!(want.contains("records: 400"), "{want}");
    for (chunk, record) in [(7, 80_000), (1000, 71_000), (usize::MAX, 75_001)] {
        assert!(read(chunk, record) == want, "reads of {chunk}, windows of {record}");
    }
}

#[test]
fn limits_are_faults() {
    let limits = Limits { name: 40, columns: 3, record: 1000, ..Limits::default() };
    let records = [
        row(&[("_step", "0"), (&"n".repeat(41), "1"), ("a", "1"), ("b", "1"), ("c", "1"), ("grad_norm", "1")]),
        row(&[("_step", "1"), ("text", &format!("\"{}\"", "x".repeat(2000))), ("grad_norm", "1")]),
        row(&[("_step", "2"), ("d", "1"), ("grad_norm", "1")]),
    ];
    let recording = read_with(&[file(&records)], usize::MAX, &Request::default(), &limits).unwrap();
    assert_eq!(points(&recording, "grad_norm"), [(0, 1.0), (2, 1.0)]);
    assert!(recording.faults.len() >= 2 && recording.faults.iter().all(|fault| fault.kind == FaultKind::Limit));
}

#[test]
fn what_is_no_log_says_why() {
    let code = |bytes: &[u8]| {
        read_with(&[bytes.to_vec()], 3, &Request::default(), &Limits::default()).map_err(|rejected| rejected.code())
    };
    assert_eq!(code(b":W&B\xe1\xbe\x01").unwrap_err(), "version");
    assert_eq!(code(b":W&B\xe1").unwrap_err(), "cut-header");
    assert_eq!(code(b"{\"loss\": 1}").unwrap_err(), "not-a-recording");
    assert_eq!(code(b"{}").unwrap_err(), "not-a-recording");
    assert_eq!(code(b"version https://git-lfs.github.com/spec/v1\noid").unwrap_err(), "git-lfs-pointer");
    // Its writer never came to flush.
    assert_eq!(code(b"").unwrap().records, 0);
    assert_eq!(code(&HEADER.bytes(0)).unwrap().records, 0);
}

#[test]
fn names_and_heads_are_recognised() {
    assert_eq!(Wandb.recognise_name("a/run-x.wandb"), Confidence::Certain);
    assert_eq!(Wandb.recognise_name("a/run-x.wandb.syncstate"), Confidence::No);
    assert_eq!(Wandb.recognise("a/blob", b":W&B\xe1\xbe\0rest"), Confidence::Certain);
    assert_eq!(Wandb.recognise("a/blob", b":SWL\xd6\xe1\x02"), Confidence::No);
}

#[test]
fn directories_of_one_run_are_one_source() {
    let paths = [
        "p/wandb/offline-run-20260102_030405-abc/run-abc.wandb",
        "p/wandb/offline-run-20260104_030405-abc/run-abc.wandb",
        "p/wandb/run-20260103_030405-abc/run-abc.wandb",
        "p/wandb/run-20260103_030405-x-y/run-x-y.wandb",
        "q/wandb/run-20260105_030405-abc/run-abc.wandb",
        "q/run-abc.wandb",
        "q/wandb/run-20260105_030405-abc/copy.wandb",
        "q/run-2026-abc/run-abc.wandb",
        "r/wandb/latest-run/run-abc.wandb",
        "r/wandb/run-20260105_030405-abc-10/run-abc.wandb",
        "r/wandb/run-20260105_030405-abc-2/run-abc.wandb",
        "r/wandb/run-20260105_030405-abc/run-abc.wandb",
        "run-20260105_030405-z/run-z.wandb",
    ];
    let entries: Vec<Entry> =
        paths.iter().map(|path| Entry { path: (*path).into(), size: 1, kind: EntryKind::File }).collect();
    let own: Vec<usize> = (0..entries.len()).collect();
    let sources = Wandb.group(&entries, &own);
    let found: Vec<(&str, &str, usize)> =
        sources.iter().map(|source| (source.path.as_str(), source.directory.as_str(), source.parts.len())).collect();
    let first = "p/wandb/offline-run-20260102_030405-abc";
    assert_eq!(
        found,
        [
            (first, first, 3),
            ("p/wandb/run-20260103_030405-x-y", "p/wandb/run-20260103_030405-x-y", 1),
            ("q/run-2026-abc/run-abc.wandb", "q/run-2026-abc", 1),
            ("q/run-abc.wandb", "q", 1),
            ("q/wandb/run-20260105_030405-abc", "q/wandb/run-20260105_030405-abc", 1),
            ("q/wandb/run-20260105_030405-abc/copy.wandb", "q/wandb/run-20260105_030405-abc", 1),
            ("r/wandb/run-20260105_030405-abc", "r/wandb/run-20260105_030405-abc", 3),
            ("run-20260105_030405-z", "run-20260105_030405-z", 1),
        ]
    );
    let parts: Vec<&str> = sources[0].parts.iter().map(|part| part.name.as_str()).collect();
    let want = [
        "offline-run-20260102_030405-abc/run-abc.wandb",
        "run-20260103_030405-abc/run-abc.wandb",
        "offline-run-20260104_030405-abc/run-abc.wandb",
    ];
    assert_eq!(parts, want);
    assert_eq!(sources[1].parts[0].name, "run-x-y.wandb");
    let numbered: Vec<&str> = sources[6].parts.iter().map(|part| part.path.as_str()).collect();
    assert_eq!(numbered, ["", "-2", "-10"].map(|n| format!("r/wandb/run-20260105_030405-abc{n}/run-abc.wandb")));
}

/// Every role that a check knows is read; the roles of the table decide, not this reader.
#[test]
fn roles_are_those_of_the_table() {
    let recording = read(&[row(&[("_step", "0"), ("train/loss", "1"), ("train/grad_norm", "2"), ("eval/loss", "3")])]);
    let mut roles: Vec<Option<Role>> = recording.series.iter().map(|series| series.role).collect();
    roles.sort_unstable();
    assert_eq!(roles, [Some(Role::GradNorm), Some(Role::Loss), Some(Role::EvalLoss)]);
}
