#![doc = include_str!("nonfinite.md")]

use std::collections::HashSet;

use super::training::{LISTED_STEPS, Norms, Training};
use crate::model::finding::Check;
use crate::model::recording::{BadRun, Reduced};
use crate::model::{Evidence, Finding, Place, Role, Series, Signal};

/// Confidence where gradients are certainly not finite.
pub const CONFIDENCE: f64 = 0.99;
/// Confidence where -1, DeepSpeed's alias of "not finite", is the only evidence.
pub const CONFIDENCE_ALIAS: f64 = 0.90;
/// Confidence where only a loss is bad although the gradient norm of the same steps is finite, or only a part of it.
pub const CONFIDENCE_LOSS: f64 = 0.70;
/// The kind of event that a recorder writes when it meets a NaN.
pub const NAN_DETECTED: &str = "nan_detected";

/// Order of bad rows of one step: counters, gradient norms, events, losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// `nan_count`, `inf_count`.
    Counter,
    /// Gradient norms, per layer too.
    Norm,
    /// `nan_detected`.
    Event,
    /// Training losses and their parts.
    Loss,
}

/// The class of a role that this check looks at.
pub fn class(role: Role) -> Option<Class> {
    match role {
        Role::NanCount | Role::InfCount => Some(Class::Counter),
        Role::GradNorm | Role::GradNormPostClip | Role::LayerGradNorm => Some(Class::Norm),
        Role::Loss | Role::LossPart => Some(Class::Loss),
        _ => None,
    }
}

/// One signal with bad rows in this training.
#[derive(Debug)]
struct Bad<'a> {
    class: Class,
    role: Option<Role>,
    metric: &'a str,
    attempt: usize,
    /// Where it is judged: its step, or that of the row before it; none for an event without one.
    step: Option<i64>,
    /// Its step as recorded.
    recorded: Option<i64>,
    record: u64,
    place: Option<Place>,
    time: Option<i64>,
    value: Option<f64>,
    good: Option<(i64, f64)>,
    last_step: Option<i64>,
    recovered: bool,
    nan: u64,
    inf: u64,
    count: u64,
    max: Option<f64>,
    steps: Vec<i64>,
    /// The gradient norms and the first bad row among them, where this is a kept series.
    norms: Option<(&'a Norms<'a>, usize)>,
}

impl Bad<'_> {
    fn only_alias(&self) -> bool {
        self.class == Class::Norm && self.nan + self.inf == 0
    }

    fn evidence(&self, training: &Training<'_>) -> Evidence {
        Evidence {
            metric: self.metric.to_owned(),
            role: self.role.map_or(NAN_DETECTED, |role| role.as_str()),
            first_step: self.recorded,
            value: self.value,
            last_good_step: self.good.and_then(|(step, _)| training.recorded(step)),
            nan: self.nan,
            inf: self.inf,
            count: self.count,
        }
    }
}

