//! The step axis of a recording, found while rows stream by: attempts, restarts, interleaving (SPEC 2).

use crate::model::column::Intervals;
use crate::model::{Attempt, Axis};

/// Falls of the step that make rows interleaved instead of resumed: at least this many ...
const INTERLEAVED_FALLS: u64 = 8;
/// ... and more than one in this many rows.
const INTERLEAVED_SHARE: u64 = 20;
/// Falls that make a reversed file of rows that do nothing but fall.
const REVERSED_FALLS: u64 = 2;

/// Builds an [`Axis`] from steps in record order.
#[derive(Debug, Default)]
pub struct AxisBuilder {
    attempts: Vec<Attempt>,
    rows: u64,
    falls: u64,
    previous: i64,
    previous_record: u64,
    /// Record of the row before each attempt but the first.
    before: Vec<u64>,
    training_start: i64,
    intervals: Intervals,
    backward: Intervals,
    overflow: bool,
    fractional: bool,
}

impl AxisBuilder {
    /// Adds the step of the row `record`. Returns whether the axis holds more attempts than `limit` (told once).
    pub fn push(&mut self, step: i64, record: u64, limit: usize) -> bool {
        self.rows += 1;
        let Some(current) = self.attempts.last_mut() else {
            self.attempts.push(Attempt { record, first_step: step, last_step: step, training: 1 });
            self.training_start = step;
            self.previous = step;
            self.previous_record = record;
            return false;
        };
        let mut passed = false;
        if step >= self.previous {
            current.last_step = current.last_step.max(step);
            if step > self.previous {
                self.intervals.add(step.saturating_sub(self.previous));
            }
        } else {
            self.falls += 1;
            self.backward.add(self.previous.saturating_sub(step));
            let mut training = current.training;
            if step <= self.training_start {
                training += 1;
                self.training_start = step;
            }
            if self.attempts.len() < limit {
                self.attempts.push(Attempt { record, first_step: step, last_step: step, training });
                self.before.push(self.previous_record);
            } else {
                passed = !self.overflow;
                self.overflow = true;
            }
        }
        self.previous = step;
        self.previous_record = record;
        passed
    }

