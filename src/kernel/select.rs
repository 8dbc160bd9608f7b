//! The median of the finite values, by selection.
//!
//! 1. A sample gives a *bracket*, two values that hold the median between them with high probability.
//! 2. One pass counts the values below the bracket and packs those inside it to the left of a buffer. The same pass
//!    gives the maximum and whether every value was finite.
//! 3. The buffer is narrowed the same way, with brackets interpolated from the rank, which is now known exactly, until
//!    a branch-free ranking of all pairs finishes it.
//!
//! Chance decides only the time. Counts are exact, so a bracket that missed is noticed, and the standard library's
//! selection, linear in the worst case, takes the side of it that holds the median.
#![allow(unsafe_code)]

use super::level::Level;
use super::naive::mean_of_two;
use super::nonfinite::{self, Tally};
use super::real::Real;
use super::vector::{self, Packed, Vector};

/// Buffers that a worker keeps between calls, so that a median allocates nothing.
#[derive(Debug, Default)]
pub struct Scratch {
    wide: Buffers<f64>,
    narrow: Buffers<f32>,
}

impl Scratch {
    /// Empty buffers. They grow with what is packed, at most to the length of the longest row.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

/// The buffers of one width.
#[derive(Debug, Default)]
pub(super) struct Buffers<T> {
    /// What the first pass packed.
    inside: Vec<T>,
    /// What narrowing packed; the two swap roles.
    spare: Vec<T>,
    /// A short series of several parts, made contiguous.
    joined: Vec<T>,
    /// A sample that had to be picked value by value.
    sample: Vec<T>,
}

/// What selection needs of a width beyond its arithmetic.
pub(super) trait Selectable: Real {
    /// The vector of the portable level.
    type Portable: Vector<T = Self>;
    /// The vector of x86-64-v3.
    #[cfg(target_arch = "x86_64")]
    type V3: Vector<T = Self>;

    fn buffers(scratch: &mut Scratch) -> &mut Buffers<Self>;
    fn tally(level: Level, values: &[Self]) -> Tally;
}

impl Selectable for f64 {
    type Portable = vector::Lanes<f64, 4>;
    #[cfg(target_arch = "x86_64")]
    type V3 = std::arch::x86_64::__m256d;

    fn buffers(scratch: &mut Scratch) -> &mut Buffers<Self> {
        &mut scratch.wide
    }
    fn tally(level: Level, values: &[Self]) -> Tally {
        nonfinite::count_f64(level, values)
    }
}

impl Selectable for f32 {
    type Portable = vector::Lanes<f32, 8>;
    #[cfg(target_arch = "x86_64")]
    type V3 = std::arch::x86_64::__m256;

    fn buffers(scratch: &mut Scratch) -> &mut Buffers<Self> {
        &mut scratch.narrow
    }
    fn tally(level: Level, values: &[Self]) -> Tally {
        nonfinite::count_f32(level, values)
    }
}

/// Most values that the all-pairs ranking takes: its work is quadratic, but without a branch.
const RANKED: usize = 32;

/// Rows up to so many vectors are ranked without a bracket.
const SHORT: usize = 8;

/// Values that a pass packs between two looks at the room in the buffer.
const BLOCK: usize = 16_384;

/// Series of several parts up to this length are copied together; longer ones are swept where they lie.
const JOINED: usize = 65_536;

/// Room for one more whole vector behind what is packed.
const PAD: usize = 8;

/// What a pass over a row found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<T> {
    pub tally: Tally,
    pub median: Option<f64>,
    /// The largest finite value.
    pub max: Option<T>,
}

/// Median, maximum and non-finite values of one row.
///
/// # Safety
/// The processor must have the instruction set of `V`, and `level` must be its level.
#[inline(always)]
pub(super) unsafe fn row<V: Vector>(level: Level, values: &[V::T], buffers: &mut Buffers<V::T>) -> Row<V::T>
where
    V::T: Selectable,
{
    // SAFETY: the caller's promise.
    unsafe {
        let bracket = bracket_of_row::<V>(values, &mut buffers.sample);
        select::<V>(level, &[values], None, bracket, buffers)
    }
}

