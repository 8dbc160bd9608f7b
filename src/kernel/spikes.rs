//! Values strictly above a threshold: how many, the first one, all of them.
//!
//! Only finite values count: +Inf is not a spike. The threshold is an `f64`; for `f32` values it is rounded down once,
//! which decides every comparison as if the value had been widened.

use super::level::Level;
use super::real::Real;

/// Values in a block; a count of it fits every lane type used.
const BLOCK: usize = 1024;

#[inline(always)]
fn above<T: Real>(x: T, bound: T) -> bool {
    (x > bound) & (x <= T::MAX)
}

#[inline(always)]
fn count_block<T: Real>(block: &[T], bound: T) -> u64 {
    // The lane counter is as wide as the value, so that the comparison's mask is the addend.
    if size_of::<T>() == 4 {
        u64::from(block.iter().fold(0u32, |n, &x| n + u32::from(above(x, bound))))
    } else {
        block.iter().fold(0u64, |n, &x| n + u64::from(above(x, bound)))
    }
}

#[inline(always)]
fn first<T: Real>(values: &[T], bound: T) -> Option<usize> {
    let mut start = 0;
    for block in values.chunks(64) {
        // A test of a whole block vectorises, a search for a position does not.
        if block.iter().fold(false, |any, &x| any | above(x, bound)) {
            return block.iter().position(|&x| above(x, bound)).map(|i| start + i);
        }
        start += block.len();
    }
    None
}

/// How many values are above `bound`, and the index of the first, in one pass over memory.
#[inline(always)]
pub(super) fn count_and_first<T: Real>(values: &[T], bound: T) -> (u64, Option<usize>) {
    let (mut total, mut at) = (0, None);
    for (k, block) in values.chunks(BLOCK).enumerate() {
        let n = count_block(block, bound);
        if n > 0 && at.is_none() {
            at = first(block, bound).map(|i| k * BLOCK + i);
        }
        total += n;
    }
    (total, at)
}

#[inline(always)]
fn positions<T: Real>(values: &[T], bound: T, into: &mut Vec<usize>) {
    let mut start = 0;
    for block in values.chunks(64) {
        if block.iter().fold(false, |any, &x| any | above(x, bound)) {
            into.extend((start..).zip(block).filter(|&(_, &x)| above(x, bound)).map(|(i, _)| i));
        }
        start += block.len();
    }
}

macro_rules! public {
    ($t:ty, $count:ident, $first:ident, $positions:ident) => {
        #[doc = concat!("How many finite `", stringify!($t), "` values are strictly above `threshold`.")]
        #[must_use]
        pub fn $count(level: Level, values: &[$t], threshold: f64) -> u64 {
            let bound = <$t>::floor_of(threshold);
            level.run(
                #[inline(always)]
                || values.chunks(BLOCK).map(|block| count_block(block, bound)).sum(),
            )
        }

        #[doc = concat!("Index of the first finite `", stringify!($t), "` value strictly above `threshold`.")]
        #[must_use]
        pub fn $first(level: Level, values: &[$t], threshold: f64) -> Option<usize> {
            let bound = <$t>::floor_of(threshold);
            level.run(
                #[inline(always)]
                || first(values, bound),
            )
        }

        #[doc = concat!("Indices, ascending, of the finite `", stringify!($t), "` values strictly above `threshold`,")]
        #[doc = "appended to `into`."]
        pub fn $positions(level: Level, values: &[$t], threshold: f64, into: &mut Vec<usize>) {
            let bound = <$t>::floor_of(threshold);
            level.run(
                #[inline(always)]
                || positions(values, bound, into),
            );
        }
    };
}
public!(f64, count_above_f64, first_above_f64, positions_above_f64);
public!(f32, count_above_f32, first_above_f32, positions_above_f32);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::naive;
    use crate::kernel::testing::{any_f32s, any_f64s, each_level};
    use proptest::prelude::*;

    #[test]
    fn strict_and_finite_only() {
        let v = [1.0, 10.0, 10.000000000000002, f64::INFINITY, f64::NAN, 11.0];
        each_level(|level| {
            assert_eq!(count_above_f64(level, &v, 10.0), 2);
            assert_eq!(first_above_f64(level, &v, 10.0), Some(2));
            assert_eq!(first_above_f64(level, &v, 12.0), None);
            assert_eq!(count_above_f64(level, &v, f64::NAN), 0);
            assert_eq!(count_above_f64(level, &v, f64::NEG_INFINITY), 4);
            assert_eq!(count_above_f32(level, &[f32::MAX, f32::INFINITY], 1e300), 0);
            assert_eq!(count_above_f32(level, &[f32::MIN, f32::NEG_INFINITY], -1e300), 1);
        });
    }

    proptest! {
        #[test]
        fn equals_its_twin(
            wide in any_f64s(3000),
            narrow in any_f32s(3000),
            pick in any::<prop::sample::Index>(),
            nudge in -1i64..=1,
        ) {
            // A threshold next to one of the values is where strictness and width matter.
            let near = if narrow.is_empty() { 1.0 } else { f64::from(narrow[pick.index(narrow.len())]) };
            let nudged = f64::from_bits((near.to_bits() as i64).wrapping_add(nudge) as u64);
            for threshold in [nudged, near * 10.0, 0.0] {
                let want_wide = naive::positions_above(&wide, threshold);
                let want = naive::positions_above(&narrow, threshold);
                each_level(|level| {
                    let mut got = Vec::new();
                    positions_above_f64(level, &wide, threshold, &mut got);
                    assert_eq!(got, want_wide);
                    assert_eq!(count_above_f64(level, &wide, threshold), want_wide.len() as u64);
                    assert_eq!(first_above_f64(level, &wide, threshold), want_wide.first().copied());
                    assert_eq!(count_and_first(&wide, threshold), (want_wide.len() as u64, want_wide.first().copied()));
                    got.clear();
                    positions_above_f32(level, &narrow, threshold, &mut got);
                    assert_eq!(got, want);
                    assert_eq!(count_above_f32(level, &narrow, threshold), want.len() as u64);
                    assert_eq!(first_above_f32(level, &narrow, threshold), want.first().copied());
                });
            }
        }
    }
}
