//! The laws of reading, over every fixture in `tests/data`: golden, prefix, window, flip, order, and the fuzz functions
//! on mutated fixtures. `GRADSCAN_BLESS=1` rewrites the golden files.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a guard says how much it looked at")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use gradscan::discover::{Filter, discover, targets};
use gradscan::kernel::{checksum::crc32c, level::Level};
use gradscan::model::{Limits, Recording, Signal, Source};
use gradscan::open::Disk;
use gradscan::read::{Files as _, Request, reader};
use gradscan::scan::{Options, Outcome, Scan, scan};
use gradscan::wire::leveldb;
use gradscan::wire::tfrecord::{self, FOOTER, HEADER};

#[path = "../fuzz/functions.rs"]
mod functions;

use functions::memory::Memory;

/// Up to this size every cut and every byte is tried; above, record boundaries and [`PLACES`].
const SMALL: u64 = 8 << 10;
/// Seeded places in larger files.
const PLACES: usize = 200;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder entry").path()).collect();
    paths.sort();
    paths
}

/// A fixture: an entry of a folder of `tests/data`, what discovery makes of it, and its bytes.
struct Fixture {
    /// `jsonl/plain.jsonl`
    name: String,
    path: PathBuf,
    sources: Vec<Source>,
    memory: Memory,
}

fn fixtures() -> Vec<Fixture> {
    // What the trackers say of their fixtures is no fixture.
    let folders = sorted(&data()).into_iter().filter(|path| path.is_dir() && !path.ends_with("truth"));
    let fixtures: Vec<Fixture> = folders.flat_map(|folder| sorted(&folder)).map(|path| load(&path)).collect();
    assert!(fixtures.len() >= 40, "only {} fixtures", fixtures.len());
    fixtures
}

fn load(path: &Path) -> Fixture {
    let part = |path: &Path| path.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
    let name = format!("{}/{}", part(path.parent().expect("a folder")), part(path));
    let target = targets(&[path.to_owned()], &Filter::default()).remove(0);
    let discovery = discover(&target, &Filter::default(), &Limits::default(), &mut || true);
    let mut memory = Memory::default();
    let (cancel, count, limits) = (AtomicBool::new(false), AtomicU64::new(0), Limits::default());
    let disk = Disk::new(&discovery.root, &cancel, &count, &limits);
    for part in discovery.sources.iter().flat_map(|source| &source.parts) {
        let mut bytes = Vec::new();
        match fs::read(discovery.root.locate(&part.path)) {
            Ok(read) => bytes = read,
            // A member of an archive.
            Err(_) => {
                let mut file = disk.open(part).expect("a part can be opened");
                file.read_to_end(&mut bytes).expect("a part can be read");
            }
        }
        memory.files.insert(part.path.clone(), bytes.into());
    }
    Fixture { name, path: path.to_owned(), sources: discovery.sources, memory }
}

impl Fixture {
    /// Every part of every source whose reader is compiled in.
    fn parts(&self) -> impl Iterator<Item = (&Source, &str, &[u8])> {
        let readable = self.sources.iter().filter(|source| reader(source.format).is_some());
        readable.flat_map(move |source| {
            source.parts.iter().map(move |part| (source, part.path.as_str(), &self.memory.files[&part.path][..]))
        })
    }
}

/// Formats that are read as one stream: all whose source is one file, read from its begin.
fn is_stream(source: &Source) -> bool {
    let seeks = ["rlprobe", "parquet", "arrow", "mlflow_sql", "trackio"];
    !seeks.contains(&source.format.as_str()) && source.parts.len() == 1
}

/// A small generator with a fixed seed: every run tries the same places.
struct Seeded(u64);

impl Seeded {
    fn new(name: &str) -> Self {
        Self(
            name.bytes()
                .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)),
        )
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Where a part is cut or changed: everywhere if its source is small, else around the ends of lines and at seeded places.
fn places(source: &Source, name: &str, bytes: &[u8]) -> Vec<usize> {
    if source.bytes() <= SMALL {
        return (0..bytes.len()).collect();
    }
    let mut places: Vec<usize> = Vec::new();
    if name.contains("tfevents") {
        places.extend(records(bytes).iter().flat_map(|at| [*at, at + 1]).filter(|at| *at < bytes.len()));
    } else if ![".parquet", ".arrow", ".arrows"].iter().any(|suffix| name.ends_with(suffix)) {
        let ends: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] == b'\n').collect();
        let every = ends.len().div_ceil(PLACES);
        places.extend(ends.iter().step_by(every.max(1)).flat_map(|at| [*at, at + 1]).filter(|at| *at < bytes.len()));
    }
    let mut seeded = Seeded::new(name);
    places.extend((0..PLACES).map(|_| seeded.below(bytes.len())));
    // What is cut or changed at the very end hits footers and closing brackets.
    places.extend(bytes.len().saturating_sub(16)..bytes.len());
    places.sort_unstable();
    places.dedup();
    places
}

