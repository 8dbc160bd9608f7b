//! Floats of 16 and 8 bits as they are stored in tensors, widened without loss.

/// How a small float is laid out: one sign bit, exponent, fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    fraction_bits: u32,
    exponent_bits: u32,
    bias: i32,
    special: Special,
}

/// Which bit patterns are no numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Special {
    /// The largest exponent: Inf with an empty fraction, else NaN (IEEE 754).
    Ieee,
    /// All ones but for the sign: NaN; there is no Inf.
    AllOnes,
    /// The pattern of -0: NaN; there is no Inf.
    NegativeZero,
}

/// A float type of at most 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallFloat {
    /// IEEE half precision.
    Half,
    /// bfloat16.
    Bfloat16,
    /// 5 exponent, 2 fraction bits, IEEE.
    E5M2,
    /// 4 exponent, 3 fraction bits, no Inf.
    E4M3Fn,
    /// As [`E4M3Fn`](Self::E4M3Fn), bias 8, the pattern of -0 is NaN.
    E4M3Fnuz,
    /// As [`E4M3Fnuz`](Self::E4M3Fnuz), bias 11.
    E4M3B11Fnuz,
    /// As [`E5M2`](Self::E5M2), bias 16, the pattern of -0 is NaN, no Inf.
    E5M2Fnuz,
}

impl SmallFloat {
    /// Bytes of one value.
    #[must_use]
    pub fn width(self) -> usize {
        if matches!(self, Self::Half | Self::Bfloat16) { 2 } else { 1 }
    }

    fn layout(self) -> Layout {
        let layout =
            |fraction_bits, exponent_bits, bias, special| Layout { fraction_bits, exponent_bits, bias, special };
        match self {
            Self::Half => layout(10, 5, 15, Special::Ieee),
            Self::Bfloat16 => layout(7, 8, 127, Special::Ieee),
            Self::E5M2 => layout(2, 5, 15, Special::Ieee),
            Self::E4M3Fn => layout(3, 4, 7, Special::AllOnes),
            Self::E4M3Fnuz => layout(3, 4, 8, Special::NegativeZero),
            Self::E4M3B11Fnuz => layout(3, 4, 11, Special::NegativeZero),
            Self::E5M2Fnuz => layout(2, 5, 16, Special::NegativeZero),
        }
    }

    /// The value of a bit pattern in the low bits.
    #[must_use]
    pub fn widen(self, bits: u16) -> f64 {
        let Layout { fraction_bits, exponent_bits, bias, special } = self.layout();
        let fraction = u32::from(bits) & ((1 << fraction_bits) - 1);
        let exponent = (u32::from(bits) >> fraction_bits) & ((1 << exponent_bits) - 1);
        let sign = if u32::from(bits) >> (fraction_bits + exponent_bits) & 1 == 1 { -1.0 } else { 1.0 };
        let largest = (1 << exponent_bits) - 1;
        match special {
            Special::Ieee if exponent == largest => {
                return if fraction == 0 { sign * f64::INFINITY } else { f64::NAN };
            }
            Special::AllOnes if exponent == largest && fraction == (1 << fraction_bits) - 1 => return f64::NAN,
            Special::NegativeZero if sign < 0.0 && exponent == 0 && fraction == 0 => return f64::NAN,
            _ => {}
        }
        let unit = f64::from(fraction) / f64::from(1u32 << fraction_bits);
        let (whole, exponent) = if exponent == 0 { (0.0, 1 - bias) } else { (1.0, exponent as i32 - bias) };
        sign * (whole + unit) * 2f64.powi(exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_each_type() {
        let cases: &[(SmallFloat, u16, f64)] = &[
            (SmallFloat::Half, 0x3c00, 1.0),
            (SmallFloat::Half, 0x7bff, 65504.0),
            (SmallFloat::Half, 0x0001, 5.960464477539063e-08),
            (SmallFloat::Half, 0xfc00, f64::NEG_INFINITY),
            (SmallFloat::Bfloat16, 0x4020, 2.5),
            (SmallFloat::Bfloat16, 0x7f80, f64::INFINITY),
            (SmallFloat::Bfloat16, 0x0001, 9.183549615799121e-41),
            (SmallFloat::E5M2, 0x7b, 57344.0),
            (SmallFloat::E5M2, 0x7c, f64::INFINITY),
            (SmallFloat::E4M3Fn, 0x7e, 448.0),
            (SmallFloat::E4M3Fnuz, 0x7f, 240.0),
            (SmallFloat::E4M3B11Fnuz, 0x7f, 30.0),
            (SmallFloat::E5M2Fnuz, 0x7f, 57344.0),
        ];
        for (kind, bits, want) in cases {
            assert_eq!(kind.widen(*bits), *want, "{kind:?} {bits:#x}");
        }
        let nans = [
            (SmallFloat::Half, 0x7c01),
            (SmallFloat::Bfloat16, 0xffc0),
            (SmallFloat::E5M2, 0x7f),
            (SmallFloat::E4M3Fn, 0xff),
            (SmallFloat::E4M3Fnuz, 0x80),
            (SmallFloat::E4M3B11Fnuz, 0x80),
            (SmallFloat::E5M2Fnuz, 0x80),
        ];
        for (kind, bits) in nans {
            assert!(kind.widen(bits).is_nan(), "{kind:?} {bits:#x}");
        }
    }

    #[test]
    fn bfloat16_is_the_upper_half_of_f32() {
        for bits in 0..=u16::MAX {
            let (ours, want) = (SmallFloat::Bfloat16.widen(bits), f64::from(f32::from_bits(u32::from(bits) << 16)));
            assert!(ours == want || (ours.is_nan() && want.is_nan()), "{bits:#x}");
        }
    }
}
