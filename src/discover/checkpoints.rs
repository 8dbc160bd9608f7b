//! Checkpoints that names tell of: among the entries of a walk, and in the directories above its root.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use super::walk::Walk;
use super::{Asked, FIRST_HEAD, is_below};
use crate::model::checkpoint_name;
use crate::model::source::plain;
use crate::model::{Checkpoint, Entry, EntryKind, Limits};
use crate::open::{self, names::escape};
use crate::read::Confidence;

/// Checkpoints that names tell of; `entries` are sorted by path.
pub fn checkpoints_among(entries: &[Entry], prefix: &str) -> Vec<Checkpoint> {
    let mut checkpoints = Vec::new();
    let mut outer: HashSet<&str> = HashSet::new();
    for (index, entry) in entries.iter().enumerate() {
        // What lies in a checkpoint is a part of it, whatever its name counts: shards, DeepSpeed's `global_step200/`.
        let mut above = entry.path.match_indices('/').map(|(at, _)| &entry.path[..at]);
        if !outer.is_empty() && above.any(|directory| outer.contains(directory)) {
            continue;
        }
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
                // What completes it may be compressed as well.
                let files: Vec<&str> = inside.filter(|file| !file.contains('/')).take(4096).map(plain).collect();
                checkpoint_name::is_complete(&files, &name)
            } else {
                entry.size > 0
            };
        if is_dir {
            outer.insert(&entry.path);
        }
        let path = format!("{prefix}{}", entry.path);
        checkpoints.push(Checkpoint { number: name.number, unit: name.unit, path, complete });
    }
    checkpoints
}

/// Directories looked at above the root.
pub const OUTER: usize = 3;
/// How deep: `checkpoints/step-100/metadata.json` shows a checkpoint whole.
const OUTER_DEPTH: usize = 3;
/// Entries looked at in one of them; more, and it is an archive of its own.
pub const OUTER_ENTRIES: usize = 4096;

/// Heads read above a root; more, and it is an archive of its own.
const OUTER_HEADS: usize = 64;

/// Whether a file beside the scanned root records a training: by its name, or its first bytes where that leaves doubt.
fn is_training(file: &Path, path: &str, heads: &mut usize, limits: &Limits) -> bool {
    let asked = Asked(path);
    let by_name = asked.by_name().into_iter().max().unwrap_or(Confidence::No);
    match by_name {
        Confidence::No => false,
        Confidence::Maybe if *heads >= OUTER_HEADS => true,
        Confidence::Maybe => {
            *heads += 1;
            let head = open::head(file, FIRST_HEAD.min(limits.head), limits).unwrap_or_default();
            asked.by_head(&head).into_iter().any(|confidence| confidence >= Confidence::Likely)
        }
        Confidence::Likely | Confidence::Certain => true,
    }
}

/// What a recording beside a training's directory is to that training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Companion {
    /// Perhaps a training of its own.
    None,
    /// A copy in a checkpoint.
    Copy,
    /// Its evaluation, if no checkpoint lies in the first directory of the path, whose name has that many bytes.
    Evaluation(usize),
}

/// Whether a directory holds an evaluation by its name: `eval`, `validation_1`, `val-math`.
pub fn is_evaluation(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let word = lower.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or("");
    ["eval", "evals", "evaluation", "val", "valid", "validation"].contains(&word)
}

/// The two phases of a training that are told apart by directories.
pub fn is_phase(name: &str) -> bool {
    ["train", "training", "test"].iter().any(|phase| name.eq_ignore_ascii_case(phase))
}

/// What the recording in the directory `other` is to the training in the directory `child` beside it, by names alone.
/// Where `child` itself is named like a companion (`iter_100/` beside `iter_200/`), names tell nothing.
pub fn companion(other: &str, child: &str) -> Companion {
    let is_plain = !is_checkpoint(child) && !is_evaluation(child) && !child.eq_ignore_ascii_case("test");
    if !is_plain {
        return Companion::None;
    }
    let first = other.split('/').next().unwrap_or(other);
    // Checkpoints further down are those of another training, of which nothing else is recorded.
    let mut parts = other.split('/').skip_while(|part| CHECKPOINT_FOLDERS.contains(part));
    if parts.next().is_some_and(is_checkpoint) {
        return Companion::Copy;
    }
    let is_test = first.eq_ignore_ascii_case("test") && is_phase(child);
    let is_evaluation = is_test || other.split('/').any(is_evaluation);
    if is_evaluation { Companion::Evaluation(first.len()) } else { Companion::None }
}

