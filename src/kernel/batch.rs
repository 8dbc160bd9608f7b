//! Everything that is asked of one row, which is one run's gradient norms, in as few passes as possible.
//!
//! The packing pass of selection already sees every value, so that it also gives the maximum and whether all are
//! finite. Values that are not finite are counted only in rows that have some, spikes only where the maximum is one.

use super::level::Level;
use super::select::{Row, Scratch, Selectable, row_at};
use super::spikes;

/// Counts, median and spikes of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowStats {
    /// Values in the row.
    pub n: u64,
    /// NaN.
    pub nan: u64,
    /// Infinities of both signs.
    pub inf: u64,
    /// Index of the first value that is not finite.
    pub first_nonfinite: Option<usize>,
    /// Median of the finite values.
    pub median: Option<f64>,
    /// The largest finite value.
    pub max: Option<f64>,
    /// Finite values strictly above `spike_ratio` times the median; 0 where the median is not positive.
    pub spikes: u64,
    /// Index of the first spike.
    pub first_spike: Option<usize>,
}

fn row_stats<T: Selectable>(level: Level, values: &[T], spike_ratio: f64, scratch: &mut Scratch) -> RowStats {
    let Row { tally, median, max } = row_at(level, values, scratch);
    let mut stats = RowStats {
        n: values.len() as u64,
        nan: tally.nan,
        inf: tally.pos_inf + tally.neg_inf,
        first_nonfinite: tally.first,
        median,
        max: max.map(|x| x.wide() + 0.0),
        ..RowStats::default()
    };
    if let (Some(m), Some(max)) = (stats.median, stats.max)
        && m > 0.0
        && max > spike_ratio * m
    {
        let bound = T::floor_of(spike_ratio * m);
        (stats.spikes, stats.first_spike) = level.run(
            #[inline(always)]
            || spikes::count_and_first(values, bound),
        );
    }
    stats
}

/// Counts, median and spikes of one row of `f64`.
#[must_use]
pub fn row_stats_f64(level: Level, row: &[f64], spike_ratio: f64, scratch: &mut Scratch) -> RowStats {
    row_stats(level, row, spike_ratio, scratch)
}

/// Counts, median and spikes of one row of `f32`, compared with the threshold as `f64`.
#[must_use]
pub fn row_stats_f32(level: Level, row: &[f32], spike_ratio: f64, scratch: &mut Scratch) -> RowStats {
    row_stats(level, row, spike_ratio, scratch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::naive;
    use crate::kernel::testing::{any_f32s, any_f64s, each_level};
    use proptest::prelude::*;

    /// Equal, with NaN-free floats compared by their bits.
    fn assert_same(got: RowStats, want: RowStats) {
        assert_eq!(got, want);
        assert_eq!(got.median.map(f64::to_bits), want.median.map(f64::to_bits));
        assert_eq!(got.max.map(f64::to_bits), want.max.map(f64::to_bits));
    }

    #[test]
    fn one_row_by_hand() {
        let row = [1.0, 2.0, f64::NAN, 3.0, 20.0, 20.1, f64::INFINITY, f64::NEG_INFINITY, 0.5];
        let want = RowStats {
            n: 9,
            nan: 1,
            inf: 2,
            first_nonfinite: Some(2),
            median: Some(2.5),
            max: Some(20.1),
            spikes: 0,
            first_spike: None,
        };
        each_level(|level| {
            let mut scratch = Scratch::new();
            assert_same(row_stats_f64(level, &row, 10.0, &mut scratch), want);
            let more = RowStats { spikes: 1, first_spike: Some(5), ..want };
            assert_same(row_stats_f64(level, &row, 8.0, &mut scratch), more);
            let negative = row_stats_f64(level, &[-1.0, -2.0, 5.0], 10.0, &mut scratch);
            assert_eq!((negative.median, negative.spikes, negative.max), (Some(-1.0), 0, Some(5.0)));
            assert_same(row_stats_f64(level, &[], 10.0, &mut scratch), RowStats::default());
            let none = row_stats_f32(level, &[f32::NAN, f32::INFINITY], 10.0, &mut scratch);
            assert_eq!((none.median, none.max, none.nan, none.inf), (None, None, 1, 1));
        });
    }

    proptest! {
        #[test]
        fn equals_its_twin(
            wide in any_f64s(3000),
            narrow in any_f32s(3000),
            ratio in prop_oneof![Just(10.0), Just(1.0), 0.1..20.0],
        ) {
            let (want_wide, want) = (naive::row_stats(&wide, ratio), naive::row_stats(&narrow, ratio));
            each_level(|level| {
                let mut scratch = Scratch::new();
                assert_same(row_stats_f64(level, &wide, ratio, &mut scratch), want_wide);
                assert_same(row_stats_f32(level, &narrow, ratio, &mut scratch), want);
            });
        }
    }
}
