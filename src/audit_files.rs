//! Files and directories audited in parallel: which files hold data or weights, how each is opened, what they say
//! together. One worker a file; results stand in the order of paths, whatever the threads.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek};
#[cfg(feature = "tables")]
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

#[cfg(feature = "tables")]
use bytes::Bytes;
use walkdir::WalkDir;

#[cfg(feature = "archives")]
use crate::audit::Streamed;
use crate::audit::{self, Format, Input, Report, npy, safetensors};
use crate::model::source::plain;
use crate::model::{FaultKind, Limits};
#[cfg(feature = "archives")]
use crate::open::archive::{self, Container, Item, What};
use crate::open::names::escape;
use crate::open::{self, open_regular};
#[cfg(feature = "archives")]
use crate::read::Damage;
use crate::read::Ranges;
use crate::read::broken::Broken;
#[cfg(feature = "tables")]
use crate::read::table::{ipc, parquet};

/// What to audit, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Bounds on untrusted files.
    pub limits: Limits,
    /// Worker threads; `None`: as many as processors.
    pub threads: Option<usize>,
}

/// How far a running audit is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advance {
    /// Bytes read.
    pub bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
    /// Files done.
    pub files: u64,
    /// Files in all.
    pub total_files: u64,
    /// Tensors with NaN or Inf so far.
    pub bad: u64,
}

/// One file, or one member of an archive.
#[derive(Clone, Debug)]
pub struct Audited {
    /// Its path as the user wrote it, and what is below it.
    pub source: String,
    /// What was found in it.
    pub report: Report,
}

/// The result of an audit.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// By path.
    pub files: Vec<Audited>,
    /// Files of a walk that hold neither data nor weights.
    pub skipped: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// It was stopped before its end; the files are those that were done.
    pub interrupted: bool,
}

/// What is done with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Its format is known by its name.
    Known(Format),
    /// The user named it: its first bytes tell.
    Unknown,
    /// Members of an archive.
    #[cfg(feature = "archives")]
    Archive(Container),
    /// It cannot be looked at.
    Refused(Broken),
}

#[derive(Clone, Debug)]
struct Job {
    path: PathBuf,
    source: String,
    kind: Kind,
    size: u64,
}

/// Files to audit, each once.
#[derive(Default)]
struct Plan {
    jobs: BTreeMap<PathBuf, Job>,
    skipped: u64,
}

impl Plan {
    fn add(&mut self, path: PathBuf, source: String, kind: Kind) {
        let size = path.metadata().map_or(0, |metadata| metadata.len());
        self.jobs.entry(path.clone()).or_insert(Job { path, source, kind, size });
    }

    /// A file that the user named, or a directory.
    fn name(&mut self, path: &Path, limits: &Limits, proceed: &mut dyn FnMut() -> bool) {
        let source = escape(path.as_os_str());
        match path.metadata() {
            Err(error) => self.add(path.to_owned(), source, Kind::Refused(audit::failed(0, &error))),
            Ok(metadata) if metadata.is_dir() => self.walk(path, &source, limits, |_| true, proceed),
            Ok(_) => {
                let kind = kind_of_name(&source).unwrap_or(Kind::Unknown);
                self.add(path.to_owned(), source, kind);
            }
        }
    }

    fn walk(
        &mut self,
        root: &Path,
        source: &str,
        limits: &Limits,
        wanted: impl Fn(&Kind) -> bool,
        proceed: &mut dyn FnMut() -> bool,
    ) {
        let walker = WalkDir::new(root).follow_links(false).max_depth(limits.depth).sort_by_file_name();
        for (count, entry) in walker.into_iter().enumerate() {
            if count % 256 == 255 && !proceed() {
                return;
            }
            let (path, refused) = match entry {
                Ok(entry) if entry.file_type().is_dir() => continue,
                Ok(entry) if entry.path_is_symlink() => {
                    let detail = "a symbolic link, not followed: name it to audit what it leads to";
                    let link = Broken::new(FaultKind::Link.as_str(), FaultKind::Link, 0, detail);
                    (entry.into_path(), Some(link))
                }
                Ok(entry) => (entry.into_path(), None),
                Err(error) => {
                    let path = error.path().unwrap_or(root).to_owned();
                    let error = error.into_io_error().unwrap_or_else(|| io::Error::other("a loop of links"));
                    let below = below(root, source, &path);
                    self.add(path, below, Kind::Refused(audit::failed(0, &error)));
                    continue;
                }
            };
            let below = below(root, source, &path);
            match kind_of_name(&below).filter(&wanted) {
                Some(kind) => self.add(path, below, refused.map_or(kind, Kind::Refused)),
                None => self.skipped += 1,
            }
        }
    }

