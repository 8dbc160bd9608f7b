//! The layer guard (`docs/architecture.md`): which module may name which, and which words a layer may not use. It reads
//! the source text, because the compiler lets every module of a crate name every other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// One module of the crate. Rows stand in order: a module may name only modules of rows above its own.
struct Row {
    module: &'static str,
    layer: u8,
    may_name: &'static [&'static str],
}

impl Row {
    /// Whether it sees slices and traits alone: everything below L2, and the audit, which the layer above hands its bytes.
    fn is_pure(&self) -> bool {
        self.layer < 2 || self.module == "audit"
    }
}

const TABLE: &[Row] = &[
    Row { module: "model", layer: 0, may_name: &[] },
    Row { module: "kernel", layer: 0, may_name: &[] },
    Row { module: "wire", layer: 0, may_name: &[] },
    Row { module: "read", layer: 1, may_name: &["model", "kernel", "wire"] },
    Row { module: "detect", layer: 1, may_name: &["model", "kernel"] },
    Row { module: "restore", layer: 1, may_name: &["model"] },
    Row { module: "audit", layer: 2, may_name: &["model", "kernel", "wire", "read"] },
    Row { module: "open", layer: 2, may_name: &["model", "wire", "read"] },
    Row { module: "discover", layer: 2, may_name: &["model", "open", "read"] },
    Row { module: "audit_files", layer: 3, may_name: &["model", "read", "audit", "open"] },
    Row { module: "verify", layer: 3, may_name: &["model", "restore", "open", "audit_files"] },
    Row {
        module: "scan",
        layer: 3,
        may_name: &[
            "model",
            "kernel",
            "wire",
            "read",
            "detect",
            "restore",
            "open",
            "discover",
            "audit_files",
            "verify",
        ],
    },
    Row {
        module: "python",
        layer: 4,
        may_name: &[
            "model",
            "kernel",
            "wire",
            "read",
            "detect",
            "restore",
            "audit",
            "open",
            "discover",
            "audit_files",
            "scan",
        ],
    },
];

/// Paths that a pure layer (below L2) may not name.
const IMPURE: &[&[&str]] =
    &[&["std", "fs"], &["std", "thread"], &["std", "process"], &["std", "env"], &["std", "net"], &["walkdir"]];
/// Macros that a pure layer may not call.
const PRINTING: &[&str] = &["println", "eprintln", "print", "eprint", "dbg"];
/// Words of the interpreter lock, and the one file that may use them.
const LOCK_WORDS: &[&str] = &["attach", "detach"];
const LOCK_FILE: &str = "python/door.rs";
/// The one module that may hold `unsafe`.
const UNSAFE_MODULE: &str = "kernel";