    /// Adds steps that rise, and above the newest one, of rows from `record` on.
    pub fn push_rising(&mut self, steps: &[i64], record: u64) {
        let (Some(current), [.., last]) = (self.attempts.last_mut(), steps) else { return };
        current.last_step = current.last_step.max(*last);
        let (mut previous, mut stride, mut count) = (self.previous, 0, 0);
        for step in steps {
            let difference = step.saturating_sub(previous);
            previous = *step;
            if difference != stride {
                self.intervals.add_all(stride, count);
                (stride, count) = (difference, 0);
            }
            count += 1;
        }
        self.intervals.add_all(stride, count);
        self.rows += steps.len() as u64;
        self.previous = *last;
        self.previous_record = record + steps.len() as u64 - 1;
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The newest record.
    pub fn last_record(&self) -> Option<u64> {
        (self.rows > 0).then_some(self.previous_record)
    }

    /// The records between which each attempt but the first begins: that of the row before it, and its own.
    pub fn turns(&self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        self.before.iter().zip(&self.attempts[1.min(self.attempts.len())..]).map(|(before, own)| (*before, own.record))
    }

    /// The first record after `before` and up to `last` at which a step falls here.
    pub fn fall_within(&self, before: u64, last: u64) -> Option<u64> {
        let attempts = &self.attempts[1.min(self.attempts.len())..];
        let first = attempts.get(attempts.partition_point(|attempt| attempt.record <= before))?;
        (first.record <= last).then_some(first.record)
    }

    /// Moves the begin of every attempt: the first to record 0, each other to where `begins` has it.
    pub fn begin_at(&mut self, begins: &[u64]) {
        for (attempt, record) in self.attempts.iter_mut().zip(std::iter::once(&0).chain(begins)) {
            attempt.record = *record;
        }
    }

    /// Notes that a step was no integer.
    pub fn fractional(&mut self) {
        self.fractional = true;
    }

    /// Number (from 1) of the training that the newest row belongs to.
    pub fn training(&self) -> u32 {
        self.attempts.last().map_or(1, |attempt| attempt.training)
    }

    /// Number of attempts so far.
    pub fn attempts(&self) -> usize {
        self.attempts.len()
    }

    /// The newest step.
    pub fn last(&self) -> Option<i64> {
        (self.rows > 0).then_some(self.previous)
    }

    /// The axis of all rows seen.
    pub fn finish(self, step_name: Option<String>) -> Axis {
        let mut first_step = self.attempts.first().map(|attempt| attempt.first_step);
        let last_step = self.attempts.iter().map(|attempt| attempt.last_step).max();
        let is_reversed = self.falls >= REVERSED_FALLS && self.falls + 1 == self.rows;
        let interleaved = self.overflow
            || is_reversed
            || (self.falls >= INTERLEAVED_FALLS && self.falls * INTERLEAVED_SHARE > self.rows);
        let mut attempts = self.attempts;
        if interleaved {
            first_step = attempts.iter().map(|attempt| attempt.first_step).min();
            attempts.truncate(1);
            attempts.iter_mut().for_each(|attempt| {
                attempt.first_step = first_step.unwrap_or(0);
                attempt.last_step = last_step.unwrap_or(0);
            });
        }
        Axis {
            step_name,
            attempts,
            interleaved,
            first_step,
            last_step,
            // A file whose rows only fall is read reversed.
            step_interval: self.intervals.median().or_else(|| self.backward.median()),
            fractional: self.fractional,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(steps: impl IntoIterator<Item = i64>) -> Axis {
        let mut builder = AxisBuilder::default();
        for (record, step) in steps.into_iter().enumerate() {
            builder.push(step, record as u64, 1000);
        }
        builder.finish(Some("step".into()))
    }

    #[test]
    fn a_fall_above_the_start_resumes_and_one_to_the_start_restarts() {
        let axis = axis((0..50).chain(30..80).chain(0..20));
        let found: Vec<_> = axis.attempts.iter().map(|a| (a.record, a.first_step, a.last_step, a.training)).collect();
        assert_eq!(found, [(0, 0, 49, 1), (50, 30, 79, 1), (100, 0, 19, 2)]);
        assert!(!axis.interleaved);
        assert_eq!(axis.attempt_of(49), 0);
        assert_eq!(axis.attempt_of(50), 1);
        assert_eq!(axis.step_interval, Some(1.0));
    }

    #[test]
    fn two_ranks_in_one_file_are_interleaved() {
        let axis = axis((0..40).flat_map(|step| [step, step - 3]));
        assert!(axis.interleaved);
        assert_eq!(axis.attempts.len(), 1);
        assert_eq!(axis.last_step, Some(39));
    }

    #[test]
    fn seven_falls_are_resumptions() {
        let axis = axis((0..8).flat_map(|k| (k * 5)..(k * 5 + 8)));
        assert_eq!(axis.attempts.len(), 8);
        assert_eq!(axis.trainings(), 1);
    }

    #[test]
    fn rows_that_only_fall_are_a_reversed_file() {
        let newest_first = axis((0..6).rev());
        assert!(newest_first.interleaved);
        assert_eq!(
            (newest_first.attempts.len(), newest_first.first_step, newest_first.last_step),
            (1, Some(0), Some(5))
        );
        assert_eq!(newest_first.step_interval, Some(1.0));
        assert!(axis([20, 10, 0]).interleaved);
        // One fall may be a restart, and a row that rises between falls tells of resumptions.
        assert!(!axis([10, 0]).interleaved);
        assert!(!axis([10, 5, 5, 0]).interleaved);
        assert_eq!(axis([10, 11, 5, 6, 0, 1]).attempts.len(), 3);
    }

    #[test]
    fn the_interval_is_a_median() {
        assert_eq!(axis([0, 100, 200, 201, 301]).step_interval, Some(100.0));
        assert_eq!(axis([5]).step_interval, None);
    }
}