    /// The files of models that only their index names.
    fn add_shards(&mut self, limits: &Limits) {
        let is_index = |job: &&Job| job.kind == Kind::Known(Format::SafetensorsIndex);
        let indices: Vec<Job> = self.jobs.values().filter(is_index).cloned().collect();
        for index in indices {
            // What is wrong with it is said when its turn comes.
            let Ok(map) = read_index(&index.path, limits) else { continue };
            let files: HashSet<&String> =
                map.iter().map(|(_, file)| file).filter(|f| safetensors::is_beside(f)).collect();
            for file in files {
                let path = index.path.with_file_name(file);
                let source = match index.source.rsplit_once('/') {
                    Some((parent, _)) => format!("{parent}/{}", escape(file.as_ref())),
                    None => escape(file.as_ref()),
                };
                if path.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
                    self.add(path, source, Kind::Known(Format::Safetensors));
                }
            }
        }
    }
}

fn below(root: &Path, source: &str, path: &Path) -> String {
    let rest = path.strip_prefix(root).map(open::names::shown).unwrap_or_default();
    match (source.trim_end_matches('/'), rest.as_str()) {
        (_, "") => source.to_owned(),
        ("." | "", rest) if source != "/" => rest.to_owned(),
        (source, rest) => format!("{source}/{rest}"),
    }
}

fn kind_of_name(source: &str) -> Option<Kind> {
    if let Some(format) = Format::of_name(plain(source)) {
        return Some(Kind::Known(format));
    }
    #[cfg(feature = "archives")]
    if let Some(container) = Container::of_name(source) {
        return Some(Kind::Archive(container));
    }
    None
}

fn read_index(path: &Path, limits: &Limits) -> Result<Vec<(String, String)>, Broken> {
    let failed = |error: io::Error| audit::failed(0, &error);
    let mut json = Vec::new();
    let stream = open_regular(path).and_then(|file| open::stream(file, limits)).map_err(failed)?;
    stream.take(limits.companion.saturating_add(1)).read_to_end(&mut json).map_err(failed)?;
    if json.len() as u64 > limits.companion {
        let detail = format!("an index of more than {} bytes", limits.companion);
        return Err(Broken::new(FaultKind::Limit.as_str(), FaultKind::Limit, 0, detail));
    }
    safetensors::index(&json)
}

/// What workers and the thread that waits for them see of each other.
#[derive(Debug, Default)]
struct Shared {
    next: AtomicUsize,
    cancel: AtomicBool,
    bytes: AtomicU64,
    files: AtomicU64,
    bad: AtomicU64,
}

impl Shared {
    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// Counts bytes that were read; an error once the audit is cancelled.
    fn read(&self, count: usize) -> io::Result<usize> {
        if self.cancelled() {
            return Err(io::Error::other("cancelled"));
        }
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// A file on disk as it is.
struct OnDisk<'a> {
    file: File,
    at: u64,
    size: u64,
    shared: &'a Shared,
    cancel: &'a AtomicBool,
}

impl Input for OnDisk<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(io::Error::other("cancelled"));
        }
        let count = self.file.read(into)?;
        self.at += count as u64;
        self.shared.read(count)
    }

    fn pass(&mut self, count: u64) -> io::Result<u64> {
        // What lies beyond the end is not there, though it can be sought.
        let passed = count.min(self.size.saturating_sub(self.at));
        self.file.seek_relative(i64::try_from(passed).map_err(io::Error::other)?)?;
        self.at += passed;
        Ok(passed)
    }
}

/// A stream that counts what is read of it and of its archive.
#[cfg(feature = "archives")]
struct Counted<'a, R> {
    inner: R,
    shared: &'a Shared,
    spent: &'a mut u64,
    most: u64,
}

#[cfg(feature = "archives")]
impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        *self.spent += count as u64;
        if *self.spent > self.most {
            let detail = format!("the members of the archive unpack to more than {} bytes", self.most);
            return Err(Damage::error(FaultKind::Limit, detail));
        }
        self.shared.read(count)
    }
}

