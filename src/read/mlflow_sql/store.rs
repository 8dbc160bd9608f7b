//! The runs of one store: who reads which rows, and how the points of a run become its recording.
//!
//! The primary key of `metrics` (key, timestamp, step, run_uuid, value, is_nan) holds all columns that are wanted, so a
//! metric is one range of that index, in the order of time. Ranges are read by several workers; once all are done the runs
//! are put together, a few at a time, by several workers too.

use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use std::{cmp::Reverse, fmt::Write as _};

use chrono::DateTime;
use rusqlite::types::{ToSql, ValueRef};
use rusqlite::{Connection, Row};

use super::plan::{Key, Metrics, Plan, Run};
use crate::model::column::{Chunks, Ints};
use crate::model::{Fault, FaultKind, Format, Limits, PlaceUnit, Recording, Source};
use crate::read::database::{Database, Trouble, bytes, integer};
use crate::read::{Builder, Files, Rejected, Request, Session, Shards};

/// Rows between two looks at whether the scan was cancelled.
const LOOK: u64 = 4096;

/// Bytes that a row of an index takes at least: what holds more of them has pages that form a circle.
const LEAST: u64 = 8;

/// Bytes of a store from which the rows of one metric are shared between workers.
const LARGE: u64 = 4 << 20;

/// Ranges that a large store is read in, at least.
const RANGES: usize = 16;

/// Groups of runs that are put together at once by one worker each.
const GROUPS: usize = 64;

/// Runs that were met last are found without a look into the table of all: a few log at the same time.
const RECENT: usize = 256;

