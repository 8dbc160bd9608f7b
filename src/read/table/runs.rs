//! The runs of a table while their rows arrive, in any order of batches and from several threads.
//!
//! Rows come in *units* (a row group, a batch of a stream), numbered in the order of the table. What a run makes of its rows
//! never depends on who reads which unit when: rows of a later unit wait until all earlier ones are done, unless the run is
//! known to begin in it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::batch::{Piece, Plan};
use super::cells::{Column, RowSet, id_name};
use super::layout::Usage;
use super::long::{self, Metric};
use crate::model::recording::Doubt;
use crate::model::{Fault, Format, Limits, PlaceUnit, Recording, roles};
use crate::read::builder::is_primary;
use crate::read::builder::rows::{Cells, Lane, Places};
use crate::read::{Builder, Request, Want};

/// A lock whose holder panicked is still good: that run's outcome says so.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a run before its rows are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Its rows, where they were counted.
    pub rows: Option<u64>,
    /// The unit in which it begins.
    pub first_unit: Option<usize>,
    /// Its only part, or else the first and whether there are others.
    pub part: u32,
    /// Its rows come from several parts.
    pub is_split: bool,
}

/// Index of each distinct text.
#[derive(Debug, Default)]
struct Interned {
    index: HashMap<String, u32>,
    texts: Vec<String>,
}

impl Interned {
    fn intern(&mut self, text: &str) -> (u32, bool) {
        if let Some(index) = self.index.get(text) {
            return (*index, false);
        }
        let index = self.texts.len() as u32;
        self.index.insert(text.to_owned(), index);
        self.texts.push(text.to_owned());
        (index, true)
    }
}

/// What became of the rows of a run so far.
#[derive(Debug)]
enum Rows<'a> {
    /// None yet.
    Unbegun,
    /// Of a wide table.
    Wide(Box<Wide<'a>>),
    /// Of a long table.
    Long(Box<long::Run>),
    /// The recording was given away.
    Done,
}

#[derive(Debug)]
struct Wide<'a> {
    builder: Builder<'a>,
    part: Option<u32>,
    /// How the newest batch is read, and the builder's columns of it.
    plan: Option<Arc<Plan>>,
    ids: Vec<Option<u32>>,
}

/// One run.
#[derive(Debug)]
struct Run<'a> {
    known: Known,
    rows: Rows<'a>,
    /// Rows taken, lost ones included.
    taken: u64,
    /// Pieces that wait: by unit, in the order of the unit.
    waiting: BTreeMap<usize, Vec<Piece>>,
    /// Faults of its rows, and columns that lost some.
    faults: Vec<Fault>,
    lost: Vec<String>,
    /// Some of its rows were lost, or may have been.
    has_lost_rows: bool,
    doubts: BTreeMap<String, Doubt>,
    /// Step of the last value of each series in which NaN is ambiguous.
    last_values: HashMap<String, i64>,
    /// Name of the step column, in a long table.
    step_name: Option<String>,
}

/// Where units stand: which are done, and which runs have rows in later ones.
#[derive(Debug, Default)]
struct Queue {
    done: Vec<bool>,
    waiting: BTreeMap<usize, Vec<u32>>,
}

/// The runs of one table.
#[derive(Debug)]
pub struct Runs<'a> {
    request: &'a Request,
    limits: &'a Limits,
    format: Format,
    place_unit: PlaceUnit,
    ids: Mutex<Interned>,
    metrics: Mutex<(Interned, Arc<Vec<Metric>>)>,
    runs: RwLock<Vec<Arc<Mutex<Run<'a>>>>>,
    /// The first unit that is not done.
    low: AtomicUsize,
    queue: Mutex<Queue>,
    /// Runs beyond the limit.
    beyond: AtomicUsize,
}

/// The id of the run of a table without a run column: no id holds a NUL.
const ONLY: &str = "\0";

/// The index of rows whose run is beyond the limit.
pub const BEYOND: u32 = u32::MAX;

