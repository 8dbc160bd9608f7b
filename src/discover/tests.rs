//! Archives and compressed files from discovery to outcomes: the same recordings, however they are packed.

use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::model::{FaultKind, Limits, Status};
use crate::scan::{Options, Scan, scan};

type Files<'a> = Vec<(&'a str, Vec<u8>)>;

fn rows(count: usize, bad: Option<usize>) -> Vec<u8> {
    let norm = |k: usize| if bad == Some(k) { "NaN".to_owned() } else { format!("{}", 1.0 + (k % 7) as f64 / 10.0) };
    let row = |k: usize| format!("{{\"step\": {k}, \"grad_norm\": {}, \"loss\": {}}}\n", norm(k), 2.0 - k as f64 / 1e4);
    (0..count).map(row).collect::<String>().into_bytes()
}

fn state(count: usize, bad: Option<usize>) -> Vec<u8> {
    let norm = |k: usize| if bad == Some(k) { "NaN".to_owned() } else { format!("{}", 1.0 + (k % 7) as f64 / 10.0) };
    let entry = |k: usize| format!("{{\"step\": {k}, \"grad_norm\": {}, \"loss\": 1.5}}", norm(k));
    let entries: Vec<String> = (1..=count).map(entry).collect();
    format!("{{\"global_step\": {count}, \"log_history\": [{}]}}", entries.join(", ")).into_bytes()
}

fn recordings() -> Files<'static> {
    vec![
        ("exp1/metrics.jsonl", rows(60, None)),
        ("exp1/notes.txt", b"nothing".to_vec()),
        ("exp2/metrics.jsonl", rows(80, Some(41))),
        ("exp2/step_30.pt", vec![1; 900]),
        ("exp3/checkpoint-20/trainer_state.json", state(20, None)),
        ("exp3/checkpoint-40/trainer_state.json", state(40, None)),
        ("exp3/trainer_state.json", state(60, Some(50))),
        ("exp4/odd.json", rows(30, None)),
    ]
}

fn tar(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut builder = ::tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, name, bytes.as_slice()).unwrap();
    }
    builder.into_inner().unwrap()
}

/// A header whose name no library would write.
fn member(name: &[u8], kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut header = ::tar::Header::new_gnu();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name);
    header.set_size(bytes.len() as u64);
    header.set_entry_type(::tar::EntryType::new(kind));
    header.set_cksum();
    let mut all = header.as_bytes().to_vec();
    all.extend(bytes);
    all.resize(all.len().next_multiple_of(512), 0);
    all
}

