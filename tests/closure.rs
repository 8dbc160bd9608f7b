//! The closure guard: a format, check, note or dependency exists everywhere or nowhere. Each test says how much it
//! compared and fails on nothing. `GRADSCAN_BLESS=1` rewrites the table of `docs/formats.md`.
#![allow(clippy::print_stdout, reason = "a guard says how much it looked at")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use gradscan::detect::notes;
use gradscan::model::Limits;
use gradscan::read::{READERS, Tracker};

type Names = BTreeSet<String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// File names in a folder that end in `suffix`, without it.
fn stems(folder: &str, suffix: &str) -> Names {
    let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    names.filter_map(|name| name.strip_suffix(suffix).map(str::to_owned)).collect()
}

/// What stands between `open` and the next `close` behind it.
fn between<'a>(text: &'a str, open: &str, close: &str) -> &'a str {
    let (_, rest) = text.split_once(open).unwrap_or_else(|| panic!("no {open:?}"));
    rest.split_once(close).unwrap_or_else(|| panic!("no {close:?} behind {open:?}")).0
}

/// All texts in double quotes.
fn quoted(text: &str) -> Names {
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The words behind each `mark`.
fn words_after(text: &str, mark: &str) -> Names {
    let word = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '-')).collect();
    text.split(mark).skip(1).map(word).filter(|word: &String| !word.is_empty()).collect()
}

fn names<'a>(all: impl IntoIterator<Item = &'a str>) -> Names {
    all.into_iter().map(str::to_owned).collect()
}

fn same(what: &str, got: &Names, want: &Names) {
    let lost: Vec<_> = want.difference(got).collect();
    let extra: Vec<_> = got.difference(want).collect();
    assert!(lost.is_empty() && extra.is_empty(), "{what}: missing {lost:?}, unknown {extra:?}");
}

/// The formats by the enum's own names, arrays in memory left out: they were never bytes.
fn formats() -> Names {
    let source = text("src/model/source.rs");
    let variants: Names = between(&source, "pub enum Format {", "\n}")
        .lines()
        .filter_map(|line| line.trim().strip_suffix(','))
        .map(str::to_owned)
        .collect();
    let arms = between(&source, "fn as_str(self) -> &'static str {", "\n    }");
    let named: Vec<(&str, &str)> = arms
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => "))
        .map(|(variant, name)| (variant, name.trim_matches(|c| matches!(c, '"' | ','))))
        .collect();
    same("names of formats", &names(named.iter().map(|(variant, _)| *variant)), &variants);
    let formats = names(named.iter().filter(|(variant, _)| *variant != "Memory").map(|(_, name)| *name));
    assert!(formats.len() >= 3, "only {formats:?}");
    formats
}

#[test]
fn formats_are_readers_are_documents_are_data_are_fuzz_functions() {
    let formats = formats();
    let readers = names(READERS.iter().map(|reader| reader.format().as_str()));
    if cfg!(feature = "parquet") {
        same("READERS", &readers, &formats);
    }
    assert_eq!(readers.len(), READERS.len(), "two readers of one format");
    same("src/read/*.md", &stems("src/read", ".md"), &formats);
    let code = stems("src/read", ".rs");
    let functions = words_after(&text("fuzz/functions.rs"), "\npub fn ");
    let targets = stems("fuzz/fuzz_targets", ".rs");
    let index = text("docs/formats.md");
    let golden = stems("tests/golden", "");
    for format in &formats {
        assert!(code.contains(format), "no src/read/{format}.rs");
        let module = text(&format!("src/read/{format}.rs"));
        assert!(module.contains(&format!("include_str!(\"{format}.md\")")), "{format}.md is not its module's document");
        assert!(text(&format!("src/read/{format}.md")).len() > 400, "src/read/{format}.md says nothing");
        assert!(functions.contains(format), "no function {format} in fuzz/functions.rs");
        assert!(index.contains(&format!("(../src/read/{format}.md)")), "docs/formats.md does not link {format}");
        assert!(golden.contains(format), "no folder tests/golden/{format}");
        let fixtures = fs::read_dir(root().join("tests/data").join(format)).map_or(0, Iterator::count);
        assert!(fixtures > 0, "no fixture in tests/data/{format}");
        let about = text("tests/data/README.md");
        assert!(about.contains(&format!("`{format}/")), "tests/data/README.md is silent on {format}");
    }
    // Fuzz functions are those of the formats and of framings that several readers share; each is a target of cargo-fuzz.
    let functions_source = text("fuzz/functions.rs");
    let listed = words_after(between(&functions_source, "pub const ALL: &[(&str, Function)] = &[", "\n];"), "(\"");
    same("the list of fuzz functions", &listed, &functions);
    same("fuzz/fuzz_targets", &targets, &functions);
    let manifest = text("fuzz/Cargo.toml");
    for target in &targets {
        assert!(manifest.contains(&format!("name = \"{target}\"")), "fuzz/Cargo.toml lacks {target}");
        let code = text(&format!("fuzz/fuzz_targets/{target}.rs"));
        assert!(code.contains(&format!("functions::{target}(data)")), "the target {target} runs something else");
    }
    println!("closure: {} formats, {} fuzz functions", formats.len(), functions.len());
}

