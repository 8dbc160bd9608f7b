//! Tables on disk: the run column first, then the signals, unit by unit, by as many workers as there are.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::batch::{Batch, Piece, Plan};
use super::cells::{Stretch, id_name, partition, stretches};
use super::counting::{Counted, Counting, Totals};
use super::file::TableFile;
use super::layout::{Layout, Misfit, Usage};
use super::runs::{BEYOND, Give, Runs};
use super::sources::{hive_values, wandb_export};
use crate::model::{Fault, FaultKind, Limits, Part, Place, PlaceUnit, Recording, Severity, Source, roles};
use crate::read::broken::Broken;
use crate::read::{Ranges, Rejected, Request, Session, Shards};

/// Opens one part.
pub type Open = fn(Arc<dyn Ranges>, &Limits) -> Result<Box<dyn TableFile>, Broken>;

/// Rows decoded at once: few enough that their columns stay in the second cache.
const BATCH: usize = 1 << 14;
/// The same where the rows of runs lie apart: each run should get about [`ROWS_OF_RUN`] of them.
const WIDE_BATCHES: RangeInclusive<usize> = 1 << 16..=1 << 18;
const ROWS_OF_RUN: usize = 64;
/// Parts kept open; of sources with more, each is opened again where it is read.
const OPEN: usize = 64;

/// How the run of a row is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunOf {
    /// By a column: its place in the layout.
    Column(usize),
    /// All rows of the part are of this run.
    Part(u32),
}

/// One file.
struct Table {
    part: usize,
    /// Files of one layout are parts of one data set; an id means the same run in all of them, and in no others.
    data_set: usize,
    run: RunOf,
    plan: Arc<Plan>,
    /// The same without the run column, for units whose runs are known.
    bare: Arc<Plan>,
    file: Option<Arc<dyn TableFile>>,
}

/// One unit of one file.
struct Unit {
    table: usize,
    unit: usize,
    first_row: u64,
    rows: u64,
    /// The runs of its rows, if they are few; empty until they are counted.
    runs: OnceLock<Option<Vec<Stretch>>>,
}

impl Unit {
    fn stretches(&self) -> Option<&Vec<Stretch>> {
        self.runs.get().and_then(Option::as_ref)
    }
}

/// What names a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    /// An id in a column.
    Id,
    /// An id in a partition's folder.
    Path,
    /// Its file.
    Part,
}

/// What files that belong together have in common: their shape, and the names of the columns that give a row's run, and in
/// long tables the metric's name and value. Not the steps: a file may hold one more column of them than its siblings.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Signature {
    is_long: bool,
    columns: Vec<String>,
}

impl Signature {
    fn of(layout: &Layout) -> Self {
        let tells = |usage: Usage| matches!(usage, Usage::Run | Usage::Name | Usage::Value);
        let told = layout.columns.iter().filter(|column| tells(column.usage));
        let mut columns: Vec<String> = told.map(|column| column.name.clone()).collect();
        columns.sort_unstable();
        Self { is_long: layout.is_long, columns }
    }
}

/// Between the number of a data set and the id of one of its runs.
const OF: char = '\0';

/// The id that the interned name of a run holds; it may itself hold a NUL.
fn id_of(name: &str) -> &str {
    name.split_once(OF).map_or(name, |(_, id)| id)
}

/// A source of tables, ready to be read.
pub struct Tables<'a> {
    source: &'a Source,
    limits: &'a Limits,
    open: Open,
    runs: Runs<'a>,
    tables: Vec<Table>,
    data_sets: Vec<Signature>,
    units: Vec<Unit>,
    counting: Counting,
    /// What names each run, and the first part of it, as far as it is no id of a column.
    naming: Vec<(Naming, u32)>,
    broken: Vec<(usize, Rejected)>,
    faults: Mutex<Vec<Fault>>,
}

