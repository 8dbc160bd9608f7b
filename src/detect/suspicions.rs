//! Traces of a NaN that is not in the gradients or losses itself (SPEC 3).

use crate::model::{Recording, Suspicion};

/// The rule of cells that may have been NaN or missing.
pub const AMBIGUOUS_NAN: &str = "ambiguous-nan";

/// The suspicions of a recording.
pub fn suspicions(recording: &Recording) -> Vec<Suspicion> {
    let doubts = recording.doubts.iter().map(|doubt| Suspicion {
        rule: AMBIGUOUS_NAN,
        metric: doubt.metric.clone(),
        first_step: doubt.first_step,
        last_good_step: doubt.last_good_step,
    });
    doubts.collect()
}