#[test]
fn the_table_of_formats_is_what_the_readers_say() {
    const OPEN: &str = "<!-- formats: by tests/closure.rs -->\n";
    if cfg!(not(feature = "parquet")) {
        return;
    }
    let mut table = String::from("\n| format | files | NaN and Inf | missing | not read |\n|---|---|---|---|---|\n");
    for reader in READERS {
        let (name, about) = (reader.format().as_str(), reader.about());
        let cells = [about.files, about.nonfinite, about.missing, about.not_read].map(|cell| cell.replace('|', "\\|"));
        table.push_str(&format!("| [`{name}`](../src/read/{name}.md) | {} |\n", cells.join(" | ")));
    }
    table.push('\n');
    let mut trackers = String::from(
        "\n| tracker | version | format | files | NaN and Inf | missing | not read |\n|---|---|---|---|---|---|---|\n",
    );
    let mut count = 0;
    for reader in READERS {
        let format = reader.format().as_str();
        for tracker in reader.trackers() {
            let Tracker { name, version, files, nonfinite, missing, not_read } = *tracker;
            let cells =
                [name, version, format, files, nonfinite, missing, not_read].map(|cell| cell.replace('|', "\\|"));
            assert!(cells.iter().all(|cell| !cell.is_empty()), "an empty cell: {cells:?}");
            trackers.push_str(&format!("| {} |\n", cells.join(" | ")));
            count += 1;
        }
    }
    trackers.push('\n');
    assert!(count >= 15, "only {count} trackers");
    written_between(OPEN, &table);
    written_between("<!-- trackers: by tests/closure.rs -->\n", &trackers);
    println!("closure: {count} trackers");
}

/// A table of `docs/formats.md` is as it should be; `GRADSCAN_BLESS=1` makes it so.
fn written_between(open: &str, table: &str) {
    let document = text("docs/formats.md");
    let found = between(&document, open, "<!-- end -->");
    if std::env::var_os("GRADSCAN_BLESS").is_some() && found != table {
        let document = document.replacen(&format!("{open}{found}"), &format!("{open}{table}"), 1);
        fs::write(root().join("docs/formats.md"), document).expect("docs/formats.md can be written");
        return;
    }
    assert_eq!(found, table, "docs/formats.md: GRADSCAN_BLESS=1 rewrites its tables");
}

