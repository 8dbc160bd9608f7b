//! What the kernels' tests share: every level, and arrays that look like recordings and like attacks.

use super::level::Level;
use proptest::prelude::*;

/// Runs a test at every level of this processor.
pub(super) fn each_level(test: impl Fn(Level)) {
    let levels = Level::all_available();
    assert!(!levels.is_empty());
    levels.into_iter().for_each(test);
}

/// Arrays of up to `most` values: gradient norms, arbitrary bits, few distinct values, order, with and without
/// non-finite values.
pub(super) fn any_f64s(most: usize) -> impl Strategy<Value = Vec<f64>> {
    let value = prop_oneof![
        8 => (-3.0..3.0f64).prop_map(f64::exp),
        2 => any::<f64>(),
        1 => any::<u64>().prop_map(f64::from_bits),
        1 => prop::sample::select(vec![0.0, -0.0, 1.0, -1.0, f64::MAX, f64::MIN, 5e-324]),
        1 => prop::sample::select(vec![f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY]),
    ];
    let calm = (-3.0..3.0f64).prop_map(f64::exp);
    let few = prop::sample::select(vec![0.0, -0.0, 1.0, 2.0, -1.0, 1e-310, 3e-310, f64::MAX]);
    let length = 0..=most;
    prop_oneof![
        prop::collection::vec(value.clone(), length.clone()),
        prop::collection::vec(calm.clone(), length.clone()),
        prop::collection::vec(few, length.clone()),
        (value, length.clone()).prop_map(|(v, n)| vec![v; n]),
        (prop::collection::vec(calm, length), 1usize..100, any::<bool>()).prop_map(|(mut v, period, down)| {
            v.sort_by(f64::total_cmp);
            if down {
                v.reverse();
            }
            let tooth = v.len().div_ceil(period).max(1);
            (0..v.len()).map(|i| v[(i % tooth) * period % v.len()]).collect()
        }),
    ]
}

/// [`any_f64s`], narrowed, and arbitrary `f32` bits.
pub(super) fn any_f32s(most: usize) -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        4 => any_f64s(most).prop_map(|v| v.into_iter().map(|x| x as f32).collect::<Vec<_>>()),
        1 => prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..=most),
    ]
}
