//! Compact columns that grow by pushing: values in chunks, and integers that cost nothing where they are regular.

use std::ops::Range;

const CHUNK: usize = 1 << 16;

/// A growing column in chunks of 65,536 values: growing never copies or doubles what is already there.
#[derive(Clone, Debug)]
pub struct Chunks<T> {
    chunks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<T: Copy> Chunks<T> {
    /// Appends a value.
    #[inline]
    pub fn push(&mut self, value: T) {
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(value),
            _ => self.start_chunk(value),
        }
        self.len += 1;
    }

    /// Appends values.
    #[inline]
    pub fn extend(&mut self, mut values: &[T]) {
        while let Some(first) = values.first() {
            let room = self.chunks.last().map_or(0, |chunk| CHUNK - chunk.len());
            match self.chunks.last_mut() {
                Some(chunk) if room > 0 => {
                    let (now, later) = values.split_at(room.min(values.len()));
                    chunk.extend_from_slice(now);
                    self.len += now.len();
                    values = later;
                }
                _ => {
                    self.push(*first);
                    values = &values[1..];
                }
            }
        }
    }

    #[cold]
    fn start_chunk(&mut self, value: T) {
        let mut chunk = Vec::new();
        if !self.chunks.is_empty() {
            chunk.reserve_exact(CHUNK);
        }
        chunk.push(value);
        self.chunks.push(chunk);
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value at `index`, which must be below [`len`](Self::len).
    #[inline]
    pub fn get(&self, index: usize) -> T {
        self.chunks[index / CHUNK][index % CHUNK]
    }

    /// The values of a range as slices, in order.
    pub fn parts(&self, range: Range<usize>) -> impl Iterator<Item = &[T]> {
        self.chunks.iter().enumerate().filter_map(move |(k, chunk)| {
            let start = range.start.max(k * CHUNK);
            let end = range.end.min(k * CHUNK + chunk.len());
            (start < end).then(|| &chunk[start - k * CHUNK..end - k * CHUNK])
        })
    }

    /// All values in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.chunks.iter().flatten().copied()
    }
}

#[derive(Clone, Copy, Debug)]
struct Stretch {
    at: usize,
    start: i64,
    stride: i64,
}

/// A growing column of integers (steps, record numbers) stored as linear stretches; where those do not pay, plainly
/// as 32-bit or 64-bit offsets.
#[derive(Clone, Debug, Default)]
pub struct Ints {
    stretches: Vec<Stretch>,
    plain: Option<Plain>,
    len: usize,
    last: i64,
}

#[derive(Clone, Debug)]
enum Plain {
    Narrow { base: i64, offsets: Chunks<i32> },
    Wide(Chunks<i64>),
}

impl Plain {
    fn push(&mut self, value: i64) {
        match self {
            Self::Wide(values) => values.push(value),
            Self::Narrow { base, offsets } => match value.checked_sub(*base).and_then(|d| i32::try_from(d).ok()) {
                Some(offset) => offsets.push(offset),
                None => {
                    let mut values = Chunks::default();
                    offsets.iter().for_each(|offset| values.push(*base + i64::from(offset)));
                    values.push(value);
                    *self = Self::Wide(values);
                }
            },
        }
    }

    fn get(&self, index: usize) -> i64 {
        match self {
            Self::Wide(values) => values.get(index),
            Self::Narrow { base, offsets } => base + i64::from(offsets.get(index)),
        }
    }
}

impl Ints {
    /// Appends a value.
    #[inline]
    pub fn push(&mut self, value: i64) {
        if self.plain.is_none()
            && let Some(stretch) = self.stretches.last_mut()
        {
            let count = (self.len - stretch.at) as i64;
            if count > 1 && value.checked_sub(self.last) == Some(stretch.stride) {
                self.len += 1;
                self.last = value;
                return;
            }
            if count == 1
                && let Some(stride) = value.checked_sub(self.last)
            {
                stretch.stride = stride;
                self.len += 1;
                self.last = value;
                return;
            }
        }
        self.push_irregular(value);
    }

    /// Appends `count` values that rise by one.
    pub fn extend_by_one(&mut self, first: i64, count: usize) {
        let mut value = first;
        let end = first.saturating_add_unsigned(count as u64);
        while value < end {
            self.push(value);
            value += 1;
            // Two values make a stretch that goes on by itself.
            if self.plain.is_none() && self.stretches.last().is_some_and(|s| s.stride == 1 && self.len - s.at > 1) {
                self.len += (end - value) as usize;
                self.last = end - 1;
                return;
            }
        }
    }

