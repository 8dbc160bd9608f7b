//! Takes rows from a reader and owns the policy that all formats share: which series are wanted, the step axis,
//! duplicates, limits, faults. A reader that uses it cannot allocate by a number from its file.

mod counter;
pub mod points;
pub mod rows;

use std::collections::HashMap;

use globset::GlobMatcher;

use crate::model::column::Chunks;
use crate::model::recording::{Reduced, Values};
use crate::model::roles::{self, Candidate};
use crate::model::{
    Checkpoint, Event, Fault, FaultKind, Format, Limits, Place, PlaceUnit, Recording, Role, Series, Signal,
};
use crate::read::axis::AxisBuilder;
use crate::read::clock;
use crate::read::series::{Point, SeriesBuilder, is_reduced, kept};
use counter::Counter;
use points::Points;

/// What the user says of the columns of a table; `None`: found by the usual names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableColumns {
    /// The run of a row.
    pub run: Option<String>,
    /// The metric's name, in a long table.
    pub name: Option<String>,
    /// The metric's value, in a long table.
    pub value: Option<String>,
}

/// What the user asks of every recording of a scan.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Patterns of metric names that replace a role's series.
    pub metrics: Vec<(Role, GlobMatcher)>,
    /// Name of the step column.
    pub step: Option<String>,
    /// Columns of tables of many runs.
    pub table: TableColumns,
    /// Keep every numeric series row by row (`gs.read`), not only what the checks need.
    pub everything: bool,
}

impl Request {
    /// Whether the user says what columns are called.
    pub fn names_columns(&self) -> bool {
        let table = &self.table;
        let named = [&self.step, &table.run, &table.name, &table.value].iter().any(|name| name.is_some());
        named || !self.metrics.is_empty()
    }
}

/// What a reader shall do with the cells of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Give its numbers.
    Number,
    /// Give its text (a step as `"10/438"`, a time); numbers as numbers.
    Text,
    /// Say that the cell was filled or null; do not parse it.
    Note,
}

/// A column as the reader knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Index for the row calls.
    pub id: u32,
    /// What to give.
    pub want: Want,
}

/// A step recorded under several names (`step`, `global_step`, `epoch`): lower ranks are better.
type StepRank = usize;

/// The column that the user names, then the one that the recording itself names, then the usual ones.
const USERS_STEP: StepRank = 0;
const DECLARED_STEP: StepRank = 1;

/// The rank of a column by its place among the usual names.
const fn usual_rank(place: usize) -> StepRank {
    place + 2
}

#[derive(Clone, Copy, Debug)]
enum Use {
    Step { rank: StepRank, fraction: bool },
    Time,
    Series { index: u32, primary: bool },
    Note,
}

/// Records among which a repetition is a duplicate (SPEC 6).
const DUPLICATE_WINDOW: usize = 64;

/// One row while its cells arrive; a step may come last.
#[derive(Debug, Default)]
struct Row {
    at: u64,
    steps: Vec<(StepRank, i64, bool)>,
    time: Option<i64>,
    cells: Vec<(u32, f64, bool)>,
    filled: Vec<u32>,
    has_signal: bool,
    /// Cells of step columns, whichever of them is in use.
    step_cells: u32,
}

#[derive(Debug)]
struct RowKind {
    columns: Vec<u32>,
    rows: u64,
}

/// Builds one [`Recording`] from rows.
#[derive(Debug)]
pub struct Builder<'a> {
    request: &'a Request,
    limits: &'a Limits,
    format: Format,
    place_unit: PlaceUnit,
    row_is_place: bool,
    points: Option<Points>,
    names: HashMap<String, u32>,
    /// Names of the columns, what each is used for, and whether a number was seen in it.
    columns: Vec<String>,
    uses: Vec<Use>,
    numeric: Vec<bool>,
    series: Vec<SeriesBuilder>,
    series_beyond: bool,
    /// The totals among the series, and the column of all names beyond the limits.
    totals: usize,
    beyond: Option<u32>,
    row: Row,
    records: u64,
    axis: AxisBuilder,
    step_rank: Option<StepRank>,
    step_name: Option<String>,
    step_is_firm: bool,
    /// Cells of step columns in the newest row that carried a signal.
    signal_step_cells: u32,
    /// The column that the recording itself names as its step.
    declared_step: Option<String>,
    counter: Counter,
    wants_changed: bool,
    recent: Vec<u64>,
    recent_next: usize,
    recent_max: i64,
    /// Wall times of the stretch of rows that is taken.
    times: Vec<Option<i64>>,
    kinds: Vec<RowKind>,
    kind_index: HashMap<Vec<u32>, usize>,
    last_kind: usize,
    part: u32,
    part_starts: Vec<(u64, u32)>,
    started: Option<i64>,
    ended: Option<i64>,
    event_step: i64,
    events: Vec<Event>,
    lost: Vec<u32>,
    checkpoints: Vec<Checkpoint>,
    faults: Vec<Fault>,
    faults_beyond: u64,
    /// The tracker's own name of the run.
    pub name: Option<String>,
    /// The run's id in files that hold many runs.
    pub run_id: Option<String>,
    metadata: Vec<(String, String)>,
    /// The last record has no end of line.
    pub unterminated: bool,
}

