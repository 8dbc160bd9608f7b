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

use checkpoints::{
    Companion, OUTER, OUTER_ENTRIES, checkpoints_among, companion, is_checkpoint_folder, is_evaluation, is_phase,
    look_around,
};
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
    /// What lies around the root; looked for once a source needs it.
    outer: OnceLock<Outside>,
    /// Files that the user named, where this is no walk.
    named: Vec<PathBuf>,
    limits: Limits,
    /// Where trainings live, those included that the user's filter hides; sorted.
    source_directories: Vec<(String, Format)>,
}

/// What the user named: a directory to walk, or files of one directory, each of which is an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A directory, and files below it that the user named as well, sorted.
    Directory(PathBuf, Vec<PathBuf>),
    /// Files that lie beside each other, sorted.
    Files(Vec<PathBuf>),
}

/// The targets of paths that exist, in the order in which they were named; files of one directory together, and what is
/// named twice, or lies below a directory that is named too, once. What `filter` may hide below a directory is kept.
pub fn targets(paths: &[PathBuf], filter: &Filter) -> Vec<Target> {
    let resolve = |path: &PathBuf| {
        path.canonicalize().unwrap_or_else(|_| std::path::absolute(path).unwrap_or_else(|_| path.clone()))
    };
    let resolved: Vec<PathBuf> = paths.iter().map(resolve).collect();
    // The outermost directory of those that show a path: itself not dropped.
    let outer = |path: &Path, is_dir: bool, kept: &HashSet<PathBuf>| {
        let above = path.ancestors().skip(1).filter(|above| kept.contains(*above));
        let shows = |above: &&Path| !filter.may_hide(&shown(path.strip_prefix(above).unwrap_or(path)), is_dir);
        above.filter(shows).last().map(Path::to_owned)
    };
    let mut directories: Vec<&PathBuf> = resolved.iter().filter(|path| path.is_dir()).collect();
    // A directory sorts before what lies below it.
    directories.sort_unstable();
    let mut kept: HashSet<PathBuf> = HashSet::new();
    for directory in directories {
        if outer(directory, true, &kept).is_none() {
            kept.insert(directory.clone());
        }
    }
    let mut inside: HashMap<PathBuf, Vec<PathBuf>> = HashMap::new();
    let mut targets: Vec<Target> = Vec::new();
    let mut folders: HashMap<PathBuf, usize> = HashMap::new();
    let mut seen: HashSet<PathBuf> = HashSet::new();
    for resolved in resolved.iter().cloned() {
        if !seen.insert(resolved.clone()) {
            continue;
        }
        let is_dir = resolved.is_dir();
        if let Some(outer) = outer(&resolved, is_dir, &kept) {
            if !is_dir {
                inside.entry(outer).or_default().push(resolved);
            }
            continue;
        }
        if is_dir {
            targets.push(Target::Directory(resolved, Vec::new()));
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
        match target {
            Target::Files(files) => files.sort_unstable(),
            Target::Directory(directory, files) => {
                *files = inside.remove(directory).unwrap_or_default();
                files.sort_unstable();
            }
        }
    }
    targets
}

/// Looks at a target. `proceed` is asked now and then; once it says no, what was found so far is given.
pub fn discover(target: &Target, filter: &Filter, limits: &Limits, proceed: &mut dyn FnMut() -> bool) -> Discovery {
    let name_of = |path: &Path| path.file_name().map_or_else(|| "/".to_owned(), escape);
    let (base, named) = match target {
        Target::Directory(directory, _) => (directory.clone(), Vec::new()),
        Target::Files(files) => (files[0].parent().unwrap_or(&files[0]).to_owned(), files.clone()),
    };
    let name = if let [file] = named.as_slice() { name_of(file) } else { name_of(&base) };
    let mut walk = Walk::new(base);
    if named.is_empty() {
        walk.descend(filter, limits, proceed);
    } else {
        named.iter().for_each(|file| walk.add_named(file));
    }
    let outcomes: HashSet<String> = match target {
        Target::Directory(base, inside) => inside.iter().map(|file| walk.relative(base, file)).collect(),
        Target::Files(_) => walk.entries.iter().map(|entry| entry.path.clone()).collect(),
    };
    #[cfg(feature = "archives")]
    walk.expand(&outcomes, filter, limits, proceed);
    walk.entries.sort_unstable();
    let found = identify(&mut walk, &outcomes, filter, limits, proceed);
    #[cfg(feature = "archives")]
    walk.settle(&outcomes, &found.sources);
    let Walk { root, mut entries, mut hidden, refused, damage, .. } = walk;
    hidden.sort_unstable();
    let hidden_directories = trainings_by_name(&hidden, &found.claimed);
    let directories = found.sources.iter().map(|source| (source.directory.clone(), source.format));
    let mut source_directories: Vec<(String, Format)> = directories.chain(hidden_directories).collect();
    source_directories.sort_unstable();
    source_directories.dedup();
    entries.append(&mut hidden);
    entries.sort_unstable();
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

    /// Checkpoints known by their names of a source: in its directory and below it, but for directories of other
    /// trainings, and up to three directories above while no other training lives there (SPEC 4).
    pub fn checkpoints_of(&self, source: &Source) -> Vec<Checkpoint> {
        let mut widest = self.logger_of(&source.directory);
        let mut above = 0;
        let mut is_alone = true;
        while above < OUTER && !widest.is_empty() {
            let (parent, name) = widest.rsplit_once('/').unwrap_or(("", widest));
            if self.is_shared(parent, name, source.format) {
                is_alone = false;
                break;
            }
            widest = parent;
            above += 1;
        }
        let below = self.checkpoints_below(widest).iter();
        let mut checkpoints: Vec<Checkpoint> =
            below.filter(|checkpoint| !self.is_of_another(checkpoint, widest, source)).cloned().collect();
        if widest.is_empty() && is_alone {
            let outside = self.outer.get_or_init(|| self.look_outside());
            // A member of an archive does not live beside it: that directory is one above its own.
            if source.directory.is_empty() || outside.is_beside_alone {
                checkpoints.extend(outside.beside.iter().cloned());
            }
            checkpoints.extend(outside.levels.iter().take(OUTER.saturating_sub(above)).flatten().cloned());
        }
        checkpoints
    }

    /// Whether a checkpoint below `widest` lies in the directory of another training than that of `source`.
    fn is_of_another(&self, checkpoint: &Checkpoint, widest: &str, source: &Source) -> bool {
        let start = if widest.is_empty() { 0 } else { widest.len() + 1 };
        let own = source.directory.as_str();
        checkpoint.path.match_indices('/').map(|(at, _)| at).filter(|at| *at > start).any(|at| {
            let directory = &checkpoint.path[..at];
            let first = self.source_directories.partition_point(|(other, _)| other.as_str() < directory);
            let mut formats =
                self.source_directories[first..].iter().take_while(|(other, _)| other == directory).map(|(_, f)| f);
            own != directory
                && !is_below(own, directory)
                && !is_checkpoint_folder(&directory[start..])
                // Tables beside the recordings of other formats are data more often than trainings.
                && formats.any(|other| source.format.is_table() || !other.is_table())
        })
    }

    /// The directory of the logger that wrote one: `add_scalars` of TensorBoard writes parts of a chart into directories
    /// of their own (`loss_train/`, `loss_val/`).
    fn logger_of<'a>(&self, directory: &'a str) -> &'a str {
        let Some((parent, name)) = directory.rsplit_once('/').or((!directory.is_empty()).then_some(("", directory)))
        else {
            return directory;
        };
        let is_part = name.rsplit_once('_').is_some_and(|(_, part)| is_evaluation(part) || is_phase(part));
        let is_events = |directory: &str| {
            self.source_directories.binary_search(&(directory.to_owned(), Format::TensorBoard)).is_ok()
        };
        if is_part && is_events(directory) && is_events(parent) { parent } else { directory }
    }

    /// Whether in `parent`, outside its directory `child`, another training lives than that of a recording of `format`.
    fn is_shared(&self, parent: &str, child: &str, format: Format) -> bool {
        let prefix = if parent.is_empty() { String::new() } else { format!("{parent}/") };
        let start = self.source_directories.partition_point(|(other, _)| other.as_str() < prefix.as_str());
        let below = self.source_directories[start..].iter().take_while(|(other, _)| other.starts_with(&prefix));
        let mut seen = 0;
        for (directory, other) in below {
            // Tables beside the recordings of other formats are data more often than trainings.
            if other.is_table() && !format.is_table() {
                continue;
            }
            let inner = &directory[prefix.len()..];
            // A recording of the parent itself is a twin logger of the only training below it.
            if inner.is_empty() || inner == child || is_below(inner, child) {
                continue;
            }
            seen += 1;
            let of_evaluation = || match companion(inner, child) {
                Companion::Evaluation(length) => self.checkpoints_below(&directory[..prefix.len() + length]).is_empty(),
                Companion::Copy => true,
                Companion::None => false,
            };
            if seen > OUTER_ENTRIES || !of_evaluation() {
                return true;
            }
        }
        false
    }

    /// Checkpoints below a directory.
    fn checkpoints_below(&self, directory: &str) -> &[Checkpoint] {
        if directory.is_empty() {
            return &self.checkpoints;
        }
        let prefix = format!("{directory}/");
        let start = self.checkpoints.partition_point(|checkpoint| checkpoint.path < prefix);
        let count = self.checkpoints[start..].partition_point(|checkpoint| checkpoint.path.starts_with(&prefix));
        &self.checkpoints[start..start + count]
    }

    /// What lies beside files that the user named (the walk saw them alone), then the directories above the root,
    /// nearest first, until one in which another training lives.
    fn look_outside(&self) -> Outside {
        let mut outside = Outside { beside: Vec::new(), is_beside_alone: true, levels: Vec::new() };
        let mut inner = self.root.base.as_path();
        if !self.named.is_empty() {
            let around = look_around(inner, &self.named, "", &self.limits);
            outside.beside = around.checkpoints;
            outside.is_beside_alone = around.alone;
            if !around.alone {
                return outside;
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
            outside.levels.push(around.checkpoints);
            inner = outer;
        }
        outside
    }
}

