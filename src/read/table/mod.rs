//! Tables that hold the rows of many runs, as Arrow batches: from Parquet and Arrow files, and from frames in memory.

pub mod file;
mod guard;
pub mod ipc;
mod pages;
pub mod parquet;
pub mod sources;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use super::broken::Broken;
use super::{Ranges, Rejected, Session};
use crate::model::{Limits, Recording, Source};

/// Opens a table: [`parquet::open`] or [`ipc::open`].
pub type Opener = fn(Arc<dyn Ranges>, &Limits) -> Result<Box<dyn file::TableFile>, Broken>;

/// The recordings of a source of tables.
pub fn read_all(source: &Source, _session: &mut Session<'_>, _open: Opener) -> Result<Vec<Recording>, Rejected> {
    Err(Rejected::unreadable("unsupported", format!("{}: tables are not read", source.path)))
}