impl<'a> Builder<'a> {
    /// A builder whose rows are placed by `place_unit`. For [`PlaceUnit::Row`] the record number is the place.
    pub fn new(format: Format, request: &'a Request, limits: &'a Limits, place_unit: PlaceUnit) -> Self {
        Self {
            request,
            limits,
            format,
            place_unit,
            row_is_place: place_unit == PlaceUnit::Row,
            points: None,
            names: HashMap::new(),
            columns: Vec::new(),
            uses: Vec::new(),
            numeric: Vec::new(),
            series: Vec::new(),
            series_beyond: false,
            totals: 0,
            beyond: None,
            row: Row::default(),
            records: 0,
            axis: AxisBuilder::default(),
            step_rank: None,
            step_name: None,
            step_is_firm: false,
            signal_step_cells: 0,
            declared_step: None,
            counter: Counter::default(),
            wants_changed: false,
            recent: Vec::new(),
            recent_next: 0,
            recent_max: i64::MIN,
            times: Vec::new(),
            kinds: Vec::new(),
            kind_index: HashMap::new(),
            last_kind: usize::MAX,
            part: 0,
            part_starts: Vec::new(),
            started: None,
            ended: None,
            event_step: i64::MIN,
            events: Vec::new(),
            lost: Vec::new(),
            checkpoints: Vec::new(),
            faults: Vec::new(),
            faults_beyond: 0,
            name: None,
            run_id: None,
            metadata: Vec::new(),
            unterminated: false,
        }
    }

    /// Says something of the run itself: `run_id`, `name`, `exit_code` ... (at most 64 of them, texts up to
    /// [`Limits::name`]). Of what is said twice the last counts: a resumed run ends anew.
    pub fn describe(&mut self, name: &str, text: &str) {
        if text.len() > self.limits.name {
            return;
        }
        match self.metadata.iter().position(|(known, _)| known == name) {
            Some(index) => text.clone_into(&mut self.metadata[index].1),
            None if self.metadata.len() < 64 => self.metadata.push((name.to_owned(), text.to_owned())),
            None => {}
        }
    }

