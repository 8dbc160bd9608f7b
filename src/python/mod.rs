//! The Python extension module `gradscan._core`: arguments in, Arrow tables and numpy arrays out.

mod arrays;
mod audit;
mod door;
mod recording;
mod tables;

#[pyo3::pymodule(name = "_core", gil_used = true)]
mod core {
    #[pymodule_export]
    use super::arrays::{batch_stats, count_nonfinite};
    #[pymodule_export]
    use super::audit::{AuditTables, audit_frame, audit_paths};
    #[pymodule_export]
    use super::door::{frame_columns, read, scan, scan_frame, scan_series};
    #[pymodule_export]
    use super::recording::RecordingData;
    #[pymodule_export]
    use super::tables::{ScanTables, Table, format_rows, formats, role_of, roles, tracker_rows, trackers};
}