fn zip(files: &[(&str, Vec<u8>)], method: ::zip::CompressionMethod) -> Vec<u8> {
    let mut writer = ::zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        let options = ::zip::write::SimpleFileOptions::default().compression_method(method);
        writer.start_file(*name, options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ::zstd::stream::encode_all(bytes, 3).unwrap()
}

/// A folder of files.
fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

fn scan_with(paths: &[PathBuf], limits: Limits, threads: usize) -> Scan {
    let options = Options { limits, threads: Some(threads), ..Options::default() };
    scan(paths, &options, &mut |_| true)
}

fn scan_of(path: &Path) -> Scan {
    let one = scan_with(&[path.to_owned()], Limits::default(), 1);
    let two = scan_with(&[path.to_owned()], Limits::default(), 3);
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
    one
}

/// A folder that holds one file, scanned.
fn packed(name: &str, bytes: Vec<u8>) -> Scan {
    let folder = folder(&[(name, bytes)]);
    scan_of(folder.path())
}

/// What is said of each run, its name without the archive's.
fn said(scan: &Scan, prefix: &str) -> Vec<String> {
    let outcomes = scan.outcomes.iter().map(|outcome| {
        let findings: Vec<_> = outcome
            .findings
            .iter()
            .map(|reported| {
                let restore = reported.restore.path.as_deref().map(|path| path.replacen(prefix, "", 1));
                (reported.finding.first_step, reported.restore.step, restore, reported.first_place.clone())
            })
            .collect();
        let run = outcome.run.strip_prefix(prefix).unwrap_or_else(|| panic!("{} not in {prefix}", outcome.run));
        let faults: Vec<_> = outcome.faults.iter().map(|fault| fault.fault.kind).collect();
        format!("{run} {:?} {} {findings:?} {faults:?} {}", outcome.status, outcome.records, outcome.checkpoints)
    });
    outcomes.collect()
}

fn damage(scan: &Scan) -> Vec<FaultKind> {
    scan.faults.iter().map(|fault| fault.fault.kind).collect()
}

fn reasons(scan: &Scan) -> Vec<(&str, &str)> {
    let reason = |outcome: &'_ crate::scan::Outcome| outcome.reason.as_ref().map_or("", |(code, _)| *code);
    scan.outcomes.iter().map(|outcome| (outcome.run.as_str(), reason(outcome))).collect()
}

#[test]
fn archives_say_what_their_folder_says() {
    let files = recordings();
    let plain = folder(&files);
    let plain = scan_of(plain.path());
    let want = said(&plain, "");
    assert_eq!(plain.outcomes.len(), 4);
    assert!(want[1].contains("Some(41), Some(30), Some(\"exp2/step_30.pt\")"), "{}", want[1]);
    assert!(want[2].contains("Some(50), Some(40)"), "{}", want[2]);
    let stored = ::zip::CompressionMethod::Stored;
    let deflated = ::zip::CompressionMethod::Deflated;
    for (name, bytes) in [
        ("runs.tar", tar(&files)),
        ("runs.tar.gz", gzip(&tar(&files))),
        ("runs.tgz", gzip(&tar(&files))),
        ("runs.tar.zst", zstd(&tar(&files))),
        ("runs.tzst", zstd(&tar(&files))),
        ("runs.zip", zip(&files, stored)),
        ("runs.zip", zip(&files, deflated)),
        // What it is tells its content.
        ("runs.tar", gzip(&tar(&files))),
        ("runs.tgz", zip(&files, deflated)),
    ] {
        let scan = packed(name, bytes);
        assert_eq!(said(&scan, &format!("{name}/")), want, "{name}");
        assert_eq!((scan.skipped, damage(&scan)), (plain.skipped, vec![]), "{name}");
        assert_eq!(scan.outcomes[0].directory, format!("{name}/exp1"));
    }
}

#[test]
fn compressed_files_say_what_they_hold() {
    let files = recordings();
    let plain = folder(&files);
    let want = said(&scan_of(plain.path()), "");
    for (suffix, pack) in [("gz", gzip as fn(&[u8]) -> Vec<u8>), ("zst", zstd), ("gzip", gzip), ("zstd", zstd)] {
        let packed = |name: &&str| name.ends_with("json") || name.ends_with("jsonl");
        let names: Vec<String> = files.iter().map(|(name, _)| format!("{name}.{suffix}")).collect();
        let all: Files = files
            .iter()
            .zip(&names)
            .map(|((name, bytes), with)| {
                // Members and frames in a row.
                let (a, b) = bytes.split_at(bytes.len() / 2);
                if packed(name) { (with.as_str(), [pack(a), pack(b)].concat()) } else { (*name, bytes.clone()) }
            })
            .collect();
        let folder = folder(&all);
        let scan = scan_of(folder.path());
        let got: Vec<String> = said(&scan, "").iter().map(|line| line.replace(&format!(".{suffix}"), "")).collect();
        assert_eq!(got, want, "{suffix}");
        assert_eq!(scan.outcomes[0].run, format!("exp1/metrics.jsonl.{suffix}"));
        // The states of an output directory are copies of one history, compressed or not.
        assert_eq!(scan.outcomes[2].run, "exp3");
    }
    // In place, under the old name.
    let folder = folder(&[("metrics.jsonl", gzip(&rows(80, Some(41)))), ("odd.jsonl", zstd(&rows(30, None)))]);
    let scan = scan_of(folder.path());
    let statuses: Vec<_> = scan.outcomes.iter().map(|outcome| (outcome.status, outcome.records)).collect();
    assert_eq!(statuses, [(Status::Damaged, 80), (Status::Clean, 30)]);
}

#[test]
fn a_cut_tail_costs_what_it_held() {
    let noise: Vec<u8> = (0..20_000u64)
        .flat_map(|k| {
            let norm = (k.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / 1e7;
            let norm = if k == 900 { f64::NAN } else { norm };
            format!("{{\"step\": {k}, \"grad_norm\": {norm}}}\n").into_bytes()
        })
        .collect();
    for (name, whole) in [("metrics.jsonl.gz", gzip(&noise)), ("metrics.jsonl.zst", zstd(&noise))] {
        let scan = packed(name, whole[..whole.len() * 3 / 4].to_vec());
        let outcome = &scan.outcomes[0];
        assert_eq!(outcome.findings[0].finding.first_step, Some(900), "{name}");
        assert!(outcome.records > 5000 && outcome.records < 20_000, "{name}: {}", outcome.records);
        let kinds: Vec<_> = outcome.faults.iter().map(|fault| fault.fault.kind).collect();
        assert!(kinds.contains(&FaultKind::Truncated) && kinds.iter().all(|k| *k == FaultKind::Truncated), "{kinds:?}");
    }
    let files = vec![("a/metrics.jsonl", rows(50, None)), ("b/metrics.jsonl", noise)];
    let deflated = ::zip::CompressionMethod::Deflated;
    for (name, whole) in [
        ("runs.tar", tar(&files)),
        ("runs.tar.gz", gzip(&tar(&files))),
        ("runs.tar.zst", zstd(&tar(&files))),
        ("runs.zip", zip(&files, deflated)),
    ] {
        let scan = packed(name, whole[..whole.len() * 3 / 4].to_vec());
        assert_eq!(damage(&scan), [FaultKind::Truncated], "{name}");
        assert_eq!(scan.faults[0].source, name);
        assert_eq!(scan.outcomes.len(), 2, "{name}");
        assert_eq!((scan.outcomes[0].records, scan.outcomes[0].faults.len()), (50, 0), "{name}");
        assert_eq!(scan.outcomes[1].findings[0].finding.first_step, Some(900), "{name}");
        assert!(scan.outcomes[1].faults.iter().any(|fault| fault.fault.kind == FaultKind::Truncated), "{name}");
    }
}

#[test]
fn corrupt_archives() {
    let files = vec![("a/metrics.jsonl", rows(50, None)), ("b/metrics.jsonl", rows(60, Some(3)))];
    let mut bytes = tar(&files);
    let second = 512 + rows(50, None).len().next_multiple_of(512);
    bytes[second + 150] ^= 1;
    let scan = packed("runs.tar", bytes.clone());
    assert_eq!((scan.outcomes.len(), damage(&scan)), (1, vec![FaultKind::Unparsable]));
    // Another header may follow.
    let scan = packed("runs.tar.gz", gzip(&[bytes, tar(&[("c/metrics.jsonl", rows(40, None))])].concat()));
    let runs: Vec<_> = scan.outcomes.iter().map(|outcome| outcome.run.as_str()).collect();
    assert_eq!(runs, ["runs.tar.gz/a/metrics.jsonl", "runs.tar.gz/c/metrics.jsonl"]);

    let mut zipped = zip(&files, ::zip::CompressionMethod::Stored);
    let at = zipped.windows(3).position(|window| window == b"NaN").unwrap();
    zipped[at] = b'n';
    let scan = packed("runs.zip", zipped);
    let kinds: Vec<_> = scan.outcomes[1].faults.iter().map(|fault| fault.fault.kind).collect();
    assert_eq!((scan.outcomes[1].records, kinds), (60, vec![FaultKind::BadChecksum]));

    for name in ["runs.tar", "runs.tar.gz", "runs.tar.zst", "runs.zip"] {
        for bytes in [b"".to_vec(), b"no archive at all, but some text".to_vec(), vec![0x1f, 0x8b, 8, 0]] {
            let folder = folder(&[(name, bytes)]);
            let met = scan_of(folder.path());
            assert_eq!((met.outcomes.len(), met.faults.len()), (0, 1), "{name}: {:?}", met.faults);
            let named = scan_of(&folder.path().join(name));
            assert_eq!(named.outcomes[0].status, Status::Unreadable, "{name}");
        }
    }
    let empty = tar(&[]);
    assert_eq!(packed("empty.tar", empty.clone()).faults.len(), 0);
    let folder = folder(&[("empty.tar", empty), ("other.zip", zip(&[("a.txt", vec![1])], Default::default()))]);
    assert_eq!(reasons(&scan_of(&folder.path().join("empty.tar"))), [("empty.tar", "not-a-recording")]);
    assert_eq!(reasons(&scan_of(&folder.path().join("other.zip"))), [("other.zip", "not-a-recording")]);
    assert_eq!(scan_of(folder.path()).skipped, 1);
}

#[test]
fn hostile_members() {
    let row = rows(20, None);
    let bytes = [
        member(b"../../etc/metrics.jsonl", b'0', &row),
        member(b"/abs/metrics.jsonl", b'0', &row),
        member(b"twice/metrics.jsonl", b'0', &rows(99, Some(7))),
        member(b"twice/metrics.jsonl", b'0', &row),
        member(b"link/metrics.jsonl", b'2', b""),
        member(b"dev/metrics.jsonl", b'3', b""),
        member(b"nested/metrics.jsonl.gz", b'0', &gzip(&row)),
        member(b"nested/inner.tar.gz", b'0', &gzip(&tar(&[("metrics.jsonl", row.clone())]))),
        member(b"inplace/metrics.jsonl", b'0', &gzip(&row)),
        member(b"sparse/metrics.jsonl", b'S', &row),
        member(b"odd\xff\n/metrics.jsonl", b'0', &row),
        vec![0; 1024],
    ]
    .concat();
    let want = [
        ("a.tar/abs/metrics.jsonl", ""),
        ("a.tar/dev/metrics.jsonl", "not-a-file"),
        ("a.tar/etc/metrics.jsonl", ""),
        ("a.tar/inplace/metrics.jsonl", "nested"),
        ("a.tar/link/metrics.jsonl", "link"),
        ("a.tar/nested/metrics.jsonl.gz", "nested"),
        ("a.tar/odd\\xff\\x0a/metrics.jsonl", ""),
        ("a.tar/sparse/metrics.jsonl", "unsupported"),
        ("a.tar/twice/metrics.jsonl", ""),
    ];
    let scan = packed("a.tar", bytes.clone());
    assert_eq!(reasons(&scan), want);
    assert_eq!((scan.outcomes[8].records, scan.skipped, damage(&scan)), (20, 1, vec![]));
    let solid = packed("a.tar.gz", gzip(&bytes));
    let names: Vec<String> = reasons(&solid).iter().map(|(run, _)| run.replace(".gz/", "/")).collect();
    assert_eq!(names, want.map(|(run, _)| run));
    assert_eq!(solid.outcomes[8].records, 20);

    // A size that no file has, and a name of a megabyte.
    let mut forged = ::tar::Header::new_gnu();
    forged.set_path("big/metrics.jsonl").unwrap();
    forged.set_size(1 << 62);
    forged.set_cksum();
    let forged = [&member(b"a/metrics.jsonl", b'0', &row)[..], forged.as_bytes(), &row].concat();
    let long = [member(b"././@LongLink", b'L', &vec![b'x'; 1 << 20]), member(b"xxx", b'0', &row), tar(&[])].concat();
    for (name, pack) in [("a.tar", (|bytes| bytes) as fn(Vec<u8>) -> Vec<u8>), ("a.tar.zst", |bytes| zstd(&bytes))] {
        let scan = packed(name, pack(forged.clone()));
        assert_eq!(damage(&scan), [FaultKind::Truncated], "{name}");
        let records: Vec<_> = scan.outcomes.iter().map(|outcome| outcome.records).collect();
        assert_eq!(records, [20, 20], "{name}");
        let scan = packed(name, pack(long.clone()));
        assert_eq!((scan.outcomes.len(), damage(&scan)), (0, vec![FaultKind::Limit]), "{name}");
    }
}

#[test]
fn links_inside_an_archive() {
    let mut builder = ::tar::Builder::new(Vec::new());
    let mut append = |name: &str, kind, link: Option<&str>, bytes: &[u8]| {
        let mut header = ::tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(bytes.len() as u64);
        match link {
            Some(link) => builder.append_link(&mut header, name, link).unwrap(),
            None => builder.append_data(&mut header, name, bytes).unwrap(),
        }
    };
    append("a/metrics.jsonl", ::tar::EntryType::Regular, None, &rows(30, Some(4)));
    append("b/metrics.jsonl", ::tar::EntryType::Link, Some("a/metrics.jsonl"), b"");
    append("c/metrics.jsonl", ::tar::EntryType::Symlink, Some("../a/metrics.jsonl"), b"");
    append("d/metrics.jsonl", ::tar::EntryType::Symlink, Some("/etc/passwd"), b"");
    let bytes = builder.into_inner().unwrap();
    for (name, bytes) in [("l.tar", bytes.clone()), ("l.tgz", gzip(&bytes))] {
        let scan = packed(name, bytes);
        let got: Vec<_> = scan.outcomes.iter().map(|outcome| (outcome.status, outcome.records)).collect();
        assert_eq!(got, [(Status::Damaged, 30), (Status::Damaged, 30), (Status::Unreadable, 0)], "{name}");
        assert_eq!(damage(&scan), [FaultKind::Link]);
        assert_eq!(scan.faults[0].source, format!("{name}/c/metrics.jsonl"));
    }
}

#[test]
fn hostile_zips() {
    let files = vec![("a/metrics.jsonl", rows(40, None)), ("b/metrics.jsonl", rows(50, Some(9)))];
    let good = zip(&files, ::zip::CompressionMethod::Deflated);
    let central = good.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    let change = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        packed("a.zip", changed)
    };
    // Encrypted, an unknown method, an offset beyond the file, one that overlaps the other's.
    assert_eq!(reasons(&change(central + 8, &[1, 0]))[0].1, "unsupported");
    assert_eq!(reasons(&change(central + 10, &[14, 0]))[0].1, "unsupported");
    assert_eq!(reasons(&change(central + 42, &[0xff, 0xff, 0xff, 0x7f]))[0].1, "unsupported");
    let second = central + 46 + "a/metrics.jsonl".len();
    assert_eq!(&good[second..second + 4], b"PK\x01\x02");
    let overlapped = change(second + 42, &[1, 0, 0, 0]);
    assert_eq!(
        reasons(&overlapped),
        [("a.zip/a/metrics.jsonl", "unsupported"), ("a.zip/b/metrics.jsonl", "unsupported")]
    );
    // Sizes that the file does not have: what is there is read.
    let forged = change(central + 20, &[0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f]);
    assert_eq!(forged.outcomes.len(), 2);
    // An end record that points nowhere: the local headers remain.
    let end = good.len() - 22;
    let lost = change(end + 12, &[0xff, 0xff, 0xff, 0x7f]);
    assert_eq!((lost.outcomes.len(), damage(&lost)), (2, vec![FaultKind::Unparsable]));
    assert_eq!(lost.outcomes[1].findings[0].finding.first_step, Some(9));
    // Something in front (a self-extracting archive).
    let shifted = packed("a.zip", [b"#!/bin/sh\n".repeat(9), good.clone()].concat());
    assert_eq!((shifted.outcomes.len(), damage(&shifted)), (2, vec![]));
    assert_eq!(shifted.outcomes[1].records, 50);
    // Any flipped byte of the directory gives an outcome and no panic.
    let mut seen = 0;
    for at in central..good.len() {
        for value in [0, 0xff, good[at] ^ 1] {
            let mut changed = good.clone();
            changed[at] = value;
            let folder = folder(&[("a.zip", changed)]);
            let scan = scan_with(&[folder.path().to_owned()], Limits::default(), 1);
            seen += scan.outcomes.len();
            assert!(scan.outcomes.iter().all(|outcome| outcome.reason.as_ref().is_none_or(|r| r.0 != "panic")));
        }
    }
    assert!(seen > 300, "{seen}");
}

#[test]
fn bombs_stop_at_their_limit() {
    let limits = Limits { unpacked: 100_000, archive: 300_000, ..Limits::default() };
    let long = rows(4000, Some(5));
    assert!(long.len() > 150_000);
    let files =
        vec![("a/metrics.jsonl", long.clone()), ("b/metrics.jsonl", long.clone()), ("c/metrics.jsonl", long.clone())];
    let deflated = ::zip::CompressionMethod::Deflated;
    for (name, bytes) in
        [("metrics.jsonl.gz", gzip(&long)), ("a.zip", zip(&files, deflated)), ("a.tar.gz", gzip(&tar(&files)))]
    {
        let folder = folder(&[(name, bytes)]);
        let scan = scan_with(&[folder.path().to_owned()], limits.clone(), 1);
        assert_eq!(scan.outcomes[0].findings[0].finding.first_step, Some(5), "{name}");
        let faults = scan.outcomes.iter().flat_map(|outcome| &outcome.faults).chain(&scan.faults);
        assert!(faults.filter(|fault| fault.fault.kind == FaultKind::Limit).count() > 0, "{name}");
    }
    let folder = folder(&[("a.tar", tar(&files)), ("a.zip", zip(&files, deflated))]);
    let scan = scan_with(&[folder.path().to_owned()], Limits { members: 2, ..Limits::default() }, 1);
    assert_eq!((scan.outcomes.len(), damage(&scan)), (4, vec![FaultKind::Limit, FaultKind::Limit]));
}

#[test]
fn members_in_any_order_are_read_in_few_passes() {
    // The whole run's state comes last, those of other runs lie between.
    let names: Vec<String> = (0..30)
        .flat_map(|run| {
            [format!("r{run:02}/checkpoint-20/trainer_state.json"), format!("r{run:02}/x{run}/metrics.jsonl")]
        })
        .chain((0..30).rev().map(|run| format!("r{run:02}/trainer_state.json")))
        .collect();
    let files: Files = names
        .iter()
        .map(|name| {
            let bytes = match name.as_str() {
                name if name.contains("checkpoint") => state(20, None),
                name if name.ends_with("state.json") => state(40, Some(33)),
                _ => rows(30, None),
            };
            (name.as_str(), bytes)
        })
        .collect();
    let plain = folder(&files);
    let want = said(&scan_of(plain.path()), "");
    assert_eq!(want.len(), 60);
    let bytes = gzip(&tar(&files));
    let folder = folder(&[("a.tgz", bytes)]);
    assert_eq!(said(&scan_of(folder.path()), "a.tgz/"), want);
    // A cache that holds little: read again and again, and given up in the end with a reason, never with a wrong answer.
    for (cache, rereads, complete) in [(0, 1000, true), (20_000, 1000, true), (0, 0, false), (0, 3, false)] {
        let limits = Limits { cache, rereads, ..Limits::default() };
        let scan = scan_with(&[folder.path().to_owned()], limits.clone(), 1);
        assert_eq!(format!("{scan:?}"), format!("{:?}", scan_with(&[folder.path().to_owned()], limits, 3)));
        let got = said(&scan, "a.tgz/");
        if complete {
            assert_eq!(got, want, "cache {cache}");
        } else {
            let given_up =
                scan.outcomes.iter().filter(|outcome| outcome.reason.as_ref().is_some_and(|r| r.0 == "limit"));
            assert!(given_up.count() > 0, "cache {cache}, {rereads} rereads");
        }
    }
}

#[cfg(feature = "parquet")]
#[test]
fn a_format_that_seeks_is_read_from_archives() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/rlprobe");
    let plain = scan_of(&data);
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for entry in walkdir::WalkDir::new(&data).sort_by_file_name() {
        let entry = entry.unwrap();
        if entry.file_type().is_file() {
            let name = entry.path().strip_prefix(&data).unwrap().to_str().unwrap().to_owned();
            files.push((name, fs::read(entry.path()).unwrap()));
        }
    }
    let files: Files = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let want = said(&plain, "");
    assert!(want.len() > 3);
    for (name, bytes) in [
        ("a.tar", tar(&files)),
        ("a.tar.gz", gzip(&tar(&files))),
        ("a.tar.zst", zstd(&tar(&files))),
        ("a.zip", zip(&files, ::zip::CompressionMethod::Stored)),
        ("a.zip", zip(&files, ::zip::CompressionMethod::Deflated)),
    ] {
        assert_eq!(said(&packed(name, bytes), &format!("{name}/")), want, "{name}");
    }
}