/// Ends the process if the work makes no progress: a hang is a failure that would not end by itself.
struct Watch {
    progress: &'static AtomicU64,
}

impl Watch {
    fn new(what: &'static str) -> Self {
        let progress: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
        std::thread::spawn(move || {
            let mut seen = u64::MAX;
            loop {
                std::thread::sleep(Duration::from_secs(60));
                let now = progress.load(Ordering::Relaxed);
                if now == u64::MAX {
                    return;
                }
                if now == seen {
                    eprintln!("{what}: no progress in 60 s after {now} cases: a reader hangs");
                    std::process::abort();
                }
                seen = now;
            }
        });
        Self { progress }
    }

    fn step(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    fn cases(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.progress.store(u64::MAX, Ordering::Relaxed);
    }
}

/// Runs one case; a panic in it fails with the case's name.
fn case<T>(watch: &Watch, describe: impl Fn() -> String, body: impl FnOnce() -> T) -> T {
    watch.step();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| panic!("{}: a panic", describe()))
}

/// Points of every series by name: step, value bits (NaN is NaN), record.
type Points = BTreeMap<String, Vec<(i64, u64, i64)>>;

fn points(recordings: &[Recording]) -> Points {
    let mut points = Points::new();
    for (number, recording) in recordings.iter().enumerate() {
        for series in &recording.series {
            let Signal::Kept(kept) = &series.signal else { panic!("{} is not kept in a full read", series.name) };
            let bits = |value: f64| if value.is_nan() { u64::MAX } else { value.to_bits() };
            let rows = (0..kept.values.len())
                .map(|row| (kept.steps.get(row), bits(kept.values.get(row)), kept.records.get(row)))
                .collect();
            points.insert(format!("{number} {}", series.name), rows);
        }
    }
    points
}

fn read_points(memory: &Memory, source: &Source) -> Points {
    let request = Request { everything: true, ..Request::default() };
    memory.read(source, &request, &Limits::default()).map(|recordings| points(&recordings)).unwrap_or_default()
}

/// The first series of `start` that does not begin the same series of `whole`.
fn not_begun<'a>(start: &'a Points, whole: &Points) -> Option<&'a str> {
    let begins = |(name, rows): &(&String, &Vec<_>)| whole.get(*name).is_some_and(|whole| whole.starts_with(rows));
    start.iter().find(|series| !begins(series)).map(|(name, _)| name.as_str())
}

fn count(points: &Points) -> usize {
    points.values().map(Vec::len).sum()
}

#[test]
fn prefix_the_points_of_a_prefix_begin_the_points_of_the_whole() {
    let watch = Watch::new("prefix");
    let (mut streams, mut most) = (0, 0);
    for fixture in fixtures() {
        for (source, path, bytes) in fixture.parts().filter(|(source, ..)| is_stream(source)) {
            let whole = read_points(&fixture.memory, source);
            streams += 1;
            most = most.max(count(&whole));
            let mut before = 0;
            for cut in places(source, path, bytes).into_iter().chain([bytes.len()]) {
                let describe = || format!("{} cut at byte {cut}", fixture.name);
                let memory = fixture.memory.with(path, bytes[..cut].to_vec());
                let prefix = case(&watch, describe, || read_points(&memory, source));
                if let Some(series) = not_begun(&prefix, &whole) {
                    panic!("{}: {series}: {:?} against {:?}", describe(), prefix[series], whole.get(series));
                }
                assert!(count(&prefix) >= before, "{}: fewer points than from a shorter prefix", describe());
                before = count(&prefix);
            }
            assert_eq!(before, count(&whole), "{}: the whole file gives other points", fixture.name);
        }
    }
    assert!(streams >= 20 && most >= 400, "{streams} streams, at most {most} points: nothing was tested");
    println!("prefix: {} cuts of {streams} streams", watch.cases());
}

