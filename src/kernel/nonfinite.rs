//! Counts of NaN, +Inf and -Inf, and the place of the first one.
//!
//! Each block is first asked whether it holds any (an exponent of all ones, reduced without branches); only a block
//! that does is counted. Clean data so run at the speed of memory, and data full of NaN are read twice, the second
//! time from the nearest cache.

use std::convert::identity;

use super::level::Level;

/// How many values are not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// NaN of any sign and payload.
    pub nan: u64,
    /// Plus infinity.
    pub pos_inf: u64,
    /// Minus infinity.
    pub neg_inf: u64,
    /// Index of the first value that is not finite.
    pub first: Option<usize>,
}

impl Tally {
    /// All values that are not finite.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.nan + self.pos_inf + self.neg_inf
    }
}

/// Values in a block. Their counts must fit the lane type of the narrowest kind (u16), and the block the L1 cache.
const BLOCK: usize = 2048;

/// One float format, seen as bit patterns.
trait Kind {
    type Value: Copy;
    /// Whether the value is not finite.
    fn bad(value: Self::Value) -> bool;
    /// Whether any value of the block is not finite.
    fn any(block: &[Self::Value]) -> bool;
    /// Counts of NaN, +Inf and -Inf in one block.
    fn tally(block: &[Self::Value]) -> [u64; 3];
}

macro_rules! kind {
    ($name:ident, $value:ty, $unsigned:ty, $signed:ty, $bits:expr, $infinity:expr, $any:expr) => {
        struct $name;

        impl $name {
            const INFINITY: $unsigned = $infinity;
            const MAGNITUDE: $unsigned = <$unsigned>::MAX >> 1;

            /// Bits without the sign: as signed integers they are never negative, and whatever is not finite is the
            /// largest.
            #[inline(always)]
            fn magnitude(value: $value) -> $signed {
                ($bits(value) & Self::MAGNITUDE) as $signed
            }
        }

        impl Kind for $name {
            type Value = $value;

            #[inline(always)]
            fn bad(value: $value) -> bool {
                Self::magnitude(value) >= Self::INFINITY as $signed
            }

            #[inline(always)]
            fn any(block: &[$value]) -> bool {
                $any(block)
            }

            #[inline(always)]
            fn tally(block: &[$value]) -> [u64; 3] {
                // Counters as wide as the values keep the loop in full vectors; a block cannot overflow them.
                let (mut nan, mut pos, mut neg): ($unsigned, $unsigned, $unsigned) = (0, 0, 0);
                for &v in block {
                    nan += <$unsigned>::from(Self::magnitude(v) > Self::INFINITY as $signed);
                    pos += <$unsigned>::from($bits(v) == Self::INFINITY);
                    neg += <$unsigned>::from($bits(v) == Self::INFINITY | !Self::MAGNITUDE);
                }
                [nan, pos, neg].map(|c| c as u64)
            }
        }
    };
}

kind!(F64, f64, u64, i64, f64::to_bits, 0x7ff0_0000_0000_0000, any_f64);
kind!(F32, f32, u32, i32, f32::to_bits, 0x7f80_0000, |b: &[f32]| largest(b, F32::magnitude) >= F32::INFINITY as i32);
kind!(F16, u16, u16, i16, identity, 0x7c00, |b: &[u16]| largest(b, F16::magnitude) >= F16::INFINITY as i16);
kind!(Bf16, u16, u16, i16, identity, 0x7f80, |b: &[u16]| largest(b, Bf16::magnitude) >= Bf16::INFINITY as i16);

/// The largest magnitude of a block, in 64 lanes: an accumulator alone would wait for itself.
#[inline(always)]
fn largest<V: Copy, M: Copy + Ord + Default>(block: &[V], magnitude: impl Fn(V) -> M) -> M {
    let mut most = [M::default(); 64];
    let (chunks, rest) = block.as_chunks::<64>();
    for chunk in chunks {
        for (m, &v) in most.iter_mut().zip(chunk) {
            *m = (*m).max(magnitude(v));
        }
    }
    let top = rest.iter().fold(M::default(), |m, &v| m.max(magnitude(v)));
    most.into_iter().fold(top, M::max)
}

/// The bits of `x - x`: 0 for finite values, those of a NaN for all others.
#[expect(clippy::eq_op)]
#[inline(always)]
fn residue(x: f64) -> u64 {
    (x - x).to_bits()
}

/// The block test of `f64` by arithmetic, because AVX2 has no maximum of 64-bit integers.
#[inline(always)]
fn any_f64(block: &[f64]) -> bool {
    let mut bits = [0u64; 16];
    let (chunks, rest) = block.as_chunks::<16>();
    for chunk in chunks {
        for (b, &x) in bits.iter_mut().zip(chunk) {
            *b |= residue(x);
        }
    }
    let rest = rest.iter().fold(0, |b, &x| b | residue(x));
    bits.into_iter().fold(rest, |a, b| a | b) != 0
}

