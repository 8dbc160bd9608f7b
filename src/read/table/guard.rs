//! Where the crates that decode Parquet and Arrow are called.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use crate::read::broken::Broken;

thread_local! {
    /// A panic of this thread is damage of a file, and will be told as such.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Lets panics of guarded calls pass without a word on the terminal; all others go to the hook that was there.
fn silence() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = take_hook();
        set_hook(Box::new(move |panic| {
            if !GUARDED.try_with(Cell::get).unwrap_or(false) {
                loud(panic);
            }
        }));
    });
}

/// Runs code of a decoding crate. These crates assert what a writer must have kept (lengths of levels, order of
/// buffers), so that bytes that were changed on purpose can make them panic where an error was meant. Everything that
/// sizes memory was held against the file before; what is left is a panic, which is damage of the file here and, without
/// this, the loss of what other columns and units hold. What `call` touched is dropped by its owner after an error, never
/// used again. Our own code is not run under it: a panic there is a defect and has to be seen.
pub(super) fn guarded<T>(at: u64, call: impl FnOnce() -> T) -> Result<T, Broken> {
    silence();
    let before = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(before);
    result.map_err(|panic| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FaultKind;

    #[test]
    fn a_panic_is_damage_and_the_next_one_is_heard() {
        let broken = guarded(7, || assert!(std::hint::black_box(false), "levels")).unwrap_err();
        assert_eq!(
            (broken.kind, broken.at, broken.detail.as_str()),
            (FaultKind::Unparsable, 7, "not decodable: levels")
        );
        assert!(!GUARDED.get());
        let within = guarded(0, || (guarded(1, || panic!("inner")).is_err(), GUARDED.get()));
        assert_eq!(within, Ok((true, true)));
    }
}