/// Ranges that count what is read.
#[cfg(feature = "tables")]
struct Heeded {
    inner: Arc<dyn Ranges>,
    shared: Arc<Shared>,
}

#[cfg(feature = "tables")]
impl Ranges for Heeded {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        let bytes = self.inner.read(range)?;
        self.shared.read(bytes.len())?;
        Ok(bytes)
    }
}

/// What one file said.
struct Done {
    files: Vec<Audited>,
    /// Of an index: which tensor lies in which file.
    map: Vec<(String, String)>,
}

/// A worker, with what it reuses from file to file.
struct Worker<'a> {
    shared: &'a Arc<Shared>,
    limits: &'a Limits,
    /// What stops it from outside.
    cancel: &'a AtomicBool,
    buffer: Vec<u8>,
}

impl Worker<'_> {
    /// Audits a file; a panic is its outcome.
    fn run(&mut self, job: &Job) -> Done {
        let done = catch_unwind(AssertUnwindSafe(|| self.open(job)));
        done.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            let panic = Broken::new(FaultKind::Panic.as_str(), FaultKind::Panic, 0, text);
            Done { files: vec![Audited { source: job.source.clone(), report: panic.into() }], map: Vec::new() }
        })
    }

    fn open(&mut self, job: &Job) -> Done {
        let mut map = Vec::new();
        let report = match &job.kind {
            Kind::Refused(broken) => Err(broken.clone()),
            Kind::Known(format) => self.known(job, *format, &mut map),
            Kind::Unknown => match self.look(job) {
                Ok(Kind::Known(format)) => self.known(job, format, &mut map),
                #[cfg(feature = "archives")]
                Ok(Kind::Archive(container)) => return Done { files: self.archive(job, container, false), map },
                Ok(_) => {
                    let detail = "neither safetensors nor an array of numpy, Parquet, Arrow or an archive of them";
                    Err(Broken::new("unknown-format", FaultKind::Version, 0, detail))
                }
                Err(broken) => Err(broken),
            },
            #[cfg(feature = "archives")]
            Kind::Archive(container) => return Done { files: self.archive(job, *container, false), map },
        };
        #[cfg(feature = "archives")]
        if let Kind::Known(Format::Npz) = job.kind
            && report.is_ok()
        {
            return Done { files: self.archive(job, Container::Zip, true), map };
        }
        let report = report.unwrap_or_else(Report::from);
        Done { files: vec![Audited { source: job.source.clone(), report }], map }
    }

    /// What a file is whose name does not tell.
    fn look(&self, job: &Job) -> Result<Kind, Broken> {
        let head = open::head(&job.path, 64, self.limits).map_err(|error| audit::failed(0, &error))?;
        if let Some(pointer) = audit::pointer(&head) {
            return Err(pointer);
        }
        #[cfg(feature = "archives")]
        if let Ok(Some(container)) = Container::of_file(&job.path, self.limits) {
            return Ok(Kind::Archive(container));
        }
        Ok(Format::of_head(&head).map_or(Kind::Unknown, Kind::Known))
    }

    fn known(&mut self, job: &Job, format: Format, map: &mut Vec<(String, String)>) -> Result<Report, Broken> {
        let failed = |error: io::Error| audit::failed(0, &error);
        let mut file = open_regular(&job.path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let mut head = Vec::new();
        file.by_ref().take(64).read_to_end(&mut head).map_err(failed)?;
        file.rewind().map_err(failed)?;
        if let Some(broken) = audit::pointer(&head).or_else(|| format.refused()) {
            return Err(broken);
        }
        match format {
            Format::Safetensors | Format::Npy => {
                #[cfg(feature = "archives")]
                if archive::is_packed(&head) {
                    let inner = open::stream(file, self.limits).map_err(failed)?;
                    let mut spent = 0;
                    let most = self.limits.unpacked;
                    let counted = Counted { inner, shared: &Arc::clone(self.shared), spent: &mut spent, most };
                    return Ok(self.streamed(&mut Streamed(counted), None, format, file_name(&job.source)));
                }
                let shared = Arc::clone(self.shared);
                let mut input = OnDisk { file, at: 0, size, shared: &shared, cancel: self.cancel };
                Ok(self.streamed(&mut input, Some(size), format, file_name(&job.source)))
            }
            Format::SafetensorsIndex => {
                *map = read_index(&job.path, self.limits)?;
                let mut report = Report::default();
                let elsewhere: HashSet<&String> =
                    map.iter().map(|(_, file)| file).filter(|file| !safetensors::is_beside(file)).collect();
                let mut elsewhere: Vec<&String> = elsewhere.into_iter().collect();
                elsewhere.sort_unstable();
                for file in elsewhere.into_iter().take(self.limits.faults) {
                    let detail = format!("the index names {file:?}, which is no safetensors file beside it");
                    report.faults.push(Broken::new("missing-shard", FaultKind::Conflict, 0, detail));
                }
                map.retain(|(_, file)| safetensors::is_beside(file));
                Ok(report)
            }
            // Members are looked at one by one.
            Format::Npz if cfg!(feature = "archives") => Ok(Report::default()),
            Format::Npz => Err(audit::unsupported(0, "this build reads no zip archives")),
            Format::Parquet | Format::Arrow => {
                let inner = open::ranges(&job.path).map_err(failed)?;
                self.table(inner, format)
            }
            Format::Pickle => Ok(Report::default()),
        }
    }

    fn streamed(&mut self, input: &mut dyn Input, size: Option<u64>, format: Format, name: &str) -> Report {
        if format == Format::Safetensors {
            return safetensors::audit(input, size, self.limits, &mut self.buffer);
        }
        npy::audit(input, size, array_name(name), self.limits, &mut self.buffer)
    }

    #[cfg(feature = "tables")]
    fn table(&self, inner: Arc<dyn Ranges>, format: Format) -> Result<Report, Broken> {
        let ranges = Arc::new(Heeded { inner, shared: Arc::clone(self.shared) });
        // Columns of a Parquet file lie apart, those of a batch of Arrow together.
        let is_columnar = format == Format::Parquet;
        let file = if is_columnar { parquet::open(ranges, self.limits) } else { ipc::open(ranges, self.limits) }?;
        Ok(audit::table::audit(&*file, is_columnar, self.limits, &mut || !self.shared.cancelled()))
    }

    #[cfg(not(feature = "tables"))]
    fn table(&self, _: Arc<dyn Ranges>, _: Format) -> Result<Report, Broken> {
        Err(audit::unsupported(0, "this build reads no tables"))
    }

    /// Members of an archive in their order; `is_npz`: all of them together are one file of arrays.
    #[cfg(feature = "archives")]
    fn archive(&mut self, job: &Job, container: Container, is_npz: bool) -> Vec<Audited> {
        let mut files: Vec<Audited> = Vec::new();
        let mut whole = Report::default();
        let mut spent = 0;
        let (shared, limits) = (Arc::clone(self.shared), self.limits);
        let mut proceed = || !shared.cancelled();
        let listed = archive::list(&job.path, container, limits, &mut proceed, &mut |item: Item<'_>| {
            let source = format!("{}/{}", job.source, item.path);
            let broken = match &item.what {
                What::File(_) => None,
                What::Unsupported(_, detail) => Some(audit::unsupported(0, detail.clone())),
                What::HardLink(_) | What::SymbolicLink(_) => {
                    Some(Broken::new(FaultKind::Link.as_str(), FaultKind::Link, 0, "a link, not followed"))
                }
                What::Directory | What::Special => return,
            };
            // torch.save writes a zip archive as well.
            let is_torch = item.path.ends_with("/data.pkl") || item.path == "data.pkl";
            let format = if is_torch { Some(Format::Pickle) } else { Format::of_name(plain(&item.path)) };
            let Some(format) = format else { return };
            let mut stream = Counted { inner: item.contents, shared: &shared, spent: &mut spent, most: limits.archive };
            let report = match broken.or_else(|| format.refused()) {
                Some(broken) => broken.into(),
                None => match format {
                    Format::Safetensors | Format::Npy => match archive::not_nested(Box::new(&mut stream)) {
                        Ok(plain) => {
                            let name = if is_npz { &item.path } else { file_name(&item.path) };
                            self.streamed(&mut Streamed(plain), None, format, name)
                        }
                        Err(error) => audit::failed(0, &error).into(),
                    },
                    Format::Parquet | Format::Arrow => {
                        let ranges = open::whole(&mut stream, limits).map_err(|error| audit::failed(0, &error));
                        ranges.and_then(|ranges| self.table(ranges, format)).unwrap_or_else(Report::from)
                    }
                    Format::Npz => audit::unsupported(0, "an archive inside an archive: unpack it first").into(),
                    Format::SafetensorsIndex | Format::Pickle => return,
                },
            };
            if is_npz {
                // The name of the array is that of the member; faults say which one they are of.
                let name = item.path.clone();
                whole.tensors.extend(report.tensors);
                whole.faults.extend(report.faults.into_iter().map(|mut fault| {
                    fault.detail = format!("{name}: {}", fault.detail);
                    fault
                }));
            } else {
                files.push(Audited { source, report });
            }
        });
        match listed {
            Ok((_, damage)) => {
                let fault = |(kind, at, detail): (FaultKind, Option<u64>, String)| {
                    Broken::new(kind.as_str(), kind, at.unwrap_or(0), detail)
                };
                whole.faults.extend(damage.into_iter().map(fault));
            }
            Err(error) => whole.faults.push(audit::failed(0, &error)),
        }
        // An archive without data and weights is a file like any other, unless the user named it.
        if is_npz || !whole.faults.is_empty() {
            files.insert(0, Audited { source: job.source.clone(), report: whole });
        }
        files
    }
}

