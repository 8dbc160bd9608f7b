//! Notes: what a reader of the verdict should know; they never fire (SPEC 3).

use crate::model::finding::SeriesStats;
use crate::model::recording::Kept;
use crate::model::{FaultKind, Knobs, Recording, Role, Signal};

/// A clip plateau: values within this share of the largest one.
const PLATEAU: f64 = 1e-3;
/// Median step interval from which a log is sparse.
const SPARSE: f64 = 100.0;
/// Below this coverage a clean run says how far its signal reaches.
const PARTIAL: f64 = 0.5;

/// Every note, in the order in which a run lists them.
pub const ALL: [&str; 16] = [
    "empty",
    "no-step",
    "fractional-step",
    "loss-only",
    "too-few-points",
    "partial-coverage",
    "sparse-log",
    "gap",
    "clipped-norm",
    "zero-median",
    "negative-norm",
    "resumed",
    "restarted",
    "interleaved",
    "truncated",
    "unterminated",
];

/// The notes of a recording, in the order of [`ALL`].
pub fn notes(recording: &Recording, series: &[SeriesStats], coverage: Option<f64>, knobs: &Knobs) -> Vec<&'static str> {
    ALL.into_iter().filter(|note| applies(note, recording, series, coverage, knobs)).collect()
}

fn applies(note: &str, recording: &Recording, series: &[SeriesStats], coverage: Option<f64>, knobs: &Knobs) -> bool {
    let axis = &recording.axis;
    let is_total = |role: Role| matches!(role, Role::GradNorm | Role::GradNormPostClip);
    let totals = || recording.series.iter().filter(|series| series.role.is_some_and(is_total));
    match note {
        "empty" => recording.records == 0,
        "no-step" => recording.records > 0 && axis.step_name.is_none(),
        "fractional-step" => axis.fractional,
        "loss-only" => totals().next().is_none() && recording.with_role(Role::Loss).next().is_some(),
        "too-few-points" => totals().any(|series| series.tally.finite() - series.tally.minus_one < knobs.min_points),
        "partial-coverage" => coverage.is_some_and(|coverage| coverage < PARTIAL),
        "sparse-log" => axis.step_interval.is_some_and(|interval| interval >= SPARSE),
        "gap" => recording.series.iter().any(|series| {
            let loss_only = totals().next().is_none() && series.role == Some(Role::Loss);
            (series.role.is_some_and(is_total) || loss_only) && series.gaps > 0
        }),
        "clipped-norm" => recording.series.iter().any(|candidate| match (&candidate.signal, candidate.role) {
            (Signal::Kept(kept), Some(role)) if is_total(role) => {
                let stats = series.iter().find(|stats| stats.metric == candidate.name);
                stats.is_some_and(|stats| is_plateau(kept, stats))
            }
            _ => false,
        }),
        "zero-median" => series.iter().any(|stats| is_total(stats.role) && stats.median == Some(0.0)),
        "negative-norm" => totals().any(|series| series.tally.negative > 0),
        "resumed" => axis.attempts.windows(2).any(|pair| pair[0].training == pair[1].training),
        "restarted" => axis.trainings() > 1,
        "interleaved" => axis.interleaved,
        "truncated" => recording.faults.iter().any(|fault| fault.kind == FaultKind::Truncated),
        "unterminated" => recording.unterminated,
        _ => false,
    }
}

/// Over half of the values within 0.1 % of one value and none above it. That value is then the largest one, and the
/// median lies on the plateau: the pass over the values is rarely needed.
fn is_plateau(kept: &Kept, stats: &SeriesStats) -> bool {
    let (Some(median), Some(max)) = (stats.median, stats.max) else { return false };
    let floor = max * (1.0 - PLATEAU);
    if max <= 0.0 || median < floor {
        return false;
    }
    let on_plateau = (0..kept.values.len()).filter(|row| (floor..=max).contains(&kept.values.get(*row))).count();
    on_plateau as u64 * 2 > stats.rows - stats.nan - stats.inf
}
