#![doc = include_str!("wandb.md")]

mod history;
mod metrics;
mod run;
#[cfg(test)]
mod tests;

use std::io::Read;

use self::history::History;
use self::metrics::Metrics;
use self::run::Run;
use super::transactions::{Records, group, read_parts};
use super::{About, Builder, Confidence, Reader, Rejected, Session, Tracker};
use crate::model::{Entry, Fault, FaultKind, Format, Part, PlaceUnit, Recording, Source};
use crate::wire::leveldb::{self, FILE_HEADER, FileHeader, Next, Record};
use crate::wire::protobuf::{Fields, Malformed, Value};

/// The header of a `.wandb` file: `:W&B`, 0xBEE1, version 0.
pub const HEADER: FileHeader = FileHeader { ident: *b":W&B", magic: [0xe1, 0xbe], versions: &[0] };

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
        group(Format::Wandb, entries, own, |entry| entry.plain_name().strip_suffix(".wandb")?.strip_prefix("run-"))
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        // An id is that of a run within its project only, and a folder may hold logs of several.
        let mut projects: Vec<String> = match source.parts.len() {
            1 => vec![String::new()],
            _ => source.parts.iter().map(|part| project_of(part, session)).collect(),
        };
        // A log whose begin is damaged is taken for one of the first.
        if let Some(known) = projects.iter().find(|project| !project.is_empty()).cloned() {
            projects.iter_mut().filter(|project| project.is_empty()).for_each(|project| project.clone_from(&known));
        }
        let mut recordings = Vec::new();
        for (first, project) in projects.iter().enumerate() {
            if projects[..first].contains(project) {
                continue;
            }
            let is_own = |index: usize| projects[index] == *project;
            let recording = read_run(source, session, &is_own);
            match recording {
                Ok(mut recording) => {
                    recording.part = (first > 0).then_some(first as u32);
                    recordings.push(recording);
                }
                Err(rejected) if matches!(rejected, Rejected::Cancelled) || projects.iter().all(|p| p == project) => {
                    return Err(rejected);
                }
                Err(rejected) => {
                    let mut builder = session.builder(Format::Wandb, PlaceUnit::Byte);
                    builder.begin_part(first as u32);
                    let place = builder.place(PlaceUnit::Byte, 0);
                    builder.fault(Fault::new(FaultKind::Unparsable, place, rejected.to_string()));
                    let mut recording = builder.finish();
                    recording.part = (first > 0).then_some(first as u32);
                    recordings.push(recording);
                }
            }
        }
        Ok(recordings)
    }
}

/// Bytes of a log in which its `RunRecord` stands.
const BEGIN: u64 = 64 << 10;

/// The project that a log says it is of; nothing where its begin does not say so.
fn project_of(part: &Part, session: &Session<'_>) -> String {
    let mut begin = Vec::new();
    if session.files.open(part).and_then(|file| file.take(BEGIN).read_to_end(&mut begin)).is_err() {
        return String::new();
    }
    if HEADER.version_of(&begin).is_none() {
        return String::new();
    }
    let (mut log, mut used) = (leveldb::Log::new(session.limits.record), FILE_HEADER);
    let mut run = Run::default();
    loop {
        match log.next(&begin, &mut used, 0, false) {
            Next::Record(record) => {
                let fields = Fields::new(record.bytes).map_while(Result::ok);
                for field in fields {
                    if let (field::RUN, Value::Bytes(message)) = field {
                        return run.begin(message).map(|()| run.project()).unwrap_or_default();
                    }
                }
            }
            Next::Passed(..) => {}
            Next::More => return String::new(),
        }
    }
}

/// Reads the logs of one run.
fn read_run(source: &Source, session: &mut Session<'_>, is_own: &dyn Fn(usize) -> bool) -> Result<Recording, Rejected> {
    let mut builder = session.builder(Format::Wandb, PlaceUnit::Byte);
    let mut log = Log::default();
    read_parts(source, session, &mut builder, &HEADER, &mut log, |log| log.run.begin_part(), is_own)?;
    log.run.describe(&mut builder);
    let Log { history, .. } = log;
    let mut recording = builder.finish();
    recording.doubts = history.doubts();
    Ok(recording)
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
                    let says_step = self.metrics.define(message, into.limits())?;
                    if says_step {
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
