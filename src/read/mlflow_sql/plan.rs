//! What is known of a store before the rows of its metrics are read: runs, names of metrics, and which run has which.

use std::borrow::Cow;
use std::collections::HashMap;

use rusqlite::Connection;
use rusqlite::types::{ToSql, ToSqlOutput, Type, ValueRef};

use crate::model::{Fault, FaultKind, Format, Limits, Place, PlaceUnit, Role, Severity, roles};
use crate::read::builder::points;
use crate::read::database::{self, TableColumn, Trouble, bytes, integer, text};
use crate::read::{Builder, Files, Request, Want};

/// Rows between two looks at whether the scan was cancelled.
const LOOK: u64 = 4096;

/// Metrics of a run without a role that are listed.
const LISTED: usize = 50;

/// One row of `runs`.
#[derive(Debug, Default)]
pub struct Run {
    /// Its id, as SQLite compares it.
    pub id: Vec<u8>,
    /// What the user calls it.
    pub name: Option<String>,
    /// The name of its experiment.
    pub experiment: Option<String>,
    /// `FINISHED`, `FAILED`, `KILLED`, `RUNNING`, `SCHEDULED`.
    pub status: Option<String>,
    /// Milliseconds since 1970.
    pub started: Option<i64>,
    /// Milliseconds since 1970.
    pub ended: Option<i64>,
    /// Deleted runs, and those of deleted experiments, are left out.
    pub is_active: bool,
    /// Its wanted metrics, as `latest_metrics` lists them.
    pub wanted: Vec<u32>,
    /// The first of its other metrics.
    pub others: Vec<u32>,
    /// The largest step of a metric that shows how far the training went.
    pub reach: Option<i64>,
    /// The largest step of any metric.
    pub last: Option<i64>,
}

/// A metric's name.
#[derive(Debug)]
pub struct Key {
    /// As it is shown.
    pub name: String,
    /// As SQLite compares it.
    pub sql: RawText,
    /// Its values are wanted.
    pub is_wanted: bool,
    /// Its steps show how far the training went.
    reaches: bool,
}

/// A text of any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawText(Vec<u8>);

impl RawText {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl ToSql for RawText {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}

/// The table `metrics` as this version of MLflow made it: the expressions of its columns.
#[derive(Clone, Copy, Debug)]
pub struct Metrics {
    /// Milliseconds since 1970.
    pub time: &'static str,
    /// The step.
    pub step: &'static str,
    /// 1 where the value stands for NaN.
    pub is_nan: &'static str,
    /// An index gives the rows of a metric in the order of time, and every row has one.
    pub is_indexed: bool,
}

fn has(columns: &[TableColumn], name: &str) -> bool {
    columns.iter().any(|column| column.name == name)
}

/// What is known before the rows of metrics are read.
pub struct Plan<'p> {
    request: &'p Request,
    limits: &'p Limits,
    files: &'p dyn Files,
    /// Metrics by number.
    pub keys: Vec<Key>,
    names: HashMap<Vec<u8>, u32>,
    /// Runs in the order of their table.
    pub runs: Vec<Run>,
    /// Their numbers by id.
    pub index: HashMap<Vec<u8>, u32>,
    /// What ended a table before its end.
    pub faults: Vec<Fault>,
}

impl<'p> Plan<'p> {
    /// Nothing is known yet.
    pub fn new(request: &'p Request, limits: &'p Limits, files: &'p dyn Files) -> Self {
        Self {
            request,
            limits,
            files,
            keys: Vec::new(),
            names: HashMap::new(),
            runs: Vec::new(),
            index: HashMap::new(),
            faults: Vec::new(),
        }
    }

    /// Reads what there is; `None`: the tables are not MLflow's.
    pub fn make(&mut self, connection: &Connection) -> Result<Option<Metrics>, Trouble> {
        let Some(columns) = database::table(connection, "metrics")? else { return Ok(None) };
        if !["key", "value", "run_uuid"].iter().all(|name| has(&columns, name)) {
            return Ok(None);
        }
        let Some(runs) = database::table(connection, "runs")?.filter(|columns| has(columns, "run_uuid")) else {
            return Ok(None);
        };
        let named = |name: &'static str, other| if has(&columns, name) { name } else { other };
        let step = named("step", "0");
        let order: &[&str] = if step == "step" { &["key", "timestamp", "step"] } else { &["key", "timestamp"] };
        let always = |name: &str| columns.iter().any(|column| column.name == name && column.not_null);
        let metrics = Metrics {
            time: named("timestamp", "NULL"),
            step,
            is_nan: named("is_nan", "0"),
            is_indexed: always("timestamp") && database::has_index(connection, "metrics", order)?,
        };
        let experiments = self.part("experiments", |plan, rows| plan.experiments(connection, rows));
        let experiments = experiments.unwrap_or_default();
        self.part("runs", |plan, rows| plan.runs(connection, &runs, &experiments, rows));
        if self.runs.iter().any(|run| run.name.is_none()) {
            self.part("tags", |plan, rows| plan.run_names(connection, rows));
        }
        self.part("metrics", |plan, rows| plan.metric_names(connection, metrics.is_indexed, rows));
        self.part("latest_metrics", |plan, rows| plan.latest(connection, rows));
        Ok(Some(metrics))
    }

