//! TensorBoard's "download" links under a chart: `Wall time,Step,Value`, or a JSON array of such triples. The metric's
//! name is in the file's name only.

use memchr::memchr;

use super::table::open_word;
use crate::model::{Fault, FaultKind, PlaceUnit};
use crate::read::json_rows::fingerprint;
use crate::read::{Builder, Column, Progress, StreamDecoder, Want};
use crate::wire::json::{Cursor, Kind, Stop};
use crate::wire::numbers::{self, parse_f64, parse_text_value, parse_word};

/// Whether a table is such a chart.
pub(super) fn is_chart(names: &[String]) -> bool {
    names.len() == 3
        && names.iter().zip(["wall time", "step", "value"]).all(|(name, want)| name.eq_ignore_ascii_case(want))
}

/// A name without the first of some suffixes that it ends in, whatever their case.
fn without<'n>(name: &'n str, suffixes: &[&str]) -> &'n str {
    let ends = |suffix: &&&str| {
        let tail = name.len().checked_sub(suffix.len()).and_then(|at| name.get(at..));
        tail.is_some_and(|tail| tail.len() < name.len() && tail.eq_ignore_ascii_case(suffix))
    };
    suffixes.iter().find(ends).map_or(name, |suffix| &name[..name.len() - suffix.len()])
}

/// The metric that DVCLive keeps in a file of this path: its path below `plots/metrics/`, if the last part of that is
/// what the header calls it.
pub(super) fn dvclive_metric<'p>(path: &'p str, column: &str) -> Option<&'p str> {
    let path = without(path, &COMPRESSIONS);
    let metric = path.rsplit_once("plots/metrics/").filter(|(above, _)| above.is_empty() || above.ends_with('/'))?.1;
    let metric = metric.strip_suffix(".tsv")?;
    metric.rsplit_once('/').filter(|(_, last)| *last == column).map(|_| metric)
}

const COMPRESSIONS: [&str; 4] = [".gz", ".gzip", ".zst", ".zstd"];

/// Whether a file of this name is the JSON export.
pub(super) fn is_json(file: &str) -> bool {
    let name = without(file, &COMPRESSIONS);
    without(name, &[".json"]).len() < name.len()
}

/// The metric that a file of this name holds: `run-<run>-tag-<tag>.csv`, or the stem of a name that somebody chose.
pub(super) fn metric_of(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    let mut name = without(without(name, &COMPRESSIONS), &[".csv", ".tsv", ".json"]);
    // A browser numbers the second file of a name: `loss (1).csv`.
    if let Some((stem, number)) = name.strip_suffix(')').and_then(|name| name.rsplit_once(" ("))
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
    {
        name = stem;
    }
    name.rsplit_once("-tag-").map_or(name, |(_, tag)| tag)
}

/// One point of the JSON export.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Triple {
    time: f64,
    step: f64,
    value: Option<f64>,
    used: usize,
}

/// The triple that begins with the `[` in `bytes`.
fn triple(bytes: &[u8]) -> Result<Triple, Stop> {
    let mut cursor = Cursor::new(bytes);
    cursor.enter_array()?;
    let mut numbers = [None; 3];
    for number in &mut numbers {
        if !cursor.next_item()? {
            return Err(Stop::Invalid { at: cursor.position(), expected: "three items" });
        }
        *number = match cursor.kind()? {
            Kind::Number => {
                let token = cursor.number()?;
                parse_f64(token).or_else(|| parse_word(token))
            }
            Kind::String => match parse_text_value(cursor.string()?.raw) {
                numbers::Cell::Value(value) => Some(value),
                _ => None,
            },
            Kind::NaN | Kind::Infinity | Kind::NegInfinity | Kind::Null => match cursor.bare()? {
                Kind::NaN => Some(f64::NAN),
                Kind::Infinity => Some(f64::INFINITY),
                Kind::NegInfinity => Some(f64::NEG_INFINITY),
                _ => None,
            },
            _ => return Err(Stop::Invalid { at: cursor.position(), expected: "a number" }),
        };
    }
    if cursor.next_item()? {
        return Err(Stop::Invalid { at: cursor.position(), expected: "three items" });
    }
    let [Some(time), Some(step), value] = numbers else {
        return Err(Stop::Invalid { at: 0, expected: "a wall time and a step" });
    };
    Ok(Triple { time, step, value, used: cursor.position() })
}

