#![doc = include_str!("spikes.md")]

use super::training::{LISTED_STEPS, Norms, Training};
use crate::model::finding::Check;
use crate::model::{Evidence, Finding, Phase};

/// Confidence of a `spikes` finding.
pub const CONFIDENCE: f64 = 0.85;

/// At most one finding a gradient-norm series of the training.
pub fn check(training: &Training<'_>) -> Vec<Finding> {
    let fires = |norms: &&Norms<'_>| {
        norms.spike_tested
            && norms.finite() >= training.knobs.min_points
            && !norms.spikes.is_empty()
            && norms.spikes.len() as u64 >= training.knobs.min_spikes
    };
    training.norms.iter().filter(fires).filter_map(|norms| finding(training, norms)).collect()
}

fn finding(training: &Training<'_>, norms: &Norms<'_>) -> Option<Finding> {
    let rows = &norms.rows;
    let first = norms.spike_rows().next()?;
    let last = norms.spike_rows().next_back()?;
    let count_opening = norms.spike_rows().filter(|row| norms.in_opening(*row)).count() as u64;
    let count = norms.spikes.len() as u64;
    let late = count - count_opening;
    let phase = if late > 0 && late >= training.knobs.min_spikes { Phase::Run } else { Phase::Opening };
    let onset = match phase {
        Phase::Run => norms.spike_rows().find(|row| !norms.in_opening(*row)).unwrap_or(first),
        Phase::Opening => first,
    };
    let good = norms.last_good_before(onset);
    let attempt = training.attempt_of(rows.record(first));
    let recorded = |row: usize| rows.recorded_step(row, &training.recording.axis);
    let first_step = recorded(first);
    let good_before_first = norms.last_good_before(first);
    Some(Finding {
        check: Check::Spikes,
        metric: norms.series.name.clone(),
        role: norms.series.role,
        confidence: CONFIDENCE,
        first_step,
        first_record: rows.record(first),
        first_place: Some(training.recording.place_in(norms.series, rows.record(first), rows.place(first))),
        first_time: rows.time(first),
        first_value: Some(rows.value(first)),
        onset_step: recorded(onset),
        last_good_step: good.and_then(recorded),
        last_good_value: good.map(|row| rows.value(row)),
        last_bad_step: recorded(last),
        recovered: (last + 1..rows.len()).any(|row| !norms.is_bad(row)),
        count,
        count_opening,
        nan: norms.nan,
        inf: norms.inf,
        median: norms.median,
        threshold: norms.threshold,
        max: norms.max,
        phase: Some(phase),
        attempt: attempt as u64 + 1,
        superseded: training.superseded(attempt, rows.step(first)),
        steps: norms.spike_rows().filter_map(recorded).take(LISTED_STEPS).collect(),
        evidence: vec![Evidence {
            metric: norms.series.name.clone(),
            role: norms.series.role.map_or("", |role| role.as_str()),
            first_step,
            value: Some(rows.value(first)),
            last_good_step: good_before_first.and_then(recorded),
            nan: norms.nan,
            inf: norms.inf,
            count,
        }],
    })
}
