//! Transaction logs: what the readers of W&B and SwanLab share, from the file header to whole records.

use std::collections::HashMap;

use super::{Builder, Progress, Rejected, Session, StreamDecoder, is_git_lfs_pointer, single};
use crate::model::{Entry, Fault, FaultKind, Format, Part, PlaceUnit, Source};
use crate::wire::leveldb::{FILE_HEADER, FileHeader, Log, Next, Passed, Record};

/// What makes rows of records.
pub trait Records {
    /// Takes one record; `false` if its bytes are no message.
    fn record(&mut self, record: Record<'_>, into: &mut Builder<'_>) -> bool;
}

/// Why nothing follows the file header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Pointer,
    Cut(usize),
    Foreign,
    Version(u8),
}

/// Decodes one file into records.
#[derive(Debug)]
pub struct Transactions<'r, R> {
    header: &'static FileHeader,
    log: Option<Log>,
    refusal: Option<Refusal>,
    records: &'r mut R,
}

impl<'r, R: Records> Transactions<'r, R> {
    /// A decoder of a file that begins with `header`.
    pub fn new(header: &'static FileHeader, records: &'r mut R) -> Self {
        Self { header, log: None, refusal: None, records }
    }

    /// Why the file that was read is no log, if it is none. An empty one is: its writer never came to flush.
    pub fn rejected(&self) -> Option<Rejected> {
        let name = String::from_utf8_lossy(&self.header.ident);
        Some(match self.refusal? {
            Refusal::Pointer => Rejected::unreadable("git-lfs-pointer", "a Git LFS pointer in place of the file"),
            Refusal::Cut(count) => Rejected::unreadable(
                "cut-header",
                format!("it ends after {count} of the {FILE_HEADER} bytes of its header"),
            ),
            Refusal::Foreign => {
                Rejected::unreadable("not-a-recording", format!("it does not begin with the header of a {name} log"))
            }
            Refusal::Version(found) => {
                let want: Vec<String> = self.header.versions.iter().map(u8::to_string).collect();
                let want = want.join(" or ");
                Rejected::unreadable("version", format!("version {found} of a {name} log, want {want}"))
            }
        })
    }

    /// Looks at the file header; `None` while more of it is wanted.
    fn begin(&mut self, window: &[u8], end: bool, limit: usize) -> Option<Result<Log, Refusal>> {
        if is_git_lfs_pointer(window) {
            return Some(Err(Refusal::Pointer));
        }
        match self.header.version_of(window) {
            Some(version) if self.header.versions.contains(&version) => Some(Ok(Log::new(limit))),
            Some(version) => Some(Err(Refusal::Version(version))),
            None if window.len() >= FILE_HEADER => Some(Err(Refusal::Foreign)),
            None if end && self.header.may_begin(window) => Some(Err(Refusal::Cut(window.len()))),
            None if end => Some(Err(Refusal::Foreign)),
            None => None,
        }
    }
}

impl<R: Records> StreamDecoder for Transactions<'_, R> {
    fn feed(&mut self, window: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> Progress {
        let mut used = 0;
        if at == 0 && !window.is_empty() && self.log.is_none() && self.refusal.is_none() {
            match self.begin(window, end, into.limits().record) {
                Some(Ok(log)) => {
                    self.log = Some(log);
                    used = FILE_HEADER;
                }
                Some(Err(refusal)) => self.refusal = Some(refusal),
                None => return Progress::Used(0),
            }
        }
        let Some(log) = &mut self.log else { return Progress::Used(window.len()) };
        loop {
            match log.next(window, &mut used, at, end) {
                Next::Record(record) => {
                    let begin = record.at;
                    if !self.records.record(record, into) {
                        let place = into.place(PlaceUnit::Byte, begin);
                        into.fault(Fault::new(FaultKind::Unparsable, place, "the record is no message"));
                    }
                }
                Next::Passed(begin, bytes, passed) => tell(begin, bytes, passed, into),
                Next::More => return Progress::Used(used),
            }
        }
    }
}

/// The fault that a stretch without records is.
fn tell(begin: u64, bytes: u64, passed: Passed, into: &mut Builder<'_>) {
    let (kind, detail) = match passed {
        Passed::Damage => (FaultKind::BadChecksum, format!("no sound record in {bytes} bytes: passed over")),
        Passed::Unfinished => {
            (FaultKind::BadChecksum, format!("a record of which only {bytes} bytes are there: passed over"))
        }
        Passed::Limit => (FaultKind::Limit, format!("a record of {bytes} bytes was passed over")),
        Passed::Cut => (FaultKind::Truncated, "the file ends inside a record".to_owned()),
        Passed::Zeros => (FaultKind::Truncated, format!("the file ends in {bytes} bytes that were never written")),
    };
    let place = into.place(PlaceUnit::Byte, begin);
    into.fault(Fault::new(kind, place, detail));
}