fn file_name(source: &str) -> &str {
    source.rsplit('/').next().unwrap_or(source)
}

/// What numpy calls the array in a file.
fn array_name(name: &str) -> &str {
    let name = plain(name);
    let stem = name.len().checked_sub(4).filter(|_| name.to_ascii_lowercase().ends_with(".npy"));
    stem.and_then(|stem| name.get(..stem)).unwrap_or(name)
}

fn bad(files: &[Audited]) -> u64 {
    files.iter().flat_map(|file| &file.report.tensors).filter(|tensor| tensor.is_bad()).count() as u64
}

/// Audits `paths`. `tick` is called about twenty times a second on this thread; once it says `false` the audit stops and
/// gives what is done.
pub fn audit(paths: &[PathBuf], options: &Options, tick: &mut dyn FnMut(Advance) -> bool) -> Audit {
    let mut plan = Plan::default();
    let mut going = true;
    for path in paths {
        plan.name(path, &options.limits, &mut || {
            going = going && tick(Advance::default());
            going
        });
    }
    if !going {
        return Audit { interrupted: true, ..Audit::default() };
    }
    plan.add_shards(&options.limits);
    let jobs: Vec<Job> = plan.jobs.into_values().collect();
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(jobs[*index].size));
    let bytes = jobs.iter().fold(0u64, |sum, job| sum.saturating_add(job.size));
    let shared = Arc::new(Shared::default());
    let mut advance = Advance { total_bytes: bytes, total_files: jobs.len() as u64, ..Advance::default() };
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let mut done: Vec<Option<Done>> = jobs.iter().map(|_| None).collect();
    std::thread::scope(|scope| {
        // Nothing is ever sent: the channel tells when the last worker is gone.
        let (alive, gone) = mpsc::channel::<()>();
        let workers: Vec<_> = (0..threads.clamp(1, jobs.len().max(1)))
            .map(|_| {
                let (alive, shared, order, jobs) = (alive.clone(), &shared, &order, &jobs);
                scope.spawn(move || {
                    let cancel = &shared.cancel;
                    let mut worker = Worker { shared, limits: &options.limits, cancel, buffer: Vec::new() };
                    let mut done = Vec::new();
                    while let Some(index) = order.get(shared.next.fetch_add(1, Ordering::Relaxed)) {
                        let result = worker.run(&jobs[*index]);
                        // Reads fail once the audit is cancelled: what is missing then is no fault of the file's.
                        if shared.cancelled() {
                            break;
                        }
                        shared.bad.fetch_add(bad(&result.files), Ordering::Relaxed);
                        shared.files.fetch_add(1, Ordering::Relaxed);
                        done.push((*index, result));
                    }
                    drop(alive);
                    done
                })
            })
            .collect();
        drop(alive);
        while gone.recv_timeout(Duration::from_millis(50)) == Err(RecvTimeoutError::Timeout) {
            advance.bytes = shared.bytes.load(Ordering::Relaxed).min(bytes);
            advance.files = shared.files.load(Ordering::Relaxed);
            advance.bad = shared.bad.load(Ordering::Relaxed);
            if !tick(advance) {
                shared.cancel.store(true, Ordering::Relaxed);
            }
        }
        for worker in workers {
            // Panics of a file are caught where it is read; any other is a defect that ends the audit.
            let results = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            results.into_iter().for_each(|(index, result)| done[index] = Some(result));
        }
    });
    advance = Advance {
        bytes,
        files: shared.files.load(Ordering::Relaxed),
        bad: shared.bad.load(Ordering::Relaxed),
        ..advance
    };
    let mut interrupted = shared.cancelled();
    interrupted = interrupted || !tick(advance);
    check_shards(&jobs, &mut done, &options.limits);
    let files = done.into_iter().flatten().flat_map(|done| done.files).collect();
    Audit { files, skipped: plan.skipped, bytes, interrupted }
}

