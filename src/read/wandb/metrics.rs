//! `define_metric`: which metric is drawn over which step.

use crate::model::Limits;
use crate::wire::protobuf::{Fields, Malformed, Value};

/// W&B's own counter, of which its users say nothing by naming it.
const OWN_STEP: &str = "_step";

/// The definitions of a run.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Names in order: a definition may point to one before it.
    names: Vec<String>,
    /// Name, or begin of it where it ends in `*`; the step.
    definitions: Vec<Definition>,
}

#[derive(Debug)]
struct Definition {
    name: String,
    is_glob: bool,
    step: String,
}

impl Metrics {
    /// Takes a `MetricRecord`; gives whether it says a step.
    pub fn define(&mut self, message: &[u8], limits: &Limits) -> Result<bool, Malformed> {
        let (mut name, mut glob, mut step, mut index) = (None, None, None, 0);
        for field in Fields::new(message) {
            match field? {
                (1, Value::Bytes(text)) => name = Some(text),
                (2, Value::Bytes(text)) => glob = Some(text),
                (4, Value::Bytes(text)) => step = Some(text),
                (5, Value::Varint(number)) => index = number,
                _ => {}
            }
        }
        if self.names.len() >= limits.columns || [name, glob, step].iter().flatten().any(|t| t.len() > limits.name) {
            return Ok(false);
        }
        let of_index = || self.names.get(usize::try_from(index).ok()?.checked_sub(1)?).cloned();
        let step = step.filter(|step| !step.is_empty()).map(plain).or_else(of_index);
        let name = name.filter(|name| !name.is_empty()).map(plain);
        self.names.push(name.clone().unwrap_or_default());
        let Some(step) = step else { return Ok(false) };
        let (name, is_glob) = match (name, glob.map(plain)) {
            (Some(name), _) => (name, false),
            (None, Some(glob)) => match glob.strip_suffix('*') {
                Some(begin) => (begin.to_owned(), true),
                None => (glob, false),
            },
            (None, None) => return Ok(false),
        };
        self.definitions.push(Definition { name, is_glob, step });
        Ok(true)
    }

    /// Whether any metric has a step of its own.
    pub fn is_empty(&self) -> bool {
        self.definitions.is_empty()
    }

    /// The step of a metric: what is said of its name last, or of the longest begin of it.
    pub fn step_of(&self, metric: &str) -> Option<&str> {
        let fits = |definition: &&Definition| {
            if definition.is_glob { metric.starts_with(&definition.name) } else { metric == definition.name }
        };
        let best = self.definitions.iter().filter(fits).max_by_key(|d| (!d.is_glob, d.name.len()));
        best.map(|definition| definition.step.as_str()).filter(|step| *step != OWN_STEP && *step != metric)
    }
}

/// A name without the backslashes that keep its points from parting it.
fn plain(text: &[u8]) -> String {
    String::from_utf8_lossy(text).replace("\\.", ".")
}
