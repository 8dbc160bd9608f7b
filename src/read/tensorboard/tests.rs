use proptest::prelude::*;

use super::event::Event;
use super::*;
use crate::model::{Limits, Signal};
use crate::read::Request;
use crate::read::testing::Memory;

fn framed(payload: &[u8]) -> Vec<u8> {
    let masked = |bytes: &[u8]| tfrecord::masked(checksum(bytes)).to_le_bytes();
    let length = (payload.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), payload, &masked(payload)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn field(key: u8, inner: &[u8]) -> Vec<u8> {
    [&[key][..], &varint(inner.len() as u64), inner].concat()
}

/// A scalar as torch writes it: a step of 0 is not written.
fn scalar(tag: &str, step: i64, wall_time: f64, value: f32) -> Vec<u8> {
    let value = [&field(0x0a, tag.as_bytes())[..], b"\x15", &value.to_le_bytes()].concat();
    let step = if step == 0 { Vec::new() } else { [&[0x10][..], &varint(step as u64)].concat() };
    [b"\x09", &wall_time.to_le_bytes()[..], &step, &field(0x2a, &field(0x0a, &value))].concat()
}

fn read_files(files: &[Vec<u8>], request: &Request, limits: &Limits) -> Result<Recording, Rejected> {
    let names: Vec<String> = (0..files.len()).map(|number| format!("run/events.out.tfevents.{number}")).collect();
    let memory = Memory::new(names.iter().map(String::as_str).zip(files.iter().cloned()));
    let parts = names.iter().map(|name| memory.part(name)).collect();
    let source = Source { format: Format::TensorBoard, path: "run".into(), directory: "run".into(), parts };
    memory.read_with(&TensorBoard, &source, request, limits).map(|mut found| found.remove(0))
}

fn read(files: &[Vec<u8>]) -> Recording {
    read_files(files, &Request::default(), &Limits::default()).unwrap()
}

fn points(recording: &Recording, name: &str) -> Vec<(i64, f64)> {
    let series = recording.series.iter().find(|series| series.name == name).expect(name);
    let Signal::Kept(kept) = &series.signal else { panic!("{name} is not kept") };
    kept.steps.iter().zip((0..kept.values.len()).map(|row| kept.values.get(row))).collect()
}

fn kinds(recording: &Recording) -> Vec<(FaultKind, u64)> {
    recording.faults.iter().map(|fault| (fault.kind, fault.place.at)).collect()
}

/// `loss` and `grad_norm` at each step, as one event file.
fn curve(steps: impl IntoIterator<Item = i64>) -> Vec<u8> {
    curve_at(1.7e9, steps)
}

fn curve_at(time: f64, steps: impl IntoIterator<Item = i64>) -> Vec<u8> {
    let both = |step| [framed(&scalar("loss", step, time, 1.0)), framed(&scalar("grad_norm", step, time, step as f32))];
    steps.into_iter().flat_map(both).flatten().collect()
}

fn events() -> impl Strategy<Value = Vec<(usize, i64, f32)>> {
    let step = prop_oneof![6 => 0i64..300, 1 => any::<i64>()];
    let value = prop_oneof![4 => any::<f32>(), 1 => Just(f32::NAN)];
    prop::collection::vec((0usize..4, step, value), 0..60)
}

proptest! {
    /// What is read in turn, record by record laid out alike, equals what the fields one by one say.
    #[test]
    fn plain_records_equal_their_fields(events in events(), in_turn in any::<bool>()) {
        let tags = ["grad_norm", "g", "train/a_tag_that_is_longer_than_two_words", "ünïcode"];
        let all = || events.iter().enumerate().map(|(k, (tag, step, value))| {
            let tag = if in_turn { k % 4 } else { *tag };
            (tags[tag], *step, 1.7e9 + k as f64, *value)
        });
        let payloads: Vec<Vec<u8>> = all().map(|(tag, step, time, value)| scalar(tag, step, time, value)).collect();
        for payload in &payloads {
            let event = Event::parse(payload).unwrap();
            let values: Vec<_> = event.values().collect::<Result<_, _>>().unwrap();
            let plain = event::plain_scalar(payload).unwrap();
            prop_assert_eq!((plain.step, plain.wall_time, plain.tag), (event.step, event.wall_time, values[0].tag));
            let Data::Simple(value) = values[0].data else { panic!("{values:?}") };
            prop_assert_eq!(plain.value.to_bits(), value.to_bits());
            if let Some(layout) = Layout::of(payload, plain.step, &payload[payload.len() - 4..]) {
                let (step, wall_time, value) = layout.read(payload).unwrap();
                prop_assert_eq!((step, wall_time), (plain.step, plain.wall_time));
                prop_assert_eq!(value.to_bits(), plain.value.to_bits());
            }
        }
        let everything = Request { everything: true, ..Request::default() };
        let file = payloads.iter().flat_map(|payload| framed(payload)).collect();
        let recording = read_files(&[file], &everything, &Limits::default()).unwrap();
        prop_assert!(recording.records <= events.len() as u64);
        for tag in tags {
            let bits = |value: f64| if value.is_nan() { u64::MAX } else { value.to_bits() };
            let want: Vec<_> = all().filter(|(name, ..)| *name == tag).map(|(_, step, _, v)| (step, bits(v.into()))).collect();
            if !want.is_empty() {
                let got: Vec<_> = points(&recording, tag).into_iter().map(|(step, value)| (step, bits(value))).collect();
                prop_assert_eq!(got, want);
            }
        }
    }
}

/// TF2's encoding is learnt too, and what only looks like the last record is not taken for it.
#[test]
fn tensors_in_turn_equal_their_fields() {
    let tensor = |tag: &str, step: u64, value: f32, plugin: &str| {
        let metadata = field(0x4a, &field(0x0a, &field(0x0a, plugin.as_bytes())));
        let content = [b"\x08\x01\x12\x00", &field(0x22, &value.to_le_bytes())[..]].concat();
        let value = [field(0x0a, tag.as_bytes()), field(0x42, &content), metadata].concat();
        [b"\x09", &1.7e9f64.to_le_bytes()[..], b"\x10", &varint(step), &field(0x2a, &field(0x0a, &value))].concat()
    };
    let steps = [1, 2, 3, 127, 128, 129, 300, 16_384, 16_385];
    let of = |plugin: &str| -> Vec<u8> {
        let both = |step| [tensor("loss", step, 2.5, plugin), tensor("grad_norm", step, step as f32, plugin)];
        steps.into_iter().flat_map(both).flat_map(|payload| framed(&payload)).collect()
    };
    let want: Vec<(i64, f64)> = steps.iter().map(|step| (*step as i64, *step as f64)).collect();
    assert_eq!(points(&read(&[of("scalars")]), "grad_norm"), want);
    assert!(read(&[of("images")]).series.is_empty());
    let twice = [tensor("grad_norm", 4, 1.0, "scalars"), b"\x10\x09".to_vec()].concat();
    let file = [twice.clone(), twice].iter().flat_map(|payload| framed(payload)).collect();
    assert_eq!(points(&read(&[file]), "grad_norm"), [(9, 1.0)], "of a field that stands twice the last counts");
}

#[test]
fn attempts_of_the_densest_series_are_those_of_all() {
    let recording = read(&[curve(1..=20), curve_at(1.8e9, 11..=30), curve_at(1.9e9, 0..=5)]);
    let found: Vec<_> =
        recording.axis.attempts.iter().map(|a| (a.record, a.first_step, a.last_step, a.training)).collect();
    // The loss of the first step of each file comes before its gradient norm and belongs to the same attempt.
    assert_eq!(found, [(0, 1, 20, 1), (20, 11, 30, 1), (40, 0, 5, 2)]);
    assert_eq!(recording.axis.step_name.as_deref(), Some("step"));
    let within = read(&[[curve(1..=20), curve_at(1.8e9, 11..=30)].concat()]);
    assert_eq!(within.axis.attempts[1].record, 20, "without a file that begins there");
}

#[test]
fn points_of_one_step_are_one_row() {
    let recording = read(&[curve(1..=3), curve_at(1.8e9, 3..=4)]);
    assert_eq!(recording.records, 5, "the second file begins a row of its own");
    let records = |name: &str| {
        let series = recording.series.iter().find(|series| series.name == name).unwrap();
        let Signal::Kept(kept) = &series.signal else { panic!("{name} is not kept") };
        kept.records.iter().collect::<Vec<_>>()
    };
    assert_eq!(records("grad_norm"), [0, 1, 2, 3, 4]);
    let other = (1..=4).flat_map(|step| framed(&scalar("fps", step, 1.7e9, 1.0))).collect();
    let recording = read(&[other]);
    assert_eq!((recording.records, recording.axis.last_step), (4, Some(4)));
}

#[test]
fn a_copied_tail_is_read_once_and_equal_values_at_other_times_are_not_copies() {
    let file = curve(1..=20);
    let record = framed(&scalar("loss", 20, 1.7e9, 1.0)).len() + framed(&scalar("grad_norm", 20, 1.7e9, 1.0)).len();
    let tail = file[file.len() - 5 * record..].to_vec();
    assert_eq!(points(&read(&[file, tail]), "grad_norm").len(), 20);
    let again = |time| framed(&scalar("grad_norm", 0, time, 1.0));
    let recording = read(&[(0..30).flat_map(|k| again(1.7e9 + f64::from(k))).collect()]);
    assert_eq!(points(&recording, "grad_norm").len(), 30, "everything is logged at step 0");
}

#[test]
fn damage_costs_what_it_hits() {
    let whole = curve(1..=9);
    let record = framed(&scalar("grad_norm", 5, 1.7e9, 5.0)).len();
    let fifth = whole.windows(record).position(|w| w == framed(&scalar("grad_norm", 5, 1.7e9, 5.0))).unwrap();
    let steps =
        |recording: &Recording| points(recording, "grad_norm").iter().map(|(step, _)| *step).collect::<Vec<_>>();
    for (at, kind) in
        [(fifth, FaultKind::BadChecksum), (fifth + 9, FaultKind::BadChecksum), (fifth + 30, FaultKind::BadChecksum)]
    {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        let recording = read(&[damaged]);
        assert_eq!(steps(&recording), [1, 2, 3, 4, 6, 7, 8, 9], "byte {at}");
        assert_eq!(kinds(&recording), [(kind, fifth as u64)]);
    }
    let recording = read(&[whole[..whole.len() - 3].to_vec(), curve(20..=21)]);
    assert_eq!(steps(&recording), [1, 2, 3, 4, 5, 6, 7, 8, 20, 21]);
    assert_eq!(kinds(&recording), [(FaultKind::Truncated, (whole.len() - record) as u64)]);
    let recording = read(&[[&whole[..], &[0; 5000]].concat()]);
    assert_eq!((steps(&recording).len(), kinds(&recording)), (9, vec![(FaultKind::Truncated, whole.len() as u64)]));
    let forged = framed(&vec![7; 300]);
    let recording = read(&[[&whole[..], &forged, &curve(10..=11)].concat()]);
    assert_eq!((steps(&recording).len(), kinds(&recording)), (11, vec![(FaultKind::Unparsable, whole.len() as u64)]));
}

#[test]
fn sound_records_behind_a_cut_one_are_read() {
    let steps =
        |recording: &Recording| points(recording, "grad_norm").iter().map(|(step, _)| *step).collect::<Vec<_>>();
    let record = |step: i64| framed(&scalar("grad_norm", step, 1.7e9, step as f32));
    let of = |steps: std::ops::RangeInclusive<i64>| steps.flat_map(record).collect::<Vec<u8>>();
    let histogram = framed(&field(0x2a, &field(0x0a, &[field(0x0a, b"h"), field(0x2a, &[0; 2000])].concat())));
    for cut in [5, 30, 800, histogram.len() - 1] {
        let file = [of(1..=5), histogram[..cut].to_vec(), of(6..=9)].concat();
        let recording = read(&[file]);
        assert_eq!(steps(&recording), [1, 2, 3, 4, 5, 6, 7, 8, 9], "{cut} bytes of a record");
        assert_eq!(kinds(&recording), [(FaultKind::BadChecksum, of(1..=5).len() as u64)]);
    }
    // Bytes are missing inside a record: the next one begins within what its length claims.
    for missing in 1..record(5).len() - 1 {
        let file = [of(1..=4), record(5)[..missing].to_vec(), of(6..=9)].concat();
        assert_eq!(steps(&read(&[file])), [1, 2, 3, 4, 6, 7, 8, 9], "{missing} bytes of a record");
    }
}

#[test]
fn thousands_of_layers_leave_room_for_the_totals() {
    let limits = Limits { series: 5, columns: 12, ..Limits::default() };
    let names: Vec<String> = (0..20).map(|layer| format!("grad_norm/layer{layer}.weight")).collect();
    let tags = names.iter().map(String::as_str).chain(["", "grad_norm", "loss"]);
    let file: Vec<u8> = tags.flat_map(|tag| framed(&scalar(tag, 3, 1.7e9, f32::NAN))).collect();
    for everything in [false, true] {
        let request = Request { everything, ..Request::default() };
        let recording = read_files(std::slice::from_ref(&file), &request, &limits).unwrap();
        for total in ["grad_norm", "loss"] {
            assert!(recording.series.iter().any(|series| series.name == total && series.tally.nan == 1), "{total}");
        }
        assert!(recording.faults.iter().any(|fault| fault.kind == FaultKind::Limit));
    }
}

#[test]
fn steps_in_samples_are_not_mixed_with_steps() {
    let norm = |step: i64| framed(&scalar("train/grad_norm", step, 1.7e9, 1.0));
    let other = |tag: &'static str| move |step: i64| framed(&scalar(tag, step * 64, 1.7e9, 1.0));
    let file = (1..=50).flat_map(norm).chain((1..=50).flat_map(other("Train/Samples/lr"))).collect();
    let recording = read(&[file]);
    assert_eq!((recording.axis.last_step, recording.axis.step_name.as_deref()), (Some(50), Some("step")));
    let file = (1..=500).flat_map(other("Train/Samples/train_loss")).chain((1..=50).flat_map(norm)).collect();
    assert_eq!(read(&[file]).axis.step_name.as_deref(), Some("step"));
    let file = (1..=50).flat_map(other("Train/Samples/train_loss")).collect();
    assert_eq!(read(&[file]).axis.step_name.as_deref(), Some("samples"));
}

#[test]
fn no_two_tags_read_alike() {
    assert_eq!(shown(b"a\xff/\xc3\xa9"), "a\\xff/é");
}

#[test]
fn what_is_no_event_file_is_told_apart() {
    let code = |bytes: &[u8]| match read_files(&[bytes.to_vec()], &Request::default(), &Limits::default()) {
        Err(Rejected::Unreadable { code, .. }) => code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"), "git-lfs-pointer");
    assert_eq!(code(&curve(1..=1)[..7]), "cut-header");
    assert_eq!(code(&curve(1..=1)[..30]), "cut-header");
    assert_eq!(code(&[0; 4000]), "not-a-recording");
    assert_eq!(code("plain text that is long enough for a header".as_bytes()), "not-a-recording");
    assert_eq!(read(&[Vec::new()]).records, 0);
    // Another file of the directory is not lost with it.
    let recording = read(&[vec![0; 400], curve(1..=12)]);
    assert_eq!((recording.records, kinds(&recording)), (12, vec![(FaultKind::Truncated, 0)]));
}

#[test]
fn long_records_that_hold_no_scalar_are_passed_over_unseen() {
    let image = |size: usize| {
        let value = [&field(0x0a, b"images/0")[..], &field(0x22, &vec![1; size])].concat();
        [b"\x09", &1.7e9f64.to_le_bytes()[..], b"\x10\x05", &field(0x2a, &field(0x0a, &value))].concat()
    };
    let merged = |size: usize| {
        let scalar = [&field(0x0a, b"grad_norm")[..], b"\x15\0\0\x20\x40"].concat();
        let value = [&field(0x0a, b"images/0")[..], &field(0x22, &vec![1; size])].concat();
        let summary = [field(0x0a, &value), field(0x0a, &scalar)].concat();
        [b"\x09", &1.7e9f64.to_le_bytes()[..], b"\x10\x05", &field(0x2a, &summary)].concat()
    };
    let limits = Limits { record: 1 << 20, ..Limits::default() };
    for (record, want) in [(image(2 << 20), 4), (image(80_000), 4), (merged(80_000), 5), (merged(2 << 20), 4)] {
        let is_limit = want == 4 && record == merged(2 << 20);
        let file = [curve(1..=2), framed(&record), curve(6..=7)].concat();
        let recording = read_files(std::slice::from_ref(&file), &Request::default(), &limits).unwrap();
        assert_eq!(points(&recording, "grad_norm").len(), want, "{} bytes", record.len());
        assert_eq!(recording.faults.len(), usize::from(is_limit));
        // Cut inside: all before it counts.
        let cut = file[..curve(1..=2).len() + record.len() / 2].to_vec();
        let recording = read_files(&[cut], &Request::default(), &limits).unwrap();
        assert_eq!(points(&recording, "grad_norm").len(), 2);
        assert_eq!(recording.faults.last().map(|fault| fault.kind), Some(FaultKind::Truncated));
    }
}

#[test]
fn scalars_of_several_writers_in_directories_of_their_own() {
    assert_eq!(full_name("logs/loss_val", "loss").as_deref(), Some("loss/val"));
    assert_eq!(full_name("logs/train_loss_val", "train/loss").as_deref(), Some("train/loss/val"));
    assert_eq!(full_name("logs/train/loss/val", "train/loss").as_deref(), Some("train/loss/val"));
    assert_eq!(full_name("loss/val", "loss").as_deref(), Some("loss/val"));
    assert_eq!(full_name("logs/closs/val", "loss"), None);
    assert_eq!(full_name("logs/run", "loss"), None);
    assert_eq!(full_name("", "loss"), None);
    for name in ["a/validation", "Eval", "eval_holdout", "val-0"] {
        assert!(is_evaluation(name), "{name}");
    }
    for name in ["a/first_val", "a/test", "value", "evaluate_lr", ""] {
        assert!(!is_evaluation(name), "{name}");
    }
}

#[test]
fn files_are_grouped_by_directory_in_the_order_of_their_names() {
    let entries: Vec<Entry> = ["a/events.out.tfevents.2.h", "a/events.out.tfevents.10.h", "a/b/x.tfevents", "tfevents"]
        .iter()
        .map(|path| Entry { path: (*path).to_owned(), size: 1, kind: crate::model::EntryKind::File })
        .collect();
    let sources = TensorBoard.group(&entries, &[0, 1, 2, 3]);
    let found: Vec<_> = sources.iter().map(|source| (source.path.as_str(), source.parts[0].name.as_str())).collect();
    assert_eq!(found, [("a", "events.out.tfevents.10.h"), ("a/b", "x.tfevents"), ("", "tfevents")]);
    assert_eq!(TensorBoard.recognise_name("a/events.out.tfevents.1.h.profile-empty"), Confidence::No);
    assert_eq!(TensorBoard.recognise("a/renamed.bin", &curve(1..=2)), Confidence::Certain);
    assert_eq!(TensorBoard.recognise("a/renamed.bin", &framed(b"an example")), Confidence::No);
}