/// Opens the parts of a source and finds their columns.
pub fn tables<'a>(
    source: &'a Source,
    request: &'a Request,
    limits: &'a Limits,
    session: &mut Session<'_>,
    open: Open,
) -> Result<Box<dyn Shards + 'a>, Rejected> {
    let mut tables = Tables {
        source,
        limits,
        open,
        runs: Runs::new(source.format, PlaceUnit::Row, request, limits),
        tables: Vec::new(),
        data_sets: Vec::new(),
        units: Vec::new(),
        counting: Counting::default(),
        naming: Vec::new(),
        broken: Vec::new(),
        faults: Mutex::default(),
    };
    for (index, part) in source.parts.iter().enumerate() {
        if session.files.cancelled() {
            return Err(Rejected::Cancelled);
        }
        let file = match tables.open_part(part, session) {
            Ok(file) => file,
            Err(broken) => {
                tables.broken.push((index, Rejected::unreadable(broken.code, broken.detail)));
                continue;
            }
        };
        match Layout::of(file.schema(), request, limits, false) {
            Ok(layout) if layout.is_recording(request) || request.everything => {
                tables.add(index, file, layout);
            }
            Ok(layout) if layout.has_signal => {
                let detail = "a loss, but no step, no run and no gradient norm: no recording of a training";
                tables.broken.push((index, Rejected::unreadable("not-a-recording", detail)));
            }
            Ok(_) => tables.broken.push((index, unrelated(file.schema()))),
            // A recording whose runs cannot be told apart is told, also where it was only met.
            Err(misfit @ Misfit::Type { argument: "run", .. }) => {
                tables.broken.push((index, Rejected::unreadable("unsupported", misfit.to_string())));
            }
            Err(misfit) => {
                tables.broken.push((index, Rejected::unreadable("not-a-recording", misfit.to_string())));
            }
        }
    }
    if tables.tables.is_empty()
        && source.parts.len() == 1
        && let Some((_, rejected)) = tables.broken.pop()
    {
        return Err(rejected);
    }
    Ok(Box::new(tables))
}

/// Columns listed of a table that is no recording.
const LISTED: usize = 12;

fn unrelated(schema: &arrow_schema::Schema) -> Rejected {
    let names: Vec<&str> = schema.fields().iter().take(LISTED).map(|field| field.name().as_str()).collect();
    let detail = format!("no metric that the checks know among its columns: {}", names.join(", "));
    Rejected::unreadable("not-a-recording", detail)
}

