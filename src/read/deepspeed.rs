#![doc = include_str!("deepspeed.md")]

use super::one_metric::{self, Table};
use super::{About, Builder, Confidence, Reader, Rejected, Session, Tracker, apart};
use crate::model::source::plain;
use crate::model::{Entry, Format, Part, PlaceUnit, Recording, Source};

/// The reader of the directories of DeepSpeed's CSV monitor.
pub struct Deepspeed;

/// Begins of file names, and of the tags that they stand for.
const TAGS: [(&str, &str); 2] = [("Train_Samples_", "Train/Samples/"), ("Train_Eigenvalues_", "Train/Eigenvalues/")];

impl Reader for Deepspeed {
    fn format(&self) -> Format {
        Format::Deepspeed
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "Train_Samples_*.csv of the CSV monitor, all of one directory",
            nonfinite: "nan, inf, -inf",
            missing: "no row",
            not_read: "tables of the user's own tags (read as CSV); steps, for the monitor counts samples",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[Tracker {
            name: "DeepSpeed csv_monitor",
            version: "built",
            files: "<output_path>/<job_name>/Train_Samples_*.csv",
            nonfinite: "nan, inf, -inf",
            missing: "no row",
            not_read: "gradient norms: the monitor has none; x counts samples",
        }]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        if tag(path).is_some() { Confidence::Certain } else { Confidence::No }
    }

    fn recognise(&self, path: &str, _head: &[u8]) -> Confidence {
        self.recognise_name(path)
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        let home = |path| Some(str::rsplit_once(path, '/').unwrap_or(("", path)));
        one_metric::group(Format::Deepspeed, entries, own, home)
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        let builder = Builder::of_points(Format::Deepspeed, session.request, session.limits, PlaceUnit::Line, false);
        apart::read::<Table<b','>>(source, session, builder, &|part: &Part| tag(plain(&part.name)))
    }
}

/// The tag that a file holds.
fn tag(path: &str) -> Option<String> {
    let stem = path.rsplit('/').next()?.strip_suffix(".csv")?;
    let (name, tag) = TAGS.iter().find_map(|(begin, tag)| Some((stem.strip_prefix(begin)?, tag)))?;
    (!name.is_empty()).then(|| format!("{tag}{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EntryKind, Limits, Role, Signal};
    use crate::read::Request;
    use crate::read::testing::Memory;

    fn read(files: &Memory) -> Vec<Recording> {
        let mut paths: Vec<&String> = files.parts.keys().collect();
        paths.sort();
        let entries: Vec<Entry> =
            paths.iter().map(|path| Entry { path: (*path).clone(), size: 1, kind: EntryKind::File }).collect();
        let own: Vec<usize> =
            (0..entries.len()).filter(|at| Deepspeed.recognise_name(&entries[*at].path) > Confidence::No).collect();
        let request = Request { everything: true, ..Request::default() };
        let sources = Deepspeed.group(&entries, &own);
        let read = |source| {
            files.read_with(&Deepspeed, source, &request, &Limits::default()).expect("it can be read").remove(0)
        };
        sources.iter().map(read).collect()
    }

    #[test]
    fn a_directory_counts_samples() {
        let rows = |from: i64, to: i64, value: &str| -> String {
            (from..to).map(|step| format!("{},{value}\n", step * 32)).collect()
        };
        // A restart repeats the header.
        let text =
            |name: &str, value: &str| format!("step,{name}\n{}step,{name}\n{}", rows(1, 11, value), rows(6, 13, "nan"));
        let files = Memory::new([
            ("out/job/Train_Samples_train_loss.csv", text("train_loss", "0.5")),
            ("out/job/Train_Samples_loss_scale.csv", text("loss_scale", "65536")),
            ("out/job/Train_Samples_lr.csv", text("lr", "0.1")),
            ("out/job/Eval_loss.csv", text("loss", "1")),
        ]);
        let found = read(&files);
        assert_eq!(found.len(), 1);
        let recording = &found[0];
        let roles: Vec<_> = recording.series.iter().map(|series| (series.name.as_str(), series.role)).collect();
        assert!(roles.contains(&("Train/Samples/train_loss", Some(Role::Loss))), "{roles:?}");
        assert!(roles.contains(&("Train/Samples/loss_scale", Some(Role::LossScale))), "{roles:?}");
        assert_eq!(roles.len(), 3);
        assert_eq!(recording.axis.step_name.as_deref(), Some("samples"));
        assert_eq!((recording.axis.first_step, recording.axis.last_step), (Some(32), Some(384)));
        let attempts: Vec<_> = recording.axis.attempts.iter().map(|own| (own.record, own.first_step)).collect();
        assert_eq!(attempts, [(0, 32), (10, 192)]);
        let loss = recording.with_role(Role::Loss).next().expect("a loss");
        assert_eq!((loss.tally.rows, loss.tally.nan), (17, 7));
        let Signal::Kept(kept) = &loss.signal else { panic!("every series of a full read is kept") };
        assert_eq!(kept.steps.get(10), 192);
    }

    #[test]
    fn names() {
        assert_eq!(tag("a/Train_Samples_lr.csv").as_deref(), Some("Train/Samples/lr"));
        for path in ["Train_Samples_.csv", "Train_Samples_lr.txt", "x/train_samples_lr.csv", "loss.csv"] {
            assert_eq!(tag(path), None, "{path}");
        }
    }
}
