//! Every bound that an untrusted recording meets, in one place. Passing one is a fault of that recording.

/// Bounds on what one recording may make us hold. The defaults are far above every real recording known to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one record: a line, a JSON object, an event. Longer ones are skipped. 64 MiB.
    pub record: usize,
    /// Bytes of a small companion file that is read whole (a manifest). 16 MiB.
    pub companion: u64,
    /// Distinct columns (metric names) of one recording. 65,536.
    pub columns: usize,
    /// Bytes of one metric name. 1,024.
    pub name: usize,
    /// Series that are kept or reduced in one recording, and as many totals (gradient norms, losses) beside. 8,192.
    pub series: usize,
    /// Runs of one table; rows of further ones are not read. 262,144.
    pub runs: usize,
    /// Attempts of one recording; beyond, its rows count as interleaved. 65,536.
    pub attempts: usize,
    /// Stretches of consecutive bad rows remembered for one reduced series. 65,536.
    pub bad_runs: usize,
    /// Distinct sets of filled columns told apart in one recording. 1,024.
    pub row_kinds: usize,
    /// Events (`nan_detected`) remembered. 65,536.
    pub events: usize,
    /// Checkpoints known of one recording. 65,536.
    pub checkpoints: usize,
    /// Faults listed for one recording; the rest are counted in a last one. 100.
    pub faults: usize,
    /// Uncompressed bytes of one column page of a Parquet file. 256 MiB.
    pub page: u64,
    /// Bytes of a Parquet footer. 64 MiB.
    pub footer: u64,
    /// Depth of directories walked. 64.
    pub depth: usize,
    /// Bytes of a file's head read to identify it. 64 KiB.
    pub head: usize,
    /// Bytes of the header of a safetensors file, as its own library has it. 100,000,000.
    pub tensor_header: u64,
    /// Bytes of the header of an array of numpy. 1 MiB.
    pub array_header: u64,
    /// Bytes in which rows of one array in Fortran order are told apart, a bit each. 256 MiB.
    pub row_marks: u64,
    /// Bytes that one compressed file or member of an archive may unpack to. 64 GiB.
    pub unpacked: u64,
    /// Bytes that one archive may unpack to, counted in a pass over it and over all its members. 1 TiB.
    pub archive: u64,
    /// Unpacked bytes for each packed byte, beyond the first 64 MiB: gzip of repetitive JSON reaches 200. 1,000.
    pub ratio: u64,
    /// Logarithm of the window that a zstd frame may ask for, as in the zstd command line: 128 MiB. 27.
    pub window_log: u32,
    /// Members of one archive; later ones are not looked at. 1,000,000.
    pub members: usize,
    /// Bytes of the name of a member, and of what a tar header may say beside it. 65,536.
    pub member_name: u64,
    /// Bytes of a compressed member that is read whole because its format seeks (Parquet). 256 MiB.
    pub whole: u64,
    /// Bytes of members kept while a compressed tar is read forward, for sources that want them later. 64 MiB.
    pub cache: u64,
    /// Times that a compressed tar is read again from its begin because a member was passed over. 16.
    pub rereads: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            record: 64 << 20,
            companion: 16 << 20,
            columns: 65_536,
            name: 1_024,
            series: 8_192,
            runs: 262_144,
            attempts: 65_536,
            bad_runs: 65_536,
            row_kinds: 1_024,
            events: 65_536,
            checkpoints: 65_536,
            faults: 100,
            page: 256 << 20,
            footer: 64 << 20,
            depth: 64,
            head: 64 << 10,
            tensor_header: 100_000_000,
            array_header: 1 << 20,
            row_marks: 256 << 20,
            unpacked: 64 << 30,
            archive: 1 << 40,
            ratio: 1_000,
            window_log: 27,
            members: 1_000_000,
            member_name: 65_536,
            whole: 256 << 20,
            cache: 64 << 20,
            rereads: 16,
        }
    }
}