impl Tables<'_> {
    fn open_part(&self, part: &Part, session: &Session<'_>) -> Result<Arc<dyn TableFile>, Broken> {
        let ranges = session.files.ranges(part).map_err(|error| match Rejected::from(error) {
            Rejected::Io(error) => {
                let code = Rejected::Io(error);
                Broken::new(code.code(), FaultKind::Io, 0, code.to_string())
            }
            other => Broken::new(other.code(), FaultKind::Io, 0, other.to_string()),
        })?;
        (self.open)(ranges, self.limits).map(Arc::from)
    }

    fn add(&mut self, part: usize, file: Arc<dyn TableFile>, layout: Layout) {
        let name = &self.source.parts[part].name;
        let signature = Signature::of(&layout);
        let known = self.data_sets.iter().position(|known| *known == signature);
        let data_set = known.unwrap_or_else(|| {
            self.data_sets.push(signature);
            self.data_sets.len() - 1
        });
        let partition = hive_values(name).filter_map(|(key, id)| Some((roles::run_rank(key)?, key, id))).min();
        // The folder says what the column says, where both are called alike.
        let tells_more = |column: &str| partition.as_ref().is_none_or(|(_, key, _)| !key.eq_ignore_ascii_case(column));
        let column = layout.place_of(Usage::Run).filter(|place| tells_more(&layout.columns[*place].name));
        let run = match column {
            Some(place) => RunOf::Column(place),
            None => {
                let (key, naming) = match (partition, wandb_export(name)) {
                    (Some((.., id)), _) => (id, Naming::Path),
                    (None, Some((export, _))) => (export.to_owned(), Naming::Part),
                    (None, None) => (name.clone(), Naming::Part),
                };
                // Files and ids are not to be taken for each other.
                let home = if naming == Naming::Part { "file" } else { "" };
                let key = format!("{data_set}{home}{OF}{key}");
                let run = self.runs.run(&key);
                self.name_runs(naming, part as u32);
                RunOf::Part(run)
            }
        };
        let mut first_row = 0;
        for unit in 0..file.units() {
            let rows = file.rows(unit);
            self.units.push(Unit { table: self.tables.len(), unit, first_row, rows, runs: OnceLock::new() });
            first_row += rows;
        }
        let schema = file.schema().clone();
        let file = (self.source.parts.len() <= OPEN).then_some(file);
        let mut bare = layout.clone();
        bare.columns.retain(|column| column.usage != Usage::Run);
        let plan = |layout: Layout| Arc::new(Plan::of_table(layout, part as u32, &schema));
        self.tables.push(Table { part, data_set, run, plan: plan(layout), bare: plan(bare), file });
    }

    /// Index of a run of a data set.
    fn intern(&self, data_set: usize, id: &str) -> u32 {
        self.runs.run(&format!("{data_set}{OF}{id}"))
    }

    fn name_runs(&mut self, naming: Naming, part: u32) {
        self.naming.resize(self.runs.count().max(self.naming.len()), (naming, part));
    }

    fn file(&self, table: &Table, session: &Session<'_>) -> Result<Arc<dyn TableFile>, Broken> {
        match &table.file {
            Some(file) => Ok(file.clone()),
            None => self.open_part(&self.source.parts[table.part], session),
        }
    }

    fn fault(&self, table: &Table, at: u64, broken: &Broken, severity: Option<Severity>) -> Fault {
        let unit = if broken.at > 0 { PlaceUnit::Byte } else { PlaceUnit::Row };
        let place = Place { part: table.part as u32, unit, at: if broken.at > 0 { broken.at } else { at } };
        let mut fault = Fault::new(broken.kind, place, broken.detail.clone());
        if let Some(severity) = severity {
            fault.severity = severity;
        }
        fault
    }

    /// Takes what identifies a run only among others of its source off a recording.
    fn name(&self, mut recording: Recording) -> Recording {
        let name = recording.run_id.take();
        let id = name.as_deref().map(|name| id_name(id_of(name)).to_owned());
        let of_column = (Naming::Id, 0);
        let naming = |name: &str| *self.naming.get(self.runs.run(name) as usize).unwrap_or(&of_column);
        let naming = name.as_deref().map(naming);
        let several = self.runs.count() > 1;
        match naming {
            Some((Naming::Id, _)) => recording.run_id = id.filter(|_| several),
            Some((Naming::Path, _)) => (recording.run_id, recording.part) = (id, None),
            // Its file's name is its own, also where it has several.
            Some((Naming::Part, part)) => recording.part = Some(part),
            None => {}
        }
        recording
    }

    /// Rows of a unit that could not be read, from `done` on, by run.
    fn lost_rows(&self, index: usize, done: u64, session: &Session<'_>) -> HashMap<u32, u64> {
        let unit = &self.units[index];
        let table = &self.tables[unit.table];
        let mut lost: HashMap<u32, u64> = HashMap::new();
        let mut add = |all: &[Stretch], begin: u64| {
            let mut start = begin;
            for stretch in all {
                let end = begin + u64::from(stretch.end);
                let rows = end.saturating_sub(start.max(done));
                if rows > 0 {
                    *lost.entry(stretch.key).or_default() += rows;
                }
                start = end;
            }
        };
        match (unit.stretches(), table.run, self.file(table, session)) {
            (Some(all), ..) => add(all, 0),
            (None, RunOf::Column(place), Ok(file)) => {
                let column = table.plan.layout.columns[place].index;
                let mut begin = 0;
                // The fault was told when the runs were counted.
                let _ = file.read(unit.unit, &[column], BATCH, &mut |batch| {
                    add(&stretches(batch.column(0), &mut |id| self.intern(table.data_set, id)), begin);
                    begin += batch.num_rows() as u64;
                    true
                });
            }
            _ => {}
        }
        lost
    }
}

