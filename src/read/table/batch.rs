//! One batch of a table's rows, decoded, and the rows of one run in it.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::BooleanBuffer;
use arrow_schema::Schema;

use super::cells::{Column, NanMeaning, RowSet, Stretch, is_value, stretches, values_of};
use super::layout::{Layout, Usage};
use super::pandas::float_columns;
use crate::model::roles;
use crate::read::Request;

/// How the columns of a part are read.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its columns.
    pub layout: Layout,
    /// What NaN means in each of the layout's columns.
    pub nan: Vec<NanMeaning>,
    /// Of which of the layout's columns nobody knows whether their nulls were NaN.
    pub nulls: Vec<bool>,
    /// Index of the part in its source.
    pub part: u32,
}

impl Plan {
    /// A plan in which NaN is NaN, and null is null.
    pub fn new(layout: Layout, part: u32) -> Self {
        let nan = vec![NanMeaning::Value; layout.columns.len()];
        let nulls = vec![false; layout.columns.len()];
        Self { layout, nan, nulls, part }
    }

    /// The same for a table of this schema: where pandas wrote it, NaN became null.
    pub fn of_table(layout: Layout, part: u32, schema: &Schema) -> Self {
        let mut plan = Self::new(layout, part);
        let floats = float_columns(schema);
        for (nulls, column) in plan.nulls.iter_mut().zip(&plan.layout.columns) {
            *nulls = floats.contains(&column.name);
        }
        plan
    }

    /// Places of the columns that give steps: that of the user first, then by rank.
    pub fn step_places(&self, request: &Request) -> Vec<usize> {
        let ranked = self.layout.columns.iter().enumerate().filter_map(|(place, wanted)| {
            let is_asked = request.step.as_deref() == Some(wanted.name.as_str());
            let rank = match wanted.usage {
                Usage::Step => 0,
                Usage::Named if is_asked => 0,
                Usage::Named if !wanted.is_metric => 1 + roles::step_rank(&wanted.name)?,
                _ => return None,
            };
            Some((rank, place))
        });
        let mut ranked: Vec<(usize, usize)> = ranked.collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, place)| place).collect()
    }

    /// Whether cells of a column may have been NaN or missing, and nobody knows which.
    pub fn is_ambiguous(&self, place: usize) -> bool {
        self.nulls[place] || self.nan[place] == NanMeaning::Ambiguous
    }
}

/// A decoded batch.
#[derive(Debug)]
pub struct Batch {
    /// How its columns are read.
    pub plan: Arc<Plan>,
    /// Row of the part with which it begins.
    pub first_row: u64,
    /// A column for each of the layout's.
    pub columns: Vec<Column>,
    /// Of the ambiguous columns: which cells may have been NaN.
    pub ambiguous: Vec<(usize, BooleanBuffer)>,
    /// Index of the metric's name of each row, in a long table.
    pub names: Vec<u32>,
    /// Where each row stands, if not one after the other from the first.
    pub places: Option<Vec<u64>>,
}

impl Batch {
    /// Decodes a batch whose columns are those of the layout. `name` gives a metric's name its index.
    pub fn decode(plan: &Arc<Plan>, rows: &RecordBatch, first_row: u64, name: &mut dyn FnMut(&str) -> u32) -> Self {
        let layout = &plan.layout;
        let mut batch = Self {
            plan: plan.clone(),
            first_row,
            columns: Vec::new(),
            ambiguous: Vec::new(),
            names: Vec::new(),
            places: None,
        };
        for (wanted, array) in layout.columns.iter().zip(rows.columns()) {
            let column = match wanted.usage {
                Usage::Run => Column::Missing,
                Usage::Name => {
                    batch.names = spread(&stretches(array, name), rows.num_rows());
                    Column::Missing
                }
                _ => Column::of(array, wanted),
            };
            batch.columns.push(column);
        }
        if let Some(value) = layout.place_of(Usage::Value) {
            let is_nan = layout.place_of(Usage::IsNan).map(|place| batch.columns[place].clone());
            let column = std::mem::replace(&mut batch.columns[value], Column::Missing);
            batch.columns[value] = values_of(column, is_nan.as_ref());
        }
        for (place, meaning) in plan.nan.iter().enumerate() {
            if *meaning == NanMeaning::Value || !is_value(layout.columns[place].usage) {
                continue;
            }
            let column = std::mem::replace(&mut batch.columns[place], Column::Missing);
            let (column, was_nan) = column.without_nan();
            batch.columns[place] = column;
            if let (NanMeaning::Ambiguous, Some(was_nan)) = (meaning, was_nan) {
                batch.ambiguous.push((place, was_nan));
            }
        }
        for place in (0..plan.nulls.len()).filter(|place| plan.nulls[*place]) {
            if let Some(nulls) = batch.columns[place].nulls().filter(|_| is_value(layout.columns[place].usage)) {
                let missing = !nulls.inner();
                batch.ambiguous.retain(|(known, _)| *known != place);
                batch.ambiguous.push((place, missing));
            }
        }
        batch
    }
}

fn spread(stretches: &[Stretch], rows: usize) -> Vec<u32> {
    let mut keys = Vec::new();
    for stretch in stretches {
        keys.resize((stretch.end as usize).min(rows), stretch.key);
    }
    keys
}

/// The rows of one run in a batch.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The batch.
    pub batch: Arc<Batch>,
    /// Its rows of the run.
    pub rows: RowSet,
}

impl Piece {
    /// Row (or line) of the part at a place of the piece.
    pub fn place(&self, at: usize) -> u64 {
        let row = self.rows.row(at);
        match &self.batch.places {
            Some(places) => places[row],
            None => self.batch.first_row + row as u64,
        }
    }

    /// Smallest and largest step of its rows by the table's best step column that has any, if they have one.
    pub fn step_range(&self, request: &Request) -> Option<(i64, i64)> {
        self.batch.plan.step_places(request).into_iter().find_map(|place| {
            let column = &self.batch.columns[place];
            let steps = (0..self.rows.count()).filter_map(|at| column.whole(self.rows.row(at)));
            steps.fold(None, |range, step| match range {
                None => Some((step, step)),
                Some((low, high)) => Some((step.min(low), step.max(high))),
            })
        })
    }
}