#[test]
fn prefix_a_cut_anywhere_gives_an_outcome() {
    let watch = Watch::new("cut");
    let mut files = 0;
    for fixture in fixtures() {
        for (source, path, bytes) in fixture.parts().filter(|(source, ..)| !is_stream(source)) {
            files += 1;
            for cut in places(source, path, bytes) {
                let memory = fixture.memory.with(path, bytes[..cut].to_vec());
                case(&watch, || format!("{}: {path} cut at byte {cut}", fixture.name), || memory.judge(source));
            }
        }
    }
    assert!(files >= 10, "only {files} files");
    println!("cut: {} cuts of {files} files", watch.cases());
}

#[test]
fn window_any_chopping_gives_the_same_recording() {
    let watch = Watch::new("window");
    let mut streams = 0;
    for fixture in fixtures() {
        for source in fixture.sources.iter().filter(|source| reader(source.format).is_some()) {
            streams += 1;
            let longest = source.parts.iter().map(|part| longest_record(&fixture.memory.files[&part.path])).max();
            let longest = longest.unwrap_or(0);
            for everything in [false, true] {
                let request = Request { everything, ..Request::default() };
                let read = |memory: &Memory, record: usize| {
                    let limits = Limits { record, ..Limits::default() };
                    format!("{:?}", memory.read(source, &request, &limits))
                };
                let whole = read(&fixture.memory, Limits::default().record);
                // A window is no larger than the longest record allowed; it just holds the longest one there is.
                for (beyond, chunk) in [(1, 1), (2, 3), (3, usize::MAX), (7, 5), (64, usize::MAX), (1000, 13)] {
                    let memory = Memory { chunk, ..fixture.memory.clone() };
                    let record = longest + beyond;
                    let describe = || format!("{}: windows of {record} bytes, reads of {chunk}", fixture.name);
                    let chopped = case(&watch, describe, || read(&memory, record));
                    assert!(chopped == whole, "{}:\n{chopped}\n{whole}", describe());
                }
            }
        }
    }
    assert!(streams >= 40, "only {streams} sources");
    println!("window: {} choppings of {streams} sources", watch.cases());
}

/// Where the records of an event file begin, up to the first whose length is forged; the end of the last.
fn records(bytes: &[u8]) -> Vec<usize> {
    let crc = |bytes: &[u8]| crc32c(Level::detect(), bytes);
    let mut begins = vec![0];
    while let Some(header) = bytes[begins[begins.len() - 1]..].first_chunk::<HEADER>()
        && let Some(length) = tfrecord::length(header, crc)
        && length < bytes.len() as u64
    {
        begins.push((begins[begins.len() - 1] + HEADER + length as usize + FOOTER).min(bytes.len()));
    }
    begins
}

/// Bytes of the longest record of a `.wandb` or `.swanlab` file, and of the longest chunk of it.
fn transactions(bytes: &[u8]) -> usize {
    let (mut at, mut record, mut longest) = (leveldb::FILE_HEADER, 0, 512);
    while at < bytes.len() {
        let room = leveldb::BLOCK as usize - at % leveldb::BLOCK as usize;
        match bytes[at..].first_chunk::<{ leveldb::CHUNK_HEADER }>() {
            Some(&[.., low, high, kind]) if room >= leveldb::CHUNK_HEADER => {
                let length = leveldb::CHUNK_HEADER + usize::from(u16::from_le_bytes([low, high]));
                // FULL and FIRST begin a record.
                record = if kind <= 2 { length } else { record + length };
                longest = longest.max(record);
                at += length;
            }
            _ => at += room,
        }
    }
    longest
}

/// Bytes of the longest thing that must fit a window: a line, or a whole entry of an indented history.
fn longest_record(bytes: &[u8]) -> usize {
    let records = records(bytes);
    if records.len() > 1 {
        return records.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0).max(512);
    }
    if [&b":W&B"[..], b":SWL"].iter().any(|ident| bytes.starts_with(ident)) {
        return transactions(bytes);
    }
    let line = bytes.split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap_or(0);
    line.max(512)
}

/// Tables of one metric after another: which record a value belongs to is known when those of all metrics are, so that a
/// changed step of a later one may come between.
const BY_METRIC: [&str; 2] = ["csv/long-by-metric.csv", "csv/mlflow.csv"];