/// Names of directories that hold nothing but checkpoints.
const CHECKPOINT_FOLDERS: [&str; 6] = ["checkpoints", "checkpoint", "ckpts", "ckpt", "weights", "models"];

/// Whether a path leads through such directories alone: who lives there writes checkpoints for what lies above.
pub fn is_checkpoint_folder(path: &str) -> bool {
    path.split('/').all(|part| CHECKPOINT_FOLDERS.contains(&part))
}

fn is_checkpoint(name: &str) -> bool {
    checkpoint_name::parse(name, true).is_some()
}

/// What lies in a directory outside the root.
pub struct Around {
    /// Known by their names.
    pub checkpoints: Vec<Checkpoint>,
    /// No other training lives there.
    pub alone: bool,
}

/// Looks by names alone at what lies in `directory`, `known` left out.
pub fn look_around(directory: &Path, known: &[PathBuf], prefix: &str, limits: &Limits) -> Around {
    let mut walk = Walk::new(directory.to_owned());
    let mut walker = WalkDir::new(directory).follow_links(false).max_depth(OUTER_DEPTH.min(limits.depth)).into_iter();
    let mut alone = true;
    // A copy of the state in a checkpoint belongs to the training whose state lies beside the checkpoint.
    let is_copy = |known: &PathBuf| {
        known.file_name().is_some_and(|name| checkpoint_name::parse(&name.to_string_lossy(), true).is_some())
    };
    let known_is_copy = known.iter().any(is_copy);
    // The directory that is looked around, or none for files of the directory itself.
    let child = match known {
        [child] if !prefix.is_empty() => child.file_name().map(escape).unwrap_or_default(),
        _ => String::new(),
    };
    let mut evaluations: HashSet<String> = HashSet::new();
    // Directories beside named files in which others live.
    let mut others: HashSet<String> = HashSet::new();
    let mut is_cut = false;
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
            (alone, is_cut) = (false, true);
            break;
        }
        let path = walk.relative(directory, entry.path());
        let is_dir = entry.file_type().is_dir();
        let (folder, file) = path.rsplit_once('/').unwrap_or(("", &path));
        // A checkpoint carries a copy of its training's own state.
        let is_copy = child.is_empty() && folder.split('/').any(is_checkpoint);
        let (output, inner) = folder.rsplit_once('/').unwrap_or(("", folder));
        let folder = if is_checkpoint(inner) && plain(file) == "trainer_state.json" { output } else { folder };
        // In the directory itself: a twin logger of the one training below it.
        let is_twin = folder.is_empty() && !child.is_empty();
        let is_own = !child.is_empty() && (folder == child || is_below(folder, &child));
        if is_copy && plain(file) == "trainer_state.json" && !folder.is_empty() {
            others.insert(folder.to_owned());
        }
        if !is_dir && !is_copy && !is_twin && !is_own {
            let companion = companion(folder, &child);
            if companion != Companion::Copy && is_training(entry.path(), &path, &mut heads, limits) {
                if !folder.is_empty() {
                    others.insert(folder.to_owned());
                }
                if let Companion::Evaluation(length) = companion {
                    evaluations.insert(folder[..length].to_owned());
                } else {
                    alone = false;
                    if !prefix.is_empty() {
                        break;
                    }
                }
            }
        }
        let kind = if is_dir { EntryKind::Directory } else { EntryKind::File };
        let size = if is_dir { 0 } else { entry.metadata().map_or(0, |metadata| metadata.len()) };
        walk.entries.push(Entry { path, size, kind });
    }
    walk.entries.sort_unstable();
    let mut checkpoints = checkpoints_among(&walk.entries, prefix);
    let has_checkpoint = |checkpoint: &Checkpoint| {
        let path = &checkpoint.path[prefix.len()..];
        path.match_indices('/').any(|(at, _)| evaluations.contains(&path[..at]))
    };
    alone = alone && (evaluations.is_empty() || !checkpoints.iter().any(has_checkpoint));
    if prefix.is_empty() {
        others.retain(|other| !is_checkpoint_folder(other));
        // Where not all was looked at, others may live in any directory.
        let is_foreign =
            |path: &str, at: usize| others.contains(&path[..at]) || is_cut && !is_checkpoint_folder(&path[..at]);
        checkpoints
            .retain(|checkpoint| !checkpoint.path.match_indices('/').any(|(at, _)| is_foreign(&checkpoint.path, at)));
    }
    Around { checkpoints, alone }
}
