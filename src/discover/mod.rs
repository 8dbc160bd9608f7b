//! Finds recordings: walks folders and archives, reads the first bytes of files whose names leave doubt, and groups
//! files into sources. Sees names and heads, never contents.

mod checkpoints;
mod filter;
#[cfg(feature = "archives")]
mod members;
#[cfg(all(test, feature = "archives"))]
mod tests;
mod walk;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use checkpoints::{OUTER, checkpoints_among, look_around};
pub use filter::Filter;
pub use walk::Damaged;
use walk::{Known, Walk};

use crate::model::source::plain;
use crate::model::{Checkpoint, Entry, EntryKind, Format, Limits, Source};
pub use crate::open::names::shown;
use crate::open::{self, Root, names::escape};
use crate::read::{self, Confidence, READERS};

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
    /// What is wrong with archives as a whole.
    pub damage: Vec<Damaged>,
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
    let mut walk = Walk::new(base);
    if named.is_empty() {
        walk.descend(filter, limits, proceed);
    } else {
        named.iter().for_each(|file| walk.add_named(file));
    }
    #[cfg(feature = "archives")]
    walk.expand(!named.is_empty(), filter, limits, proceed);
    walk.entries.sort_unstable();
    let found = identify(&mut walk, !named.is_empty(), limits, proceed);
    #[cfg(feature = "archives")]
    walk.settle(!named.is_empty(), &found.sources);
    let Walk { root, entries, refused, damage, .. } = walk;
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
        damage,
        links: found.links,
        ambiguous: found.ambiguous,
        skipped: found.skipped,
        source_directories,
    }
}

impl Discovery {
    /// Frees what is needed no longer once every source is read.
    pub fn forget_sources(&mut self) {
        self.sources = Vec::new();
        self.source_directories = Vec::new();
        self.checkpoints = Vec::new();
        self.root.odd = HashMap::new();
    }

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
            if let Some(Known::Link(target)) = walk.known.get(&entry.path) {
                let kind = walk.entries.binary_search_by(|other| other.path.as_str().cmp(target));
                match (kind.ok().map(|at| walk.entries[at].kind), promised) {
                    (Some(EntryKind::Directory), _) | (Some(EntryKind::File), Some(_)) => {
                        links.push(entry.path.clone());
                    }
                    (_, Some(reader)) => {
                        let detail = "a link out of its archive, not followed".to_owned();
                        let (path, format) = (entry.path.clone(), Some(reader.format()));
                        walk.refused.push(Refused { path, format, code: "link", detail, is_recording: true });
                    }
                    _ => skipped += 1,
                }
                continue;
            }
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
        // A member of an archive was met, not named.
        let named_file = named_file && !entry.path.contains('/');
        let asked = Asked(&entry.path);
        let by_name = asked.by_name();
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
        if let Some(Known::Unreadable(code, detail)) = walk.known.get(&entry.path) {
            if best_name >= Confidence::Likely {
                refuse(promised(), code, detail.clone());
            } else {
                skipped += 1;
            }
            continue;
        }
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
        } else if let Some(Known::Verdicts(verdicts)) = walk.known.get(&entry.path) {
            verdicts.clone()
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
    let asked = Asked(&entry.path);
    let first = open::head(path, FIRST_HEAD.min(limits.head), limits)?;
    let known = asked.by_head(&first);
    if first.len() < FIRST_HEAD || known.iter().any(|confidence| *confidence >= Confidence::Likely) {
        return Ok(known);
    }
    Ok(asked.by_head(&open::head(path, limits.head, limits)?))
}

/// A path as readers are asked of it: without the suffix of a compression, except by those whose files seek.
#[derive(Clone, Copy)]
struct Asked<'a>(&'a str);

impl Asked<'_> {
    fn path(&self, reader: &dyn read::Reader) -> &str {
        if cfg!(feature = "archives") && !reader.claims_directory() { plain(self.0) } else { self.0 }
    }

    /// What each reader says of the name.
    fn by_name(self) -> Vec<Confidence> {
        READERS.iter().map(|reader| reader.recognise_name(self.path(*reader))).collect()
    }

    /// What each reader says of the name and the first bytes.
    fn by_head(self, head: &[u8]) -> Vec<Confidence> {
        READERS.iter().map(|reader| reader.recognise(self.path(*reader), head)).collect()
    }
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

/// The format whose reader a source needs, as a reader; every discovered source has one.
pub fn reader_of(source: &Source) -> Option<&'static dyn read::Reader> {
    read::reader(source.format)
}
