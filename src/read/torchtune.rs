#![doc = include_str!("torchtune.md")]

use std::collections::HashMap;

use super::json_rows::fingerprint;
use super::{
    About, Builder, Confidence, Progress, Reader, Rejected, Session, StreamDecoder, Tracker, is_git_lfs_pointer,
};
use crate::model::source::plain;
use crate::model::{Entry, Fault, FaultKind, Format, Part, PlaceUnit, Recording, Source};
use crate::wire::lines::{Ending, Lines};
use crate::wire::numbers::{Cell, parse_text_value, parse_word};
use crate::wire::utf16;

/// The reader of the logs of torchtune's DiskLogger.
pub struct Torchtune;

impl Reader for Torchtune {
    fn format(&self) -> Format {
        Format::Torchtune
    }

    fn version(&self) -> u32 {
        1
    }

    fn about(&self) -> About {
        About {
            files: "log_<unix time>.txt of the DiskLogger: all of one directory, in the order of their times",
            nonfinite: "nan, inf, tensor(nan, device='cuda:0')",
            missing: "no pair",
            not_read: "lines that do not begin with `Step <n> |`",
        }
    }

    fn trackers(&self) -> &'static [Tracker] {
        &[Tracker {
            name: "torchtune DiskLogger",
            version: "built",
            files: "<log_dir>/log_<unix time>.txt",
            nonfinite: "nan, inf",
            missing: "no pair; grad_norm only if clip_grad_norm is set",
            not_read: "lines that do not begin with `Step <n> |`",
        }]
    }

    fn recognise_name(&self, path: &str) -> Confidence {
        let name = path.rsplit('/').next().unwrap_or(path);
        if time(name).is_some() { Confidence::Maybe } else { Confidence::No }
    }

    fn recognise(&self, path: &str, head: &[u8]) -> Confidence {
        let by_name = self.recognise_name(path);
        if is_git_lfs_pointer(head) || by_name == Confidence::No && !path.ends_with(".txt") {
            return Confidence::No;
        }
        let head = utf16::head_as_utf8(head);
        let mut lines = Lines::new(&head, true, Ending::Newline).filter(|line| !line.bytes.trim_ascii().is_empty());
        // The name alone is that of any log.
        let is_step = |bytes: &[u8]| step(bytes).is_some_and(|(_, rest)| pair(rest, true).is_some());
        if lines.next().is_some_and(|line| is_step(line.bytes)) { Confidence::Certain } else { Confidence::No }
    }

    fn group(&self, entries: &[Entry], own: &[usize]) -> Vec<Source> {
        let mut sources: Vec<Source> = Vec::new();
        let mut homes = HashMap::new();
        for entry in own.iter().map(|index| &entries[*index]) {
            if time(entry.plain_name()).is_none() {
                sources.push(super::single(Format::Torchtune, entry));
                continue;
            }
            let home = entry.parent();
            let at = *homes.entry(home).or_insert_with(|| {
                let (path, directory) = (home.to_owned(), home.to_owned());
                sources.push(Source { format: Format::Torchtune, path, directory, parts: Vec::new() });
                sources.len() - 1
            });
            let part = Part { path: entry.path.clone(), name: entry.name().to_owned(), size: entry.size };
            sources[at].parts.push(part);
        }
        sources.iter_mut().for_each(|source| source.parts.sort_by_key(|part| time(plain(&part.name))));
        sources
    }

    fn read(&self, source: &Source, session: &mut Session<'_>) -> Result<Vec<Recording>, Rejected> {
        let mut builder = session.builder(Format::Torchtune, PlaceUnit::Line);
        let step = builder.column("Step").id;
        let mut decoder = Decoder { step, columns: HashMap::new(), line: 0, skipping: false, is_pointer: false };
        let mut refused = None;
        for (index, part) in source.parts.iter().enumerate() {
            builder.begin_part(index as u32);
            (decoder.line, decoder.skipping) = (0, false);
            match session.stream_text(part, &mut decoder, &mut builder) {
                Err(Rejected::Io(error)) => {
                    let place = builder.place(PlaceUnit::Line, 1);
                    builder.fault(Fault::new(FaultKind::Io, place, error.to_string()));
                    refused.get_or_insert(Rejected::Io(error));
                }
                result => result?,
            }
        }
        if decoder.is_pointer && builder.records() == 0 {
            return Err(Rejected::unreadable("git-lfs-pointer", "a Git LFS pointer in place of the file"));
        }
        match refused {
            Some(rejected) if builder.records() == 0 => Err(rejected),
            _ => Ok(vec![builder.finish()]),
        }
    }
}

/// The second of `log_1700000000.txt`.
fn time(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("log_")?.strip_suffix(".txt")?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// The step of a line and what follows `Step <n> |`.
fn step(line: &[u8]) -> Option<(i64, &[u8])> {
    let rest = line.trim_ascii_start().strip_prefix(b"Step ")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'-').count();
    let step = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    Some((step, rest[digits..].strip_prefix(b" |")?))
}

