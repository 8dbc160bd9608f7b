//! Byte framings and tokens that several readers share.
//!
//! Everything here is a pure function or cursor over slices: it knows nothing of recordings, series or files, does no
//! input or output, and sizes no allocation by a number that it reads.

pub mod json;
pub mod lines;
pub mod numbers;
pub mod parquet_pages;
pub mod tar;
pub mod thrift;
pub mod utf16;
pub mod zip;