/// Checkpoints around a root.
#[derive(Debug)]
struct Outside {
    /// Beside files that the user named, but for those in directories of other trainings.
    beside: Vec<Checkpoint>,
    /// Whether no other training lives beside them or below.
    is_beside_alone: bool,
    /// In the first, second and third directory above, as far as no other training lives there.
    levels: Vec<Vec<Checkpoint>>,
}

fn is_below(path: &str, directory: &str) -> bool {
    directory.is_empty() || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

struct Found {
    /// Directories that are one recording.
    claimed: HashSet<String>,
    sources: Vec<Source>,
    ambiguous: Vec<(usize, String)>,
    links: Vec<String>,
    skipped: u64,
}

/// Files and directories between two looks at whether to go on.
const PROCEED: usize = 64;

/// The directories of hidden files that are recordings by their names.
fn trainings_by_name(hidden: &[Entry], claimed: &HashSet<String>) -> Vec<(String, Format)> {
    let mut own: Vec<Vec<usize>> = READERS.iter().map(|_| Vec::new()).collect();
    for (index, entry) in hidden.iter().enumerate().filter(|(_, entry)| entry.kind == EntryKind::File) {
        let by_name = Asked(&entry.path).by_name();
        let best = by_name.iter().copied().max().filter(|best| *best >= Confidence::Likely);
        let reader = best.and_then(|best| by_name.iter().position(|confidence| *confidence == best));
        if let Some(reader) = reader.filter(|_| !is_claimed(claimed, &entry.path)) {
            own[reader].push(index);
        }
    }
    let sources = READERS.iter().zip(&own).flat_map(|(reader, own)| reader.group(hidden, own));
    sources.map(|source| (source.directory, source.format)).collect()
}

fn identify(
    walk: &mut Walk,
    named: &HashSet<String>,
    filter: &Filter,
    limits: &Limits,
    proceed: &mut dyn FnMut() -> bool,
) -> Found {
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
                // In every wandb folder, and what it points to lies beside it.
                (Ok(target), _) if target.is_dir() && entry.name() == "latest-run" => {}
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
        let named_file = named.contains(&entry.path);
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
        let is_believed = best == Confidence::Maybe && named_file && filter.names_columns;
        if best <= Confidence::Maybe && !is_believed {
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
    Found { claimed, sources, ambiguous, links, skipped }
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
