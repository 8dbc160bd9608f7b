//! The scan: discover, open, read, judge, in parallel; one outcome a recording, the same whatever the threads.

#[cfg(feature = "tables")]
pub mod frame;

use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::detect::{self, Worker};
use crate::discover::{self, Discovery, Filter};
use crate::model::checkpoint_name::Unit;
use crate::model::finding::SeriesStats;
use crate::model::roles;
use crate::model::{
    Axis, Checkpoint, Fault, FaultKind, Finding, Format, Knobs, Limits, Place, PlaceUnit, Recording, Role, Severity,
    Source, Status, Suspicion, Verdict,
};
use crate::open::Disk;
use crate::read::{Rejected, Request, Session, Shards};
use crate::restore::{self, Restore};
use crate::verify::{self, Among, Verified};

/// What to scan, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Knobs of the checks.
    pub knobs: Knobs,
    /// What to read of each recording.
    pub request: Request,
    /// Which files of a walk are looked at.
    pub filter: Filter,
    /// Bounds on untrusted recordings.
    pub limits: Limits,
    /// Worker threads; `None`: as many as processors.
    pub threads: Option<usize>,
    /// Whether the weights of restore points are audited.
    pub verify_checkpoints: bool,
}

/// How far a running scan is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advance {
    /// Bytes read.
    pub bytes: u64,
    /// Bytes of all sources.
    pub total_bytes: u64,
    /// Sources done.
    pub sources: u64,
    /// Sources in all.
    pub total_sources: u64,
    /// Recordings found damaged so far.
    pub damaged: u64,
}

/// A finding with its restore point and the place of its first bad row in words.
#[derive(Clone, Debug)]
pub struct Reported {
    /// The finding.
    pub finding: Finding,
    /// Where to go back to.
    pub restore: Restore,
    /// File and byte, line or row.
    pub first_place: String,
}

/// A fault with its place in words.
#[derive(Clone, Debug)]
pub struct ReportedFault {
    /// What kind, how bad, details.
    pub fault: Fault,
    /// Relative path of the file.
    pub source: String,
    /// Byte, line or row.
    pub place: String,
}

/// What is said of one recording.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Unique name of the run: its path relative to the root.
    pub run: String,
    /// The run's id in files that hold many runs.
    pub run_id: Option<String>,
    /// The directory that groups twins.
    pub directory: String,
    /// The recording's path relative to the root.
    pub source: String,
    /// The format; `None` where no reader recognises the file.
    pub format: Option<Format>,
    /// The tracker's own name.
    pub name: Option<String>,
    /// The status.
    pub status: Status,
    /// Why, where no finding says it.
    pub reason: Option<(&'static str, String)>,
    /// Findings with their restore points.
    pub findings: Vec<Reported>,
    /// Checked series.
    pub series: Vec<SeriesStats>,
    /// Traces of a NaN that is not there itself.
    pub suspicions: Vec<Suspicion>,
    /// Notes.
    pub notes: Vec<&'static str>,
    /// Last step with a signal / last step.
    pub coverage: Option<f64>,
    /// Faults of its files.
    pub faults: Vec<ReportedFault>,
    /// Rows read.
    pub records: u64,
    /// Column that gave the steps.
    pub step_name: Option<String>,
    /// First step in record order.
    pub first_step: Option<i64>,
    /// Largest step.
    pub last_step: Option<i64>,
    /// Median step interval.
    pub step_interval: Option<f64>,
    /// Number of attempts.
    pub attempts: u64,
    /// Number of known checkpoints.
    pub checkpoints: u64,
    /// Numeric series of a run in which nothing was recognised.
    pub unrecognised: Vec<String>,
    /// Bytes of its files.
    pub bytes: u64,
    /// Wall time of the first row, milliseconds since 1970.
    pub started: Option<i64>,
    /// Wall time of the last row.
    pub ended: Option<i64>,
}

/// The result of a scan.
#[allow(clippy::vec_box, reason = "many, large, sorted and handed from thread to thread: moved by pointer")]
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// One outcome a recording, by root and path.
    pub outcomes: Vec<Box<Outcome>>,
    /// Faults of no recording: directories that could not be looked at.
    pub faults: Vec<ReportedFault>,
    /// Files that no reader recognises.
    pub skipped: u64,
    /// The scanned roots' names.
    pub roots: Vec<String>,
    /// The scan was stopped before its end; the outcomes are those that were done.
    pub interrupted: bool,
}

