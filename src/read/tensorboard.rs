#![doc = include_str!("tensorboard.md")]

mod event;
mod scalar;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use self::event::{Data, Event, Layout};
use self::scalar::Number;
use super::builder::points;
use super::{
    About, Builder, Confidence, Progress, Reader, Rejected, Session, StreamDecoder, Tracker, Want, is_git_lfs_pointer,
};
use crate::kernel::checksum::crc32c;
use crate::kernel::level::Level;
use crate::model::checkpoint_name::Unit;
use crate::model::{Checkpoint, Entry, Fault, FaultKind, Format, Part, PlaceUnit, Recording, Role, Source, roles};
use crate::wire::protobuf::Malformed;
use crate::wire::tfrecord::{self, FOOTER, HEADER};

/// The reader of TensorBoard event files.
pub struct TensorBoard;

impl Reader for TensorBoard {
    fn format(&self) -> Format {
        Format::TensorBoard
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "*tfevents*: all event files of one directory, in name order, are one recording",
            nonfinite: "IEEE NaN and Inf",
            missing: "no event",
            not_read: "tensors of several elements, complex numbers; images, audio, text, histograms, graphs; \
                       *.profile-empty",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[Tracker {
            name: "TensorBoard, torch and tensorboardX SummaryWriter",
            version: "tensorboardX 2.6.5, the others built",
            files: "*tfevents*",
            nonfinite: "IEEE NaN and Inf",
            missing: "no event",
            not_read: "images, audio, text, histograms, graphs",
        }]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        let name = path.rsplit('/').next().unwrap_or(path);
        let is_event_file = name.contains("tfevents") && !name.ends_with(".profile-empty");
        if is_event_file { Confidence::Certain } else { Confidence::No }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        let by_name = self.recognise_name(path);
        let begins = head.first_chunk().is_some_and(|header| tfrecord::length(header, checksum).is_some());
        // Any file of records begins so; only an event says what it is.
        let is_event = || head.get(HEADER..).is_some_and(event::begins);
        if begins && is_event() { Confidence::Certain } else { by_name }
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        let mut sources: Vec<Source> = Vec::new();
        let mut homes: HashMap<&str, usize> = HashMap::new();
        for entry in own.iter().map(|index| &entries[*index]) {
            let home = entry.parent();
            let at = *homes.entry(home).or_insert_with(|| {
                let (path, directory) = (home.to_owned(), home.to_owned());
                sources.push(Source { format: Format::TensorBoard, path, directory, parts: Vec::new() });
                sources.len() - 1
            });
            let part = Part { path: entry.path.clone(), name: entry.name().to_owned(), size: entry.size };
            sources[at].parts.push(part);
        }
        // Names begin with the second of their creation: their order is that of the writers.
        sources.iter_mut().for_each(|source| source.parts.sort_by(|a, b| a.name.cmp(&b.name)));
        sources
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        let files = session.files;
        let directory = if source.path.is_empty() { files.root_name() } else { &source.path };
        let mut builder = session.builder_of_points(Format::TensorBoard, is_evaluation(directory));
        let mut decoder = Decoder::new(directory);
        let (mut readable, mut refused) = (0, None);
        for (index, part) in source.parts.iter().enumerate() {
            builder.begin_part(index as u32);
            decoder.begin_file();
            match session.stream(part, &mut decoder, &mut builder) {
                Err(Rejected::Cancelled) => return Err(Rejected::Cancelled),
                Err(Rejected::Io(error)) => {
                    let place = builder.place(PlaceUnit::Byte, 0);
                    builder.fault(Fault::new(FaultKind::Io, place, error.to_string()));
                    refused.get_or_insert(Rejected::Io(error));
                }
                Err(rejected) => return Err(rejected),
                Ok(()) => match decoder.rejected() {
                    Some(rejected) => drop(refused.get_or_insert(rejected)),
                    None => readable += 1,
                },
            }
        }
        match refused {
            Some(rejected) if readable == 0 => Err(rejected),
            _ => Ok(vec![builder.finish()]),
        }
    }
}

