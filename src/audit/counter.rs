//! Counts what is not finite in one array as its bytes come by, cut anywhere.

use crate::kernel::level::Level;
use crate::kernel::nonfinite::{Float, Order, visit_bytes};

/// How the values of an array stand in its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The float of each part.
    pub float: Float,
    /// Its byte order.
    pub order: Order,
    /// Floats in a value: 2 of a complex number.
    pub parts: u64,
}

impl Layout {
    /// One float a value, the least byte first.
    pub const fn little(float: Float) -> Self {
        Self { float, order: Order::Little, parts: 1 }
    }

    /// Two of them.
    pub const fn complex(float: Float) -> Self {
        Self { float, order: Order::Little, parts: 2 }
    }

    /// Bytes of a value.
    pub fn width(self) -> u64 {
        self.float.width() as u64 * self.parts
    }
}

/// Which index along the first axis a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// There is no axis.
    One,
    /// The last axis runs fastest: so many values a row.
    Major(u64),
    /// The first axis runs fastest: so many rows, each step of `values` values.
    Minor {
        /// Extent of the first axis.
        rows: u64,
        /// Values that share a place: those of a field that is an array itself.
        values: u64,
    },
}

impl Rows {
    /// Of an array in C order, each place of which holds `inner` values.
    pub fn major(shape: &[u64], inner: u64) -> Self {
        match shape.split_first() {
            None => Self::One,
            // An overflow or a zero: there are no values then.
            Some((_, rest)) => Self::Major(super::product(rest).and_then(|n| n.checked_mul(inner)).unwrap_or(1).max(1)),
        }
    }

    /// Of an array in Fortran order.
    pub fn minor(shape: &[u64], inner: u64) -> Self {
        match shape {
            [rows, _, ..] => Self::Minor { rows: (*rows).max(1), values: inner.max(1) },
            _ => Self::major(shape, inner),
        }
    }
}

/// The counts of one array so far.
#[derive(Debug)]
pub struct Counter {
    layout: Layout,
    rows: Rows,
    level: Level,
    /// The begin of a float whose end has not come yet.
    carry: [u8; 8],
    carried: usize,
    /// Floats that came by.
    floats: u64,
    found: Found,
}

#[derive(Debug, Default)]
struct Found {
    nan: u64,
    inf: u64,
    first_row: Option<u64>,
    bad_rows: u64,
    /// The last bad value, and whether it is NaN.
    last: Option<(u64, bool)>,
    last_row: Option<u64>,
    /// Rows that were bad, a bit each: in Fortran order they come again.
    marks: Vec<u64>,
    /// Words that `marks` may hold.
    most: usize,
    too_many: bool,
}

impl Counter {
    /// A count of nothing yet. `marks`: bytes in which rows may be told apart where they do not come in order.
    pub fn new(layout: Layout, rows: Rows, marks: u64) -> Self {
        let most = usize::try_from(marks / 8).unwrap_or(usize::MAX);
        let found = Found { most, ..Found::default() };
        Self { layout, rows, level: Level::detect(), carry: [0; 8], carried: 0, floats: 0, found }
    }

    /// The next bytes.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        let width = self.layout.float.width();
        if self.carried > 0 {
            let more = (width - self.carried).min(bytes.len());
            self.carry[self.carried..self.carried + more].copy_from_slice(&bytes[..more]);
            self.carried += more;
            bytes = &bytes[more..];
            if self.carried < width {
                return;
            }
            let whole = self.carry;
            self.count(&whole[..width]);
            self.carried = 0;
        }
        let (whole, rest) = bytes.split_at(bytes.len() - bytes.len() % width);
        self.count(whole);
        self.carry[..rest.len()].copy_from_slice(rest);
        self.carried = rest.len();
    }

    fn count(&mut self, bytes: &[u8]) {
        let Self { layout, rows, found, floats, .. } = self;
        visit_bytes(self.level, layout.float, layout.order, bytes, &mut |index, is_nan| {
            found.bad((*floats + index as u64) / layout.parts, is_nan, *rows);
        });
        *floats += (bytes.len() / layout.float.width()) as u64;
    }

    /// Values that came by; the last one perhaps not to its end.
    pub fn values(&self) -> u64 {
        self.floats.div_ceil(self.layout.parts)
    }

    /// NaN, Inf, the first bad row and how many there are (`None`: too many to tell apart).
    pub fn totals(&self) -> (u64, u64, Option<u64>, Option<u64>) {
        let found = &self.found;
        (found.nan, found.inf, found.first_row, (!found.too_many).then_some(found.bad_rows))
    }
}