/// Where a run stands among the recent ones; any two may share a place.
#[inline]
fn recent_place(id: &[u8]) -> usize {
    let (Some(first), Some(last)) = (id.first_chunk::<8>(), id.last_chunk::<8>()) else { return 0 };
    let mixed =
        (u64::from_le_bytes(*first) ^ u64::from_le_bytes(*last).rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rows of one metric in a stretch of time; milliseconds since 1970, open where `None`. Without a metric: all rows.
#[derive(Clone, Copy, Debug)]
struct Range {
    key: Option<u32>,
    from: Option<i64>,
    until: Option<i64>,
}

/// Points of one metric of one run in the order of time.
#[derive(Debug, Default)]
struct Points {
    steps: Ints,
    values: Chunks<f64>,
    /// Milliseconds since 1970.
    times: Chunks<i64>,
}

impl Points {
    #[inline]
    fn push(&mut self, point: Point) {
        self.steps.push(point.step);
        self.values.push(point.value);
        self.times.push(point.time);
    }

    fn append_backward(&mut self, other: &Self) {
        for at in (0..other.steps.len()).rev() {
            let (step, value, time) = (other.steps.get(at), other.values.get(at), other.times.get(at));
            self.push(Point { step, value, time });
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Point {
    step: i64,
    value: f64,
    time: i64,
}

/// The time of a row that has none.
const NEVER: i64 = i64::MIN;

fn seconds(time: i64) -> f64 {
    if time == NEVER { f64::NAN } else { time as f64 / 1e3 }
}

/// Time and step of a row; `None` before the first.
type Moment = Option<(i64, i64)>;

/// What a range held.
#[derive(Debug, Default)]
struct Gathered {
    /// By run, then metric.
    series: Vec<(u32, u32, Points)>,
    homes: HashMap<(u32, u32), usize>,
    newest: Moment,
    /// Rows of runs that `runs` does not know.
    strangers: BTreeMap<(Vec<u8>, u32), Points>,
    trouble: Option<(u64, Trouble)>,
}

impl Gathered {
    /// Index of the series of a run's metric.
    fn home(&mut self, run: u32, key: u32) -> usize {
        *self.homes.entry((run, key)).or_insert_with(|| {
            self.series.push((run, key, Points::default()));
            self.series.len() - 1
        })
    }

    /// Appends what was read backward.
    fn append_backward(&mut self, other: Self) {
        for (run, key, points) in other.series {
            let home = self.home(run, key);
            self.series[home].2.append_backward(&points);
        }
        for (stranger, points) in other.strangers {
            self.strangers.entry(stranger).or_default().append_backward(&points);
        }
    }
}

/// How many ranges were begun, and how many are done.
#[derive(Debug, Default)]
struct Progress {
    begun: usize,
    done: usize,
    /// Groups of runs that were asked for too early.
    early: Vec<usize>,
}

/// A store, ready to be read.
pub struct Store<'a> {
    request: &'a Request,
    limits: &'a Limits,
    database: Database,
    metrics: Metrics,
    keys: Vec<Key>,
    runs: Vec<Run>,
    index: HashMap<Vec<u8>, u32>,
    ranges: Vec<Range>,
    gathered: Vec<OnceLock<Gathered>>,
    progress: Mutex<Progress>,
    turned: Condvar,
    faults: Mutex<Vec<Fault>>,
}

impl<'a> Store<'a> {
    /// Opens the store, and reads everything but the rows of metrics.
    pub fn open(
        source: &'a Source,
        request: &'a Request,
        limits: &'a Limits,
        session: &mut Session<'_>,
    ) -> Result<Self, Rejected> {
        let Some(part) = source.parts.first() else {
            return Err(Rejected::unreadable("not-a-recording", "no file"));
        };
        let mut database = Database::open(part, 0, session)?;
        let mut faults = std::mem::take(&mut database.faults);
        let files = session.files;
        let mut plan = Plan::new(request, limits, files);
        let made = database.with(|connection| {
            let metrics = plan.make(connection)?;
            let ranges = metrics.as_ref().map(|metrics| ranges(connection, metrics, &plan.keys, database.size));
            Ok(metrics.zip(ranges))
        });
        if files.cancelled() {
            return Err(Rejected::Cancelled);
        }
        let made = made.and_then(|made| made).map_err(|trouble| trouble.rejected())?;
        let Some((metrics, ranges)) = made else {
            let detail = "a database without the tables of MLflow (`runs`, `metrics`) or trackio (`metrics`)";
            return Err(Rejected::unreadable("not-a-recording", detail));
        };
        let Plan { keys, runs, index, faults: met, .. } = plan;
        faults.extend(met);
        let gathered = ranges.iter().map(|_| OnceLock::new()).collect();
        Ok(Self {
            request,
            limits,
            database,
            metrics,
            keys,
            runs,
            index,
            ranges,
            gathered,
            progress: Mutex::default(),
            turned: Condvar::new(),
            faults: Mutex::new(faults),
        })
    }

    fn groups(&self) -> usize {
        self.runs.len().min(GROUPS)
    }

    /// Reads the rows of a range: up to damage from its begin, and then from its end.
    fn gather(&self, range: Range, files: &dyn Files) -> Gathered {
        let (mut rows, mut gathered) = (0, Gathered::default());
        let scan = |newest, rows: &mut u64, into: &mut Gathered| {
            let scan = |connection: &Connection| self.scan(connection, range, newest, files, rows, into);
            self.database.with(scan).and_then(|read| read)
        };
        if let Err(trouble) = scan(None, &mut rows, &mut gathered) {
            if trouble.kind == FaultKind::Unparsable && self.metrics.is_indexed {
                let (newest, mut behind, mut tail) = (gathered.newest, 0, Gathered::default());
                // It ends at the same damage, or where the rows are known.
                let _ = scan(Some(newest), &mut behind, &mut tail);
                gathered.append_backward(tail);
            }
            gathered.trouble = Some((rows, trouble));
        }
        gathered.homes = HashMap::new();
        gathered.series.sort_unstable_by_key(|(run, key, _)| (*run, *key));
        gathered
    }

    /// Reads rows in the order of time; backward from the end where the `newest` ones that are known are given, up to those.
    fn scan(
        &self,
        connection: &Connection,
        range: Range,
        newest: Option<Moment>,
        files: &dyn Files,
        rows: &mut u64,
        into: &mut Gathered,
    ) -> Result<(), Trouble> {
        let mut values: Vec<&dyn ToSql> = Vec::new();
        let mut bounds = String::new();
        let mut bound = |condition: &str| {
            let word = if bounds.is_empty() { "WHERE" } else { "AND" };
            // Writing to a text cannot fail.
            let _ = write!(bounds, " {word} {condition} ?");
        };
        let wanted = range.key.map(|key| &self.keys[key as usize]);
        if let Some(key) = wanted {
            bound("key =");
            values.push(&key.sql);
        }
        if let Some(from) = &range.from {
            bound("timestamp >=");
            values.push(from);
        }
        if let Some(until) = &range.until {
            bound("timestamp <");
            values.push(until);
        }
        let Metrics { time, step, is_nan, .. } = self.metrics;
        let key = if wanted.is_some() { "" } else { ", key" };
        let order = if newest.is_some() { "time DESC, at DESC" } else { "time, at" };
        let sql = format!(
            "SELECT run_uuid, {time} AS time, {step} AS at, value, {is_nan}{key} FROM metrics{bounds} ORDER BY {order}"
        );
        let mut query = connection.prepare(&sql)?;
        let mut found = query.query(values.as_slice())?;
        let names: HashMap<&[u8], u32> = (0..).zip(&self.keys).map(|(index, key)| (key.sql.bytes(), index)).collect();
        let most = self.database.size / LEAST;
        let mut recent = [None; RECENT];
        while let Some(row) = found.next()? {
            *rows += 1;
            if rows.is_multiple_of(LOOK) && files.cancelled() {
                return Ok(());
            }
            if *rows > most {
                let detail = "more rows than its bytes can hold: given up".to_owned();
                return Err(Trouble { kind: FaultKind::Limit, detail });
            }
            let key = match range.key {
                Some(key) => key,
                None => {
                    let key = bytes(row.get_ref(5)?).and_then(|name| names.get(name).copied());
                    match key.filter(|key| self.keys[*key as usize].is_wanted) {
                        Some(key) => key,
                        None => continue,
                    }
                }
            };
            let (Some(id), Some(point)) = (bytes(row.get_ref(0)?), point(row)?) else { continue };
            let moment = Some((point.time, point.step));
            match newest {
                Some(known) if moment <= known => return Ok(()),
                Some(_) => {}
                None => into.newest = moment,
            }
            let place = recent_place(id);
            if let Some((run, last, home)) = recent[place]
                && last == key
                && self.runs[run as usize].id == id
            {
                let home: usize = home;
                into.series[home].2.push(point);
                continue;
            }
            let Some(run) = self.index.get(id).copied() else {
                if into.strangers.len() < self.limits.runs {
                    into.strangers.entry((id.to_vec(), key)).or_default().push(point);
                }
                continue;
            };
            if !self.runs[run as usize].is_active {
                continue;
            }
            let home = into.home(run, key);
            into.series[home].2.push(point);
            recent[place] = Some((run, key, home));
        }
        Ok(())
    }

    /// What ended the reading of metrics that a run has, or may have.
    fn losses(&self, run: &Run) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (range, gathered) in self.ranges.iter().zip(&self.gathered) {
            let Some(Gathered { trouble: Some((rows, trouble)), .. }) = gathered.get() else { continue };
            let may_have = range.key.is_none_or(|key| run.wanted.is_empty() || run.wanted.contains(&key));
            if may_have && faults.len() < self.limits.faults {
                let mut fault = trouble.fault(0, *rows);
                if let Some(key) = range.key {
                    fault.detail = format!("{}, after {rows} rows: {}", self.keys[key as usize].name, fault.detail);
                }
                faults.push(fault);
            }
        }
        faults
    }

    /// Puts the recording of a run together. `series` by metric, then time.
    fn recording(&self, run: &Run, series: &[(u32, &Points)]) -> Recording {
        let mut builder = Builder::of_points(Format::MlflowSql, self.request, self.limits, PlaceUnit::Row, false);
        let id = String::from_utf8_lossy(&run.id).into_owned();
        builder.describe("run_id", &id);
        let date = |time: Option<i64>| time.and_then(DateTime::from_timestamp_millis).map(|time| time.to_rfc3339());
        let said = [
            ("name", run.name.clone()),
            ("experiment", run.experiment.clone()),
            ("status", run.status.clone()),
            ("started", date(run.started)),
            ("ended", date(run.ended)),
        ];
        for (name, text) in said {
            if let Some(text) = text {
                builder.describe(name, &text);
            }
        }
        builder.run_id = Some(id);
        builder.name.clone_from(&run.name);
        builder.begin_part(0);
        let mut column = |key: u32| {
            let column = builder.column(&self.keys[key as usize].name);
            builder.numeric(column.id);
            column.id
        };
        for key in &run.others {
            column(*key);
        }
        let columns: Vec<u32> = series.iter().map(|(key, _)| column(*key)).collect();
        // The last value is known, and none of the curve is there.
        let bare = run.wanted.iter().filter(|key| !series.iter().any(|(known, _)| known == *key));
        let bare: Vec<u32> = bare.map(|key| column(*key)).collect();
        bare.iter().for_each(|column| builder.lost(*column));
        let ended = give(series, &columns, &mut builder);
        // The training went as far as its last metric, whether that one was wanted or not.
        let last = run.reach.or(run.last.filter(|_| series.is_empty()));
        if let Some(last) = last {
            builder.begin_points(0, last, ended.or(run.ended).map_or(f64::NAN, seconds));
            builder.pass_point(run.reach.is_some());
        }
        let faults = self.losses(run);
        let has_lost_rows = !faults.is_empty();
        faults.into_iter().for_each(|fault| builder.fault(fault));
        let mut recording = builder.finish();
        recording.has_lost_rows = has_lost_rows;
        recording
    }

    /// Gives the recordings of a group of runs.
    fn finish_group(&self, group: usize, give: &mut dyn FnMut(Recording)) {
        let (count, groups) = (self.runs.len(), self.groups());
        for index in count * group / groups..count * (group + 1) / groups {
            let run = &self.runs[index];
            if !run.is_active {
                continue;
            }
            let mut series: Vec<(u32, &Points)> = Vec::new();
            for gathered in self.gathered.iter().filter_map(OnceLock::get) {
                let first = gathered.series.partition_point(|(run, ..)| (*run as usize) < index);
                let own = gathered.series[first..].iter().take_while(|(run, ..)| *run as usize == index);
                series.extend(own.map(|(_, key, points)| (*key, points)));
            }
            give(self.recording(run, &series));
        }
    }
}

/// One row of `metrics` as a point.
#[inline]
fn point(row: &Row<'_>) -> Result<Option<Point>, Trouble> {
    let is_nan = matches!(row.get_ref(4)?, ValueRef::Integer(flag) if flag != 0);
    let value = match row.get_ref(3)? {
        _ if is_nan => f64::NAN,
        // The largest double stands for Inf, which not every SQL server can store.
        ValueRef::Real(f64::MAX) => f64::INFINITY,
        ValueRef::Real(f64::MIN) => f64::NEG_INFINITY,
        ValueRef::Real(value) => value,
        ValueRef::Integer(value) => value as f64,
        ValueRef::Null | ValueRef::Text(_) | ValueRef::Blob(_) => return Ok(None),
    };
    let time = integer(row.get_ref(1)?).unwrap_or(NEVER);
    let step = integer(row.get_ref(2)?).unwrap_or(0);
    Ok(Some(Point { step, value, time }))
}

/// Gives the points of all series of a run to a builder in the order of time, at one time by step; gives the last time.
fn give(series: &[(u32, &Points)], columns: &[u32], builder: &mut Builder<'_>) -> Option<i64> {
    // Ranges of one metric follow each other.
    let mut before: Vec<u64> = Vec::new();
    for (at, (key, _)) in series.iter().enumerate() {
        let follows = at > 0 && series[at - 1].0 == *key;
        before.push(if follows { before[at - 1] + series[at - 1].1.steps.len() as u64 } else { 0 });
    }
    let head = |index: usize, at: usize| {
        let points = series[index].1;
        (at < points.steps.len()).then(|| Reverse((points.times.get(at), points.steps.get(at), index, at)))
    };
    let mut next: BinaryHeap<_> = (0..series.len()).filter_map(|index| head(index, 0)).collect();
    let mut last = None;
    while let Some(mut top) = next.peek_mut() {
        let Reverse((time, step, index, at)) = *top;
        builder.begin_points(before[index] + at as u64, step, seconds(time));
        builder.point(columns[index], series[index].1.values.get(at));
        last = Some(time);
        match head(index, at + 1) {
            Some(following) => *top = following,
            None => drop(PeekMut::pop(top)),
        }
    }
    last
}

/// What is read at once; the rows of one metric in several ranges of time only where there is much to share.
fn ranges(connection: &Connection, metrics: &Metrics, keys: &[Key], size: u64) -> Vec<Range> {
    let wanted: Vec<u32> = (0..).zip(keys).filter(|(_, key)| key.is_wanted).map(|(index, _)| index).collect();
    if !metrics.is_indexed {
        let all = Range { key: None, from: None, until: None };
        return if wanted.is_empty() { Vec::new() } else { vec![all] };
    }
    let pieces = if size < LARGE { 1 } else { RANGES.div_ceil(wanted.len().max(1)) as i64 };
    let mut ranges = Vec::new();
    for key in wanted {
        let bounds = (pieces > 1).then(|| times_of(connection, &keys[key as usize])).flatten();
        let (first, last) = bounds.unwrap_or((0, 0));
        let span = last.saturating_sub(first);
        let pieces = if span < pieces { 1 } else { pieces };
        let split = |piece: i64| (1..pieces).contains(&piece).then(|| first + span / pieces * piece);
        ranges.extend((0..pieces).map(|piece| Range { key: Some(key), from: split(piece), until: split(piece + 1) }));
    }
    ranges
}

/// The first and the last time of a metric. What is wrong with its rows is told when they are read.
fn times_of(connection: &Connection, key: &Key) -> Option<(i64, i64)> {
    let ask = |which: &str| {
        let sql = format!("SELECT {which}(timestamp) FROM metrics WHERE key = ?");
        connection.query_row(&sql, [&key.sql], |row| row.get_ref(0).map(integer)).ok().flatten()
    };
    Some((ask("min")?, ask("max")?))
}

/// Counts a range as done, also where its reading panics: others wait for it.
struct Done<'s, 'a>(&'s Store<'a>);

impl Drop for Done<'_, '_> {
    fn drop(&mut self) {
        lock(&self.0.progress).done += 1;
        self.0.turned.notify_all();
    }
}

impl Shards for Store<'_> {
    fn count(&self) -> usize {
        self.ranges.len() + self.groups()
    }

    fn read(&self, shard: usize, session: &mut Session<'_>, give: &mut dyn FnMut(Recording)) {
        if let Some(range) = self.ranges.get(shard) {
            lock(&self.progress).begun += 1;
            let _done = Done(self);
            let _ = self.gathered[shard].set(self.gather(*range, session.files));
            return;
        }
        let group = shard - self.ranges.len();
        let mut progress = lock(&self.progress);
        if progress.begun < self.ranges.len() {
            // Who waits for a range that nobody has begun may wait for himself.
            progress.early.push(group);
            return;
        }
        while progress.done < self.ranges.len() && !session.files.cancelled() {
            let waited = self.turned.wait_timeout(progress, Duration::from_millis(100));
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(progress);
        if !session.files.cancelled() {
            self.finish_group(group, give);
        }
    }

    fn finish(&self, give: &mut dyn FnMut(Recording)) -> Vec<Fault> {
        for group in std::mem::take(&mut lock(&self.progress).early) {
            self.finish_group(group, give);
        }
        let mut strangers: BTreeMap<&[u8], Vec<(u32, &Points)>> = BTreeMap::new();
        for gathered in self.gathered.iter().filter_map(OnceLock::get) {
            for ((id, key), points) in &gathered.strangers {
                strangers.entry(id).or_default().push((*key, points));
            }
        }
        for (id, mut series) in strangers {
            series.sort_by_key(|(key, _)| *key);
            let run = Run { id: id.to_vec(), is_active: true, ..Run::default() };
            give(self.recording(&run, &series));
        }
        std::mem::take(&mut *lock(&self.faults))
    }

    fn is_empty(&self) -> bool {
        let gathered = self.gathered.iter().filter_map(OnceLock::get);
        let strangers: usize = gathered.map(|gathered| gathered.strangers.len()).sum();
        strangers == 0 && !self.runs.iter().any(|run| run.is_active)
    }

    fn broken(&self) -> &[(usize, Rejected)] {
        &[]
    }
}