/// The stretches of rows `begin..begin + rows` of a unit, counted from `begin`.
fn cut(all: &[Stretch], begin: u64, rows: usize) -> Vec<Stretch> {
    let end = begin + rows as u64;
    let first = all.partition_point(|stretch| u64::from(stretch.end) <= begin);
    let mut found = Vec::new();
    for stretch in &all[first..] {
        let until = u64::from(stretch.end).min(end);
        found.push(Stretch { end: (until - begin) as u32, key: stretch.key });
        if until == end {
            break;
        }
    }
    found
}

impl Shards for Tables<'_> {
    /// Each unit twice: its run column, then its signals.
    fn count(&self) -> usize {
        2 * self.units.len()
    }

    fn read(&self, shard: usize, session: &mut Session<'_>, give: Give<'_>) {
        if shard < self.units.len() {
            self.count_unit(shard, session);
            return;
        }
        // Others may still be counting; which run has its last row where, is known when all are done.
        let files = session.files;
        if self.counting.wait(&|| files.cancelled()) {
            self.read_unit(shard - self.units.len(), session, give);
        }
    }

    fn finish(&self, give: Give<'_>) -> Vec<Fault> {
        if self.counting.has_panicked() {
            // The panic is the source's outcome.
            return Vec::new();
        }
        self.runs.finish(&mut |recording| give(self.name(recording)));
        let mut faults = std::mem::take(&mut *self.faults.lock().unwrap_or_else(PoisonError::into_inner));
        // Whoever met them first.
        faults.sort_by(|a, b| (a.place.part, a.place.at, &a.detail).cmp(&(b.place.part, b.place.at, &b.detail)));
        faults
    }

    fn is_empty(&self) -> bool {
        self.runs.count() == 0 && self.broken.is_empty() && !self.counting.has_panicked()
    }

    fn broken(&self) -> &[(usize, Rejected)] {
        &self.broken
    }
}

