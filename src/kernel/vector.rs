//! The vectors of selection, and what is done with them: packing, ranking, sampling. The bodies are written once;
//! [`Vector`] names the few operations that differ by instruction set.
#![allow(unsafe_code)]

use super::real::Real;

/// What one pass over values says about a bracket `lo..=hi`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Packed<T> {
    /// Values below `lo`, -Inf included.
    pub below: usize,
    /// Values inside, now at the start of the output, in order.
    pub inside: usize,
    /// The largest value that is not NaN; minus infinity for none.
    pub max: T,
    /// Whether every value is finite.
    pub finite: bool,
}

/// A vector of floats and its operations.
///
/// # Safety
/// Every method requires a processor with the instruction set of the implementing type. Methods that take a pointer
/// read or write [`LANES`](Self::LANES) values there, unaligned.
pub(super) trait Vector: Copy {
    type T: Real;
    /// A counter for each lane, of the lane's width.
    type Count: Copy;
    const LANES: usize;

    unsafe fn splat(x: Self::T) -> Self;
    unsafe fn load(from: *const Self::T) -> Self;
    unsafe fn store(self, to: *mut Self::T);
    /// Lane-wise; where `self` is NaN, `other`.
    unsafe fn min(self, other: Self) -> Self;
    /// Lane-wise; where `self` is NaN, `other`.
    unsafe fn max(self, other: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    /// Bitwise.
    unsafe fn or(self, other: Self) -> Self;
    /// Whether every lane is zero.
    unsafe fn is_zero(self) -> bool;
    /// `self` in the lanes that are finite, `other` in the rest.
    unsafe fn finite_or(self, other: Self) -> Self;
    unsafe fn no_count() -> Self::Count;
    /// Adds one to each lane of `count` where `self < other`.
    unsafe fn count_less(self, other: Self, count: Self::Count) -> Self::Count;
    unsafe fn total(count: Self::Count) -> usize;
    /// `self` in the lanes whose count is at most `most`, minus infinity in the others.
    unsafe fn if_counted(self, count: Self::Count, most: usize) -> Self;
    /// Counts `self < lo`, and gives the bit mask of `lo <= self <= hi`.
    unsafe fn bracket(self, lo: Self, hi: Self, below: Self::Count) -> (Self::Count, usize);
    /// Moves the lanes of `mask` to the front.
    unsafe fn compress(self, mask: usize) -> Self;

    /// Asks for the memory at an address, which may be any. Nothing by default.
    #[inline(always)]
    fn prefetch(_at: *const Self::T) {}

    /// [`pack`], compiled once for this vector.
    unsafe fn pack(values: &[Self::T], lo: Self::T, hi: Self::T, out: &mut [Self::T], ahead: usize) -> Packed<Self::T>;
    /// [`max_finite`], compiled once for this vector.
    unsafe fn max_finite(values: &[Self::T]) -> Option<Self::T>;
    /// [`rank`], compiled once for this vector.
    unsafe fn rank(padded: &[Self::T], n: usize, rank: usize, more: usize) -> (Self::T, Self::T);
}

/// How far ahead, in bytes, a pass over values from memory should ask for them. Hardware prefetchers stop at the end of
/// a page, and rows of a matrix follow each other: at a distance of one row the next one's sample is near as well.
#[inline(always)]
pub(super) fn distance<T>(block: &[T]) -> usize {
    size_of_val(block).clamp(8 << 10, 64 << 10)
}

/// Counts the values below `lo..=hi` and writes those inside it, in order, to the start of `out`. What lies behind
/// them in `out[..values.len()]` is overwritten with anything. The bounds are not NaN. `ahead` is the
/// distance in bytes at which memory is asked for, 0 for values in the cache.
///
/// # Panics
/// If `out` is shorter than `values`.
///
/// # Safety
/// The processor must have the instruction set of `V`.
#[inline(always)]
unsafe fn pack<V: Vector>(values: &[V::T], lo: V::T, hi: V::T, out: &mut [V::T], ahead: usize) -> Packed<V::T> {
    let n = values.len();
    assert!(out.len() >= n);
    debug_assert!(!lo.is_nan() && !hi.is_nan());
    let line = 64 / size_of::<V::T>();
    let (mut at, mut inside) = (0, 0);
    let (from, to) = (values.as_ptr(), out.as_mut_ptr());
    // SAFETY: the caller's promise for the instruction set. Loads: the loops keep `at + LANES <= n`. Stores: at most
    // `at` values were packed so far, so that they end at `inside + LANES <= at + LANES <= n <= out.len()`.
    unsafe {
        let (vlo, vhi) = (V::splat(lo), V::splat(hi));
        let mut below = V::no_count();
        let mut max = V::splat(V::T::NEG_INFINITY);
        let mut bad = V::splat(V::T::default());
        macro_rules! step {
            () => {
                let x = V::load(from.add(at));
                let mask;
                (below, mask) = x.bracket(vlo, vhi, below);
                max = x.max(max);
                // Zero for finite values, NaN for all others.
                bad = bad.or(x.sub(x));
                x.compress(mask).store(to.add(inside));
                inside += mask.count_ones() as usize;
                at += V::LANES;
            };
        }
        while at + line <= n {
            V::prefetch(from.wrapping_add(at).wrapping_byte_add(ahead));
            for _ in 0..line / V::LANES {
                step!();
            }
        }
        while at + V::LANES <= n {
            step!();
        }
        let mut below = V::total(below);
        let mut max = fold(max, V::T::NEG_INFINITY, |a, b| if b > a { b } else { a });
        let mut finite = bad.is_zero();
        for &x in &values[at..] {
            out[inside] = x;
            inside += usize::from((x >= lo) & (x <= hi));
            below += usize::from(x < lo);
            max = if x > max { x } else { max };
            finite &= x.finite();
        }
        Packed { below, inside, max, finite }
    }
}

/// Folds over the lanes.
///
/// # Safety
/// The processor must have the instruction set of `V`.
#[inline(always)]
unsafe fn fold<V: Vector, A>(v: V, start: A, f: impl Fn(A, V::T) -> A) -> A {
    let mut lanes = [V::T::default(); 8];
    const { assert!(V::LANES <= 8) };
    // SAFETY: the caller's promise, and the array holds a vector.
    unsafe { v.store(lanes.as_mut_ptr()) };
    lanes[..V::LANES].iter().fold(start, |a, &x| f(a, x))
}

/// The values of rank `rank` and `rank + more` among the first `n` of `padded`, without a branch: `x` has at least its
/// rank many values below it, so that the value of a rank is the largest with at most so many.
///
/// `padded` is finite up to `n`, plus infinity behind, and a whole number of vectors long.
///
/// # Safety
/// The processor must have the instruction set of `V`.
#[inline(always)]
unsafe fn rank<V: Vector>(padded: &[V::T], n: usize, rank: usize, more: usize) -> (V::T, V::T) {
    assert!(padded.len().is_multiple_of(V::LANES) && n <= padded.len());
    // SAFETY: the caller's promise for the instruction set; loads stay inside chunks of four or one whole vectors.
    unsafe {
        let mut low = V::splat(V::T::NEG_INFINITY);
        let mut high = low;
        // Four vectors at a time keep the counters in registers and each broadcast busy.
        let (quads, singles) = padded.split_at(padded.len() / (4 * V::LANES) * (4 * V::LANES));
        for quad in quads.chunks_exact(4 * V::LANES) {
            let p = quad.as_ptr();
            let x = [V::load(p), V::load(p.add(V::LANES)), V::load(p.add(2 * V::LANES)), V::load(p.add(3 * V::LANES))];
            let mut counts = [V::no_count(); 4];
            for &y in &padded[..n] {
                let y = V::splat(y);
                for k in 0..4 {
                    counts[k] = y.count_less(x[k], counts[k]);
                }
            }
            for k in 0..4 {
                low = x[k].if_counted(counts[k], rank).max(low);
                high = x[k].if_counted(counts[k], rank + more).max(high);
            }
        }
        for single in singles.chunks_exact(V::LANES) {
            let x = V::load(single.as_ptr());
            let mut count = V::no_count();
            for &y in &padded[..n] {
                count = V::splat(y).count_less(x, count);
            }
            low = x.if_counted(count, rank).max(low);
            high = x.if_counted(count, rank + more).max(high);
        }
        let largest = |v: V| fold(v, V::T::NEG_INFINITY, |a, b| if b > a { b } else { a });
        (largest(low), largest(high))
    }
}

/// The largest finite value.
///
/// # Safety
/// The processor must have the instruction set of `V`.
#[inline(always)]
unsafe fn max_finite<V: Vector>(values: &[V::T]) -> Option<V::T> {
    let (chunks, rest) = values.split_at(values.len() / (4 * V::LANES) * (4 * V::LANES));
    // SAFETY: the caller's promise for the instruction set; a chunk is four vectors long.
    let max = unsafe {
        let least = V::splat(V::T::NEG_INFINITY);
        let mut max = [least; 4];
        for chunk in chunks.chunks_exact(4 * V::LANES) {
            for (k, m) in max.iter_mut().enumerate() {
                *m = V::load(chunk.as_ptr().add(k * V::LANES)).finite_or(least).max(*m);
            }
        }
        let [a, b, c, d] = max;
        fold(a.max(b).max(c.max(d)), V::T::NEG_INFINITY, |a, b| if b > a { b } else { a })
    };
    let max = rest.iter().fold(max, |m, &x| if x > m && x <= V::T::MAX { x } else { m });
    (max > V::T::NEG_INFINITY).then_some(max)
}

/// Sorts 16 vectors lane by lane: the smallest known network, 60 exchanges.
///
/// # Safety
/// The processor must have the instruction set of `V`.
#[inline(always)]
unsafe fn sort_columns<V: Vector>(s: &mut [V; 16]) {
    macro_rules! exchange {
        ($($i:literal $j:literal),*) => {
            $(
                // SAFETY: the caller's promise.
                unsafe { (s[$i], s[$j]) = (s[$i].min(s[$j]), s[$i].max(s[$j])) };
            )*
        };
    }
    exchange!(0 13, 1 12, 2 15, 3 14, 4 8, 5 6, 7 11, 9 10);
    exchange!(0 5, 1 7, 2 9, 3 4, 6 13, 8 14, 10 15, 11 12);
    exchange!(0 1, 2 3, 4 5, 6 8, 7 9, 10 11, 12 13, 14 15);
    exchange!(0 2, 1 3, 4 10, 5 11, 6 7, 8 9, 12 14, 13 15);
    exchange!(1 2, 3 12, 4 6, 5 7, 8 10, 9 11, 13 14);
    exchange!(1 4, 2 6, 5 8, 7 10, 9 13, 11 14);
    exchange!(2 4, 3 6, 9 12, 11 13);
    exchange!(3 5, 6 8, 7 9, 10 12);
    exchange!(3 4, 5 6, 7 8, 9 10, 11 12);
    exchange!(6 7, 8 9);
}

/// A bracket around the median from `groups` samples of 16 vectors at equal distances: the mean over all columns of
/// the order statistics `A` and `B` of 16 (0-based), and of their mirrors. In a short row the vectors overlap. `None`
/// where the mean is not finite, because it overflows or because much of the sample is not.
///
/// # Panics
/// If `values` is shorter than a vector, or `groups` is not 1, 4 or 16.
///
/// # Safety
/// The processor must have the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn sampled<V: Vector, const A: usize, const B: usize>(
    values: &[V::T],
    groups: usize,
) -> Option<(V::T, V::T)> {
    assert!(values.len() >= V::LANES && matches!(groups, 1 | 4 | 16));
    let vectors = 16 * groups;
    // Fixed point, so that the last vector ends with the row.
    let step = ((values.len() - V::LANES) << 16) / (vectors - 1);
    let from = values.as_ptr();
    let offset = |k: usize| (k * step) >> 16;
    // SAFETY: the caller's promise for the instruction set; the offset of the last vector, `vectors - 1`, is at most
    // `values.len() - LANES`.
    unsafe {
        let zero = V::splat(V::T::default());
        let (mut lo, mut hi) = (zero, zero);
        // Distances from one column's statistics are summed, not the statistics: equal columns so give an exact mean.
        let (mut base_lo, mut base_hi) = (V::T::default(), V::T::default());
        for g in 0..groups {
            let mut s = [zero; 16];
            let mut bad = zero;
            for (i, v) in s.iter_mut().enumerate() {
                *v = V::load(from.add(offset(i * groups + g)));
                bad = bad.or(v.sub(*v));
            }
            if !bad.is_zero() {
                // Values that say nothing go to both ends in turn, which leaves the middle where it is.
                for (i, v) in s.iter_mut().enumerate() {
                    let end = if i % 2 == 0 { V::T::NEG_INFINITY } else { V::T::INFINITY };
                    *v = v.finite_or(V::splat(end));
                }
            }
            sort_columns(&mut s);
            if g == 0 {
                base_lo = fold(s[A], base_lo, |_, x| x);
                base_hi = fold(s[15 - A], base_hi, |_, x| x);
            }
            let (blo, bhi) = (V::splat(base_lo), V::splat(base_hi));
            lo = lo.add(s[A].sub(blo)).add(s[B].sub(blo));
            hi = hi.add(s[15 - A].sub(bhi)).add(s[15 - B].sub(bhi));
        }
        let mean = |sum: V, base: V::T| {
            let total = fold(sum, 0.0, |t, x| t + x.wide());
            V::T::narrow(base.wide() + total / (2 * groups * V::LANES) as f64)
        };
        let (lo, hi) = (mean(lo, base_lo), mean(hi, base_hi));
        (lo <= hi && lo.finite() && hi.finite()).then_some((lo, hi))
    }
}

