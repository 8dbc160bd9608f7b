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
        *once.get_or_init(|| weights(&path, limits, cancel))
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
/// One without safetensors files ends the search: it keeps its status, with the reason `unverified`. Where every one is
/// poisoned or cannot be read there is none, with the reason `poisoned`.
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
    while let Some(number) = restore.step {
        // The one that the recording names may be met under another path.
        let met = among.met.iter().find(|met| Some(&met.path) == restore.path.as_ref()).or_else(|| {
            let unit = among.unit;
            among.met.iter().find(|met| met.number == number && Some(met.unit) == unit && met.complete)
        });
        let found = met.map_or(Weights::Unknown, |met| verified.weights(root.locate(&met.path), limits, cancel));
        match found {
            Weights::Sound => {
                restore.path = met.map(|met| met.path.clone());
                let is_settled = restore.status == RestoreStatus::Clean
                    || finding.check == Check::Nonfinite && restore.reason == Some("inside-interval");
                // That several attempts cover its step no weights can settle.
                if is_settled {
                    (restore.status, restore.reason) = (RestoreStatus::Verified, None);
                }
                return Restore { after, ..restore };
            }
            Weights::Unknown => {
                restore.reason = restore.reason.or(Some("unverified"));
                return Restore { after, ..restore };
            }
            Weights::Poisoned | Weights::Unreadable => {
                let path = met.map_or("", |met| met.path.as_str());
                left.retain(|other| {
                    other.number < number || other.number == number && !other.path.is_empty() && other.path != path
                });
            }
        }
        restore = restore::choose(&left, among.unit, finding.last_good_step, finding.onset_step, among.axis);
    }
    Restore { step: None, path: None, status: RestoreStatus::None, reason: Some("poisoned"), after }
}
