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
    /// Whether it is NaN.
    fn nan(value: Self::Value) -> bool;
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
            fn nan(value: $value) -> bool {
                Self::magnitude(value) > Self::INFINITY as $signed
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

kind!(F64, f64, u64, i64, f64::to_bits, 0x7ff0_0000_0000_0000, |b: &[f64]| any_f64(b, identity));
kind!(F32, f32, u32, i32, f32::to_bits, 0x7f80_0000, |b: &[f32]| largest(b, F32::magnitude) >= F32::INFINITY as i32);
kind!(F16, u16, u16, i16, identity, 0x7c00, |b: &[u16]| largest(b, F16::magnitude) >= F16::INFINITY as i16);
kind!(Bf16, u16, u16, i16, identity, 0x7f80, |b: &[u16]| largest(b, Bf16::magnitude) >= Bf16::INFINITY as i16);

/// The same formats as they stand in bytes, at any alignment and in either byte order.
macro_rules! bytes_kind {
    ($name:ident, $width:expr, $unsigned:ty, $signed:ty, $bits:expr, $infinity:expr) => {
        kind!($name, [u8; $width], $unsigned, $signed, $bits, $infinity, |b: &[[u8; $width]]| {
            largest(b, $name::magnitude) >= $name::INFINITY as $signed
        });
    };
}

bytes_kind!(F32Little, 4, u32, i32, u32::from_le_bytes, 0x7f80_0000);
bytes_kind!(F32Big, 4, u32, i32, u32::from_be_bytes, 0x7f80_0000);
bytes_kind!(F16Little, 2, u16, i16, u16::from_le_bytes, 0x7c00);
bytes_kind!(F16Big, 2, u16, i16, u16::from_be_bytes, 0x7c00);
bytes_kind!(Bf16Little, 2, u16, i16, u16::from_le_bytes, 0x7f80);
bytes_kind!(Bf16Big, 2, u16, i16, u16::from_be_bytes, 0x7f80);
kind!(F64Little, [u8; 8], u64, i64, u64::from_le_bytes, 0x7ff0_0000_0000_0000, |b: &[[u8; 8]]| {
    any_f64(b, f64::from_le_bytes)
});
kind!(F64Big, [u8; 8], u64, i64, u64::from_be_bytes, 0x7ff0_0000_0000_0000, |b: &[[u8; 8]]| {
    any_f64(b, f64::from_be_bytes)
});

/// A float of eight bits: `$rank` makes of what is not finite the largest numbers, from `$bad` on; then the infinities.
macro_rules! byte_kind {
    ($name:ident, $rank:expr, $bad:expr, $pos:expr, $neg:expr) => {
        struct $name;

        impl $name {
            const INFINITIES: [Option<u8>; 2] = [$pos, $neg];

            #[inline(always)]
            fn rank([value]: [u8; 1]) -> u8 {
                $rank(value)
            }
        }

        impl Kind for $name {
            type Value = [u8; 1];

            #[inline(always)]
            fn bad(value: [u8; 1]) -> bool {
                Self::rank(value) >= $bad
            }

            #[inline(always)]
            fn nan(value: [u8; 1]) -> bool {
                Self::bad(value) && !Self::INFINITIES.contains(&Some(value[0]))
            }

            #[inline(always)]
            fn any(block: &[[u8; 1]]) -> bool {
                largest(block, Self::rank) >= $bad
            }

            #[inline(always)]
            fn tally(block: &[[u8; 1]]) -> [u64; 3] {
                let mut sums = [0; 3];
                // As many values as counters of eight bits can hold.
                for part in block.chunks(255) {
                    let (mut bad, mut pos, mut neg) = (0u8, 0u8, 0u8);
                    for &value in part {
                        bad += u8::from(Self::bad(value));
                        pos += u8::from(Self::INFINITIES[0] == Some(value[0]));
                        neg += u8::from(Self::INFINITIES[1] == Some(value[0]));
                    }
                    for (sum, part) in sums.iter_mut().zip([bad - pos - neg, pos, neg]) {
                        *sum += u64::from(part);
                    }
                }
                sums
            }
        }
    };
}

byte_kind!(E5M2, |v: u8| v & 0x7f, 0x7c, Some(0x7c), Some(0xfc));
byte_kind!(E4M3, |v: u8| v & 0x7f, 0x7f, None, None);
// The one NaN is what would be minus zero.
byte_kind!(Fnuz, |v: u8| v.wrapping_sub(0x81), 0xff, None, None);
byte_kind!(E8M0, |v: u8| v, 0xff, None, None);

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
fn any_f64<V: Copy>(block: &[V], float: impl Fn(V) -> f64) -> bool {
    let mut bits = [0u64; 16];
    let (chunks, rest) = block.as_chunks::<16>();
    for chunk in chunks {
        for (b, &x) in bits.iter_mut().zip(chunk) {
            *b |= residue(float(x));
        }
    }
    let rest = rest.iter().fold(0, |b, &x| b | residue(float(x)));
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

/// A float format of arrays and tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// IEEE double.
    F64,
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a single.
    Bf16,
    /// 5 bits of exponent, 2 of fraction, with the infinities and NaN of IEEE.
    F8E5M2,
    /// 4 bits of exponent, 3 of fraction; NaN is all ones but for the sign, there is no infinity (`fn`).
    F8E4M3,
    /// 4 bits of exponent, 3 of fraction; NaN stands where minus zero would, there is no infinity.
    F8E4M3Fnuz,
    /// 5 bits of exponent, 2 of fraction; likewise.
    F8E5M2Fnuz,
    /// A power of two, as scales are stored; NaN is all ones, there is no infinity.
    F8E8M0,
}

impl Float {
    /// Every format.
    pub const ALL: [Self; 9] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::F8E5M2,
        Self::F8E4M3,
        Self::F8E4M3Fnuz,
        Self::F8E5M2Fnuz,
        Self::F8E8M0,
    ];

    /// Bytes of a value.
    #[must_use]
    pub const fn width(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::F8E5M2 | Self::F8E4M3 | Self::F8E4M3Fnuz | Self::F8E5M2Fnuz | Self::F8E8M0 => 1,
        }
    }
}

/// Byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The least byte first.
    Little,
    /// The greatest byte first.
    Big,
}

/// What is done with values whose format is known at run time only.
trait Job {
    type Output;
    fn run<K: Kind>(self, values: &[K::Value]) -> Self::Output;
}

#[inline(always)]
fn with_kind<J: Job>(float: Float, order: Order, bytes: &[u8], job: J) -> J::Output {
    match (float, order) {
        (Float::F64, Order::Little) => job.run::<F64Little>(bytes.as_chunks().0),
        (Float::F64, Order::Big) => job.run::<F64Big>(bytes.as_chunks().0),
        (Float::F32, Order::Little) => job.run::<F32Little>(bytes.as_chunks().0),
        (Float::F32, Order::Big) => job.run::<F32Big>(bytes.as_chunks().0),
        (Float::F16, Order::Little) => job.run::<F16Little>(bytes.as_chunks().0),
        (Float::F16, Order::Big) => job.run::<F16Big>(bytes.as_chunks().0),
        (Float::Bf16, Order::Little) => job.run::<Bf16Little>(bytes.as_chunks().0),
        (Float::Bf16, Order::Big) => job.run::<Bf16Big>(bytes.as_chunks().0),
        (Float::F8E5M2, _) => job.run::<E5M2>(bytes.as_chunks().0),
        (Float::F8E4M3, _) => job.run::<E4M3>(bytes.as_chunks().0),
        (Float::F8E4M3Fnuz | Float::F8E5M2Fnuz, _) => job.run::<Fnuz>(bytes.as_chunks().0),
        (Float::F8E8M0, _) => job.run::<E8M0>(bytes.as_chunks().0),
    }
}

struct Counting;

impl Job for Counting {
    type Output = Tally;

    #[inline(always)]
    fn run<K: Kind>(self, values: &[K::Value]) -> Tally {
        count::<K>(values)
    }
}

struct Visiting<'a>(&'a mut dyn FnMut(usize, bool));

impl Job for Visiting<'_> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kind>(self, values: &[K::Value]) {
        for (k, block) in values.chunks(BLOCK).enumerate() {
            if !K::any(block) {
                continue;
            }
            for (i, &value) in block.iter().enumerate().filter(|(_, value)| K::bad(**value)) {
                (self.0)(k * BLOCK + i, K::nan(value));
            }
        }
    }
}

/// Counts over the values in `bytes`, which may begin at any address; [`Tally::first`] is the index of a value. Bytes of
/// an incomplete last value are not looked at.
#[must_use]
pub fn count_bytes(level: Level, float: Float, order: Order, bytes: &[u8]) -> Tally {
    level.run(
        #[inline(always)]
        || with_kind(float, order, bytes, Counting),
    )
}

/// Gives the index of each value in `bytes` that is not finite, and whether it is NaN, in order.
pub fn visit_bytes(level: Level, float: Float, order: Order, bytes: &[u8], give: &mut dyn FnMut(usize, bool)) {
    level.run(
        #[inline(always)]
        || with_kind(float, order, bytes, Visiting(give)),
    );
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

    /// Each format in each byte order.
    fn formats() -> impl Iterator<Item = (Float, Order)> {
        Float::ALL.into_iter().flat_map(|float| [(float, Order::Little), (float, Order::Big)])
    }

    fn same_as_twin(float: Float, order: Order, bytes: &[u8]) {
        let want = naive::count_bytes(float, order, bytes);
        each_level(|level| {
            assert_eq!(count_bytes(level, float, order, bytes), want, "{float:?} {order:?}");
            let mut seen = Tally::default();
            let mut nan = Vec::new();
            visit_bytes(level, float, order, bytes, &mut |index, is_nan| {
                seen.first = seen.first.or(Some(index));
                seen.nan += u64::from(is_nan);
                seen.pos_inf += u64::from(!is_nan);
                nan.push(index);
            });
            assert!(nan.is_sorted());
            assert_eq!((seen.first, seen.nan, seen.pos_inf), (want.first, want.nan, want.pos_inf + want.neg_inf));
        });
    }

    #[test]
    fn every_byte_and_every_pair_of_bytes_at_every_place() {
        let pairs: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        for (float, order) in formats() {
            for skip in 0..3 {
                same_as_twin(float, order, &pairs[skip..]);
            }
            for one in bytes.chunks(1) {
                same_as_twin(float, order, one);
            }
            // Counters of eight bits see more than 255 of a kind.
            same_as_twin(float, order, &[0x80; 5000]);
            same_as_twin(float, order, &[0x7f; 5001]);
            same_as_twin(float, order, &[0xff; 5001]);
            same_as_twin(float, order, &[0x7c; 5001]);
        }
    }

    proptest! {
        #[test]
        fn bytes_equal_their_twin(bytes in prop::collection::vec(any::<u8>(), 0..20_000), skip in 0usize..16, calm: bool) {
            let mut bytes = bytes;
            if calm {
                bytes.iter_mut().for_each(|byte| *byte &= 0x3f);
            }
            let bytes = &bytes[skip.min(bytes.len())..];
            for (float, order) in formats() {
                same_as_twin(float, order, bytes);
            }
        }

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