/// The vector of the portable level: an array, which compilers keep in the target's registers where they can.
#[derive(Clone, Copy)]
pub(super) struct Lanes<T, const N: usize>([T; N]);

impl<T: Real, const N: usize> Lanes<T, N> {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(T, T) -> T) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl<T: Real, const N: usize> Vector for Lanes<T, N> {
    type T = T;
    type Count = [u32; N];
    const LANES: usize = N;

    #[inline(always)]
    unsafe fn splat(x: T) -> Self {
        Self([x; N])
    }
    #[inline(always)]
    unsafe fn load(from: *const T) -> Self {
        // SAFETY: the trait's contract.
        Self(unsafe { from.cast::<[T; N]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut T) {
        // SAFETY: the trait's contract.
        unsafe { to.cast::<[T; N]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        self.zip(other, T::bit_or)
    }
    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        self.0.iter().fold(true, |all, &x| all & (x == T::default()))
    }
    #[inline(always)]
    unsafe fn finite_or(self, other: Self) -> Self {
        self.zip(other, |a, b| if a.finite() { a } else { b })
    }
    #[inline(always)]
    unsafe fn no_count() -> [u32; N] {
        [0; N]
    }
    #[inline(always)]
    unsafe fn count_less(self, other: Self, count: [u32; N]) -> [u32; N] {
        std::array::from_fn(|i| count[i] + u32::from(self.0[i] < other.0[i]))
    }
    #[inline(always)]
    unsafe fn total(count: [u32; N]) -> usize {
        count.iter().map(|&c| c as usize).sum()
    }
    #[inline(always)]
    unsafe fn if_counted(self, count: [u32; N], most: usize) -> Self {
        Self(std::array::from_fn(|i| if count[i] as usize <= most { self.0[i] } else { T::NEG_INFINITY }))
    }
    #[inline(always)]
    unsafe fn bracket(self, lo: Self, hi: Self, below: [u32; N]) -> ([u32; N], usize) {
        let mut mask = 0;
        for i in 0..N {
            mask |= usize::from((self.0[i] >= lo.0[i]) & (self.0[i] <= hi.0[i])) << i;
        }
        // SAFETY: arrays need no instruction set.
        (unsafe { self.count_less(lo, below) }, mask)
    }
    #[inline(always)]
    unsafe fn compress(self, mask: usize) -> Self {
        let mut out = self;
        let mut to = 0;
        for i in 0..N {
            out.0[to] = self.0[i];
            to += mask >> i & 1;
        }
        out
    }
    unsafe fn pack(values: &[T], lo: T, hi: T, out: &mut [T], ahead: usize) -> Packed<T> {
        // SAFETY: arrays need no instruction set.
        unsafe { pack::<Self>(values, lo, hi, out, ahead) }
    }
    unsafe fn max_finite(values: &[T]) -> Option<T> {
        // SAFETY: arrays need no instruction set.
        unsafe { max_finite::<Self>(values) }
    }
    unsafe fn rank(padded: &[T], n: usize, at: usize, more: usize) -> (T, T) {
        // SAFETY: arrays need no instruction set.
        unsafe { rank::<Self>(padded, n, at, more) }
    }
}

#[cfg(target_arch = "x86_64")]
mod v3 {
    use super::{Packed, Vector, max_finite, pack, rank};
    use std::arch::x86_64::*;

    /// Row `m` moves the 64-bit lanes of mask `m` to the front, as the dword indices that `vpermps` takes.
    static LEFT_64: [[u32; 8]; 16] = {
        let mut table = [[0; 8]; 16];
        let mut mask = 0;
        while mask < 16 {
            let (mut lane, mut to) = (0, 0);
            while lane < 4 {
                if mask >> lane & 1 == 1 {
                    table[mask][to] = 2 * lane;
                    table[mask][to + 1] = 2 * lane + 1;
                    to += 2;
                }
                lane += 1;
            }
            mask += 1;
        }
        table
    };

    /// Row `m` moves the 32-bit lanes of mask `m` to the front. Bytes, widened at each use, because 2 KiB leave the L1
    /// cache to the data and 8 KiB do not.
    static LEFT_32: [[u8; 8]; 256] = {
        let mut table = [[0; 8]; 256];
        let mut mask = 0;
        while mask < 256 {
            let (mut lane, mut to) = (0, 0);
            while lane < 8 {
                if mask >> lane & 1 == 1 {
                    table[mask][to] = lane;
                    to += 1;
                }
                lane += 1;
            }
            mask += 1;
        }
        table
    };

    macro_rules! vector {
        ($v:ty, $t:ty, $int:ty, $lanes:literal, $compress:expr,
         $splat:ident $load:ident $store:ident $min:ident $max:ident $add:ident $sub:ident $or:ident $andnot:ident
         $cmp:ident $mask:ident $int_mask:ident $int_splat:ident $int_sub:ident $int_greater:ident $blend:ident
         $from_int:ident) => {
            // SAFETY (of every block): the trait's contract, AVX2 is there and pointers have room for a vector.
            impl Vector for $v {
                type T = $t;
                type Count = __m256i;
                const LANES: usize = $lanes;

                #[inline(always)]
                unsafe fn splat(x: $t) -> Self {
                    unsafe { $splat(x) }
                }
                #[inline(always)]
                unsafe fn load(from: *const $t) -> Self {
                    unsafe { $load(from) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut $t) {
                    unsafe { $store(to, self) }
                }
                #[inline(always)]
                unsafe fn min(self, other: Self) -> Self {
                    unsafe { $min(self, other) }
                }
                #[inline(always)]
                unsafe fn max(self, other: Self) -> Self {
                    unsafe { $max(self, other) }
                }
                #[inline(always)]
                unsafe fn add(self, other: Self) -> Self {
                    unsafe { $add(self, other) }
                }
                #[inline(always)]
                unsafe fn sub(self, other: Self) -> Self {
                    unsafe { $sub(self, other) }
                }
                #[inline(always)]
                unsafe fn or(self, other: Self) -> Self {
                    unsafe { $or(self, other) }
                }
                #[inline(always)]
                unsafe fn is_zero(self) -> bool {
                    unsafe { $mask($cmp::<_CMP_NEQ_UQ>(self, $splat(0.0))) == 0 }
                }
                #[inline(always)]
                unsafe fn finite_or(self, other: Self) -> Self {
                    unsafe { $blend(self, other, $cmp::<_CMP_UNORD_Q>($sub(self, self), self)) }
                }
                #[inline(always)]
                unsafe fn no_count() -> __m256i {
                    unsafe { _mm256_setzero_si256() }
                }
                #[inline(always)]
                unsafe fn count_less(self, other: Self, count: __m256i) -> __m256i {
                    // A true lane is -1.
                    unsafe { $int_sub(count, $int_mask($cmp::<_CMP_LT_OQ>(self, other))) }
                }
                #[inline(always)]
                unsafe fn total(count: __m256i) -> usize {
                    let mut lanes = [0 as $int; $lanes];
                    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), count) };
                    lanes.iter().map(|&c| c as usize).sum()
                }
                #[inline(always)]
                unsafe fn if_counted(self, count: __m256i, most: usize) -> Self {
                    unsafe {
                        let over = $int_greater(count, $int_splat(most as $int));
                        $blend(self, $splat(<$t>::NEG_INFINITY), $from_int(over))
                    }
                }
                #[inline(always)]
                unsafe fn bracket(self, lo: Self, hi: Self, below: __m256i) -> (__m256i, usize) {
                    unsafe {
                        let less = $cmp::<_CMP_LT_OQ>(self, lo);
                        let not_more = $cmp::<_CMP_LE_OQ>(self, hi);
                        ($int_sub(below, $int_mask(less)), $mask($andnot(less, not_more)) as usize)
                    }
                }
                #[inline(always)]
                unsafe fn compress(self, mask: usize) -> Self {
                    unsafe { $compress(self, mask) }
                }
                #[inline(always)]
                fn prefetch(at: *const $t) {
                    // SAFETY: a hint; it does not touch the memory.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
                }
                unsafe fn pack(values: &[$t], lo: $t, hi: $t, out: &mut [$t], ahead: usize) -> Packed<$t> {
                    unsafe { pack_v3::<Self>(values, lo, hi, out, ahead) }
                }
                unsafe fn max_finite(values: &[$t]) -> Option<$t> {
                    unsafe { max_finite_v3::<Self>(values) }
                }
                unsafe fn rank(padded: &[$t], n: usize, at: usize, more: usize) -> ($t, $t) {
                    unsafe { rank_v3::<Self>(padded, n, at, more) }
                }
            }
        };
    }
    vector!(
        __m256d, f64, i64, 4, compress_64,
        _mm256_set1_pd _mm256_loadu_pd _mm256_storeu_pd _mm256_min_pd _mm256_max_pd _mm256_add_pd _mm256_sub_pd
        _mm256_or_pd _mm256_andnot_pd _mm256_cmp_pd _mm256_movemask_pd _mm256_castpd_si256 _mm256_set1_epi64x
        _mm256_sub_epi64 _mm256_cmpgt_epi64 _mm256_blendv_pd _mm256_castsi256_pd
    );
    vector!(
        __m256, f32, i32, 8, compress_32,
        _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_min_ps _mm256_max_ps _mm256_add_ps _mm256_sub_ps
        _mm256_or_ps _mm256_andnot_ps _mm256_cmp_ps _mm256_movemask_ps _mm256_castps_si256 _mm256_set1_epi32
        _mm256_sub_epi32 _mm256_cmpgt_epi32 _mm256_blendv_ps _mm256_castsi256_ps
    );