/// A token of the source: a word, `::`, or one other character. Comments are gone, literals are `""`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    text: String,
    line: usize,
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let (mut at, mut line) = (0, 1);
    let mut found: Vec<Token> = Vec::new();
    let peek = |at: usize| chars.get(at).copied().unwrap_or('\0');
    while at < chars.len() {
        let (begin, begin_line) = (at, line);
        match chars[at] {
            '\n' => {
                line += 1;
                at += 1;
            }
            c if c.is_whitespace() => at += 1,
            '/' if peek(at + 1) == '/' => at += chars[at..].iter().take_while(|c| **c != '\n').count(),
            '/' if peek(at + 1) == '*' => {
                let mut depth = 0;
                loop {
                    match (peek(at), peek(at + 1)) {
                        ('/', '*') => (depth, at) = (depth + 1, at + 2),
                        ('*', '/') => (depth, at) = (depth - 1, at + 2),
                        _ => at += 1,
                    }
                    if depth == 0 || at >= chars.len() {
                        break;
                    }
                }
                line += chars[begin..at.min(chars.len())].iter().filter(|c| **c == '\n').count();
            }
            '"' => {
                at += 1;
                while at < chars.len() && chars[at] != '"' {
                    at += if chars[at] == '\\' { 2 } else { 1 };
                }
                at += 1;
                line += chars[begin..at.min(chars.len())].iter().filter(|c| **c == '\n').count();
                found.push(Token { text: "\"\"".into(), line: begin_line });
            }
            '\'' => {
                // A character literal, or a lifetime.
                if peek(at + 1) == '\\' {
                    at += 3;
                    at += chars[at.min(chars.len())..].iter().take_while(|c| **c != '\'').count() + 1;
                    found.push(Token { text: "\"\"".into(), line });
                } else if peek(at + 2) == '\'' {
                    at += 3;
                    found.push(Token { text: "\"\"".into(), line });
                } else {
                    at += 1;
                    at += chars[at..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
                }
            }
            c if c.is_alphanumeric() || c == '_' => {
                at += chars[at..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
                let word: String = chars[begin..at].iter().collect();
                let hashes = chars[at..].iter().take_while(|c| **c == '#').count();
                if matches!(word.as_str(), "r" | "br" | "cr") && peek(at + hashes) == '"' {
                    at += hashes + 1;
                    let closes = |at: usize| {
                        peek(at) == '"' && chars[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
                    };
                    while at < chars.len() && !closes(at) {
                        at += 1;
                    }
                    at += 1 + hashes;
                    line += chars[begin..at.min(chars.len())].iter().filter(|c| **c == '\n').count();
                    found.push(Token { text: "\"\"".into(), line: begin_line });
                } else {
                    found.push(Token { text: word, line });
                }
            }
            ':' if peek(at + 1) == ':' => {
                at += 2;
                found.push(Token { text: "::".into(), line });
            }
            c => {
                at += 1;
                found.push(Token { text: c.into(), line });
            }
        }
    }
    found
}

/// Code that the library consists of, and the names of modules in other files that exist for tests alone.
fn without_tests(tokens: &[Token]) -> (Vec<Token>, Vec<String>) {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let (mut kept, mut outside) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        let is_test = text(at) == "#" && text(at + 1) == "[" && text(at + 2) == "cfg" && {
            let condition: Vec<&str> = (at + 3..at + 6).map(text).collect();
            condition == ["(", "test", ")"] || (condition == ["(", "all", "("] && text(at + 6) == "test")
        };
        if !is_test {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        while text(at) == "#" {
            at = after_group(tokens, at + 1);
        }
        let begin = at;
        while text(at) == "pub" {
            at = if text(at + 1) == "(" { after_group(tokens, at + 1) } else { at + 1 };
        }
        if text(at) == "mod" && text(at + 2) == ";" {
            outside.push(text(at + 1).to_owned());
        }
        let items = [
            "mod",
            "fn",
            "use",
            "impl",
            "struct",
            "enum",
            "const",
            "static",
            "type",
            "trait",
            "macro_rules",
            "unsafe",
            "extern",
            "async",
            "union",
        ];
        let is_item = begin != at || items.contains(&text(at));
        loop {
            match text(at) {
                "" | ")" | "]" | "}" => break,
                ";" => {
                    at += 1;
                    break;
                }
                "," if !is_item => {
                    at += 1;
                    break;
                }
                "{" => {
                    at = after_group(tokens, at);
                    break;
                }
                "(" | "[" => at = after_group(tokens, at),
                _ => at += 1,
            }
        }
    }
    (kept, outside)
}

/// The index after the group that opens at `at`.
fn after_group(tokens: &[Token], mut at: usize) -> usize {
    let mut depth = 0usize;
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}

/// A path as written, groups spread out, and the inline modules that it stands in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    path: Vec<String>,
    inside: Vec<String>,
    line: usize,
}

fn paths(tokens: &[Token]) -> Vec<Named> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let mut found = Vec::new();
    let mut depth = 0usize;
    let mut modules: Vec<(String, usize)> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match text(at) {
            "mod" if is_word(text(at + 1)) && text(at + 2) == "{" => {
                modules.push((text(at + 1).to_owned(), depth));
                depth += 1;
                at += 3;
                continue;
            }
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                if modules.last().is_some_and(|(_, opened)| *opened == depth) {
                    modules.pop();
                }
            }
            word if is_word(word) => {
                let continues = at > 0
                    && text(at - 1) == "::"
                    && at > 1
                    && (is_word(text(at - 2)) && !matches!(text(at - 2), "use" | "return" | "in")
                        || text(at - 2) == ">");
                let renames_root = word == "crate" && text(at + 1) == "as";
                if !continues && (text(at + 1) == "::" || renames_root) {
                    let inside: Vec<String> = modules.iter().map(|(name, _)| name.clone()).collect();
                    let mut spread = Vec::new();
                    at = spread_path(tokens, at, &[], &mut spread);
                    found.extend(spread.into_iter().map(|(path, line)| Named { path, inside: inside.clone(), line }));
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Spreads the path that begins at `at` behind `prefix`; gives the index after it.
fn spread_path(tokens: &[Token], mut at: usize, prefix: &[String], into: &mut Vec<(Vec<String>, usize)>) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let line = tokens.get(at).map_or(0, |token| token.line);
    if text(at) == "{" {
        let end = after_group(tokens, at);
        at += 1;
        while at + 1 < end {
            if is_word(text(at)) || text(at) == "{" || text(at) == "*" {
                at = spread_path(tokens, at, prefix, into);
            }
            // A renaming (`as other`) is no path.
            while at + 1 < end && text(at) != "," {
                at += 1;
            }
            at += 1;
        }
        return end;
    }
    let mut path = prefix.to_vec();
    if !is_word(text(at)) && text(at) != "*" {
        into.push((path, line));
        return at;
    }
    path.push(text(at).to_owned());
    at += 1;
    if text(at) != "::" {
        into.push((path, line));
        return at;
    }
    spread_path(tokens, at + 1, &path, into)
}

/// The path from the root of the crate; `None` if it leads elsewhere.
fn absolute(named: &Named, module: &[String]) -> Option<Vec<String>> {
    let mut here: Vec<String> = module.iter().chain(&named.inside).cloned().collect();
    let mut rest = named.path.as_slice();
    match rest.first().map(String::as_str) {
        Some("crate") => {
            here.clear();
            rest = &rest[1..];
        }
        Some("self" | "super") => {}
        _ => return None,
    }
    while let Some(first) = rest.first() {
        match first.as_str() {
            "self" => {}
            "super" => {
                here.pop();
            }
            _ => break,
        }
        rest = &rest[1..];
    }
    here.extend_from_slice(rest);
    Some(here)
}

/// A source file by its path below `src`, and what is wrong with it.
fn violations(file: &str, source: &str) -> Vec<String> {
    let module = module_of(file);
    let Some(own) = module.first() else {
        // The root declares the modules; it has no code.
        return Vec::new();
    };
    let Some(row) = TABLE.iter().find(|row| row.module == own) else {
        return vec![format!("{file}: module {own} is missing from the table of tests/layers.rs")];
    };
    let (code, _) = without_tests(&tokens(source));
    let mut wrong = Vec::new();
    for named in paths(&code) {
        let line = named.line;
        let written = named.path.join("::");
        if let Some(target) = absolute(&named, &module) {
            match target.first() {
                Some(top) if top == own || row.may_name.contains(&top.as_str()) => {}
                _ => wrong.push(format!("{file}:{line}: {own} (L{}) may not name {written}", row.layer)),
            }
        } else if row.is_pure()
            && IMPURE.iter().any(|path| named.path.len() >= path.len() && path.iter().eq(&named.path[..path.len()]))
        {
            wrong.push(format!("{file}:{line}: {own} (L{}) is pure and may not use {written}", row.layer));
        }
    }
    for (at, token) in code.iter().enumerate() {
        let line = token.line;
        let word = token.text.as_str();
        let called = code.get(at + 1).is_some_and(|next| next.text == "!");
        if row.is_pure() && called && PRINTING.contains(&word) {
            wrong.push(format!("{file}:{line}: {own} (L{}) may not print ({word}!)", row.layer));
        }
        if LOCK_WORDS.contains(&word) && file != LOCK_FILE {
            wrong.push(format!("{file}:{line}: only {LOCK_FILE} may {word}"));
        }
        if word == "unsafe" && own != UNSAFE_MODULE {
            wrong.push(format!("{file}:{line}: unsafe outside {UNSAFE_MODULE}"));
        }
    }
    wrong
}

/// `read/jsonl.rs` is `[read, jsonl]`, `read/mod.rs` is `[read]`, `lib.rs` is `[]`.
fn module_of(file: &str) -> Vec<String> {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if path == "lib" { Vec::new() } else { path.split('/').map(str::to_owned).collect() }
}

fn source_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every Rust file below `src` by its relative path, those that exist for tests alone left out.
fn library_files() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut folders = vec![source_root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("src can be listed") {
            let path = entry.expect("src can be listed").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let parts = path.strip_prefix(source_root()).expect("below src").iter();
                let relative: Vec<_> = parts.map(|part| part.to_str().expect("UTF-8 names")).collect();
                files.insert(relative.join("/"), fs::read_to_string(&path).expect("a source file can be read"));
            }
        }
    }
    let mut tests: BTreeSet<Vec<String>> = BTreeSet::new();
    for (file, source) in &files {
        for name in without_tests(&tokens(source)).1 {
            let mut module = module_of(file);
            module.push(name);
            tests.insert(module);
        }
    }
    files.retain(|file, _| !tests.contains(&module_of(file)));
    files
}

