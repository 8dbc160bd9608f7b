#![doc = include_str!("jsonl.md")]

use memchr::memchr;

use super::json_rows::{Cut, JsonRows};
use super::{
    About, Builder, Confidence, Progress, Reader, Rejected, Session, StreamDecoder, Tracker, is_git_lfs_pointer,
};
use crate::model::{Fault, FaultKind, Format, PlaceUnit, Recording, Role, Source, roles};
use crate::wire::json::{Cursor, Kind, Path, RowScanner, Rows, Sink, Stop, Text, Want};
use crate::wire::lines::{Ending, Lines};
use crate::wire::utf16;

/// The reader of JSON Lines metrics.
pub struct Jsonl;

impl Reader for Jsonl {
    fn format(&self) -> Format {
        Format::Jsonl
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "*.jsonl, *.ndjson, result.json and other JSON objects, one a line, with a step or a known metric",
            nonfinite: "NaN, nan, Infinity, \"NaN\" ...; null in verl's file logger",
            missing: "key absent, null",
            not_read: "lines that are no objects; values inside arrays; lines over 64 MiB",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[
            Tracker {
                name: "verl FileLogger",
                version: "built",
                files: "<project>/<experiment>.jsonl: {\"step\": n, \"data\": {...}}",
                nonfinite: "null for NaN, Inf and -Inf: a NaN where the key has numbers in other rows",
                missing: "key absent",
                not_read: "texts; a file is written anew at every start, so that a resumed run has no earlier attempt",
            },
            Tracker {
                name: "mmengine LocalVisBackend",
                version: "built",
                files: "vis_data/scalars.json, vis_data/<time>.json",
                nonfinite: "bare NaN, Infinity",
                missing: "key absent",
                not_read: "config.py, images; the same lines stand in both files",
            },
            Tracker {
                name: "LLaMA-Factory",
                version: "built",
                files: "trainer_log.jsonl",
                nonfinite: "no gradient norm is logged",
                missing: "key absent",
                not_read: "percentages, times",
            },
            Tracker {
                name: "ms-swift",
                version: "built",
                files: "logging.jsonl",
                nonfinite: "bare NaN, Infinity",
                missing: "key absent",
                not_read: "the last line, a summary of the run",
            },
            Tracker {
                name: "RLlib, Ray Tune",
                version: "built",
                files: "result.json",
                nonfinite: "bare NaN, Infinity; the old API stack drops grad_gnorm where it is NaN",
                missing: "key absent",
                not_read: "values in lists, params.json",
            },
            Tracker {
                name: "Stable-Baselines3",
                version: "2.9.2",
                files: "progress.json",
                nonfinite: "bare NaN, Infinity",
                missing: "key absent",
                not_read: "gradient norms: none are logged",
            },
        ]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
        if NO_LOGS.contains(&name.as_str()) {
            return Confidence::No;
        }
        if USUAL_NAMES.contains(&name.as_str()) {
            return Confidence::Likely;
        }
        let ends = |suffix: &&str| name.ends_with(*suffix);
        if [".jsonl", ".ndjson", ".json"].iter().any(ends) { Confidence::Maybe } else { Confidence::No }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        let by_name = self.recognise_name(path);
        if NO_LOGS.contains(&path.rsplit('/').next().unwrap_or(path)) {
            return Confidence::No;
        }
        if is_git_lfs_pointer(head) {
            // A pointer has no lines of JSON; only the name says what it stands for.
            let promises = by_name == Confidence::Likely || path.to_ascii_lowercase().ends_with("jsonl");
            return if promises { Confidence::Likely } else { Confidence::No };
        }
        match examine(&utf16::head_as_utf8(head)) {
            Some(Head::Metrics) => Confidence::Likely,
            Some(Head::Objects) => Confidence::Maybe,
            None if head.trim_ascii().is_empty() && by_name == Confidence::Likely => Confidence::Likely,
            None => Confidence::No,
        }
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        let mut builder = session.builder(Format::Jsonl, PlaceUnit::Line);
        for (index, part) in source.parts.iter().enumerate() {
            builder.begin_part(index as u32);
            let mut decoder = Decoder::default();
            session.stream_text(part, &mut decoder, &mut builder)?;
            if decoder.is_pointer {
                return Err(Rejected::unreadable("git-lfs-pointer", "a Git LFS pointer in place of the file"));
            }
            if decoder.objects == 0 && decoder.broken > 0 {
                let detail = format!("none of its {} lines is a JSON object", decoder.broken);
                return Err(Rejected::unreadable("not-a-recording", detail));
            }
        }
        Ok(vec![builder.finish()])
    }
}

