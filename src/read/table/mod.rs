//! Tables that hold the rows of many runs, as Arrow batches: from Parquet and Arrow files, and from frames in memory.

pub mod batch;
pub mod cells;
pub mod file;
pub mod files;
pub mod layout;
mod long;
pub mod runs;