impl Tables<'_> {
    /// Reads the run column of a unit.
    fn count_unit(&self, index: usize, session: &Session<'_>) {
        let unit = &self.units[index];
        let table = &self.tables[unit.table];
        let turn = self.counting.begin();
        let counted = match (table.run, self.file(table, session)) {
            (RunOf::Part(_), _) => Counted::default(),
            (RunOf::Column(_), Err(broken)) => {
                // It was there a moment ago.
                self.tell(self.fault(table, unit.first_row, &broken, Some(Severity::Error)));
                Counted::default()
            }
            (RunOf::Column(place), Ok(file)) => self.counted(unit, table, place, &*file, session),
        };
        let merge = &mut |index: usize, counted: Counted, totals: &mut Totals| self.merge(index, counted, totals);
        turn.end(index, counted, self.units.len(), merge, &mut |totals| self.end_counting(totals));
    }

    fn counted(
        &self,
        unit: &Unit,
        table: &Table,
        place: usize,
        file: &dyn TableFile,
        session: &Session<'_>,
    ) -> Counted {
        let rows = file.rows(unit.unit);
        let mut counted = Counted::new(rows);
        if rows == 0 {
            // What is wrong with it is told when it is read.
            return counted;
        }
        let column = table.plan.layout.columns[place].index;
        let files = session.files;
        let result = file.read(unit.unit, &[column], *WIDE_BATCHES.end(), &mut |batch| {
            counted.add(batch.column(0));
            !files.cancelled()
        });
        if let Err(broken) = result {
            let done = counted.done();
            let detail = format!("rows {done} to {rows} cannot be told by run: {}", broken.detail);
            let broken = Broken { detail, ..broken };
            counted.lost = Some(self.fault(table, unit.first_row + done, &broken, Some(Severity::Error)));
        }
        counted
    }

    /// Takes what was counted; units come in their order.
    fn merge(&self, index: usize, mut counted: Counted, totals: &mut Totals) {
        let unit = &self.units[index];
        let table = &self.tables[unit.table];
        let part = table.part as u32;
        // Rows that could be of any run of their data set.
        totals.lost.extend(counted.lost.take().map(|fault| (table.data_set, fault)));
        let stretches = match table.run {
            RunOf::Part(run) => {
                totals.count(run, unit.rows, index, part);
                u32::try_from(unit.rows).ok().map(|end| vec![Stretch { end, key: run }])
            }
            RunOf::Column(_) => totals.take(counted, index, part, &mut |id| self.intern(table.data_set, id)),
        };
        let first = unit.runs.set(stretches);
        debug_assert!(first.is_ok(), "a unit was counted twice");
    }

    /// What is known once all units are counted.
    fn end_counting(&self, totals: Totals) {
        for (data_set, fault) in totals.lost {
            if !self.runs.lose_somewhere(&format!("{data_set}{OF}"), &fault) {
                self.tell(fault);
            }
        }
        if self.runs.passed_limit() {
            let place = Place { part: 0, unit: PlaceUnit::Row, at: 0 };
            let detail = format!("more than {} runs: the rows of further ones are not read", self.limits.runs);
            let mut fault = Fault::new(FaultKind::Limit, place, detail);
            fault.severity = Severity::Error;
            self.tell(fault);
        }
        for (run, known) in totals.known {
            self.runs.know(run, known);
        }
    }

    fn tell(&self, fault: Fault) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    /// Reads the signals of a unit.
    fn read_unit(&self, shard: usize, session: &mut Session<'_>, give: Give<'_>) {
        let unit = &self.units[shard];
        let table = &self.tables[unit.table];
        let layout = &table.plan.layout;
        let mut give = |recording: Recording| give(self.name(recording));
        // The run column is not read again where its stretches are known.
        let run_place = match (table.run, unit.stretches()) {
            (RunOf::Column(place), None) => Some(place),
            _ => None,
        };
        let plan = if unit.stretches().is_some() { &table.bare } else { &table.plan };
        let mut done = 0u64;
        let files = session.files;
        let result = self.file(table, session).and_then(|file| {
            let wide = (self.runs.count() * ROWS_OF_RUN).clamp(*WIDE_BATCHES.start(), *WIDE_BATCHES.end());
            let batch = if run_place.is_some() { wide } else { BATCH };
            file.read(unit.unit, &plan.layout.projection(), batch, &mut |rows| {
                let count = rows.num_rows();
                let by_run = match (unit.stretches(), run_place) {
                    (Some(all), _) => cut(all, done, count),
                    (None, Some(place)) => stretches(rows.column(place), &mut |id| self.intern(table.data_set, id)),
                    (None, None) => Vec::new(),
                };
                let mut name = |name: &str| self.runs.metric(name);
                let batch = Arc::new(Batch::decode(plan, &rows, unit.first_row + done, &mut name));
                for (run, rows) in partition(&by_run, count) {
                    if run != BEYOND {
                        self.runs.take(run, shard, Piece { batch: batch.clone(), rows }, &mut give);
                    }
                }
                done += count as u64;
                !files.cancelled()
            })
        });
        if let Err(broken) = result
            && !files.cancelled()
        {
            let fault = self.fault(table, unit.first_row + done, &broken, None);
            let columns: Vec<String> = layout.columns.iter().filter(|c| c.is_metric).map(|c| c.name.clone()).collect();
            let lost = self.lost_rows(shard, done, session);
            if lost.is_empty() {
                self.tell(fault);
            } else {
                for (run, rows) in lost {
                    self.runs.lose(run, rows, &fault, &columns, &mut give);
                }
            }
        }
        self.runs.end_unit(shard, &mut give);
    }
}