/// Every tensor of an index lies in the file that it names.
fn check_shards(jobs: &[Job], done: &mut [Option<Done>], limits: &Limits) {
    let at: HashMap<&Path, usize> = jobs.iter().enumerate().map(|(index, job)| (job.path.as_path(), index)).collect();
    for index in 0..jobs.len() {
        let Some(map) = done[index].as_mut().map(|done| std::mem::take(&mut done.map)) else { continue };
        let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        map.iter().for_each(|(tensor, file)| files.entry(file).or_default().push(tensor));
        let mut faults = Vec::new();
        let missing = |code, detail| Broken::new(code, FaultKind::Conflict, 0, detail);
        for (file, tensors) in files {
            let shard = at.get(jobs[index].path.with_file_name(file).as_path());
            let Some(shard) = shard else {
                let detail = format!("{file} is not there, with {} tensors of the model", tensors.len());
                faults.push(missing("missing-shard", detail));
                continue;
            };
            // Of one that was not read to its end its own faults tell.
            let Some(report) = done[*shard].as_ref().and_then(|done| done.files.first()).map(|file| &file.report)
            else {
                continue;
            };
            if !report.faults.is_empty() {
                continue;
            }
            let names: HashSet<&str> = report.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            let lost: Vec<&str> = tensors.into_iter().filter(|tensor| !names.contains(tensor)).collect();
            if let Some(first) = lost.first() {
                let detail = format!("{file} lacks {} tensors that the index puts there: {first:?} ...", lost.len());
                faults.push(missing("missing-tensor", detail));
            }
        }
        if let Some(file) = done[index].as_mut().and_then(|done| done.files.first_mut()) {
            let room = limits.faults.saturating_sub(file.report.faults.len());
            file.report.faults.extend(faults.into_iter().take(room));
        }
    }
}