#[test]
fn names_of_archives_and_filters() {
    let files = recordings();
    let folder = folder(&[("deep/runs.tar.gz", gzip(&tar(&files))), ("deep/backup", gzip(&tar(&files)))]);
    // Named or met, a run has one name below the folder; by content only if it was named.
    let met = scan_of(&folder.path().join("deep"));
    let named = scan_of(&folder.path().join("deep/runs.tar.gz"));
    assert_eq!(said(&met, "runs.tar.gz/"), said(&named, "runs.tar.gz/"));
    assert_eq!(scan_of(&folder.path().join("deep/backup")).outcomes.len(), 4);
    let with = |include: &[&str], exclude: &[&str]| {
        let owned = |globs: &[&str]| globs.iter().map(ToString::to_string).collect::<Vec<_>>();
        let filter = super::Filter::new(&owned(include), &owned(exclude)).unwrap();
        let options = Options { filter, ..Options::default() };
        let scan = scan(&[folder.path().to_owned()], &options, &mut |_| true);
        scan.outcomes.into_iter().map(|outcome| outcome.run).collect::<Vec<_>>()
    };
    assert_eq!(with(&["*.jsonl"], &[]), ["deep/runs.tar.gz/exp1/metrics.jsonl", "deep/runs.tar.gz/exp2/metrics.jsonl"]);
    assert_eq!(with(&[], &["exp1", "exp3", "exp4"]), ["deep/runs.tar.gz/exp2/metrics.jsonl"]);
    assert_eq!(with(&[], &["runs.tar.gz"]), Vec::<String>::new());
}