/// Gets recordings as they are complete.
pub type Give<'g> = &'g mut dyn FnMut(Recording);

impl<'a> Runs<'a> {
    /// No run yet.
    pub fn new(format: Format, place_unit: PlaceUnit, request: &'a Request, limits: &'a Limits) -> Self {
        Self {
            request,
            limits,
            format,
            place_unit,
            ids: Mutex::default(),
            metrics: Mutex::default(),
            runs: RwLock::default(),
            low: AtomicUsize::new(0),
            queue: Mutex::default(),
            beyond: AtomicUsize::new(0),
        }
    }

    /// Index of the run of this id. Further runs than [`Limits::runs`] are [`BEYOND`].
    pub fn run(&self, id: &str) -> u32 {
        let mut ids = lock(&self.ids);
        if ids.texts.len() >= self.limits.runs && !ids.index.contains_key(id) {
            self.beyond.fetch_add(1, Ordering::Relaxed);
            return BEYOND;
        }
        let (index, is_new) = ids.intern(id);
        if is_new {
            let run = Run {
                known: Known::default(),
                rows: Rows::Unbegun,
                taken: 0,
                waiting: BTreeMap::new(),
                faults: Vec::new(),
                lost: Vec::new(),
                has_lost_rows: false,
                doubts: BTreeMap::new(),
                last_values: HashMap::new(),
                step_name: None,
            };
            self.runs.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(Mutex::new(run)));
        }
        index
    }

    /// The run of all rows, where no column tells them apart.
    pub fn only(&self) -> u32 {
        self.run(ONLY)
    }

    /// Number of runs so far.
    pub fn count(&self) -> usize {
        lock(&self.ids).texts.len()
    }

    /// Whether rows of runs beyond the limit were met.
    pub fn passed_limit(&self) -> bool {
        self.beyond.load(Ordering::Relaxed) > 0
    }

    /// Index of a metric's name in a long table.
    pub fn metric(&self, name: &str) -> u32 {
        let name = id_name(name);
        let mut metrics = lock(&self.metrics);
        let (index, is_new) = metrics.0.intern(name);
        if is_new {
            let mut probe = Builder::of_points(self.format, self.request, self.limits, self.place_unit, false);
            let id = probe.column(name).id;
            let metric = Metric { name: name.to_owned(), is_wanted: probe.want(id) == Want::Number };
            Arc::make_mut(&mut metrics.1).push(metric);
        }
        index
    }

    fn get(&self, run: u32) -> Option<Arc<Mutex<Run<'a>>>> {
        self.runs.read().unwrap_or_else(PoisonError::into_inner).get(run as usize).cloned()
    }

    /// Says what is known of a run before its rows are read.
    pub fn know(&self, run: u32, known: Known) {
        if let Some(run) = self.get(run) {
            lock(&run).known = known;
        }
    }

    /// Takes the rows of a run in a unit; the pieces of a unit come in the order of its rows.
    pub fn take(&self, run: u32, unit: usize, piece: Piece, give: Give<'_>) {
        let Some(shared) = self.get(run) else { return };
        let mut guard = lock(&shared);
        if matches!(guard.rows, Rows::Done) {
            return;
        }
        let low = self.low.load(Ordering::Acquire);
        let may_go = !guard.known.is_split && (unit <= low || guard.known.first_unit == Some(unit));
        if may_go {
            if !guard.waiting.is_empty() {
                self.advance(run, &mut guard, unit.max(low), give);
            }
            if !matches!(guard.rows, Rows::Done) {
                self.feed(&mut guard, &piece);
            }
            self.advance(run, &mut guard, unit.max(low), give);
            return;
        }
        guard.waiting.entry(unit).or_default().push(piece);
        drop(guard);
        {
            let mut queue = lock(&self.queue);
            if unit > self.low.load(Ordering::Acquire) {
                let runs = queue.waiting.entry(unit).or_default();
                if runs.last() != Some(&run) {
                    runs.push(run);
                }
                return;
            }
        }
        let mut guard = lock(&shared);
        let low = self.low.load(Ordering::Acquire);
        self.advance(run, &mut guard, low, give);
    }

    /// Says that rows of a run could not be read, and which columns lost them.
    pub fn lose(&self, run: u32, rows: u64, fault: &Fault, columns: &[String], give: Give<'_>) {
        let Some(shared) = self.get(run) else { return };
        let mut guard = lock(&shared);
        if guard.faults.len() < self.limits.faults {
            guard.faults.push(fault.clone());
        }
        for column in columns {
            if !guard.lost.contains(column) {
                guard.lost.push(column.clone());
            }
        }
        guard.has_lost_rows = true;
        guard.taken += rows;
        let low = self.low.load(Ordering::Acquire);
        self.advance(run, &mut guard, low, give);
    }

    /// Says that rows were lost of which nobody knows whose they are, to all runs whose id begins with `prefix`. Gives
    /// whether there is any.
    pub fn lose_somewhere(&self, prefix: &str, fault: &Fault) -> bool {
        let ids = lock(&self.ids);
        let mut any = false;
        for (index, _) in ids.texts.iter().enumerate().filter(|(_, id)| id.starts_with(prefix)) {
            let Some(shared) = self.get(index as u32) else { continue };
            let mut run = lock(&shared);
            run.has_lost_rows = true;
            if run.faults.len() < self.limits.faults {
                run.faults.push(fault.clone());
            }
            any = true;
        }
        any
    }

    /// Says that all rows of a unit were taken: those of later units that waited for it go on.
    pub fn end_unit(&self, unit: usize, give: Give<'_>) {
        let (low, runs) = {
            let mut queue = lock(&self.queue);
            if queue.done.len() <= unit {
                queue.done.resize(unit + 1, false);
            }
            queue.done[unit] = true;
            let mut low = self.low.load(Ordering::Acquire);
            while queue.done.get(low) == Some(&true) {
                low += 1;
            }
            self.low.store(low, Ordering::Release);
            let later = queue.waiting.split_off(&(low + 1));
            let runs: Vec<u32> = std::mem::replace(&mut queue.waiting, later).into_values().flatten().collect();
            (low, runs)
        };
        for run in runs {
            if let Some(shared) = self.get(run) {
                self.advance(run, &mut lock(&shared), low, give);
            }
        }
    }

    /// Rows that wait, and may go, go; a run that is complete is given away.
    fn advance(&self, index: u32, run: &mut Run<'a>, low: usize, give: Give<'_>) {
        if matches!(run.rows, Rows::Done) {
            return;
        }
        if !run.known.is_split {
            while let Some(entry) = run.waiting.first_entry().filter(|entry| *entry.key() <= low) {
                for piece in entry.remove() {
                    self.feed(run, &piece);
                }
            }
        }
        let waiting = || run.waiting.values().flatten().map(|piece| piece.rows.count() as u64).sum::<u64>();
        if run.known.rows.is_some_and(|rows| run.taken + if run.known.is_split { waiting() } else { 0 } >= rows) {
            self.finish_run(index, run, give);
        }
    }

    /// Gives away all runs that are not complete.
    pub fn finish(&self, give: Give<'_>) {
        for run in 0..self.count() as u32 {
            if let Some(shared) = self.get(run) {
                let mut guard = lock(&shared);
                if !matches!(guard.rows, Rows::Done) {
                    self.finish_run(run, &mut guard, give);
                }
            }
        }
    }

    fn finish_run(&self, index: u32, run: &mut Run<'a>, give: Give<'_>) {
        let pieces: Vec<Piece> = std::mem::take(&mut run.waiting).into_values().flatten().collect();
        for piece in in_order(pieces, self.request) {
            self.feed(run, &piece);
        }
        let is_long = matches!(run.rows, Rows::Long(_));
        let mut builder = match std::mem::replace(&mut run.rows, Rows::Done) {
            Rows::Wide(wide) => wide.builder,
            Rows::Long(long) => {
                let mut builder = Builder::of_points(self.format, self.request, self.limits, self.place_unit, false);
                let metrics = lock(&self.metrics).1.clone();
                long.give(&mut builder, &metrics);
                builder
            }
            Rows::Unbegun | Rows::Done => Builder::new(self.format, self.request, self.limits, self.place_unit),
        };
        for column in std::mem::take(&mut run.lost) {
            let id = builder.column(&column).id;
            builder.lost(id);
        }
        std::mem::take(&mut run.faults).into_iter().for_each(|fault| builder.fault(fault));
        builder.run_id = lock(&self.ids).texts.get(index as usize).filter(|id| *id != ONLY).cloned();
        let mut recording = builder.finish();
        if is_long {
            recording.axis.step_name = run.step_name.take();
        }
        recording.has_lost_rows = run.has_lost_rows;
        recording.doubts = std::mem::take(&mut run.doubts).into_values().collect();
        recording.part = (!run.known.is_split).then_some(run.known.part);
        give(recording);
    }

    fn feed(&self, run: &mut Run<'a>, piece: &Piece) {
        run.taken += piece.rows.count() as u64;
        let layout = &piece.batch.plan.layout;
        let plan = &piece.batch.plan;
        if (0..plan.nan.len()).any(|place| plan.is_ambiguous(place)) {
            let metrics = lock(&self.metrics).1.clone();
            doubt(run, piece, self.request, &metrics);
        }
        if layout.is_long {
            if !matches!(run.rows, Rows::Long(_)) {
                run.rows = Rows::Long(Box::default());
                run.step_name = layout.place_of(Usage::Step).map(|place| layout.columns[place].name.clone());
            }
            let metrics = lock(&self.metrics).1.clone();
            if let Rows::Long(long) = &mut run.rows {
                long.take(piece, &metrics);
            }
            return;
        }
        if !matches!(run.rows, Rows::Wide(_)) {
            let mut builder = Builder::new(self.format, self.request, self.limits, self.place_unit);
            builder.place_each_row();
            run.rows = Rows::Wide(Box::new(Wide { builder, part: None, plan: None, ids: Vec::new() }));
        }
        if let Rows::Wide(wide) = &mut run.rows {
            wide.take(piece);
        }
    }
}

