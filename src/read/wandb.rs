#![doc = include_str!("wandb.md")]

mod history;
mod metrics;
mod run;
#[cfg(test)]
mod tests;

use self::history::History;
use self::metrics::Metrics;
use self::run::Run;
use super::transactions::{Records, group, read_parts};
use super::{About, Builder, Confidence, Reader, Rejected, Session, Tracker};
use crate::model::{Entry, Format, PlaceUnit, Recording, Source};
use crate::wire::leveldb::{FileHeader, Record};
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
