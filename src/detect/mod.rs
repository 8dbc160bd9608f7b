//! The two checks and the status of a recording (SPEC 2, 3): pure functions of a [`Recording`].

pub mod nonfinite;
pub mod notes;
pub mod spikes;
mod suspicions;
mod training;

pub use training::Worker;

use crate::model::finding::SeriesStats;
use crate::model::{Knobs, Phase, Recording, Role, Signal, Status, Verdict};
use training::Training;

/// Judges a recording: both checks on each of its trainings, its status, and how far its signal reaches.
pub fn judge(recording: &Recording, knobs: &Knobs, worker: &mut Worker) -> Verdict {
    let trainings: Vec<Training<'_>> =
        (1..=recording.axis.trainings()).map(|number| Training::new(recording, number, knobs, worker)).collect();
    let mut findings = Vec::new();
    for training in &trainings {
        findings.extend(nonfinite::check(training));
        findings.extend(spikes::check(training));
    }
    let series = stats(recording, &trainings, worker);
    let assessed = assess(recording, knobs);
    let suspicions = suspicions::suspicions(recording);
    let status = if findings.iter().any(|finding| finding.phase != Some(Phase::Opening)) {
        Status::Damaged
    } else if !suspicions.is_empty() {
        Status::Suspect
    } else if !findings.is_empty() {
        Status::Opening
    } else if assessed.is_ok() {
        Status::Clean
    } else {
        Status::NotAssessable
    };
    let reason = if status == Status::NotAssessable { assessed.err() } else { None };
    let coverage = coverage(recording);
    let notes = notes::notes(recording, &series, coverage, knobs);
    Verdict { status, reason, findings, series, suspicions, notes, coverage }
}

/// Whether there is enough evidence to call a recording without a finding clean; else why not.
fn assess(recording: &Recording, knobs: &Knobs) -> Result<(), (&'static str, String)> {
    let finite = |role: Role| recording.with_role(role).map(|series| series.tally.finite() - series.tally.minus_one);
    let most = |role: Role| finite(role).max();
    let norms = most(Role::GradNorm).into_iter().chain(most(Role::GradNormPostClip)).max();
    let is_total = |role: Role| matches!(role, Role::GradNorm | Role::GradNormPostClip);
    let lost: Vec<&str> =
        recording.lost.iter().filter(|(_, role)| is_total(*role)).map(|(name, _)| name.as_str()).collect();
    if !lost.is_empty() && norms.is_none_or(|points| points < knobs.min_points) {
        return Err(("damaged-signal", lost.join(", ")));
    }
    if recording.has_lost_rows {
        // A NaN may stand in what is lost: the rest does not make it clean.
        let named = |is_it: &dyn Fn(Role) -> bool| -> Vec<&str> {
            let read = recording.series.iter().filter_map(|series| Some((series.name.as_str(), series.role?)));
            let all = read.chain(recording.lost.iter().map(|(name, role)| (name.as_str(), *role)));
            let mut names: Vec<&str> = all.filter(|(_, role)| is_it(*role)).map(|(name, _)| name).collect();
            names.sort_unstable();
            names.dedup();
            names
        };
        let norms = named(&is_total);
        let signal = if norms.is_empty() { named(&|role| role == Role::Loss) } else { norms };
        if !signal.is_empty() || recording.series.is_empty() {
            return Err(("damaged-signal", signal.join(", ")));
        }
    }
    match norms.or_else(|| most(Role::Loss)) {
        Some(points) if points >= knobs.min_points => Ok(()),
        Some(points) => Err(("too-few-points", points.to_string())),
        None if recording.records == 0 && recording.events.is_empty() => Err(("empty", String::new())),
        None if recording.with_role(Role::LayerGradNorm).next().is_some() => Err(("layer-only", String::new())),
        None => {
            let others = recording.series.iter().map(|series| &series.name).chain(&recording.unrecognised);
            Err(("no-signal", others.take(8).cloned().collect::<Vec<_>>().join(", ")))
        }
    }
}

/// Last step with a signal / last step of the recording. The signal is the gradient norm where one is recorded, else
/// the training loss: what makes a recording clean must say how far it reaches.
fn coverage(recording: &Recording) -> Option<f64> {
    let reach = |role: Role| recording.with_role(role).map(|series| series.last_step).max();
    let norm = reach(Role::GradNorm).into_iter().chain(reach(Role::GradNormPostClip)).max();
    let signal = norm.or_else(|| reach(Role::Loss))?;
    let last = recording.axis.last_step.unwrap_or(signal).max(signal);
    Some(if last > 0 { signal.max(0) as f64 / last as f64 } else { 1.0 })
}

fn stats(recording: &Recording, trainings: &[Training<'_>], worker: &mut Worker) -> Vec<SeriesStats> {
    let checked = recording.series.iter().enumerate();
    checked
        .filter_map(|(index, series)| {
            let role = series.role.filter(|role| nonfinite::class(*role).is_some())?;
            let norms = || trainings.iter().flat_map(|training| &training.norms).filter(|norms| norms.index == index);
            let median = match (&series.signal, trainings) {
                (Signal::Kept(_), [_]) => norms().next().and_then(|norms| norms.median),
                (Signal::Kept(kept), _) => {
                    training::median(kept, 0..kept.values.len(), series.tally.minus_one > 0, worker)
                }
                (Signal::Reduced(_), _) => None,
            };
            Some(SeriesStats {
                role,
                metric: series.name.clone(),
                rows: series.tally.rows,
                nan: series.tally.nan,
                inf: series.tally.inf,
                median,
                max: series.tally.max(),
                spikes: norms().map(|norms| norms.spikes.len() as u64).sum(),
                first_step: Some(series.first_step),
                last_step: Some(series.last_step),
            })
        })
        .collect()
}
