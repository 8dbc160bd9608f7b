//! Which column of a table is what: the run, the steps, the signals; in a long table the metric's name and value.

use arrow_schema::{DataType, Schema};
use thiserror::Error;

use super::cells::can_be_id;
use crate::model::{Format, Limits, PlaceUnit, Role, roles};
use crate::read::{Builder, Request, Want};

/// What cells of a column can be read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Integers, floats, decimals.
    Number,
    /// Text, dictionaries of it included.
    Text,
    /// Dates and times.
    Time,
    /// True or false.
    Truth,
    /// Nothing but nulls.
    Null,
    /// Lists, structs, bytes.
    Other,
}

impl Kind {
    /// The kind of a column's type.
    pub fn of(data_type: &DataType) -> Self {
        match data_type {
            DataType::Dictionary(_, values) => match Self::of(values) {
                Self::Text => Self::Text,
                other => other,
            },
            DataType::RunEndEncoded(_, values) => Self::of(values.data_type()),
            other if other.is_numeric() => Self::Number,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Text,
            DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 => Self::Time,
            DataType::Boolean => Self::Truth,
            DataType::Null => Self::Null,
            _ => Self::Other,
        }
    }
}

/// What the cells of a wanted column are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Which run a row belongs to.
    Run,
    /// A column of a wide table as the builder knows it: a step, a time, a signal.
    Named,
    /// The step of a long table.
    Step,
    /// The wall time of a long table.
    Time,
    /// The metric's name.
    Name,
    /// The metric's value.
    Value,
    /// Says that the value is NaN, whatever stands there (MLflow's SQL store).
    IsNan,
}

/// One wanted column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Index in the schema.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// What it is for.
    pub usage: Usage,
    /// Its cells are numbers of a metric, also where they are written as texts.
    pub is_metric: bool,
}

/// The columns of a table that a scan needs, in the order of the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The wanted columns.
    pub columns: Vec<Wanted>,
    /// One row holds one value of one metric.
    pub is_long: bool,
    /// A column has a role of its own, or the table is long.
    pub has_signal: bool,
    /// Other columns of numbers.
    pub others: Vec<String>,
}

/// Why a table cannot be read as the user asks.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Misfit {
    /// No such column.
    #[error("{argument}: got {name:?}, want one of the columns {there}")]
    Missing {
        /// The argument that names it.
        argument: &'static str,
        /// The name given.
        name: String,
        /// The columns that there are.
        there: String,
    },
    /// A column of another type than its use asks for.
    #[error("{argument}: got column {name:?} of type {got}, want {want}")]
    Type {
        /// The argument or use.
        argument: &'static str,
        /// The column.
        name: String,
        /// Its type.
        got: String,
        /// What would do.
        want: &'static str,
    },
    /// Nothing that the checks know.
    #[error(
        "frame: got the columns {there}, want one of gradient norms or losses: \
         metrics={{\"grad_norm\": NAME}} says which it is"
    )]
    NoSignal {
        /// The columns that there are.
        there: String,
    },
    /// A long table lacks its other half.
    #[error("{argument}: got no column of metric {what}, want one of the columns {there}")]
    Half {
        /// The argument that would name it.
        argument: &'static str,
        /// `names` or `values`.
        what: &'static str,
        /// The columns that there are.
        there: String,
    },
}

/// Names listed in a message.
const LISTED: usize = 20;

fn listed(schema: &Schema) -> String {
    let names: Vec<String> = schema.fields().iter().take(LISTED).map(|field| format!("{:?}", field.name())).collect();
    let more = schema.fields().len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    if names.is_empty() { "(there is none)".to_owned() } else { names.join(", ") + &more }
}

/// Looks for a table's columns by name.
struct Search<'a> {
    schema: &'a Schema,
}

