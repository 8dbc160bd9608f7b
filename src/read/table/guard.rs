//! Where the crates that decode Parquet and Arrow are called.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::read::broken::Broken;

/// Runs code of a decoding crate. These crates assert what a writer must have kept (lengths of levels, order of
/// buffers), so that bytes that were changed on purpose can make them panic where an error was meant. Everything that
/// sizes memory was held against the file before; what is left is a panic, which is damage of the file here and, without
/// this, the loss of what other columns and units hold. What `call` touched is dropped by its owner after an error, never
/// used again. Our own code is not run under it: a panic there is a defect and has to be seen.
pub(super) fn guarded<T>(at: u64, call: impl FnOnce() -> T) -> Result<T, Broken> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        // Its words may quote the file at length.
        let said: String = said.unwrap_or("no reason").chars().take(200).collect();
        Broken::damage(at, format!("not decodable: {said}"))
    })
}

/// As [`guarded`], for a call that may fail.
pub(super) fn tried<T, E: std::fmt::Display>(at: u64, call: impl FnOnce() -> Result<T, E>) -> Result<T, Broken> {
    guarded(at, call)?.map_err(|error| {
        let said: String = error.to_string().chars().take(200).collect();
        Broken::damage(at, said)
    })
}
