//! One function a reader and a framing: any bytes in, no panic, no hang, no allocation by a number from the bytes.
//!
//! Shared by the coverage-guided targets in `fuzz_targets/` and by `cargo test`, which runs them over mutated fixtures.

use gradscan::audit::{self, Input, Report, Streamed};
use gradscan::kernel::{checksum::crc32c, level::Level};
use gradscan::model::{Format, Limits, Part, Source};
use gradscan::read::{Request, reader};
use gradscan::wire::json::{Cursor, Kind, Path, RowScanner, Rows, Sink, Skip, Skipper, Stop, Text, Want};
use gradscan::wire::leveldb::{self, CHUNK_HEADER};
use gradscan::wire::lines::{Ending, Lines};
use gradscan::wire::numbers::{parse_f64, parse_text_value};
use gradscan::wire::parquet_pages::{Batch, Decoder, Footer, PageHeader, Physical, TAIL, footer_length};
use gradscan::wire::tfrecord::masked;
use gradscan::wire::{tar, zip};

#[path = "../tests/common/memory.rs"]
pub mod memory;

use memory::Memory;

/// A fuzz function.
pub type Function = fn(&[u8]);

/// Every function by its name.
pub const ALL: &[(&str, Function)] = &[
    #[cfg(feature = "parquet")]
    ("rlprobe", rlprobe),
    ("hf_trainer", hf_trainer),
    ("jsonl", jsonl),
    ("tensorboard", tensorboard),
    ("wandb", wandb),
    ("swanlab", swanlab),
    #[cfg(feature = "sqlite")]
    ("mlflow_sql", mlflow_sql),
    #[cfg(feature = "sqlite")]
    ("trackio", trackio),
    ("csv", csv),
    ("mlflow", mlflow),
    ("dvclive", dvclive),
    ("deepspeed", deepspeed),
    ("comet", comet),
    ("clearml", clearml),
    ("neptune", neptune),
    ("torchtune", torchtune),
    ("safetensors", safetensors),
    ("npy", npy),
    #[cfg(feature = "tables")]
    ("parquet", parquet),
    #[cfg(feature = "tables")]
    ("arrow", arrow),
    ("json_tokenizer", json_tokenizer),
    ("parquet_pages", parquet_pages),
    ("archive_records", archive_records),
];

/// Recognises, reads and judges a source made of `parts`.
fn source(format: Format, parts: &[(&str, &[u8])]) {
    let mut memory = Memory::default();
    let mut source = Source { format, path: "run".into(), directory: String::new(), parts: Vec::new() };
    let reader = reader(format).expect("the format has a reader");
    for (name, bytes) in parts {
        let path = format!("run/{name}");
        reader.recognise(&path, bytes);
        source.parts.push(Part { path: path.clone(), name: (*name).to_owned(), size: bytes.len() as u64 });
        memory.files.insert(path, bytes.to_vec().into());
    }
    memory.judge(&source);
    let everything = Request { everything: true, ..Request::default() };
    // A refusal is an answer like any other.
    let _ = memory.read(&source, &everything, &Limits { record: 512, page: 4096, ..Limits::default() });
}

/// A `trainer_state.json`, alone and beside a copy of which it is the continuation or a branch.
pub fn hf_trainer(data: &[u8]) {
    source(Format::HfTrainer, &[("trainer_state.json", data)]);
    let copy = &data[..data.len() / 2];
    source(Format::HfTrainer, &[("trainer_state.json", data), ("checkpoint-7/trainer_state.json", copy)]);
}

/// A file of JSON Lines.
pub fn jsonl(data: &[u8]) {
    source(Format::Jsonl, &[("metrics.jsonl", data)]);
}