/// Scans `paths`, which exist. `tick` is called about twenty times a second on this thread; when it says `false` the
/// scan stops and gives what is done.
pub fn scan(paths: &[PathBuf], options: &Options, tick: &mut dyn FnMut(Advance) -> bool) -> Scan {
    let mut discoveries: Vec<Discovery> = Vec::new();
    let mut going = true;
    let mut filter = options.filter.clone();
    filter.names_columns = options.request.names_columns();
    for target in discover::targets(paths, &filter) {
        let mut proceed = || {
            going = going && tick(Advance::default());
            going
        };
        if proceed() {
            discoveries.push(discover::discover(&target, &filter, &options.limits, &mut proceed));
        }
    }
    if !going {
        return Scan { interrupted: true, ..Scan::default() };
    }
    let mut order: Vec<(usize, Job)> = Vec::new();
    for (root, discovery) in discoveries.iter().enumerate() {
        order.extend(jobs(discovery).into_iter().map(|job| (root, job)));
    }
    order.sort_by_key(|(_, job)| std::cmp::Reverse(job.bytes));
    let total_bytes = order.iter().fold(0u64, |sum, (_, job)| sum.saturating_add(job.bytes));
    let total_sources: usize = discoveries.iter().map(|discovery| discovery.sources.len()).sum();
    let shared = Shared { begun: AtomicUsize::new(order.len()), ..Shared::default() };
    let mut done: Vec<Vec<Done>> =
        discoveries.iter().map(|discovery| discovery.sources.iter().map(|_| Done::Nothing).collect()).collect();
    let mut advance = Advance { total_bytes, total_sources: total_sources as u64, ..Advance::default() };
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    std::thread::scope(|scope| {
        // Nothing is ever sent: the channel tells when the last worker is gone.
        let (alive, gone) = mpsc::channel::<()>();
        let workers: Vec<_> = (0..threads.clamp(1, order.len().max(HELPERS)))
            .map(|_| {
                let (alive, shared, order, discoveries) = (alive.clone(), &shared, &order, &discoveries);
                scope.spawn(move || {
                    let done = work(shared, order, discoveries, options);
                    drop(alive);
                    done
                })
            })
            .collect();
        drop(alive);
        while gone.recv_timeout(Duration::from_millis(50)) == Err(RecvTimeoutError::Timeout) {
            advance.bytes = shared.bytes.load(Ordering::Relaxed).min(total_bytes);
            advance.sources = shared.sources.load(Ordering::Relaxed);
            advance.damaged = shared.damaged.load(Ordering::Relaxed);
            if !tick(advance) {
                shared.cancel.store(true, Ordering::Relaxed);
            }
        }
        for worker in workers {
            // Panics of a source are caught where it is read; any other is a defect that ends the scan.
            let outcomes = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcomes.into_iter().for_each(|(root, source, outcomes)| done[root][source].add(outcomes));
        }
    });
    advance.sources = shared.sources.load(Ordering::Relaxed);
    advance.damaged = shared.damaged.load(Ordering::Relaxed);
    let mut interrupted = shared.cancel.load(Ordering::Relaxed);
    drop(shared);
    advance.bytes = total_bytes;
    if !interrupted {
        interrupted = !tick(advance);
    }
    gather(discoveries, done, interrupted)
}

/// Workers that a scan of fewer sources may have: they help each other with those that can be shared.
const HELPERS: usize = 64;

/// What the workers of a scan and the thread that waits for them see of each other.
#[derive(Default)]
struct Shared<'a> {
    next: AtomicUsize,
    /// Jobs that may still open a source that others can help with.
    begun: AtomicUsize,
    cancel: AtomicBool,
    bytes: AtomicU64,
    sources: AtomicU64,
    damaged: AtomicU64,
    verified: Verified,
    opened: Mutex<Vec<Arc<Opened<'a>>>>,
}

/// A source that several workers read at once.
struct Opened<'a> {
    root: usize,
    index: usize,
    source: &'a Source,
    discovery: &'a Discovery,
    shards: Box<dyn Shards + 'a>,
    next: AtomicUsize,
    left: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sources of one root that one worker reads one after the other.