#[test]
fn flip_one_changed_byte_costs_nothing_before_it() {
    let watch = Watch::new("flip");
    let (mut files, mut kept) = (0, 0u64);
    for fixture in fixtures() {
        for (source, path, bytes) in fixture.parts() {
            files += 1;
            let mut seeded = Seeded::new(path);
            for (number, at) in places(source, path, bytes).into_iter().enumerate() {
                // Bits, all of them, and anything: which one a byte meets goes round.
                let change = [1 << (at % 8), 0xff, (seeded.next() as u8).max(1)][number % 3];
                let mut changed = bytes.to_vec();
                changed[at] ^= change;
                let describe = || format!("{}: {path}: byte {at} changed to {:#04x}", fixture.name, bytes[at] ^ change);
                let memory = fixture.memory.with(path, changed);
                case(&watch, describe, || memory.judge(source));
                // A word that the end leaves open may count (`-Inf`, a run); a flip behind it makes another word of it. In UTF-16
                // a letter is two bytes.
                let in_word = bytes[at.saturating_sub(2)..at].iter().any(u8::is_ascii_alphabetic);
                if number % 4 != 0 || in_word || !is_stream(source) {
                    continue;
                }
                let mut before = read_points(&fixture.memory.with(path, bytes[..at].to_vec()), source);
                let mut after = read_points(&memory, source);
                if BY_METRIC.contains(&fixture.name.as_str()) {
                    before.values_mut().chain(after.values_mut()).flatten().for_each(|(.., record)| *record = 0);
                }
                if let Some(series) = not_begun(&before, &after) {
                    panic!("{}: {series}: lost {:?}, got {:?}", describe(), before[series], after.get(series));
                }
                kept += count(&before) as u64;
            }
        }
    }
    assert!(files >= 50 && kept > 100_000, "{files} files, {kept} points: nothing was tested");
    println!("flip: {} flips in {files} files", watch.cases());
}

#[test]
fn order_threads_change_nothing() {
    let paths = [data()];
    let with = |threads| {
        let options = Options { threads: Some(threads), ..Options::default() };
        scan(&paths, &options, &mut |_| true)
    };
    let one = with(1);
    assert!(one.outcomes.len() >= 40, "only {} outcomes", one.outcomes.len());
    for threads in [2, 8] {
        let other = with(threads);
        for (a, b) in one.outcomes.iter().zip(&other.outcomes) {
            assert_eq!(format!("{a:?}"), format!("{b:?}"), "{threads} threads");
        }
        assert_eq!(format!("{one:?}"), format!("{other:?}"), "{threads} threads");
    }
    let reasons: Vec<_> = one.outcomes.iter().filter_map(|outcome| outcome.reason.as_ref()).collect();
    assert!(reasons.iter().all(|(code, _)| *code != "panic"), "{reasons:?}");
    println!("order: {} outcomes by 1, 2 and 8 threads", one.outcomes.len());
}

#[test]
fn golden_files_say_what_is_read_and_found() {
    let bless = std::env::var_os("GRADSCAN_BLESS").is_some();
    let mut wrong = Vec::new();
    let mut known = Vec::new();
    for fixture in fixtures() {
        if fixture.sources.is_empty() && cfg!(not(feature = "parquet")) {
            continue;
        }
        let text = describe(&fixture);
        let path = golden().join(format!("{}.txt", fixture.name));
        known.push(path.clone());
        if bless {
            fs::create_dir_all(path.parent().expect("a folder")).expect("the folder can be made");
            fs::write(&path, &text).expect("the golden file can be written");
        } else {
            let want = fs::read_to_string(&path).unwrap_or_default();
            if want != text {
                wrong.push(format!("--- {}\n{}", path.display(), difference(&want, &text)));
            }
        }
    }
    let stale = sorted(&golden()).into_iter().flat_map(|folder| sorted(&folder)).filter(|path| !known.contains(path));
    for path in stale.filter(|_| cfg!(feature = "parquet")) {
        wrong.push(format!("--- {}: no fixture of this name", path.display()));
    }
    assert!(wrong.is_empty(), "GRADSCAN_BLESS=1 rewrites these:\n{}", wrong.join("\n"));
    println!("golden: {} fixtures", known.len());
}

/// Lines of one text that the other lacks.
fn difference(want: &str, got: &str) -> String {
    let lost = want.lines().filter(|line| !got.lines().any(|other| other == *line)).map(|line| format!("- {line}"));
    let new = got.lines().filter(|line| !want.lines().any(|other| other == *line)).map(|line| format!("+ {line}"));
    lost.chain(new).collect::<Vec<_>>().join("\n")
}