/// Whether a directory holds the evaluation of a training, with the metric names of the training: Keras writes
/// `validation/`, estimators `eval/` and `eval_<name>/`. (A training may well be called `test`.)
fn is_evaluation(directory: &str) -> bool {
    let name = directory.rsplit('/').next().unwrap_or(directory).to_ascii_lowercase();
    let behind = ["evaluation", "validation", "valid", "eval", "val"].iter().find_map(|word| name.strip_prefix(word));
    behind.is_some_and(|rest| rest.is_empty() || rest.starts_with(['_', '-', '.']))
}

/// What a tag is called in full in a directory of its own: `add_scalars("loss", {"val": x})` writes the tag `loss` into
/// `loss_val/` (torch) or `loss/val/` (tensorboardX).
fn full_name(directory: &str, tag: &str) -> Option<String> {
    let torch = || directory.rsplit('/').next()?.strip_prefix(&tag.replace('/', "_"))?.strip_prefix('_');
    let (parent, name) = directory.rsplit_once('/').unwrap_or(("", directory));
    let tensorboard_x = || parent.strip_suffix(tag).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'));
    let part = if tensorboard_x() { Some(name) } else { torch() };
    part.filter(|part| !part.is_empty() && !tag.is_empty()).map(|part| format!("{tag}/{part}"))
}

/// A tag as text; bytes that are no UTF-8 become `\\xNN`, so that no two tags read alike.
fn shown(tag: &[u8]) -> String {
    let mut text = String::new();
    for chunk in tag.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text += &format!("\\x{byte:02x}"));
    }
    text
}

/// The checksum where speed is no matter.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c(Level::detect(), bytes)
}

/// Bytes of a record that show what it holds.
const BEGIN: usize = 4 << 10;
/// A longer record is none: no writer makes one.
const LONGEST: u64 = 1 << 30;

/// What is known of a tag.
#[derive(Debug)]
struct Tag {
    name: Box<[u8]>,
    /// Its column, once a number was seen.
    column: Option<u32>,
    /// Whether its points are wanted.
    wanted: bool,
    /// Whether its steps show how far the training went.
    reaches: bool,
    /// Whether a plugin other than that of scalars was named, which only the first value of a tag need do.
    foreign: bool,
    /// The tag that came after it the last time.
    next: usize,
    /// Header and layout of its last record that was a plain scalar.
    plain: Option<([u8; HEADER], Layout)>,
}

/// Damage that is being passed over.
#[derive(Clone, Copy, Debug)]
struct Lost {
    begin: u64,
    /// Only zero bytes so far: the tail of a file on a crashed system.
    zeros: bool,
}

/// Decodes the event files of one directory. Tags live as long as it does, the rest for one file.
#[derive(Debug)]
struct Decoder<'s> {
    directory: &'s str,
    level: Level,
    tags: Vec<Tag>,
    index: HashMap<Box<[u8]>, usize>,
    last_tag: usize,
    /// Records of this file of which the length was right.
    records: u64,
    length: u64,
    lost: Option<Lost>,
    is_pointer: bool,
    /// Where a record that is passed over ends.
    passing_to: u64,
}

impl<'s> Decoder<'s> {
    fn new(directory: &'s str) -> Self {
        Self {
            directory,
            level: Level::detect(),
            tags: Vec::new(),
            index: HashMap::new(),
            last_tag: 0,
            records: 0,
            length: 0,
            lost: None,
            is_pointer: false,
            passing_to: 0,
        }
    }

    fn begin_file(&mut self) {
        (self.records, self.length, self.passing_to) = (0, 0, 0);
        (self.lost, self.is_pointer) = (None, false);
    }

    /// Why the file that was read is no event file, if it is none. An empty one is: its writer never came to flush.
    fn rejected(&self) -> Option<Rejected> {
        if self.is_pointer {
            return Some(Rejected::unreadable("git-lfs-pointer", "a Git LFS pointer in place of the file"));
        }
        if self.records > 0 || self.length == 0 {
            return None;
        }
        Some(match self.lost {
            Some(_) => Rejected::unreadable("not-a-recording", format!("no record in its {} bytes", self.length)),
            None => Rejected::unreadable(
                "cut-header",
                format!("it ends inside the first record, after {} of its bytes", self.length),
            ),
        })
    }