#[derive(Debug)]
pub struct Job {
    /// Indices into [`Discovery::sources`], in reading order.
    pub sources: Vec<usize>,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// Each source is a job of its own, but those of an archive that can only be read forward are one, in the order in which
/// they begin in it.
pub fn jobs(discovery: &Discovery) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    let mut solid: BTreeMap<usize, Vec<(u64, usize)>> = BTreeMap::new();
    for (index, source) in discovery.sources.iter().enumerate() {
        match discovery.root.solid(source) {
            Some((archive, begin)) => solid.entry(archive).or_default().push((begin, index)),
            None => jobs.push(Job { sources: vec![index], bytes: source.bytes() }),
        }
    }
    for mut sources in solid.into_values() {
        sources.sort_unstable();
        let sources: Vec<usize> = sources.into_iter().map(|(_, index)| index).collect();
        let bytes = sources.iter().fold(0u64, |sum, index| sum.saturating_add(discovery.sources[*index].bytes()));
        jobs.push(Job { sources, bytes });
    }
    jobs
}

/// What became of a source. Most hold one recording.
#[derive(Debug)]
enum Done {
    Nothing,
    One(Box<Outcome>),
    Many(Found),
}

/// What was found in a source of many recordings.
#[allow(clippy::vec_box, reason = "outcomes are large, and moved by pointer from here on")]
#[derive(Debug, Default)]
struct Found {
    outcomes: Vec<Box<Outcome>>,
    /// Faults of no recording.
    faults: Vec<ReportedFault>,
    /// Files that are no recordings.
    skipped: u64,
}

impl From<Vec<Outcome>> for Done {
    fn from(mut outcomes: Vec<Outcome>) -> Self {
        match outcomes.len() {
            1 => outcomes.pop().map_or(Self::Nothing, |outcome| Self::One(Box::new(outcome))),
            _ => Self::Many(Found { outcomes: outcomes.into_iter().map(Box::new).collect(), ..Found::default() }),
        }
    }
}

impl From<Done> for Found {
    fn from(done: Done) -> Self {
        match done {
            Done::Nothing => Self::default(),
            Done::One(outcome) => Self { outcomes: vec![outcome], ..Self::default() },
            Done::Many(found) => found,
        }
    }
}

impl Done {
    /// Adds what another worker found in the same source.
    fn add(&mut self, other: Self) {
        *self = match (std::mem::replace(self, Self::Nothing), other) {
            (Self::Nothing, only) | (only, Self::Nothing) => only,
            (one, other) => {
                let (mut all, mut other) = (Found::from(one), Found::from(other));
                all.outcomes.append(&mut other.outcomes);
                all.faults.append(&mut other.faults);
                all.skipped += other.skipped;
                Self::Many(all)
            }
        };
    }
}

/// What a worker keeps from source to source.
#[derive(Default)]
struct Desk {
    worker: Worker,
    buffer: Vec<u8>,
    /// Outcomes of each source: root, source.
    done: Vec<(usize, usize, Done)>,
}

