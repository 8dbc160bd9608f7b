//! Steps that count within an epoch and begin anew with the next one (mmcv's `iter`, a script's `batch`). Each epoch is no
//! restart of the training: the steps are counted on.

use super::{StepRank, usual_rank};
use crate::model::roles;

/// What the rows so far say of the step column beside an epoch.
#[derive(Debug, Default)]
pub(super) enum Counter {
    /// No row yet.
    #[default]
    Unseen,
    /// All rows were of one epoch, or the step began anew with each.
    Watched(Epochs),
    /// The step goes on from epoch to epoch, or no epoch is recorded.
    Global,
}

#[derive(Debug)]
pub(super) struct Epochs {
    rank: StepRank,
    /// The first step of an epoch, the newest one and the distance before it, as recorded.
    first: i64,
    last: i64,
    interval: i64,
    /// The newest step, counted on.
    counted: i64,
    /// What is added to the steps of each epoch, up to the newest one. A resumed run takes them up again.
    offsets: Vec<(i64, i64)>,
}

/// Epochs remembered; a step is taken as it is recorded if there are more.
const EPOCHS: usize = 1 << 16;

impl Counter {
    #[inline]
    pub fn has_doubt(&self) -> bool {
        !matches!(self, Self::Global)
    }

    /// Whether the column of a rank is the epoch that is watched.
    pub fn watches(&self, rank: StepRank) -> bool {
        matches!(self, Self::Watched(epochs) if epochs.rank == rank)
    }

    /// The step of a row, counted on, and whether the epoch need not be looked at any more. `steps` is all that is
    /// recorded of steps in the row; a step that the user or the recording chose is taken as it is.
    pub fn step(&mut self, step: i64, steps: &[(StepRank, i64, bool)], is_chosen: bool) -> (i64, bool) {
        let rank = roles::step_rank("epoch").map_or(StepRank::MAX, usual_rank);
        let epoch = steps.iter().find(|(other, ..)| *other == rank).filter(|_| steps.len() > 1 && !is_chosen);
        match (&mut *self, epoch) {
            (Self::Unseen, Some((.., epoch, false))) => {
                let offsets = vec![(*epoch, 0)];
                *self = Self::Watched(Epochs { rank, first: step, last: step, interval: 1, counted: step, offsets });
                return (step, false);
            }
            (Self::Watched(epochs), None) => return (epochs.counted_on(step), false),
            (Self::Watched(epochs), Some((.., epoch, false))) => {
                if let Some(step) = epochs.step(step, *epoch) {
                    return (step, false);
                }
            }
            // An epoch of 0.25 counts the same steps as the step, only coarser.
            _ => {}
        }
        *self = Self::Global;
        (step, true)
    }
}

impl Epochs {
    /// The step of a row counted on; `None` once the step itself goes on from epoch to epoch.
    fn step(&mut self, step: i64, epoch: i64) -> Option<i64> {
        let newest = self.offsets.last().map_or(epoch, |(newest, _)| *newest);
        if epoch > newest {
            if step > self.first || self.offsets.len() >= EPOCHS {
                return None;
            }
            self.offsets.push((epoch, self.counted.saturating_add(self.interval).saturating_sub(step)));
        } else if epoch < newest {
            if self.offsets.len() == 1 {
                return None;
            }
            let begun = self.offsets.partition_point(|(known, _)| *known <= epoch).max(1);
            self.offsets.truncate(begun);
        } else if step > self.last {
            self.interval = step.saturating_sub(self.last);
        }
        self.last = step;
        Some(self.counted_on(step))
    }

    fn counted_on(&mut self, step: i64) -> i64 {
        self.counted = step.saturating_add(self.offsets.last().map_or(0, |(_, offset)| *offset));
        self.counted
    }
}