    fn push_irregular(&mut self, value: i64) {
        if let Some(plain) = &mut self.plain {
            plain.push(value);
        } else {
            self.stretches.push(Stretch { at: self.len, start: value, stride: 0 });
            // A stretch costs 24 bytes, a plain step 4 to 8.
            if self.stretches.len() > 64 && self.stretches.len() > self.len / 6 {
                let mut plain = Plain::Narrow { base: self.stretches[0].start, offsets: Chunks::default() };
                (0..self.len).for_each(|index| plain.push(self.get(index)));
                plain.push(value);
                self.plain = Some(plain);
                self.stretches = Vec::new();
            }
        }
        self.len += 1;
        self.last = value;
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value at `index`, which must be below [`len`](Self::len).
    pub fn get(&self, index: usize) -> i64 {
        if let Some(plain) = &self.plain {
            return plain.get(index);
        }
        let stretch = &self.stretches[self.stretches.partition_point(|stretch| stretch.at <= index) - 1];
        stretch.start + stretch.stride * (index - stretch.at) as i64
    }

    /// The last value.
    pub fn last(&self) -> Option<i64> {
        (self.len > 0).then_some(self.last)
    }

    /// The largest value of a non-empty range.
    pub fn max(&self, range: Range<usize>) -> Option<i64> {
        if range.is_empty() {
            return None;
        }
        if self.plain.is_some() {
            return range.map(|index| self.get(index)).max();
        }
        let first = self.stretches.partition_point(|stretch| stretch.at <= range.start) - 1;
        let ends =
            self.stretches[first..].iter().take_while(|stretch| stretch.at < range.end).map(|stretch| stretch.at);
        // A stretch is linear: its largest value stands at one of its ends.
        let mut largest = self.get(range.start).max(self.get(range.end - 1));
        for at in ends.filter(|at| *at > range.start) {
            largest = largest.max(self.get(at)).max(self.get(at - 1));
        }
        Some(largest)
    }

    /// Index of the first value that is at least `value`, where the values never fall.
    pub fn lower_bound(&self, value: i64) -> usize {
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(middle) < value { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// All values in order.
    pub fn iter(&self) -> impl Iterator<Item = i64> + '_ {
        (0..self.len).map(|index| self.get(index))
    }
}

/// A growing column of slowly changing integers (byte offsets, times) as zigzag varint differences, with a mark every
/// 4,096 values for seeking.
#[derive(Clone, Debug, Default)]
pub struct Deltas {
    bytes: Chunks<u8>,
    marks: Vec<(usize, i64)>,
    len: usize,
    last: i64,
}

impl Deltas {
    const MARK: usize = 4096;

    /// Appends a value.
    pub fn push(&mut self, value: i64) {
        if self.len.is_multiple_of(Self::MARK) {
            self.marks.push((self.bytes.len(), self.last));
        }
        let difference = value.wrapping_sub(self.last);
        let mut rest = ((difference << 1) ^ (difference >> 63)) as u64;
        while rest >= 0x80 {
            self.bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest as u8);
        self.len += 1;
        self.last = value;
    }

    /// Appends `count` values that rise by one.
    pub fn extend_by_one(&mut self, first: i64, count: usize) {
        const ONE: [u8; 256] = [2; 256];
        let mut left = count;
        while left > 0 {
            let value = first + (count - left) as i64;
            let until_mark = (Self::MARK - self.len % Self::MARK) % Self::MARK;
            if until_mark == 0 || value.wrapping_sub(self.last) != 1 {
                self.push(value);
                left -= 1;
                continue;
            }
            let now = left.min(until_mark).min(ONE.len());
            self.bytes.extend(&ONE[..now]);
            self.len += now;
            self.last += now as i64;
            left -= now;
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The last value.
    pub fn last(&self) -> Option<i64> {
        (self.len > 0).then_some(self.last)
    }

    /// The value at `index`, if there is one.
    pub fn get(&self, index: usize) -> Option<i64> {
        if index >= self.len {
            return None;
        }
        let (mut at, mut value) = self.marks[index / Self::MARK];
        for _ in 0..=index % Self::MARK {
            let (mut rest, mut shift) = (0u64, 0);
            loop {
                let byte = self.bytes.get(at);
                at += 1;
                rest |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    break;
                }
            }
            value = value.wrapping_add(((rest >> 1) as i64) ^ -((rest & 1) as i64));
        }
        Some(value)
    }
}

/// Counts of differences between consecutive steps, for their median; bounded.
#[derive(Clone, Debug, Default)]
pub struct Intervals {
    counts: Vec<(i64, u64)>,
    total: u64,
}

impl Intervals {
    const KINDS: usize = 256;

    /// Counts one difference. Beyond 256 different ones, new ones are left out.
    #[inline]
    pub fn add(&mut self, difference: i64) {
        self.add_all(difference, 1);
    }

    /// Counts `count` equal differences.
    pub fn add_all(&mut self, difference: i64, count: u64) {
        if count == 0 {
            return;
        }
        let known = self.counts.iter().position(|(known, _)| *known == difference);
        match known {
            Some(index) => self.counts[index].1 += count,
            None if self.counts.len() < Self::KINDS => self.counts.push((difference, count)),
            None => return,
        }
        self.total += count;
    }

    /// The (lower) median difference.
    pub fn median(mut self) -> Option<f64> {
        self.counts.sort_unstable();
        let (mut seen, middle) = (0, self.total.div_ceil(2));
        let at_middle = |count: &u64| {
            seen += count;
            seen >= middle
        };
        self.counts.iter().map(|(_, count)| count).position(at_middle).map(|index| self.counts[index].0 as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn walk() -> impl Strategy<Value = Vec<i64>> {
        let jump = prop_oneof![8 => Just(1i64), 2 => -20i64..20, 1 => any::<i64>()];
        prop::collection::vec(jump, 0..600).prop_map(|jumps| {
            jumps
                .into_iter()
                .scan(0i64, |at, jump| {
                    *at = at.wrapping_add(jump);
                    Some(*at)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn ints_equal_a_vector(values in walk(), cut in 0usize..600) {
            let mut ints = Ints::default();
            values.iter().for_each(|value| ints.push(*value));
            prop_assert_eq!(ints.iter().collect::<Vec<_>>(), values.clone());
            prop_assert_eq!(ints.last(), values.last().copied());
            let start = cut.min(values.len());
            prop_assert_eq!(ints.max(start..values.len()), values[start..].iter().copied().max());
            prop_assert_eq!(ints.max(0..start), values[..start].iter().copied().max());
        }

        #[test]
        fn deltas_equal_a_vector(values in prop::collection::vec(any::<i64>(), 0..50), repeat in 1usize..300) {
            let values: Vec<i64> = values.iter().copied().cycle().take(values.len() * repeat).collect();
            let mut deltas = Deltas::default();
            values.iter().for_each(|value| deltas.push(*value));
            for index in [0, 1, values.len() / 2, values.len().saturating_sub(1), values.len()] {
                prop_assert_eq!(deltas.get(index), values.get(index).copied());
            }
        }
    }

    #[test]
    fn stretches_that_rise_by_one_equal_a_vector() {
        for counts in [vec![1usize, 2, 5000, 1, 300], vec![4096, 4096], vec![70_000, 3], vec![1; 50]] {
            let (mut ints, mut deltas, mut want) = (Ints::default(), Deltas::default(), Vec::new());
            let mut first = -7;
            for count in counts {
                ints.extend_by_one(first, count);
                deltas.extend_by_one(first, count);
                want.extend(first..first + count as i64);
                // Every other stretch goes on where the last one ended.
                first = want.last().unwrap() + 1 + (count as i64 % 2) * 10;
            }
            assert_eq!(ints.iter().collect::<Vec<_>>(), want);
            let got: Vec<i64> = (0..want.len()).map(|index| deltas.get(index).unwrap()).collect();
            assert_eq!((got, deltas.len(), deltas.last()), (want.clone(), want.len(), want.last().copied()));
        }
    }

    #[test]
    fn chunks_extended_at_once_equal_a_vector() {
        let mut chunks = Chunks::default();
        let values: Vec<u32> = (0..300_000).collect();
        let mut rest = values.as_slice();
        for count in [1, 65_535, 1, 100_000, 133_463, 0, 1000] {
            let (now, later) = rest.split_at(count);
            chunks.extend(now);
            rest = later;
        }
        assert!(rest.is_empty());
        assert_eq!((chunks.iter().collect::<Vec<_>>(), chunks.len()), (values.clone(), values.len()));
    }

    #[test]
    fn regular_steps_cost_nothing() {
        let mut ints = Ints::default();
        (0..1_000_000).for_each(|step| ints.push(step * 10));
        assert_eq!(ints.stretches.len(), 1);
        assert_eq!(ints.get(999_999), 9_999_990);
    }

    #[test]
    fn chunks_keep_order_across_chunks() {
        let mut chunks = Chunks::default();
        (0..200_000u32).for_each(|value| chunks.push(value));
        assert_eq!(chunks.get(131_072), 131_072);
        let part: Vec<u32> = chunks.parts(65_530..131_080).flatten().copied().collect();
        assert_eq!(part, (65_530..131_080).collect::<Vec<_>>());
    }
}
