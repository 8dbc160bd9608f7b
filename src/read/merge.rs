//! Points of metrics that were recorded apart (a file or an index range each), in one record order.
//!
//! Where every point has a wall time they are ordered by it. Else attempt by attempt, and by step within one. Neither
//! ever changes the order within a series: what was appended later comes later.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::model::column::{Chunks, Ints};
use crate::model::recording::Values;
use crate::read::Builder;

/// One value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Apart {
    /// Its step; where none was recorded, the place among the metric's points.
    pub step: i64,
    /// Whether the step was recorded.
    pub has_step: bool,
    /// The value.
    pub value: f64,
    /// Milliseconds since 1970.
    pub time: Option<i64>,
    /// The part that holds it.
    pub part: u32,
    /// Its offset there, in the builder's unit.
    pub at: u64,
}

/// Stands in [`Series::times`] for none.
const NO_TIME: i64 = i64::MIN;

/// All points of a metric, in the order in which they were recorded.
#[derive(Debug)]
struct Series {
    column: u32,
    steps: Ints,
    values: Values,
    times: Ints,
    places: Ints,
    /// Index of the first point of each part.
    parts: Vec<(usize, u32)>,
    /// Points without a step.
    stepless: Vec<usize>,
}

/// Points of several metrics until all are there: 8 bytes a value, and the steps, times and places that are irregular.
#[derive(Debug, Default)]
pub struct Merge {
    series: Vec<Series>,
}

impl Merge {
    /// Begins a series of a column of the builder that [`give`](Self::give) gets; says its index.
    pub fn begin(&mut self, column: u32) -> usize {
        self.series.push(Series {
            column,
            steps: Ints::default(),
            values: Values::F32(Chunks::default()),
            times: Ints::default(),
            places: Ints::default(),
            parts: Vec::new(),
            stepless: Vec::new(),
        });
        self.series.len() - 1
    }

    /// Takes the next point of a series that was begun.
    pub fn push(&mut self, series: usize, point: Apart) {
        let Some(series) = self.series.get_mut(series) else { return };
        let index = series.steps.len();
        if series.parts.last().is_none_or(|(_, part)| *part != point.part) {
            series.parts.push((index, point.part));
        }
        if !point.has_step {
            series.stepless.push(index);
        }
        series.steps.push(point.step);
        series.values.push(point.value);
        series.times.push(point.time.unwrap_or(NO_TIME));
        series.places.push(point.at as i64);
    }

    /// Number of points of a series.
    pub fn count(&self, series: usize) -> usize {
        self.series.get(series).map_or(0, |series| series.steps.len())
    }

    /// Whether there is no point at all.
    pub fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.steps.is_empty())
    }

    /// Gives all points to a builder of points.
    pub fn give(self, builder: &mut Builder<'_>) {
        let series = &self.series;
        let counts: Vec<usize> = series.iter().map(|series| series.steps.len()).collect();
        let by_time = self.has_times() && !self.is_by_metric();
        let guide = self.guide();
        let mut walks: Vec<Walk> = series.iter().map(|_| Walk::default()).collect();
        let key = |index: usize, at: usize| {
            let (series, walk) = (&series[index], &mut walks[index]);
            let step = series.steps.get(at);
            let attempt = walk.attempt(step, &guide);
            // A clock that is set back moves nothing.
            walk.time = walk.time.max(if by_time { series.times.get(at) } else { NO_TIME });
            (walk.time, attempt, step)
        };
        let mut parts = vec![0; series.len()];
        in_order(&counts, key, |index, at| {
            let series = &series[index];
            let next = &mut parts[index];
            while series.parts.get(*next + 1).is_some_and(|(first, _)| *first <= at) {
                *next += 1;
            }
            builder.turn_to(series.parts.get(*next).map_or(0, |(_, part)| *part));
            let time = series.times.get(at);
            let time = if time == NO_TIME { f64::NAN } else { time as f64 / 1e3 };
            builder.begin_points(series.places.get(at) as u64, series.steps.get(at), time);
            if series.stepless.binary_search(&at).is_ok() {
                builder.forget_step();
            }
            builder.point(series.column, series.values.get(at));
        });
    }

    fn has_times(&self) -> bool {
        self.series.iter().all(|series| series.times.iter().all(|time| time != NO_TIME))
    }

    /// Whether times only say that the metrics were written one after the other (a copy of a whole history).
    fn is_by_metric(&self) -> bool {
        let span = |series: &Series| {
            let ends = series.times.iter().fold(None, |ends, time| match ends {
                None => Some((time, time)),
                Some((low, high)) => Some((time.min(low), time.max(high))),
            });
            ends.filter(|_| series.steps.len() > 1)
        };
        let mut spans: Vec<(i64, i64)> = self.series.iter().filter_map(span).collect();
        spans.sort_unstable();
        spans.len() > 1 && spans.windows(2).all(|pair| pair[0].1 < pair[1].0)
    }

    /// First and largest step of each attempt of the series with the most points.
    fn guide(&self) -> Vec<(i64, i64)> {
        let longest = self.series.iter().rev().max_by_key(|series| series.steps.len());
        let mut attempts: Vec<(i64, i64)> = Vec::new();
        for step in longest.iter().flat_map(|series| series.steps.iter()) {
            match attempts.last_mut() {
                Some((_, last)) if step >= *last => *last = step,
                _ => attempts.push((step, step)),
            }
        }
        attempts
    }
}