/// Names under which trainers are known to write JSON Lines (FORMATS D4, F).
const USUAL_NAMES: &[&str] = &[
    "metrics.jsonl",
    "logging.jsonl",
    "trainer_log.jsonl",
    "train_log.jsonl",
    "training.jsonl",
    "log.jsonl",
    "logs.jsonl",
    "result.json",
    "progress.json",
    "scalars.json",
];

/// What trackers write beside their logs: the last value of each metric, and of the machine. No curve, though one of them
/// is an object with a step on one line.
const NO_LOGS: &[&str] = &["wandb-summary.json", "wandb-metadata.json", "swanlab-metadata.json"];

enum Head {
    /// Objects with a step and a number, or a metric that the checks know.
    Metrics,
    /// Other objects.
    Objects,
}

#[derive(Default)]
struct Glance {
    has_step: bool,
    has_number: bool,
    has_metric: bool,
}

impl Sink for Glance {
    fn column(&mut self, path: &Path<'_>) -> Want {
        if roles::step_rank(path.joined).is_some() {
            self.has_step = true;
            return Want::Skip;
        }
        let context = [Role::Reward, Role::Kl, Role::CompletionLength, Role::Entropy];
        let is_metric = roles::role_of(path.joined).is_some_and(|role| !context.contains(&role));
        Want::Number(u32::from(is_metric))
    }

    fn number(&mut self, column: u32, _: f64) {
        self.has_number = true;
        self.has_metric |= column == 1;
    }

    fn text(&mut self, _: u32, _: Text<'_>) {}

    fn null(&mut self, column: u32) {
        self.has_metric |= column == 1;
    }

    fn filled(&mut self, _: u32, _: bool) {}
}

/// Objects with known metrics after which a head has said enough.
const ENOUGH: u32 = 4;

/// Looks at the complete lines of a head: at least half of them are objects, and two different ones are enough to
/// tell JSON Lines from one JSON document that begins with `{` on its first line.
fn examine(head: &[u8]) -> Option<Head> {
    let (mut objects, mut others) = (0u32, 0u32);
    let mut scanner = RowScanner::new(Rows::Lines);
    let mut glance = Glance::default();
    // The last line of a head may be cut: it counts if its object is closed.
    for line in Lines::new(head, true, Ending::Newline) {
        if line.bytes.trim_ascii().is_empty() {
            continue;
        }
        let whole = scanner.object(line.bytes, true, &mut glance);
        match whole {
            Ok(used) if line.bytes[used..].trim_ascii().is_empty() => objects += 1,
            Err(Stop::Incomplete) if !line.terminated && begins_object(line.bytes) => {
                // One record longer than the head: its first keys were seen.
                objects += u32::from(objects == 0 && others == 0);
            }
            _ => others += 1,
        }
        let known = glance.has_metric || (glance.has_step && glance.has_number);
        if known && objects >= ENOUGH && objects > others {
            return Some(Head::Metrics);
        }
        if others > 16 && objects == 0 {
            return None;
        }
    }
    if objects == 0 || objects < others {
        return None;
    }
    let known = glance.has_metric || (glance.has_step && glance.has_number);
    Some(if known { Head::Metrics } else { Head::Objects })
}

fn begins_object(line: &[u8]) -> bool {
    matches!(Cursor::new(line).kind(), Ok(Kind::Object))
}

/// The decoder: one object a line.
#[derive(Debug)]
struct Decoder {
    rows: JsonRows,
    line: u64,
    objects: u64,
    broken: u64,
    /// Inside a line that is passed over.
    skipping: bool,
    is_pointer: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        let rows = JsonRows::new(Rows::Lines);
        Self { rows, line: 1, objects: 0, broken: 0, skipping: false, is_pointer: false }
    }
}

impl Decoder {
    fn fault(&mut self, kind: FaultKind, detail: &str, into: &mut Builder<'_>) {
        let place = into.place(PlaceUnit::Line, self.line);
        into.fault(Fault::new(kind, place, detail));
    }

    /// Passes over what is left of a line; `None` if its end is not in the window.
    fn end_line(&mut self, rest: &[u8]) -> Option<usize> {
        let length = memchr(b'\n', rest)?;
        self.line += 1;
        Some(length + 1)
    }
}