#[test]
fn modules_name_only_what_lies_below_them() {
    let files = library_files();
    let mut wrong = Vec::new();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (file, source) in &files {
        wrong.extend(violations(file, source));
        if let Some(row) = TABLE.iter().find(|row| module_of(file).first().is_some_and(|own| own == row.module)) {
            *seen.entry(row.module).or_default() += 1;
        }
    }
    for row in TABLE.iter().filter(|row| !seen.contains_key(row.module)) {
        wrong.push(format!("the row of {} saw no file", row.module));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(files.len() > TABLE.len(), "only {} files looked at", files.len());
    let names: usize = files.values().map(|source| paths(&without_tests(&tokens(source)).0).len()).sum();
    assert!(names > files.len(), "only {names} paths seen in {} files: the guard is blind", files.len());
    println!("layers: looked at {} files and {names} paths in {} modules", files.len(), seen.len());
}

#[test]
fn the_table_points_downwards() {
    for (at, row) in TABLE.iter().enumerate() {
        for name in row.may_name {
            let below = TABLE[..at].iter().find(|other| other.module == *name);
            let below = below.unwrap_or_else(|| panic!("{} names {name}, which is no row above it", row.module));
            assert!(below.layer <= row.layer, "{} (L{}) names {name} (L{})", row.module, row.layer, below.layer);
        }
    }
}

#[test]
fn planted_violations_are_found() {
    let planted = [
        ("wire/lines.rs", "use crate::model::Fault;"),
        ("model/mod.rs", "pub use super::read::Builder;"),
        ("kernel/select.rs", "fn f() { crate::detect::judge(); }"),
        ("read/jsonl.rs", "use crate::{model::Fault, scan::{Scan as S}};"),
        ("read/jsonl.rs", "mod inner { use super::super::super::detect::judge; }"),
        ("detect/mod.rs", "fn f(_: &super::read::Builder) {}"),
        ("detect/spikes.rs", "use crate::read::Builder;"),
        ("restore.rs", "use super::kernel::level::Level;"),
        ("discover.rs", "use crate::scan::Scan;"),
        ("open.rs", "use crate::*;"),
        ("open.rs", "use crate as everything;"),
        ("read/builder.rs", "use std::{collections::HashMap, fs::File};"),
        ("read/builder.rs", "fn f() { let _ = ::std::env::var(\"X\"); }"),
        ("detect/notes.rs", "fn f() { std::thread::spawn(|| ()); }"),
        ("audit/npy.rs", "use std::fs::File;"),
        ("audit/npy.rs", "use crate::open::stream;"),
        ("wire/json.rs", "fn f() { println!(\"{}\", 1); }"),
        ("wire/json.rs", "#[cfg(test)] mod tests { fn f() {} } fn g() { dbg!(1); }"),
        ("wire/json.rs", "struct A { #[cfg(test)] seen: u8, x: u8 } fn g() { std::process::exit(1) }"),
        ("python/tables.rs", "fn f(py: Python<'_>) { py.detach(|| ()); }"),
        ("scan.rs", "fn f(p: *const u8) -> u8 { unsafe { *p } }"),
        ("novelty.rs", "fn f() {}"),
        ("novelty/mod.rs", ""),
    ];
    for (file, source) in planted {
        assert_eq!(violations(file, source).len(), 1, "{file}: {source}: {:?}", violations(file, source));
    }
}

#[test]
fn what_only_looks_like_a_violation_is_not_one() {
    let fine = [
        ("lib.rs", "pub mod read; pub mod scan;"),
        ("wire/json/rows.rs", "use super::super::numbers::Cell; use super::Stop; use crate::wire::lines::Lines;"),
        ("wire/lines.rs", "// use crate::read;\n/* println!() /* nested */ std::fs */ /// [`crate::scan`]\nfn f() {}"),
        ("wire/lines.rs", "const A: &str = \"use crate::read; \\\" std::fs\"; const B: &str = r#\"unsafe \" {\"#;"),
        ("wire/lines.rs", "fn f<'a>(c: char, b: &'a [u8]) -> bool { c == '\"' || c == '\\'' || b == b\"std::fs\" }"),
        (
            "wire/lines.rs",
            "#[cfg(test)]\n#[allow(dead_code)]\nmod tests { use crate::read::X; fn f() { println!(); } }",
        ),
        ("wire/lines.rs", "#[cfg(test)] use std::fs; #[cfg(all(test, unix))] fn f() -> [u8; 2] { dbg!([1, 2]) }"),
        ("read/hf_trainer.rs", "use crate::model::{Fault, checkpoint_name}; use crate::wire::json::{self, Cursor};"),
        ("read/hf_trainer.rs", "pub(crate) fn f() { Foo::scan::<u8>(); self::detect::go(); }"),
        ("kernel/level.rs", "fn f(p: *const u8) -> u8 { unsafe { *p } }"),
        ("python/door.rs", "fn f(py: Python<'_>) { py.detach(|| ()); }"),
        ("open.rs", "use std::fs::File; use crate::read::{Files, Ranges};"),
        ("scan.rs", "use crate::{detect, discover::Filter}; fn f() { std::thread::scope(|_| ()) }"),
    ];
    for (file, source) in fine {
        assert_eq!(violations(file, source), Vec::<String>::new(), "{file}: {source}");
    }
    let (_, outside) = without_tests(&tokens("mod a; #[cfg(test)] mod b; #[cfg(test)] pub(crate) mod c; mod d;"));
    assert_eq!(outside, ["b", "c"]);
}