/// How far the points of a series are, among those of the others.
#[derive(Debug)]
struct Walk {
    attempt: usize,
    step: Option<i64>,
    time: i64,
}

impl Default for Walk {
    fn default() -> Self {
        Self { attempt: 0, step: None, time: NO_TIME }
    }
}

impl Walk {
    /// The attempt that the next point belongs to: a later one where its step falls, or lies beyond the end of the
    /// current one; of those the first that spans the step. A sparse metric need not fall where the training resumed.
    fn attempt(&mut self, step: i64, guide: &[(i64, i64)]) -> usize {
        let falls = self.step.is_some_and(|before| step < before);
        self.step = Some(step);
        let ended = guide.get(self.attempt).is_some_and(|(_, last)| step > *last);
        if falls || ended {
            let later = guide.get(self.attempt + 1..).unwrap_or_default();
            match later.iter().position(|(first, last)| (*first..=*last).contains(&step)) {
                Some(more) => self.attempt += 1 + more,
                None => self.attempt += usize::from(falls),
            }
        }
        self.attempt
    }
}

/// Visits the points of several series, each of the given length, in the order of their keys. Keys are asked for point
/// by point along each series; that of one point must not be below that of the point before it, or the latter waits.
pub fn in_order<K: Ord>(counts: &[usize], mut key: impl FnMut(usize, usize) -> K, mut visit: impl FnMut(usize, usize)) {
    let begun = (0..counts.len()).filter(|series| counts[*series] > 0);
    let mut next: BinaryHeap<Reverse<(K, usize, usize)>> =
        begun.map(|series| Reverse((key(series, 0), series, 0))).collect();
    while let Some(Reverse((_, series, at))) = next.pop() {
        visit(series, at);
        if at + 1 < counts[series] {
            next.push(Reverse((key(series, at + 1), series, at + 1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Format, Limits, PlaceUnit, Recording, Signal};
    use crate::read::Request;

    const LOSS: &str = "train/loss";
    const NORM: &str = "train/grad_norm";
    const EVAL: &str = "eval/loss";

    type Points = Vec<(i64, f64, Option<i64>)>;

    fn merged(metrics: &[(&str, Points)]) -> Recording {
        let (request, limits) = (Request { everything: true, ..Request::default() }, Limits::default());
        let mut builder = Builder::of_points(Format::Jsonl, &request, &limits, PlaceUnit::Line, false);
        let mut merge = Merge::default();
        assert!(merge.is_empty());
        for (part, (name, points)) in metrics.iter().enumerate() {
            let series = merge.begin(builder.column(name).id);
            for (line, (step, value, time)) in points.iter().enumerate() {
                let (part, at) = (part as u32, line as u64 + 1);
                merge.push(series, Apart { step: *step, has_step: true, value: *value, time: *time, part, at });
            }
            assert_eq!(merge.count(series), points.len());
        }
        merge.give(&mut builder);
        builder.finish()
    }

    /// Record and step of every point of a series.
    fn rows(recording: &Recording, name: &str) -> Vec<(i64, i64)> {
        let series = recording.series.iter().find(|series| series.name == name).expect("the series is there");
        let Signal::Kept(kept) = &series.signal else { panic!("every series of a full read is kept") };
        kept.records.iter().zip(kept.steps.iter()).collect()
    }

    fn attempts(recording: &Recording) -> Vec<(u64, i64, i64)> {
        recording.axis.attempts.iter().map(|own| (own.record, own.first_step, own.last_step)).collect()
    }

    fn at(steps: impl IntoIterator<Item = i64>, time: impl Fn(usize) -> Option<i64>) -> Points {
        steps.into_iter().enumerate().map(|(index, step)| (step, index as f64, time(index))).collect()
    }

    const START: i64 = 1_700_000_000_000;

    #[test]
    fn one_log_call_is_one_record() {
        // Each metric of a call has a time of its own, a millisecond apart.
        let time = |late: i64| move |index: usize| Some(START + 1_000 * index as i64 + late);
        let recording = merged(&[(LOSS, at(0..20, time(0))), (NORM, at(0..20, time(1))), (EVAL, at([19], |_| None))]);
        assert_eq!(recording.records, 20);
        assert_eq!(rows(&recording, LOSS), rows(&recording, NORM));
        assert_eq!(rows(&recording, EVAL), [(19, 19)]);
    }

    #[test]
    fn attempts_lie_at_one_place_by_time() {
        let steps = || (0..30).chain(20..50);
        let time = |late: i64| move |index: usize| Some(START + 1_000 * index as i64 + late);
        let eval: Points = vec![(25, 1.0, Some(START + 25_500)), (25, 2.0, Some(START + 35_500))];
        let recording = merged(&[(NORM, at(steps(), time(0))), (LOSS, at(steps(), time(3))), (EVAL, eval)]);
        assert_eq!(attempts(&recording), [(0, 0, 29), (30, 20, 49)]);
        assert_eq!(rows(&recording, NORM)[29..31], [(29, 29), (30, 20)]);
        assert_eq!(rows(&recording, LOSS), rows(&recording, NORM));
        assert_eq!(rows(&recording, EVAL), [(25, 25), (35, 25)]);
    }

    #[test]
    fn attempts_lie_at_one_place_without_times() {
        let steps = || (0..30).chain(20..50).chain(40..60);
        let eval = [10, 20, 30, 40, 50];
        let recording =
            merged(&[(EVAL, at(eval, |_| None)), (LOSS, at(steps(), |_| None)), (NORM, at(steps(), |_| None))]);
        assert_eq!(attempts(&recording), [(0, 0, 29), (30, 20, 49), (60, 40, 59)]);
        assert_eq!(rows(&recording, LOSS), rows(&recording, NORM));
        // 30 was never reached by the first attempt, nor 50 by the second.
        assert_eq!(rows(&recording, EVAL), [(10, 10), (20, 20), (40, 30), (50, 40), (70, 50)]);
    }

    #[test]
    fn one_time_for_all_means_nothing() {
        let same = |_| Some(START);
        let steps = || (0..10).chain(5..15);
        let recording = merged(&[(LOSS, at(steps(), same)), (NORM, at(steps(), same))]);
        assert_eq!(recording.records, 20);
        assert_eq!(rows(&recording, LOSS), rows(&recording, NORM));
        assert_eq!(attempts(&recording), [(0, 0, 9), (10, 5, 14)]);
    }

    #[test]
    fn metrics_that_were_copied_one_after_the_other_are_by_step() {
        let from = |start: i64| move |index: usize| Some(start + index as i64);
        let steps = || (0..10).chain(5..15);
        let recording = merged(&[(LOSS, at(steps(), from(START))), (NORM, at(steps(), from(START + 500)))]);
        assert_eq!(rows(&recording, LOSS), rows(&recording, NORM));
        assert_eq!(attempts(&recording), [(0, 0, 9), (10, 5, 14)]);
    }

    #[test]
    fn a_clock_that_is_set_back_reorders_nothing() {
        let back = |index: usize| Some(START + 1_000 * index as i64 - if index >= 5 { 3_600_000 } else { 0 });
        let recording = merged(&[(LOSS, at(0..10, back)), (NORM, at(0..10, back))]);
        let steps: Vec<i64> = rows(&recording, LOSS).into_iter().map(|(_, step)| step).collect();
        assert_eq!(steps, (0..10).collect::<Vec<_>>());
        assert_eq!(recording.axis.attempts.len(), 1);
    }

    #[test]
    fn each_point_has_its_place() {
        let (request, limits) = (Request::default(), Limits::default());
        let mut builder = Builder::of_points(Format::Jsonl, &request, &limits, PlaceUnit::Line, false);
        let mut merge = Merge::default();
        let (loss, norm) = (merge.begin(builder.column(LOSS).id), merge.begin(builder.column(NORM).id));
        for step in 0..6 {
            let point = |part: u32, at: i64| {
                let value = if step == 4 { f64::NAN } else { 1.0 };
                Apart { step, has_step: step != 5, value, time: None, part, at: at as u64 }
            };
            merge.push(loss, point(1, step + 1));
            // The norm goes on in another file.
            merge.push(norm, if step < 3 { point(2, step + 1) } else { point(3, step - 2) });
        }
        merge.give(&mut builder);
        let recording = builder.finish();
        let series = |name: &str| recording.series.iter().find(|series| series.name == name).expect("it is there");
        let Signal::Reduced(loss) = &series(LOSS).signal else { panic!("a loss is reduced") };
        let place = recording.place_in(series(LOSS), loss.bad[0].record, loss.bad[0].place);
        assert_eq!((place.part, place.at), (1, 5));
        let Signal::Kept(norm) = &series(NORM).signal else { panic!("a gradient norm is kept") };
        let places: Vec<(u32, u64)> = (0..6)
            .map(|row| (norm.records.get(row) as u64, norm.places.get(row).expect("it has a place") as u64))
            .map(|(record, at)| recording.place_in(series(NORM), record, at))
            .map(|place| (place.part, place.at))
            .collect();
        assert_eq!(places, [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3)]);
        assert_eq!(norm.stepless, [5]);
    }
}