/// At most one finding for the training.
pub fn check(training: &Training<'_>) -> Option<Finding> {
    let mut bad: Vec<Bad<'_>> = training.norms.iter().filter_map(|norms| from_norms(training, norms)).collect();
    let reduced = training.recording.series.iter().filter_map(|series| match &series.signal {
        Signal::Reduced(reduced) => from_reduced(training, series, reduced),
        Signal::Kept(kept) if !matches!(series.role.and_then(class), None | Some(Class::Norm)) => {
            let rows = (0..kept.values.len()).map(|row| (kept.records.get(row) as u64, row));
            from_kept(training, series, rows.filter(|(record, _)| training.records.contains(record)))
        }
        Signal::Kept(_) => None,
    });
    bad.extend(reduced);
    bad.extend(from_events(training));
    bad.sort_by_key(|bad| (bad.attempt, bad.step.is_none(), bad.step, bad.class));
    let first = bad.first()?;
    let (onset, good) = onset(training, first);
    let counters = || bad.iter().filter(|bad| bad.class == Class::Counter);
    let (nan, inf) = if first.class == Class::Counter {
        (counters().map(|bad| bad.nan).sum(), counters().map(|bad| bad.inf).sum())
    } else {
        (first.nan, first.inf)
    };
    let norms = first.norms.map(|(norms, _)| norms);
    Some(Finding {
        check: Check::Nonfinite,
        metric: first.metric.to_owned(),
        role: first.role,
        confidence: confidence(training, &bad),
        first_step: first.recorded,
        first_record: first.record,
        first_place: first.place,
        first_time: first.time,
        first_value: first.value,
        onset_step: onset,
        last_good_step: good.and_then(|(step, _)| training.recorded(step)),
        last_good_value: good.map(|(_, value)| value),
        last_bad_step: first.last_step,
        recovered: first.recovered,
        count: first.count,
        count_opening: 0,
        nan,
        inf,
        median: norms.and_then(|norms| norms.median),
        threshold: norms.and_then(|norms| norms.threshold),
        max: first.max,
        phase: None,
        attempt: first.attempt as u64 + 1,
        superseded: first.step.is_some_and(|step| training.superseded(first.attempt, step)),
        steps: first.steps.clone(),
        evidence: bad.iter().map(|bad| bad.evidence(training)).collect(),
    })
}

/// Onset and last fine row. A bad gradient norm whose spikes are tested is led up to by those of its own series; any
/// other bad row by those of any gradient norm.
fn onset(training: &Training<'_>, first: &Bad<'_>) -> (Option<i64>, Option<(i64, f64)>) {
    let point = |norms: &Norms<'_>, row: usize| (norms.rows.step(row), norms.rows.value(row));
    let axis = &training.recording.axis;
    if let Some((norms, row)) = first.norms.filter(|(norms, _)| norms.spike_tested) {
        let onset = norms.chain_start(row).unwrap_or(row);
        let good = norms.last_good_before(onset).map(|row| point(norms, row));
        return (norms.rows.recorded_step(onset, axis), good);
    }
    let Some(step) = first.step else {
        // An event without a step: its place among the rows alone says what was before it.
        let before = |norms: &Norms<'_>| {
            let row = (0..norms.rows.len()).rev().find(|row| norms.rows.record(*row) < first.record)?;
            norms.last_good(row + 1, i64::MAX).map(|row| point(norms, row))
        };
        return (None, training.norms.iter().filter_map(before).max_by_key(|(step, _)| *step).or(first.good));
    };
    let upto = |norms: &Norms<'_>| {
        let before = |row: &usize| {
            let attempt = training.attempt_of(norms.rows.record(*row));
            (attempt, norms.rows.step(*row)) <= (first.attempt, step)
        };
        (0..norms.rows.len()).rev().find(before).map_or(0, |row| row + 1)
    };
    let tested = || training.norms.iter().filter(|norms| norms.spike_tested);
    let chains = tested().filter_map(|norms| norms.chain_start(upto(norms)).map(|row| (norms, row)));
    let earliest =
        chains.min_by_key(|(norms, row)| (training.attempt_of(norms.rows.record(*row)), norms.rows.step(*row)));
    if let Some((norms, row)) = earliest {
        let onset = norms.rows.step(row).min(step);
        let good = norms.last_good(row, onset).map(|row| point(norms, row));
        return (norms.rows.recorded_step(row, axis).map(|_| onset), good);
    }
    let by_norms = tested().filter_map(|norms| norms.last_good(upto(norms), step).map(|row| point(norms, row)));
    // Of equal steps the last counts: a gradient norm says more than a counter of 0, a loss is compared with itself.
    let of_norms = by_norms.max_by_key(|(step, _)| *step);
    let own_last = first.class == Class::Loss;
    let ordered = if own_last { [of_norms, first.good] } else { [first.good, of_norms] };
    let good = ordered.into_iter().flatten().max_by_key(|(step, _)| *step);
    (first.recorded, good)
}