#[test]
fn a_cancelled_look_at_an_archive_ends() {
    let files = vec![("a/metrics.jsonl", rows(200_000, None))];
    let folder = folder(&[("a.tar", tar(&files)), ("a.tar.zst", zstd(&tar(&files)))]);
    let mut ticks = 0;
    let options = Options { threads: Some(1), ..Options::default() };
    let found = scan(&[folder.path().to_owned()], &options, &mut |_| {
        ticks += 1;
        ticks < 2
    });
    assert!(found.interrupted);
}

#[test]
fn names_are_judged_as_a_whole() {
    // The hundredth byte of the first path is a slash; GNU and PAX headers hold the path, the member's own its begin.
    let long = format!("{}/metrics.jsonl", "a".repeat(99));
    let files = vec![(long.as_str(), rows(40, Some(9))), ("z/metrics.jsonl", rows(30, None))];
    let record = format!(" path={long}\n");
    let pax = format!("{}{record}", record.len() + 3);
    let pax = [
        member(b"././@PaxHeader", b'x', pax.as_bytes()),
        member(&long.as_bytes()[..100], b'0', &rows(40, Some(9))),
        member(b"old/", 0, b""),
        member(b"z/metrics.jsonl", 0, &rows(30, None)),
        vec![0; 1024],
    ]
    .concat();
    for bytes in [tar(&files), pax] {
        for (name, bytes) in [("a.tar", bytes.clone()), ("a.tgz", gzip(&bytes))] {
            let scan = packed(name, bytes);
            let records: Vec<_> = scan.outcomes.iter().map(|outcome| outcome.records).collect();
            assert_eq!((records, damage(&scan)), (vec![40, 30], vec![]), "{name}");
            assert_eq!(scan.outcomes[0].run, format!("{name}/{long}"));
        }
    }
}