/// Pieces of several parts whose steps do not overlap come in the order of the steps: files of a data set are often
/// written in no order. Rows that a writer spread over files come row by row in the order of their steps. Others stay in the
/// order of the parts.
fn in_order(pieces: Vec<Piece>, request: &Request) -> Vec<Piece> {
    let mut ranges: BTreeMap<u32, Option<(i64, i64)>> = BTreeMap::new();
    for piece in &pieces {
        let part = piece.batch.plan.part;
        let range = piece.step_range(request);
        let merged = match (ranges.get(&part), range) {
            (None | Some(None), range) => range,
            (Some(known), None) => *known,
            (Some(Some((low, high))), Some((first, last))) => Some((first.min(*low), last.max(*high))),
        };
        ranges.insert(part, merged);
    }
    let mut sorted: Vec<(i64, i64, u32)> =
        ranges.iter().filter_map(|(part, range)| range.map(|(low, high)| (low, high, *part))).collect();
    if sorted.len() < 2 || sorted.len() < ranges.len() {
        return pieces;
    }
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0].1 >= pair[1].0) {
        return by_step(&pieces, request).unwrap_or(pieces);
    }
    let place: HashMap<u32, usize> = sorted.iter().enumerate().map(|(at, (.., part))| (*part, at)).collect();
    let mut pieces = pieces;
    pieces.sort_by_key(|piece| place.get(&piece.batch.plan.part));
    pieces
}