/// Steps 2 and 3 over all parts of a series, without the values equal to `exclude` (which count for `max`).
///
/// # Safety
/// As for [`row`].
#[inline(always)]
unsafe fn select<V: Vector>(
    level: Level,
    parts: &[&[V::T]],
    exclude: Option<V::T>,
    (lo, hi): (V::T, V::T),
    buffers: &mut Buffers<V::T>,
) -> Row<V::T>
where
    V::T: Selectable,
{
    let n: usize = parts.iter().map(|p| p.len()).sum();
    // SAFETY (of every call): the caller's promise.
    let (mut seen, equal) = unsafe { sweep::<V>(parts, lo, hi, exclude, &mut buffers.inside) };
    let mut max = (n > 0).then_some(seen.max);
    let mut tally = Tally::default();
    if !seen.finite {
        let mut start = 0;
        for part in parts {
            let t = V::T::tally(level, part);
            tally.nan += t.nan;
            tally.pos_inf += t.pos_inf;
            tally.neg_inf += t.neg_inf;
            tally.first = tally.first.or(t.first.map(|i| start + i));
            start += part.len();
        }
        max = parts.iter().filter_map(|p| unsafe { V::max_finite(p) }).reduce(|a, b| if b > a { b } else { a });
    }
    let mut outside = tally.neg_inf as usize;
    let mut counted = n - tally.total() as usize;
    if let Some(e) = exclude {
        counted -= equal;
        if e < lo {
            outside += equal;
        } else if equal > 0 && e <= hi {
            seen.inside = retain_unequal(&mut buffers.inside[..seen.inside], e);
        }
    }
    if counted == 0 {
        return Row { tally, median: None, max };
    }
    seen.below -= outside;
    let (lower, upper) = ((counted - 1) / 2, counted / 2);
    let hit = lower >= seen.below && upper < seen.below + seen.inside;
    let (a, b) = if hit {
        unsafe { narrow::<V>(buffers, seen.inside, lower - seen.below, upper - lower, lo, hi) }
    } else {
        // One side of the bracket holds both middle values, or they lie on two sides.
        let (from, to) = if upper < seen.below {
            (V::T::MIN, lo)
        } else if lower >= seen.below + seen.inside {
            (hi, V::T::MAX)
        } else {
            (V::T::MIN, V::T::MAX)
        };
        (seen, _) = unsafe { sweep::<V>(parts, from, to, None, &mut buffers.inside) };
        if let Some(e) = exclude {
            seen.inside = retain_unequal(&mut buffers.inside[..seen.inside], e);
        }
        // Nothing above `to` matters, so that the rank counts from the end of the packed values or from their start.
        let skip = if from == V::T::MIN { 0 } else { counted - seen.inside };
        ranked_by_library(&mut buffers.inside[..seen.inside], lower - skip, upper - lower)
    };
    Row { tally, median: Some(mean_of_two(a.wide(), b.wide())), max }
}

/// One packing pass over all parts, and how many values equal `exclude`. The buffer grows with what is packed.
///
/// # Safety
/// As for [`row`].
#[inline(always)]
unsafe fn sweep<V: Vector>(
    parts: &[&[V::T]],
    lo: V::T,
    hi: V::T,
    exclude: Option<V::T>,
    into: &mut Vec<V::T>,
) -> (Packed<V::T>, usize) {
    let mut sum = Packed { below: 0, inside: 0, max: V::T::NEG_INFINITY, finite: true };
    let mut equal = 0;
    for block in parts.iter().flat_map(|part| part.chunks(BLOCK)) {
        if into.len() < sum.inside + block.len() + PAD {
            into.resize(sum.inside + block.len() + PAD, V::T::default());
        }
        // SAFETY: the caller's promise.
        let p = unsafe { V::pack(block, lo, hi, &mut into[sum.inside..], vector::distance(block)) };
        sum.below += p.below;
        sum.inside += p.inside;
        sum.max = if p.max > sum.max { p.max } else { sum.max };
        sum.finite &= p.finite;
        // While the block is in the cache.
        equal += exclude.map_or(0, |e| count_equal(block, e));
    }
    (sum, equal)
}