/// What was read of a fixture and what was found in it, one fact a line.
fn describe(fixture: &Fixture) -> String {
    let options = Options { threads: Some(1), ..Options::default() };
    let Scan { outcomes, faults, skipped, .. } = scan(std::slice::from_ref(&fixture.path), &options, &mut |_| true);
    let mut text = format!("{}\n", fixture.name);
    for outcome in &outcomes {
        describe_outcome(outcome, &mut text);
        // A source is named by its path below the root; the root itself has none.
        let mut sources = fixture.sources.iter();
        let source = sources.find(|source| source.path == outcome.source);
        let source = source.or_else(|| fixture.sources.iter().find(|source| source.path.is_empty()));
        if let Some(source) = source {
            describe_points(&fixture.memory, source, &mut text);
        }
    }
    for fault in &faults {
        line(&mut text, format_args!("fault of no run: {} {}", fault.source, fault.fault.detail));
    }
    if skipped > 0 {
        line(&mut text, format_args!("skipped files: {skipped}"));
    }
    text
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{}", line.to_string().trim_end()).expect("a string takes all");
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn describe_outcome(outcome: &Outcome, text: &mut String) {
    let format = outcome.format.map_or("-", |format| format.as_str());
    line(text, format_args!("\nrun {} ({format}): {}", outcome.run, outcome.status.as_str()));
    if let Some((code, detail)) = &outcome.reason {
        line(text, format_args!("  reason {code}: {detail}"));
    }
    if let Some(name) = &outcome.name {
        line(text, format_args!("  name {name:?}"));
    }
    line(
        text,
        format_args!(
            "  records {}, steps by {} from {} to {} every {}, attempts {}, checkpoints {}, coverage {}",
            outcome.records,
            or_dash(outcome.step_name.as_ref().map(|name| format!("{name:?}"))),
            or_dash(outcome.first_step),
            or_dash(outcome.last_step),
            or_dash(outcome.step_interval),
            outcome.attempts,
            outcome.checkpoints,
            or_dash(outcome.coverage),
        ),
    );
    if let (Some(started), Some(ended)) = (outcome.started, outcome.ended) {
        line(text, format_args!("  from {started} ms to {ended} ms"));
    }
    if !outcome.notes.is_empty() {
        line(text, format_args!("  notes {}", outcome.notes.join(", ")));
    }
    if !outcome.unrecognised.is_empty() {
        line(text, format_args!("  unrecognised {:?}", outcome.unrecognised));
    }
    for series in &outcome.series {
        line(
            text,
            format_args!(
                "  {} {:?}: rows {}, nan {}, inf {}, median {}, max {}, spikes {}, steps {} to {}",
                series.role.as_str(),
                series.metric,
                series.rows,
                series.nan,
                series.inf,
                or_dash(series.median),
                or_dash(series.max),
                series.spikes,
                or_dash(series.first_step),
                or_dash(series.last_step),
            ),
        );
    }
    for reported in &outcome.findings {
        let (finding, restore) = (&reported.finding, &reported.restore);
        line(
            text,
            format_args!(
                "  finding {} in {:?}: {} confidence {}, phase {}, attempt {}{}{}",
                finding.check.as_str(),
                finding.metric,
                finding.severity(),
                finding.confidence,
                or_dash(finding.phase.map(gradscan::model::Phase::as_str)),
                finding.attempt,
                if finding.superseded { ", superseded" } else { "" },
                if finding.recovered { ", recovered" } else { "" },
            ),
        );
        line(
            text,
            format_args!(
                "    first step {} = {} at {}, onset {}, last good {} = {}, last bad {}",
                or_dash(finding.first_step),
                or_dash(finding.first_value),
                reported.first_place,
                or_dash(finding.onset_step),
                or_dash(finding.last_good_step),
                or_dash(finding.last_good_value),
                or_dash(finding.last_bad_step),
            ),
        );
        line(
            text,
            format_args!(
                "    count {} ({} in the opening), nan {}, inf {}, threshold {}, steps {:?}",
                finding.count,
                finding.count_opening,
                finding.nan,
                finding.inf,
                or_dash(finding.threshold),
                finding.steps,
            ),
        );
        for evidence in &finding.evidence {
            line(
                text,
                format_args!(
                    "    evidence {} {:?}: {} from step {} = {}, nan {}, inf {}, last good {}",
                    evidence.role,
                    evidence.metric,
                    evidence.count,
                    or_dash(evidence.first_step),
                    or_dash(evidence.value),
                    evidence.nan,
                    evidence.inf,
                    or_dash(evidence.last_good_step),
                ),
            );
        }
        line(
            text,
            format_args!(
                "    restore {} {} {}, {} checkpoints after",
                restore.status.as_str(),
                or_dash(restore.step),
                or_dash(restore.path.as_deref().or(restore.reason)),
                restore.after,
            ),
        );
    }
    for fault in &outcome.faults {
        let kind = fault.fault.kind.as_str();
        let severity = fault.fault.severity.as_str();
        line(
            text,
            format_args!("  fault {kind} ({severity}) {} {}: {}", fault.source, fault.place, fault.fault.detail),
        );
    }
}

/// Every series of a full read: its ends, and a hash over all of it.
fn describe_points(memory: &Memory, source: &Source, text: &mut String) {
    const SHOWN: usize = 3;
    let request = Request { everything: true, ..Request::default() };
    let Ok(recordings) = memory.read(source, &request, &Limits::default()) else { return };
    for recording in &recordings {
        for event in &recording.events {
            let place = (event.place.at, event.record);
            line(
                text,
                format_args!("  event {:?} at step {}, line and row {place:?}", event.kind, or_dash(event.step)),
            );
        }
    }
    for (name, rows) in points(&recordings) {
        let shown = |rows: &[(i64, u64, i64)]| {
            let value = |bits: u64| if bits == u64::MAX { f64::NAN } else { f64::from_bits(bits) };
            rows.iter().map(|(step, bits, _)| format!("{step}: {:?}", value(*bits))).collect::<Vec<_>>().join(", ")
        };
        let hash = Seeded::new(&format!("{rows:?}")).0;
        let ends = if rows.len() <= 2 * SHOWN {
            shown(&rows)
        } else {
            format!("{} ... {}", shown(&rows[..SHOWN]), shown(&rows[rows.len() - SHOWN..]))
        };
        let name = name.split_once(' ').map_or(name.as_str(), |(_, name)| name);
        let name =
            if name.len() > 80 { format!("{}...", name.chars().take(80).collect::<String>()) } else { name.into() };
        line(text, format_args!("  points {name:?} ({}, {hash:016x}): {ends}", rows.len()));
    }
}

#[test]
fn fuzz_functions_hold_over_mutated_fixtures() {
    const MUTATIONS: usize = 60;
    let watch = Watch::new("fuzz");
    let mut corpus: Vec<(String, Vec<u8>)> = Vec::new();
    let mut folders = vec![data()];
    while let Some(folder) = folders.pop() {
        for path in sorted(&folder) {
            match fs::symlink_metadata(&path).expect("an entry").file_type().is_dir() {
                true => folders.push(path),
                false => corpus.push((path.display().to_string(), fs::read(&path).expect("a fixture can be read"))),
            }
        }
    }
    corpus.retain(|(_, bytes)| !bytes.is_empty() && bytes.len() <= 48 << 10);
    assert!(corpus.len() >= 50, "only {} files", corpus.len());
    for (name, function) in functions::ALL {
        let mut seeded = Seeded::new(name);
        for (path, bytes) in &corpus {
            for mutation in 0..MUTATIONS {
                let other = &corpus[seeded.below(corpus.len())].1;
                let mutated = if mutation == 0 { bytes.clone() } else { mutate(bytes, other, &mut seeded) };
                case(&watch, || format!("{name} on mutation {mutation} of {path}"), || function(&mutated));
            }
        }
    }
    println!("fuzz: {} runs of {} functions over {} files", watch.cases(), functions::ALL.len(), corpus.len());
}

/// One to four of: a flipped bit, another byte, a cut, a piece twice, a piece of another file.
fn mutate(bytes: &[u8], other: &[u8], seeded: &mut Seeded) -> Vec<u8> {
    const INTERESTING: &[u8] = b"\0\x7f\x80\xff\"{}[],:\\\n-eN0";
    let mut mutated = bytes.to_vec();
    for _ in 0..=seeded.below(4) {
        let at = seeded.below(mutated.len() + 1);
        let length = seeded.below(64).min(mutated.len() - at);
        match seeded.below(6) {
            0 if at < mutated.len() => mutated[at] ^= 1 << seeded.below(8),
            1 if at < mutated.len() => mutated[at] = INTERESTING[seeded.below(INTERESTING.len())],
            2 => mutated.truncate(at),
            3 => drop(mutated.drain(at..at + length)),
            4 => {
                let piece = mutated[at..at + length].to_vec();
                mutated.splice(at..at, piece);
            }
            _ => {
                let from = seeded.below(other.len());
                let piece = other[from..(from + length.max(8)).min(other.len())].to_vec();
                mutated.splice(at..at, piece);
            }
        }
    }
    mutated
}