/// The rows of several parts by step, if each part's steps rise and no step stands in two of them: then the parts share out
/// one curve (by a hash, say). A step in two parts is an attempt that began again.
fn by_step(pieces: &[Piece], request: &Request) -> Option<Vec<Piece>> {
    let mut rows: Vec<(i64, u32, usize, usize)> = Vec::new();
    let mut last: HashMap<u32, i64> = HashMap::new();
    for (index, piece) in pieces.iter().enumerate() {
        let plan = &piece.batch.plan;
        if plan.layout.is_long {
            return None;
        }
        let places = plan.step_places(request);
        let steps = places.iter().map(|place| &piece.batch.columns[*place]);
        let column =
            steps.into_iter().find(|column| (0..piece.rows.count()).any(|at| column.has(piece.rows.row(at))))?;
        for at in 0..piece.rows.count() {
            let step = column.whole(piece.rows.row(at))?;
            let before = last.insert(plan.part, step);
            if before.is_some_and(|before| before > step) {
                return None;
            }
            rows.push((step, plan.part, index, at));
        }
    }
    rows.sort_unstable();
    if rows.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1) {
        return None;
    }
    // Of each piece, its rows in their new order; each stretch of one piece is a range of them.
    let mut orders: Vec<Vec<u32>> = vec![Vec::new(); pieces.len()];
    let mut stretches: Vec<(usize, std::ops::Range<usize>)> = Vec::new();
    for (_, _, index, at) in rows {
        let order = &mut orders[index];
        order.push(pieces[index].rows.row(at) as u32);
        match stretches.last_mut() {
            Some((newest, range)) if *newest == index => range.end = order.len(),
            _ => stretches.push((index, order.len() - 1..order.len())),
        }
    }
    let orders: Vec<Arc<Vec<u32>>> = orders.into_iter().map(Arc::new).collect();
    let merged = stretches.into_iter().map(|(index, range)| Piece {
        batch: pieces[index].batch.clone(),
        rows: RowSet::Picked { order: orders[index].clone(), range },
    });
    Some(merged.collect())
}