fn with_filter(path: &Path, include: &[&str], exclude: &[&str]) -> Scan {
    let owned = |globs: &[&str]| globs.iter().map(ToString::to_string).collect::<Vec<_>>();
    let filter = super::Filter::new(&owned(include), &owned(exclude)).unwrap();
    scan(&[path.to_owned()], &Options { filter, ..Options::default() }, &mut |_| true)
}

fn restored(scan: &Scan) -> Vec<(&str, Option<&str>)> {
    fn path(outcome: &crate::scan::Outcome) -> Option<&str> {
        outcome.findings.first()?.restore.path.as_deref()
    }
    scan.outcomes.iter().map(|outcome| (outcome.run.as_str(), path(outcome))).collect()
}

#[test]
fn filters_hide_recordings_not_checkpoints() {
    let files = vec![
        ("a/iter_0000040/metadata.json", b"{}".to_vec()),
        ("a/metrics.jsonl", rows(60, None)),
        ("b/metrics.jsonl", rows(60, Some(50))),
        ("c/checkpoint-40/model.safetensors", vec![1]),
        ("c/checkpoint-40/trainer_state.json", state(40, None)),
        ("c/metrics.jsonl", rows(60, Some(50))),
    ];
    let plain = folder(&files);
    let archive = folder(&[("x.tar", tar(&files))]);
    for (root, prefix) in [(plain.path(), ""), (archive.path(), "x.tar/")] {
        let at = |path: &str| format!("{prefix}{path}");
        let scan = with_filter(root, &["b/**", "x.tar/b/**"], &[]);
        assert_eq!((restored(&scan), scan.skipped), (vec![(at("b/metrics.jsonl").as_str(), None)], 0));
        for (include, exclude) in [(vec!["metrics.jsonl"], vec![]), (vec![], vec!["*.json", "*.safetensors"])] {
            let scan = with_filter(root, &include, &exclude);
            let want = [
                (at("a/metrics.jsonl"), None),
                (at("b/metrics.jsonl"), None),
                (at("c/metrics.jsonl"), Some(at("c/checkpoint-40"))),
            ];
            let want: Vec<_> = want.iter().map(|(run, path)| (run.as_str(), path.as_deref())).collect();
            assert_eq!((restored(&scan), scan.skipped), (want, 0));
        }
        // A directory that is left out is not entered.
        let scan = with_filter(root, &["metrics.jsonl"], &["checkpoint-40"]);
        assert_eq!(restored(&scan)[2].1, None);
    }
}