/// One worker: helps with the sources that others have opened, takes the next job of `order` else, until nothing is left.
fn work<'a>(
    shared: &Shared<'a>,
    order: &[(usize, Job)],
    discoveries: &'a [Discovery],
    options: &'a Options,
) -> Vec<(usize, usize, Done)> {
    let mut desk = Desk::default();
    loop {
        if shared.cancel.load(Ordering::Relaxed) {
            return desk.done;
        }
        let opened = lock(&shared.opened).first().cloned();
        if let Some(opened) = opened {
            help(shared, &opened, options, &mut desk);
            lock(&shared.opened).retain(|other| !Arc::ptr_eq(other, &opened));
            continue;
        }
        let Some((root, job)) = order.get(shared.next.fetch_add(1, Ordering::Relaxed)) else {
            if shared.begun.load(Ordering::Acquire) == 0 {
                return desk.done;
            }
            // A job that another worker has begun may open a source to help with.
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let going = run_job(shared, *root, job, &discoveries[*root], options, &mut desk);
        shared.begun.fetch_sub(1, Ordering::Release);
        if !going {
            return desk.done;
        }
    }
}

/// Reads the sources of a job one after the other; gives whether the scan goes on.
fn run_job<'a>(
    shared: &Shared<'a>,
    root: usize,
    job: &Job,
    discovery: &'a Discovery,
    options: &'a Options,
    desk: &mut Desk,
) -> bool {
    let disk = Disk::new(&discovery.root, &shared.cancel, &shared.bytes, &options.limits);
    disk.expect(job.sources.iter().map(|index| &discovery.sources[*index]));
    for index in &job.sources {
        if shared.cancel.load(Ordering::Relaxed) {
            return false;
        }
        let source = &discovery.sources[*index];
        disk.begin(source);
        let read = || read_or_open(source, discovery, &disk, options, shared, desk);
        let read = catch_unwind(AssertUnwindSafe(read));
        disk.end(read.is_err());
        let found = match read {
            // Reads fail once the scan is cancelled: what is missing then is no fault of the source's.
            Ok(_) if shared.cancel.load(Ordering::Relaxed) => return false,
            Ok(Ok(Read::Whole(outcomes))) => outcomes.into(),
            Ok(Ok(Read::Shards(shards))) => {
                keep_large_buffers();
                let (next, left) = (AtomicUsize::new(0), AtomicUsize::new(shards.count().max(1)));
                let opened = Opened { root, index: *index, source, discovery, shards, next, left };
                let opened = Arc::new(opened);
                lock(&shared.opened).push(opened.clone());
                help(shared, &opened, options, desk);
                continue;
            }
            Ok(Err(rejected)) => rejected_part(source, None, discovery, &rejected),
            Err(panic) => {
                desk.worker = Worker::default();
                Done::One(Box::new(panicked(source, panic.as_ref())))
            }
        };
        put(shared, desk, root, *index, found);
        shared.sources.fetch_add(1, Ordering::Relaxed);
    }
    true
}

/// Bytes up to which the C library keeps what is freed.
const KEPT: usize = 31 << 20;

/// glibc maps a large buffer anew each time and gives it back when it is freed, a page fault for every 4 KiB of it, until it
/// has seen one of that size freed. Columns of tables come and go by the thousand: a quarter of such a scan was page faults.
fn keep_large_buffers() {
    let mut buffer: Vec<u8> = Vec::new();
    buffer.reserve_exact(KEPT);
    drop(std::hint::black_box(buffer));
}

fn put(shared: &Shared<'_>, desk: &mut Desk, root: usize, index: usize, done: Done) {
    let is_damaged = |outcome: &Outcome| u64::from(outcome.status == Status::Damaged);
    let damaged = match &done {
        Done::Nothing => 0,
        Done::One(outcome) => is_damaged(outcome),
        Done::Many(found) => found.outcomes.iter().map(|outcome| is_damaged(outcome)).sum(),
    };
    shared.damaged.fetch_add(damaged, Ordering::Relaxed);
    desk.done.push((root, index, done));
}

/// Reads shards of an opened source until none is left; whoever reads the last one ends it.
fn help(shared: &Shared<'_>, opened: &Opened<'_>, options: &Options, desk: &mut Desk) {
    let count = opened.shards.count();
    loop {
        let shard = opened.next.fetch_add(1, Ordering::Relaxed);
        if shard >= count.max(1) || shared.cancel.load(Ordering::Relaxed) {
            return;
        }
        let disk = Disk::new(&opened.discovery.root, &shared.cancel, &shared.bytes, &options.limits);
        let Desk { worker, buffer, .. } = desk;
        let mut found = Found::default();
        let read = catch_unwind(AssertUnwindSafe(|| {
            let mut session = Session { files: &disk, request: &options.request, limits: &options.limits, buffer };
            let mut named = None;
            let mut judge = |recording: Recording| {
                let Opened { source, discovery, .. } = opened;
                let judged = judged(source, recording, discovery, &mut named, options, shared, worker);
                found.outcomes.push(Box::new(judged));
            };
            if shard < count {
                opened.shards.read(shard, &mut session, &mut judge);
            }
        }));
        if shared.cancel.load(Ordering::Relaxed) {
            return;
        }
        if let Err(panic) = read {
            desk.worker = Worker::default();
            found.outcomes.push(Box::new(panicked(opened.source, panic.as_ref())));
        }
        let is_last = opened.left.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            end(shared, opened, options, &mut desk.worker, &mut found);
            shared.sources.fetch_add(1, Ordering::Relaxed);
        }
        put(shared, desk, opened.root, opened.index, Done::Many(found));
    }
}