/// Seconds since 1970 before which nobody trained anything: matrices of three columns hold smaller numbers.
const EARLIEST: f64 = 1e8;

/// Whether a head is that of a JSON export.
pub(super) fn is_json_chart(head: &[u8]) -> bool {
    let head = head.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(head).trim_ascii_start();
    let Some(rest) = head.strip_prefix(b"[") else { return false };
    triple(rest.trim_ascii_start()).is_ok_and(|triple| triple.step.fract() == 0.0 && triple.time > EARLIEST)
}

/// Where in the document the decoder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    /// Before the outer `[`.
    Nothing,
    /// Between triples.
    Array,
    /// In something that is no triple.
    Broken,
    /// Behind the outer `]`.
    End,
}

/// The decoder of the JSON export. Places are bytes: such a file is one line.
#[derive(Debug)]
pub(super) struct JsonChart {
    inside: Inside,
    columns: Option<[Column; 3]>,
    metric: String,
    pub triples: u64,
    pub broken: u64,
}

impl JsonChart {
    /// The chart in a file of this name.
    pub fn new(file: &str) -> Self {
        Self { inside: Inside::Nothing, columns: None, metric: metric_of(file).to_owned(), triples: 0, broken: 0 }
    }

    fn columns(&mut self, into: &mut Builder<'_>) -> [Column; 3] {
        let names = ["wall_time", "step", self.metric.as_str()];
        *self.columns.get_or_insert_with(|| names.map(|name| into.column(name)))
    }

    fn row(&mut self, triple: &Triple, bytes: &[u8], at: u64, into: &mut Builder<'_>) {
        let [time, step, value] = self.columns(into);
        self.triples += 1;
        into.begin_row(at);
        into.number(time.id, triple.time);
        into.number(step.id, triple.step);
        match triple.value {
            Some(number) if value.want != Want::Note => into.number(value.id, number),
            Some(_) => into.filled(value.id, true),
            None => {}
        }
        into.end_row(Some(fingerprint(bytes)));
    }

    fn fault(&mut self, kind: FaultKind, at: u64, detail: &str, into: &mut Builder<'_>) {
        let place = into.place(PlaceUnit::Byte, at);
        into.fault(Fault::new(kind, place, detail));
    }

    /// The triple that the end of the file cuts counts if its value reads as NaN or Inf.
    fn cut(&mut self, rest: &[u8], at: u64, into: &mut Builder<'_>) {
        self.fault(FaultKind::Truncated, at, "the file ends inside a record", into);
        let items: Vec<&[u8]> = rest[1..].split(|byte| *byte == b',').map(<[u8]>::trim_ascii).take(4).collect();
        let [time, step, value] = items[..] else { return };
        let value = open_word(value).or_else(|| {
            let quoted = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
            parse_word(quoted)
        });
        if let (Some(time), Some(step), Some(value)) = (parse_f64(time), parse_f64(step), value) {
            let columns = self.columns(into);
            into.begin_row(at);
            into.number(columns[0].id, time);
            into.number(columns[1].id, step);
            into.number(columns[2].id, value);
            into.end_cut_row();
        }
    }
}

