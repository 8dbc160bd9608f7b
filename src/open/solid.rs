//! A compressed tar is one stream: its members are read in one pass, forward. What a later source wants of the part that
//! is passed over is kept within bounds; only beyond them is the archive read again from its begin, and not often.

use std::cell::RefMut;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read};

use bytes::Bytes;

use super::archive::{Archive, Member};
use super::compressed::Decompressed;
use super::tarball::Tar;
use crate::model::{FaultKind, Limits};
use crate::read::Damage;

/// The packed bytes of an archive.
pub type Packed<'a> = Box<dyn Read + 'a>;

/// Contents that were kept, and the damage behind them.
#[derive(Clone)]
pub struct Kept {
    bytes: Bytes,
    damage: Option<Damage>,
}

impl Read for Kept {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.len().min(into.len());
        into[..count].copy_from_slice(&self.bytes.split_to(count));
        match self.damage.take_if(|_| count == 0 && !into.is_empty()) {
            Some(damage) => Err(Damage::error(damage.kind, damage.detail)),
            None => Ok(count),
        }
    }
}

/// The pass through the archive of one job.
#[derive(Default)]
pub struct Solid<'a> {
    /// The archive, by its path.
    archive: Option<&'a str>,
    tar: Option<Tar<Decompressed<Packed<'a>>>>,
    /// By ordinal.
    kept: BTreeMap<u64, Kept>,
    held: u64,
    /// How many sources that are not done want a member.
    wanted: HashMap<u64, u32>,
    /// Members of the source whose turn it is.
    own: HashSet<u64>,
    rereads: u32,
}

/// Where a member's bytes are.
pub enum Reached {
    /// In memory.
    Kept(Kept),
    /// Next in the stream.
    Here,
}

impl<'a> Solid<'a> {
    /// Members that sources will want.
    pub fn want(&mut self, ordinals: impl Iterator<Item = u64>) {
        ordinals.for_each(|ordinal| *self.wanted.entry(ordinal).or_default() += 1);
    }

    /// A source's turn: its members come before those of others.
    pub fn turn(&mut self, ordinals: impl Iterator<Item = u64>) {
        self.own = ordinals.collect();
    }

    /// The source is done.
    pub fn done(&mut self) {
        for ordinal in std::mem::take(&mut self.own) {
            let left = self.wanted.get_mut(&ordinal).map_or(0, |left| {
                *left -= 1;
                *left
            });
            if left == 0 {
                self.wanted.remove(&ordinal);
                self.drop_kept(ordinal);
            }
        }
    }

    /// Forgets where it was: a panic may have left it anywhere.
    pub fn reset(&mut self) {
        self.tar = None;
    }

    fn drop_kept(&mut self, ordinal: u64) {
        if let Some(kept) = self.kept.remove(&ordinal) {
            self.held -= kept.bytes.len() as u64;
        }
    }

    /// Goes to a member. `begin` opens the archive from its begin.
    pub fn reach(
        &mut self,
        archive: &'a Archive,
        member: &Member,
        limits: &Limits,
        begin: impl FnOnce() -> io::Result<Decompressed<Packed<'a>>>,
    ) -> io::Result<Reached> {
        if self.archive != Some(archive.path.as_str()) {
            (self.archive, self.tar, self.held, self.rereads) = (Some(archive.path.as_str()), None, 0, 0);
            self.kept.clear();
        }
        if let Some(kept) = self.kept.get(&member.ordinal) {
            return Ok(Reached::Kept(kept.clone()));
        }
        if self.tar.as_ref().is_some_and(|tar| tar.next_ordinal() > member.ordinal) {
            self.tar = None;
            self.rereads += 1;
            if self.rereads > limits.rereads {
                let detail = format!(
                    "its files lie so far apart in the archive that it would be read more than {} times: unpack it first",
                    limits.rereads
                );
                return Err(Damage::error(FaultKind::Limit, detail));
            }
        }
        let mut tar = match self.tar.take() {
            Some(tar) => tar,
            None => Tar::new(begin()?, limits),
        };
        let mut failed = None;
        let reached = loop {
            match tar.next() {
                Ok(Some(found)) if found.ordinal == member.ordinal => {
                    let again = self.own.len() > 1 || self.wanted.get(&member.ordinal).is_some_and(|count| *count > 1);
                    let kept = if again { self.keep(&mut tar, found.ordinal, found.size, limits)? } else { None };
                    break Ok(kept.map_or(Reached::Here, Reached::Kept));
                }
                Ok(Some(found)) => {
                    if self.wanted.contains_key(&found.ordinal) && !self.kept.contains_key(&found.ordinal) {
                        self.keep(&mut tar, found.ordinal, found.size, limits)?;
                    }
                }
                Ok(None) => {
                    let cut = || Damage::error(FaultKind::Truncated, "the archive is cut before this member");
                    break Err(failed.unwrap_or_else(cut));
                }
                // Another header may follow; where none does, this is what is wrong.
                Err(error) if Damage::of(&error).is_some() => failed = Some(error),
                Err(error) => break Err(error),
            }
        };
        self.tar = Some(tar);
        reached
    }

    /// Takes the contents into memory, if there is room.
    fn keep(
        &mut self,
        tar: &mut Tar<Decompressed<Packed<'a>>>,
        ordinal: u64,
        size: u64,
        limits: &Limits,
    ) -> io::Result<Option<Kept>> {
        let fits = |held: u64| held.saturating_add(size) <= limits.cache;
        if self.own.contains(&ordinal) && size <= limits.cache {
            // Those of other sources make room, the last ones first.
            while !fits(self.held) {
                let Some(other) = self.kept.keys().rev().copied().find(|other| !self.own.contains(other)) else {
                    break;
                };
                self.drop_kept(other);
            }
        }
        if !fits(self.held) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let damage = match tar.contents().read_to_end(&mut bytes) {
            Ok(_) => None,
            Err(error) => match Damage::of(&error) {
                Some(damage) => Some(damage.clone()),
                None => return Err(error),
            },
        };
        self.held += bytes.len() as u64;
        let kept = Kept { bytes: bytes.into(), damage };
        self.kept.insert(ordinal, kept.clone());
        Ok(Some(kept))
    }
}

/// A member read straight from the pass.
pub struct Streaming<'s, 'a> {
    /// The pass, which stands at the member.
    pub solid: RefMut<'s, Solid<'a>>,
}

impl Read for Streaming<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.solid.tar.as_mut().map_or(Ok(0), |tar| tar.contents().read(into))
    }
}

/// A member reached in a pass of its own, for a reader that holds two at a time.
pub struct Alone<'a> {
    /// A pass that stands at the member.
    pub solid: Solid<'a>,
}

impl Read for Alone<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.solid.tar.as_mut().map_or(Ok(0), |tar| tar.contents().read(into))
    }
}