/// Index of the first value that is not finite: a whole chunk is tested in vectors, a position is searched one by one.
#[inline(always)]
fn first<K: Kind>(block: &[K::Value]) -> Option<usize> {
    let (at, chunk) = block.chunks(64).enumerate().find(|(_, chunk)| K::any(chunk))?;
    chunk.iter().position(|&v| K::bad(v)).map(|i| at * 64 + i)
}

#[inline(always)]
fn count<K: Kind>(values: &[K::Value]) -> Tally {
    let mut out = Tally::default();
    for (k, block) in values.chunks(BLOCK).enumerate() {
        if !K::any(block) {
            continue;
        }
        if out.first.is_none() {
            out.first = first::<K>(block).map(|i| k * BLOCK + i);
        }
        let [nan, pos, neg] = K::tally(block);
        out.nan += nan;
        out.pos_inf += pos;
        out.neg_inf += neg;
    }
    out
}

/// Counts over `f64` values.
#[must_use]
pub fn count_f64(level: Level, values: &[f64]) -> Tally {
    level.run(
        #[inline(always)]
        || count::<F64>(values),
    )
}

/// Counts over `f32` values.
#[must_use]
pub fn count_f32(level: Level, values: &[f32]) -> Tally {
    level.run(
        #[inline(always)]
        || count::<F32>(values),
    )
}

/// Counts over IEEE half precision values, given as bits.
#[must_use]
pub fn count_f16(level: Level, bits: &[u16]) -> Tally {
    level.run(
        #[inline(always)]
        || count::<F16>(bits),
    )
}

/// Counts over bfloat16 values, given as bits.
#[must_use]
pub fn count_bf16(level: Level, bits: &[u16]) -> Tally {
    level.run(
        #[inline(always)]
        || count::<Bf16>(bits),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::naive;
    use crate::kernel::testing::{any_f32s, any_f64s, each_level};
    use proptest::prelude::*;

    #[test]
    fn every_bit_pattern_of_sixteen_bits() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        each_level(|level| {
            assert_eq!(count_f16(level, &all), naive::count_f16(&all));
            assert_eq!(count_bf16(level, &all), naive::count_bf16(&all));
            for one in all.chunks(1) {
                assert_eq!(count_f16(level, one), naive::count_f16(one));
                assert_eq!(count_bf16(level, one), naive::count_bf16(one));
            }
        });
    }

    #[test]
    fn full_blocks_do_not_overflow_the_lane_counters() {
        for n in [BLOCK - 1, BLOCK, 40 * BLOCK + 3] {
            each_level(|level| {
                let nan = Tally { nan: n as u64, first: Some(0), ..Tally::default() };
                assert_eq!(count_bf16(level, &vec![0x7fc0; n]), nan);
                assert_eq!(count_f16(level, &vec![0xfe00; n]), nan);
                assert_eq!(count_f32(level, &vec![f32::NAN; n]), nan);
                assert_eq!(count_f64(level, &vec![-f64::NAN; n]), nan);
                let inf = Tally { neg_inf: n as u64, first: Some(0), ..Tally::default() };
                assert_eq!(count_f32(level, &vec![f32::NEG_INFINITY; n]), inf);
            });
        }
    }

    #[test]
    fn one_bad_value_anywhere_is_found() {
        for n in [1, 5, 63, 64, 65, 257, 2 * BLOCK + 7] {
            for at in 0..n {
                let mut clean = vec![1.5f64; n];
                clean[at] = f64::INFINITY;
                let narrow: Vec<f32> = clean.iter().map(|&x| x as f32).collect();
                let want = Tally { pos_inf: 1, first: Some(at), ..Tally::default() };
                each_level(|level| {
                    assert_eq!(count_f64(level, &clean), want);
                    assert_eq!(count_f32(level, &narrow), want);
                });
            }
        }
    }

    proptest! {
        #[test]
        fn equals_its_twin(
            wide in any_f64s(3000),
            narrow in any_f32s(3000),
            bits in prop::collection::vec(any::<u16>(), 0..3000),
        ) {
            each_level(|level| {
                assert_eq!(count_f64(level, &wide), naive::count(&wide));
                assert_eq!(count_f32(level, &narrow), naive::count(&narrow));
                assert_eq!(count_f16(level, &bits), naive::count_f16(&bits));
                assert_eq!(count_bf16(level, &bits), naive::count_bf16(&bits));
            });
        }
    }
}