impl Search<'_> {
    fn kind(&self, index: usize) -> Kind {
        Kind::of(self.schema.field(index).data_type())
    }

    fn named(&self, argument: &'static str, name: &str) -> Result<usize, Misfit> {
        let missing = || Misfit::Missing { argument, name: name.to_owned(), there: listed(self.schema) };
        self.schema.fields().iter().position(|field| field.name() == name).ok_or_else(missing)
    }

    /// The column that the user named, or else the best by rank; it must be of one of the kinds.
    fn find(
        &self,
        argument: &'static str,
        named: Option<&String>,
        rank: fn(&str) -> Option<usize>,
        kinds: &[Kind],
        want: &'static str,
    ) -> Result<Option<usize>, Misfit> {
        if let Some(name) = named {
            let index = self.named(argument, name)?;
            if kinds.contains(&self.kind(index)) {
                return Ok(Some(index));
            }
            let got = self.schema.field(index).data_type().to_string();
            return Err(Misfit::Type { argument, name: name.clone(), got, want });
        }
        let fields = self.schema.fields().iter().enumerate();
        let ranked = fields.filter_map(|(index, field)| Some((rank(field.name())?, index)));
        Ok(ranked.filter(|(_, index)| kinds.contains(&self.kind(*index))).min().map(|(_, index)| index))
    }

    /// The column that tells runs apart; one that has its name but cannot, as a misfit.
    fn run(&self, request: &Request) -> Result<(Option<usize>, Option<Misfit>), Misfit> {
        let misfit = |index: usize| {
            let field = self.schema.field(index);
            let (name, got) = (field.name().clone(), field.data_type().to_string());
            Misfit::Type { argument: "run", name, got, want: "text or whole numbers" }
        };
        let can = |index: usize| can_be_id(self.schema.field(index).data_type());
        if let Some(name) = &request.table.run {
            let index = self.named("run", name)?;
            return if can(index) { Ok((Some(index), None)) } else { Err(misfit(index)) };
        }
        let fields = self.schema.fields().iter().enumerate();
        let ranked = fields.filter_map(|(index, field)| Some((roles::run_rank(field.name())?, index)));
        Ok(match ranked.min() {
            Some((_, index)) if can(index) => (Some(index), None),
            Some((_, index)) => (None, Some(misfit(index))),
            None => (None, None),
        })
    }
}

impl Layout {
    /// The layout of a table. The user's names must be there where `strict`; else, in an archive of many tables, the
    /// usual ones serve where they are not.
    pub fn of(schema: &Schema, request: &Request, limits: &Limits, strict: bool) -> Result<Self, Misfit> {
        if !strict {
            let has = |name: &String| schema.fields().iter().any(|field| field.name() == name);
            let lenient = |name: &Option<String>| name.clone().filter(has);
            let table = crate::read::TableColumns {
                run: lenient(&request.table.run),
                name: lenient(&request.table.name),
                value: lenient(&request.table.value),
            };
            let request = Request { table, ..request.clone() };
            return Self::find(schema, &request, limits);
        }
        if let Some(step) = &request.step {
            let index = Search { schema }.named("step", step)?;
            let kind = Kind::of(schema.field(index).data_type());
            if !matches!(kind, Kind::Number | Kind::Text | Kind::Null) {
                let got = schema.field(index).data_type().to_string();
                return Err(Misfit::Type { argument: "step", name: step.clone(), got, want: "whole numbers" });
            }
        }
        let layout = Self::find(schema, request, limits)?;
        if !layout.is_long {
            let mut probe = Builder::new(Format::Memory, request, limits, PlaceUnit::Row);
            for field in schema.fields().iter().filter(|field| Kind::of(field.data_type()) == Kind::Other) {
                let id = probe.column(field.name()).id;
                if probe.has_role(id) {
                    let (name, got) = (field.name().clone(), field.data_type().to_string());
                    return Err(Misfit::Type { argument: "frame", name, got, want: "numbers" });
                }
            }
        }
        if !layout.has_signal {
            return Err(Misfit::NoSignal { there: listed(schema) });
        }
        Ok(layout)
    }