    /// Reads a table as far as it goes; what ends it before its end is a fault.
    fn part<T>(&mut self, name: &str, read: impl FnOnce(&mut Self, &mut u64) -> Result<T, Trouble>) -> Option<T> {
        let mut rows = 0;
        let read = read(self, &mut rows);
        read.map_err(|trouble| {
            let mut fault = trouble.fault(0, rows);
            fault.detail = format!("table {name}, after {rows} rows: {}", fault.detail);
            self.faults.push(fault);
        })
        .ok()
    }

    fn goes_on(&self, rows: &mut u64) -> bool {
        *rows += 1;
        !(rows.is_multiple_of(LOOK) && self.files.cancelled())
    }

    fn limit(&mut self, at: u64, detail: String) {
        if self.faults.iter().any(|fault| fault.detail == detail) {
            return;
        }
        let mut fault = Fault::new(FaultKind::Limit, Place { part: 0, unit: PlaceUnit::Row, at }, detail);
        fault.severity = Severity::Error;
        self.faults.push(fault);
    }

    /// Names of the experiments, and whether they are active.
    fn experiments(&mut self, connection: &Connection, rows: &mut u64) -> Result<Experiments, Trouble> {
        let mut known = HashMap::new();
        let Some(columns) = database::table(connection, "experiments")? else { return Ok(known) };
        if !has(&columns, "experiment_id") || !has(&columns, "name") {
            return Ok(known);
        }
        let stage = if has(&columns, "lifecycle_stage") { "lifecycle_stage" } else { "NULL" };
        let mut query = connection.prepare(&format!("SELECT experiment_id, name, {stage} FROM experiments"))?;
        let mut found = query.query([])?;
        while let Some(row) = found.next()? {
            if !self.goes_on(rows) || known.len() >= self.limits.runs {
                break;
            }
            let Some(id) = integer(row.get_ref(0)?) else { continue };
            let name = text(row.get_ref(1)?).unwrap_or_default().into_owned();
            known.insert(id, (name, bytes(row.get_ref(2)?) != Some(b"deleted")));
        }
        Ok(known)
    }

    fn runs(
        &mut self,
        connection: &Connection,
        columns: &[TableColumn],
        experiments: &Experiments,
        rows: &mut u64,
    ) -> Result<(), Trouble> {
        let column = |name: &'static str| if has(columns, name) { name } else { "NULL" };
        let names = ["run_uuid", "name", "status", "start_time", "end_time", "lifecycle_stage", "experiment_id"];
        let list = names.map(column).join(", ");
        let mut query = connection.prepare(&format!("SELECT {list} FROM runs"))?;
        let mut found = query.query([])?;
        while let Some(row) = found.next()? {
            if !self.goes_on(rows) {
                break;
            }
            let Some(id) = bytes(row.get_ref(0)?) else { continue };
            if self.index.contains_key(id) {
                continue;
            }
            if self.runs.len() >= self.limits.runs {
                self.limit(*rows, format!("more than {} runs: further ones are not read", self.limits.runs));
                break;
            }
            let said = |at: usize| -> Result<Option<String>, Trouble> {
                Ok(text(row.get_ref(at)?).filter(|text| !text.is_empty()).map(Cow::into_owned))
            };
            let experiment = integer(row.get_ref(6)?).and_then(|id| experiments.get(&id));
            let is_deleted = bytes(row.get_ref(5)?) == Some(b"deleted");
            self.index.insert(id.to_vec(), self.runs.len() as u32);
            self.runs.push(Run {
                id: id.to_vec(),
                name: said(1)?,
                experiment: experiment.map(|(name, _)| name.clone()),
                status: said(2)?,
                started: integer(row.get_ref(3)?),
                ended: integer(row.get_ref(4)?),
                is_active: !is_deleted && experiment.is_none_or(|(_, is_active)| *is_active),
                ..Run::default()
            });
        }
        Ok(())
    }