/// What an audit of a checkpoint's weights says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Every safetensors file in it was read, and all values are finite.
    Sound,
    /// NaN or Inf in some tensor; what it holds: `holds NaN in w`.
    Poisoned(String),
    /// A file in it is damaged, or a shard is missing: `cannot be read: ...`.
    Unreadable(String),
    /// Not all of it was looked at; the code says why: `unverified` (no safetensors files), `no-floats` (no value in them
    /// can be NaN), `unsupported` (a type that is not known), `link`, `archive` (it lies in one).
    Unknown(&'static str),
}

/// Audits the safetensors files of a checkpoint, a file or a directory, on this thread. Once `cancel` is set what it
/// gives means nothing.
pub fn weights(path: &Path, limits: &Limits, cancel: &AtomicBool) -> Weights {
    let is_weights = |kind: &Kind| matches!(kind, Kind::Known(Format::Safetensors | Format::SafetensorsIndex));
    let mut plan = Plan::default();
    let source = escape(path.as_os_str());
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => {
            plan.walk(path, &source, limits, is_weights, &mut || !cancel.load(Ordering::Relaxed))
        }
        Ok(metadata) if metadata.is_file() => {
            if let Some(kind) = kind_of_name(&source).filter(is_weights) {
                plan.add(path.to_owned(), source, kind);
            }
        }
        Ok(metadata) if metadata.is_symlink() => return Weights::Unknown("link"),
        Ok(_) => return Weights::Unknown("unverified"),
        // A member of an archive: what lies above it on disk is a file.
        Err(_) if path.ancestors().skip(1).any(Path::is_file) => return Weights::Unknown("archive"),
        Err(error) => return Weights::Unreadable(format!("cannot be read: {error}")),
    }
    let jobs: Vec<Job> = plan.jobs.into_values().collect();
    if jobs.is_empty() {
        return Weights::Unknown("unverified");
    }
    let shared = Arc::new(Shared::default());
    let mut worker = Worker { shared: &shared, limits, cancel, buffer: Vec::new() };
    let mut done: Vec<Option<Done>> = Vec::new();
    for job in &jobs {
        if cancel.load(Ordering::Relaxed) {
            return Weights::Unknown("unverified");
        }
        done.push(Some(worker.run(job)));
    }
    check_shards(&jobs, &mut done, limits);
    let reports = || done.iter().flatten().flat_map(|done| &done.files).map(|file| &file.report);
    let tensors = || reports().flat_map(|report| &report.tensors);
    if let Some(first) = tensors().find(|tensor| tensor.is_bad()) {
        let what = match (first.nan, first.inf) {
            (0, _) => "Inf",
            (_, 0) => "NaN",
            _ => "NaN and Inf",
        };
        let more = tensors().filter(|tensor| tensor.is_bad()).count() - 1;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let name: String = first.name.chars().take(MOST_NAME).collect();
        return Weights::Poisoned(format!("holds {what} in {name}{more}"));
    }
    // What is only unknown to us is no damage.
    let unknown = |fault: &Broken| match () {
        () if fault.kind == FaultKind::Link => Some("link"),
        () if fault.code == "unsupported" => Some("unsupported"),
        () => None,
    };
    let faults = || reports().flat_map(|report| &report.faults);
    if let Some(fault) = faults().find(|fault| unknown(fault).is_none()) {
        return Weights::Unreadable(format!("cannot be read: {}: {}", audit::kind_of(fault), fault.detail));
    }
    if let Some(why) = faults().find_map(unknown) {
        return Weights::Unknown(why);
    }
    if !tensors().any(|tensor| tensor.values > 0 && safetensors::is_counted(&tensor.dtype)) {
        return Weights::Unknown("no-floats");
    }
    Weights::Sound
}

