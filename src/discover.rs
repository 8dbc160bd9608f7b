//! Finds recordings: walks folders, reads the first bytes of files whose names leave doubt, and groups files into
//! sources. Sees names and heads, never contents.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use walkdir::WalkDir;

use crate::model::checkpoint_name;
use crate::model::{Checkpoint, Entry, EntryKind, Format, Limits, Source};
use crate::open::{self, Root};
use crate::read::{self, Confidence, READERS};

/// Which files of a walk are looked at.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    include: Option<GlobSet>,
    exclude: Option<GlobSet>,
}

impl Filter {
    /// Patterns over paths relative to the root; one without `/` matches a name at any depth. An error names the
    /// pattern.
    pub fn new(include: &[String], exclude: &[String]) -> Result<Self, String> {
        Ok(Self { include: glob_set(include)?, exclude: glob_set(exclude)? })
    }

    fn excludes(&self, path: &str) -> bool {
        self.exclude.as_ref().is_some_and(|globs| globs.is_match(path))
    }

    fn includes(&self, path: &str) -> bool {
        self.include.as_ref().is_none_or(|globs| globs.is_match(path))
    }
}

fn glob_set(patterns: &[String]) -> Result<Option<GlobSet>, String> {
    if patterns.is_empty() {
        return Ok(None);
    }
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        // As in .gitignore: a slash at the begin or in the middle anchors the pattern at the root.
        let anchored = pattern.trim_start_matches("./").trim_end_matches('/');
        let is_anchored = anchored.contains('/');
        let inner = anchored.trim_start_matches('/');
        if inner.is_empty() || inner.starts_with('!') {
            return Err(format!("glob {pattern:?}: want a pattern of paths to take or leave out"));
        }
        let deep = if is_anchored { inner.to_owned() } else { format!("**/{inner}") };
        for glob in [deep.clone(), format!("{deep}/**")] {
            let glob = GlobBuilder::new(&glob).literal_separator(true).build();
            set.add(glob.map_err(|error| format!("glob {pattern:?}: {}", error.kind()))?);
        }
    }
    set.build().map(Some).map_err(|error| error.to_string())
}

/// A file or directory that could not be looked at, or a file that the user named and nothing reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Relative path.
    pub path: String,
    /// The format that its name promises, if any.
    pub format: Option<Format>,
    /// Stable code of the reason: `io-error`, `not-a-file`, `not-a-recording`, `ambiguous`.
    pub code: &'static str,
    /// In plain words.
    pub detail: String,
    /// Whether it is a recording of its own, or only a place that could not be looked at.
    pub is_recording: bool,
}

/// What lies under one path that the user named.
#[derive(Debug)]
pub struct Discovery {
    /// The root's own name.
    pub name: String,
    /// Where relative paths lie on disk.
    pub root: Root,
    /// The sources, by path.
    pub sources: Vec<Source>,
    /// What could not be looked at.
    pub refused: Vec<Refused>,
    /// Sources that several readers recognised equally well: index, names of the formats.
    pub ambiguous: Vec<(usize, String)>,
    /// Links that are not followed although a recording may lie behind them: to directories, or named like one.
    pub links: Vec<String>,
    /// Files that no reader recognises.
    pub skipped: u64,
    checkpoints: Vec<Checkpoint>,
    /// Checkpoints in the first, second and third directory above the root; looked for once a source needs them.
    outer: OnceLock<Vec<Vec<Checkpoint>>>,
    /// Files that the user named, where this is no walk.
    named: Vec<PathBuf>,
    limits: Limits,
    source_directories: Vec<String>,
}

/// What the user named: a directory to walk, or files of one directory, each of which is an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A directory.
    Directory(PathBuf),
    /// Files that lie beside each other, sorted.
    Files(Vec<PathBuf>),
}

