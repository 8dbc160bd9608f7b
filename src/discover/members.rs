//! The members of archives as entries of a walk. Their first bytes are looked at on the way through, where their names
//! leave doubt; only what readers say of them is kept.

use std::collections::{BTreeMap, HashSet};
use std::io::Read;

use super::walk::{Damaged, Known, Walk};
use super::{Asked, FIRST_HEAD, Filter, Refused};
use crate::model::checkpoint_name;
use crate::model::source::{DATABASE_COMPANIONS, companions, plain};
use crate::model::{Entry, EntryKind, FaultKind, Limits, Part, Source};
use crate::open::archive::{self, Archive, Container, Item, Member, What};
use crate::read::{Confidence, Damage};

/// An archive that was looked at.
pub struct Listed {
    path: String,
    container: Container,
    /// Files that can be read, by their path below the root.
    members: BTreeMap<String, Member>,
    /// What stands in it in all.
    count: usize,
}

/// What a walk takes for an archive by its name. A checkpoint may be called like one (`rl_model_4096_steps.zip`,
/// `checkpoint-10.pth.tar`) and is none.
pub fn container_of(path: &str) -> Option<Container> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_checkpoint = || {
        // `seed=1-step=300.zip` is a run as likely as a checkpoint: what is in it tells.
        checkpoint_name::parse(name, false).is_some_and(|found| {
            !matches!(found.layout, "lightning" | "nemo") || name.ends_with(".pth.tar") || name.ends_with(".pt.tar")
        })
    };
    Container::of_name(name).filter(|_| !is_checkpoint())
}

/// What stands at one path.
struct Found {
    kind: EntryKind,
    hidden: bool,
    size: u64,
    member: Option<Member>,
    known: Option<Known>,
}

impl Found {
    fn of_kind(kind: EntryKind) -> Self {
        Self { kind, hidden: false, size: 0, member: None, known: None }
    }
}