#[test]
fn companions_are_no_other_training() {
    let bad = || rows(60, Some(50));
    let good = || rows(60, None);
    let point = || vec![1u8; 9];
    // The run that is damaged, its directory, whether the checkpoint above is its own, all files.
    let cases: Vec<(&str, &str, bool, Files)> = vec![
        ("evaluation beside", "x/train", true, vec![("x/validation/m.jsonl", good()), ("x/step_40.pt", point())]),
        ("test beside train", "x/train", true, vec![("x/test/m.jsonl", good()), ("x/step_40.pt", point())]),
        ("test beside another", "x/run", false, vec![("x/test/m.jsonl", good()), ("x/step_40.pt", point())]),
        ("another", "x/run", false, vec![("x/other/m.jsonl", good()), ("x/step_40.pt", point())]),
        (
            "an evaluation with checkpoints",
            "x/train",
            false,
            vec![("x/val_a/m.jsonl", good()), ("x/val_a/step_30.pt", point()), ("x/step_40.pt", point())],
        ),
        ("named like one", "x/val_a", false, vec![("x/val_b/m.jsonl", good()), ("x/step_40.pt", point())]),
        (
            "twin above",
            "x/events",
            true,
            vec![("x/metrics.csv", b"step,loss\n1,2\n".to_vec()), ("x/step_40.pt", point())],
        ),
        (
            "twin above of two",
            "x/events",
            false,
            vec![("x/m.jsonl", good()), ("x/more/m.jsonl", good()), ("x/step_40.pt", point())],
        ),
        ("a copy in another", "x/run", false, vec![("x/more/step_40/m.jsonl", good())]),
        (
            "states of another",
            "x/run",
            false,
            vec![("x/more/checkpoint-40/trainer_state.json", state(40, None)), ("x/step_40.pt", point())],
        ),
        (
            "an evaluation of another",
            "x/train",
            false,
            vec![("x/more/val/m.jsonl", good()), ("x/more/step_30.pt", point()), ("x/step_40.pt", point())],
        ),
        ("copy", "x/run", true, vec![("x/step_40/m.jsonl", good())]),
        ("iterations", "x/iter_100", false, vec![("x/iter_200/m.jsonl", good()), ("x/step_40.pt", point())]),
        (
            "states of an output directory",
            "x/runs/host",
            true,
            vec![
                ("x/checkpoint-40/trainer_state.json", state(40, None)),
                ("x/checkpoint-60/trainer_state.json", state(60, None)),
            ],
        ),
    ];
    for (name, directory, own, mut files) in cases {
        let run = format!("{directory}/metrics.jsonl");
        files.push((run.as_str(), bad()));
        files.push(("y/metrics.jsonl", good()));
        files.push(("z/step_45.pt", point()));
        let folder = folder(&files);
        for root in ["", "x", directory] {
            let scan = scan_of(&folder.path().join(root));
            let found = scan.outcomes.iter().find_map(|outcome| outcome.findings.first()).unwrap();
            assert_eq!(found.restore.step, own.then_some(40), "{name} from {root:?}: {:?}", found.restore);
        }
    }
}