/// The targets of paths that exist, in the order in which they were named; files of one directory together, and what is
/// named twice once.
pub fn targets(paths: &[PathBuf]) -> Vec<Target> {
    let mut targets: Vec<Target> = Vec::new();
    let mut folders: HashMap<PathBuf, usize> = HashMap::new();
    let mut seen: HashSet<PathBuf> = HashSet::new();
    for path in paths {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let resolved = path.canonicalize().unwrap_or(absolute);
        if !seen.insert(resolved.clone()) {
            continue;
        }
        if resolved.is_dir() {
            targets.push(Target::Directory(resolved));
            continue;
        }
        let folder = resolved.parent().unwrap_or(&resolved).to_owned();
        let at = *folders.entry(folder).or_insert(targets.len());
        match targets.get_mut(at) {
            Some(Target::Files(files)) => files.push(resolved),
            _ => targets.push(Target::Files(vec![resolved])),
        }
    }
    for target in &mut targets {
        if let Target::Files(files) = target {
            files.sort_unstable();
        }
    }
    targets
}

/// Looks at a target. `proceed` is asked now and then; once it says no, what was found so far is given.
pub fn discover(target: &Target, filter: &Filter, limits: &Limits, proceed: &mut dyn FnMut() -> bool) -> Discovery {
    let name_of = |path: &Path| path.file_name().map_or_else(|| "/".to_owned(), escape);
    let (base, named) = match target {
        Target::Directory(directory) => (directory.clone(), Vec::new()),
        Target::Files(files) => (files[0].parent().unwrap_or(&files[0]).to_owned(), files.clone()),
    };
    let name = if let [file] = named.as_slice() { name_of(file) } else { name_of(&base) };
    let mut walk = Walk { root: Root { base, odd: HashMap::new() }, entries: Vec::new(), refused: Vec::new() };
    if named.is_empty() {
        walk.descend(filter, limits, proceed);
    } else {
        named.iter().for_each(|file| walk.add_named(file));
        walk.entries.sort_unstable();
    }
    let found = identify(&mut walk, !named.is_empty(), limits, proceed);
    let Walk { root, entries, refused } = walk;
    let mut source_directories: Vec<String> = found.sources.iter().map(|source| source.directory.clone()).collect();
    source_directories.sort_unstable();
    Discovery {
        name,
        checkpoints: checkpoints_among(&entries, ""),
        outer: OnceLock::new(),
        named,
        limits: limits.clone(),
        root,
        sources: found.sources,
        refused,
        links: found.links,
        ambiguous: found.ambiguous,
        skipped: found.skipped,
        source_directories,
    }
}

impl Discovery {
    /// Whether the user named files, not a directory.
    pub fn is_of_files(&self) -> bool {
        !self.named.is_empty()
    }

    /// Checkpoints known by their names of a source: in its directory, below it, and up to three directories above
    /// while no other training lives there (SPEC 4).
    pub fn checkpoints_of(&self, source: &Source) -> Vec<Checkpoint> {
        let mut directory = source.directory.as_str();
        let own = self.trainings_below(directory);
        let mut widest = directory;
        let mut above = 0;
        while above < OUTER && !directory.is_empty() {
            directory = directory.rsplit_once('/').map_or("", |(parent, _)| parent);
            if self.trainings_below(directory) != own {
                break;
            }
            widest = directory;
            above += 1;
        }
        let prefix = if widest.is_empty() { String::new() } else { format!("{widest}/") };
        let start = self.checkpoints.partition_point(|checkpoint| checkpoint.path < prefix);
        let inside = self.checkpoints[start..].iter().take_while(|checkpoint| checkpoint.path.starts_with(&prefix));
        let mut checkpoints: Vec<Checkpoint> = inside.cloned().collect();
        if widest.is_empty() && self.trainings_below("") == own {
            let beside = usize::from(!self.named.is_empty());
            let levels = self.outer.get_or_init(|| self.look_outside());
            checkpoints.extend(levels.iter().take(beside + OUTER.saturating_sub(above)).flatten().cloned());
        }
        checkpoints
    }

