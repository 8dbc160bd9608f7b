//! The restore point: "the first bad step, minus one checkpoint" (SPEC 4). Pure; names come from the walk.

use std::borrow::Cow;

use crate::model::checkpoint_name::Unit;
use crate::model::{Axis, Checkpoint};

/// How sure the restore point is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreStatus {
    /// A checkpoint from at or before the last fine row.
    Clean,
    /// The same, and every value of its weights was seen to be finite.
    Verified,
    /// Only ones from between the last fine row and the onset, or several attempts cover its step.
    Uncertain,
    /// Checkpoints are known, none from before the damage.
    None,
    /// No checkpoint is known, or none that counts what the recording counts.
    Unknown,
}

impl RestoreStatus {
    /// The name shown in `findings.restore_status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Verified => "verified",
            Self::Uncertain => "uncertain",
            Self::None => "none",
            Self::Unknown => "unknown",
        }
    }
}

/// Where to go back to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// The checkpoint's number.
    pub step: Option<u64>,
    /// Its path, where one is known.
    pub path: Option<String>,
    /// How sure.
    pub status: RestoreStatus,
    /// Why not `clean`: a stable code for the wording.
    pub reason: Option<&'static str>,
    /// What was passed over, and why: `checkpoint-200 holds NaN in w`.
    pub passed: Option<String>,
    /// Known checkpoints at or after the onset.
    pub after: u64,
}

impl Restore {
    /// The reason as tables carry it: its code, and behind `": "` what was passed over.
    pub fn said(&self) -> Option<Cow<'_, str>> {
        match &self.passed {
            Some(passed) => Some(Cow::Owned(format!("{}: {passed}", self.reason.unwrap_or("")))),
            None => self.reason.map(Cow::Borrowed),
        }
    }
}