    /// Names of runs whose own row has none.
    fn run_names(&mut self, connection: &Connection, rows: &mut u64) -> Result<(), Trouble> {
        let Some(columns) = database::table(connection, "tags")? else { return Ok(()) };
        if !["key", "value", "run_uuid"].iter().all(|name| has(&columns, name)) {
            return Ok(());
        }
        let mut query = connection.prepare("SELECT run_uuid, value FROM tags WHERE key = 'mlflow.runName'")?;
        let mut found = query.query([])?;
        while let Some(row) = found.next()? {
            if !self.goes_on(rows) {
                break;
            }
            let run = bytes(row.get_ref(0)?).and_then(|id| self.index.get(id).copied());
            if let (Some(run), Some(name)) = (run, text(row.get_ref(1)?)) {
                self.runs[run as usize].name.get_or_insert_with(|| name.into_owned());
            }
        }
        Ok(())
    }

    /// The number of a metric, unless there are too many.
    fn key(&mut self, value: ValueRef<'_>) -> Option<u32> {
        let name = bytes(value)?;
        if let Some(index) = self.names.get(name) {
            return Some(*index);
        }
        if self.keys.len() >= self.limits.columns {
            self.limit(self.keys.len() as u64, format!("more than {} metric names", self.limits.columns));
            return None;
        }
        let shown = text(value)?.into_owned();
        let mut probe = Builder::of_points(Format::MlflowSql, self.request, self.limits, PlaceUnit::Row, false);
        let id = probe.column(&shown).id;
        let role = roles::role_of(&shown);
        let index = self.keys.len() as u32;
        self.keys.push(Key {
            sql: RawText(name.to_vec()),
            is_wanted: probe.want(id) == Want::Number,
            // Rewards and lengths may be logged by other steps than those of the training.
            reaches: role.is_some_and(|role| !matches!(role, Role::Reward | Role::CompletionLength))
                && points::step_name(&shown) == points::STEP,
            name: shown,
        });
        self.names.insert(name.to_vec(), index);
        Some(index)
    }

    /// The names of all metrics. In the index the next larger one is a few pages away, however many rows there are.
    fn metric_names(&mut self, connection: &Connection, is_indexed: bool, rows: &mut u64) -> Result<(), Trouble> {
        if !is_indexed {
            let mut query = connection.prepare("SELECT DISTINCT key FROM metrics")?;
            let mut found = query.query([])?;
            while let Some(row) = found.next()? {
                if !self.goes_on(rows) {
                    break;
                }
                self.key(row.get_ref(0)?);
            }
            return Ok(());
        }
        let mut first = connection.prepare("SELECT min(key) FROM metrics")?;
        let mut next = connection.prepare("SELECT min(key) FROM metrics WHERE key > ?")?;
        let mut newest: Option<RawText> = None;
        while self.goes_on(rows) {
            let mut found = match &newest {
                None => first.query([])?,
                Some(key) => next.query([key])?,
            };
            let Some(row) = found.next()? else { break };
            let value = row.get_ref(0)?;
            let Some(name) = bytes(value).filter(|_| value.data_type() == Type::Text) else { break };
            if self.key(value).is_none() {
                break;
            }
            newest = Some(RawText(name.to_vec()));
        }
        Ok(())
    }

    /// Which metrics each run has, and the last step of those that show how far it went.
    fn latest(&mut self, connection: &Connection, rows: &mut u64) -> Result<(), Trouble> {
        let Some(columns) = database::table(connection, "latest_metrics")? else { return Ok(()) };
        if !["key", "run_uuid", "step"].iter().all(|name| has(&columns, name)) {
            return Ok(());
        }
        let mut query = connection.prepare("SELECT key, run_uuid, step FROM latest_metrics")?;
        let mut found = query.query([])?;
        while let Some(row) = found.next()? {
            if !self.goes_on(rows) {
                break;
            }
            let run = bytes(row.get_ref(1)?).and_then(|id| self.index.get(id).copied());
            let (Some(run), Some(key)) = (run, self.key(row.get_ref(0)?)) else { continue };
            let (run, known) = (&mut self.runs[run as usize], &self.keys[key as usize]);
            if known.is_wanted && run.wanted.len() < self.limits.series {
                run.wanted.push(key);
            } else if !known.is_wanted && run.others.len() < LISTED {
                run.others.push(key);
            }
            let step = integer(row.get_ref(2)?);
            run.last = run.last.max(step);
            if known.reaches {
                run.reach = run.reach.max(step);
            }
        }
        Ok(())
    }
}

/// Name of each experiment, and whether it is active.
type Experiments = HashMap<i64, (String, bool)>;