impl StreamDecoder for Decoder {
    fn feed(&mut self, window: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> Progress {
        if at == 0 && is_git_lfs_pointer(window) {
            self.is_pointer = true;
            return Progress::Used(window.len());
        }
        let mut used = 0;
        while used < window.len() {
            let rest = &window[used..];
            if self.skipping {
                match self.end_line(rest) {
                    Some(length) => {
                        used += length;
                        self.skipping = false;
                        continue;
                    }
                    None => return Progress::Used(window.len()),
                }
            }
            // Blank lines, and what lies between objects of one line.
            match rest[0] {
                b'\n' => {
                    self.line += 1;
                    used += 1;
                    continue;
                }
                b' ' | b'\t' | b'\r' | b',' => {
                    used += 1;
                    continue;
                }
                _ => {}
            }
            match self.rows.row(rest, end, self.line, into) {
                Ok(length) => {
                    self.objects += 1;
                    used += length;
                    into.unterminated = end && used == window.len();
                }
                Err(Stop::Incomplete) if !end => {
                    if rest.len() >= into.limits().record {
                        let detail = format!("the line is longer than {} bytes and was passed over", rest.len());
                        self.fault(FaultKind::Limit, &detail, into);
                        self.skipping = true;
                        continue;
                    }
                    return Progress::Used(used);
                }
                Err(stop) if end && memchr(b'\n', rest).is_none() => {
                    if rest.iter().all(|byte| byte.is_ascii_whitespace() || *byte == 0) {
                        return Progress::Used(window.len());
                    }
                    let cut = self.rows.cut_row(rest, self.line, into);
                    match (cut, stop) {
                        (Cut::Broken, Stop::Invalid { at, expected }) => {
                            into.end_cut_row();
                            self.fault_invalid(rest, at, expected, into);
                        }
                        _ => self.fault(FaultKind::Truncated, "the file ends inside a record", into),
                    }
                    if cut == Cut::Lost {
                        let detail = "the record that the end cuts holds a NaN or Inf, but its step was not read";
                        self.fault(FaultKind::Unparsable, detail, into);
                    }
                    return Progress::Used(window.len());
                }
                Err(Stop::Incomplete) => return Progress::Used(window.len()),
                Err(Stop::Invalid { at, expected }) => {
                    let Some(length) = memchr(b'\n', rest) else {
                        if !end && rest.len() < into.limits().record {
                            // Where the line ends decides how it is told; wait for it.
                            return Progress::Used(used);
                        }
                        self.fault_invalid(rest, at, expected, into);
                        self.skipping = true;
                        continue;
                    };
                    into.end_cut_row();
                    self.fault_invalid(&rest[..length], at, expected, into);
                    used += length + 1;
                    self.line += 1;
                }
            }
        }
        Progress::Used(used)
    }
}

impl Decoder {
    fn fault_invalid(&mut self, line: &[u8], at: usize, expected: &str, into: &mut Builder<'_>) {
        self.broken += 1;
        if line.iter().all(|byte| byte.is_ascii_whitespace() || *byte == 0) {
            self.fault(FaultKind::Stray, "a run of NUL bytes", into);
            return;
        }
        self.fault(FaultKind::Unparsable, &format!("byte {at} of the line: want {expected}"), into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Limits, Signal};
    use crate::read::testing::Memory;
    use crate::read::{Request, single};

    fn read_with(text: impl Into<Vec<u8>>, chunk: usize, limits: &Limits) -> Result<Recording, Rejected> {
        let mut files = Memory::new([("metrics.jsonl", text)]);
        files.chunk = chunk;
        let source = Source {
            format: Format::Jsonl,
            path: "metrics.jsonl".into(),
            directory: String::new(),
            parts: vec![files.part("metrics.jsonl")],
        };
        let mut found = files.read_with(&Jsonl, &source, &Request::default(), limits)?;
        Ok(found.remove(0))
    }

    fn read(text: impl Into<Vec<u8>>) -> Recording {
        read_with(text, usize::MAX, &Limits::default()).unwrap()
    }

    #[test]
    fn an_evaluation_that_counts_epochs_begins_no_attempt() {
        // mmengine: the epoch is the `step` of an evaluation, which has neither `iter` nor `epoch`.
        let row = |(index, step): (usize, i64)| {
            let epoch = step / 4;
            let evaluation = format!("{{\"val/loss\": 0.5, \"step\": {epoch}}}\n");
            let row = format!("{{\"loss\": {index}, \"epoch\": {epoch}, \"iter\": {step}, \"step\": {step}}}\n");
            if step % 4 == 0 { row + &evaluation } else { row }
        };
        let recording = read((1..13).chain(9..17).enumerate().map(row).collect::<String>());
        assert_eq!(recording.records, 25);
        let attempts: Vec<_> = recording.axis.attempts.iter().map(|own| (own.first_step, own.last_step)).collect();
        assert_eq!(attempts, [(1, 12), (9, 16)]);
        let evaluation = recording.with_role(Role::EvalLoss).next().expect("an evaluation");
        assert_eq!((evaluation.tally.rows, evaluation.first_step, evaluation.last_step), (5, 4, 16));
    }

    fn points(recording: &Recording, name: &str) -> Vec<(i64, f64)> {
        let series = recording.series.iter().find(|series| series.name == name).expect(name);
        let Signal::Kept(kept) = &series.signal else { panic!("{name} is not kept") };
        kept.steps.iter().zip((0..kept.values.len()).map(|row| kept.values.get(row))).collect()
    }

    #[test]
    fn a_cut_tail_costs_its_record_only_and_a_closed_one_counts() {
        let whole = "{\"step\": 1, \"grad_norm\": 0.5}\n{\"step\": 2, \"grad_norm\": 0.25}";
        let recording = read(whole);
        assert_eq!(points(&recording, "grad_norm"), [(1, 0.5), (2, 0.25)]);
        assert!(recording.unterminated && recording.faults.is_empty());
        let recording = read(&whole[..whole.len() - 1]);
        assert_eq!(points(&recording, "grad_norm"), [(1, 0.5)]);
        assert_eq!(
            recording.faults.iter().map(|f| (f.kind, f.place.at)).collect::<Vec<_>>(),
            [(FaultKind::Truncated, 2)]
        );
    }

    #[test]
    fn a_broken_line_costs_itself_and_is_named() {
        let recording =
            read("{\"step\":1,\"grad_norm\":1}\n{\"step\":2,\"grad_norm\":}\nnot json\n{\"step\":3,\"grad_norm\":3}\n");
        assert_eq!(points(&recording, "grad_norm"), [(1, 1.0), (3, 3.0)]);
        assert_eq!(
            recording.faults.iter().map(|f| (f.kind, f.place.at)).collect::<Vec<_>>(),
            [(FaultKind::Unparsable, 2), (FaultKind::Unparsable, 3)]
        );
    }

    #[test]
    fn a_line_over_the_limit_is_passed_over_whatever_the_windows() {
        let long = format!("{{\"step\": 2, \"text\": \"{}\", \"grad_norm\": 2}}", "x".repeat(3_000_000));
        let text = format!("{{\"step\": 1, \"grad_norm\": 1}}\n{long}\n{{\"step\": 3, \"grad_norm\": 3}}\n");
        let limits = Limits { record: 1 << 20, ..Limits::default() };
        for chunk in [usize::MAX, 100_000] {
            let recording = read_with(text.as_str(), chunk, &limits).unwrap();
            assert_eq!(points(&recording, "grad_norm"), [(1, 1.0), (3, 3.0)]);
            assert_eq!(recording.faults.iter().map(|f| f.kind).collect::<Vec<_>>(), [FaultKind::Limit]);
        }
    }

    #[test]
    fn duplicates_within_an_attempt_are_dropped_and_equal_values_of_other_steps_are_not() {
        let mut text = String::new();
        for step in 0..5 {
            for _rank in 0..3 {
                text += &format!("{{\"step\": {step}, \"grad_norm\": 0.5}}\n");
            }
            text += &format!("{{\"step\": {step}, \"grad_norm\": 0.5, \"rank\": 1}}\n");
        }
        let recording = read(text);
        assert_eq!(recording.records, 10);
        assert_eq!(points(&recording, "grad_norm").len(), 10);
    }

    #[test]
    fn verl_nulls_count_where_the_column_holds_numbers() {
        let row = |step: u32, norm: &str| {
            format!("{{\"step\":{step},\"data\":{{\"actor/grad_norm\":{norm},\"a/loss\":null}}}}\n")
        };
        let recording = read([row(1, "0.5"), row(2, "null"), row(3, "0.5")].concat());
        let series = &recording.series[0];
        assert_eq!((series.name.as_str(), series.tally.rows, series.tally.nan), ("actor/grad_norm", 3, 1));
        assert_eq!(recording.series.len(), 1, "a column of nulls alone is missing");
        // Elsewhere a null is a missing value.
        let recording = read("{\"step\":1,\"grad_norm\":0.5}\n{\"step\":2,\"grad_norm\":null}\n");
        assert_eq!(recording.series[0].tally.rows, 1);
    }

    #[test]
    fn steps_inside_strings_and_nested_keys() {
        let recording = read(
            "{\"loss\": 1.5, \"info\": {\"learner\": {\"grad_gnorm\": 2}}, \"global_step/max_steps\": \"10/438\"}\n",
        );
        assert_eq!(points(&recording, "info/learner/grad_gnorm"), [(10, 2.0)]);
        assert_eq!(recording.axis.step_name.as_deref(), Some("global_step/max_steps"));
    }

    #[test]
    fn a_step_that_begins_anew_with_every_epoch_is_counted_on() {
        let row = |epoch: u32, iter: u32, norm: f32| {
            format!("{{\"mode\":\"train\",\"epoch\":{epoch},\"iter\":{iter},\"grad_norm\":{norm:?}}}\n")
        };
        let rows = |epochs: std::ops::RangeInclusive<u32>, norm: f32| -> String {
            epochs.flat_map(|epoch| (1..=5).map(move |k| row(epoch, 50 * k, norm))).collect()
        };
        let recording = read(rows(1..=6, 1.5));
        let steps: Vec<i64> = points(&recording, "grad_norm").iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, (1..=30).map(|k| 50 * k).collect::<Vec<_>>());
        assert_eq!((recording.axis.attempts.len(), recording.axis.step_name.as_deref()), (1, Some("iter")));
        // Resumed from the end of the third epoch; then from the beginning.
        let recording = read(rows(1..=6, 1.5) + &rows(4..=7, 2.5) + &rows(1..=2, 3.5));
        let found: Vec<_> = recording.axis.attempts.iter().map(|a| (a.first_step, a.last_step, a.training)).collect();
        assert_eq!(found, [(50, 1500, 1), (800, 1750, 1), (50, 500, 2)]);
    }