/// The values of rank `rank` and `rank + more` (0 or 1) among the first `n` of the inside buffer, all of them finite
/// and in `lo..=hi`.
///
/// # Safety
/// As for [`row`].
#[inline(always)]
unsafe fn narrow<V: Vector>(
    buffers: &mut Buffers<V::T>,
    mut n: usize,
    mut rank: usize,
    more: usize,
    mut lo: V::T,
    mut hi: V::T,
) -> (V::T, V::T) {
    let Buffers { inside, spare, .. } = buffers;
    while lo < hi {
        if n <= RANKED || n <= SHORT * V::LANES && lo == V::T::MIN {
            inside[n..n.next_multiple_of(V::LANES)].fill(V::T::INFINITY);
            // SAFETY: the caller's promise.
            return unsafe { V::rank(&inside[..n.next_multiple_of(V::LANES)], n, rank, more) };
        }
        let (mut from, mut to) = interpolate(lo, hi, n, rank);
        if from.is_nan() || to.is_nan() {
            return ranked_by_library(&mut inside[..n], rank, more);
        }
        if spare.len() < n + PAD {
            spare.resize(n + PAD, V::T::default());
        }
        let mut try_bracket = |from, to| {
            // SAFETY: the caller's promise.
            let p = unsafe { V::pack(&inside[..n], from, to, spare, 0) };
            (p, rank >= p.below && rank + more < p.below + p.inside)
        };
        let (mut p, mut hit) = try_bracket(from, to);
        if !hit {
            (from, to) = if rank + more < p.below { (lo, from) } else { (to, hi) };
            (p, hit) = try_bracket(from, to);
        }
        // Two values on two sides, many equal values, or a range too wide to interpolate in.
        if !hit || p.inside > n - n / 8 && from < to {
            return ranked_by_library(&mut inside[..n], rank, more);
        }
        std::mem::swap(inside, spare);
        (n, rank, lo, hi) = (p.inside, rank - p.below, from, to);
    }
    // A bracket of one value.
    (lo, lo)
}

/// Where the value of `rank` among `n` in `lo..=hi` should be, with the margin that chance and the unknown shape of the
/// distribution need. NaN where the bounds are too far apart for arithmetic.
#[inline(always)]
fn interpolate<T: Real>(lo: T, hi: T, n: usize, rank: usize) -> (T, T) {
    let n = n as f64;
    let middle = (rank as f64 + 1.0) / n;
    let margin = 1.4 / n.sqrt() + 0.04;
    let (from, to) = ((middle - margin).max(0.0), (middle + margin).min(1.0));
    if lo.wide() > 0.0 && hi.wide() > 8.0 * lo.wide() {
        // Far apart, positive values are spread by magnitude, and the key is close to a logarithm.
        let (start, span) = (lo.key(), (hi.key() - lo.key()) as f64);
        return (T::from_key(start + (span * from) as i64), T::from_key(start + (span * to) as i64));
    }
    // A parabola whose middle lies between those of even spread and of even spread by magnitude.
    let (lo, hi) = (lo.wide(), hi.wide());
    let bend = if lo > 0.0 { lo + hi - 2.0 * (lo * hi).sqrt() } else { 0.0 };
    let at = |t: f64| T::narrow(lo * (1.0 - t) + hi * t - bend * t * (1.0 - t));
    (at(from), at(to))
}

/// The standard library's selection: the fallback, linear in the worst case.
#[inline(never)]
fn ranked_by_library<T: Real>(values: &mut [T], rank: usize, more: usize) -> (T, T) {
    let (_, &mut a, above) = values.select_nth_unstable_by(rank, T::total);
    let b = above.iter().copied().reduce(|a, b| if b < a { b } else { a });
    (a, if more == 0 { a } else { b.unwrap_or(a) })
}

/// The bracket of one row: from vectors picked at equal distances, or value by value where these fail.
///
/// # Safety
/// As for [`row`].
#[inline(always)]
unsafe fn bracket_of_row<V: Vector>(values: &[V::T], sample: &mut Vec<V::T>) -> (V::T, V::T) {
    if values.len() <= SHORT * V::LANES {
        return (V::T::MIN, V::T::MAX);
    }
    // The mean over columns of the same order statistic of 16 has a standard error of 0.5 / sqrt(sample) in rank. The
    // brackets reach 2.5 to 4 of these: a miss costs more than a value packed in vain, but only when it happens.
    // SAFETY: the caller's promise, and the length was checked.
    let bracket = unsafe {
        match values.len() {
            0..2048 => vector::sampled::<V, 5, 5>(values, 1),
            2048..32_768 => vector::sampled::<V, 6, 6>(values, 4),
            _ => vector::sampled::<V, 6, 7>(values, 16),
        }
    };
    bracket.unwrap_or_else(|| bracket_of_parts(&[values], None, sample))
}

