//! A table on disk, read in units.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use crate::read::broken::Broken;

/// An open table: its schema, and its rows in units that can be read apart from each other and in any order.
pub trait TableFile: Send + Sync {
    /// The columns.
    fn schema(&self) -> &SchemaRef;

    /// Number of units: row groups of a Parquet file, record batches of an Arrow file.
    fn units(&self) -> usize;

    /// Rows of a unit, as the file says.
    fn rows(&self, unit: usize) -> u64;

    /// Nulls of a column in a unit, where the file says.
    fn nulls(&self, unit: usize, column: usize) -> Option<u64>;

    /// Gives the rows of a unit in order, in batches of at most `batch` rows that hold `columns` (indices into the
    /// schema, rising) and nothing else, until `give` says `false`. On damage what stands before it was given.
    fn read(
        &self,
        unit: usize,
        columns: &[usize],
        batch: usize,
        give: &mut dyn FnMut(RecordBatch) -> bool,
    ) -> Result<(), Broken>;
}