#[test]
fn checks_and_notes_are_explained() {
    let finding = text("src/model/finding.rs");
    let checks = quoted(between(between(&finding, "impl Check {", "\n}"), "as_str(self)", "\n    }"));
    assert_eq!(checks, names(["nonfinite", "spikes"]));
    same("src/detect/*.md", &stems("src/detect", ".md"), &checks);
    let wording = text("python/gradscan/wording.py");
    let index = text("docs/checks.md");
    for check in &checks {
        let code = text(&format!("src/detect/{check}.rs"));
        assert!(code.contains(&format!("include_str!(\"{check}.md\")")), "{check}.md is not its module's document");
        assert!(index.contains(&format!("(../src/detect/{check}.md)")), "docs/checks.md does not link {check}");
    }
    let all = names(notes::ALL);
    assert_eq!(all.len(), notes::ALL.len(), "a note is listed twice");
    let topics = |kind: &str| -> Names {
        let heads = between(&wording, "TOPICS: dict[str, Topic] = {", "\n}").split("\n    \"").skip(1);
        let of_kind = heads.filter(|topic| topic.contains(&format!(": Topic(\n        \"{kind}\",")));
        of_kind.filter_map(|topic| topic.split('"').next()).map(str::to_owned).collect()
    };
    same("checks in wording.py", &topics("check"), &checks);
    same("notes in wording.py", &topics("note"), &all);
    let traces = quoted_keys(between(&wording, "_TRACES = {", "\n}"));
    same("suspicions in wording.py", &topics("suspicion"), &traces);
    for name in all.iter().chain(&traces) {
        assert!(index.contains(&format!("| `{name}` |")), "docs/checks.md has no row for {name}");
    }
    println!("closure: {} checks, {} notes, {} suspicions", checks.len(), all.len(), traces.len());
}

/// Keys of a Python dictionary, one a line.
fn quoted_keys(dictionary: &str) -> Names {
    let lines = dictionary.lines().filter(|line| line.contains("\": "));
    lines.filter_map(|line| line.trim().strip_prefix('"')?.split('"').next()).map(str::to_owned).collect()
}

#[test]
fn limits_are_documented_with_their_defaults() {
    let source = text("src/model/limits.rs");
    let body = between(&source, "pub struct Limits {", "\n}");
    let fields: Vec<&str> = body.split("pub ").skip(1).filter_map(|field| field.split(':').next()).collect();
    let shown = format!("{:?}", Limits::default());
    assert!(fields.len() >= 10, "only {fields:?}");
    for field in &fields {
        assert!(shown.contains(&format!("{field}: ")), "no limit {field}");
        let (before, _) = body.split_once(&format!("pub {field}:")).expect("a field");
        let comment = before.rsplit("pub ").next().unwrap_or(before);
        assert!(comment.contains(|c: char| c.is_ascii_digit()), "the comment of {field} does not say its default");
    }
}

#[test]
fn dependencies_have_their_reasons() {
    let document = text("docs/dependencies.md");
    let cargo = text("Cargo.toml");
    let mut used = Names::new();
    for table in ["[dependencies]\n", "[dev-dependencies]\n"] {
        let lines = between(&cargo, table, "\n[").lines().filter_map(|line| line.split_once(" = "));
        used.extend(lines.map(|(name, _)| name.trim_matches('"').to_owned()));
    }
    let fuzz = text("fuzz/Cargo.toml");
    let rest = fuzz.split_once("[dependencies]\n").expect("dependencies").1;
    let lines = rest.split("\n\n").next().unwrap_or(rest).lines().filter_map(|line| line.split_once(" = "));
    used.extend(lines.map(|(name, _)| name.to_owned()).filter(|name| name != "gradscan"));
    let rust = used.len();
    let python = text("pyproject.toml");
    let lists = [
        between(&python, "[build-system]", "]\n"),
        between(&python, "\ndependencies = [", "]\n"),
        between(&python, "[dependency-groups]", "\n[tool"),
    ];
    for list in lists {
        let package = |requirement: String| {
            let name = requirement.split(['=', '<', '>', '~', '!', '[', ' ']).next().unwrap_or_default();
            name.to_owned()
        };
        let requirements =
            list.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n");
        used.extend(quoted(&requirements).into_iter().map(package));
    }
    assert!(rust >= 15 && used.len() >= rust + 10, "{rust} crates, {} in all", used.len());
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let explained: Names = rows.filter(|(_, why)| why.len() > 12).map(|(name, _)| name.to_owned()).collect();
    same("docs/dependencies.md", &explained, &used);
    println!("closure: {} dependencies", used.len());
}