/// What is left of an opened source once all of its shards are read.
fn end(shared: &Shared<'_>, opened: &Opened<'_>, options: &Options, worker: &mut Worker, found: &mut Found) {
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let mut named = None;
        let mut judge = |recording: Recording| {
            let Opened { source, discovery, .. } = opened;
            let judged = judged(source, recording, discovery, &mut named, options, shared, worker);
            found.outcomes.push(Box::new(judged));
        };
        opened.shards.finish(&mut judge)
    }));
    match ended {
        Ok(faults) => {
            if opened.shards.is_empty() {
                found.outcomes.push(Box::new(without_run(opened.source, faults.first())));
            }
            let located = |fault: Fault| reported(opened.source, fault);
            found.faults.extend(faults.into_iter().map(located));
        }
        Err(panic) => found.outcomes.push(Box::new(panicked(opened.source, panic.as_ref()))),
    }
    for (part, rejected) in opened.shards.broken() {
        let mut broken = Found::from(rejected_part(opened.source, Some(*part), opened.discovery, rejected));
        found.outcomes.append(&mut broken.outcomes);
        found.skipped += broken.skipped;
    }
}

/// A source in which no run was met: for want of rows, or because of its first fault.
fn without_run(source: &Source, fault: Option<&Fault>) -> Outcome {
    let (code, detail) = match fault {
        None => ("empty", ""),
        Some(fault) if fault.kind == FaultKind::Limit => ("limit", fault.detail.as_str()),
        Some(fault) => ("cut-header", fault.detail.as_str()),
    };
    let mut outcome = rejected_outcome(source, &Rejected::unreadable(code, detail));
    if fault.is_none() {
        outcome.status = Status::NotAssessable;
    }
    outcome
}

/// Whether a source of which nothing could be read is only skipped: the user did not name it, and it turns out to be no
/// recording, or a run that its tracker has deleted.
pub fn is_left_out(source: &Source, discovery: &Discovery, rejected: &Rejected) -> bool {
    let is_none = source.format.is_table() && rejected.code() == "not-a-recording";
    (is_none || rejected.code() == "deleted") && !discovery.is_of_files()
}

/// A source, or a part of it, of which nothing could be read. A file that the user did not name, and that turns out to be no
/// recording, is only skipped; so is a run that its tracker has deleted.
fn rejected_part(source: &Source, part: Option<usize>, discovery: &Discovery, rejected: &Rejected) -> Done {
    if is_left_out(source, discovery, rejected) {
        return Done::Many(Found { skipped: 1, ..Found::default() });
    }
    let mut outcome = rejected_outcome(source, rejected);
    if let Some(part) = part.and_then(|part| source.parts.get(part)) {
        outcome.run.clone_from(&part.path);
        outcome.source.clone_from(&part.path);
        outcome.bytes = part.size;
    }
    Done::One(Box::new(outcome))
}

