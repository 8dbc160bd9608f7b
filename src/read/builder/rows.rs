//! Stretches of rows in columns: what a columnar reader has at hand. The same points as row by row, and as fast as memory
//! where a stretch is regular: steps that rise, and no missing cell.

use super::{Builder, DUPLICATE_WINDOW, Use, clock};
use crate::read::series::Stretch;

/// Cells of one column over a stretch of rows.
#[derive(Clone, Copy, Debug)]
pub enum Lane<'b> {
    /// 32-bit floats.
    F32(&'b [f32]),
    /// 64-bit floats.
    F64(&'b [f64]),
    /// Integers.
    I64(&'b [i64]),
    /// Texts: steps as `"10/438"`, times.
    Text(&'b [&'b str]),
}

impl Lane<'_> {
    /// One cell that holds a number, as f64.
    #[inline]
    fn number(&self, row: usize) -> f64 {
        match self {
            Self::F32(values) => f64::from(values[row]),
            Self::F64(values) => values[row],
            Self::I64(values) => values[row] as f64,
            Self::Text(_) => f64::NAN,
        }
    }
}

/// A column of a stretch of rows.
#[derive(Clone, Copy, Debug)]
pub struct Cells<'b> {
    /// Index of the column, from [`Builder::column`].
    pub id: u32,
    /// The cells, shape (rows,).
    pub lane: Lane<'b>,
    /// Which cells are recorded, shape (rows,); `None`: all.
    pub valid: Option<&'b [bool]>,
}

impl Cells<'_> {
    #[inline]
    fn has(&self, row: usize) -> bool {
        self.valid.is_none_or(|valid| valid[row])
    }
}

/// Where rows stand in their part.
#[derive(Clone, Copy, Debug)]
pub enum Places<'b> {
    /// One after the other, from here.
    From(u64),
    /// Each somewhere, shape (rows,).
    Each(&'b [u64]),
}

impl Places<'_> {
    /// The place of a row of the stretch.
    #[inline]
    pub fn at(&self, row: usize) -> u64 {
        match self {
            Self::From(first) => first + row as u64,
            Self::Each(places) => places[row],
        }
    }
}