    fn fault(&self, kind: FaultKind, at: u64, detail: String, into: &mut Builder<'_>) {
        let place = into.place(PlaceUnit::Byte, at);
        into.fault(Fault::new(kind, place, detail));
    }

    /// Passes over damage up to the next header. Gives the bytes passed.
    #[inline(never)]
    fn resynchronise(&mut self, lost: Lost, rest: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> usize {
        let level = self.level;
        // The first header may begin right here only if the damage was before this window.
        let from = usize::from(lost.begin == at).min(rest.len());
        let found = tfrecord::find_header(&rest[from..], LONGEST, |bytes| crc32c(level, bytes)).map(|at| from + at);
        let passed = match found {
            Some(found) => found,
            None if end => rest.len(),
            None => rest.len().saturating_sub(HEADER - 1).max(from),
        };
        let zeros = lost.zeros && rest[..passed].iter().all(|byte| *byte == 0);
        self.lost = Some(Lost { zeros, ..lost });
        if found.is_none() && !end {
            return passed;
        }
        let bytes = at + passed as u64 - lost.begin;
        if found.is_none() && zeros {
            self.fault(FaultKind::Truncated, lost.begin, format!("the file ends in {bytes} zero bytes"), into);
        } else {
            let detail = format!("no sound record in {bytes} bytes: passed over");
            self.fault(FaultKind::BadChecksum, lost.begin, detail, into);
        }
        if found.is_some() {
            self.lost = None;
        }
        passed
    }

    /// A record, of which the checksum is right.
    #[inline(never)]
    fn record(&mut self, header: &[u8; HEADER], payload: &[u8], at: u64, into: &mut Builder<'_>) {
        if let Some(scalar) = event::plain_scalar(payload) {
            into.begin_points(at, scalar.step, scalar.wall_time);
            let tag = self.find_tag(scalar.tag);
            self.learn(tag, header, payload, scalar.step, &payload[payload.len() - size_of::<f32>()..]);
            self.scalar(tag, Number { value: f64::from(scalar.value), narrow: true }, into);
        } else if self.event(header, payload, at, into).is_err() {
            self.fault(FaultKind::Unparsable, at, "the record is no event".to_owned(), into);
        }
    }

    /// Remembers how a record that holds a single scalar is laid out.
    fn learn(&mut self, tag: usize, header: &[u8; HEADER], payload: &[u8], step: i64, value: &[u8]) {
        // One byte of the header is then the whole length.
        let layout = Layout::of(payload, step, value).filter(|_| payload.len() <= 0xff);
        self.tags[tag].plain = layout.map(|layout| (*header, layout));
    }

    /// Any event.
    fn event(
        &mut self,
        header: &[u8; HEADER],
        payload: &[u8],
        at: u64,
        into: &mut Builder<'_>,
    ) -> Result<(), Malformed> {
        let event = Event::parse(payload)?;
        if let Some(path) = event.checkpoint
            && let Ok(number) = u64::try_from(event.step)
        {
            let path = String::from_utf8_lossy(path).into_owned();
            into.checkpoint(Checkpoint { number, unit: Unit::Step, path, complete: true });
        }
        let (mut begun, mut numbers, mut only) = (false, 0, None);
        for value in event.values() {
            let value = value?;
            let tag = self.find_tag(value.tag);
            if let Some(plugin) = value.plugin.filter(|plugin| !plugin.is_empty()) {
                self.tags[tag].foreign = !matches!(plugin, b"scalars" | b"tensor");
                if self.tags[tag].foreign {
                    self.tags[tag].plain = None;
                }
            }
            let number = match value.data {
                Data::Simple(value) => Some(Number { value: f64::from(value), narrow: true }),
                Data::Tensor(tensor) if !self.tags[tag].foreign => scalar::number(tensor)?,
                Data::Tensor(_) | Data::Other => None,
            };
            let Some(number) = number else { continue };
            if !std::mem::replace(&mut begun, true) {
                into.begin_points(at, event.step, event.wall_time);
            }
            if let Data::Tensor(tensor) = value.data {
                only = scalar::float_bytes(tensor).map(|bytes| (tag, bytes));
            }
            self.scalar(tag, number, into);
            numbers += 1;
        }
        if let Some((tag, bytes)) = only.filter(|_| numbers == 1 && event.checkpoint.is_none()) {
            self.learn(tag, header, payload, event.step, bytes);
        }
        Ok(())
    }

    /// Reads a record that is laid out as the last one of the tag which is next in turn: writers log their tags in rounds. Gives
    /// its bytes. Its header needs no checksum where it equals one that was right.
    #[inline(always)]
    fn record_in_turn(&mut self, rest: &[u8], at: u64, into: &mut Builder<'_>) -> Option<usize> {
        let turn = self.tags.get(self.last_tag)?.next;
        let tag = self.tags.get(turn)?;
        let (header, layout) = tag.plain.as_ref()?;
        let (this, body) = rest.split_first_chunk::<HEADER>()?;
        if this != header {
            return None;
        }
        let length = usize::from(header[0]);
        let (payload, behind) = body.split_at_checked(length)?;
        let (step, wall_time, value) = layout.read(payload)?;
        let level = self.level;
        if !tfrecord::is_intact(payload, behind.first_chunk()?, |bytes| crc32c(level, bytes)) {
            return None;
        }
        self.records += 1;
        self.last_tag = turn;
        into.begin_points(at, step, wall_time);
        if tag.wanted {
            into.point(tag.column?, f64::from(value));
            if tag.reaches {
                into.reach();
            }
        } else {
            into.pass_point(tag.reaches);
        }
        Some(HEADER + length + FOOTER)
    }

    /// The tag of a name, which is now the last one.
    fn find_tag(&mut self, name: &[u8]) -> usize {
        let tag = match self.index.get(name) {
            Some(tag) => *tag,
            None => {
                let (tag, name) = (self.tags.len(), Box::<[u8]>::from(name));
                let new = Tag {
                    name: name.clone(),
                    column: None,
                    wanted: false,
                    reaches: false,
                    foreign: false,
                    next: 0,
                    plain: None,
                };
                self.tags.push(new);
                self.index.insert(name, tag);
                tag
            }
        };
        if let Some(before) = self.tags.get_mut(self.last_tag) {
            before.next = tag;
        }
        self.last_tag = tag;
        tag
    }

    /// A number of a tag in the current record.
    fn scalar(&mut self, tag: usize, number: Number, into: &mut Builder<'_>) {
        let tag = &mut self.tags[tag];
        let column = match tag.column {
            Some(column) => column,
            None => tag.introduce(number, self.directory, into),
        };
        if tag.wanted {
            into.point(column, number.value);
            if tag.reaches {
                into.reach();
            }
        } else {
            into.pass_point(tag.reaches);
        }
    }

    #[inline(never)]
    fn holds_header(&self, bytes: &[u8]) -> bool {
        tfrecord::find_header(bytes, LONGEST, |bytes| crc32c(self.level, bytes)).is_some()
    }
}

/// Bytes of a whole record.
fn total(length: u64) -> u64 {
    length.saturating_add((HEADER + FOOTER) as u64)
}

impl Tag {
    /// Makes the column of a tag known at its first number.
    fn introduce(&mut self, number: Number, directory: &str, into: &mut Builder<'_>) -> u32 {
        let name = shown(&self.name);
        let known_as = full_name(directory, &name).filter(|full| roles::role_of(full).is_some());
        let column = into.column_known_as(&name, known_as.as_deref().unwrap_or(&name));
        into.numeric(column.id);
        if number.narrow {
            into.narrow(column.id);
        }
        self.column = Some(column.id);
        self.wanted = column.want == Want::Number;
        let role = roles::role_of(&name);
        // Rewards and lengths may be logged by environment steps, which are no steps of the training.
        self.reaches = role.is_some_and(|role| !matches!(role, Role::Reward | Role::CompletionLength))
            && points::step_name(&name) == points::STEP;
        column.id
    }
}

impl StreamDecoder for Decoder<'_> {
    fn feed(&mut self, window: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> Progress {
        let level = self.level;
        level.run(
            #[inline(always)]
            || self.decode(window, at, end, into),
        )
    }
}

impl Decoder<'_> {
    #[inline(always)]
    fn decode(&mut self, window: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> Progress {
        let level = self.level;
        let crc = |bytes: &[u8]| crc32c(level, bytes);
        self.length = self.length.max(at + window.len() as u64);
        if at == 0 && is_git_lfs_pointer(window) {
            self.is_pointer = true;
            return Progress::Used(window.len());
        }
        if at < self.passing_to && end {
            let detail = format!("the file ends inside a record of {} bytes", self.passing_to - at);
            self.fault(FaultKind::Truncated, at, detail, into);
            return Progress::Used(window.len());
        }
        let mut used = 0;
        loop {
            let (rest, place) = (&window[used..], at + used as u64);
            if self.lost.is_none()
                && let Some(passed) = self.record_in_turn(rest, place, into)
            {
                used += passed;
                continue;
            }
            if let Some(lost) = self.lost {
                let passed = self.resynchronise(lost, rest, place, end, into);
                used += passed;
                if self.lost.is_some() {
                    return Progress::Used(used);
                }
                continue;
            }
            let Some((header, body)) = rest.split_first_chunk::<HEADER>() else { break };
            let Some(length) = tfrecord::length(header, crc).filter(|length| *length <= LONGEST) else {
                self.lost = Some(Lost { begin: place, zeros: true });
                continue;
            };
            if total(length) > into.limits().record as u64 {
                if used > 0 {
                    // What is passed over is counted from the begin of a window.
                    return Progress::Used(used);
                }
                if body.len() < BEGIN && !end && window.len() < into.limits().record {
                    return Progress::Used(0);
                }
                self.records += 1;
                if !event::is_opaque(&body[..body.len().min(BEGIN)], length) {
                    let detail = format!("a record of {length} bytes was passed over");
                    self.fault(FaultKind::Limit, place, detail, into);
                }
                self.passing_to = at.saturating_add(total(length));
                return Progress::Skip(total(length));
            }
            let whole = usize::try_from(length).ok().and_then(|length| {
                let (payload, behind) = body.split_at_checked(length)?;
                Some((payload, behind.first_chunk::<FOOTER>()?))
            });
            let Some((payload, footer)) = whole else {
                if end && self.holds_header(&rest[1..]) {
                    // Not the end cuts this record, but something before it: more records follow.
                    self.lost = Some(Lost { begin: place, zeros: false });
                    continue;
                }
                break;
            };
            self.records += 1;
            if tfrecord::is_intact(payload, footer, crc) {
                self.record(header, payload, place, into);
            } else {
                let next = &body[payload.len() + FOOTER..];
                if next.len() < HEADER && !end && rest.len() < into.limits().record {
                    self.records -= 1;
                    break;
                }
                if next.first_chunk().is_some_and(|header| tfrecord::length(header, crc).is_none()) {
                    // Its end is not where its length says: bytes are missing, and a sound record may begin in it.
                    self.lost = Some(Lost { begin: place, zeros: false });
                    continue;
                }
                let detail = format!("a record of {length} bytes does not match its checksum: passed over");
                self.fault(FaultKind::BadChecksum, place, detail, into);
            }
            used += HEADER + payload.len() + FOOTER;
        }
        if end && used < window.len() {
            let detail = "the file ends inside a record".to_owned();
            self.fault(FaultKind::Truncated, at + used as u64, detail, into);
            used = window.len();
        }
        Progress::Used(used)
    }
}
