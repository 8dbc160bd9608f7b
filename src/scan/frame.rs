//! The scan of a table in memory: batches come one after the other from the caller's thread, workers take them apart.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};

use arrow_array::{Array, RecordBatch};
use arrow_schema::Schema;

use super::{Options, Outcome, Scan, lock, outcome, panicked};
use crate::detect::{self, Worker};
use crate::model::{Fault, FaultKind, Format, Part, Place, PlaceUnit, Recording, Severity, Source};
use crate::read::table::batch::{Batch, Piece, Plan};
use crate::read::table::cells::{NanMeaning, Stretch, id_name, partition, stretches};
use crate::read::table::layout::{Layout, Misfit, Usage};
use crate::read::table::runs::{BEYOND, Runs};

/// Name of the source of every run of a frame, and of a run without an id.
pub const FRAME: &str = "frame";

/// Rows that a worker takes at once.
const UNIT: usize = 1 << 18;

/// What NaN means in a frame.
#[derive(Clone, Debug, Default)]
pub struct NanRule {
    /// In the columns named, or in all of them if none is.
    pub meaning: NanMeaning,
    /// Columns in which NaN is not simply NaN.
    pub columns: Vec<String>,
}

/// Why a frame was not scanned.
#[derive(Debug)]
pub enum Refused<E> {
    /// It has no such column, or not of that type.
    Misfit(Misfit),
    /// Its rows do not do.
    Rows(String),
    /// The caller's own error.
    Source(E),
}

/// How a frame is read: its columns and what NaN means in each.
pub fn plan(schema: &Schema, options: &Options, rule: &NanRule) -> Result<Plan, Misfit> {
    let layout = Layout::of(schema, &options.request, &options.limits, true)?;
    // What the user says of NaN holds for what was NaN before pandas wrote null.
    let mut plan = match rule.meaning {
        NanMeaning::Missing => Plan::new(layout, 0),
        NanMeaning::Value | NanMeaning::Ambiguous => Plan::of_table(layout, 0, schema),
    };
    for (meaning, column) in plan.nan.iter_mut().zip(&plan.layout.columns) {
        if rule.columns.is_empty() || rule.columns.contains(&column.name) {
            *meaning = rule.meaning;
        }
    }
    Ok(plan)
}

/// Scans the batches that `next` gives, all of one schema. Rows of a run count in the order in which they come.
pub fn scan_batches<E: Send>(
    schema: &Schema,
    rule: &NanRule,
    options: &Options,
    next: &mut dyn FnMut() -> Option<Result<RecordBatch, E>>,
) -> Result<Scan, Refused<E>> {
    let plan = plan(schema, options, rule).map_err(Refused::Misfit)?;
    let run_index = plan.layout.place_of(Usage::Run).map(|place| plan.layout.columns[place].index);
    let projection = plan.layout.projection();
    let plan = Arc::new(plan);
    let runs = Runs::new(Format::Memory, PlaceUnit::Row, &options.request, &options.limits);
    let part = Part { path: FRAME.to_owned(), name: String::new(), size: 0 };
    let source = Source { format: Format::Memory, path: FRAME.to_owned(), directory: ".".into(), parts: vec![part] };
    let outcomes: Mutex<Vec<Box<Outcome>>> = Mutex::default();
    let judge = |recording: Recording, worker: &mut Worker| {
        let verdict = detect::judge(&recording, &options.knobs, worker);
        let found = Box::new(named(outcome(&source, recording, verdict, &[])));
        lock(&outcomes).push(found);
    };
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let stop = AtomicBool::new(false);
    let (mut rows, mut nulls, mut failed) = (0u64, 0u64, None);
    let (units, waiting) = sync_channel::<(usize, u64, RecordBatch)>(2 * threads);
    let waiting = Mutex::new(waiting);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut worker = Worker::default();
                loop {
                    let unit = lock(&waiting).recv();
                    let Ok((unit, first_row, batch)) = unit else { return };
                    if stop.load(Ordering::Relaxed) {
                        continue;
                    }
                    let taken = catch_unwind(AssertUnwindSafe(|| {
                        take(&runs, &plan, unit, first_row, &batch, &mut |recording| judge(recording, &mut worker));
                    }));
                    if let Err(panic) = taken {
                        worker = Worker::default();
                        lock(&outcomes).push(Box::new(panicked(&source, panic.as_ref())));
                    }
                }
            });
        }
        let mut unit = 0;
        while let Some(batch) = next() {
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => {
                    failed = Some(error);
                    stop.store(true, Ordering::Relaxed);
                    break;
                }
            };
            nulls += run_index.map_or(0, |index| batch.column(index).null_count() as u64);
            let Ok(wanted) = batch.project(&projection) else { continue };
            let mut start = 0;
            while start < wanted.num_rows() {
                let count = UNIT.min(wanted.num_rows() - start);
                if units.send((unit, rows, wanted.slice(start, count))).is_err() {
                    break;
                }
                unit += 1;
                rows += count as u64;
                start += count;
            }
        }
        drop(units);
    });
    if let Some(error) = failed {
        return Err(Refused::Source(error));
    }
    if rows == 0 {
        return Err(Refused::Rows("frame: got no rows, want at least one".to_owned()));
    }
    if let Some(index) = run_index.filter(|_| nulls == rows) {
        let name = schema.field(index).name();
        return Err(Refused::Rows(format!("run: got column {name:?} of {rows} nulls, want an id in at least one row")));
    }
    let mut worker = Worker::default();
    runs.finish(&mut |recording| judge(recording, &mut worker));
    let mut outcomes = outcomes.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    outcomes.sort_by(|a, b| a.run.cmp(&b.run));
    let mut names: HashSet<String> = HashSet::new();
    for outcome in &mut outcomes {
        super::make_unique(&mut outcome.run, &mut names);
    }
    let mut faults = Vec::new();
    if runs.passed_limit() {
        let place = Place { part: 0, unit: PlaceUnit::Row, at: 0 };
        let detail = format!("more than {} runs: the rows of further ones are not read", options.limits.runs);
        let mut fault = Fault::new(FaultKind::Limit, place, detail);
        fault.severity = Severity::Error;
        faults.push(super::reported(&source, fault));
    }
    Ok(Scan { outcomes, faults, roots: vec![FRAME.to_owned()], ..Scan::default() })
}

/// Runs of a frame are called by their ids.
fn named(mut outcome: Outcome) -> Outcome {
    if let Some(id) = &mut outcome.run_id {
        *id = id_name(id).to_owned();
        outcome.run.clone_from(id);
        outcome.directory.clone_from(id);
    }
    outcome
}

fn take(
    runs: &Runs<'_>,
    plan: &Arc<Plan>,
    unit: usize,
    first_row: u64,
    rows: &RecordBatch,
    give: &mut dyn FnMut(Recording),
) {
    let count = rows.num_rows();
    let by_run = match plan.layout.place_of(Usage::Run) {
        Some(place) => stretches(rows.column(place), &mut |id| runs.run(id)),
        None => vec![Stretch { end: count as u32, key: runs.only() }],
    };
    let batch = Arc::new(Batch::decode(plan, rows, first_row, &mut |name| runs.metric(name)));
    for (run, rows) in partition(&by_run, count) {
        if run != BEYOND {
            runs.take(run, unit, Piece { batch: batch.clone(), rows }, give);
        }
    }
    runs.end_unit(unit, give);
}