/// Characters of a tensor's name in a sentence.
const MOST_NAME: usize = 120;

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dtype: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let json = format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{}]}}}}"#, data.len());
        [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), data].concat()
    }

    fn said(files: &[(&str, Vec<u8>)]) -> Weights {
        let folder = tempfile::TempDir::new().unwrap();
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        weights(folder.path(), &Limits::default(), &AtomicBool::new(false))
    }

    #[test]
    fn weights_are_sound_only_if_a_float_was_counted() {
        let one = 1f32.to_le_bytes();
        let nan = f32::NAN.to_le_bytes();
        let name = "model.safetensors";
        assert_eq!(said(&[(name, file("F32", "[1]", &one))]), Weights::Sound);
        assert_eq!(said(&[]), Weights::Unknown("unverified"));
        for (dtype, shape, data) in [("F32", "[0]", &one[..0]), ("I32", "[1]", &nan), ("F4", "[8]", &nan)] {
            assert_eq!(said(&[(name, file(dtype, shape, data))]), Weights::Unknown("no-floats"), "{dtype}");
        }
        assert_eq!(said(&[(name, file("F3", "[1]", &one))]), Weights::Unknown("unsupported"));
        let poisoned = Weights::Poisoned("holds NaN in w".to_owned());
        assert_eq!(said(&[(name, file("F32", "[1]", &nan)), ("a.safetensors", file("F3", "[1]", &one))]), poisoned);
        let cut = file("F32", "[1]", &one[..4])[..20].to_vec();
        assert!(
            matches!(said(&[(name, cut)]), Weights::Unreadable(why) if why.starts_with("cannot be read: truncated"))
        );
    }

    #[cfg(unix)]
    #[test]
    fn what_cannot_be_looked_at_has_its_own_reason() {
        let folder = tempfile::TempDir::new().unwrap();
        let inside = folder.path().join("checkpoint-1");
        std::fs::create_dir(&inside).unwrap();
        let blob = folder.path().join("blob");
        std::fs::write(&blob, file("F32", "[1]", &1f32.to_le_bytes())).unwrap();
        std::os::unix::fs::symlink(&blob, inside.join("model.safetensors")).unwrap();
        let of = |path: &Path| weights(path, &Limits::default(), &AtomicBool::new(false));
        assert_eq!(of(&inside), Weights::Unknown("link"));
        assert_eq!(of(&blob.join("checkpoint-2")), Weights::Unknown("archive"));
    }
}