/// A pair `name:value`, and what follows it.
struct Pair<'a> {
    name: &'a [u8],
    value: &'a [u8],
    /// The byte behind the value was seen.
    is_whole: bool,
    rest: &'a [u8],
}

/// The next pair of a line; `at_end`: the line is whole. Blanks in brackets belong to the value: `tensor(0.5,
/// device='cuda:0')`.
fn pair(text: &[u8], at_end: bool) -> Option<Pair<'_>> {
    let text = text.trim_ascii_start();
    let colon = text.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&text[..colon], &text[colon + 1..]);
    let mut depth = 0usize;
    let end = value.iter().position(|byte| {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && byte.is_ascii_whitespace()
    });
    let (value, rest) = value.split_at(end.unwrap_or(value.len()));
    (!name.is_empty()).then_some(Pair { name, value, is_whole: end.is_some() || at_end, rest })
}

/// Decodes the logs of one directory.
#[derive(Debug)]
struct Decoder {
    step: u32,
    columns: HashMap<Vec<u8>, u32>,
    line: u64,
    /// Inside a line that is passed over.
    skipping: bool,
    is_pointer: bool,
}

impl Decoder {
    fn fault(&self, kind: FaultKind, detail: &str, into: &mut Builder<'_>) {
        let place = into.place(PlaceUnit::Line, self.line);
        into.fault(Fault::new(kind, place, detail));
    }

    fn read_line(&mut self, line: &[u8], is_whole: bool, into: &mut Builder<'_>) {
        let begin = line.iter().take_while(|byte| **byte == 0).count();
        let line = &line[begin..];
        if begin > 0 {
            let kind = if is_whole || !line.is_empty() { FaultKind::Stray } else { FaultKind::Truncated };
            self.fault(kind, "a run of NUL bytes", into);
        }
        if line.trim_ascii().is_empty() {
            return;
        }
        if !is_whole {
            self.fault(FaultKind::Truncated, "the file ends inside a line", into);
        }
        let Some((step, mut rest)) = step(line) else {
            if is_whole {
                self.fault(FaultKind::Unparsable, "want `Step <n> |`", into);
            }
            return;
        };
        into.begin_row(self.line);
        into.whole_step(self.step, step);
        let (mut pairs, mut broken) = (0, false);
        while let Some(found) = pair(rest, is_whole) {
            rest = found.rest;
            // A number at the cut may go on; a word that reads as NaN or Inf counts.
            if !found.is_whole && parse_word(found.value.trim_ascii()).is_none() {
                break;
            }
            let column = match self.columns.get(found.name) {
                Some(column) => *column,
                None => {
                    let column = into.column(&String::from_utf8_lossy(found.name)).id;
                    if self.columns.len() <= into.limits().columns {
                        self.columns.insert(found.name.to_vec(), column);
                    }
                    column
                }
            };
            match parse_text_value(found.value) {
                Cell::Value(value) => into.number(column, value),
                Cell::Missing => {}
                Cell::Text => {
                    broken |= into.is_series(column);
                    into.filled(column, false);
                }
            }
            pairs += 1;
        }
        if broken || (is_whole && !rest.trim_ascii().is_empty()) {
            self.fault(FaultKind::Unparsable, "want pairs of a name and a number", into);
        }
        if pairs > 0 {
            into.end_row(Some(fingerprint(line)));
        }
    }
}

