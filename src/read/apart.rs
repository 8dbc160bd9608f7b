//! Recordings whose metrics lie in text files of their own, a line a value: MLflow's file store, DVCLive, DeepSpeed.
//!
//! What a line holds is the format's business ([`Shape`]); which files are read, what a cut or a broken line costs, and
//! the order of points over all files is here.

use super::builder::points;
use super::merge::{Apart, Merge};
use super::{Builder, Progress, Rejected, Session, StreamDecoder, Want, is_git_lfs_pointer};
use crate::model::{Fault, FaultKind, Part, PlaceUnit, Recording, Role, Source, roles};
use crate::wire::lines::{Ending, Lines};

/// One value of a metric as its line has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// Milliseconds since 1970.
    pub time: Option<i64>,
    /// The value.
    pub value: f64,
    /// The step; values without one are numbered.
    pub step: Option<i64>,
}

/// What a last line without its end gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cut {
    /// Nothing.
    Nothing,
    /// A value: all of it was seen.
    Kept(Value),
    /// A NaN or Inf, but not its step.
    Lost,
}

/// The lines of one file.
pub trait Shape: Default {
    /// The value of a whole line that is not blank; `None` for one that holds none (a header). An error says what is
    /// wanted.
    fn line(&mut self, line: &[u8]) -> Result<Option<Value>, &'static str>;

    /// What counts of a line that the end of the file cuts.
    fn cut(&mut self, line: &[u8]) -> Cut;
}

/// Reads all metrics of a source into a builder of points, and ends it. `metric_of` names what a part holds; parts of
/// which it gives `None` are passed over. Files of metrics that nothing wants are not read, except for the last lines of
/// those that show how far the training went.
pub fn read<S: Shape>(
    source: &Source,
    session: &mut Session<'_>,
    mut builder: Builder<'_>,
    metric_of: &dyn Fn(&Part) -> Option<String>,
) -> Result<Vec<Recording>, Rejected> {
    let mut merge = Merge::default();
    let mut furthest: Option<Value> = None;
    let (mut readable, mut refused) = (0, None);
    for (index, part) in source.parts.iter().enumerate() {
        let Some(name) = metric_of(part) else { continue };
        builder.turn_to(index as u32);
        let column = builder.column(&name);
        builder.numeric(column.id);
        if column.want != Want::Number {
            if reaches(&name) {
                furthest = later(furthest, last_value::<S>(part, session));
            }
            continue;
        }
        let mut decoder = Decoder::<S>::new(index as u32, merge.begin(column.id), &mut merge);
        match session.stream_text(part, &mut decoder, &mut builder) {
            Err(Rejected::Cancelled) => return Err(Rejected::Cancelled),
            Err(Rejected::Io(error)) => {
                let place = builder.place(PlaceUnit::Line, 1);
                builder.fault(Fault::new(FaultKind::Io, place, error.to_string()));
                builder.lost(column.id);
                refused.get_or_insert(Rejected::Io(error));
            }
            Err(rejected) => return Err(rejected),
            Ok(()) if decoder.is_pointer => {
                let detail = "a Git LFS pointer in place of the file";
                let place = builder.place(PlaceUnit::Line, 1);
                builder.fault(Fault::new(FaultKind::Unparsable, place, detail));
                builder.lost(column.id);
                refused.get_or_insert(Rejected::unreadable("git-lfs-pointer", detail));
            }
            Ok(()) => readable += 1,
        }
    }
    if readable == 0
        && let Some(rejected) = refused
    {
        return Err(rejected);
    }
    merge.give(&mut builder);
    if let Some(Value { time, step: Some(step), .. }) = furthest {
        builder.begin_points(0, step, time.map_or(f64::NAN, |time| time as f64 / 1e3));
        builder.pass_point(true);
    }
    Ok(vec![builder.finish()])
}

/// Whether the steps of a metric show how far the training went.
pub fn reaches(name: &str) -> bool {
    let role = roles::role_of(name);
    role.is_some_and(|role| !matches!(role, Role::Reward | Role::CompletionLength))
        && points::step_name(name) == points::STEP
}

/// The value with the larger step.
fn later(a: Option<Value>, b: Option<Value>) -> Option<Value> {
    let step = |value: &Option<Value>| value.and_then(|value| value.step);
    if step(&b) > step(&a) { b } else { a }
}