    fn find(schema: &Schema, request: &Request, limits: &Limits) -> Result<Self, Misfit> {
        let search = Search { schema };
        let (run, misfit) = search.run(request)?;
        let wide = Self::wide(schema, request, limits, run);
        let asks = request.table.name.is_some() || request.table.value.is_some();
        let layout = match wide.has_signal && !asks {
            true => wide,
            false => Self::long(&search, request, run, asks)?.unwrap_or(wide),
        };
        // All rows would be taken for those of one run.
        misfit.filter(|_| layout.is_recording(request)).map_or(Ok(layout), Err)
    }

    fn wide(schema: &Schema, request: &Request, limits: &Limits, run: Option<usize>) -> Self {
        let mut probe = Builder::new(Format::Memory, request, limits, PlaceUnit::Row);
        let mut layout = Self { columns: Vec::new(), is_long: false, has_signal: false, others: Vec::new() };
        for (index, field) in schema.fields().iter().enumerate() {
            let name = field.name();
            let kind = Kind::of(field.data_type());
            if run == Some(index) {
                layout.columns.push(Wanted { index, name: name.clone(), kind, usage: Usage::Run, is_metric: false });
                continue;
            }
            if matches!(kind, Kind::Other | Kind::Truth) || name.len() > limits.name || index >= limits.columns {
                continue;
            }
            let column = probe.column(name);
            let is_signal = probe.is_series(column.id);
            let wanted = match (column.want, kind) {
                (Want::Note, _) => false,
                (Want::Number, Kind::Time) => false,
                // Texts may be numbers (exports that write NaN as text make a column of texts): worth a look by role.
                (Want::Number, Kind::Text) => !is_signal || probe.has_role(column.id),
                _ => true,
            };
            if wanted {
                layout.has_signal |= probe.has_role(column.id);
                let usage = Usage::Named;
                layout.columns.push(Wanted { index, name: name.clone(), kind, usage, is_metric: is_signal });
            } else if kind == Kind::Number {
                layout.others.push(name.clone());
            }
        }
        layout
    }

    fn long(search: &Search<'_>, request: &Request, run: Option<usize>, asks: bool) -> Result<Option<Self>, Misfit> {
        let table = &request.table;
        let name = search.find("name", table.name.as_ref(), roles::metric_name_rank, &[Kind::Text], "text")?;
        let numbers = [Kind::Number, Kind::Text, Kind::Null];
        let value = search.find("value", table.value.as_ref(), roles::metric_value_rank, &numbers, "numbers")?;
        let (name, value) = match (name, value) {
            (Some(name), Some(value)) if Some(name) != run && name != value => (name, value),
            _ if !asks => return Ok(None),
            (None, _) => {
                return Err(Misfit::Half { argument: "name", what: "names", there: listed(search.schema) });
            }
            _ => return Err(Misfit::Half { argument: "value", what: "values", there: listed(search.schema) }),
        };
        let rank = |column: &str| match &request.step {
            Some(step) if step == column => Some(0),
            _ => roles::step_rank(column).map(|rank| rank + 1),
        };
        let fields = || search.schema.fields().iter().enumerate();
        let steps = fields().filter_map(|(index, field)| Some((rank(field.name())?, index)));
        let is_step_kind = |index: &usize| matches!(search.kind(*index), Kind::Number | Kind::Text);
        let step = steps.filter(|(_, index)| is_step_kind(index)).min().map(|(_, index)| index);
        let is_clock = |index: usize, name: &str| {
            roles::is_time(name) && matches!(search.kind(index), Kind::Number | Kind::Text | Kind::Time)
        };
        let time = fields().find(|(index, field)| is_clock(*index, field.name())).map(|(index, _)| index);
        let is_nan = fields()
            .find(|(index, field)| {
                let is_named = ["is_nan", "isnan"].iter().any(|name| field.name().eq_ignore_ascii_case(name));
                is_named && matches!(search.kind(*index), Kind::Truth | Kind::Number | Kind::Text)
            })
            .map(|(index, _)| index);
        let usages = [
            (run, Usage::Run),
            (Some(name), Usage::Name),
            (Some(value), Usage::Value),
            (step, Usage::Step),
            (time, Usage::Time),
            (is_nan, Usage::IsNan),
        ];
        let mut columns: Vec<Wanted> = usages
            .into_iter()
            .filter_map(|(index, usage)| {
                let index = index?;
                let name = search.schema.field(index).name().clone();
                let is_metric = matches!(usage, Usage::Value | Usage::Step);
                Some(Wanted { index, name, kind: search.kind(index), usage, is_metric })
            })
            .collect();
        columns.sort_by_key(|column| column.index);
        columns.dedup_by_key(|column| column.index);
        Ok(Some(Self { columns, is_long: true, has_signal: true, others: Vec::new() }))
    }

