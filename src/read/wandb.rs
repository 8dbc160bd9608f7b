#![doc = include_str!("wandb.md")]

mod history;
mod metrics;
mod run;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use self::history::History;
use self::metrics::Metrics;
use self::run::Run;
use super::transactions::{Records, Transactions};
use super::{About, Builder, Confidence, Reader, Rejected, Session, Tracker, single};
use crate::model::{Entry, Fault, FaultKind, Format, Part, PlaceUnit, Recording, Source};
use crate::wire::leveldb::{FileHeader, Record};
use crate::wire::protobuf::{Fields, Malformed, Value};

/// The header of a `.wandb` file: `:W&B`, 0xBEE1, version 0.
pub const HEADER: FileHeader = FileHeader { ident: *b":W&B", magic: [0xe1, 0xbe], version: 0 };

/// The reader of W&B's transaction logs.
pub struct Wandb;

impl Reader for Wandb {
    fn format(&self) -> Format {
        Format::Wandb
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "*.wandb; the directories of one run id in one wandb folder are one recording",
            nonfinite: "NaN, Infinity; null for numpy's float16 and float32 NaN before wandb 0.28.1: suspect",
            missing: "item absent, null",
            not_read: "summary, config, system metrics, console text, media, artifacts, alerts",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[Tracker {
            name: "Weights & Biases",
            version: "0.15.12, 0.29.0, 0.31.0",
            files: "wandb/*run-*-<id>/run-<id>.wandb",
            nonfinite: "NaN, Infinity, -Infinity; null for numpy's float16 and float32 NaN before 0.28.1: suspect",
            missing: "item absent, null",
            not_read: "wandb-summary.json, config.yaml, media, system metrics; files/output.log is a text log of its own",
        }]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        let name = path.rsplit('/').next().unwrap_or(path);
        if name.ends_with(".wandb") { Confidence::Certain } else { Confidence::No }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        if HEADER.version_of(head).is_some() { Confidence::Certain } else { self.recognise_name(path) }
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        group(Format::Wandb, ".wandb", entries, own)
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        let mut builder = session.builder(Format::Wandb, PlaceUnit::Byte);
        let mut log = Log::default();
        read_parts(source, session, &mut builder, &HEADER, &mut log, |log| log.run.begin_part())?;
        log.run.describe(&mut builder);
        let Log { history, .. } = log;
        let mut recording = builder.finish();
        recording.doubts = history.doubts();
        Ok(vec![recording])
    }
}

/// Reads the parts of one run, in order, into one recording.
pub(super) fn read_parts<R: Records>(
    source: &Source,
    session: &mut Session<'_>,
    builder: &mut Builder<'_>,
    header: &'static FileHeader,
    records: &mut R,
    begin: impl Fn(&mut R),
) -> Result<(), Rejected> {
    let (mut readable, mut refused) = (0, None);
    for (index, part) in source.parts.iter().enumerate() {
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

/// Groups logs: those that lie as `<phase>run-<time>-<id>/run-<id><suffix>` in one folder are one recording for each id,
/// in the order of their times; every other file is one by itself.
pub(super) fn group(format: Format, suffix: &str, entries: &[Entry], own: &[usize]) -> Vec<Source> {
    let mut sources: Vec<Source> = Vec::new();
    let mut runs: HashMap<(&str, &str), Vec<(&str, &Entry)>> = HashMap::new();
    for entry in own.iter().map(|index| &entries[*index]) {
        match run_directory(entry, suffix) {
            Some((folder, id, time)) => runs.entry((folder, id)).or_default().push((time, entry)),
            None => sources.push(single(format, entry)),
        }
    }
    for mut attempts in runs.into_values() {
        attempts.sort_by(|(a, first), (b, second)| a.cmp(b).then_with(|| first.path.cmp(&second.path)));
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

/// The folder, the run id and the time of a log in a run directory as its tracker makes it.
fn run_directory<'e>(entry: &'e Entry, suffix: &str) -> Option<(&'e str, &'e str, &'e str)> {
    let (folder, directory) = entry.parent().rsplit_once('/').unwrap_or(("", entry.parent()));
    let id = entry.plain_name().strip_suffix(suffix)?.strip_prefix("run-")?;
    let behind = directory.strip_prefix("offline-").unwrap_or(directory).strip_prefix("run-")?;
    let time = behind.strip_suffix(id)?.strip_suffix('-')?;
    let is_time = time.len() == "YYYYMMDD_HHMMSS".len()
        && time.bytes().enumerate().all(|(at, byte)| if at == 8 { byte == b'_' } else { byte.is_ascii_digit() });
    is_time.then_some((folder, id, time))
}

/// What is known of a run while its records stream by.
#[derive(Debug, Default)]
struct Log {
    run: Run,
    metrics: Metrics,
    history: History,
}

/// Numbers of the fields of a record that are read.
mod field {
    pub const HISTORY: u32 = 2;
    pub const METRIC: u32 = 12;
    pub const RUN: u32 = 17;
    pub const EXIT: u32 = 18;
}

impl Log {
    fn fields(&mut self, record: Record<'_>, into: &mut Builder<'_>) -> Result<(), Malformed> {
        for field in Fields::new(record.bytes) {
            match field? {
                (field::HISTORY, Value::Bytes(message)) => {
                    let is_old = self.run.writes_null_for_nan();
                    self.history.row(&record, message, is_old, &self.metrics, into)?;
                }
                (field::METRIC, Value::Bytes(message)) => {
                    if self.metrics.define(message, into.limits())? {
                        self.history.choose_step(&self.metrics, into);
                    }
                }
                (field::RUN, Value::Bytes(message)) => self.run.begin(message)?,
                (field::EXIT, Value::Bytes(message)) => self.run.exit(message)?,
                _ => {}
            }
        }
        Ok(())
    }
}

impl Records for Log {
    #[inline]
    fn record(&mut self, record: Record<'_>, into: &mut Builder<'_>) -> bool {
        self.fields(record, into).is_ok()
    }
}