    /// # Safety
    /// AVX2, and `mask < 16`.
    #[inline(always)]
    unsafe fn compress_64(x: __m256d, mask: usize) -> __m256d {
        // SAFETY: the mask is that of four lanes, the table has 16 rows.
        unsafe {
            let order = _mm256_loadu_si256(LEFT_64.as_ptr().add(mask).cast());
            _mm256_castps_pd(_mm256_permutevar8x32_ps(_mm256_castpd_ps(x), order))
        }
    }

    /// # Safety
    /// AVX2, and `mask < 256`.
    #[inline(always)]
    unsafe fn compress_32(x: __m256, mask: usize) -> __m256 {
        // SAFETY: the mask is that of eight lanes, the table has 256 rows.
        unsafe {
            let order = _mm256_cvtepu8_epi32(_mm_loadl_epi64(LEFT_32.as_ptr().add(mask).cast()));
            _mm256_permutevar8x32_ps(x, order)
        }
    }

    /// # Safety
    /// A processor of x86-64-v3.
    #[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,popcnt")]
    unsafe fn pack_v3<V: Vector>(values: &[V::T], lo: V::T, hi: V::T, out: &mut [V::T], ahead: usize) -> Packed<V::T> {
        // SAFETY: the caller's promise.
        unsafe { pack::<V>(values, lo, hi, out, ahead) }
    }