fn confidence(training: &Training<'_>, bad: &[Bad<'_>]) -> f64 {
    if bad.iter().any(|bad| bad.class != Class::Loss) {
        return if bad.iter().all(Bad::only_alias) { CONFIDENCE_ALIAS } else { CONFIDENCE };
    }
    let only_parts = bad.iter().all(|bad| bad.role == Some(Role::LossPart));
    // No gradient norm of this training is bad, or it would be among the evidence.
    let steps: HashSet<i64> = bad.iter().flat_map(|bad| &bad.steps).copied().collect();
    let recorded = |norms: &Norms<'_>| (0..norms.rows.len()).any(|row| steps.contains(&norms.rows.step(row)));
    let finite_norm_there = training.norms.iter().any(recorded);
    if only_parts || finite_norm_there { CONFIDENCE_LOSS } else { CONFIDENCE }
}

fn from_norms<'a>(training: &Training<'_>, norms: &'a Norms<'a>) -> Option<Bad<'a>> {
    let count = norms.nan + norms.inf + norms.minus_one;
    if count == 0 {
        return None;
    }
    let rows = &norms.rows;
    let first = norms.bad_rows().next()?;
    let last = norms.bad_rows().last()?;
    let good = norms.last_good_before(first);
    let recorded = |row: usize| rows.recorded_step(row, &training.recording.axis);
    Some(Bad {
        class: Class::Norm,
        role: norms.series.role,
        metric: &norms.series.name,
        attempt: training.attempt_of(rows.record(first)),
        step: Some(rows.step(first)),
        recorded: recorded(first),
        record: rows.record(first),
        place: Some(training.recording.place_in(norms.series, rows.record(first), rows.place(first))),
        time: rows.time(first),
        value: Some(rows.value(first)),
        good: good.map(|row| (rows.step(row), rows.value(row))),
        last_step: recorded(last),
        recovered: last + 1 < rows.len(),
        nan: norms.nan,
        inf: norms.inf,
        count,
        max: norms.max,
        steps: norms.bad_rows().filter_map(recorded).take(LISTED_STEPS).collect(),
        norms: Some((norms, first)),
    })
}

fn from_reduced<'a>(training: &Training<'_>, series: &'a Series, reduced: &'a Reduced) -> Option<Bad<'a>> {
    let class = series.role.and_then(class)?;
    let runs = || reduced.bad.iter().filter(|run| training.records.contains(&run.record));
    let by_order = |run: &&BadRun| (training.attempt_of(run.record), run.first_step);
    let first = runs().min_by_key(by_order)?;
    let last = runs().max_by_key(|run| (training.attempt_of(run.record), run.last_step))?;
    let axis = &training.recording.axis;
    let own = reduced.steps.iter().filter(|(record, _)| training.records.contains(record));
    let mut steps: Vec<i64> = own.filter_map(|(_, step)| training.recorded(*step)).collect();
    if axis.interleaved {
        steps.sort_unstable();
        steps.truncate(LISTED_STEPS);
    }
    let after_start = axis.attempts.first().is_some_and(|start| start.record <= first.record);
    let recovered = if axis.interleaved {
        reduced.good_last.is_some_and(|good| good > last.last_step)
    } else {
        last.good_after.is_some_and(|record| training.records.contains(&record))
    };
    Some(Bad {
        class,
        role: series.role,
        metric: &series.name,
        attempt: training.attempt_of(first.record),
        step: Some(first.first_step),
        recorded: training.recorded(first.first_step).filter(|_| first.has_step && after_start),
        record: first.record,
        place: Some(training.recording.place_in(series, first.record, first.place)),
        time: first.time,
        value: Some(first.value),
        good: if axis.interleaved { reduced.good_below } else { first.good_before },
        last_step: training.recorded(last.last_step),
        recovered,
        nan: runs().map(|run| run.nan).sum(),
        inf: runs().map(|run| run.inf).sum(),
        count: runs().map(|run| run.rows).sum(),
        max: series.tally.max(),
        steps,
        norms: None,
    })
}