impl Walk {
    /// Replaces archives by what is in them. `named`: entries that the user named, which are archives by their content
    /// as well.
    pub fn expand(
        &mut self,
        named: &HashSet<String>,
        filter: &Filter,
        limits: &Limits,
        proceed: &mut dyn FnMut() -> bool,
    ) {
        let mut more = Vec::new();
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if entry.kind != EntryKind::File {
                continue;
            }
            let path = self.root.locate(&entry.path);
            let named = named.contains(&entry.path);
            let by_content = || Container::of_file(&path, limits).ok().flatten();
            let container =
                if named { Container::of_name(&entry.path).or_else(by_content) } else { container_of(&entry.path) };
            let Some(container) = container else { continue };
            if !proceed() {
                break;
            }
            let name = entry.path.clone();
            let mut found: BTreeMap<String, Found> = BTreeMap::new();
            let mut deep: Option<(String, usize)> = None;
            let mut visit = |item: Item<'_>| look(&name, item, filter, limits, &mut found, &mut deep);
            match archive::list(&path, container, limits, proceed, &mut visit) {
                Ok((container, damage)) => {
                    for (nth, (kind, at, detail)) in damage.into_iter().enumerate() {
                        let (path, is_whole) = (name.clone(), nth == 0 && found.is_empty());
                        self.damage.push(Damaged { path, kind, at, detail, is_whole });
                    }
                    if let Some((path, count)) = deep {
                        let more = if count > 1 { format!(", nor {} others", count - 1) } else { String::new() };
                        let detail = format!("not looked at{more}: deeper than {} levels", limits.depth);
                        self.damage.push(Damaged { path, kind: FaultKind::Limit, at: None, detail, is_whole: false });
                    }
                    self.entries[index].kind = EntryKind::Directory;
                    self.entries[index].size = 0;
                    self.add(name, container, found, &mut more);
                }
                Err(error) => {
                    let (kind, detail) = (Damage::kind_of(&error), error.to_string());
                    if named {
                        let (path, code, detail) = (name.clone(), code(kind), detail.clone());
                        self.refused.push(Refused { path, format: None, code, detail, is_recording: true });
                        self.entries[index].kind = EntryKind::Directory;
                    }
                    self.damage.push(Damaged { path: name, kind, at: None, detail, is_whole: true });
                }
            }
        }
        self.entries.append(&mut more);
    }

    fn add(&mut self, name: String, container: Container, mut found: BTreeMap<String, Found>, more: &mut Vec<Entry>) {
        let count = found.values().filter(|found| !found.hidden && found.kind != EntryKind::Directory).count();
        // Archives need not name the directories that their members lie in.
        let mut implied: Vec<String> = Vec::new();
        for path in found.keys() {
            let mut parent = path.as_str();
            while let Some((above, _)) = parent.rsplit_once('/') {
                // Neighbours share their directories.
                if above.len() <= name.len() || implied.last().is_some_and(|last| last == above) {
                    break;
                }
                implied.push(above.to_owned());
                parent = above;
            }
        }
        for path in implied {
            found.entry(path).or_insert_with(|| Found::of_kind(EntryKind::Directory));
        }
        let mut members = BTreeMap::new();
        for (path, found) in found {
            if let Some(known) = found.known {
                self.known.insert(path.clone(), known);
            }
            if let Some(member) = found.member {
                members.insert(path.clone(), member);
            }
            let entry = Entry { path, size: found.size, kind: found.kind };
            if found.hidden { self.hidden.push(entry) } else { more.push(entry) }
        }
        self.archives.push(Listed { path: name, container, members, count });
    }

    /// Keeps of the archives what sources need. Of those that the user named, each is an outcome.
    pub fn settle(&mut self, named: &HashSet<String>, sources: &[Source]) {
        if !named.is_empty() {
            let told = |path: &str| {
                let is_in =
                    |other: &str| other.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
                sources.iter().any(|source| is_in(&source.path))
                    || self.refused.iter().any(|refused| is_in(&refused.path))
            };
            let mut silent = Vec::new();
            for listed in self.archives.iter().filter(|listed| named.contains(&listed.path) && !told(&listed.path)) {
                let damage = self.damage.iter().find(|damaged| damaged.path == listed.path);
                let detail = match (listed.count, damage) {
                    (0, Some(damage)) => damage.detail.clone(),
                    (0, None) => "an empty archive".to_owned(),
                    (count, _) => format!("an archive of {count} files, none of which a reader recognises"),
                };
                let code = damage.filter(|_| listed.count == 0).map_or("not-a-recording", |damage| code(damage.kind));
                silent.push(Refused { path: listed.path.clone(), format: None, code, detail, is_recording: true });
            }
            self.refused.append(&mut silent);
        }
        let mut listed = std::mem::take(&mut self.archives);
        listed.sort_by(|a, b| a.path.cmp(&b.path));
        let mut archives: Vec<Archive> = listed
            .iter()
            .map(|listed| Archive {
                path: listed.path.clone(),
                container: listed.container,
                members: Default::default(),
                spent: Default::default(),
            })
            .collect();
        for part in sources.iter().flat_map(|source| &source.parts) {
            for (slash, _) in part.path.match_indices('/') {
                let Ok(at) = listed.binary_search_by(|listed| listed.path.as_str().cmp(&part.path[..slash])) else {
                    continue;
                };
                if let Some(member) = listed[at].members.get(&part.path) {
                    archives[at].members.insert(part.path[slash + 1..].to_owned(), *member);
                }
                // A database is read with its log, which is no part of its own.
                let beside = DATABASE_COMPANIONS.iter().flat_map(|ending| companions(&part.path, ending));
                for path in beside.filter(|_| is_database(part)) {
                    if let Some(member) = listed[at].members.get(&path) {
                        archives[at].members.insert(path[slash + 1..].to_owned(), *member);
                    }
                }
            }
        }
        archives.retain(|archive| !archive.members.is_empty());
        self.root.archives = archives;
    }
}

/// The code of the reason why nothing of an archive can be read.
pub fn code(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Truncated => "cut-header",
        FaultKind::Limit => "limit",
        FaultKind::Io => "io-error",
        FaultKind::Version => "unsupported",
        _ => "corrupt",
    }
}

