//! Restore points verified: the weights of a checkpoint are audited before it is named, and an older one takes the place
//! of one that holds NaN or Inf.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::audit_files::{Weights, weights};
use crate::model::checkpoint_name::Unit;
use crate::model::finding::Check;
use crate::model::{Axis, Checkpoint, Finding, Limits};
use crate::open::Root;
use crate::restore::{self, Restore, RestoreStatus};

/// What audits of checkpoints have said so far: findings share checkpoints, and each is read once.
#[derive(Debug, Default)]
pub struct Verified(Mutex<HashMap<PathBuf, Arc<OnceLock<Weights>>>>);

impl Verified {
    fn weights(&self, path: PathBuf, limits: &Limits, cancel: &AtomicBool) -> Weights {
        let once = {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry(path.clone()).or_default())
        };
        once.get_or_init(|| weights(&path, limits, cancel)).clone()
    }
}

/// What a finding's restore point is chosen from.
#[derive(Clone, Copy, Debug)]
pub struct Among<'a> {
    /// All checkpoints known of the recording.
    pub checkpoints: &'a [Checkpoint],
    /// Those of them that a walk met. A path that only a recording names is never opened.
    pub met: &'a [Checkpoint],
    /// What the recording counts.
    pub unit: Option<Unit>,
    /// Its attempts.
    pub axis: &'a Axis,
}

/// The restore point of a finding whose weights are sound, looked for from `chosen` on backwards.
///
/// One whose weights cannot be looked at ends the search: it keeps its status, with the reason that [`Weights::Unknown`]
/// gives, or `not-met` where only the recording names it. Where every one is poisoned or cannot be read there is none,
/// with the reason `poisoned`. What was passed over is told.
pub fn verify(
    chosen: Restore,
    finding: &Finding,
    among: Among<'_>,
    root: &Root,
    verified: &Verified,
    limits: &Limits,
    cancel: &AtomicBool,
) -> Restore {
    let mut restore = chosen;
    let mut left: Vec<Checkpoint> = among.checkpoints.to_vec();
    let after = restore.after;
    let mut passed: Vec<String> = Vec::new();
    while let Some(number) = restore.step {
        // The one that the recording names may be met under another path.
        let met = among.met.iter().find(|met| Some(&met.path) == restore.path.as_ref()).or_else(|| {
            let unit = among.unit;
            among.met.iter().find(|met| met.number == number && Some(met.unit) == unit && met.complete)
        });
        let found =
            met.map_or(Weights::Unknown("not-met"), |met| verified.weights(root.locate(&met.path), limits, cancel));
        match found {
            Weights::Sound => {
                restore.path = met.map(|met| met.path.clone());
                let is_settled = restore.status == RestoreStatus::Clean
                    || finding.check == Check::Nonfinite && restore.reason == Some("inside-interval");
                // That several attempts cover its step no weights can settle.
                if is_settled {
                    (restore.status, restore.reason) = (RestoreStatus::Verified, None);
                }
                return Restore { after, passed: told(&passed), ..restore };
            }
            Weights::Unknown(why) => {
                restore.reason = restore.reason.or(Some(why));
                return Restore { after, passed: told(&passed), ..restore };
            }
            Weights::Poisoned(what) | Weights::Unreadable(what) => {
                let path = met.map_or("", |met| met.path.as_str());
                passed.push(format!("{} {what}", path.rsplit('/').next().unwrap_or(path)));
                left.retain(|other| {
                    other.number < number || other.number == number && !other.path.is_empty() && other.path != path
                });
            }
        }
        restore = restore::choose(&left, among.unit, finding.last_good_step, finding.onset_step, among.axis);
    }
    let passed = told(&passed);
    Restore { step: None, path: None, status: RestoreStatus::None, reason: Some("poisoned"), passed, after }
}

/// Checkpoints told of by name in one sentence.
const MOST_TOLD: usize = 3;

/// What was passed over, the newest first.
fn told(passed: &[String]) -> Option<String> {
    let mut told: Vec<String> = passed.iter().take(MOST_TOLD).cloned().collect();
    if passed.len() > MOST_TOLD {
        told.push(format!("and {} more", passed.len() - MOST_TOLD));
    }
    (!told.is_empty()).then(|| told.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_told_by_name() {
        let passed: Vec<String> = (0..5).map(|k| format!("checkpoint-{k} holds NaN in w")).collect();
        assert_eq!(told(&[]), None);
        assert_eq!(told(&passed[..1]).as_deref(), Some("checkpoint-0 holds NaN in w"));
        let many = told(&passed).unwrap();
        assert!(many.ends_with("checkpoint-2 holds NaN in w; and 2 more"), "{many}");
    }
}
