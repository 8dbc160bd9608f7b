#![doc = include_str!("dvclive.md")]

use super::one_metric::{self, Table};
use super::{About, Builder, Confidence, Reader, Rejected, Session, Tracker, apart};
use crate::model::source::plain;
use crate::model::{Entry, Format, Part, PlaceUnit, Recording, Source};

/// Below a DVCLive directory, the tree of tables.
const METRICS: &str = "plots/metrics/";

/// The reader of DVCLive's directories.
pub struct Dvclive;

impl Reader for Dvclive {
    fn format(&self) -> Format {
        Format::Dvclive
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "plots/metrics/**/*.tsv below a DVCLive directory, a table a metric",
            nonfinite: "nan, inf, -inf",
            missing: "no row",
            not_read: "metrics.json (last values only), params.yaml, images, other plots",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[Tracker {
            name: "DVCLive",
            version: "3.49.1",
            files: "dvclive/plots/metrics/**/*.tsv",
            nonfinite: "nan, inf, -inf",
            missing: "no row",
            not_read: "metrics.json, params.yaml, images, sklearn plots; the trees of DVCLive 0.x",
        }]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        match home(path) {
            Some((_, name)) if name.len() > ".tsv".len() && name.ends_with(".tsv") => Confidence::Certain,
            _ => Confidence::No,
        }
    }

    fn recognise(&self, path: &str, _head: &[u8]) -> Confidence {
        self.recognise_name(path)
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        one_metric::group(Format::Dvclive, entries, own, home)
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        let builder = Builder::of_points(Format::Dvclive, session.request, session.limits, PlaceUnit::Line, false);
        let name = |part: &Part| {
            let name = plain(part.name.strip_prefix(METRICS).unwrap_or(&part.name));
            Some(name.strip_suffix(".tsv").unwrap_or(name).to_owned())
        };
        apart::read::<Table<b'\t'>>(source, session, builder, &name)
    }
}

/// The DVCLive directory that a table lies in, and its path there.
fn home(path: &str) -> Option<(&str, &str)> {
    let is_begin = |at: &usize| *at == 0 || path[..*at].ends_with('/');
    let at = path.match_indices(METRICS).map(|(at, _)| at).find(is_begin)?;
    Some((path[..at].trim_end_matches('/'), &path[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EntryKind, FaultKind, Limits, Signal};
    use crate::read::Request;
    use crate::read::testing::Memory;

    fn read_with(files: &Memory, limits: &Limits) -> Vec<Recording> {
        let mut paths: Vec<&String> = files.parts.keys().collect();
        paths.sort();
        let entries: Vec<Entry> =
            paths.iter().map(|path| Entry { path: (*path).clone(), size: 1, kind: EntryKind::File }).collect();
        let own: Vec<usize> =
            (0..entries.len()).filter(|at| Dvclive.recognise_name(&entries[*at].path) > Confidence::No).collect();
        let request = Request { everything: true, ..Request::default() };
        let sources = Dvclive.group(&entries, &own);
        let read = |source| files.read_with(&Dvclive, source, &request, limits).expect("it can be read").remove(0);
        sources.iter().map(read).collect()
    }

    fn read(files: &Memory) -> Vec<Recording> {
        read_with(files, &Limits::default())
    }

    fn points(recording: &Recording, name: &str) -> Vec<(i64, String)> {
        let series = recording.series.iter().find(|series| series.name == name).expect("the metric is there");
        let Signal::Kept(kept) = &series.signal else { panic!("every series of a full read is kept") };
        (0..kept.values.len()).map(|row| (kept.steps.get(row), kept.values.get(row).to_string())).collect()
    }

    fn table(steps: impl IntoIterator<Item = i64>) -> String {
        let row = |(row, step)| {
            format!("{step}\t{}\n", if step == 4 { "nan".into() } else { (row as f64 / 4.0).to_string() })
        };
        format!("step\tloss\n{}", steps.into_iter().enumerate().map(row).collect::<String>())
    }

    #[test]
    fn a_tree_is_one_recording() {
        let files = Memory::new([
            ("a/dvclive/plots/metrics/train/loss.tsv", table(0..8)),
            ("a/dvclive/plots/metrics/grad_norm.tsv", table(0..8)),
            ("a/dvclive/plots/metrics/eval/loss.tsv", table([7])),
            ("a/dvclive/plots/sklearn/cm.tsv", table(0..8)),
            ("a/dvclive/metrics.tsv", table(0..8)),
            ("b/plots/metrics/loss.tsv", table([])),
            ("plots/metrics/loss.tsv", "step\tloss\n".into()),
        ]);
        let found = read(&files);
        assert_eq!(found.len(), 3);
        let names: Vec<&str> = found[0].series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["eval/loss", "grad_norm", "train/loss"]);
        assert_eq!((found[0].records, found[1].records), (8, 0));
        assert_eq!(points(&found[0], "train/loss")[3..6], [(3, "0.75".into()), (4, "NaN".into()), (5, "1.25".into())]);
        assert_eq!(points(&found[0], "eval/loss"), [(7, "0".into())]);
    }

    #[test]
    fn a_resumed_run_shows_its_attempts() {
        let steps = || (0..10).chain(5..15);
        let found = read(&Memory::new([
            ("dvclive/plots/metrics/loss.tsv", table(steps())),
            ("dvclive/plots/metrics/grad_norm.tsv", table(steps())),
        ]));
        let attempts: Vec<_> = found[0].axis.attempts.iter().map(|own| (own.record, own.first_step)).collect();
        assert_eq!(attempts, [(0, 0), (10, 5)]);
        assert_eq!(points(&found[0], "loss").len(), 20);
    }

    #[test]
    fn damage_costs_its_line_and_any_window_gives_the_same() {
        let text = format!("{}x\t1\n5\t\n6\t0.5\n\0\0\n7\tinf", table(0..5));
        let files = Memory::new([("plots/metrics/loss.tsv", text.as_str())]);
        let whole = read(&files);
        assert_eq!(points(&whole[0], "loss")[5..], [(6, "0.5".into()), (7, "inf".into())]);
        let faults: Vec<_> = whole[0].faults.iter().map(|fault| (fault.kind, fault.place.at)).collect();
        use FaultKind::{Stray, Truncated, Unparsable};
        assert_eq!(faults, [(Unparsable, 7), (Stray, 10), (Truncated, 11)]);
        for (record, chunk) in [(32, 1), (40, 7), (64, usize::MAX)] {
            let chopped = Memory { chunk, ..files.clone() };
            let limits = Limits { record, ..Limits::default() };
            assert_eq!(format!("{:?}", read_with(&chopped, &limits)), format!("{whole:?}"));
        }
        let mut before = 0;
        for cut in 0..=text.len() {
            let found = read(&Memory::new([("plots/metrics/loss.tsv", &text[..cut])]));
            let count = found[0].series.first().map_or(0, |series| series.tally.rows);
            assert!(count >= before, "cut at byte {cut}");
            before = count;
        }
        assert_eq!(before, 7);
    }
}
