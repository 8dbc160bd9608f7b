//! What a log says of the run itself.

use chrono::DateTime;

use crate::read::Builder;
use crate::wire::protobuf::{Fields, Malformed, Value};

/// The first version that writes NaN of numpy's narrow floats as `NaN`; older ones write null, or nothing.
const KEEPS_NAN: [u32; 3] = [0, 28, 1];

/// Texts of a `RunRecord`: number of the field, name in the metadata.
const TEXTS: [(u32, &str); 7] =
    [(1, "run_id"), (8, "name"), (3, "project"), (2, "entity"), (6, "group"), (7, "job_type"), (12, "sweep_id")];

/// The run, from its `RunRecord` and `RunExitRecord`.
#[derive(Debug, Default)]
pub struct Run {
    texts: [String; TEXTS.len()],
    started: Option<i64>,
    resumed: bool,
    version: Option<String>,
    /// Whether that version writes every NaN as one.
    keeps_nan: bool,
    exit_code: Option<i32>,
    has_record: bool,
    parts: u32,
}

impl Run {
    /// Another log of the run: it may end otherwise.
    pub fn begin_part(&mut self) {
        self.exit_code = None;
        self.version = None;
        self.keeps_nan = false;
        self.parts += 1;
    }

    /// Takes a `RunRecord`; later ones say it anew.
    pub fn begin(&mut self, message: &[u8]) -> Result<(), Malformed> {
        self.has_record = true;
        for field in Fields::new(message) {
            match field? {
                (17, Value::Bytes(time)) if self.started.is_none() => self.started = timestamp(time)?,
                (18, Value::Varint(resumed)) => self.resumed |= resumed != 0,
                (19, Value::Bytes(telemetry)) => {
                    for field in Fields::new(telemetry) {
                        if let (5, Value::Bytes(version)) = field? {
                            let version = String::from_utf8_lossy(version).into_owned();
                            self.keeps_nan = keeps_nan(&version);
                            self.version = Some(version);
                        }
                    }
                }
                (number, Value::Bytes(text)) => {
                    if let Some(index) = TEXTS.iter().position(|(known, _)| *known == number)
                        && !text.is_empty()
                    {
                        self.texts[index] = String::from_utf8_lossy(text).into_owned();
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The project that it is of; empty where none is named.
    pub fn project(&self) -> String {
        let named = TEXTS.iter().zip(&self.texts).find(|((_, name), _)| *name == "project");
        named.map(|(_, text)| text.clone()).unwrap_or_default()
    }

    /// Takes a `RunExitRecord`; without a code it is 0.
    pub fn exit(&mut self, message: &[u8]) -> Result<(), Malformed> {
        let mut code = 0;
        for field in Fields::new(message) {
            if let (1, Value::Varint(value)) = field? {
                code = value as i32;
            }
        }
        self.exit_code = Some(code);
        Ok(())
    }

    /// Whether a null may have been a NaN: the version is old, or unknown.
    #[inline]
    pub fn writes_null_for_nan(&self) -> bool {
        !self.keeps_nan
    }

    /// Gives it all to the recording.
    pub fn describe(&self, into: &mut Builder<'_>) {
        for ((_, name), text) in TEXTS.iter().zip(&self.texts) {
            if !text.is_empty() {
                into.describe(name, text);
            }
        }
        into.name = Some(&self.texts[1]).filter(|name| !name.is_empty()).cloned();
        if let Some(started) = self.started.and_then(DateTime::from_timestamp_millis) {
            into.describe("started", &started.format("%Y-%m-%dT%H:%M:%S%.3fZ").to_string());
        }
        if !self.has_record && self.exit_code.is_none() {
            return;
        }
        if self.resumed || self.parts > 1 {
            into.describe("resumed", "true");
        }
        match self.exit_code {
            Some(code) => {
                into.describe("exit_code", &code.to_string());
                into.describe("state", if code == 0 { "finished" } else { "failed" });
            }
            None => into.describe("state", "running or killed"),
        }
        if let Some(version) = &self.version {
            into.describe("wandb_version", version);
        }
    }
}

fn keeps_nan(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        part[..digits].parse().unwrap_or(0)
    });
    let version: [u32; 3] = std::array::from_fn(|_| parts.next().unwrap_or(0));
    version >= KEEPS_NAN
}

/// Milliseconds since 1970 of a protobuf `Timestamp`.
fn timestamp(message: &[u8]) -> Result<Option<i64>, Malformed> {
    let (mut seconds, mut nanos) = (0i64, 0i64);
    for field in Fields::new(message) {
        match field? {
            (1, Value::Varint(value)) => seconds = value as i64,
            (2, Value::Varint(value)) => nanos = value as i64,
            _ => {}
        }
    }
    Ok(seconds.checked_mul(1000).and_then(|seconds| seconds.checked_add(nanos / 1_000_000)))
}