/// Puts outcomes in the order of roots and paths, and gives every run its unique name.
fn gather(discoveries: Vec<Discovery>, done: Vec<Vec<Done>>, interrupted: bool) -> Scan {
    let mut scan = Scan { interrupted, ..Scan::default() };
    let several = discoveries.len() > 1;
    let labels = labels(&discoveries);
    let mut names: HashSet<String> = HashSet::new();
    for ((root, mut discovery), done) in discoveries.into_iter().enumerate().zip(done) {
        discovery.forget_sources();
        let mut outcomes: Vec<Box<Outcome>> = Vec::new();
        let prefixed = |path: &str| match (several, path) {
            (true, "") if labels[root] != "." => labels[root].clone(),
            (true, path) if labels[root] != "." => format!("{}/{path}", labels[root]),
            (_, path) => path.to_owned(),
        };
        let located = |mut fault: ReportedFault| {
            fault.source = prefixed(&fault.source);
            fault
        };
        for (source, found) in done.into_iter().enumerate() {
            let tie = discovery.ambiguous.iter().find(|(at, _)| *at == source).map(|(_, names)| names);
            let mut found = Found::from(found);
            share_bytes(&mut found.outcomes);
            scan.faults.extend(found.faults.into_iter().map(located));
            scan.skipped += found.skipped;
            for mut outcome in found.outcomes {
                if let Some(names) = tie {
                    let place = Place { part: 0, unit: PlaceUnit::Byte, at: 0 };
                    let fault = Fault::new(FaultKind::Ambiguous, place, format!("recognised as {names}"));
                    outcome.faults.push(ReportedFault { fault, source: outcome.source.clone(), place: String::new() });
                }
                outcomes.push(outcome);
            }
        }
        for link in discovery.links {
            let place = Place { part: 0, unit: PlaceUnit::Byte, at: 0 };
            let fault = Fault::new(FaultKind::Link, place, "a symbolic link, not followed");
            scan.faults.push(located(ReportedFault { fault, source: link, place: String::new() }));
        }
        for refused in discovery.refused {
            let place = Place { part: 0, unit: PlaceUnit::Byte, at: 0 };
            let mut fault = Fault::new(FaultKind::Io, place, refused.detail.clone());
            fault.severity = Severity::Error;
            let fault = located(ReportedFault { fault, source: refused.path.clone(), place: String::new() });
            if refused.is_recording {
                let directory = refused.path.rsplit_once('/').map_or("", |(parent, _)| parent);
                let mut outcome = unreadable(refused.path.clone(), directory.to_owned(), refused.format);
                outcome.reason = Some((refused.code, refused.detail));
                outcomes.push(Box::new(outcome));
            } else {
                scan.faults.push(fault);
            }
        }
        for damaged in discovery.damage {
            let place = Place { part: 0, unit: PlaceUnit::Byte, at: damaged.at.unwrap_or(0) };
            let shown = damaged.at.map_or_else(String::new, |_| place.describe(""));
            let mut fault = Fault::new(damaged.kind, place, damaged.detail);
            if damaged.is_whole {
                fault.severity = Severity::Error;
            }
            scan.faults.push(located(ReportedFault { fault, source: damaged.path, place: shown }));
        }
        // As many as there are: doubling would hold them three times for a moment.
        scan.outcomes.reserve_exact(outcomes.len());
        outcomes.sort_by(|a, b| (&a.source, &a.run_id).cmp(&(&b.source, &b.run_id)));
        for mut outcome in outcomes {
            outcome.faults = outcome.faults.into_iter().map(located).collect();
            let path = match prefixed(&outcome.source) {
                path if path.is_empty() => discovery.name.clone(),
                path => path,
            };
            let base = outcome.run_id.as_ref().map_or_else(|| path.clone(), |id| format!("{path}#{id}"));
            outcome.run = base;
            make_unique(&mut outcome.run, &mut names);
            outcome.directory = match prefixed(&outcome.directory) {
                directory if directory.is_empty() => ".".to_owned(),
                directory => directory,
            };
            outcome.source = path;
            scan.outcomes.push(outcome);
        }
        scan.skipped += discovery.skipped;
        scan.roots.push(labels[root].clone());
    }
    scan
}

/// Runs of one table share its bytes, each by its rows.
fn share_bytes(outcomes: &mut [Box<Outcome>]) {
    let of_table = |outcome: &Outcome| outcome.run_id.is_some();
    let rows: u64 = outcomes.iter().filter(|outcome| of_table(outcome)).map(|outcome| outcome.records).sum();
    for outcome in outcomes.iter_mut().filter(|outcome| of_table(outcome)) {
        let share = u128::from(outcome.bytes) * u128::from(outcome.records) / u128::from(rows.max(1));
        outcome.bytes = share as u64;
    }
}

/// Numbers a run's name if another has it already.
fn make_unique(run: &mut String, names: &mut HashSet<String>) {
    let base = run.clone();
    let mut number = 2;
    while !names.insert(run.clone()) {
        *run = format!("{base} ({number})");
        number += 1;
    }
}

/// What the runs of each of several roots are prefixed with: the root's name or, where names collide, its path below
/// the directory that holds all roots.
fn labels(discoveries: &[Discovery]) -> Vec<String> {
    let names: HashSet<&str> = discoveries.iter().map(|discovery| discovery.name.as_str()).collect();
    if names.len() == discoveries.len() && !discoveries.iter().any(Discovery::is_of_files) || discoveries.len() == 1 {
        return discoveries.iter().map(|discovery| discovery.name.clone()).collect();
    }
    let mut common = discoveries[0].root.base.clone();
    while !discoveries.iter().all(|discovery| discovery.root.base.starts_with(&common)) && common.pop() {}
    let below = |discovery: &Discovery| {
        let below = discovery.root.base.strip_prefix(&common).unwrap_or(&discovery.root.base);
        if below.as_os_str().is_empty() { ".".to_owned() } else { discover::shown(below) }
    };
    discoveries.iter().map(below).collect()
}