/// Counters and losses of a full read or of arrays in memory, kept row by row.
fn from_kept<'a>(
    training: &Training<'_>,
    series: &'a Series,
    rows: impl Iterator<Item = (u64, usize)>,
) -> Option<Bad<'a>> {
    let Signal::Kept(kept) = &series.signal else { return None };
    let role = series.role?;
    let class = class(role)?;
    let is_bad = |value: f64| if class == Class::Counter { value > 0.0 } else { !value.is_finite() };
    let mut rows: Vec<(i64, u64, usize)> = rows.map(|(record, row)| (kept.steps.get(row), record, row)).collect();
    if training.recording.axis.interleaved {
        rows.sort_by_key(|(step, ..)| *step);
    }
    let bad: Vec<usize> = (0..rows.len()).filter(|index| is_bad(kept.values.get(rows[*index].2))).collect();
    let (first, last) = (*bad.first()?, *bad.last()?);
    let (step, record, row) = rows[first];
    let good = (0..first).rev().find(|index| rows[*index].0 < step && !is_bad(kept.values.get(rows[*index].2)));
    let values = || bad.iter().map(|index| kept.values.get(rows[*index].2));
    let (nan, inf) = match role {
        Role::NanCount => (values().map(|value| value as u64).sum(), 0),
        Role::InfCount => (0, values().map(|value| value as u64).sum()),
        _ => (
            values().filter(|value| value.is_nan()).count() as u64,
            values().filter(|value| value.is_infinite()).count() as u64,
        ),
    };
    let place = kept.places.get(row).map_or(record, |at| at as u64);
    Some(Bad {
        class,
        role: Some(role),
        metric: &series.name,
        attempt: training.attempt_of(record),
        step: Some(step),
        recorded: training.recorded(step),
        record,
        place: Some(training.recording.place_in(series, record, place)),
        time: kept.times.get(row),
        value: Some(kept.values.get(row)),
        good: good.map(|index| (rows[index].0, kept.values.get(rows[index].2))),
        last_step: training.recorded(rows[last].0),
        recovered: last + 1 < rows.len(),
        nan,
        inf,
        count: bad.len() as u64,
        max: series.tally.max(),
        steps: bad.iter().take(LISTED_STEPS).filter_map(|index| training.recorded(rows[*index].0)).collect(),
        norms: None,
    })
}

fn from_events<'a>(training: &Training<'a>) -> Option<Bad<'a>> {
    let axis = &training.recording.axis;
    // Events stand in a file of their own: their step alone says to which attempt they belong.
    let attempt_of = |step: Option<i64>| {
        let reached = |step: i64| axis.attempts.iter().rposition(|attempt| attempt.first_step <= step);
        step.map_or(axis.attempts.len().saturating_sub(1), |step| reached(step).unwrap_or(0))
    };
    let training_of = |attempt: usize| axis.attempts.get(attempt).map_or(1, |attempt| attempt.training);
    let own = |event: &&crate::model::Event| {
        event.kind == NAN_DETECTED && training_of(attempt_of(event.step)) == training.number
    };
    let mut events: Vec<_> = training.recording.events.iter().filter(own).collect();
    events.sort_by_key(|event| (attempt_of(event.step), event.step.is_none(), event.step));
    let first = events.first()?;
    let losses = training.recording.series.iter().filter(|series| series.role == Some(Role::Loss));
    let good = losses.filter_map(|series| match &series.signal {
        Signal::Reduced(reduced) => reduced.good_before_event,
        Signal::Kept(_) => None,
    });
    Some(Bad {
        class: Class::Event,
        role: None,
        metric: NAN_DETECTED,
        attempt: attempt_of(first.step),
        step: first.step,
        recorded: first.step,
        record: first.record,
        place: Some(first.place),
        time: first.time,
        value: None,
        good: good.max_by_key(|(step, _)| *step),
        last_step: events.iter().filter_map(|event| event.step).max(),
        recovered: false,
        nan: 0,
        inf: 0,
        count: events.len() as u64,
        max: None,
        steps: events.iter().filter_map(|event| event.step).take(LISTED_STEPS).collect(),
        norms: None,
    })
}