/// Remembers cells of a signal of which nobody knows whether they were NaN or missing.
fn doubt(run: &mut Run<'_>, piece: &Piece, request: &Request, metrics: &[Metric]) {
    let batch = &*piece.batch;
    let layout = &batch.plan.layout;
    let ambiguous = (0..layout.columns.len()).filter(|place| batch.plan.is_ambiguous(*place));
    let steps = batch.plan.step_places(request);
    for place in ambiguous {
        let wanted = &layout.columns[place];
        let is_metric = wanted.usage == Usage::Value || (wanted.usage == Usage::Named && wanted.is_metric);
        if !is_metric {
            continue;
        }
        let was_nan = batch.ambiguous.iter().find(|(column, _)| *column == place).map(|(_, was_nan)| was_nan);
        if wanted.usage == Usage::Named && (run.doubts.contains_key(&wanted.name) || !is_signal(&wanted.name, request))
        {
            continue;
        }
        for at in 0..piece.rows.count() {
            let row = piece.rows.row(at);
            let step = || steps.iter().find_map(|place| batch.columns[*place].whole(row));
            let name = match batch.names.get(row) {
                Some(metric) => metrics.get(*metric as usize).map_or("", |metric| &metric.name),
                None => &wanted.name,
            };
            if batch.columns[place].has(row) {
                if let Some(step) = step() {
                    match run.last_values.get_mut(name) {
                        Some(last) => *last = step,
                        None => drop(run.last_values.insert(name.to_owned(), step)),
                    }
                }
            } else if was_nan.is_some_and(|was_nan| was_nan.value(row))
                && !run.doubts.contains_key(name)
                && is_signal(name, request)
            {
                let last_good_step = run.last_values.get(name).copied();
                let doubt = Doubt { metric: name.to_owned(), first_step: step(), last_good_step };
                run.doubts.insert(name.to_owned(), doubt);
            }
        }
    }
}

/// Whether a NaN in a metric of this name is damage.
fn is_signal(name: &str, request: &Request) -> bool {
    let asked = request.metrics.iter().find(|(_, glob)| glob.is_match(name)).map(|(role, _)| *role);
    let role = asked.or_else(|| roles::role_of(name));
    role.is_some_and(is_primary)
}