    /// The limits in force.
    pub fn limits(&self) -> &'a Limits {
        self.limits
    }

    /// Says which part of the source the next rows come from.
    pub fn begin_part(&mut self, part: u32) {
        self.part = part;
        self.part_starts.push((self.records, part));
        if let Some(points) = &mut self.points {
            points.end_row();
        }
    }

    /// The place of an offset in the current part.
    pub fn place(&self, unit: PlaceUnit, at: u64) -> Place {
        Place { part: self.part, unit, at }
    }

    /// Makes a column known, or finds it again, and says what to give of it.
    pub fn column(&mut self, name: &str) -> Column {
        self.column_known_as(name, name)
    }

    /// As [`column`](Self::column), for one whose role another name tells.
    pub fn column_known_as(&mut self, name: &str, known_as: &str) -> Column {
        if let Some(id) = self.names.get(name) {
            return Column { id: *id, want: self.want(*id) };
        }
        let id = self.columns.len() as u32;
        let is_full = self.columns.len() >= self.limits.columns;
        if name.len() > self.limits.name || (is_full && !self.has_room_for_total(self.role_of(known_as))) {
            return self.beyond_limits(name);
        }
        let usage = self.usage(name, known_as, id);
        self.columns.push(name.to_owned());
        self.uses.push(usage);
        self.numeric.push(false);
        self.names.insert(name.to_owned(), id);
        Column { id, want: self.want(id) }
    }

    /// Makes a column known whose numbers are wanted whatever it is called: their names stand elsewhere.
    pub fn column_of_numbers(&mut self, name: &str) -> Column {
        let known = self.names.contains_key(name);
        let column = self.column(name);
        if !known && self.beyond != Some(column.id) && !matches!(self.uses[column.id as usize], Use::Series { .. }) {
            self.series.push(SeriesBuilder::new(column.id, None, false, kept(), self.event_step));
            self.uses[column.id as usize] = Use::Series { index: self.series.len() as u32 - 1, primary: false };
        }
        Column { id: column.id, want: self.want(column.id) }
    }

    /// The current row, for a reader that does not end it but gives its values to other recordings: the step of the best
    /// rank, milliseconds since 1970, and the numbers by column.
    pub fn row(&self) -> (Option<i64>, Option<i64>, impl Iterator<Item = (u32, f64)> + '_) {
        let best = self.row.steps.iter().min_by_key(|(rank, ..)| *rank);
        let cells = self.row.cells.iter().map(|(series, value, _)| (self.series[*series as usize].column, *value));
        (best.map(|(_, step, _)| *step), self.row.time, cells)
    }

    /// All columns beyond the limits are one, of which nothing is wanted; the first one is a fault.
    fn beyond_limits(&mut self, name: &str) -> Column {
        if let Some(id) = self.beyond {
            return Column { id, want: Want::Note };
        }
        let detail = if name.len() > self.limits.name {
            format!("a metric name of {} bytes, at most {} are read", name.len(), self.limits.name)
        } else {
            format!("more than {} metric names", self.limits.columns)
        };
        let place = self.place(self.place_unit, self.row.at);
        self.fault(Fault::new(FaultKind::Limit, place, detail));
        let id = self.columns.len() as u32;
        self.columns.push(String::new());
        self.uses.push(Use::Note);
        self.numeric.push(false);
        self.beyond = Some(id);
        Column { id, want: Want::Note }
    }

    /// What to give of a column now; a step column that is worse than the one in use need not be parsed.
    pub fn want(&self, id: u32) -> Want {
        match self.uses[id as usize] {
            Use::Step { rank, fraction } => match self.step_rank {
                Some(chosen) if self.step_is_firm && chosen < rank && !self.counter.watches(rank) => Want::Note,
                _ if fraction => Want::Text,
                _ => Want::Number,
            },
            Use::Time => Want::Text,
            Use::Series { .. } => Want::Number,
            Use::Note => Want::Note,
        }
    }

    /// Whether a column's values become a series.
    pub fn is_series(&self, id: u32) -> bool {
        matches!(self.uses[id as usize], Use::Series { .. })
    }

    /// Whether a column's values are a signal that the checks know.
    pub fn has_role(&self, id: u32) -> bool {
        match self.uses[id as usize] {
            Use::Series { index, .. } => self.series[index as usize].role.is_some(),
            _ => false,
        }
    }

    /// Whether [`want`](Self::want) gives other answers than when it was last asked here. Told once.
    pub fn wants_changed(&mut self) -> bool {
        std::mem::take(&mut self.wants_changed)
    }

    fn usage(&mut self, name: &str, known_as: &str, id: u32) -> Use {
        if self.points.is_none()
            && let Some(rank) = self.step_rank_of(name)
        {
            return Use::Step { rank, fraction: roles::is_fraction_step(name) };
        }
        let fixed = self.request.metrics.iter().find(|(_, glob)| glob.is_match(name)).map(|(role, _)| *role);
        let role = fixed.or_else(|| self.role_of(known_as));
        if role.is_none() && self.points.is_none() && roles::is_time(name) {
            return Use::Time;
        }
        let signal = match role {
            _ if self.request.everything => kept(),
            Some(Role::GradNorm | Role::GradNormPostClip) => kept(),
            Some(role) if is_reduced(role) => Signal::Reduced(Reduced::default()),
            _ => return Use::Note,
        };
        // Totals have room of their own: thousands of layers must not crowd out the loss.
        let has_room = match role {
            Some(role) if is_total(role) => self.has_room_for_total(Some(role)),
            _ => self.series.len() - self.totals < self.limits.series,
        };
        if !has_room {
            if !self.series_beyond {
                self.series_beyond = true;
                let place = self.place(self.place_unit, self.row.at);
                let detail = format!("more than {} series", self.limits.series);
                self.fault(Fault::new(FaultKind::Limit, place, detail));
            }
            return Use::Note;
        }
        self.totals += usize::from(role.is_some_and(is_total));
        let mut series = SeriesBuilder::new(id, role, fixed.is_some(), signal, self.event_step);
        series.points = self.points.as_ref().map(|_| Box::default());
        self.series.push(series);
        Use::Series { index: self.series.len() as u32 - 1, primary: role.is_some_and(is_primary) }
    }

    fn has_room_for_total(&self, role: Option<Role>) -> bool {
        role.is_some_and(is_total) && self.totals < self.limits.series
    }

    fn step_rank_of(&self, name: &str) -> Option<StepRank> {
        // The user's own name first; where a recording lacks it, the usual ones serve.
        match &self.request.step {
            Some(step) if step == name => Some(USERS_STEP),
            _ if self.declared_step.as_deref() == Some(name) => Some(DECLARED_STEP),
            _ => roles::step_rank(name).map(usual_rank),
        }
    }

    /// Says which column the recording itself names as its step (`define_metric` of W&B): only the user's own choice goes
    /// before it. Said again, the last one counts. Best before the first row: rows before it keep their steps.
    pub fn declare_step(&mut self, name: &str) {
        if self.declared_step.as_deref() == Some(name) {
            return;
        }
        let before = self.declared_step.replace(name.to_owned());
        for name in before.iter().map(String::as_str).chain([name]) {
            let Some(id) = self.names.get(name).copied() else { continue };
            self.uses[id as usize] = match self.step_rank_of(name) {
                Some(rank) => Use::Step { rank, fraction: roles::is_fraction_step(name) },
                None => Use::Note,
            };
        }
        if self.step_rank == Some(DECLARED_STEP) {
            self.axis = AxisBuilder::default();
            self.step_rank = None;
            self.step_is_firm = false;
        }
        self.wants_changed = true;
    }

    /// Says that values of a column were recorded as 32-bit floats or narrower. Before its first value.
    pub fn narrow(&mut self, id: u32) {
        if let Use::Series { index, .. } = self.uses[id as usize]
            && let Signal::Kept(kept) = &mut self.series[index as usize].signal
            && kept.values.is_empty()
        {
            kept.values = Values::F32(Chunks::default());
        }
    }

    /// Says that a column holds numbers, where a columnar reader does not give its cells one by one.
    pub fn numeric(&mut self, id: u32) {
        self.numeric[id as usize] = true;
    }

    /// Begins a row at an offset of the current part.
    #[inline]
    pub fn begin_row(&mut self, at: u64) {
        self.row.at = at;
        self.row.steps.clear();
        self.row.time = None;
        self.row.cells.clear();
        self.row.filled.clear();
        self.row.has_signal = false;
        self.row.step_cells = 0;
    }

    /// A number in the current row.
    #[inline]
    pub fn number(&mut self, id: u32, value: f64) {
        match self.uses[id as usize] {
            Use::Series { index, primary } => {
                self.row.cells.push((index, value, false));
                self.row.has_signal |= primary;
            }
            Use::Step { rank, .. } => {
                self.row.step_cells += 1;
                if value.is_finite() {
                    self.row.steps.push(rounded_step(rank, value));
                }
                return;
            }
            Use::Time => self.row.time = clock::from_number(value).or(self.row.time),
            Use::Note => self.numeric[id as usize] = true,
        }
        self.row.filled.push(id);
    }

    /// A step recorded as an integer, exact where an f64 is not.
    #[inline]
    pub fn whole_step(&mut self, id: u32, step: i64) {
        if let Use::Step { rank, .. } = self.uses[id as usize] {
            self.row.step_cells += 1;
            self.row.steps.push((rank, step, false));
        }
    }

    /// A text in the current row: a step as `"10/438"`, a time; other texts are only filled cells.
    pub fn text(&mut self, id: u32, text: &str) {
        match self.uses[id as usize] {
            Use::Step { rank, .. } => {
                self.row.step_cells += 1;
                let digits = text.split('/').next().unwrap_or(text).trim();
                if let Ok(value) = digits.parse::<f64>()
                    && value.is_finite()
                {
                    self.row.steps.push(rounded_step(rank, value));
                }
                return;
            }
            Use::Time => self.row.time = clock::from_text(text).or(self.row.time),
            Use::Series { .. } | Use::Note => {}
        }
        self.row.filled.push(id);
    }

    /// A cell that holds something which was not asked for.
    #[inline]
    pub fn filled(&mut self, id: u32, numeric: bool) {
        self.numeric[id as usize] |= numeric;
        if matches!(self.uses[id as usize], Use::Step { .. }) {
            self.row.step_cells += 1;
        } else {
            self.row.filled.push(id);
        }
    }

    /// A null that its writer puts for NaN or Inf (verl's orjson): it counts as NaN if the column holds numbers too.
    pub fn null_for_nan(&mut self, id: u32) {
        if let Use::Series { index, .. } = self.uses[id as usize] {
            self.row.cells.push((index, f64::NAN, true));
            self.row.filled.push(id);
        }
    }

    /// Says that values of a column were recorded but could not be read.
    pub fn lost(&mut self, id: u32) {
        self.lost.push(id);
    }

    /// Takes back the values of one column in the current row.
    pub fn drop_column(&mut self, id: u32) {
        if let Use::Series { index, .. } = self.uses[id as usize] {
            self.row.cells.retain(|(series, ..)| *series != index);
        }
    }

    /// Ends a row of which only the cells before a cut or a broken byte are in. It counts up to its last NaN or Inf, if it
    /// has one and its step was read: nothing that follows can change that. Gives whether it held a NaN or Inf that does
    /// not count, for want of a step.
    pub fn end_cut_row(&mut self) -> bool {
        let Some(last) = self.row.cells.iter().rposition(|(_, value, _)| !value.is_finite()) else { return false };
        self.row.cells.truncate(last + 1);
        if self.row.steps.is_empty() {
            return true;
        }
        self.end_row(None);
        false
    }

    /// Takes back the values of the current row (a summary over the whole run is no point of a curve); its step stays.
    pub fn drop_values(&mut self) {
        self.row.cells.clear();
        self.row.has_signal = false;
    }

    /// Ends the current row. `fingerprint` is a hash over all that was recorded in it, values that were not asked for
    /// included; a row that repeats the step and fingerprint of a recent one of its attempt is a duplicate.
    #[inline]
    pub fn end_row(&mut self, fingerprint: Option<u64>) {
        let step = self.row_step();
        if let (Some(step), Some(fingerprint)) = (step, fingerprint)
            && self.is_duplicate(step, fingerprint)
        {
            return;
        }
        let record = self.records;
        self.records += 1;
        if let Some(step) = step
            && self.axis.push(step, record, self.limits.attempts)
        {
            self.fault_attempts();
        }
        if let Some(time) = self.row.time {
            self.started.get_or_insert(time);
            self.ended = Some(time);
        }
        self.count_kind(1);
        if self.row.cells.is_empty() {
            return;
        }
        let has_step = step.is_some() || self.step_name.is_none();
        let step = if self.step_name.is_some() { self.axis.last().unwrap_or(0) } else { record as i64 };
        let (attempt, training) = (self.axis.attempts(), self.axis.training());
        let at = (!self.row_is_place).then_some(self.row.at);
        for (series, value, null) in self.row.cells.drain(..) {
            let point = Point { value, step, has_step, record, at, time: self.row.time, attempt, training };
            self.series[series as usize].push(&point, null, self.limits);
        }
    }

    fn fault_attempts(&mut self) {
        let place = self.place(self.place_unit, self.row.at);
        let detail = format!("more than {} attempts: rows are taken as interleaved", self.limits.attempts);
        self.fault(Fault::new(FaultKind::Limit, place, detail));
    }

    /// The step of the current row. The column is chosen at the first row that carries a signal, by rank, and again
    /// where such a row has a better one; a choice made on rows before it is given up.
    #[inline]
    fn row_step(&mut self) -> Option<i64> {
        let best = self.row.steps.iter().map(|(rank, ..)| *rank).min()?;
        let is_better = self.step_rank.is_none_or(|chosen| best < chosen);
        if !self.step_is_firm || (is_better && self.row.has_signal) {
            if self.step_rank.is_some_and(|rank| rank != best) && self.row.has_signal {
                self.axis = AxisBuilder::default();
                self.step_rank = None;
            }
            if self.step_rank.is_none() {
                self.step_rank = Some(best);
                let chosen = |usage: &Use| matches!(usage, Use::Step { rank, .. } if *rank == best);
                self.step_name = self.uses.iter().position(chosen).map(|column| self.columns[column].clone());
            }
            if self.row.has_signal {
                self.step_is_firm = true;
                self.wants_changed = true;
            }
        }
        let chosen = self.step_rank?;
        // Of a key that stands twice the last one counts, as in Python's json.
        let (_, step, fractional) = *self.row.steps.iter().rev().find(|(rank, ..)| *rank == chosen)?;
        if self.row.has_signal {
            self.signal_step_cells = self.row.step_cells;
        } else if self.row.step_cells < self.signal_step_cells && self.axis.last().is_some_and(|last| step < last) {
            // It counts something else: mmengine's rows of an evaluation have the epoch as `step`, and neither `iter` nor
            // `epoch`, which its rows of the training have.
            return None;
        }
        if fractional {
            self.axis.fractional();
        }
        if self.counter.has_doubt() {
            let (step, decided) = self.counter.step(step, &self.row.steps, chosen <= DECLARED_STEP);
            self.wants_changed |= decided;
            return Some(step);
        }
        Some(step)
    }

    #[inline]
    fn is_duplicate(&mut self, step: i64, fingerprint: u64) -> bool {
        // A step above all recent ones repeats none of them.
        if step <= self.recent_max && self.recent.contains(&duplicate_key(step, fingerprint)) {
            return true;
        }
        if self.axis.last().is_some_and(|last| step < last) {
            // This row begins an attempt, and the window with it.
            self.recent.clear();
            self.recent_next = 0;
            self.recent_max = i64::MIN;
        }
        self.remember(step, fingerprint);
        false
    }

    /// Makes a row one that a repetition may repeat.
    #[inline]
    fn remember(&mut self, step: i64, fingerprint: u64) {
        let key = duplicate_key(step, fingerprint);
        self.recent_max = self.recent_max.max(step);
        if self.recent.len() < DUPLICATE_WINDOW {
            self.recent.push(key);
        } else {
            self.recent[self.recent_next] = key;
            self.recent_next = (self.recent_next + 1) % DUPLICATE_WINDOW;
        }
    }

    /// Counts `rows` rows that fill the columns of the current one.
    #[inline]
    fn count_kind(&mut self, rows: u64) {
        if let Some(kind) = self.kinds.get_mut(self.last_kind)
            && kind.columns == self.row.filled
        {
            kind.rows += rows;
            return;
        }
        match self.kind_index.get(&self.row.filled) {
            Some(index) => {
                self.kinds[*index].rows += rows;
                self.last_kind = *index;
            }
            None if self.kinds.len() < self.limits.row_kinds => {
                self.last_kind = self.kinds.len();
                self.kind_index.insert(self.row.filled.clone(), self.last_kind);
                self.kinds.push(RowKind { columns: self.row.filled.clone(), rows });
            }
            None => {}
        }
    }

    /// Number of rows taken so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Says, before any row, at which step the recorder itself first saw a NaN: the last fine rows before it are kept.
    pub fn expect_event(&mut self, step: i64) {
        self.event_step = step;
    }

    /// Records a message of the recorder itself.
    pub fn event(&mut self, event: Event) {
        if self.events.len() < self.limits.events {
            self.events.push(event);
        } else if self.events.len() == self.limits.events {
            let detail = format!("more than {} events", self.limits.events);
            self.fault(Fault::new(FaultKind::Limit, event.place, detail));
        }
    }

    /// Records a checkpoint that the recording tells of.
    pub fn checkpoint(&mut self, checkpoint: Checkpoint) {
        if self.checkpoints.len() < self.limits.checkpoints {
            self.checkpoints.push(checkpoint);
        }
    }

    /// Records a fault of the file.
    pub fn fault(&mut self, fault: Fault) {
        if self.faults.len() < self.limits.faults {
            self.faults.push(fault);
        } else {
            self.faults_beyond += 1;
        }
    }

    /// Takes the faults back, for a reader that knows whose they are.
    pub fn take_faults(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.faults)
    }

    /// The recording made of all rows.
    pub fn finish(mut self) -> Recording {
        if self.faults_beyond > 0 {
            let place = self.place(self.place_unit, self.row.at);
            let detail = format!("{} more faults are not listed", self.faults_beyond);
            self.faults.push(Fault::new(FaultKind::Limit, place, detail));
        }
        self.series.retain(|series| series.tally.rows > series.null_rows);
        let gaps: Vec<u64> = self.series.iter().map(|series| self.gaps(series.column)).collect();
        let columns = self.columns;
        // What the user named replaces the role's series; where it matches nothing here, they stay.
        let replaced: Vec<Role> = self.series.iter().filter(|s| s.fixed).filter_map(|s| s.role).collect();
        for series in self.series.iter_mut().filter(|series| !series.fixed) {
            series.role = series.role.filter(|role| !replaced.contains(role));
        }
        let candidates: Vec<Candidate<'_>> = self
            .series
            .iter()
            .map(|series| Candidate {
                name: &columns[series.column as usize],
                role: series.role,
                fixed: series.fixed,
                first_step: Some(series.first_step),
                last_step: Some(series.last_step),
                rows: series.tally.rows,
            })
            .collect();
        let resolved = roles::resolve(&candidates);
        let lost = self.lost.iter().filter_map(|id| {
            let name = &columns[*id as usize];
            roles::role_of(name).map(|role| (name.clone(), role))
        });
        let lost = lost.collect();
        let axis = match self.points {
            Some(points) => points.axis(&mut self.series, &resolved, &columns, &self.part_starts),
            None => self.axis.finish(self.step_name),
        };
        let (started, ended) = self.points.map_or((self.started, self.ended), Points::times);
        let interleaved = axis.interleaved;
        let everything = self.request.everything;
        let mut series: Vec<Series> = Vec::new();
        for ((state, role), gaps) in self.series.into_iter().zip(resolved).zip(gaps) {
            if role.is_some() || everything {
                let name = columns[state.column as usize].clone();
                series.push(state.finish(name, role, gaps, interleaved));
            }
        }
        let named = |name: &str| series.iter().any(|series| series.name == name && series.role.is_some());
        let lists = |usage: &Use| matches!(usage, Use::Series { .. } | Use::Note);
        let unrecognised = columns
            .iter()
            .zip(self.uses.iter().zip(&self.numeric))
            .filter(|(_, (usage, numeric))| **numeric && lists(usage))
            .map(|(name, _)| name.clone())
            .filter(|name| !named(name))
            .collect();
        Recording {
            format: self.format,
            run_id: self.run_id,
            name: self.name,
            records: if self.records > 0 { self.records } else { self.points.map_or(0, |points| points.other_rows()) },
            axis,
            series,
            unrecognised,
            lost,
            has_lost_rows: false,
            events: self.events,
            checkpoints: self.checkpoints,
            faults: self.faults,
            place_unit: self.place_unit,
            part_starts: self.part_starts,
            started,
            ended,
            unterminated: self.unterminated,
            doubts: Vec::new(),
            part: None,
            metadata: self.metadata,
        }
    }

    /// Rows of the column's own kind without it: every column that they fill was filled in some row that had it.
    fn gaps(&self, column: u32) -> u64 {
        let mut company = vec![false; self.columns.len()];
        for kind in self.kinds.iter().filter(|kind| kind.columns.contains(&column)) {
            kind.columns.iter().for_each(|other| company[*other as usize] = true);
        }
        if !company.get(column as usize).copied().unwrap_or(false) {
            return 0;
        }
        let lacks = |kind: &&RowKind| {
            !kind.columns.contains(&column) && kind.columns.iter().all(|other| company[*other as usize])
        };
        self.kinds.iter().filter(lacks).map(|kind| kind.rows).sum()
    }
}

/// What two rows that are the same have in common.
#[inline]
fn duplicate_key(step: i64, fingerprint: u64) -> u64 {
    fingerprint ^ (step as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A step rounded down, and whether it was no integer. `as` saturates: a step beyond 2^63 stays the largest one.
#[inline]
fn rounded_step(rank: StepRank, value: f64) -> (StepRank, i64, bool) {
    let cut = value as i64;
    if cut as f64 == value { (rank, cut, false) } else { (rank, value.floor() as i64, value.fract() != 0.0) }
}

/// Roles without which a recording must not pass for clean.
fn is_total(role: Role) -> bool {
    matches!(role, Role::GradNorm | Role::GradNormPostClip | Role::NanCount | Role::InfCount | Role::Loss)
}

/// Roles that make a row one of the training itself.
pub(in crate::read) fn is_primary(role: Role) -> bool {
    matches!(
        role,
        Role::GradNorm
            | Role::GradNormPostClip
            | Role::LayerGradNorm
            | Role::NanCount
            | Role::InfCount
            | Role::Loss
            | Role::LossPart
    )
}
