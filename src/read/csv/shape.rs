//! What the columns of a table make of its rows: a row a step; a row a value; or a chart of several runs.

use crate::model::roles;
use crate::read::Request;

/// What one row holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// The values of a step, each in a column of its own.
    Wide,
    /// One value of one metric.
    Long(Long),
    /// The values of a step in several runs: W&B's export of a chart. Run and metric of each column, where it has them.
    Chart(Vec<Option<(String, String)>>),
}

/// Where the columns of a long table stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Long {
    /// The metric's name.
    pub name: usize,
    /// Its value.
    pub value: usize,
    /// Says that the value is NaN, whatever stands there (MLflow).
    pub is_nan: Option<usize>,
}

/// The column that the user names, or else the best one by rank.
fn best(names: &[String], asked: Option<&String>, rank: fn(&str) -> Option<usize>) -> Option<usize> {
    let asked = asked.and_then(|asked| names.iter().position(|name| name == asked));
    let ranked = || names.iter().enumerate().filter_map(|(index, name)| Some((rank(name)?, index)));
    asked.or_else(|| ranked().min().map(|(_, index)| index))
}

/// The column that says which run a row is of: as the user names it, or else a usual name beside a step.
pub(super) fn run_column(names: &[String], request: &Request) -> Option<usize> {
    let is_step = |name: &String| roles::step_rank(name).is_some() || request.step.as_ref() == Some(name);
    let asked = request.table.run.as_ref().filter(|asked| names.contains(asked));
    if asked.is_none() && !names.iter().any(is_step) {
        return None;
    }
    best(names, asked, roles::run_rank).filter(|run| asked.is_some() || !is_step(&names[*run]))
}

impl Shape {
    /// The shape of a table with these columns, whose header is written so.
    pub fn of(names: &[String], written: &[u8], request: &Request) -> Self {
        if let Some(columns) = chart(names, written) {
            return Self::Chart(columns);
        }
        Long::of(names, request).map_or(Self::Wide, Self::Long)
    }
}

impl Long {
    /// The columns of a long table, if the names are those of one.
    pub fn of(names: &[String], request: &Request) -> Option<Self> {
        let table = &request.table;
        let asks = [&table.name, &table.value].iter().any(|asked| asked.as_ref().is_some_and(|it| names.contains(it)));
        let is_step = |name: &String| roles::step_rank(name).is_some() || request.step.as_ref() == Some(name);
        let has_role = |name: &String| {
            roles::role_of(name).is_some() || request.metrics.iter().any(|(_, glob)| glob.is_match(name))
        };
        if !asks && (names.iter().any(has_role) || !names.iter().any(is_step)) {
            return None;
        }
        let name = best(names, table.name.as_ref(), roles::metric_name_rank)?;
        let value = best(names, table.value.as_ref(), roles::metric_value_rank)?;
        let is_nan = names.iter().position(|name| name == "is_nan");
        let is_long = name != value && run_column(names, request) != Some(name);
        is_long.then_some(Self { name, value, is_nan })
    }
}

/// What separates the run from the metric in the name of a chart's column.
const SEPARATOR: &str = " - ";