impl Wide<'_> {
    fn take(&mut self, piece: &Piece) {
        let batch = &*piece.batch;
        let layout = &batch.plan.layout;
        if self.part != Some(batch.plan.part) {
            self.part = Some(batch.plan.part);
            self.builder.begin_part(batch.plan.part);
        }
        if !self.plan.as_ref().is_some_and(|plan| Arc::ptr_eq(plan, &batch.plan)) {
            self.plan = Some(batch.plan.clone());
            self.ids.clear();
            for (wanted, column) in layout.columns.iter().zip(&batch.columns) {
                let id = (wanted.usage == Usage::Named).then(|| self.builder.column(&wanted.name).id);
                if let (Some(id), Column::F32(_)) = (id, column) {
                    self.builder.narrow(id);
                }
                self.ids.push(id);
            }
            for other in &layout.others {
                let id = self.builder.column(other).id;
                self.builder.numeric(id);
            }
        }
        let count = piece.rows.count();
        let mut gathered = Gathered::default();
        for (column, id) in batch.columns.iter().zip(&self.ids) {
            gathered.add(column, *id, &piece.rows);
        }
        let each: Vec<u64>;
        let places = match &piece.rows {
            RowSet::Range(range) => Places::From(batch.first_row + range.start as u64),
            RowSet::Picked { .. } => {
                each = (0..count).map(|at| piece.place(at)).collect();
                Places::Each(&each)
            }
        };
        self.builder.rows(places, count, &gathered.cells());
    }
}

/// Cells of a piece, gathered where its rows are scattered.
#[derive(Default)]
struct Gathered<'b> {
    columns: Vec<(u32, Gather<'b>, Option<Vec<bool>>)>,
}

enum Gather<'b> {
    F32(std::borrow::Cow<'b, [f32]>),
    F64(std::borrow::Cow<'b, [f64]>),
    I64(std::borrow::Cow<'b, [i64]>),
    Text(Vec<&'b str>),
}

fn pick<'b, T: Copy>(values: &'b [T], rows: &RowSet) -> std::borrow::Cow<'b, [T]> {
    match rows {
        RowSet::Range(range) => (&values[range.clone()]).into(),
        RowSet::Picked { order, range } => {
            order[range.clone()].iter().map(|row| values[*row as usize]).collect::<Vec<T>>().into()
        }
    }
}

impl<'b> Gathered<'b> {
    fn add(&mut self, column: &'b Column, id: Option<u32>, rows: &RowSet) {
        let Some(id) = id else { return };
        let valid = match column.nulls() {
            None => None,
            Some(nulls) => {
                let valid: Vec<bool> = (0..rows.count()).map(|at| nulls.is_valid(rows.row(at))).collect();
                match valid.iter().filter(|valid| **valid).count() {
                    // A column that no row of the piece fills is not there.
                    0 => return,
                    count if count == valid.len() => None,
                    _ => Some(valid),
                }
            }
        };
        let lane = match column {
            Column::F32(array) => Gather::F32(pick(array.values(), rows)),
            Column::F64(array) => Gather::F64(pick(array.values(), rows)),
            Column::I64(array) => Gather::I64(pick(array.values(), rows)),
            Column::Text(array) => Gather::Text((0..rows.count()).map(|at| array.value(rows.row(at))).collect()),
            Column::Missing => return,
        };
        self.columns.push((id, lane, valid));
    }

    fn cells(&self) -> Vec<Cells<'_>> {
        let cells = self.columns.iter().map(|(id, lane, valid)| {
            let lane = match lane {
                Gather::F32(values) => Lane::F32(values),
                Gather::F64(values) => Lane::F64(values),
                Gather::I64(values) => Lane::I64(values),
                Gather::Text(texts) => Lane::Text(texts),
            };
            Cells { id: *id, lane, valid: valid.as_deref() }
        });
        cells.collect()
    }
}
