//! Byte framings and tokens that several readers share.
//!
//! Everything here is a pure function or cursor over slices: it knows nothing of recordings, series or files, does no
//! input or output, and sizes no allocation by a number that it reads.

pub mod csv;
pub mod json;
pub mod leveldb;
pub mod lines;
pub mod numbers;
pub mod parquet_pages;
pub mod protobuf;
pub mod small_floats;
pub mod tar;
pub mod tfrecord;
pub mod thrift;
pub mod utf16;
pub mod zip;