/// What reading a source came to.
enum Read<'a> {
    Whole(Vec<Outcome>),
    Shards(Box<dyn Shards + 'a>),
}

fn read_or_open<'a>(
    source: &'a Source,
    discovery: &Discovery,
    disk: &Disk<'_>,
    options: &'a Options,
    shared: &Shared<'_>,
    desk: &mut Desk,
) -> Result<Read<'a>, Rejected> {
    let Desk { worker, buffer, .. } = desk;
    let reader = discover::reader_of(source);
    let mut session = Session { files: disk, request: &options.request, limits: &options.limits, buffer };
    let shards = reader.and_then(|reader| reader.shards(source, &options.request, &options.limits, &mut session));
    if let Some(shards) = shards {
        return shards.map(Read::Shards);
    }
    let recordings = read_source(source, disk, &options.request, &options.limits, buffer)?;
    let mut named = None;
    let outcomes = recordings
        .into_iter()
        .map(|recording| judged(source, recording, discovery, &mut named, options, shared, worker));
    Ok(Read::Whole(outcomes.collect()))
}

/// Judges a recording, and audits its restore points if that is asked. `named`: the checkpoints that names tell of, looked
/// for once a source.
fn judged(
    source: &Source,
    recording: Recording,
    discovery: &Discovery,
    named: &mut Option<Vec<Checkpoint>>,
    options: &Options,
    shared: &Shared<'_>,
    worker: &mut Worker,
) -> Outcome {
    let verdict = detect::judge(&recording, &options.knobs, worker);
    let named: &[Checkpoint] = match recording.run_id {
        None => named.get_or_insert_with(|| discovery.checkpoints_of(source)),
        // Checkpoints by name are of a training that has its directory to itself.
        Some(_) => &[],
    };
    if !options.verify_checkpoints || verdict.findings.is_empty() {
        return outcome(source, recording, verdict, named);
    }
    let (known, axis) = (known_checkpoints(&recording, named), recording.axis.clone());
    let mut outcome = outcome(source, recording, verdict, named);
    for Reported { finding, restore, .. } in &mut outcome.findings {
        let among = Among { checkpoints: &known, met: named, unit: unit_of(finding, &axis), axis: &axis };
        if restore.step.is_some() {
            let (root, limits, cancel) = (&discovery.root, &options.limits, &shared.cancel);
            *restore = verify::verify(restore.clone(), finding, among, root, &shared.verified, limits, cancel);
        }
    }
    outcome
}

/// Checkpoints that the recording and the names around it tell of.
fn known_checkpoints(recording: &Recording, named: &[Checkpoint]) -> Vec<Checkpoint> {
    recording.checkpoints.iter().chain(named).cloned().collect()
}

/// What a finding's steps count.
fn unit_of(finding: &Finding, axis: &Axis) -> Option<Unit> {
    let unit = axis.step_name.as_deref().map(roles::step_unit);
    // Events carry steps of their own.
    unit.or_else(|| finding.role.is_none().then_some(Unit::Step))
}

/// Reads the recordings of a source.
pub fn read_source(
    source: &Source,
    disk: &Disk<'_>,
    request: &Request,
    limits: &Limits,
    buffer: &mut Vec<u8>,
) -> Result<Vec<Recording>, Rejected> {
    let Some(reader) = discover::reader_of(source) else { return Ok(Vec::new()) };
    reader.read(source, &mut Session { files: disk, request, limits, buffer })
}

/// A fault with its file and its place in words.
fn reported(source: &Source, fault: Fault) -> ReportedFault {
    let path = source.parts.get(fault.place.part as usize).map_or("", |part| part.path.as_str());
    ReportedFault { source: path.to_owned(), place: fault.place.describe(""), fault }
}