    /// # Safety
    /// A processor of x86-64-v3.
    #[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,popcnt")]
    unsafe fn max_finite_v3<V: Vector>(values: &[V::T]) -> Option<V::T> {
        // SAFETY: the caller's promise.
        unsafe { max_finite::<V>(values) }
    }

    /// # Safety
    /// A processor of x86-64-v3.
    #[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,popcnt")]
    unsafe fn rank_v3<V: Vector>(padded: &[V::T], n: usize, at: usize, more: usize) -> (V::T, V::T) {
        // SAFETY: the caller's promise.
        unsafe { rank::<V>(padded, n, at, more) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::level::Level;
    use crate::kernel::testing::{any_f32s, any_f64s, each_level};
    use proptest::prelude::*;

    /// The definition of a packing pass.
    fn pack_naive<T: Real>(values: &[T], lo: T, hi: T) -> (Packed<T>, Vec<T>) {
        let inside: Vec<T> = values.iter().copied().filter(|&x| x >= lo && x <= hi).collect();
        let max = values.iter().copied().fold(T::NEG_INFINITY, |a, b| if b > a { b } else { a });
        let below = values.iter().filter(|&&x| x < lo).count();
        let finite = values.iter().all(|x| x.finite());
        (Packed { below, inside: inside.len(), max, finite }, inside)
    }

    fn pack_at<P: Vector, W: Vector<T = P::T>>(
        level: Level,
        values: &[P::T],
        lo: P::T,
        hi: P::T,
    ) -> (Packed<P::T>, Vec<P::T>) {
        let mut out = vec![P::T::default(); values.len()];
        // SAFETY: `W` is used at its level only.
        let p = unsafe {
            if level == Level::portable() {
                P::pack(values, lo, hi, &mut out, 0)
            } else {
                W::pack(values, lo, hi, &mut out, distance(values))
            }
        };
        out.truncate(p.inside);
        (p, out)
    }

    fn bits<T: Real>(values: &[T]) -> Vec<u64> {
        values.iter().map(|x| x.wide().to_bits()).collect()
    }

    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::{__m256 as Wide32, __m256d as Wide64};
    #[cfg(not(target_arch = "x86_64"))]
    type Wide64 = Lanes<f64, 4>;
    #[cfg(not(target_arch = "x86_64"))]
    type Wide32 = Lanes<f32, 8>;

    #[test]
    fn network_sorts() {
        // The 0-1 principle: a network that sorts all vectors of zeros and ones sorts everything.
        for pattern in 0u32..1 << 16 {
            let mut s: [Lanes<f64, 4>; 16] = std::array::from_fn(|i| Lanes([f64::from(pattern >> i & 1); 4]));
            // SAFETY: arrays need no instruction set.
            unsafe { sort_columns(&mut s) };
            assert!(s.is_sorted_by(|a, b| a.0[0] <= b.0[0]), "{pattern:016b}");
        }
    }

    #[test]
    fn sample_of_equal_values_is_exact() {
        for x in [1.0, 0.1, 5e-324, f64::MAX, -3.7, 1e-310] {
            for groups in [1, 4, 16] {
                // SAFETY: arrays need no instruction set.
                let bracket = unsafe { sampled::<Lanes<f64, 4>, 5, 6>(&[x; 1000], groups) };
                assert_eq!(bracket, Some((x, x)));
            }
        }
    }

    proptest! {
        #[test]
        fn pack_equals_its_twin(
            wide in any_f64s(700),
            narrow in any_f32s(700),
            a in 0.0..1.0f64,
            b in 0.0..1.0f64,
        ) {
            let pick = |v: &[f64], t: f64| {
                v.get((t * v.len() as f64) as usize).copied().filter(|x| !x.is_nan()).unwrap_or(1.0)
            };
            let (lo, hi) = (pick(&wide, a), pick(&wide, b));
            let (want, inside) = pack_naive(&wide, lo, hi);
            let (want32, inside32) = pack_naive(&narrow, lo as f32, hi as f32);
            each_level(|level| {
                let (got, packed) = pack_at::<Lanes<f64, 4>, Wide64>(level, &wide, lo, hi);
                assert_eq!((got, bits(&packed)), (want, bits(&inside)));
                let (got, packed) = pack_at::<Lanes<f32, 8>, Wide32>(level, &narrow, lo as f32, hi as f32);
                assert_eq!((got, bits(&packed)), (want32, bits(&inside32)));
            });
        }

        #[test]
        fn max_finite_equals_its_twin(wide in any_f64s(300), narrow in any_f32s(300)) {
            fn twin<T: Real>(values: &[T]) -> Option<f64> {
                values.iter().filter(|x| x.finite()).map(|x| x.wide()).reduce(f64::max)
            }
            each_level(|level| {
                // SAFETY: the wide vectors are used at their level only.
                let (got, got32) = unsafe {
                    if level == Level::portable() {
                        (Lanes::<f64, 4>::max_finite(&wide), Lanes::<f32, 8>::max_finite(&narrow))
                    } else {
                        (Wide64::max_finite(&wide), Wide32::max_finite(&narrow))
                    }
                };
                assert_eq!(got, twin(&wide));
                assert_eq!(got32.map(f64::from), twin(&narrow));
            });
        }

        #[test]
        fn rank_equals_sorting(
            mut values in prop::collection::vec(prop_oneof![-9.0..9.0f64, Just(1.0), Just(-0.0)], 1..100),
            at in 0.0..1.0f64,
        ) {
            let n = values.len();
            let rank = (at * n as f64) as usize;
            let more = usize::from(rank + 1 < n);
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            values.resize(n.next_multiple_of(8), f64::INFINITY);
            let narrow: Vec<f32> = values.iter().map(|&x| x as f32).collect();
            let (low, high) = (sorted[rank], sorted[rank + more]);
            each_level(|level| {
                // SAFETY: the wide vectors are used at their level only.
                let (got, got32) = unsafe {
                    if level == Level::portable() {
                        (Lanes::<f64, 4>::rank(&values, n, rank, more), Lanes::<f32, 8>::rank(&narrow, n, rank, more))
                    } else {
                        (Wide64::rank(&values, n, rank, more), Wide32::rank(&narrow, n, rank, more))
                    }
                };
                assert_eq!(got, (low, high));
                assert_eq!(got32, (low as f32, high as f32));
            });
        }
    }
}
