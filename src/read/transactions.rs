//! Transaction logs: what the readers of W&B and SwanLab share, from the file header to whole records.

use super::{Builder, Progress, Rejected, StreamDecoder, is_git_lfs_pointer};
use crate::model::{Fault, FaultKind, PlaceUnit};
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
        let want = self.header.version;
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
            Some(version) if version == self.header.version => Some(Ok(Log::new(limit))),
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