/// The bytes as an event file, as one event, and as the tensor of one, between records whose checksums are right.
pub fn tensorboard(data: &[u8]) {
    let framed = |payload: &[u8]| {
        let checksum = |bytes: &[u8]| masked(crc32c(Level::detect(), bytes)).to_le_bytes();
        let length = (payload.len() as u64).to_le_bytes();
        [&length[..], &checksum(&length), payload, &checksum(payload)].concat()
    };
    let field = |key: u8, inner: &[u8]| {
        let mut bytes = vec![key];
        let mut length = inner.len();
        while length >= 0x80 {
            bytes.push(length as u8 | 0x80);
            length >>= 7;
        }
        bytes.push(length as u8);
        [&bytes, inner].concat()
    };
    let event = |value: &[u8]| {
        let summary = field(0x2a, &field(0x0a, &[b"\x0a\x09grad_norm", value].concat()));
        framed(&[b"\x09\0\0\0\0\x44\x55\xd9\x41\x10\x07", &summary[..]].concat())
    };
    let scalar = event(b"\x15\0\0\xc0\x7f");
    let whole = [&scalar[..], &framed(data), &event(&field(0x42, data)), &scalar].concat();
    for bytes in [data, &[&scalar[..], data, &scalar].concat(), &whole] {
        source(Format::TensorBoard, &[("events.out.tfevents.1.host", bytes), ("events.out.tfevents.2.host", &scalar)]);
    }
}

/// A field of a protobuf message that holds bytes.
fn field(number: u32, inner: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for mut value in [u64::from(number) << 3 | 2, inner.len() as u64] {
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
    }
    [&bytes, inner].concat()
}

/// A log with these records, each in one chunk with a right checksum, in one block.
fn transactions(header: &[u8], records: &[&[u8]]) -> Vec<u8> {
    let mut file = header.to_vec();
    for record in records {
        let room = leveldb::BLOCK as usize - file.len() % leveldb::BLOCK as usize;
        let payload = &record[..record.len().min(room.saturating_sub(CHUNK_HEADER))];
        let body = [&[1], payload].concat();
        file.extend(leveldb::checksum(&body).to_le_bytes());
        file.extend((payload.len() as u16).to_le_bytes());
        file.extend(body);
    }
    file
}