    /// What lies beside files that the user named (the walk saw them alone), then the directories above the root,
    /// nearest first, until one in which another training lives.
    fn look_outside(&self) -> Vec<Vec<Checkpoint>> {
        let mut levels = Vec::new();
        let mut inner = self.root.base.as_path();
        if !self.named.is_empty() {
            let around = look_around(inner, &self.named, "", &self.limits);
            levels.push(around.checkpoints);
            if !around.alone {
                return levels;
            }
        }
        let mut prefix = String::new();
        for _ in 0..OUTER {
            let Some(outer) = inner.parent() else { break };
            prefix.push_str("../");
            let around = look_around(outer, &[inner.to_owned()], &prefix, &self.limits);
            if !around.alone {
                break;
            }
            levels.push(around.checkpoints);
            inner = outer;
        }
        levels
    }

    fn trainings_below(&self, directory: &str) -> usize {
        if directory.is_empty() {
            return self.source_directories.len();
        }
        let start = self.source_directories.partition_point(|other| other.as_str() < directory);
        self.source_directories[start..]
            .iter()
            .take_while(|other| other.starts_with(directory))
            .filter(|other| other.len() == directory.len() || is_below(other, directory))
            .count()
    }
}

fn is_below(path: &str, directory: &str) -> bool {
    directory.is_empty() || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

struct Walk {
    root: Root,
    entries: Vec<Entry>,
    refused: Vec<Refused>,
}

impl Walk {
    fn add_named(&mut self, path: &Path) {
        let name = path.file_name().unwrap_or_default();
        let relative = escape(name);
        self.root.odd.insert(relative.clone(), path.to_owned());
        let kind = match path.metadata() {
            Ok(metadata) if metadata.is_file() => EntryKind::File,
            _ => EntryKind::Special,
        };
        let size = path.metadata().map_or(0, |metadata| metadata.len());
        self.entries.push(Entry { path: relative, size, kind });
    }

    fn descend(&mut self, filter: &Filter, limits: &Limits, proceed: &mut dyn FnMut() -> bool) {
        let base = self.root.base.clone();
        let mut walker = WalkDir::new(&base).follow_links(false).max_depth(limits.depth).into_iter();
        let mut seen = 0usize;
        while let Some(next) = walker.next() {
            seen += 1;
            if seen.is_multiple_of(PROCEED) && !proceed() {
                break;
            }
            let entry = match next {
                Ok(entry) => entry,
                Err(error) => {
                    let path = error.path().map_or_else(String::new, |path| self.relative(&base, path));
                    let detail = error.io_error().map_or_else(|| error.to_string(), ToString::to_string);
                    self.refused.push(Refused { path, format: None, code: "io-error", detail, is_recording: false });
                    continue;
                }
            };
            if entry.depth() == 0 {
                continue;
            }
            let path = self.relative(&base, entry.path());
            let kind = match entry.file_type() {
                kind if kind.is_dir() => EntryKind::Directory,
                kind if kind.is_file() => EntryKind::File,
                kind if kind.is_symlink() => EntryKind::Link,
                _ => EntryKind::Special,
            };
            if filter.excludes(&path) {
                if kind == EntryKind::Directory {
                    walker.skip_current_dir();
                }
                continue;
            }
            if kind != EntryKind::Directory && !filter.includes(&path) {
                continue;
            }
            let size = if kind == EntryKind::File { entry.metadata().map_or(0, |metadata| metadata.len()) } else { 0 };
            self.entries.push(Entry { path, size, kind });
        }
        self.entries.sort_unstable();
    }

    fn relative(&mut self, base: &Path, path: &Path) -> String {
        let relative = path.strip_prefix(base).unwrap_or(path);
        let escaped = shown(relative);
        if relative.to_str() != Some(escaped.as_str()) {
            self.root.odd.insert(escaped.clone(), path.to_owned());
        }
        escaped
    }
}

/// A path as reports show it, parts joined by `/`.
pub fn shown(path: &Path) -> String {
    path.iter().map(escape).collect::<Vec<_>>().join("/")
}

/// A name that every report can carry. Control characters and bytes that are no UTF-8 become `\\xNN` and a backslash
/// `\\\\`, so that no two names read alike.
fn escape(name: &OsStr) -> String {
    let bytes = name.as_encoded_bytes();
    let plain = name.to_str().filter(|text| !text.chars().any(|c| c.is_control() || c == '\\'));
    if let Some(plain) = plain {
        return plain.to_owned();
    }
    let mut escaped = String::new();
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => escaped.push_str("\\\\"),
                c if c.is_control() => {
                    let mut utf8 = [0; 4];
                    c.encode_utf8(&mut utf8).bytes().for_each(|byte| escaped += &format!("\\x{byte:02x}"));
                }
                c => escaped.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| escaped += &format!("\\x{byte:02x}"));
    }
    escaped
}

