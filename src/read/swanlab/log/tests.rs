use crate::model::{Fault, FaultKind, Format, Limits, Recording, Signal, Source};
use crate::read::swanlab::Swanlab;
use crate::read::swanlab::log::HEADER;
use crate::read::testing::Memory;
use crate::read::{Confidence, Reader, Rejected, Request};
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

fn scalar(key: &str, step: i64, value: f64) -> Vec<u8> {
    let step = if step == 0 { Vec::new() } else { number(2, step as u64) };
    let double = [varint(1 << 3 | 1), value.to_le_bytes().to_vec()].concat();
    let time = bytes(4, &[number(1, 1_700_000_000), number(2, 500_000_000)].concat());
    bytes(13, &[bytes(1, key.as_bytes()), step, number(3, 1), time, bytes(5, &double)].concat())
}

/// A record of the older generation.
fn text(key: &str, step: &str, value: &str) -> Vec<u8> {
    format!(
        "{{\"model_type\": \"Scalar\", \"data\": {{\"metric\": {{\"index\": {step}, \"data\": {value}, \
         \"create_time\": \"2023-11-14T22:13:20.500000+00:00\"}}, \"key\": \"{key}\", \"step\": {step}, \"epoch\": 1}}}}\n"
    )
    .into_bytes()
}

fn read_with(files: &[Vec<u8>], chunk: usize) -> Result<Recording, Rejected> {
    let named = files.iter().enumerate().map(|(at, file)| (format!("{at}.swanlab"), file.clone()));
    let mut memory = Memory::new(named);
    memory.chunk = chunk;
    let parts = (0..files.len()).map(|at| memory.part(&format!("{at}.swanlab"))).collect();
    let source = Source { format: Format::Swanlab, path: "run".into(), directory: String::new(), parts };
    Ok(memory.read_with(&Swanlab, &source, &Request::default(), &Limits::default())?.remove(0))
}

fn read(version: u8, records: &[Vec<u8>]) -> Recording {
    read_with(&[log(HEADER.bytes(version), records)], usize::MAX).unwrap()
}

fn points(recording: &Recording, name: &str) -> Vec<(i64, f64)> {
    let series = recording.series.iter().find(|series| series.name == name).unwrap_or_else(|| panic!("no {name}"));
    let Signal::Kept(kept) = &series.signal else { panic!("{name} is not kept") };
    kept.steps.iter().zip((0..kept.values.len()).map(|row| kept.values.get(row))).collect()
}

fn said<'r>(recording: &'r Recording, name: &str) -> Option<&'r str> {
    recording.metadata.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
}

fn kinds(faults: &[Fault]) -> Vec<FaultKind> {
    faults.iter().map(|fault| fault.kind).collect()
}

#[test]
fn points_of_both_generations() {
    let new = [
        bytes(
            10,
            &[bytes(1, b"proj"), bytes(4, b"name"), bytes(10, b"id1"), bytes(12, &number(1, 1_700_000_000))].concat(),
        ),
        scalar("train/loss", 0, 2.5),
        scalar("train/grad_norm", 0, 0.5),
        scalar("train/loss", 1, 2.25),
        scalar("train/grad_norm", 1, f64::NAN),
        scalar("lr", 1, 1e-5),
        scalar("train/grad_norm", 2, f64::NEG_INFINITY),
        bytes(13, &[bytes(1, b"train/grad_norm"), number(2, 3), bytes(5, b"")].concat()),
        bytes(13, &[bytes(1, b"train/grad_norm"), number(2, 4)].concat()),
        bytes(16, &bytes(2, b"grad_norm: nan")),
        bytes(11, &number(1, 1)),
    ];
    let recording = read(2, &new);
    let norm = points(&recording, "train/grad_norm");
    assert_eq!([norm[0], norm[2], norm[3]], [(0, 0.5), (2, f64::NEG_INFINITY), (3, 0.0)]);
    assert!(norm.len() == 4 && norm[1].0 == 1 && norm[1].1.is_nan());
    assert_eq!(recording.series.iter().find(|series| series.name == "train/loss").unwrap().tally.rows, 2);
    assert_eq!(recording.started, Some(1_700_000_000_500));
    let want = [("run_id", "id1"), ("name", "name"), ("project", "proj"), ("state", "finished")];
    assert!(want.iter().all(|(name, text)| said(&recording, name) == Some(text)), "{:?}", recording.metadata);
    assert_eq!(recording.name.as_deref(), Some("name"));
    assert!(recording.faults.is_empty());

    let old = [
        b"{\"model_type\": \"Header\", \"data\": {\"create_time\": \"2023-11-14T22:13:20+00:00\"}}\n".to_vec(),
        b"{\"model_type\": \"Project\", \"data\": {\"name\": \"proj\", \"workspace\": null}}\n".to_vec(),
        b"{\"model_type\": \"Experiment\", \"data\": {\"id\": \"id2\", \"name\": \"n\\u00e4me\"}}\n".to_vec(),
        text("train/grad_norm", "1", "0.5"),
        text("train/grad_norm", "2", "\"NaN\""),
        text("train/grad_norm", "\"3\"", "\"INF\""),
        text("train/grad_norm", "4", "\"a text\""),
        text("train/grad_norm", "5", "{\"data\": 1}"),
        b"{\"model_type\": \"Log\", \"data\": {\"message\": \"{\\\"grad_norm\\\": NaN}\"}}\n".to_vec(),
        b"{\"model_type\": \"Footer\", \"data\": {\"success\": false}}\n".to_vec(),
    ];
    let recording = read(1, &old);
    let norm = points(&recording, "train/grad_norm");
    assert_eq!([norm[0], norm[2]], [(1, 0.5), (3, f64::INFINITY)]);
    assert!(norm.len() == 3 && norm[1].0 == 2 && norm[1].1.is_nan());
    let want =
        [("run_id", "id2"), ("name", "n\u{e4}me"), ("state", "crashed"), ("started", "2023-11-14T22:13:20.000Z")];
    assert!(want.iter().all(|(name, text)| said(&recording, name) == Some(text)), "{:?}", recording.metadata);
    assert!(recording.faults.is_empty());
}

