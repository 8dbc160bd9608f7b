//! Pure numerics over slices: the only module with SIMD, and the only one with `unsafe`.
//!
//! | module | answers |
//! |---|---|
//! | [`level`] | which instruction set may run here |
//! | [`nonfinite`] | how many NaN, +Inf and -Inf, and where the first one is |
//! | [`select`] | the median of the finite values, by selection instead of sorting |
//! | [`spikes`] | which values exceed a threshold |
//! | [`checksum`] | the CRC-32C of a record |
//! | [`batch`] | all of it for one row (one run), in as few passes over memory as possible |
//! | [`naive`] | the same answers from the obvious code: the definition, and the twin of every kernel's tests |
//!
//! Bodies are written once, generic over the float type, and compiled for each [`Level`](level::Level). Only
//! selection is written with intrinsics, because compilers do not vectorise packing values to the left.

pub mod batch;
pub mod checksum;
pub mod level;
pub mod naive;
pub mod nonfinite;
pub mod select;
pub mod spikes;

mod real;
#[cfg(test)]
mod testing;
mod vector;