struct Found {
    sources: Vec<Source>,
    ambiguous: Vec<(usize, String)>,
    links: Vec<String>,
    skipped: u64,
}

/// Files and directories between two looks at whether to go on.
const PROCEED: usize = 64;

fn identify(walk: &mut Walk, named_file: bool, limits: &Limits, proceed: &mut dyn FnMut() -> bool) -> Found {
    let mut own: Vec<Vec<usize>> = READERS.iter().map(|_| Vec::new()).collect();
    let mut ties: HashMap<String, String> = HashMap::new();
    let mut skipped = 0;
    let mut claimed: HashSet<String> = HashSet::new();
    let mut links = Vec::new();
    let files: Vec<usize> =
        (0..walk.entries.len()).filter(|at| walk.entries[*at].kind != EntryKind::Directory).collect();
    // Directory formats first: what they claim is not offered to the others.
    let (marked, rest): (Vec<usize>, Vec<usize>) = files.into_iter().partition(|at| {
        let path = walk.entries[*at].path.as_str();
        READERS.iter().any(|reader| reader.claims_directory() && reader.recognise_name(path) > Confidence::No)
    });
    for (seen, index) in marked.into_iter().chain(rest).enumerate() {
        if seen % PROCEED == PROCEED - 1 && !proceed() {
            break;
        }
        let entry = &walk.entries[index];
        if entry.kind == EntryKind::Link {
            let promised = READERS.iter().find(|reader| reader.recognise_name(&entry.path) >= Confidence::Likely);
            let target = walk.root.locate(&entry.path).canonicalize();
            let is_scanned = |target: &Path| {
                let name = target.to_string_lossy();
                target.starts_with(&walk.root.base)
                    && READERS.iter().any(|reader| reader.recognise_name(&name) >= Confidence::Likely)
            };
            match (&target, promised) {
                (Ok(target), _) if target.is_dir() => links.push(entry.path.clone()),
                (Ok(target), Some(_)) if is_scanned(target) => links.push(entry.path.clone()),
                (target, Some(reader)) => {
                    let detail = match target {
                        Ok(_) => "a symbolic link, not followed: scan what it points to".to_owned(),
                        Err(error) => format!("a symbolic link to nowhere: {error}"),
                    };
                    let (path, format) = (entry.path.clone(), Some(reader.format()));
                    walk.refused.push(Refused { path, format, code: "link", detail, is_recording: true });
                }
                _ => skipped += 1,
            }
            continue;
        }
        if is_claimed(&claimed, &entry.path) {
            continue;
        }
        let by_name: Vec<Confidence> = READERS.iter().map(|reader| reader.recognise_name(&entry.path)).collect();
        let best_name = by_name.iter().copied().max().unwrap_or(Confidence::No);
        let promised = || {
            let best =
                by_name.iter().position(|confidence| *confidence == best_name && best_name >= Confidence::Likely);
            best.map(|reader| READERS[reader].format())
        };
        let mut refuse = |format, code, detail: String| {
            let path = entry.path.clone();
            walk.refused.push(Refused { path, format, code, detail, is_recording: true });
        };
        if entry.kind == EntryKind::Special {
            if best_name >= Confidence::Likely || named_file {
                refuse(promised(), "not-a-file", "neither a regular file nor a directory".to_owned());
            } else {
                skipped += 1;
            }
            continue;
        }
        let verdicts = if best_name == Confidence::Certain {
            by_name.clone()
        } else if best_name > Confidence::No || named_file {
            match recognise_by_head(&walk.root.locate(&entry.path), entry, limits) {
                Ok(verdicts) => verdicts,
                Err(error) => {
                    if best_name >= Confidence::Likely || named_file {
                        refuse(promised(), "io-error", error.to_string());
                    } else {
                        skipped += 1;
                    }
                    continue;
                }
            }
        } else {
            by_name.clone()
        };
        let best = verdicts.iter().copied().max().unwrap_or(Confidence::No);
        if best <= Confidence::Maybe {
            if named_file {
                refuse(promised(), "not-a-recording", "no reader recognises it".to_owned());
            } else {
                skipped += 1;
            }
            continue;
        }
        let equals: Vec<usize> = (0..READERS.len()).filter(|reader| verdicts[*reader] == best).collect();
        if equals.len() > 1 {
            let names: Vec<&str> = equals.iter().map(|reader| READERS[*reader].format().as_str()).collect();
            if named_file {
                refuse(None, "ambiguous", names.join(", "));
                continue;
            }
            ties.insert(entry.path.clone(), names.join(", "));
        }
        let reader = equals[0];
        if READERS[reader].claims_directory() {
            claimed.insert(entry.parent().to_owned());
        }
        own[reader].push(index);
    }
    let mut sources: Vec<Source> = Vec::new();
    for (reader, own) in READERS.iter().zip(&mut own) {
        own.sort_unstable();
        own.retain(|index| reader.claims_directory() || !is_claimed(&claimed, &walk.entries[*index].path));
        sources.extend(reader.group(&walk.entries, own));
    }
    sources.sort_by(|a, b| (&a.path, a.format).cmp(&(&b.path, b.format)));
    let tied = |source: &Source| source.parts.iter().find_map(|part| ties.get(&part.path).cloned());
    let ambiguous =
        sources.iter().enumerate().filter_map(|(at, source)| tied(source).map(|names| (at, names))).collect();
    Found { sources, ambiguous, links, skipped }
}