/// Chooses among `checkpoints` for a damage that begins in (`last_good`, `onset`], counted in `unit`.
pub fn choose(
    checkpoints: &[Checkpoint],
    unit: Option<Unit>,
    last_good: Option<i64>,
    onset: Option<i64>,
    axis: &Axis,
) -> Restore {
    let unknown =
        |reason| Restore { step: None, path: None, status: RestoreStatus::Unknown, reason, passed: None, after: 0 };
    if checkpoints.is_empty() {
        return unknown(Some("no-checkpoint"));
    }
    let Some(unit) = unit else { return unknown(Some("no-step")) };
    // W&B and trackio count calls of `log` where nobody gives them a step: one row after the other, whatever the trainer did.
    let counts_calls = axis.step_name.as_deref() == Some("_step");
    if counts_calls && axis.step_interval.is_none_or(|interval| interval <= 1.0) {
        return unknown(Some("call-counter"));
    }
    // A damage whose step was not recorded began somewhere after the last fine row.
    let Some(onset) = onset.or_else(|| last_good.map(|step| step.saturating_add(1))) else {
        return unknown(Some("no-step"));
    };
    let mut known: Vec<&Checkpoint> = checkpoints.iter().filter(|checkpoint| checkpoint.unit == unit).collect();
    if known.is_empty() {
        return unknown(Some("other-unit"));
    }
    known.sort_by(|a, b| {
        (a.number, !a.complete, a.path.is_empty(), &a.path).cmp(&(b.number, !b.complete, b.path.is_empty(), &b.path))
    });
    let number = |checkpoint: &Checkpoint| i64::try_from(checkpoint.number).unwrap_or(i64::MAX);
    let after = known.iter().filter(|checkpoint| number(checkpoint) >= onset).map(|c| c.number);
    let after = after.collect::<std::collections::BTreeSet<_>>().len() as u64;
    let none = |reason| Restore {
        step: None,
        path: None,
        status: RestoreStatus::None,
        reason: Some(reason),
        passed: None,
        after,
    };
    let Some(last_good) = last_good else { return none("no-good-row") };
    let complete: Vec<&Checkpoint> = known.into_iter().filter(|checkpoint| checkpoint.complete).collect();
    let at = |checkpoint: &Checkpoint, status, reason| Restore {
        step: Some(checkpoint.number),
        path: Some(checkpoint.path.clone()).filter(|path| !path.is_empty()),
        status,
        reason,
        passed: None,
        after,
    };
    let newest = complete.iter().rev().find(|checkpoint| number(checkpoint) <= last_good).map(|c| c.number);
    if let Some(newest) = newest
        && let Some(checkpoint) = complete.iter().find(|checkpoint| checkpoint.number == newest)
    {
        let step = number(checkpoint);
        let covering = axis.attempts.iter().filter(|a| (a.first_step..=a.last_step).contains(&step)).count();
        let (status, reason) = match covering {
            0 | 1 => (RestoreStatus::Clean, None),
            _ => (RestoreStatus::Uncertain, Some("several-attempts")),
        };
        return at(checkpoint, status, reason);
    }
    match complete.iter().find(|checkpoint| number(checkpoint) < onset) {
        Some(checkpoint) => at(checkpoint, RestoreStatus::Uncertain, Some("inside-interval")),
        None => none("none-before"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Attempt;

    fn at(numbers: &[u64]) -> Vec<Checkpoint> {
        let named = |number: &u64| Checkpoint {
            number: *number,
            unit: Unit::Step,
            path: format!("checkpoint-{number}"),
            complete: true,
        };
        numbers.iter().map(named).collect()
    }

    fn chosen(numbers: &[u64], last_good: Option<i64>, onset: i64) -> (Option<u64>, RestoreStatus, u64) {
        let restore = choose(&at(numbers), Some(Unit::Step), last_good, Some(onset), &Axis::default());
        (restore.step, restore.status, restore.after)
    }

    #[test]
    fn the_newest_at_or_before_the_last_good_step() {
        assert_eq!(chosen(&[100, 200, 300], Some(250), 260), (Some(200), RestoreStatus::Clean, 1));
        assert_eq!(chosen(&[100, 200, 300], Some(200), 260), (Some(200), RestoreStatus::Clean, 1));
    }

    #[test]
    fn inside_the_interval_the_oldest_and_uncertain() {
        assert_eq!(chosen(&[210, 220, 300], Some(200), 230), (Some(210), RestoreStatus::Uncertain, 1));
    }

    #[test]
    fn none_before_and_none_known() {
        assert_eq!(chosen(&[300], Some(200), 230), (None, RestoreStatus::None, 1));
        assert_eq!(chosen(&[300], None, 230), (None, RestoreStatus::None, 1));
        assert_eq!(chosen(&[], Some(200), 230), (None, RestoreStatus::Unknown, 0));
    }

    #[test]
    fn units_are_never_compared() {
        let mut epochs = at(&[1, 2]);
        epochs.iter_mut().for_each(|checkpoint| checkpoint.unit = Unit::Epoch);
        let restore = choose(&epochs, Some(Unit::Step), Some(10), Some(11), &Axis::default());
        assert_eq!((restore.status, restore.reason), (RestoreStatus::Unknown, Some("other-unit")));
    }

    #[test]
    fn calls_of_log_are_no_steps() {
        let mut axis = Axis { step_name: Some("_step".to_owned()), step_interval: Some(1.0), ..Axis::default() };
        let restore = |axis: &Axis| choose(&at(&[20, 60]), Some(Unit::Step), Some(64), Some(66), axis);
        assert_eq!(restore(&axis).reason, Some("call-counter"));
        // Steps with gaps were given by the user.
        axis.step_interval = Some(10.0);
        assert_eq!((restore(&axis).status, restore(&axis).step), (RestoreStatus::Clean, Some(60)));
    }

    #[test]
    fn a_step_that_several_attempts_cover_is_uncertain() {
        let attempt = |record, first_step, last_step, training| Attempt { record, first_step, last_step, training };
        let axis = Axis { attempts: vec![attempt(0, 0, 50, 1), attempt(51, 30, 90, 1)], ..Axis::default() };
        let restore = choose(&at(&[40]), Some(Unit::Step), Some(60), Some(61), &axis);
        assert_eq!(restore.status, RestoreStatus::Uncertain);
    }

    #[test]
    fn what_was_passed_over_stands_behind_the_code() {
        let mut restore = choose(&at(&[100]), Some(Unit::Step), Some(250), Some(260), &Axis::default());
        assert_eq!(restore.said(), None);
        restore.passed = Some("checkpoint-200 holds NaN in w".to_owned());
        assert_eq!(restore.said().as_deref(), Some(": checkpoint-200 holds NaN in w"));
        restore.reason = Some("poisoned");
        assert_eq!(restore.said().as_deref(), Some("poisoned: checkpoint-200 holds NaN in w"));
    }

    #[test]
    fn an_incomplete_checkpoint_is_not_named() {
        let mut checkpoints = at(&[100, 200]);
        checkpoints[1].complete = false;
        let restore = choose(&checkpoints, Some(Unit::Step), Some(250), Some(260), &Axis::default());
        assert_eq!(restore.step, Some(100));
    }
}