/// Takes a member in. The last one of a name counts, as it does where an archive is unpacked.
/// `deep`: the first of those that lie too deep, and how many do.
fn look(
    archive: &str,
    item: Item<'_>,
    filter: &Filter,
    limits: &Limits,
    found: &mut BTreeMap<String, Found>,
    deep: &mut Option<(String, usize)>,
) {
    let path = format!("{archive}/{}", item.path);
    // As on disk: nothing is seen in a directory that is left out.
    if path[archive.len() + 1..].match_indices('/').any(|(at, _)| filter.excludes(&path[..archive.len() + 1 + at])) {
        return;
    }
    let is_directory = item.what == What::Directory;
    let hidden = filter.excludes(&path) || (!is_directory && !filter.includes(&path));
    if path.bytes().filter(|byte| *byte == b'/').count() >= limits.depth {
        if !is_directory && !hidden {
            deep.get_or_insert((path, 0)).1 += 1;
        }
        return;
    }
    if hidden {
        let kind = if matches!(item.what, What::File(_)) { EntryKind::File } else { EntryKind::Special };
        let size = if let What::File(member) = &item.what { member.size } else { 0 };
        if !is_directory {
            found.insert(path, Found { hidden, size, ..Found::of_kind(kind) });
        }
        return;
    }
    let new = match item.what {
        What::Directory => Found::of_kind(EntryKind::Directory),
        What::Special => Found::of_kind(EntryKind::Special),
        What::File(member) => {
            let known = known(&path, item.contents, limits);
            Found { size: member.size, member: Some(member), known, ..Found::of_kind(EntryKind::File) }
        }
        What::Unsupported(size, detail) => {
            let known = Some(Known::Unreadable("unsupported", format!("{detail} is not read")));
            Found { size, known, ..Found::of_kind(EntryKind::File) }
        }
        What::SymbolicLink(target) => {
            let known = Some(Known::Link(format!("{archive}/{target}")));
            Found { known, ..Found::of_kind(EntryKind::Link) }
        }
        What::HardLink(target) => {
            let target = format!("{archive}/{target}");
            let name = |path: &str| path.rsplit('/').next().map(str::to_owned);
            match found.get(&target).filter(|other| other.member.is_some()) {
                // The same bytes, of which readers think the same under the same name.
                Some(other) if name(&target) == name(&path) => {
                    let (member, known) = (other.member, other.known.clone());
                    Found { size: other.size, member, known, ..Found::of_kind(EntryKind::File) }
                }
                _ => Found { known: Some(Known::Link(target)), ..Found::of_kind(EntryKind::Link) },
            }
        }
    };
    found.insert(path, new);
}

/// What readers say of a file in an archive; `None` where its name says enough.
fn known(path: &str, mut contents: &mut dyn Read, limits: &Limits) -> Option<Known> {
    let nested = || {
        let detail = "compressed inside an archive: unpack the archive first".to_owned();
        Some(Known::Unreadable("nested", detail))
    };
    let name = path.rsplit('/').next().unwrap_or(path);
    if archive::is_packed_name(name) {
        return nested();
    }
    let asked = Asked(path);
    let by_name = asked.by_name().into_iter().max().unwrap_or(Confidence::No);
    if matches!(by_name, Confidence::No | Confidence::Certain) {
        return None;
    }
    let mut head = Vec::new();
    let mut verdicts = Vec::new();
    for limit in [FIRST_HEAD.min(limits.head), limits.head] {
        let want = (limit - head.len().min(limit)) as u64;
        // What stands before damage tells what it is.
        let failed = (&mut contents).take(want).read_to_end(&mut head).is_err();
        if archive::is_packed(&head) {
            return nested();
        }
        verdicts = asked.by_head(&head);
        if failed || head.len() < limit || verdicts.iter().any(|confidence| *confidence >= Confidence::Likely) {
            break;
        }
    }
    Some(Known::Verdicts(verdicts))
}

/// Whether a part may be a database of SQLite.
fn is_database(part: &Part) -> bool {
    let name = plain(&part.name);
    [".db", ".db3", ".sqlite", ".sqlite3", ".swanlab"].iter().any(|ending| name.ends_with(ending))
}