/// The bracket of any series: up to 4,096 values at equal distances, sorted, and the order statistics around the
/// middle.
#[inline(never)]
fn bracket_of_parts<T: Real>(parts: &[&[T]], exclude: Option<T>, sample: &mut Vec<T>) -> (T, T) {
    let total: usize = parts.iter().map(|p| p.len()).sum();
    let wanted = (total / 64).clamp(64, 4096);
    let step = (total / wanted).max(1);
    sample.clear();
    let mut skip = 0;
    for part in parts {
        sample.extend(part.iter().skip(skip).step_by(step).filter(|x| x.finite() && Some(**x) != exclude));
        // The first picked index of the next part, counted from its start.
        skip = if part.len() > skip { (step - (part.len() - skip) % step) % step } else { skip - part.len() };
    }
    let n = sample.len();
    if n < 16 {
        return (T::MIN, T::MAX);
    }
    sample.sort_unstable_by(T::total);
    let margin = (1.5 * (n as f64).sqrt()) as usize + 1;
    (sample[(n / 2).saturating_sub(margin)], sample[(n / 2 + margin).min(n - 1)])
}

/// How many values of one block equal `e`.
#[inline(always)]
fn count_equal<T: Real>(values: &[T], e: T) -> usize {
    // A counter of the values' width where that is 32 bits, so that it fills whole vectors; a block cannot overflow it.
    if size_of::<T>() == 4 {
        values.iter().fold(0u32, |n, &x| n + u32::from(x == e)) as usize
    } else {
        values.iter().fold(0u64, |n, &x| n + u64::from(x == e)) as usize
    }
}

/// Moves the values that differ from `e` to the front and says how many there are.
fn retain_unequal<T: Real>(values: &mut [T], e: T) -> usize {
    let mut kept = 0;
    for i in 0..values.len() {
        let x = values[i];
        values[kept] = x;
        kept += usize::from(x != e);
    }
    kept
}

/// [`row`] with the vectors of `level`.
pub(super) fn row_at<T: Selectable>(level: Level, values: &[T], scratch: &mut Scratch) -> Row<T> {
    let buffers = T::buffers(scratch);
    #[cfg(target_arch = "x86_64")]
    if level.is_v3() {
        return level.run(
            // SAFETY: the level says that the processor has x86-64-v3.
            #[inline(always)]
            || unsafe { row::<T::V3>(level, values, buffers) },
        );
    }
    // SAFETY: the portable vectors need nothing.
    unsafe { row::<T::Portable>(level, values, buffers) }
}

/// [`select`] with the vectors of `level`.
fn select_at<T: Selectable>(
    level: Level,
    parts: &[&[T]],
    exclude: Option<T>,
    bracket: (T, T),
    buffers: &mut Buffers<T>,
) -> Row<T> {
    #[cfg(target_arch = "x86_64")]
    if level.is_v3() {
        return level.run(
            // SAFETY: the level says that the processor has x86-64-v3.
            #[inline(always)]
            || unsafe { select::<T::V3>(level, parts, exclude, bracket, buffers) },
        );
    }
    // SAFETY: the portable vectors need nothing.
    unsafe { select::<T::Portable>(level, parts, exclude, bracket, buffers) }
}

fn median_parts<T: Selectable>(
    level: Level,
    parts: &[&[T]],
    exclude: Option<f64>,
    scratch: &mut Scratch,
) -> Option<f64> {
    // A value of this width equals `exclude` only if `exclude` has this width.
    let exclude = exclude.and_then(|e| Some(T::narrow(e)).filter(|t| t.finite() && t.wide() == e));
    if let ([one], None) = (parts, exclude) {
        return row_at(level, one, scratch).median;
    }
    if parts.iter().map(|p| p.len()).sum::<usize>() > JOINED {
        let buffers = T::buffers(scratch);
        let bracket = bracket_of_parts(parts, exclude, &mut buffers.sample);
        return select_at(level, parts, exclude, bracket, buffers).median;
    }
    let mut joined = std::mem::take(&mut T::buffers(scratch).joined);
    joined.clear();
    for part in parts {
        match exclude {
            Some(e) => joined.extend(part.iter().filter(|&&x| x != e)),
            None => joined.extend_from_slice(part),
        }
    }
    let median = row_at(level, &joined, scratch).median;
    T::buffers(scratch).joined = joined;
    median
}