/// Run and metric of each column of a W&B chart: `<run> - <metric>`, and most often both ends of what a point stands for.
/// A run's name may hold the separator, a metric's seldom does.
fn chart(names: &[String], written: &[u8]) -> Option<Vec<Option<(String, String)>>> {
    let split = |name: &String| {
        let (run, metric) = name.rsplit_once(SEPARATOR)?;
        (!run.is_empty() && !metric.is_empty()).then(|| (run.to_owned(), metric.to_owned()))
    };
    let columns: Vec<_> = names.iter().map(split).collect();
    let has = |run: &str, metric: &str, end: &str| {
        let wanted = format!("{run}{SEPARATOR}{metric}{end}");
        names.contains(&wanted)
    };
    let mut ended = columns.iter().zip(names).filter(|(_, name)| name.ends_with("__MIN"));
    let has_ends = ended.any(|(column, _)| {
        let Some((run, metric)) = column else { return false };
        metric.strip_suffix("__MIN").is_some_and(|base| has(run, base, "") && has(run, base, "__MAX"))
    });
    // Without these, quotes around each name tell W&B's header from one that somebody wrote.
    let is_known =
        |column: &Option<(String, String)>| column.as_ref().is_some_and(|(_, metric)| roles::role_of(metric).is_some());
    let is_quoted = written.first() == Some(&b'"') && written.trim_ascii_end().last() == Some(&b'"');
    let is_chart = has_ends || (is_quoted && columns.len() > 1 && columns[1..].iter().all(is_known));
    (is_chart && columns[0].is_none()).then_some(columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::TableColumns;

    fn shape(header: &str, request: &Request) -> Shape {
        let names: Vec<String> = header.split(',').map(|name| name.trim_matches('"').to_owned()).collect();
        Shape::of(&names, header.as_bytes(), request)
    }

    #[test]
    fn long_tables_are_told_by_their_names() {
        let request = Request::default();
        for (header, name, value, is_nan) in [
            ("step,name,value", 1, 2, None),
            ("run_id,step,variable,value", 2, 3, None),
            ("key,value,timestamp,step,is_nan,run_uuid", 0, 1, Some(4)),
            ("Run,Step,Metric,Value", 2, 3, None),
        ] {
            assert_eq!(shape(header, &request), Shape::Long(Long { name, value, is_nan }), "{header}");
        }
        for header in ["step,name,value,loss", "name,value", "Wall time,Step,Value", "step,key", "run_name,step,value"]
        {
            assert_eq!(shape(header, &request), Shape::Wide, "{header}");
        }
        let table =
            TableColumns { name: Some("what".into()), value: Some("reading".into()), ..TableColumns::default() };
        let request = Request { table, ..Request::default() };
        let found = shape("t,what,reading,loss", &request);
        assert_eq!(found, Shape::Long(Long { name: 1, value: 2, is_nan: None }));
        assert_eq!(shape("step,loss", &request), Shape::Wide);
    }

    #[test]
    fn runs_are_told_by_ids_before_names() {
        let of = |header: &str, request: &Request| {
            let names: Vec<String> = header.split(',').map(str::to_owned).collect();
            run_column(&names, request)
        };
        let usual = Request::default();
        assert_eq!(of("run_name,step,run_id,loss", &usual), Some(2));
        assert_eq!(of("Run Name,step,loss", &usual), Some(0));
        assert_eq!(of("run_id,loss", &usual), None);
        let table = TableColumns { run: Some("model".into()), ..TableColumns::default() };
        let asked = Request { table, ..Request::default() };
        assert_eq!(of("run_id,model,loss", &asked), Some(1));
        assert_eq!(of("run_id,step,loss", &asked), Some(0));
    }

    #[test]
    fn charts_are_told_by_run_and_metric() {
        let of = |header: &str| match shape(header, &Request::default()) {
            Shape::Chart(columns) => Some(columns),
            _ => None,
        };
        let pair = |run: &str, metric: &str| Some((run.to_owned(), metric.to_owned()));
        assert_eq!(
            of("Step,a - b - loss,a - b - loss__MIN,a - b - loss__MAX,x"),
            Some(vec![None, pair("a - b", "loss"), pair("a - b", "loss__MIN"), pair("a - b", "loss__MAX"), None])
        );
        assert_eq!(
            of("\"train/global_step\",\"Group: g - x/y\",\"Group: g - x/y__MIN\",\"Group: g - x/y__MAX\"")
                .map(|c| c.len()),
            Some(4)
        );
        assert_eq!(of("\"Step\",\"a - loss\",\"b - loss\"").map(|columns| columns.len()), Some(3));
        for header in
            ["Step,a - loss,b - loss", "\"Step\",\"a - speed\"", "Step,a - x,a - x__MAX", "Step,loss,loss__MIN"]
        {
            assert_eq!(of(header), None, "{header}");
        }
    }
}