/// The outcome of one recording that was read; its rows are dropped here.
pub fn outcome(source: &Source, recording: Recording, verdict: Verdict, named: &[Checkpoint]) -> Outcome {
    let part_name = |place: &Place| source.parts.get(place.part as usize).map_or("", |part| part.name.as_str());
    let checkpoints = known_checkpoints(&recording, named);
    let findings = verdict.findings.into_iter().map(|finding| {
        let unit = unit_of(&finding, &recording.axis);
        let restore = restore::choose(&checkpoints, unit, finding.last_good_step, finding.onset_step, &recording.axis);
        let first_place = finding.first_place.map_or_else(String::new, |place| place.describe(part_name(&place)));
        Reported { finding, restore, first_place }
    });
    let findings: Vec<Reported> = findings.collect();
    let faults: Vec<ReportedFault> = recording.faults.iter().map(|fault| reported(source, fault.clone())).collect();
    let mut distinct: Vec<_> = checkpoints.iter().map(|checkpoint| (checkpoint.unit, checkpoint.number)).collect();
    distinct.sort_unstable_by_key(|(unit, number)| (*unit as u8, *number));
    distinct.dedup();
    let recognised =
        recording.series.iter().any(|series| series.role.is_some_and(|r| detect::nonfinite::class(r).is_some()));
    let series: Vec<SeriesStats> = exact(verdict.series);
    // A recording that is one file of several is called like it.
    let part = recording.part.and_then(|part| source.parts.get(part as usize));
    let recording_has_no_id = recording.run_id.is_none();
    let path = part.filter(|_| source.parts.len() > 1).map_or(&source.path, |part| &part.path);
    Outcome {
        run: path.clone(),
        directory: match &recording.run_id {
            // Runs of one table are no twins of each other.
            Some(id) => format!("{path}#{id}"),
            None => source.directory.clone(),
        },
        run_id: recording.run_id,
        source: path.clone(),
        format: Some(recording.format),
        name: recording.name,
        status: verdict.status,
        reason: verdict.reason,
        findings: exact(findings),
        series,
        suspicions: exact(verdict.suspicions),
        notes: exact(verdict.notes),
        coverage: verdict.coverage,
        faults: exact(faults),
        records: recording.records,
        step_name: recording.axis.step_name,
        first_step: recording.axis.first_step,
        last_step: recording.axis.last_step,
        step_interval: recording.axis.step_interval,
        attempts: recording.axis.attempts.len() as u64,
        checkpoints: distinct.len() as u64,
        unrecognised: if recognised { Vec::new() } else { exact(recording.unrecognised) },
        bytes: match part {
            Some(part) if recording_has_no_id => part.size,
            _ => source.bytes(),
        },
        started: recording.started,
        ended: recording.ended,
    }
}

/// Without spare room: one of these is held for each of many thousand recordings.
fn exact<T>(mut list: Vec<T>) -> Vec<T> {
    list.shrink_to_fit();
    list
}

fn unreadable(path: String, directory: String, format: Option<Format>) -> Outcome {
    Outcome {
        run: path.clone(),
        run_id: None,
        directory,
        source: path,
        format,
        name: None,
        status: Status::Unreadable,
        reason: None,
        findings: Vec::new(),
        series: Vec::new(),
        suspicions: Vec::new(),
        notes: Vec::new(),
        coverage: None,
        faults: Vec::new(),
        records: 0,
        step_name: None,
        first_step: None,
        last_step: None,
        step_interval: None,
        attempts: 0,
        checkpoints: 0,
        unrecognised: Vec::new(),
        bytes: 0,
        started: None,
        ended: None,
    }
}

fn rejected_outcome(source: &Source, rejected: &Rejected) -> Outcome {
    let mut outcome = unreadable(source.path.clone(), source.directory.clone(), Some(source.format));
    outcome.bytes = source.bytes();
    outcome.reason = Some(match rejected {
        Rejected::Unreadable { code, detail } => (code, detail.clone()),
        other => (other.code(), other.to_string()),
    });
    outcome
}

fn panicked(source: &Source, panic: &(dyn Any + Send)) -> Outcome {
    let message = panic.downcast_ref::<&str>().map(ToString::to_string);
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    let mut outcome = unreadable(source.path.clone(), source.directory.clone(), Some(source.format));
    outcome.bytes = source.bytes();
    let place = Place { part: 0, unit: PlaceUnit::Byte, at: 0 };
    let fault = Fault::new(FaultKind::Panic, place, message.clone());
    outcome.faults.push(ReportedFault { fault, source: source.path.clone(), place: String::new() });
    outcome.reason = Some(("panic", message));
    outcome
}

/// Roles under which `runs` lists gradient norms.
pub fn is_norm(role: Role) -> bool {
    matches!(role, Role::GradNorm | Role::GradNormPostClip | Role::LayerGradNorm)
}