/// The bytes as a log, and as record, row, item, value, definition and run of one whose checksums are right.
pub fn wandb(data: &[u8]) {
    const HEADER: &[u8] = b":W&B\xe1\xbe\0";
    let item = |value: &[u8]| field(1, &[field(2, b"grad_norm"), value.to_vec()].concat());
    let row = |inner: &[u8]| field(2, inner);
    let sound = row(&item(&field(16, b"NaN")));
    let records = [
        data.to_vec(),
        row(data),
        row(&field(1, data)),
        row(&item(&field(16, data))),
        row(&[item(data), field(1, &[field(2, data), field(16, b"{\"a\": {\"_type\": \"x\"}}")].concat())].concat()),
        field(12, data),
        field(17, data),
        field(18, data),
        sound.clone(),
    ];
    let whole = transactions(HEADER, &records.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let between = [&transactions(HEADER, &[&sound])[..], data, &transactions(b"", &[&sound])].concat();
    for bytes in [data, &[HEADER, data].concat(), &whole, &between] {
        source(Format::Wandb, &[("run-a.wandb", bytes), ("run-b.wandb", &whole[..whole.len() / 2])]);
    }
}

/// A database, and the bytes written over pages of a sound one: its schema, and others that they choose.
#[cfg(feature = "sqlite")]
fn database(format: Format, sound: &[u8], data: &[u8]) {
    source(format, &[("runs.db", data)]);
    let chosen = data.first_chunk().map_or(0, |first| u32::from_le_bytes(*first) as usize % sound.len());
    for at in [0, 16, 100, chosen] {
        let mut changed = sound.to_vec();
        let end = sound.len().min(at + data.len());
        changed[at..end].copy_from_slice(&data[..end - at]);
        source(format, &[("runs.db", &changed)]);
    }
}

/// MLflow's store.
#[cfg(feature = "sqlite")]
pub fn mlflow_sql(data: &[u8]) {
    database(Format::MlflowSql, include_bytes!("../tests/data/mlflow_sql/wal/mlflow.db"), data);
}

/// trackio's database.
#[cfg(feature = "sqlite")]
pub fn trackio(data: &[u8]) {
    database(Format::Trackio, include_bytes!("../tests/data/trackio/killed/fixtures.db"), data);
}

/// As `wandb`: log, record, point, value, start and end of a run, and the JSON of the older generation.
pub fn swanlab(data: &[u8]) {
    const HEADER: &[u8] = b":SWL\xd6\xe1\x02";
    let point = |value: &[u8]| field(13, &[field(1, b"grad_norm"), value.to_vec()].concat());
    let text = |inner: &[u8]| [b"{\"model_type\": \"Scalar\", \"data\": ", inner, b"}"].concat();
    let records = [
        data.to_vec(),
        field(13, data),
        point(data),
        point(&field(5, data)),
        field(10, data),
        field(11, data),
        text(data),
        text(&[b"{\"key\": \"grad_norm\", \"metric\": ", data, b"}"].concat()),
    ];
    let whole = transactions(HEADER, &records.iter().map(Vec::as_slice).collect::<Vec<_>>());
    for bytes in [data, &[HEADER, data].concat(), &whole] {
        source(Format::Swanlab, &[("run-a.swanlab", bytes), ("backup.swanlab", &whole[..whole.len() / 2])]);
    }
}

/// A table of each kind of name, and TensorBoard's JSON of a chart.
pub fn csv(data: &[u8]) {
    source(Format::Csv, &[("metrics.csv", data)]);
    // Behind a header, more bytes are rows.
    source(Format::Csv, &[("run-a-tag-grad_norm.csv", &[b"Wall time,Step,Value\n", data].concat())]);
    source(Format::Csv, &[("metrics.tsv", &[b"step\tloss\tgrad_norm\tnote\n", data].concat())]);
    source(Format::Csv, &[("grad_norm.json", data)]);
}

/// The file of a metric, alone and behind sound lines beside another, and `meta.yaml`.
pub fn mlflow(data: &[u8]) {
    const LINE: &[u8] = b"1700000000000 0.5 1\n";
    source(Format::Mlflow, &[("grad_norm", data)]);
    let behind = [LINE, data].concat();
    source(Format::Mlflow, &[("meta.yaml", data), ("metrics/train/loss", &behind), ("metrics/grad_norm", LINE)]);
    source(Format::Mlflow, &[("tags/mlflow.runName", data), ("metrics/lr", data)]);
}

/// A table of DVCLive alone, and its rows behind a header beside another table.
pub fn dvclive(data: &[u8]) {
    source(Format::Dvclive, &[("plots/metrics/grad_norm.tsv", data)]);
    let behind = [b"timestamp\tstep\tloss\n", data].concat();
    source(
        Format::Dvclive,
        &[("plots/metrics/loss.tsv", &behind), ("plots/metrics/grad_norm.tsv", b"step\tx\n1\t2\n")],
    );
}

/// A table of DeepSpeed's monitor alone, and its rows behind a header beside another table.
pub fn deepspeed(data: &[u8]) {
    source(Format::Deepspeed, &[("Train_Samples_train_loss.csv", data)]);
    let behind = [b"step,train_loss\n32,0.5\n", data].concat();
    source(Format::Deepspeed, &[("Train_Samples_train_loss.csv", &behind), ("Train_Samples_lr.csv", data)]);
}

/// The messages of an experiment alone, and behind a sound one beside `experiment.json`.
pub fn comet(data: &[u8]) {
    const MESSAGE: &[u8] =
        br#"{"type": "metric_msg", "payload": {"metric": {"metricName": "loss", "metricValue": 1, "step": 1}}}"#;
    source(Format::Comet, &[("messages.json", data)]);
    source(Format::Comet, &[("messages.json", &[MESSAGE, b"\n", data].concat()), ("experiment.json", data)]);
}

/// The events of a task alone, and inside a list beside `task.json`.
pub fn clearml(data: &[u8]) {
    source(Format::Clearml, &[("metrics.jsonl", data)]);
    let listed =
        [br#"[{"type": "training_stats_scalar", "metric": "m", "variant": "loss", "value": 1, "iter": "#, data]
            .concat();
    source(Format::Clearml, &[("metrics.jsonl", &listed), ("task.json", data)]);
}

/// The operations of a container alone, and in two files beside `metadata.json`.
pub fn neptune(data: &[u8]) {
    source(Format::Neptune, &[("data-1.log", data)]);
    let listed = [br#"{"obj": {"type": "LogFloats", "path": ["loss"], "values": ["#, data].concat();
    source(Format::Neptune, &[("data-1.log", &listed), ("data-7.log", data), ("metadata.json", data)]);
}

/// A log alone, and the rest of a line in the later of two.
pub fn torchtune(data: &[u8]) {
    source(Format::Torchtune, &[("log_1.txt", data)]);
    source(Format::Torchtune, &[("log_1.txt", data), ("log_2.txt", &[b"Step 7 | loss:1.5 grad_norm:", data].concat())]);
}

/// The table, the events and the manifest of an rlprobe run, each beside sound others.
#[cfg(feature = "parquet")]
pub fn rlprobe(data: &[u8]) {
    const MANIFEST: &[u8] = br#"{"schema_version": 1, "run_id": "r", "created_at": "2026-01-01", "algorithm": "grpo"}"#;
    const EVENT: &[u8] = b"{\"timestamp\": 1.0, \"kind\": \"nan_detected\", \"step\": 3}\n";
    for (manifest, steps, events) in [(MANIFEST, data, EVENT), (MANIFEST, b"".as_slice(), data), (data, b"", EVENT)] {
        let part = if data.len().is_multiple_of(2) { "steps.parquet" } else { "steps/part-00001.parquet" };
        source(Format::Rlprobe, &[("manifest.json", manifest), (part, steps), ("events.jsonl", events)]);
    }
}

/// What an audit of the bytes must hold, and that it is the same through any window.
fn audited(data: &[u8], audit: impl Fn(&mut dyn Input, Option<u64>, &mut Vec<u8>) -> Report) -> Report {
    let size = Some(data.len() as u64);
    let whole = audit(&mut Streamed(data), size, &mut vec![0; data.len().max(1)]);
    assert_eq!(whole, audit(&mut Streamed(data), size, &mut vec![0; 13]));
    for tensor in &whole.tensors {
        let bad = tensor.nan + tensor.inf;
        assert!(bad <= tensor.values && tensor.bad_rows.is_none_or(|rows| rows <= bad));
        assert_eq!(tensor.first_row.is_some(), bad > 0);
    }
    // A stream does not know its end before it is there.
    let _ = audit(&mut Streamed(data), None, &mut vec![0; 64]);
    whole
}

/// The bytes as a file, as a header before data, as data behind a header, and as an index.
pub fn safetensors(data: &[u8]) {
    let limits = Limits { tensor_header: 1 << 20, ..Limits::default() };
    let file =
        |bytes: &[u8]| audited(bytes, |input, size, buffer| audit::safetensors::audit(input, size, &limits, buffer));
    let framed = |header: &[u8], body: &[u8]| file(&[&(header.len() as u64).to_le_bytes(), header, body].concat());
    file(data);
    framed(data, &[0xff; 64]);
    let report = framed(br#"{"a":{"dtype":"F8_E5M2","shape":[2,2],"data_offsets":[0,4]}}"#, &data[..data.len().min(4)]);
    assert_eq!(report.faults.is_empty(), data.len() >= 4);
    if let Ok(map) = audit::safetensors::index(data) {
        assert!(!map.is_empty());
    }
}

/// The bytes as a file, as a header, as the description of a type before its values, and as values.
pub fn npy(data: &[u8]) {
    let limits = Limits { array_header: 1 << 16, row_marks: 64, ..Limits::default() };
    let file = |bytes: &[u8]| {
        audited(bytes, |input, size, buffer| audit::npy::audit(input, size, "a", &limits, buffer));
    };
    let framed = |header: &[u8], body: &[u8]| {
        let length = (header.len() as u32).to_le_bytes();
        file(&[audit::npy::MAGIC, b"\x02\0", &length, header, body].concat());
    };
    file(data);
    framed(data, &[0xff; 64]);
    for order in ["True", "False"] {
        let rest = format!(", 'fortran_order': {order}, 'shape': (2, 3)}}");
        framed(&[b"{'descr': ", data, rest.as_bytes()].concat(), &[0xff; 200]);
        let known = format!("{{'descr': [('a', '>f4', (2,)), ('b', '<c8'), ('', '|V3')]{rest}");
        framed(known.as_bytes(), data);
    }
}

/// Reads all of a table: the columns one by one, then together.
#[cfg(feature = "tables")]
fn table(open: gradscan::read::table::files::Open, data: Vec<u8>) {
    let part = Part { path: "table".into(), name: "table".into(), size: data.len() as u64 };
    let mut memory = Memory::default();
    memory.files.insert(part.path.clone(), data.into());
    let limits = Limits { page: 1 << 16, ..Limits::default() };
    // A refusal is an answer like any other, here and below.
    let Ok(table) = open(gradscan::read::Files::ranges(&memory, &part).expect("the file is there"), &limits) else {
        return;
    };
    let all: Vec<usize> = (0..table.schema().fields.len().min(64)).collect();
    for unit in 0..table.units().min(64) {
        for columns in all.iter().map(std::slice::from_ref).chain([&all[..]]) {
            let mut rows = 0;
            let _ = table.read(unit, columns, 1000, &mut |batch| {
                assert!((1..=1000).contains(&batch.num_rows()), "a batch of {} rows", batch.num_rows());
                rows += batch.num_rows() as u64;
                rows < 100_000
            });
            assert!(rows <= table.rows(unit), "more rows than the unit has");
        }
    }
}

/// The bytes as a Parquet file, and as a footer behind a page.
#[cfg(feature = "tables")]
pub fn parquet(data: &[u8]) {
    let open = gradscan::read::table::parquet::open;
    table(open, data.to_vec());
    table(open, [b"PAR1", data, &(data.len() as u32).to_le_bytes()[..], b"PAR1"].concat());
    if reader(Format::Parquet).is_some() {
        source(Format::Parquet, &[("run_id=a/0.parquet", data), ("run_id=b/0.parquet", data)]);
    }
}

/// The bytes as an Arrow file or stream, as the messages of a file without a footer, and as a footer.
#[cfg(feature = "tables")]
pub fn arrow(data: &[u8]) {
    let open = gradscan::read::table::ipc::open;
    table(open, data.to_vec());
    let length = (data.len() as u32).to_le_bytes();
    table(open, [b"ARROW1\0\0\xff\xff\xff\xff", &length[..], data].concat());
    table(open, [b"ARROW1\0\0", data, &length[..], b"ARROW1"].concat());
    if reader(Format::Arrow).is_some() {
        source(Format::Arrow, &[("0.arrow", data), ("1.arrow", data)]);
    }
}

/// The JSON cursor, the skipper, the row scanner and the number parsers: they agree where one value ends.
pub fn json_tokenizer(data: &[u8]) {
    for at_end in [false, true] {
        let mut cursor = Cursor::with_end(data, at_end);
        let whole = cursor.skip_value().map(|()| cursor.position());
        // A value that was passed over in one piece ends there in two pieces as well.
        let (first, second) = data.split_at(data.len() / 2);
        let mut skipper = Skipper::new();
        let chopped = match skipper.feed(first, at_end && second.is_empty()) {
            Ok(Skip::More) => match skipper.feed(second, at_end) {
                Ok(Skip::Done(used)) => Some(first.len() + used),
                _ => None,
            },
            Ok(Skip::Done(used)) => Some(used),
            Err(_) => None,
        };
        // Of what is no number (`1.2.3`) the skipper takes more than the cursor.
        let is_closed = matches!(Cursor::new(data).kind(), Ok(Kind::Object | Kind::Array | Kind::String));
        if let (Ok(whole), Some(chopped), true) = (&whole, chopped, is_closed) {
            assert_eq!(*whole, chopped, "the cursor and the skipper disagree");
        }
        // Errors end the walk; what was met before them is what is looked at.
        let _ = walk(&mut Cursor::with_end(data, at_end));
        for rows in [Rows::Free, Rows::Lines] {
            let (mut scanner, mut cells, mut at) = (RowScanner::new(rows), Cells::default(), 0);
            while at < data.len() {
                match scanner.object(&data[at..], at_end, &mut cells) {
                    Ok(used) => at += used.max(1),
                    Err(Stop::Invalid { at: broken, .. }) => at += broken + 1,
                    Err(Stop::Incomplete) => break,
                }
            }
        }
    }
    for line in Lines::new(data, true, Ending::CarriageReturn) {
        parse_text_value(line.bytes);
        if let (Some(ours), Ok(text)) = (parse_f64(line.bytes), std::str::from_utf8(line.bytes))
            && let Ok(theirs) = text.parse::<f64>()
        {
            assert_eq!(ours.to_bits(), theirs.to_bits(), "{text:?}");
        }
    }
}

/// Walks objects and arrays one level deep; the cursor never recurses.
fn walk(cursor: &mut Cursor<'_>) -> Result<(), Stop> {
    let mut text = String::new();
    match cursor.kind()? {
        Kind::Object => {
            cursor.enter_object()?;
            while let Some(key) = cursor.next_key()? {
                key.decode(&mut text);
                value(cursor, &mut text)?;
            }
        }
        Kind::Array => {
            cursor.enter_array()?;
            while cursor.next_item()? {
                value(cursor, &mut text)?;
            }
        }
        _ => value(cursor, &mut text)?,
    }
    Ok(())
}

fn value(cursor: &mut Cursor<'_>, text: &mut String) -> Result<(), Stop> {
    match cursor.kind()? {
        Kind::String => cursor.string()?.decode(text),
        Kind::Number => {
            let number = cursor.number()?;
            assert!(parse_f64(number).is_some(), "a number that is none: {number:?}");
        }
        Kind::Object | Kind::Array => cursor.skip_value()?,
        _ => {
            cursor.bare()?;
        }
    }
    Ok(())
}

#[derive(Default)]
struct Cells {
    columns: u32,
    text: String,
}

impl Sink for Cells {
    fn column(&mut self, path: &Path<'_>) -> Want {
        assert_eq!(path.parts.join("/"), path.joined);
        self.columns += 1;
        match self.columns % 4 {
            0 => Want::Skip,
            1 => Want::Number(self.columns),
            2 => Want::Text(self.columns),
            _ => Want::Note(self.columns),
        }
    }

    fn number(&mut self, column: u32, _: f64) {
        assert!(column <= self.columns);
    }

    fn text(&mut self, _: u32, text: Text<'_>) {
        self.text.clear();
        text.decode(&mut self.text);
    }

    fn null(&mut self, column: u32) {
        assert!(column <= self.columns);
    }

    fn filled(&mut self, column: u32, _: bool) {
        assert!(column <= self.columns);
    }
}

/// The bytes as a Parquet file, as a footer, and as a page in front of its values.
pub fn parquet_pages(data: &[u8]) {
    if let Some((body, tail)) = data.split_last_chunk::<TAIL>()
        && let Ok(length) = footer_length(tail)
        && let Some(start) = (body.len() as u64).checked_sub(length)
    {
        // Damage is an answer like any other.
        let _ = Footer::parse(&body[start as usize..], start);
    }
    let _ = Footer::parse(data, data.len() as u64);
    let Ok((header, used)) = PageHeader::parse(data) else { return };
    let page = &data[used..];
    let physicals = [
        Physical::Boolean,
        Physical::Int32 { unsigned: false },
        Physical::Int64 { unsigned: true },
        Physical::Float,
        Physical::Double,
    ];
    for (physical, optional) in physicals.iter().flat_map(|physical| [(*physical, false), (*physical, true)]) {
        let mut decoder = Decoder::new(physical, optional);
        if decoder.dictionary(page, 3).is_err() || decoder.open(page, header.kind).is_err() {
            continue;
        }
        let mut batch = Batch::default();
        // A page of nothing but nulls may claim any number of them; its reader takes them in batches.
        for _ in 0..16 {
            if decoder.left() == 0 || decoder.read(page, 100, &mut batch).is_err() {
                break;
            }
        }
        assert!(batch.values.len() <= 1600);
        assert!(batch.present.is_empty() || batch.present.len() == batch.values.len());
    }
}

/// The bytes as records of tar and zip, as they are and where their magic or checksum lets them pass.
pub fn archive_records(data: &[u8]) {
    let mut pax = tar::Pax::default();
    pax.read(data);
    if let Some(block) = data.first_chunk::<{ tar::BLOCK }>() {
        tar::parse(block);
        let mut summed = *block;
        summed[148..156].fill(b' ');
        let sum: u64 = summed.iter().map(|byte| u64::from(*byte)).sum();
        summed[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        if let Some(header) = tar::parse(&summed) {
            assert!(header.name.len() <= 256 && header.link.len() <= 100, "a name longer than its fields");
        }
    }
    for magic in [b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06"] {
        for record in [data.to_vec(), [&magic[..], data].concat()] {
            let found = zip::end(&record);
            assert!(found.is_none_or(|end| end.position + 22 <= record.len()), "an end record beyond the end");
            zip::end64(&record);
            for (member, length) in zip::entry(&record).into_iter().chain(zip::local(&record)) {
                assert!(length <= record.len() && member.name.len() < length, "a record longer than its bytes");
            }
        }
    }
}
