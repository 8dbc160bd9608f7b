//! `meta.yaml` of a run: a flat mapping of scalars. No YAML but that is read: no nesting, no tags, no anchors.

use chrono::{DateTime, SecondsFormat};

/// Keys read; more are no file of MLflow's.
const KEYS: usize = 256;

/// The mapping in order. Of a key that stands twice the last one counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Meta {
    pairs: Vec<(String, String)>,
}

impl Meta {
    /// What can be read of it; nulls and what is no scalar are left out.
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut raw: Vec<(String, String)> = Vec::new();
        let mut open = false;
        for line in text.trim_start_matches('\u{feff}').lines() {
            if line.starts_with([' ', '\t']) {
                // A long scalar goes on in the next line.
                if let Some((_, value)) = raw.last_mut().filter(|_| open) {
                    if !value.is_empty() {
                        value.push(' ');
                    }
                    value.push_str(line.trim());
                }
                continue;
            }
            open = false;
            let Some((key, value)) = line.split_once(':') else { continue };
            let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if is_key && (value.is_empty() || value.starts_with(' ')) && raw.len() < KEYS {
                raw.push((key.to_owned(), value.trim().to_owned()));
                open = true;
            }
        }
        Self { pairs: raw.into_iter().filter_map(|(key, value)| Some((key, scalar(&value)?))).collect() }
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Whether it is that of a run, not of an experiment.
    pub fn is_run(&self) -> bool {
        self.id().is_some() && self.get("artifact_uri").is_some()
    }

    /// Whether the run was deleted.
    pub fn is_deleted(&self) -> bool {
        self.get("lifecycle_stage") == Some("deleted")
    }

    fn id(&self) -> Option<&str> {
        self.get("run_id").or_else(|| self.get("run_uuid"))
    }

    /// The name of the run.
    pub fn name(&self) -> Option<String> {
        self.get("run_name").or_else(|| self.get("name")).map(str::to_owned)
    }

    /// What it says of the run, by the names under which users find it.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let time = |key| {
            let time = self.get(key)?.parse().ok().and_then(DateTime::from_timestamp_millis)?;
            Some(time.to_rfc3339_opts(SecondsFormat::Millis, true))
        };
        let status = self.get("status").map(|status| match status {
            "1" => "RUNNING",
            "2" => "SCHEDULED",
            "3" => "FINISHED",
            "4" => "FAILED",
            "5" => "KILLED",
            other => other,
        });
        let facts = [
            ("run_id", self.id().map(str::to_owned)),
            ("experiment_id", self.get("experiment_id").map(str::to_owned)),
            ("status", status.map(str::to_owned)),
            ("start_time", time("start_time")),
            ("end_time", time("end_time")),
        ];
        facts.into_iter().filter_map(|(key, text)| Some((key, text?))).collect()
    }
}

/// A plain or quoted scalar; `None` for null and for what is none.
fn scalar(text: &str) -> Option<String> {
    if let Some(inner) = text.strip_prefix('\'') {
        return Some(inner.strip_suffix('\'')?.replace("''", "'"));
    }
    if let Some(inner) = text.strip_prefix('"') {
        return Some(unescaped(inner.strip_suffix('"')?));
    }
    let is_other = text.starts_with(['[', '{', '&', '*', '!', '|', '>', '%', '@', '`', '#']) || text.starts_with("- ");
    let plain = text.split(" #").next().unwrap_or(text).trim_end();
    let is_null = ["", "~", "null", "Null", "NULL"].contains(&plain);
    (!is_other && !is_null).then(|| plain.to_owned())
}

/// A text in double quotes, its escapes undone; one that is not known stays as it is.
fn unescaped(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(kind) = rest.chars().next() else { break };
        let digits = match kind {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        let code = rest.get(1..1 + digits).and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32);
        match (kind, code) {
            ('x' | 'u' | 'U', Some(letter)) => {
                plain.push(letter);
                rest = &rest[1 + digits..];
                continue;
            }
            ('n', _) => plain.push('\n'),
            ('t', _) => plain.push('\t'),
            // A folded line: the blank that stands for its end is no text.
            (' ', _) => {}
            ('"' | '\\' | '/', _) => plain.push(kind),
            _ => plain.extend(['\\', kind]),
        }
        rest = &rest[kind.len_utf8()..];
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_as_mlflow_dumps_them() {
        let meta = Meta::parse(
            b"artifact_uri: file:///runs/a b/artifacts\r\nend_time: null\nexperiment_id: '0'\nname: old\n\
              run_name: \"gr\\xF6\\xDFe \\\"1\\\"\"\nrun_uuid: 0f\nstatus: 5\nstart_time: 1700000000123\ntags: []\n\
              user_id: it's\nsource_name: a\n  b c\n",
        );
        assert!(meta.is_run() && !meta.is_deleted());
        assert_eq!(meta.name().as_deref(), Some("größe \"1\""));
        assert_eq!(meta.get("source_name"), Some("a b c"));
        assert_eq!((meta.get("tags"), meta.get("end_time"), meta.get("user_id")), (None, None, Some("it's")));
        let facts = meta.facts();
        let want = [
            ("run_id", "0f"),
            ("experiment_id", "0"),
            ("status", "KILLED"),
            ("start_time", "2023-11-14T22:13:20.123Z"),
        ];
        assert_eq!(facts.iter().map(|(key, text)| (*key, text.as_str())).collect::<Vec<_>>(), want);
    }

    #[test]
    fn an_experiment_is_no_run() {
        let meta = Meta::parse(b"artifact_location: /a\nexperiment_id: '0'\nlifecycle_stage: deleted\nname: Default\n");
        assert!(!meta.is_run() && meta.is_deleted());
    }

    #[test]
    fn what_is_no_scalar_is_left_out() {
        let meta =
            Meta::parse(b"a: !!python/object:os.system\nb: &x 1\nc: *x\nd:\n  - 1\ne: 'open\n- f: 1\ng\n? h: 2\n");
        assert_eq!(meta, Meta::default());
        assert_eq!(unescaped("a\\"), "a");
        assert_eq!(unescaped("\\xZZ\\u12"), "\\xZZ\\u12");
    }
}