/// Bytes of a file that mostly suffice to tell what it is.
const FIRST_HEAD: usize = 4 << 10;

/// What each reader says of a file's first bytes; more of them are read only if the first few leave doubt.
fn recognise_by_head(path: &Path, entry: &Entry, limits: &Limits) -> std::io::Result<Vec<Confidence>> {
    let verdicts = |head: &[u8]| READERS.iter().map(|reader| reader.recognise(&entry.path, head)).collect::<Vec<_>>();
    let first = open::head(path, FIRST_HEAD.min(limits.head))?;
    let known = verdicts(&first);
    if first.len() < FIRST_HEAD || known.iter().any(|confidence| *confidence >= Confidence::Likely) {
        return Ok(known);
    }
    Ok(verdicts(&open::head(path, limits.head)?))
}

fn is_claimed(claimed: &HashSet<String>, path: &str) -> bool {
    if claimed.is_empty() {
        return false;
    }
    // A nested recording of the same format (rank-001/manifest.json) is recognised by its own marker.
    let is_marker =
        READERS.iter().any(|reader| reader.claims_directory() && reader.recognise_name(path) > Confidence::No);
    let mut directory = path;
    while !is_marker && !directory.is_empty() {
        directory = directory.rsplit_once('/').map_or("", |(parent, _)| parent);
        if claimed.contains(directory) {
            return true;
        }
    }
    false
}

fn checkpoints_among(entries: &[Entry], prefix: &str) -> Vec<Checkpoint> {
    let mut checkpoints = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let is_dir = entry.kind == EntryKind::Directory;
        if !is_dir && entry.kind != EntryKind::File {
            continue;
        }
        let parent = entry.parent().rsplit('/').next().unwrap_or("");
        let Some(name) = checkpoint_name::parse_in(parent, entry.name(), is_dir) else { continue };
        let beside = |other: &str| {
            let path = if entry.parent().is_empty() { other.to_owned() } else { format!("{}/{other}", entry.parent()) };
            entries.binary_search_by(|other| other.path.as_str().cmp(&path)).is_ok()
        };
        let undisturbed = checkpoint_name::is_complete_beside(entry.name(), &name, beside);
        let complete = undisturbed
            && if is_dir {
                let inside = entries[index + 1..].iter().take_while(|other| other.path.starts_with(&entry.path));
                let inside = inside.filter_map(|other| other.path[entry.path.len()..].strip_prefix('/'));
                let files: Vec<&str> = inside.filter(|file| !file.contains('/')).take(4096).collect();
                checkpoint_name::is_complete(&files, &name)
            } else {
                entry.size > 0
            };
        let path = format!("{prefix}{}", entry.path);
        checkpoints.push(Checkpoint { number: name.number, unit: name.unit, path, complete });
    }
    checkpoints
}