impl StreamDecoder for Decoder {
    fn feed(&mut self, window: &[u8], at: u64, end: bool, into: &mut Builder<'_>) -> Progress {
        if at == 0 && is_git_lfs_pointer(window) {
            self.is_pointer = true;
            return Progress::Used(window.len());
        }
        let mut lines = Lines::new(window, end, Ending::Newline);
        for line in lines.by_ref() {
            self.line += 1;
            if !std::mem::take(&mut self.skipping) {
                self.read_line(line.bytes, line.terminated, into);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EntryKind, Limits, Signal};
    use crate::read::Request;
    use crate::read::testing::Memory;

    fn sources(files: &Memory) -> Vec<Source> {
        let mut paths: Vec<&String> = files.parts.keys().collect();
        paths.sort();
        let entries: Vec<Entry> =
            paths.iter().map(|path| Entry { path: (*path).clone(), size: 1, kind: EntryKind::File }).collect();
        let is_own = |at: &usize| {
            let path = &entries[*at].path;
            Torchtune.recognise_name(path) > Confidence::No
                && Torchtune.recognise(path, &files.parts[path]) > Confidence::No
        };
        let own: Vec<usize> = (0..entries.len()).filter(is_own).collect();
        Torchtune.group(&entries, &own)
    }

    fn read_with(files: &Memory, limits: &Limits) -> Recording {
        let sources = sources(files);
        assert_eq!(sources.len(), 1, "{sources:?}");
        let request = Request { everything: true, ..Request::default() };
        files.read_with(&Torchtune, &sources[0], &request, limits).expect("it can be read").remove(0)
    }

    fn points(recording: &Recording, name: &str) -> Vec<(i64, String)> {
        let series = recording.series.iter().find(|series| series.name == name).expect("the metric is there");
        let Signal::Kept(kept) = &series.signal else { panic!("every series of a full read is kept") };
        (0..kept.values.len()).map(|row| (kept.steps.get(row), kept.values.get(row).to_string())).collect()
    }

    fn log(steps: impl IntoIterator<Item = i64>) -> String {
        log_of("2.25", steps)
    }

    fn log_of(loss: &str, steps: impl IntoIterator<Item = i64>) -> String {
        let line = |step| {
            let norm = if step == 7 { "tensor(nan, device='cuda:0')".to_owned() } else { format!("{step}.5") };
            format!("Step {step} | loss:{loss} lr:2e-05 tokens_per_second_per_gpu:{}.0 grad_norm:{norm} \n", 900 + step)
        };
        steps.into_iter().map(line).collect()
    }

    #[test]
    fn logs_of_a_directory_are_attempts() {
        let files = Memory::new([
            ("out/log_1700000100.txt", log_of("1.5", 5..10)),
            ("out/log_999999999.txt", log(1..8)),
            ("out/log_1.txt", "epoch 1\n".into()),
            ("out/log_x.txt", log(1..8)),
        ]);
        let recording = read_with(&files, &Limits::default());
        assert_eq!(recording.axis.step_name.as_deref(), Some("Step"));
        let attempts: Vec<_> = recording.axis.attempts.iter().map(|own| (own.record, own.first_step)).collect();
        assert_eq!(attempts, [(0, 1), (7, 5)]);
        let norms = points(&recording, "grad_norm");
        assert_eq!(
            (norms.len(), norms[5..8].to_vec()),
            (12, vec![(6, "6.5".into()), (7, "NaN".into()), (5, "5.5".into())])
        );
        assert_eq!(points(&recording, "lr")[0], (1, "0.00002".into()));
        assert!(recording.faults.is_empty());
    }

    #[test]
    fn pairs() {
        let all = |text: &str| {
            let (mut rest, mut found) = (text.as_bytes(), Vec::new());
            while let Some(next) = pair(rest, true) {
                found.push((
                    String::from_utf8_lossy(next.name).into_owned(),
                    String::from_utf8_lossy(next.value).into_owned(),
                ));
                rest = next.rest;
            }
            found
        };
        let owned =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Vec<_>>();
        assert_eq!(all(" loss:0.5 x:tensor(1, dtype=f) "), owned(&[("loss", "0.5"), ("x", "tensor(1, dtype=f)")]));
        assert_eq!(all(" a/b:inf"), owned(&[("a/b", "inf")]));
        assert_eq!((all(""), all(" :1"), all("x")), (vec![], vec![], vec![]));
        assert_eq!(step(b"Step 12 | loss:1"), Some((12, &b" loss:1"[..])));
        assert_eq!((step(b"Step 12"), step(b"step 12 | a:1"), step(b"Step x | a:1")), (None, None, None));
    }

    #[test]
    fn cuts_damage_and_windows() {
        let text = format!("{}garbage\nStep 11 | loss:x lr:1 \n\0\0{}", log(1..10), log([12]).trim_end_matches(" \n"));
        let file = |text: &str| Memory::new([("log_1700000000.txt", text.to_owned())]);
        let whole = read_with(&file(&text), &Limits::default());
        // What the end may have cut is no point.
        assert_eq!((points(&whole, "loss").len(), points(&whole, "grad_norm").len()), (10, 9));
        let faults: Vec<_> = whole.faults.iter().map(|fault| (fault.kind, fault.place.at)).collect();
        use FaultKind::{Stray, Truncated, Unparsable};
        assert_eq!(faults, [(Unparsable, 10), (Unparsable, 11), (Stray, 12), (Truncated, 12)]);
        for (record, chunk) in [(128, 1), (140, 7), (256, usize::MAX)] {
            let chopped = Memory { chunk, ..file(&text) };
            let limits = Limits { record, ..Limits::default() };
            assert_eq!(format!("{:?}", read_with(&chopped, &limits)), format!("{whole:?}"));
        }
        let mut before = 0;
        for cut in 20..=text.len() {
            let recording = read_with(&file(&text[..cut]), &Limits::default());
            let count: u64 = recording.series.iter().map(|series| series.tally.rows).sum();
            assert!(count >= before, "cut at byte {cut}");
            before = count;
        }
        let open = read_with(&file("Step 1 | loss:nan"), &Limits::default());
        assert_eq!(points(&open, "loss"), [(1, "NaN".into())]);
    }
}