#[test]
fn checkpoints_named_like_archives_are_not_opened() {
    let inside = zip(&[("data", b"{}".to_vec()), ("policy.pth", vec![1])], Default::default());
    let files = vec![
        ("m.csv", {
            let row = |k: usize| format!("{},{}\n", 2048 * k, if k < 15 { "1.0" } else { "nan" });
            format!("time/total_timesteps,train/loss\n{}", (1..20).map(row).collect::<String>()).into_bytes()
        }),
        ("checkpoint-9.pth.tar", b"pickled".to_vec()),
        ("rl_model_4096_steps.zip", inside.clone()),
        ("rl_model_40960_steps.zip", inside),
    ];
    let plain = folder(&files);
    for scan in [scan_of(plain.path()), scan_of(&plain.path().join("m.csv")), packed("a.tar", tar(&files))] {
        let found = &scan.outcomes[0].findings[0];
        assert_eq!((found.restore.step, damage(&scan)), (Some(4096), vec![]), "{:?}", found.restore);
    }
    assert_eq!(scan_of(plain.path()).skipped, 3);
    // An archive of runs stays one whatever it is called.
    let runs = zip(&[("m.jsonl", rows(30, None))], Default::default());
    assert_eq!(packed("seed=1-step=300.zip", runs).outcomes.len(), 1);
}

#[test]
fn what_is_named_twice_is_read_once() {
    let files =
        vec![("a/m.csv", b"step,loss\n1,2\n".to_vec()), ("a/notes.txt", b"text".to_vec()), ("m.jsonl", rows(30, None))];
    let folder = folder(&files);
    let runs = |paths: &[&str], include: &[&str], exclude: &[&str]| {
        let paths: Vec<PathBuf> = paths.iter().map(|path| folder.path().join(path)).collect();
        let owned = |globs: &[&str]| globs.iter().map(ToString::to_string).collect::<Vec<_>>();
        let filter = super::Filter::new(&owned(include), &owned(exclude)).unwrap();
        let scan = scan(&paths, &Options { filter, ..Options::default() }, &mut |_| true);
        scan.outcomes.iter().map(|outcome| outcome.run.clone()).collect::<Vec<_>>()
    };
    assert_eq!(runs(&["", "a", "m.jsonl", "a/m.csv"], &[], &[]), ["a/m.csv", "m.jsonl"]);
    assert_eq!(runs(&["m.jsonl", ""], &[], &[]), ["a/m.csv", "m.jsonl"]);
    // A file that is named is an outcome, one that is met need not be.
    assert_eq!(runs(&["", "a/notes.txt"], &[], &[]), ["a/m.csv", "a/notes.txt", "m.jsonl"]);
    // What the filter hides below one is seen below the other.
    assert_eq!(runs(&["", "a"], &[], &["a"]).len(), 2);
    assert_eq!(runs(&["", "m.jsonl"], &["*.csv"], &[]).len(), 2);
}