    /// Indices of the wanted columns in the schema, rising.
    pub fn projection(&self) -> Vec<usize> {
        self.columns.iter().map(|column| column.index).collect()
    }

    /// Place of a usage among the wanted columns.
    pub fn place_of(&self, usage: Usage) -> Option<usize> {
        self.columns.iter().position(|column| column.usage == usage)
    }

    /// Whether a column gives steps.
    pub fn has_step(&self, request: &Request) -> bool {
        let is_step = |name: &str| roles::step_rank(name).is_some() || request.step.as_deref() == Some(name);
        self.columns.iter().any(|column| match column.usage {
            Usage::Step => true,
            Usage::Named => is_step(&column.name),
            _ => false,
        })
    }

    /// Whether a column holds gradient norms, or what the user says is a signal.
    fn has_norm(&self, request: &Request) -> bool {
        let is_norm = |name: &str| {
            let asked = request.metrics.iter().any(|(_, glob)| glob.is_match(name));
            let norms = [Role::GradNorm, Role::GradNormPostClip, Role::LayerGradNorm];
            asked || roles::role_of(name).is_some_and(|role| norms.contains(&role))
        };
        self.columns.iter().any(|column| column.is_metric && is_norm(&column.name))
    }

    /// Whether the table records training runs, as far as its columns tell: a metric that the checks know; or steps of
    /// runs.
    pub fn is_recording(&self, request: &Request) -> bool {
        let has_run = self.place_of(Usage::Run).is_some();
        match self.is_long {
            true => self.has_step(request),
            // Data sets of samples hold losses too; those of a training stand at its steps.
            false if self.has_signal => has_run || self.has_step(request) || self.has_norm(request),
            false => has_run && self.has_step(request) && !self.others.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::Field;

    fn layout(columns: &[(&str, DataType)], strict: bool) -> Result<Layout, Misfit> {
        let fields: Vec<Field> = columns.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true)).collect();
        Layout::of(&Schema::new(fields), &Request::default(), &Limits::default(), strict)
    }

    #[test]
    fn data_sets_of_samples_are_no_recordings() {
        let is_recording =
            |columns: &[(&str, DataType)]| layout(columns, false).unwrap().is_recording(&Request::default());
        let (text, number) = (DataType::Utf8, DataType::Float64);
        let samples = [("prompt", text.clone()), ("loss", number.clone())];
        assert!(!is_recording(&samples));
        for axis in [("step", DataType::Int64), ("run_id", text), ("grad_norm", number)] {
            let table = [samples[0].clone(), samples[1].clone(), axis];
            assert!(is_recording(&table), "{}", table[2].0);
        }
    }

    #[test]
    fn a_run_column_that_tells_nothing_is_refused() {
        let list = DataType::new_list(DataType::Utf8, true);
        let table = [("run_id", list), ("step", DataType::Int64), ("grad_norm", DataType::Float64)];
        for strict in [true, false] {
            let refused = layout(&table, strict);
            assert!(matches!(refused, Err(Misfit::Type { argument: "run", .. })), "{refused:?}");
        }
        // Of a table that is no recording nothing is refused.
        assert!(layout(&[table[0].clone(), ("text", DataType::Utf8)], false).is_ok());
        for kind in [DataType::FixedSizeBinary(16), DataType::Binary, DataType::Date32, DataType::Decimal128(9, 0)] {
            let table = [("run_id", kind), table[1].clone(), table[2].clone()];
            assert_eq!(layout(&table, true).unwrap().place_of(Usage::Run), Some(0));
        }
    }
}
