//! Tables that hold the rows of many runs, as Arrow batches: from Parquet and Arrow files, and from frames in memory.

pub mod file;
mod guard;
pub mod ipc;
mod pages;
pub mod parquet;
#[cfg(test)]
mod testing;