#[test]
fn a_resumed_run_shows_its_attempts_and_a_killed_one_is_no_fault() {
    let start = bytes(10, &bytes(10, b"id"));
    let part = |steps: std::ops::RangeInclusive<i64>, end: &[Vec<u8>]| {
        // What is logged again is no copy of what was: other values.
        let last = *steps.end() as f64;
        let points = steps.flat_map(|step| [scalar("grad_norm", step, last), scalar("loss", step, last)]);
        let records: Vec<Vec<u8>> = [start.clone()].into_iter().chain(points).chain(end.iter().cloned()).collect();
        log(HEADER.bytes(2), records)
    };
    let files = [part(1..=9, &[bytes(11, &[number(1, 2), bytes(2, b"boom")].concat())]), part(6..=12, &[])];
    let recording = read_with(&files, 11).unwrap();
    let attempts: Vec<_> = recording.axis.attempts.iter().map(|a| (a.first_step, a.last_step, a.training)).collect();
    assert_eq!(attempts, [(1, 9, 1), (6, 12, 1)]);
    assert_eq!((said(&recording, "state"), said(&recording, "error")), (Some("running or killed"), None));
    assert!(recording.faults.is_empty());
    let crashed = read_with(&files[..1], 11).unwrap();
    assert_eq!((said(&crashed, "state"), said(&crashed, "error")), (Some("crashed"), Some("boom")));
}

#[test]
fn damage_costs_what_it_hits_and_a_cut_is_no_damage() {
    let records: Vec<Vec<u8>> = (1..=50).map(|step| scalar("grad_norm", step, step as f64)).collect();
    let whole = log(HEADER.bytes(2), &records);
    let begin = |count: usize| log(HEADER.bytes(2), &records[..count]).len();
    let mut changed = whole.clone();
    changed[begin(4) + 12] ^= 1;
    let recording = read_with(&[changed], 7).unwrap();
    let steps: Vec<i64> = points(&recording, "grad_norm").iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, (1..=50).filter(|step| *step != 5).collect::<Vec<_>>());
    assert_eq!(kinds(&recording.faults), [FaultKind::BadChecksum]);
    for cut in begin(49) + 1..whole.len() {
        let recording = read_with(&[whole[..cut].to_vec()], 7).unwrap();
        assert_eq!(points(&recording, "grad_norm").len(), 49);
        assert_eq!(kinds(&recording.faults), [FaultKind::Truncated]);
    }
    let odd = [records[0].clone(), b"{\"model_type\": ".to_vec(), b"\x6a\x7f".to_vec(), records[1].clone()];
    let recording = read(2, &odd);
    assert_eq!(points(&recording, "grad_norm"), [(1, 1.0), (2, 2.0)]);
    assert_eq!(kinds(&recording.faults), [FaultKind::Unparsable, FaultKind::Unparsable]);
}

#[test]
fn what_is_no_log_says_why() {
    let code = |bytes: &[u8]| read_with(&[bytes.to_vec()], 3).map_err(|rejected| rejected.code());
    assert_eq!(code(b":SWL\xd6\xe1\x03").unwrap_err(), "version");
    assert_eq!(code(b":SWL\xd6").unwrap_err(), "cut-header");
    assert_eq!(code(b":W&B\xe1\xbe\x00").unwrap_err(), "not-a-recording");
    assert_eq!(code(&HEADER.bytes(1)).unwrap().records, 0);
    assert_eq!(Swanlab.recognise_name("a/run-x.swanlab"), Confidence::Certain);
    let of_names = if cfg!(feature = "sqlite") { Confidence::Certain } else { Confidence::No };
    assert_eq!(Swanlab.recognise_name("a/runs.swanlab"), of_names);
    assert_eq!(Swanlab.recognise("a/blob", b":SWL\xd6\xe1\x02"), Confidence::Certain);
}