    #[test]
    fn a_step_that_goes_on_with_the_epoch_stays_one() {
        let row = |epoch: f64, step: u32| format!("{{\"epoch\":{epoch},\"step\":{step},\"grad_norm\":1.5}}\n");
        for epoch in [|step: u32| f64::from(step / 10), |step: u32| f64::from(step) / 10.0] {
            let text: String = (0..40).map(|step| row(epoch(step), step)).collect();
            // And a restart, which begins with the first epoch.
            let again = text[..text.len() / 2].replace("1.5", "2.5");
            let recording = read([text, again].concat());
            assert_eq!(recording.axis.step_name.as_deref(), Some("step"));
            assert_eq!((recording.axis.attempts.len(), recording.axis.trainings()), (2, 2));
        }
    }

    #[test]
    fn utf16_with_byte_order_mark() {
        let text = "{\"step\": 1, \"grad_norm\": NaN}\r\n{\"step\": 2, \"grad_norm\": 1}\r\n";
        let bytes: Vec<u8> = std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect();
        let recording = read(bytes);
        assert_eq!((recording.series[0].tally.rows, recording.series[0].tally.nan), (2, 1));
        assert!(recording.faults.is_empty(), "{:?}", recording.faults);
    }

    #[test]
    fn only_metrics_are_recognised() {
        let sure = |name: &str, head: &str| Jsonl.recognise(name, head.as_bytes());
        assert_eq!(sure("a.jsonl", "{\"step\": 1, \"loss\": 2}\n"), Confidence::Likely);
        assert_eq!(sure("a.json", "{\"step\": 1, \"x\": 2}\n{\"step\": 2, \"x\": 2}\n"), Confidence::Likely);
        assert_eq!(sure("data.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n"), Confidence::Maybe);
        assert_eq!(sure("data.jsonl", "plain text\n"), Confidence::No);
        assert_eq!(sure("data.jsonl", "version https://git-lfs.github.com/spec/v1\noid"), Confidence::Likely);
        assert_eq!(sure("config.json", "{\n  \"step\": 1,\n  \"loss\": 2\n}\n"), Confidence::No);
        let entry = crate::model::Entry { path: "a/b.jsonl".into(), size: 1, kind: crate::model::EntryKind::File };
        assert_eq!(single(Format::Jsonl, &entry).directory, "a");
    }
}