impl Builder<'_> {
    /// Says, before any row, that places are not the numbers of the records: rows of other runs stand between them.
    pub fn place_each_row(&mut self) {
        self.row_is_place = false;
    }

    /// Takes a stretch of `count` rows of one part. A row repeats another if the cells given here are the same (SPEC 6).
    pub fn rows(&mut self, places: Places<'_>, count: usize, cells: &[Cells<'_>]) {
        let steps = self.regular_steps(cells);
        let mut row = 0;
        while row < count {
            let regular = match steps {
                Some(at) if self.step_is_settled(cells[at].id) => self.rising(cells[at].lane, row, count),
                _ => 0,
            };
            if regular > 1 {
                if let Some(Lane::I64(steps)) = steps.map(|at| cells[at].lane) {
                    self.regular_rows(&places, row..row + regular, steps, cells);
                }
                row += regular;
            } else {
                self.one_row(places.at(row), row, cells);
                row += 1;
            }
        }
    }

    /// The only column of steps, if the stretch is regular: integer steps, and no cell missing in any column.
    fn regular_steps(&self, cells: &[Cells<'_>]) -> Option<usize> {
        let is_step = |cells: &Cells<'_>| matches!(self.uses[cells.id as usize], Use::Step { .. });
        let mut steps = cells.iter().enumerate().filter(|(_, cells)| is_step(cells));
        let (at, only) = steps.next()?;
        let is_plain = |cells: &Cells<'_>| cells.valid.is_none() && !matches!(cells.lane, Lane::Text(_));
        let is_regular = steps.next().is_none() && matches!(only.lane, Lane::I64(_)) && cells.iter().all(is_plain);
        is_regular.then_some(at)
    }

    /// Whether steps come from this column, as they are recorded.
    fn step_is_settled(&self, id: u32) -> bool {
        matches!(self.uses[id as usize], Use::Step { rank, .. } if self.step_rank == Some(rank))
            && self.step_is_firm
            && !self.counter.has_doubt()
    }

    /// How many rows from `row` on rise, and above all before them.
    fn rising(&self, steps: Lane<'_>, row: usize, count: usize) -> usize {
        let Lane::I64(steps) = steps else { return 0 };
        let floor = self.axis.last().map_or(self.recent_max, |last| last.max(self.recent_max));
        if steps[row] <= floor {
            return 0;
        }
        1 + steps[row..count].windows(2).take_while(|pair| pair[0] < pair[1]).count()
    }

    fn regular_rows(&mut self, places: &Places<'_>, rows: std::ops::Range<usize>, steps: &[i64], cells: &[Cells<'_>]) {
        let record = self.records;
        self.records += rows.len() as u64;
        self.axis.push_rising(&steps[rows.clone()], record);
        let is_time = |cells: &&Cells<'_>| matches!(self.uses[cells.id as usize], Use::Time);
        let clock_lane = cells.iter().find(is_time).map(|cells| cells.lane);
        let mut times = std::mem::take(&mut self.times);
        times.clear();
        if let Some(lane) = clock_lane {
            times.extend(rows.clone().map(|row| clock::from_number(lane.number(row))));
            if let Some(first) = times.iter().flatten().next() {
                self.started.get_or_insert(*first);
            }
            self.ended = times.iter().rev().flatten().next().copied().or(self.ended);
        }
        let (attempt, training) = (self.axis.attempts(), self.axis.training());
        for column in cells {
            let Use::Series { index, .. } = self.uses[column.id as usize] else { continue };
            let stretch = Stretch {
                rows: rows.clone(),
                steps,
                record,
                places: (!self.row_is_place).then_some(places),
                times: &times,
                attempt,
                training,
            };
            self.series[index as usize].push_stretch(column.lane, &stretch, self.limits);
        }
        self.times = times;
        self.row.filled.clear();
        let filled = cells.iter().filter(|cells| !matches!(self.uses[cells.id as usize], Use::Step { .. }));
        self.row.filled.extend(filled.map(|cells| cells.id));
        self.count_kind(rows.len() as u64);
        self.row.at = places.at(rows.end - 1);
        let newest = rows.end - rows.len().min(DUPLICATE_WINDOW)..rows.end;
        for row in newest {
            self.remember(steps[row], fingerprint(cells, row));
        }
    }

    fn one_row(&mut self, at: u64, row: usize, cells: &[Cells<'_>]) {
        self.begin_row(at);
        for column in cells.iter().filter(|column| column.has(row)) {
            match column.lane {
                Lane::I64(values) if matches!(self.uses[column.id as usize], Use::Step { .. }) => {
                    self.whole_step(column.id, values[row]);
                }
                Lane::Text(texts) => self.text(column.id, texts[row]),
                lane => self.number(column.id, lane.number(row)),
            }
        }
        self.end_row(Some(fingerprint(cells, row)));
    }
}

/// A hash over the cells of a row; missing ones do not matter. NaN is NaN, whatever its bits.
fn fingerprint(cells: &[Cells<'_>], row: usize) -> u64 {
    let cell = |cells: &Cells<'_>| {
        let bits = match cells.lane {
            Lane::Text(texts) => texts[row].bytes().fold(0, |hash, byte| mix(hash, u64::from(byte))),
            lane => match lane.number(row) {
                value if value.is_nan() => u64::MAX,
                value => value.to_bits(),
            },
        };
        mix(u64::from(cells.id), bits)
    };
    cells.iter().filter(|cells| cells.has(row)).fold(0, |hash, cells| hash.wrapping_add(cell(cells)))
}

