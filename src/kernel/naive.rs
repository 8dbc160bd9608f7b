//! The obvious code for every kernel: the definition of its answer, and the twin that the tests compare with.
//!
//! Values of `f32` are widened to `f64` where they are compared with a threshold. A zero result is always `+0.0`.

use super::batch::RowStats;
use super::nonfinite::{Float, Order, Tally};
use super::real::Real;

/// Counts NaN, +Inf and -Inf; `first` is the index of the first of any of them.
pub fn count<T: Real>(values: &[T]) -> Tally {
    let mut tally = Tally::default();
    for (i, x) in values.iter().enumerate() {
        let x = x.wide();
        if x.is_finite() {
            continue;
        }
        tally.first = tally.first.or(Some(i));
        if x.is_nan() {
            tally.nan += 1;
        } else if x > 0.0 {
            tally.pos_inf += 1;
        } else {
            tally.neg_inf += 1;
        }
    }
    tally
}

/// [`count`] over IEEE half precision, given as bits: 1 sign, 5 exponent, 10 fraction.
pub fn count_f16(bits: &[u16]) -> Tally {
    count_bits(bits, 0x7c00)
}

/// [`count`] over bfloat16, given as bits: 1 sign, 8 exponent, 7 fraction.
pub fn count_bf16(bits: &[u16]) -> Tally {
    count_bits(bits, 0x7f80)
}

fn count_bits(bits: &[u16], infinity: u16) -> Tally {
    let mut tally = Tally::default();
    for (i, &b) in bits.iter().enumerate() {
        if b & infinity != infinity {
            continue;
        }
        tally.first = tally.first.or(Some(i));
        if b & 0x7fff != infinity {
            tally.nan += 1;
        } else if b >> 15 == 0 {
            tally.pos_inf += 1;
        } else {
            tally.neg_inf += 1;
        }
    }
    tally
}

/// [`count`] over values of any format in bytes: each is widened to `f64` by the definition of its format.
pub fn count_bytes(float: Float, order: Order, bytes: &[u8]) -> Tally {
    let values: Vec<f64> = bytes
        .chunks_exact(float.width())
        .map(|value| {
            let mut value = value.to_vec();
            if order == Order::Big {
                value.reverse();
            }
            let bits = value.iter().rev().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
            let ieee = |exponent: u32, fraction: u32| {
                let top = (1 << exponent) - 1;
                let sign = if bits >> (exponent + fraction) == 0 { 1.0 } else { -1.0 };
                match (bits >> fraction & top == top, bits & ((1 << fraction) - 1)) {
                    (true, 0) => sign * f64::INFINITY,
                    (true, _) => f64::NAN,
                    (false, _) => sign,
                }
            };
            let nan_where = |is_nan| if is_nan { f64::NAN } else { 1.0 };
            match float {
                Float::F64 => f64::from_bits(bits),
                Float::F32 => f64::from(f32::from_bits(bits as u32)),
                Float::F16 => ieee(5, 10),
                Float::Bf16 => f64::from(f32::from_bits((bits as u32) << 16)),
                Float::F8E5M2 => ieee(5, 2),
                Float::F8E4M3 => nan_where(matches!(bits, 0x7f | 0xff)),
                Float::F8E4M3Fnuz | Float::F8E5M2Fnuz => nan_where(bits == 0x80),
                Float::F8E8M0 => nan_where(bits == 0xff),
            }
        })
        .collect();
    count(&values)
}

/// The median of the finite values; for an even count the mean of the two middle ones, halved first where their sum
/// would overflow. `None` without a finite value.
pub fn median<T: Real>(values: &[T]) -> Option<f64> {
    median_parts(&[values], None)
}

/// [`median`] of a series stored in several parts, without the values equal to `exclude`.
pub fn median_parts<T: Real>(parts: &[&[T]], exclude: Option<f64>) -> Option<f64> {
    let mut finite: Vec<f64> = parts.iter().flat_map(|p| p.iter()).map(|x| x.wide()).collect();
    finite.retain(|&x| x.is_finite() && Some(x) != exclude);
    finite.sort_by(f64::total_cmp);
    let n = finite.len();
    (n > 0).then(|| mean_of_two(finite[(n - 1) / 2], finite[n / 2]))
}

/// The mean of the two middle values, without overflow; a zero is `+0.0`.
pub fn mean_of_two(lo: f64, hi: f64) -> f64 {
    let mean = if lo == hi {
        lo
    } else if (lo + hi).is_infinite() {
        lo / 2.0 + hi / 2.0
    } else {
        (lo + hi) / 2.0
    };
    mean + 0.0
}

/// Indices of the finite values strictly above `threshold`, compared as `f64`.
pub fn positions_above<T: Real>(values: &[T], threshold: f64) -> Vec<usize> {
    let above = |x: &T| x.wide().is_finite() && x.wide() > threshold;
    (0..values.len()).filter(|&i| above(&values[i])).collect()
}

/// Everything that [`RowStats`] holds.
pub fn row_stats<T: Real>(row: &[T], spike_ratio: f64) -> RowStats {
    let tally = count(row);
    let median = median(row);
    let max = row.iter().map(|x| x.wide()).filter(|x| x.is_finite()).reduce(f64::max);
    let spikes = match median {
        Some(m) if m > 0.0 => positions_above(row, spike_ratio * m),
        _ => Vec::new(),
    };
    RowStats {
        n: row.len() as u64,
        nan: tally.nan,
        inf: tally.pos_inf + tally.neg_inf,
        first_nonfinite: tally.first,
        median,
        max: max.map(|x| x + 0.0),
        spikes: spikes.len() as u64,
        first_spike: spikes.first().copied(),
    }
}

/// CRC-32C byte by byte, by a table of what eight bits do.
pub fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut crc, mut bit) = (byte as u32, 0);
            while bit < 8 {
                crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc: u32, byte| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)])
}
