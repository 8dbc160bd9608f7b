//! The runs of a wide table: each row goes to the builder of its run.

use std::collections::HashMap;

use super::header::Known;
use super::table::Planned;
use crate::model::{Fault, FaultKind, Format, Limits, PlaceUnit, Recording, Severity};
use crate::read::{Builder, Request};

/// The first run. Its builder is that of the table.
pub(super) const FIRST: usize = 0;

/// Columns of all runs: each run knows its own, and a table of many columns and a run a row would hold far more than its
/// file does.
const COLUMNS: usize = 1 << 24;

/// A further run.
#[derive(Debug)]
struct Further<'r> {
    name: String,
    /// Out while a record is read.
    builder: Option<Box<Builder<'r>>>,
}

/// The columns of a run while another one's are at hand.
#[derive(Debug, Default)]
struct Aside {
    columns: Vec<Planned>,
    /// The header that they are of.
    table: u32,
}

/// The runs of one table.
#[derive(Debug)]
pub(super) struct Runs<'r> {
    request: &'r Request,
    pub limits: &'r Limits,
    /// The column that names them.
    pub column: Option<usize>,
    /// The run of the newest row, and the one whose columns are at hand.
    pub newest: usize,
    at_hand: usize,
    /// Name of the newest record's run, and which that is.
    last: (Vec<u8>, usize),
    index: HashMap<Vec<u8>, usize>,
    first: Option<String>,
    further: Vec<Further<'r>>,
    aside: Vec<Aside>,
    /// Headers so far.
    table: u32,
    /// The run of all rows beyond the limit, of which none counts.
    beyond: Option<usize>,
}

impl<'r> Runs<'r> {
    /// None yet.
    pub fn new(request: &'r Request, limits: &'r Limits) -> Self {
        Self {
            request,
            limits,
            column: None,
            newest: FIRST,
            at_hand: FIRST,
            last: (Vec::new(), FIRST),
            index: HashMap::new(),
            first: None,
            further: Vec::new(),
            aside: vec![Aside::default()],
            table: 0,
            beyond: None,
        }
    }

    /// Says which column names the runs from here on; `columns` will be those of the first run.
    pub fn begin_table(&mut self, column: Option<usize>, columns: &mut Vec<Planned>) {
        columns.clear();
        self.table += 1;
        self.column = column;
        self.at_hand = FIRST;
    }

    /// Whether a name is that of the newest row's run; any is before the first that is met.
    pub fn is_newest(&self, name: Option<&[u8]>) -> bool {
        self.first.is_none() || name.is_some_and(|name| self.index.get(name) == Some(&self.newest))
    }

    /// The run of this name in a table of so many columns.
    pub fn find(&mut self, name: &[u8], columns: usize, line: u64, first: &mut Builder<'_>) -> usize {
        let name = &name[..name.len().min(self.limits.name)];
        if name.is_empty() {
            return self.newest;
        }
        if self.first.is_some() && self.last.0 == name {
            return self.last.1;
        }
        let run = self.index.get(name).copied().unwrap_or_else(|| self.meet(name, columns, line, first));
        self.last.0.clear();
        self.last.0.extend_from_slice(name);
        self.last.1 = run;
        run
    }

    fn meet(&mut self, name: &[u8], columns: usize, line: u64, first: &mut Builder<'_>) -> usize {
        let text = String::from_utf8_lossy(name).into_owned();
        if self.first.is_none() {
            // Rows before it that name no run are of it.
            self.first = Some(text);
            self.index.insert(name.to_vec(), FIRST);
            return FIRST;
        }
        let most = self.limits.runs.min(COLUMNS / columns.max(1));
        if self.index.len() >= most {
            if let Some(beyond) = self.beyond {
                return beyond;
            }
            let detail = format!("more than {most} runs: the rows of further ones are not read");
            let mut fault = Fault::new(FaultKind::Limit, first.place(PlaceUnit::Line, line), detail);
            fault.severity = Severity::Error;
            first.fault(fault);
            let beyond = self.add(String::new());
            self.beyond = Some(beyond);
            return beyond;
        }
        let run = self.add(text);
        self.index.insert(name.to_vec(), run);
        run
    }

    fn add(&mut self, name: String) -> usize {
        let mut builder = Builder::new(Format::Csv, self.request, self.limits, PlaceUnit::Line);
        builder.begin_part(0);
        self.further.push(Further { name, builder: Some(Box::new(builder)) });
        self.aside.push(Aside::default());
        self.further.len()
    }

    /// Brings the columns of a run to hand, and gives its builder, if it is not the first.
    pub fn enter(
        &mut self,
        run: usize,
        columns: &mut Vec<Planned>,
        names: &[String],
        request: &Request,
    ) -> Option<Box<Builder<'r>>> {
        let mut builder = match run.checked_sub(1) {
            Some(further) => self.further[further].builder.take(),
            None => None,
        };
        if run != self.at_hand {
            let aside = std::mem::take(&mut self.aside[run]);
            let own = std::mem::replace(columns, aside.columns);
            self.aside[self.at_hand] = Aside { columns: own, table: self.table };
            self.at_hand = run;
            if aside.table != self.table
                && let Some(builder) = &mut builder
            {
                let planned = |name: &String| Planned::new(builder.column(name), Known(Some(request)).is_step(name));
                *columns = names.iter().map(planned).collect();
            }
        }
        builder
    }

    /// Takes the builder of a run back.
    pub fn leave(&mut self, run: usize, builder: Option<Box<Builder<'r>>>) {
        if let Some(further) = run.checked_sub(1) {
            self.further[further].builder = builder;
        }
    }

    /// Says that the record at hand is a row. Whether it counts.
    pub fn accept(&mut self) -> bool {
        self.newest = self.at_hand;
        self.beyond != Some(self.at_hand)
    }

    /// The recordings of all runs, in the order of their first rows. `into`: the builder of the first.
    pub fn finish(mut self, mut into: Builder<'_>) -> Vec<Recording> {
        let mut further = Vec::new();
        for (index, run) in self.further.drain(..).enumerate() {
            let Some(mut builder) = run.builder.filter(|_| self.beyond != Some(index + 1)) else { continue };
            if builder.records() == 0 {
                // What stood in the column of the run was no row.
                builder.take_faults().into_iter().for_each(|fault| into.fault(fault));
                continue;
            }
            builder.run_id = Some(run.name);
            further.push(builder.finish());
        }
        if !further.is_empty() {
            into.run_id = self.first;
        }
        let mut recordings = vec![into.finish()];
        recordings.append(&mut further);
        recordings
    }
}