/// Bytes at the begin of a file that hold its header, and at its end that hold its last lines.
const ENDS: u64 = 4 << 10;

/// The furthest value of the last lines of a file. What cannot be read says nothing of how far the training went.
fn last_value<S: Shape>(part: &Part, session: &Session<'_>) -> Option<Value> {
    let file = session.files.ranges(part).ok()?;
    let size = file.size();
    let mut shape = S::default();
    let mut furthest = None;
    for (from, to) in [(0, size.min(ENDS)), (size.saturating_sub(ENDS).max(size.min(ENDS)), size)] {
        let piece = file.read(from..to).ok()?;
        let whole = piece.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for line in Lines::new(&piece[..whole], true, Ending::Newline) {
            furthest = later(furthest, shape.line(line.bytes).ok().flatten());
        }
    }
    furthest
}

/// Decodes the file of one metric.
#[derive(Debug)]
struct Decoder<'m, S> {
    shape: S,
    part: u32,
    series: usize,
    merge: &'m mut Merge,
    here: Option<i64>,
    line: u64,
    /// Inside a line that is passed over.
    skipping: bool,
    is_pointer: bool,
}

impl<'m, S: Shape> Decoder<'m, S> {
    fn new(part: u32, series: usize, merge: &'m mut Merge) -> Self {
        Self { shape: S::default(), part, series, merge, here: None, line: 0, skipping: false, is_pointer: false }
    }

    fn fault(&self, kind: FaultKind, detail: &str, into: &mut Builder<'_>) {
        let place = into.place(PlaceUnit::Line, self.line);
        into.fault(Fault::new(kind, place, detail));
    }

    fn take(&mut self, value: Value) {
        let Value { time, value, step } = value;
        let has_step = step.is_some();
        // Where a value without a step stands: with the one before it, or as its number where none has a step.
        self.here = step.or(self.here);
        let step = self.here.unwrap_or(self.merge.count(self.series) as i64);
        self.merge.push(self.series, Apart { step, has_step, value, time, part: self.part, at: self.line });
    }

    fn whole_line(&mut self, line: &[u8], into: &mut Builder<'_>) {
        let begin = line.iter().take_while(|byte| **byte == 0).count();
        if begin > 0 {
            self.fault(FaultKind::Stray, "a run of NUL bytes", into);
        }
        let line = &line[begin..];
        if line.trim_ascii().is_empty() {
            return;
        }
        match self.shape.line(line) {
            Ok(Some(value)) => self.take(value),
            Ok(None) => {}
            Err(wanted) => self.fault(FaultKind::Unparsable, wanted, into),
        }
    }

    /// The last line, of which nobody knows whether it is whole.
    fn cut_line(&mut self, line: &[u8], into: &mut Builder<'_>) {
        if line.iter().all(|byte| *byte == 0 || byte.is_ascii_whitespace()) {
            if line.contains(&0) {
                self.fault(FaultKind::Truncated, "the file ends in zero bytes", into);
            }
            return;
        }
        self.fault(FaultKind::Truncated, "the file ends inside a line", into);
        match self.shape.cut(line) {
            Cut::Nothing => {}
            Cut::Kept(value) => self.take(value),
            Cut::Lost => {
                let detail = "the line that the end cuts holds a NaN or Inf, but its step was not read";
                self.fault(FaultKind::Unparsable, detail, into);
            }
        }
    }
}

impl<S: Shape> StreamDecoder for Decoder<'_, S> {
    fn feed(&mut self, window: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> Progress {
        if at == 0 && is_git_lfs_pointer(window) {
            self.is_pointer = true;
            return Progress::Used(window.len());
        }
        let mut lines = Lines::new(window, end, Ending::Newline);
        for line in lines.by_ref() {
            self.line += 1;
            let skipped = std::mem::take(&mut self.skipping);
            match (skipped, line.terminated) {
                (true, _) => {}
                (false, true) => self.whole_line(line.bytes, into),
                (false, false) => self.cut_line(line.bytes, into),
            }
        }
        let used = lines.used();
        if used == 0 && window.len() >= into.limits().record {
            if !self.skipping {
                let place = into.place(PlaceUnit::Line, self.line + 1);
                let detail = format!("a line of more than {} bytes was passed over", window.len());
                into.fault(Fault::new(FaultKind::Limit, place, detail));
            }
            self.skipping = true;
            return Progress::Used(window.len());
        }
        Progress::Used(used)
    }
}
