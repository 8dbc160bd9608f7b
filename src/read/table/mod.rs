//! Tables that hold the rows of many runs, as Arrow batches: from Parquet and Arrow files, and from frames in memory.

pub mod batch;
pub mod cells;
pub mod file;
pub mod files;
mod guard;
pub mod ipc;
pub mod layout;
mod long;
mod pages;
pub mod parquet;
pub mod runs;
pub mod sources;
#[cfg(test)]
mod testing;