/// Reads the parts of one run, in order, into one recording: of those of the source, the ones that `is_wanted`.
pub fn read_parts<R: Records>(
    source: &Source,
    session: &mut Session<'_>,
    builder: &mut Builder<'_>,
    header: &'static FileHeader,
    records: &mut R,
    begin: impl Fn(&mut R),
    is_wanted: &dyn Fn(usize) -> bool,
) -> Result<(), Rejected> {
    let (mut readable, mut refused) = (0, None);
    for (index, part) in source.parts.iter().enumerate().filter(|(index, _)| is_wanted(*index)) {
        builder.begin_part(index as u32);
        begin(records);
        let mut decoder = Transactions::new(header, records);
        let rejected = match session.stream(part, &mut decoder, builder) {
            Ok(()) => decoder.rejected(),
            Err(Rejected::Cancelled) => return Err(Rejected::Cancelled),
            Err(rejected) => Some(rejected),
        };
        let Some(rejected) = rejected else {
            readable += 1;
            continue;
        };
        if source.parts.len() > 1 {
            let kind = match &rejected {
                Rejected::Io(_) => FaultKind::Io,
                _ if rejected.code() == "cut-header" => FaultKind::Truncated,
                _ if rejected.code() == "version" => FaultKind::Version,
                _ => FaultKind::Unparsable,
            };
            let place = builder.place(PlaceUnit::Byte, 0);
            builder.fault(Fault::new(kind, place, rejected.to_string()));
        }
        refused.get_or_insert(rejected);
    }
    match refused {
        Some(rejected) if readable == 0 => Err(rejected),
        _ => Ok(()),
    }
}

/// Groups logs: those that lie in directories `run-<time>-<id>` or `offline-run-<time>-<id>` of one folder are one recording
/// for each id, in the order of their times; every other file is one by itself. `id_of` gives the run id that a file's name says.
pub fn group<'e>(
    format: Format,
    entries: &'e [Entry],
    own: &[usize],
    id_of: impl Fn(&'e Entry) -> Option<&'e str>,
) -> Vec<Source> {
    let mut sources: Vec<Source> = Vec::new();
    let mut runs: HashMap<(&str, &str), Vec<(&str, &Entry)>> = HashMap::new();
    for entry in own.iter().map(|index| &entries[*index]).filter(|entry| !is_copied_link(entry, entries)) {
        match id_of(entry).and_then(|id| run_directory(entry, id)) {
            Some(Home { folder, id, time }) => runs.entry((folder, id)).or_default().push((time, entry)),
            None => sources.push(single(format, entry)),
        }
    }
    for mut attempts in runs.into_values() {
        // Of one second, the directory without a number came first, and 2 before 10.
        attempts.sort_by_key(|(time, entry)| (*time, entry.parent().len(), entry.path.as_str()));
        // The first directory names the recording: it stays the same when the run is resumed once more.
        let home = attempts[0].1.parent().to_owned();
        let name = |entry: &Entry| match attempts.len() {
            1 => entry.name().to_owned(),
            _ => {
                let directory = entry.parent();
                format!("{}/{}", directory.rsplit('/').next().unwrap_or(directory), entry.name())
            }
        };
        let parts = attempts
            .iter()
            .map(|(_, entry)| Part { path: entry.path.clone(), name: name(entry), size: entry.size })
            .collect();
        sources.push(Source { format, path: home.clone(), directory: home, parts });
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Where a tracker puts the logs of one process of a run.
struct Home<'e> {
    folder: &'e str,
    id: &'e str,
    time: &'e str,
}

/// The run directory of a log, if it lies in one of its own id.
fn run_directory<'e>(entry: &'e Entry, id: &'e str) -> Option<Home<'e>> {
    let (folder, _) = entry.parent().rsplit_once('/').unwrap_or(("", entry.parent()));
    let (time, own) = split_directory(entry)?;
    // Two processes of one second: the second one's directory has a number behind its id.
    let number = own.strip_prefix(id)?.strip_prefix('-');
    let is_numbered = number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()));
    (own == id || is_numbered).then_some(Home { folder, id, time })
}

/// Whether a log is what copying made of the link `latest-run`: a second copy of one in a directory beside it.
fn is_copied_link(entry: &Entry, entries: &[Entry]) -> bool {
    let Some(folder) = entry.parent().strip_suffix("latest-run") else { return false };
    let is_original = |other: &Entry| {
        let own = other.path.strip_prefix(folder).is_some_and(|rest| rest.matches('/').count() == 1);
        own && other.path != entry.path && other.name() == entry.name() && other.size == entry.size
    };
    let first = entries.partition_point(|other| other.path.as_str() < folder);
    entries[first..].iter().take_while(|other| other.path.starts_with(folder)).any(is_original)
}

/// Time and id in the name of the directory of a log: `offline-run-20260102_030405-abc`.
pub fn split_directory(entry: &Entry) -> Option<(&str, &str)> {
    let parent = entry.parent();
    let name = parent.rsplit('/').next().unwrap_or(parent);
    let behind = name.strip_prefix("offline-").unwrap_or(name).strip_prefix("run-")?;
    let (time, id) = behind.split_at_checked("YYYYMMDD_HHMMSS".len())?;
    let is_time = time.bytes().enumerate().all(|(at, byte)| if at == 8 { byte == b'_' } else { byte.is_ascii_digit() });
    Some((time, id.strip_prefix('-')?)).filter(|_| is_time)
}
