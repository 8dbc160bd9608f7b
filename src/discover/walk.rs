//! Walks folders, and archives as if they were folders. No link is followed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

#[cfg(feature = "archives")]
use super::members::Listed;
use super::{Filter, PROCEED, Refused};
use crate::model::{Entry, EntryKind, FaultKind, Limits};
use crate::open::Root;
use crate::open::names::{escape, shown};
use crate::read::Confidence;

/// What a walk met.
#[derive(Default)]
pub struct Walk {
    /// Where paths lie on disk.
    pub root: Root,
    /// Files and directories, members of archives too; sorted by path once the walk is over.
    pub entries: Vec<Entry>,
    /// Entries that the user's filter hides: never recordings of this scan, but checkpoints and trainings all the same.
    /// Directories that it leaves out are not entered.
    pub hidden: Vec<Entry>,
    /// What could not be looked at.
    pub refused: Vec<Refused>,
    /// What is known of members of archives before readers are asked, by path.
    pub known: HashMap<String, Known>,
    /// Archives that were looked at.
    #[cfg(feature = "archives")]
    pub archives: Vec<Listed>,
    /// Damage of archives.
    pub damage: Vec<Damaged>,
}

/// What is known of a member of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "archives"), allow(dead_code, reason = "only archives have members"))]
pub enum Known {
    /// What each reader says of its first bytes.
    Verdicts(Vec<Confidence>),
    /// Why it cannot be read: a code and plain words.
    Unreadable(&'static str, String),
    /// Where a link leads: a path like those of entries.
    Link(String),
}

/// Damage of an archive as a whole, or a directory that is too deep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Its path.
    pub path: String,
    /// What kind.
    pub kind: FaultKind,
    /// At which byte, if that is known.
    pub at: Option<u64>,
    /// In plain words.
    pub detail: String,
    /// Nothing of it could be looked at.
    pub is_whole: bool,
}

impl Walk {
    /// A walk below `base`, which has met nothing yet.
    pub fn new(base: PathBuf) -> Self {
        Self { root: Root { base, ..Root::default() }, ..Self::default() }
    }

    /// Adds a file that the user named.
    pub fn add_named(&mut self, path: &Path) {
        let relative = escape(path.file_name().unwrap_or_default());
        self.root.odd.insert(relative.clone(), path.to_owned());
        let kind = match path.metadata() {
            Ok(metadata) if metadata.is_file() => EntryKind::File,
            _ => EntryKind::Special,
        };
        let size = path.metadata().map_or(0, |metadata| metadata.len());
        self.entries.push(Entry { path: relative, size, kind });
    }

    /// Walks everything below the base.
    pub fn descend(&mut self, filter: &Filter, limits: &Limits, proceed: &mut dyn FnMut() -> bool) {
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
            let is_excluded = filter.excludes(&path);
            if kind == EntryKind::Directory {
                if is_excluded {
                    walker.skip_current_dir();
                    continue;
                }
                if entry.depth() >= limits.depth {
                    self.too_deep(&path, entry.path(), limits);
                }
            }
            let size = if kind == EntryKind::File { entry.metadata().map_or(0, |metadata| metadata.len()) } else { 0 };
            // An archive is a directory: its members are asked for.
            let is_taken = kind == EntryKind::Directory || is_archive(kind, &path) || filter.includes(&path);
            let entries = if is_taken && !is_excluded { &mut self.entries } else { &mut self.hidden };
            entries.push(Entry { path, size, kind });
        }
    }

    /// Tells of a directory that is not entered, if something is in it.
    fn too_deep(&mut self, path: &str, directory: &Path, limits: &Limits) {
        let is_empty = directory.read_dir().is_ok_and(|mut inside| inside.next().is_none());
        if !is_empty && self.damage.len() < limits.faults {
            let detail = format!("not entered: deeper than {} levels", limits.depth);
            let (path, kind) = (path.to_owned(), FaultKind::Limit);
            self.damage.push(Damaged { path, kind, at: None, detail, is_whole: false });
        }
    }

    /// A path as entries hold it.
    pub fn relative(&mut self, base: &Path, path: &Path) -> String {
        let relative = path.strip_prefix(base).unwrap_or(path);
        let escaped = shown(relative);
        if relative.to_str() != Some(escaped.as_str()) {
            self.root.odd.insert(escaped.clone(), path.to_owned());
        }
        escaped
    }
}

/// Whether a file's name is that of an archive.
fn is_archive(kind: EntryKind, path: &str) -> bool {
    #[cfg(feature = "archives")]
    {
        kind == EntryKind::File && super::members::container_of(path).is_some()
    }
    #[cfg(not(feature = "archives"))]
    {
        let _ = (kind, path);
        false
    }
}