/// Folds a value into a hash (splitmix64).
pub fn mix(hash: u64, value: u64) -> u64 {
    let mut mixed = (hash ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Format, Limits, PlaceUnit};
    use crate::read::builder::Request;
    use proptest::prelude::*;

    /// Columns of a table: steps, two signals, a counter, a time, and which cells are missing.
    #[derive(Clone, Debug)]
    struct Rows {
        steps: Vec<i64>,
        norms: Vec<f32>,
        losses: Vec<f64>,
        counts: Vec<i64>,
        times: Vec<f64>,
        has_norm: Vec<bool>,
    }

    fn rows() -> impl Strategy<Value = Rows> {
        let jump = prop_oneof![30 => Just(1i64), 3 => 2..5i64, 1 => -30..1i64, 1 => Just(0i64)];
        let norm = prop_oneof![20 => 0.1f32..2.0, 1 => Just(f32::NAN), 1 => Just(f32::INFINITY), 1 => Just(-1.0)];
        let loss = prop_oneof![40 => 0.1f64..2.0, 1 => Just(f64::NAN)];
        let count = prop_oneof![60 => Just(0i64), 1 => 1..9i64];
        let cell = (jump, norm, loss, count, prop::bool::weighted(0.02));
        (prop::collection::vec(cell, 1..400), any::<bool>(), 0..3usize).prop_map(|(cells, gaps, repeats)| {
            let mut step = 0;
            let mut rows = Rows {
                steps: Vec::new(),
                norms: Vec::new(),
                losses: Vec::new(),
                counts: Vec::new(),
                times: Vec::new(),
                has_norm: Vec::new(),
            };
            // Copied tails: rows that repeat others.
            let tail = cells.len().saturating_sub(20 * repeats);
            let copies: Vec<_> = cells.iter().cloned().chain(cells[tail..].iter().cloned()).collect();
            for (index, (jump, norm, loss, count, missing)) in copies.into_iter().enumerate() {
                step = if index == cells.len() { rows.steps[tail] } else { step + jump };
                rows.steps.push(step);
                rows.norms.push(norm);
                rows.losses.push(loss);
                rows.counts.push(count);
                rows.times.push(1.7e9 + step as f64);
                rows.has_norm.push(!(gaps && missing));
            }
            rows
        })
    }

    fn build(rows: &Rows, cuts: &[usize], spread: bool) -> String {
        let (request, limits) = (Request::default(), Limits::default());
        let mut builder = Builder::new(Format::Memory, &request, &limits, PlaceUnit::Row);
        builder.place_each_row();
        builder.begin_part(0);
        let ids = ["step", "grad_norm", "loss", "nan_count", "timestamp"].map(|name| builder.column(name).id);
        builder.narrow(ids[1]);
        let places: Vec<u64> = (0..rows.steps.len() as u64).map(|row| if spread { row * 3 } else { row }).collect();
        for pair in cuts.windows(2) {
            let cut = pair[0]..pair[1];
            let has_norm = &rows.has_norm[cut.clone()];
            let valid = has_norm.contains(&false).then_some(has_norm);
            let lanes = [
                Lane::I64(&rows.steps[cut.clone()]),
                Lane::F32(&rows.norms[cut.clone()]),
                Lane::F64(&rows.losses[cut.clone()]),
                Lane::I64(&rows.counts[cut.clone()]),
                Lane::F64(&rows.times[cut.clone()]),
            ];
            let cells: Vec<Cells<'_>> =
                (0..5).map(|at| Cells { id: ids[at], lane: lanes[at], valid: valid.filter(|_| at == 1) }).collect();
            let places = if spread { Places::Each(&places[cut.clone()]) } else { Places::From(places[cut.start]) };
            builder.rows(places, cut.len(), &cells);
        }
        format!("{:?}", builder.finish())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn a_stretch_is_its_rows(rows in rows(), cut in 0.0..1.0f64, spread in any::<bool>()) {
            let count = rows.steps.len();
            let one_by_one: Vec<usize> = (0..=count).collect();
            let middle = (count as f64 * cut) as usize;
            let want = build(&rows, &one_by_one, spread);
            prop_assert_eq!(&build(&rows, &[0, count], spread), &want);
            prop_assert_eq!(&build(&rows, &[0, middle, count], spread), &want);
        }
    }
}