/// Reads all recordings of a source, one unit after the other.
pub fn read_all(source: &Source, session: &mut Session<'_>, open: Open) -> Result<Vec<Recording>, Rejected> {
    let (request, limits) = (session.request, session.limits);
    let shards = tables(source, request, limits, session, open)?;
    let mut recordings = Vec::new();
    for shard in 0..shards.count() {
        if session.files.cancelled() {
            return Err(Rejected::Cancelled);
        }
        shards.read(shard, session, &mut |recording| recordings.push(recording));
    }
    let faults = shards.finish(&mut |recording| recordings.push(recording));
    if session.files.cancelled() {
        return Err(Rejected::Cancelled);
    }
    // In the order of the ids: which run is complete first says nothing.
    recordings.sort_by(|a, b| (&a.run_id, a.part).cmp(&(&b.run_id, b.part)));
    let broken = shards.broken().iter().map(|(part, rejected)| {
        let place = Place { part: *part as u32, unit: PlaceUnit::Byte, at: 0 };
        let mut fault = Fault::new(FaultKind::Unparsable, place, rejected.to_string());
        fault.severity = Severity::Error;
        fault
    });
    let all: Vec<Fault> = faults.into_iter().chain(broken).collect();
    for recording in &mut recordings {
        recording.faults.extend(all.iter().cloned());
    }
    Ok(recordings)
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;

    use super::*;
    use crate::detect::{self, Worker};
    use crate::model::{Format, Knobs, Status};
    use crate::read::testing::Memory;

    const ROWS: usize = 40;

    /// Two runs, a row group each; the offsets of the chunks of both columns in each group.
    fn two_runs() -> (Vec<u8>, Vec<[u64; 2]>) {
        let mut bytes = Vec::new();
        let batch = |run: &str| {
            let norms: Vec<f64> = (0..ROWS).map(|row| 1.0 + (row % 7) as f64 / 10.0).collect();
            let columns: [(&str, ArrayRef); 3] = [
                ("run_id", Arc::new(StringArray::from(vec![run; ROWS]))),
                ("step", Arc::new(Int64Array::from_iter_values(0..ROWS as i64))),
                ("grad_norm", Arc::new(Float64Array::from(norms))),
            ];
            RecordBatch::try_from_iter(columns).unwrap()
        };
        let batches = [batch("a"), batch("b")];
        let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
        let mut writer = ArrowWriter::try_new(&mut bytes, batches[0].schema(), Some(properties)).unwrap();
        for rows in &batches {
            writer.write(rows).unwrap();
            writer.flush().unwrap();
        }
        let footer = writer.close().unwrap();
        let offset = |group: &parquet::file::metadata::RowGroupMetaData, at: usize| group.column(at).byte_range().0;
        let offsets = footer.row_groups().iter().map(|group| [0, 2].map(|at| offset(group, at))).collect();
        (bytes, offsets)
    }

    type Told = (String, Status, Option<&'static str>, bool);

    /// Each run's name, status and reason, and whether it has a fault.
    fn judged(bytes: Vec<u8>) -> Vec<Told> {
        let memory = Memory::new([("m.parquet", bytes)]);
        let source = Source {
            format: Format::Parquet,
            path: "m.parquet".to_owned(),
            directory: ".".into(),
            parts: vec![memory.part("m.parquet")],
        };
        let (request, limits, mut buffer) = (Request::default(), Limits::default(), Vec::new());
        let mut session = Session { files: &memory, request: &request, limits: &limits, buffer: &mut buffer };
        let recordings = read_all(&source, &mut session, super::super::parquet::open).unwrap();
        let judge = |recording: Recording| {
            let verdict = detect::judge(&recording, &Knobs::default(), &mut Worker::default());
            let code = verdict.reason.map(|(code, _)| code);
            (recording.run_id.unwrap_or_default(), verdict.status, code, !recording.faults.is_empty())
        };
        recordings.into_iter().map(judge).collect()
    }

    #[test]
    fn a_run_that_lost_rows_is_not_clean() {
        let (bytes, offsets) = two_runs();
        let clean = |run: &str| (run.to_owned(), Status::Clean, None, false);
        let lost = |run: &str| (run.to_owned(), Status::NotAssessable, Some("damaged-signal"), true);
        assert_eq!(judged(bytes.clone()), [clean("a"), clean("b")]);
        let smashed = |at: u64| {
            let mut bytes = bytes.clone();
            bytes[at as usize..at as usize + 8].fill(0xff);
            judged(bytes)
        };
        // The norms of one run.
        assert_eq!(smashed(offsets[1][1]), [clean("a"), lost("b")]);
        // Rows of no known run could be those of any.
        let found = smashed(offsets[1][0]);
        assert!(!found.is_empty() && found.iter().all(|(run, ..)| run.is_empty()), "{found:?}");
        assert!(found.iter().all(|told| *told == lost(&told.0)), "{found:?}");
    }
}
