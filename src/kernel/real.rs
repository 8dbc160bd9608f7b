//! What the generic kernels need to know of `f32` and `f64`.

use std::fmt::Debug;
use std::ops::{Add, Sub};

/// A float that the kernels are compiled for.
pub trait Real:
    Copy + PartialOrd + PartialEq + Debug + Default + Add<Output = Self> + Sub<Output = Self> + 'static
{
    /// The largest finite value.
    const MAX: Self;
    /// The smallest (most negative) finite value.
    const MIN: Self;
    /// Minus infinity.
    const NEG_INFINITY: Self;
    /// Plus infinity.
    const INFINITY: Self;

    /// Exact widening.
    fn wide(self) -> f64;
    /// The nearest value of this width.
    fn narrow(x: f64) -> Self;
    /// Whether it is neither NaN nor infinite.
    fn finite(self) -> bool;
    /// Whether it is NaN.
    fn is_nan(self) -> bool;
    /// The union of the bits.
    fn bit_or(self, other: Self) -> Self;
    /// IEEE total order.
    fn total(&self, other: &Self) -> std::cmp::Ordering;
    /// The largest value of this width that does not exceed `x`, so that `v > floor(x)` equals `v.wide() > x` for
    /// every finite `v`. NaN stays NaN.
    fn floor_of(x: f64) -> Self;
    /// An integer that orders like the finite values: bits with the sign folded.
    fn key(self) -> i64;
    /// The inverse of [`key`](Self::key).
    fn from_key(key: i64) -> Self;
}

impl Real for f64 {
    const MAX: Self = f64::MAX;
    const MIN: Self = f64::MIN;
    const NEG_INFINITY: Self = f64::NEG_INFINITY;
    const INFINITY: Self = f64::INFINITY;

    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }
    #[inline(always)]
    fn narrow(x: f64) -> Self {
        x
    }
    #[inline(always)]
    fn finite(self) -> bool {
        self.is_finite()
    }
    #[inline(always)]
    fn is_nan(self) -> bool {
        self.is_nan()
    }
    #[inline(always)]
    fn bit_or(self, other: Self) -> Self {
        f64::from_bits(self.to_bits() | other.to_bits())
    }
    #[inline(always)]
    fn total(&self, other: &Self) -> std::cmp::Ordering {
        self.total_cmp(other)
    }
    #[inline(always)]
    fn floor_of(x: f64) -> Self {
        x
    }
    #[inline(always)]
    fn key(self) -> i64 {
        let bits = self.to_bits() as i64;
        bits ^ (((bits >> 63) as u64) >> 1) as i64
    }
    #[inline(always)]
    fn from_key(key: i64) -> Self {
        f64::from_bits((key ^ (((key >> 63) as u64) >> 1) as i64) as u64)
    }
}

impl Real for f32 {
    const MAX: Self = f32::MAX;
    const MIN: Self = f32::MIN;
    const NEG_INFINITY: Self = f32::NEG_INFINITY;
    const INFINITY: Self = f32::INFINITY;

    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn narrow(x: f64) -> Self {
        x as f32
    }
    #[inline(always)]
    fn finite(self) -> bool {
        self.is_finite()
    }
    #[inline(always)]
    fn is_nan(self) -> bool {
        self.is_nan()
    }
    #[inline(always)]
    fn bit_or(self, other: Self) -> Self {
        f32::from_bits(self.to_bits() | other.to_bits())
    }
    #[inline(always)]
    fn total(&self, other: &Self) -> std::cmp::Ordering {
        self.total_cmp(other)
    }
    #[inline(always)]
    fn floor_of(x: f64) -> Self {
        let near = x as f32;
        if f64::from(near) > x { near.next_down() } else { near }
    }
    #[inline(always)]
    fn key(self) -> i64 {
        let bits = self.to_bits() as i32;
        i64::from(bits ^ (((bits >> 31) as u32) >> 1) as i32)
    }
    #[inline(always)]
    fn from_key(key: i64) -> Self {
        let key = key as i32;
        f32::from_bits((key ^ (((key >> 31) as u32) >> 1) as i32) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn floor_of_at_the_edges() {
        assert_eq!(f32::floor_of(1e300), f32::MAX);
        assert_eq!(f32::floor_of(f64::INFINITY), f32::INFINITY);
        assert_eq!(f32::floor_of(-1e300), f32::NEG_INFINITY);
        assert_eq!(f32::floor_of(1e-60), 0.0);
        assert!(f32::floor_of(-1e-60) < 0.0);
        assert!(f32::floor_of(f64::NAN).is_nan());
    }

    proptest! {
        #[test]
        fn narrowed_threshold_compares_like_the_wide_one(
            bits in any::<u32>(),
            near in -2i64..=2,
            wide in any::<f64>(),
        ) {
            let v = f32::from_bits(bits);
            prop_assume!(v.is_finite());
            let close = f64::from_bits((f64::from(v).to_bits() as i64).wrapping_add(near) as u64);
            for threshold in [wide, close, f64::from(v)] {
                prop_assert_eq!(v > f32::floor_of(threshold), f64::from(v) > threshold, "{} {}", v, threshold);
            }
        }

        #[test]
        fn keys_order_like_values(a in any::<f64>(), b in any::<f64>(), c in any::<f32>(), d in any::<f32>()) {
            prop_assert_eq!(a.key().cmp(&b.key()), a.total_cmp(&b));
            prop_assert_eq!(c.key().cmp(&d.key()), c.total_cmp(&d));
            prop_assert_eq!(f64::from_key(a.key()).to_bits(), a.to_bits());
            prop_assert_eq!(f32::from_key(c.key()).to_bits(), c.to_bits());
        }
    }
}
