#![doc = include_str!("swanlab.md")]

#[cfg(feature = "sqlite")]
mod database;
mod log;

use super::transactions::{group, read_parts, split_directory};
use super::{About, Confidence, Reader, Rejected, Session, Tracker};
use crate::model::{Entry, Format, Recording, Source};

/// The name of a log of the 0.6 and 0.7 series.
const BACKUP: &str = "backup.swanlab";
/// A database of another generation, under the same suffix.
const DATABASE: &str = "runs.swanlab";

/// The reader of SwanLab's logs.
pub struct Swanlab;

impl Reader for Swanlab {
    fn format(&self) -> Format {
        Format::Swanlab
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "run-*.swanlab, backup.swanlab; the directories of one run id in one folder are one recording; \
                    run-*/logs/ with the names of its metrics in runs.swanlab",
            nonfinite: "IEEE NaN and Inf; before 0.8 \"NaN\", and \"INF\" for both signs of Inf",
            missing: "no record",
            not_read: "console text, media, configuration, system metrics",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[
            Tracker {
                name: "SwanLab",
                version: "0.10.3",
                files: "swanlog/run-*-<id>/run-<id>.swanlab",
                nonfinite: "IEEE NaN and Inf",
                missing: "no record",
                not_read: "console text, media, files/",
            },
            Tracker {
                name: "SwanLab before 0.8 (cloud, offline)",
                version: "0.6.8",
                files: "swanlog/run-*-<id>/backup.swanlab",
                nonfinite: "\"NaN\"; \"INF\" for both signs of Inf",
                missing: "no record",
                not_read: "console text, media, files/",
            },
            Tracker {
                name: "SwanLab before 0.8 (local)",
                version: "0.4.3, 0.6.8",
                files: "swanlog/runs.swanlab and run-*/logs/<folder>/<n>000.log",
                nonfinite: "\"NaN\"; \"INF\" for both signs of Inf",
                missing: "no line",
                not_read: "charts, media, console text, files/",
            },
        ]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        #[cfg(feature = "sqlite")]
        if database::is_board(path) {
            return Confidence::Certain;
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        let is_log = name.ends_with(".swanlab") && name != DATABASE;
        if is_log { Confidence::Certain } else { Confidence::No }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        if log::HEADER.version_of(head).is_some() { Confidence::Certain } else { self.recognise_name(path) }
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        #[cfg(feature = "sqlite")]
        let (board, own) = own.iter().partition::<Vec<usize>, _>(|index| database::is_board(&entries[**index].path));
        #[cfg(feature = "sqlite")]
        let own = own.as_slice();
        let logs = group(Format::Swanlab, entries, own, |entry| match entry.plain_name() {
            BACKUP => split_directory(entry).map(|(_, id)| id),
            name => name.strip_suffix(".swanlab")?.strip_prefix("run-"),
        });
        #[cfg(feature = "sqlite")]
        let logs = logs.into_iter().chain(database::group(entries, &board, own)).collect();
        logs
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        #[cfg(feature = "sqlite")]
        if source.parts.iter().any(|part| database::is_board(&part.path)) {
            return database::read(source, session);
        }
        let mut builder = session.builder_of_points(Format::Swanlab, false);
        let mut log = log::Log::default();
        read_parts(source, session, &mut builder, &log::HEADER, &mut log, log::Log::begin_part, &|_| true)?;
        log.describe(&mut builder);
        Ok(vec![builder.finish()])
    }
}
