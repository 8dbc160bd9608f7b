#![doc = include_str!("mlflow_sql.md")]

mod plan;
mod store;
#[cfg(test)]
mod tests;

use super::database::{MAGIC, head_says, is_database_name};
use super::trackio::Trackio;
use super::{About, Confidence, Reader, Rejected, Request, Session, Shards, Tracker, is_git_lfs_pointer, single};
use crate::model::source::DATABASE_COMPANIONS;
use crate::model::{Entry, Format, Limits, Recording, Source};
use store::Store;

/// The reader of MLflow's SQL store.
pub struct MlflowSql;

impl Reader for MlflowSql {
    fn format(&self) -> Format {
        Format::MlflowSql
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "mlflow.db and other SQLite databases with MLflow's tables: every active run is a recording",
            nonfinite: "NaN: is_nan = 1; Inf: the largest double (1.7976931348623157e308)",
            missing: "no row",
            not_read: "deleted runs and experiments; PostgreSQL, MySQL and SQL Server behind a server; logged models, \
                       traces, parameters",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[Tracker {
            name: "MLflow (SQL store)",
            version: "3.17",
            files: "mlflow.db",
            nonfinite: "is_nan = 1; the largest double for Inf",
            missing: "no row",
            not_read: "deleted runs; identical rows, which MLflow itself drops",
        }]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        let name = path.rsplit('/').next().unwrap_or(path);
        if base(name).is_some() {
            // A companion: a group drops it.
            return Confidence::Likely;
        }
        match name.to_ascii_lowercase().as_str() {
            "mlflow.db" => Confidence::Likely,
            _ if is_database_name(name) => Confidence::Maybe,
            _ => Confidence::No,
        }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        let by_name = self.recognise_name(path);
        let name = path.rsplit('/').next().unwrap_or(path);
        if base(name).is_some() {
            return by_name;
        }
        if !head.starts_with(MAGIC) {
            let is_lost = head.is_empty() || is_git_lfs_pointer(head);
            return if is_lost && by_name == Confidence::Likely { by_name } else { Confidence::No };
        }
        if head_says(head, &["latest_metrics"]) || head_says(head, &["lifecycle_stage", "experiment"]) {
            return Confidence::Certain;
        }
        // A schema of MLflow's size begins with a page of pointers, and lies anywhere in the file.
        const INTERIOR: u8 = 5;
        if head.get(HEADER) != Some(&INTERIOR) || by_name == Confidence::No {
            return Confidence::No;
        }
        if by_name == Confidence::Likely || head.len() >= WHOLE_HEAD { Confidence::Likely } else { Confidence::Maybe }
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        let is_there = |path: &str| entries.binary_search_by(|entry| entry.path.as_str().cmp(path)).is_ok();
        let companion = |entry: &Entry| base(&entry.path).is_some_and(is_there);
        let own = own.iter().map(|index| &entries[*index]).filter(|entry| !companion(entry));
        own.map(|entry| single(Format::MlflowSql, entry)).collect()
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        let (request, limits) = (session.request, session.limits);
        let store = match Store::open(source, request, limits, session) {
            // A schema that begins with a page of pointers does not say whose it is before it is opened.
            Err(rejected) if rejected.code() == "not-a-recording" => {
                return match Trackio.read(source, session) {
                    Err(other) if other.code() == "not-a-recording" => Err(rejected),
                    other => other,
                };
            }
            store => store?,
        };
        let mut recordings = Vec::new();
        for shard in 0..store.count() {
            if session.files.cancelled() {
                return Err(Rejected::Cancelled);
            }
            store.read(shard, session, &mut |recording| recordings.push(recording));
        }
        let faults = store.finish(&mut |recording| recordings.push(recording));
        if session.files.cancelled() {
            return Err(Rejected::Cancelled);
        }
        for recording in &mut recordings {
            recording.faults.extend(faults.iter().cloned());
        }
        Ok(recordings)
    }

    fn shards<'a>(
        &self,
        source: &'a Source,
        request: &'a Request,
        limits: &'a Limits,
        session: &mut Session<'_>,
    ) -> Option<Result<Box<dyn Shards + 'a>, Rejected>> {
        match Store::open(source, request, limits, session) {
            Err(rejected) if rejected.code() == "not-a-recording" => None,
            store => Some(store.map(|store| Box::new(store) as Box<dyn Shards + 'a>)),
        }
    }
}

/// Bytes of a database's header: the first page's own begins behind it.
const HEADER: usize = 100;

/// Bytes of a head that is all that will be shown.
const WHOLE_HEAD: usize = 64 << 10;

/// The name of the database that a companion belongs to.
fn base(name: &str) -> Option<&str> {
    DATABASE_COMPANIONS.iter().find_map(|suffix| name.strip_suffix(suffix)).filter(|base| is_database_name(base))
}
