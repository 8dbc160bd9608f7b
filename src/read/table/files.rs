//! Tables on disk: the run column first, then the signals, unit by unit, by as many workers as there are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::batch::{Batch, Piece, Plan};
use super::cells::{Stretch, id_name, partition, stretches};
use super::file::TableFile;
use super::layout::{Layout, Misfit, Usage};
use super::runs::{BEYOND, Give, Known, Runs};
use super::sources::{hive_values, wandb_export};
use crate::model::{Fault, FaultKind, Limits, Part, Place, PlaceUnit, Recording, Severity, Source, roles};
use crate::read::broken::Broken;
use crate::read::{Ranges, Rejected, Request, Session, Shards};

/// Opens one part.
pub type Open = fn(Arc<dyn Ranges>, &Limits) -> Result<Box<dyn TableFile>, Broken>;

/// Rows decoded at once: few enough that their columns stay in the second cache.
const BATCH: usize = 1 << 14;
/// The same where the rows of runs lie apart: each run should get more than a few of them.
const WIDE_BATCH: usize = 1 << 18;
/// Parts kept open; of sources with more, each is opened again where it is read.
const OPEN: usize = 64;
/// Rows to a stretch below which the runs of a unit are not remembered, but read again.
const SHORT: u64 = 16;

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
    /// The runs of its rows, if they are few.
    runs: Option<Vec<Stretch>>,
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
    /// What names each run, and the first part of it.
    naming: Vec<(Naming, u32)>,
    broken: Vec<(usize, Rejected)>,
    faults: Mutex<Vec<Fault>>,
}

/// Opens the parts of a source, finds their columns, and counts the rows of each run.
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
    tables.count_runs(session)?;
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
            self.units.push(Unit { table: self.tables.len(), unit, first_row, runs: None });
            first_row += file.rows(unit);
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

    /// Reads the run column of all parts.
    fn count_runs(&mut self, session: &mut Session<'_>) -> Result<(), Rejected> {
        let mut known: HashMap<u32, Known> = HashMap::new();
        let mut found = Vec::new();
        // Rows that could be of any run of their data set.
        let mut unknown: Vec<(usize, Fault)> = Vec::new();
        for (index, unit) in self.units.iter().enumerate() {
            if session.files.cancelled() {
                return Err(Rejected::Cancelled);
            }
            let table = &self.tables[unit.table];
            let part = table.part as u32;
            let mut count = |run: u32, rows: u64| {
                let known = known.entry(run).or_insert(Known { first_unit: Some(index), part, ..Known::default() });
                known.rows = Some(known.rows.unwrap_or(0) + rows);
                known.is_split |= known.part != part;
            };
            let file = match self.file(table, session) {
                Ok(file) => file,
                Err(broken) => {
                    // It was there a moment ago.
                    let fault = self.fault(table, unit.first_row, &broken, Some(Severity::Error));
                    self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
                    continue;
                }
            };
            let rows = file.rows(unit.unit);
            if rows == 0 {
                // What is wrong with it is told when it is read.
                found.push((index, Some(Vec::new())));
                continue;
            }
            match table.run {
                RunOf::Part(run) => {
                    count(run, rows);
                    let all = u32::try_from(rows).ok().map(|end| vec![Stretch { end, key: run }]);
                    found.push((index, all));
                }
                RunOf::Column(place) => {
                    let column = table.plan.layout.columns[place].index;
                    let mut stretches_of_unit: Option<Vec<Stretch>> = u32::try_from(rows).ok().map(|_| Vec::new());
                    let (mut done, files) = (0u64, session.files);
                    let result = file.read(unit.unit, &[column], WIDE_BATCH, &mut |batch| {
                        let mut intern = |id: &str| self.intern(table.data_set, id);
                        let mut start = 0;
                        for stretch in stretches(batch.column(0), &mut intern) {
                            count(stretch.key, u64::from(stretch.end - start));
                            if let Some(all) = &mut stretches_of_unit {
                                let end = (done + u64::from(stretch.end)) as u32;
                                match all.last_mut() {
                                    Some(last) if last.key == stretch.key => last.end = end,
                                    _ => all.push(Stretch { end, key: stretch.key }),
                                }
                            }
                            start = stretch.end;
                        }
                        done += batch.num_rows() as u64;
                        if stretches_of_unit.as_ref().is_some_and(|all| all.len() as u64 > 64 + done / SHORT) {
                            stretches_of_unit = None;
                        }
                        !files.cancelled()
                    });
                    if let Err(broken) = result {
                        let detail = format!("rows {done} to {rows} cannot be told by run: {}", broken.detail);
                        let broken = Broken { detail, ..broken };
                        let fault = self.fault(table, unit.first_row + done, &broken, Some(Severity::Error));
                        unknown.push((table.data_set, fault));
                    }
                    found.push((index, stretches_of_unit));
                }
            }
        }
        if session.files.cancelled() {
            return Err(Rejected::Cancelled);
        }
        for (index, stretches) in found {
            self.units[index].runs = stretches;
        }
        for (data_set, fault) in unknown {
            if !self.runs.lose_somewhere(&format!("{data_set}{OF}"), &fault) {
                self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
            }
        }
        self.name_runs(Naming::Id, 0);
        if self.runs.passed_limit() {
            let place = Place { part: 0, unit: PlaceUnit::Row, at: 0 };
            let detail = format!("more than {} runs: the rows of further ones are not read", self.limits.runs);
            let mut fault = Fault::new(FaultKind::Limit, place, detail);
            fault.severity = Severity::Error;
            self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
        }
        for (run, known) in known {
            self.runs.know(run, known);
        }
        Ok(())
    }

    /// Takes what identifies a run only among others of its source off a recording.
    fn name(&self, mut recording: Recording) -> Recording {
        let name = recording.run_id.take();
        let id = name.as_deref().map(|name| id_name(id_of(name)).to_owned());
        let naming = name.as_deref().map(|name| self.naming[self.runs.run(name) as usize]);
        let several = self.naming.len() > 1;
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
        match (&unit.runs, table.run, self.file(table, session)) {
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
    fn count(&self) -> usize {
        self.units.len()
    }

    fn read(&self, shard: usize, session: &mut Session<'_>, give: Give<'_>) {
        let unit = &self.units[shard];
        let table = &self.tables[unit.table];
        let layout = &table.plan.layout;
        let mut give = |recording: Recording| give(self.name(recording));
        // The run column is not read again where its stretches are known.
        let run_place = match (table.run, &unit.runs) {
            (RunOf::Column(place), None) => Some(place),
            _ => None,
        };
        let plan = if unit.runs.is_some() { &table.bare } else { &table.plan };
        let mut done = 0u64;
        let files = session.files;
        let result = self.file(table, session).and_then(|file| {
            let batch = if run_place.is_some() { WIDE_BATCH } else { BATCH };
            file.read(unit.unit, &plan.layout.projection(), batch, &mut |rows| {
                let count = rows.num_rows();
                let by_run = match (&unit.runs, run_place) {
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
                self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
            } else {
                for (run, rows) in lost {
                    self.runs.lose(run, rows, &fault, &columns, &mut give);
                }
            }
        }
        self.runs.end_unit(shard, &mut give);
    }

    fn finish(&self, give: Give<'_>) -> Vec<Fault> {
        self.runs.finish(&mut |recording| give(self.name(recording)));
        std::mem::take(&mut *self.faults.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_empty(&self) -> bool {
        self.runs.count() == 0 && self.broken.is_empty()
    }

    fn broken(&self) -> &[(usize, Rejected)] {
        &self.broken
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