#[test]
fn what_lies_too_deep_is_told() {
    let files = vec![("a/b/c/d/m.jsonl", rows(30, None)), ("a/b/m.jsonl", rows(20, None))];
    let plain = folder(&files);
    let limits = Limits { depth: 3, ..Limits::default() };
    let deep = scan_with(&[plain.path().to_owned()], limits.clone(), 1);
    assert_eq!((deep.outcomes.len(), damage(&deep)), (1, vec![FaultKind::Limit]));
    assert_eq!(deep.faults[0].source, "a/b/c");
    for (name, bytes) in [("x.tar", tar(&files)), ("x.zip", zip(&files, Default::default()))] {
        let packed = folder(&[(name, bytes)]);
        let limits = Limits { depth: 4, ..Limits::default() };
        let scan = scan_with(&[packed.path().to_owned()], limits, 1);
        assert_eq!((scan.outcomes.len(), damage(&scan)), (1, vec![FaultKind::Limit]), "{name}");
        assert_eq!(scan.faults[0].source, format!("{name}/a/b/c/d/m.jsonl"));
    }
    let exactly = scan_with(&[plain.path().to_owned()], Limits { depth: 5, ..Limits::default() }, 1);
    assert_eq!((exactly.outcomes.len(), exactly.faults.len()), (2, 0));
}

#[test]
fn damage_of_a_tar_is_told_once_at_its_place() {
    let files = vec![("a.bin", vec![1; 100_000]), ("b.bin", vec![1; 100_000]), ("c.bin", vec![1; 100_000])];
    let mut bytes = tar(&files);
    let second = 512 + 100_000usize.next_multiple_of(512);
    bytes[second + 150] ^= 1;
    for (name, bytes) in [("a.tar", bytes.clone()), ("a.tgz", gzip(&bytes))] {
        let scan = packed(name, bytes);
        assert_eq!(
            (damage(&scan), scan.faults[0].place.clone()),
            (vec![FaultKind::Unparsable], format!("byte {second}"))
        );
        assert_eq!(scan.faults[0].fault.severity, crate::model::Severity::Warning);
    }
    let scan = packed("a.tar", b"hello".repeat(500));
    assert_eq!((damage(&scan), scan.faults[0].place.as_str()), (vec![FaultKind::Unparsable], "byte 0"));
    // Nothing of it could be read: that is an error, whatever is usual for its kind.
    assert_eq!(scan.faults[0].fault.severity, crate::model::Severity::Error);
}

#[test]
fn checkpoints_of_another_training_are_never_named() {
    let bad = || rows(300, Some(250));
    let point = || vec![1u8; 9];
    let member = tar(&[("r1/m.jsonl", bad())]);
    let beside: Files = vec![
        ("t/a.tar", member.clone()),
        ("t/r2/m.jsonl", rows(300, None)),
        ("t/r2/checkpoint-240/random_states_0.pkl", point()),
    ];
    let below: Files = vec![
        ("t/m.jsonl", bad()),
        ("t/other/trainer_state.json", state(300, None)),
        ("t/other/checkpoint-240/random_states_0.pkl", point()),
    ];
    let copies: Files = vec![
        ("t/m.jsonl", bad()),
        ("t/other/checkpoint-240/trainer_state.json", state(240, None)),
        ("t/other/checkpoint-240/random_states_0.pkl", point()),
    ];
    // Directories of nothing but checkpoints belong to what lies above, and so does what lies beside.
    let own: Files = vec![
        ("t/m.jsonl", bad()),
        ("t/checkpoints/checkpoint-240/trainer_state.json", state(240, None)),
        ("t/checkpoints/checkpoint-240/random_states_0.pkl", point()),
    ];
    let alone: Files = vec![("t/a.tar", member), ("t/checkpoint-240/random_states_0.pkl", point())];
    for (name, file, files, want) in [
        ("beside an archive", "a.tar", beside, None),
        ("below", "m.jsonl", below, None),
        ("copies below", "m.jsonl", copies, None),
        ("a folder of checkpoints", "m.jsonl", own, Some(240)),
        ("an archive alone", "a.tar", alone, Some(240)),
    ] {
        let folder = folder(&files);
        for root in ["t".to_owned(), format!("t/{file}")] {
            let scan = scan_of(&folder.path().join(&root));
            let found = scan.outcomes.iter().find_map(|outcome| outcome.findings.first()).unwrap();
            assert_eq!(found.restore.step, want, "{name} from {root}: {:?}", found.restore);
        }
    }
}

#[test]
fn nothing_in_a_checkpoint_is_another() {
    let point = || vec![1u8; 9];
    let files = vec![
        ("m.jsonl", rows(300, Some(250))),
        ("checkpoint-100/model-1.safetensors", point()),
        ("checkpoint-100/random_states_0.pkl", point()),
        ("checkpoint-200/random_states_0.pkl", point()),
        ("checkpoint-200/global_step240/mp_rank_00_model_states.pt", point()),
    ];
    let plain = folder(&files);
    for scan in [scan_of(plain.path()), scan_of(&plain.path().join("m.jsonl")), packed("a.tar", tar(&files))] {
        let outcome = &scan.outcomes[0];
        assert_eq!(outcome.findings[0].restore.step, Some(200));
        assert_eq!(outcome.checkpoints, 2);
    }
}