/// Directories looked at above the root.
const OUTER: usize = 3;
/// How deep: `checkpoints/step-100/metadata.json` shows a checkpoint whole.
const OUTER_DEPTH: usize = 3;
/// Entries looked at in one of them; more, and it is an archive of its own.
const OUTER_ENTRIES: usize = 4096;

/// Heads read above a root; more, and it is an archive of its own.
const OUTER_HEADS: usize = 64;

/// Whether a file beside the scanned root records a training: by its name, or its first bytes where that leaves doubt.
fn is_training(file: &Path, path: &str, heads: &mut usize, limits: &Limits) -> bool {
    let by_name = READERS.iter().map(|reader| reader.recognise_name(path)).max().unwrap_or(Confidence::No);
    match by_name {
        Confidence::No => false,
        Confidence::Maybe if *heads >= OUTER_HEADS => true,
        Confidence::Maybe => {
            *heads += 1;
            let head = open::head(file, FIRST_HEAD.min(limits.head)).unwrap_or_default();
            READERS.iter().any(|reader| reader.recognise(path, &head) >= Confidence::Likely)
        }
        Confidence::Likely | Confidence::Certain => true,
    }
}

struct Around {
    checkpoints: Vec<Checkpoint>,
    /// No other training lives there.
    alone: bool,
}

/// Looks by names alone at what lies in `directory`, `known` left out.
fn look_around(directory: &Path, known: &[PathBuf], prefix: &str, limits: &Limits) -> Around {
    let root = Root { base: directory.to_owned(), odd: HashMap::new() };
    let mut walk = Walk { root, entries: vec![], refused: vec![] };
    let mut walker = WalkDir::new(directory).follow_links(false).max_depth(OUTER_DEPTH.min(limits.depth)).into_iter();
    let mut alone = true;
    // A copy of the state in a checkpoint belongs to the training whose state lies beside the checkpoint.
    let is_copy = |known: &PathBuf| {
        known.file_name().is_some_and(|name| checkpoint_name::parse(&name.to_string_lossy(), true).is_some())
    };
    let known_is_copy = known.iter().any(is_copy);
    let mut heads = 0;
    while let Some(next) = walker.next() {
        let Ok(entry) = next else { continue };
        if !known_is_copy && known.binary_search_by(|known| known.as_path().cmp(entry.path())).is_ok() {
            if entry.file_type().is_dir() {
                walker.skip_current_dir();
            }
            continue;
        }
        if entry.depth() == 0 {
            continue;
        }
        if walk.entries.len() == OUTER_ENTRIES {
            alone = false;
            break;
        }
        let path = walk.relative(directory, entry.path());
        let is_dir = entry.file_type().is_dir();
        // A checkpoint carries a copy of its training's own state.
        let in_checkpoint = path.split('/').any(|part| checkpoint_name::parse(part, true).is_some());
        let own_state = known_is_copy && path == "trainer_state.json";
        if !is_dir && !in_checkpoint && !own_state && is_training(entry.path(), &path, &mut heads, limits) {
            alone = false;
            if !prefix.is_empty() {
                break;
            }
        }
        let kind = if is_dir { EntryKind::Directory } else { EntryKind::File };
        let size = if is_dir { 0 } else { entry.metadata().map_or(0, |metadata| metadata.len()) };
        walk.entries.push(Entry { path, size, kind });
    }
    walk.entries.sort_unstable();
    Around { checkpoints: checkpoints_among(&walk.entries, prefix), alone }
}

/// The format whose reader a source needs, as a reader; every discovered source has one.
pub fn reader_of(source: &Source) -> Option<&'static dyn read::Reader> {
    read::reader(source.format)
}