impl Found {
    fn bad(&mut self, value: u64, is_nan: bool, rows: Rows) {
        match &mut self.last {
            // The other part of the same complex number.
            Some((last, was_nan)) if *last == value => {
                if is_nan && !*was_nan {
                    self.inf -= 1;
                    self.nan += 1;
                    *was_nan = true;
                }
                return;
            }
            last => *last = Some((value, is_nan)),
        }
        if is_nan {
            self.nan += 1;
        } else {
            self.inf += 1;
        }
        let row = match rows {
            Rows::One => 0,
            Rows::Major(values) => value / values,
            Rows::Minor { rows, values } => value / values % rows,
        };
        if self.last_row == Some(row) {
            return;
        }
        self.last_row = Some(row);
        self.first_row = Some(self.first_row.map_or(row, |first| first.min(row)));
        if !matches!(rows, Rows::Minor { .. }) || self.is_new(row) {
            self.bad_rows += 1;
        }
    }

    fn is_new(&mut self, row: u64) -> bool {
        let Some(word) = usize::try_from(row / 64).ok().filter(|word| *word < self.most) else {
            self.too_many = true;
            return false;
        };
        if word >= self.marks.len() {
            // In the worst case an eighth of the bytes that came by.
            self.marks.resize(word + 1, 0);
        }
        let bit = 1 << (row % 64);
        let is_new = self.marks[word] & bit == 0;
        self.marks[word] |= bit;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Counts by the definition: (nan, inf, first row, bad rows).
    fn naive(values: &[f32], row: impl Fn(u64) -> u64) -> (u64, u64, Option<u64>, Option<u64>) {
        let bad: Vec<u64> = (0..values.len()).filter(|i| !values[*i].is_finite()).map(|i| row(i as u64)).collect();
        let nan = values.iter().filter(|value| value.is_nan()).count() as u64;
        let distinct: std::collections::BTreeSet<u64> = bad.iter().copied().collect();
        (nan, bad.len() as u64 - nan, distinct.first().copied(), Some(distinct.len() as u64))
    }

    fn values() -> impl Strategy<Value = Vec<f32>> {
        let value = prop_oneof![8 => Just(1.0f32), 1 => Just(f32::NAN), 1 => Just(f32::NEG_INFINITY)];
        prop::collection::vec(value, 0..400)
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter_and_rows_are_counted_once(values in values(), cut in 1usize..40, rows in 1u64..9, inner in 1u64..4) {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let of = |rows: Rows, cut: usize| {
                let mut counter = Counter::new(Layout::little(Float::F32), rows, 1 << 20);
                bytes.chunks(cut).for_each(|piece| counter.feed(piece));
                assert_eq!(counter.values(), values.len() as u64);
                counter.totals()
            };
            for cut in [cut, 1, 1 << 20] {
                prop_assert_eq!(of(Rows::One, cut), naive(&values, |_| 0));
                prop_assert_eq!(of(Rows::Major(rows), cut), naive(&values, |i| i / rows));
                let minor = Rows::Minor { rows, values: inner };
                prop_assert_eq!(of(minor, cut), naive(&values, |i| i / inner % rows));
            }
        }
    }

    #[test]
    fn a_complex_number_is_bad_once() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let parts = [1.0, 1.0, nan, 1.0, 1.0, inf, inf, nan, nan, inf, inf, inf, 1.0, nan];
        let bytes: Vec<u8> = parts.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut counter = Counter::new(Layout::complex(Float::F32), Rows::Major(1), 0);
        bytes.chunks(3).for_each(|piece| counter.feed(piece));
        assert_eq!(counter.values(), 7);
        assert_eq!(counter.totals(), (4, 2, Some(1), Some(6)));
    }

    #[test]
    fn marks_are_bounded() {
        let bytes: Vec<u8> = std::iter::repeat_n(f32::NAN.to_le_bytes(), 1000).flatten().collect();
        let mut counter = Counter::new(Layout::little(Float::F32), Rows::Minor { rows: 500, values: 1 }, 16);
        counter.feed(&bytes);
        assert_eq!(counter.totals(), (1000, 0, Some(0), None));
    }
}