impl StreamDecoder for JsonChart {
    fn feed(&mut self, window: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> Progress {
        let mut used = 0;
        while let Some(first) = window.get(used) {
            let (rest, place) = (&window[used..], at + used as u64);
            match (self.inside, first) {
                (Inside::End, _) => return Progress::Used(window.len()),
                (Inside::Broken, _) => match memchr(b'[', rest) {
                    Some(more) => {
                        used += more;
                        self.inside = Inside::Array;
                    }
                    None => return Progress::Used(window.len()),
                },
                (Inside::Nothing, b'[') => {
                    self.inside = Inside::Array;
                    used += 1;
                }
                (Inside::Array, b'[') => match triple(rest) {
                    Ok(triple) => {
                        self.row(&triple, &rest[..triple.used], place, into);
                        used += triple.used;
                    }
                    Err(Stop::Incomplete) if end => {
                        self.cut(rest, place, into);
                        return Progress::Used(window.len());
                    }
                    Err(Stop::Incomplete) if rest.len() < into.limits().record => return Progress::Used(used),
                    Err(stop) => {
                        self.broken += 1;
                        self.fault(FaultKind::Unparsable, place, &format!("no triple of numbers: {stop}"), into);
                        self.inside = Inside::Broken;
                        used += 1;
                    }
                },
                (Inside::Array, b']') => {
                    self.inside = Inside::End;
                    used += 1;
                }
                // Blanks, commas, a byte order mark, NUL runs.
                _ => used += 1,
            }
        }
        if end && self.inside == Inside::Array {
            // The outer bracket is missing; nothing else is.
            self.fault(FaultKind::Truncated, at + used as u64, "the file ends before its array does", into);
        }
        Progress::Used(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metric_is_in_the_name_of_the_file() {
        for (file, metric) in [
            ("run-a-b_train-tag-train_grad_norm.csv", "train_grad_norm"),
            ("run-x-tag-y-tag-loss (12).csv", "loss"),
            ("a/b/grad_norm.csv", "grad_norm"),
            ("grad_norm (1).JSON", "grad_norm"),
            ("grad_norm.csv.gz", "grad_norm"),
            ("loss (final).csv", "loss (final)"),
            (".csv", ".csv"),
            ("löss", "löss"),
        ] {
            assert_eq!(metric_of(file), metric, "{file}");
        }
    }

    #[test]
    fn dvclive_names_metrics_by_their_folders() {
        assert_eq!(dvclive_metric("a/dvclive/plots/metrics/eval/loss.tsv", "loss"), Some("eval/loss"));
        assert_eq!(dvclive_metric("plots/metrics/a/b/c.tsv.gz", "c"), Some("a/b/c"));
        for (path, column) in [
            ("plots/metrics/loss.tsv", "loss"),
            ("plots/metrics/eval/loss.tsv", "x"),
            ("myplots/metrics/eval/loss.tsv", "loss"),
            ("plots/metrics/eval/loss.csv", "loss"),
        ] {
            assert_eq!(dvclive_metric(path, column), None, "{path}");
        }
    }

    #[test]
    fn triples() {
        let of = |text: &str| triple(text.as_bytes()).map(|triple| (triple.step, triple.value.map(f64::to_bits)));
        assert_eq!(of("[1748869402.7, 250, 107.25]"), Ok((250.0, Some(107.25f64.to_bits()))));
        assert_eq!(of("[1.5, 3, NaN]"), Ok((3.0, Some(f64::NAN.to_bits()))));
        assert_eq!(of("[1.5, 3, \"-Infinity\"]"), Ok((3.0, Some(f64::NEG_INFINITY.to_bits()))));
        assert_eq!(of("[1.5, 3, null]"), Ok((3.0, None)));
        assert_eq!(of("[1.5, 3, 1"), Err(Stop::Incomplete));
        assert!(matches!(of("[1.5, 3]"), Err(Stop::Invalid { .. })));
        assert!(matches!(of("[1.5, 3, 1, 2]"), Err(Stop::Invalid { .. })));
        assert!(matches!(of("[1.5, 3, {}]"), Err(Stop::Invalid { .. })));
        assert!(is_json_chart(b"[[1748869402.7, 250, 107.25], [1"));
        for other in [
            "[]",
            "[1, 2, 3]",
            "[[1, 2], [3, 4]]",
            "[[0.5, 0.25, 0.125]]",
            "[[1200.0,0,960.0],[0,1200.0,540.0]]",
            "{\"a\": [[1, 2, 3]]}",
        ] {
            assert!(!is_json_chart(other.as_bytes()), "{other}");
        }
    }
}