macro_rules! public {
    ($t:ty, $median:ident, $parts:ident) => {
        #[doc = concat!("The median of the finite `", stringify!($t), "` values, `None` without one.")]
        ///
        /// NaN and infinities are ignored. For an even count it is the mean of the two middle values, computed in
        /// `f64` so that it cannot overflow. A zero is `+0.0`.
        #[must_use]
        pub fn $median(level: Level, values: &[$t], scratch: &mut Scratch) -> Option<f64> {
            row_at(level, values, scratch).median
        }

        #[doc = concat!("[`", stringify!($median), "`] of a series stored in several parts, without values equal to")]
        /// `exclude`.
        ///
        /// A long series is not copied as a whole: only what lies inside the bracket is packed, some percent of it.
        #[must_use]
        pub fn $parts(level: Level, parts: &[&[$t]], exclude: Option<f64>, scratch: &mut Scratch) -> Option<f64> {
            median_parts(level, parts, exclude, scratch)
        }
    };
}
public!(f64, median_f64, median_parts_f64);
public!(f32, median_f32, median_parts_f32);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::naive;
    use crate::kernel::testing::{any_f32s, any_f64s, each_level};
    use proptest::prelude::*;

    /// A reproducible stream of numbers in 0..1.
    fn uniform(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// Shapes that break sampling: order, repetition, few values, extremes.
    fn hard(n: usize) -> Vec<(&'static str, Vec<f64>)> {
        let mut u = uniform(n as u64);
        let mut random: Vec<f64> = (0..n).map(|_| u().powi(3)).collect();
        let mut all = vec![
            ("random", random.clone()),
            ("equal", vec![0.1; n]),
            ("equal denormals", vec![7e-324; n]),
            ("zeros of both signs", (0..n).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect()),
            ("two values", (0..n).map(|i| f64::from(i % 2 == 0)).collect()),
            ("two values, blocks", (0..n).map(|i| f64::from(i < n / 2)).collect()),
            ("two extremes", (0..n).map(|i| if i % 2 == 0 { f64::MAX } else { f64::MIN }).collect()),
            ("largest", vec![f64::MAX; n]),
            ("sawtooth 16", (0..n).map(|i| (i % 16) as f64).collect()),
            ("sawtooth 1000", (0..n).map(|i| (i % 1000) as f64 - 500.0).collect()),
            ("denormals", (0..n).map(|i| f64::from_bits((i * 7919 % n) as u64)).collect()),
            ("negative", (0..n).map(|i| -(((i * 7919) % n) as f64)).collect()),
            ("ten values", (0..n).map(|i| ((i * 7919) % 10) as f64).collect()),
            ("one in a million", (0..n).map(|i| if i == n / 3 { 1e300 } else { 1.0 }).collect()),
            ("nan first half", (0..n).map(|i| if i < n / 2 { f64::NAN } else { i as f64 }).collect()),
            ("mostly nan", (0..n).map(|i| if i % 97 == 5 { i as f64 } else { f64::NAN }).collect()),
            ("mostly -inf", (0..n).map(|i| if i % 7 == 5 { i as f64 } else { f64::NEG_INFINITY }).collect()),
            ("infinities", (0..n).map(|i| [f64::INFINITY, 1.0, f64::NEG_INFINITY, i as f64][i % 4]).collect()),
            ("no finite value", (0..n).map(|i| [f64::INFINITY, f64::NAN][i % 2]).collect()),
        ];
        random.sort_by(f64::total_cmp);
        all.push(("ascending", random.clone()));
        random.reverse();
        all.push(("descending", random));
        // Every sampled vector lies, every other value tells the truth.
        let step = (n.max(5) - 4) as f64 / 63.0;
        let mut trap: Vec<f64> = (0..n).map(|_| u()).collect();
        for k in 0..64 {
            let at = (k as f64 * step) as usize;
            let end = n.min(at + 5);
            trap[at.min(end)..end].fill(100.0);
        }
        all.push(("trap", trap));
        all
    }

    /// The median as the numpy definition gives it.
    fn assert_median(level: Level, values: &[f64], scratch: &mut Scratch, what: &str) {
        let want = naive::median(values).map(f64::to_bits);
        assert_eq!(median_f64(level, values, scratch).map(f64::to_bits), want, "{what}, {} values", values.len());
        let narrow: Vec<f32> = values.iter().map(|&x| x as f32).collect();
        let want = naive::median(&narrow).map(f64::to_bits);
        assert_eq!(median_f32(level, &narrow, scratch).map(f64::to_bits), want, "{what}, {} f32", values.len());
    }

    #[test]
    fn hard_shapes_of_many_lengths() {
        each_level(|level| {
            let mut scratch = Scratch::new();
            for n in [0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 500, 501, 2047, 2048, 10_000, 40_001] {
                for (what, values) in hard(n) {
                    assert_median(level, &values, &mut scratch, what);
                }
            }
        });
    }

    #[test]
    fn parts_of_a_long_series() {
        let n = 150_000;
        each_level(|level| {
            let mut scratch = Scratch::new();
            for (what, mut values) in hard(n) {
                for exclude in [None, Some(-1.0), Some(0.1), Some(f64::NAN)] {
                    for i in (0..n).step_by(11) {
                        values[i] = -1.0;
                    }
                    let (a, rest) = values.split_at(70_001);
                    let (b, c) = rest.split_at(33);
                    let parts = [a, &[][..], b, c];
                    let want = naive::median_parts(&parts, exclude);
                    assert_eq!(median_parts_f64(level, &parts, exclude, &mut scratch), want, "{what} {exclude:?}");
                    let narrow = parts.map(|p| p.iter().map(|&x| x as f32).collect::<Vec<_>>());
                    let narrow: Vec<&[f32]> = narrow.iter().map(|p| &p[..]).collect();
                    let want = naive::median_parts(&narrow, exclude);
                    assert_eq!(median_parts_f32(level, &narrow, exclude, &mut scratch), want, "{what} {exclude:?}");
                }
            }
        });
    }

    #[test]
    fn a_long_series_is_not_copied() {
        let mut u = uniform(1);
        let values: Vec<f64> = (0..1_000_000).map(|_| -u().ln()).collect();
        each_level(|level| {
            let mut scratch = Scratch::new();
            let parts: Vec<&[f64]> = values.chunks(300_000).collect();
            assert_eq!(median_parts_f64(level, &parts, Some(-1.0), &mut scratch), naive::median(&values));
            let b = &scratch.wide;
            let held = b.inside.len() + b.spare.len() + b.joined.len() + b.sample.len();
            assert!(held < values.len() / 3, "{held} values held");
        });
    }

    #[test]
    fn the_mean_of_two_does_not_overflow() {
        each_level(|level| {
            let mut s = Scratch::new();
            assert_eq!(median_f64(level, &[f64::MAX, f64::MAX], &mut s), Some(f64::MAX));
            assert_eq!(median_f64(level, &[1.7e308, 1.5e308], &mut s), Some(1.7e308 / 2.0 + 1.5e308 / 2.0));
            assert_eq!(median_f32(level, &[f32::MAX, 0.0], &mut s), Some(f64::from(f32::MAX) / 2.0));
            assert_eq!(median_f64(level, &[-0.0], &mut s).map(f64::to_bits), Some(0));
            assert_eq!(median_f64(level, &[f64::NAN], &mut s), None);
            assert_eq!(median_f64(level, &[], &mut s), None);
        });
    }

    #[test]
    fn time_stays_linear_on_hard_shapes() {
        // A bound far above the slowest fallback and far below anything quadratic.
        let n = 400_000;
        let mut scratch = Scratch::new();
        for (what, values) in hard(n) {
            let start = std::time::Instant::now();
            let _ = median_f64(Level::detect(), &values, &mut scratch);
            assert!(start.elapsed().as_secs_f64() < 4.0, "{what}");
        }
    }

    proptest! {
        #[test]
        fn equals_its_twin(wide in any_f64s(5000), narrow in any_f32s(5000)) {
            each_level(|level| {
                let mut scratch = Scratch::new();
                assert_median(level, &wide, &mut scratch, "wide");
                let want = naive::median(&narrow).map(f64::to_bits);
                assert_eq!(median_f32(level, &narrow, &mut scratch).map(f64::to_bits), want);
            });
        }

        #[test]
        fn parts_equal_their_twin(
            values in any_f64s(3000),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
            pick in prop::option::of(prop_oneof![Just(-1.0), Just(1.0), Just(0.0), Just(f64::NAN)]),
        ) {
            let mut at: Vec<usize> = cuts.iter().map(|c| c.index(values.len() + 1)).collect();
            at.sort_unstable();
            let mut parts = Vec::new();
            let mut rest = &values[..];
            let mut done = 0;
            for cut in at {
                let (a, b) = rest.split_at(cut - done);
                parts.push(a);
                (rest, done) = (b, cut);
            }
            parts.push(rest);
            each_level(|level| {
                let mut scratch = Scratch::new();
                let want = naive::median_parts(&parts, pick);
                assert_eq!(median_parts_f64(level, &parts, pick, &mut scratch), want);
                // The path of long series, too.
                let exclude = pick.filter(|x| x.is_finite());
                let buffers = &mut scratch.wide;
                let bracket = bracket_of_parts(&parts, exclude, &mut buffers.sample);
                assert_eq!(select_at(level, &parts, exclude, bracket, buffers).median, want);
            });
        }
    }
}
