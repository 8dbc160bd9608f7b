//! Goes through a tar archive forward, member by member.

use std::io::{self, BufReader, Read, Seek};

use super::compressed::Decompressed;
use crate::model::{FaultKind, Limits};
use crate::read::Damage;
use crate::wire::tar::{self, BLOCK, Kind, Pax};

/// Bytes in order, some of which can be passed over.
pub trait Forward: Read {
    /// Passes over bytes; gives how many there were.
    fn pass(&mut self, count: u64) -> io::Result<u64>;
}

impl<R: Read> Forward for Decompressed<R> {
    fn pass(&mut self, count: u64) -> io::Result<u64> {
        let mut scratch = [0; 16 << 10];
        let mut left = count;
        while left > 0 {
            let want = scratch.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match self.read(&mut scratch[..want]) {
                Ok(0) => break,
                Ok(passed) => left -= passed as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count - left)
    }
}

/// A file on disk, of the size that it had when it was opened. Headers of small members lie close together: one read
/// serves many.
pub struct Seekable<F> {
    file: BufReader<F>,
    at: u64,
    size: u64,
}

impl<F: Read + Seek> Seekable<F> {
    /// From its begin.
    pub fn new(file: F, size: u64) -> Self {
        Self { file: BufReader::with_capacity(32 << 10, file), at: 0, size }
    }
}

impl<F: Read + Seek> Read for Seekable<F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(into)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl<F: Read + Seek> Forward for Seekable<F> {
    fn pass(&mut self, count: u64) -> io::Result<u64> {
        let passed = count.min(self.size.saturating_sub(self.at));
        // Within the file, whose size fits.
        self.file.seek_relative(i64::try_from(passed).unwrap_or(i64::MAX))?;
        self.at += passed;
        Ok(passed)
    }
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its number among the headers of the archive: the same in every pass.
    pub ordinal: u64,
    /// Name as it stands there.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Where its contents begin.
    pub at: u64,
    /// Their bytes; may be forged.
    pub size: u64,
    /// What a link points to.
    pub link: Vec<u8>,
    /// Its name, or what stands beside it, is longer than [`Limits::member_name`].
    pub too_long: bool,
}

/// A pass through an archive.
pub struct Tar<R> {
    input: R,
    /// Bytes passed.
    at: u64,
    /// Headers met.
    ordinal: u64,
    /// Bytes of the current member's contents that are left, and of the padding behind them.
    contents: u64,
    padding: u64,
    /// Two blocks of zeros end an archive; others may follow it (`cat a.tar b.tar`).
    zeros: bool,
    /// After a block that is no header: the next that is one.
    lost: bool,
    ended: bool,
    /// What ended it inside a member's contents: the next header would not have been found.
    broken: Option<Damage>,
    name_limit: u64,
    limit: u64,
}

impl<R: Forward> Tar<R> {
    /// Begins a pass.
    pub fn new(input: R, limits: &Limits) -> Self {
        Self {
            input,
            at: 0,
            ordinal: 0,
            contents: 0,
            padding: 0,
            zeros: false,
            lost: false,
            ended: false,
            broken: None,
            name_limit: limits.member_name,
            limit: limits.archive,
        }
    }

    /// Where the block lies that is no header, behind an error that says so; in an archive that is compressed, a byte of
    /// what it unpacks to.
    pub fn lost_at(&self) -> Option<u64> {
        (self.lost && !self.ended).then(|| self.at.saturating_sub(BLOCK as u64))
    }

    /// Number of the header that the next one will have.
    pub fn next_ordinal(&self) -> u64 {
        self.ordinal
    }

    /// The next member, what is left of the one before passed over. Behind an error of kind
    /// [`FaultKind::Unparsable`] it is worth asking again: another header may follow.
    pub fn next(&mut self) -> io::Result<Option<Found>> {
        let mut name: Option<Vec<u8>> = None;
        let mut link: Option<Vec<u8>> = None;
        let (mut pax, mut too_long) = (Pax::default(), false);
        while !self.ended {
            let Some(block) = self.block()? else { return Ok(None) };
            if tar::is_end(&block) {
                self.zeros = true;
                continue;
            }
            let parsed = tar::parse(&block).filter(|_| !self.lost || &block[257..262] == b"ustar");
            let Some(header) = parsed else {
                if self.lost {
                    continue;
                }
                if self.zeros {
                    // Old tapes leave anything behind the end.
                    self.ended = true;
                    return Ok(None);
                }
                self.lost = true;
                let begin = self.at - BLOCK as u64;
                return Err(Damage::error(FaultKind::Unparsable, format!("no tar header at byte {begin}")));
            };
            (self.zeros, self.lost) = (false, false);
            let ordinal = self.ordinal;
            self.ordinal += 1;
            let mut size = header.size;
            let is_extension = matches!(header.kind, Kind::LongName | Kind::LongLink | Kind::Pax | Kind::PaxGlobal);
            let mut kind = header.kind;
            let long_name = pax.path.as_ref().or(name.as_ref());
            if kind == Kind::File && long_name.unwrap_or(&header.name).ends_with(b"/") && !too_long {
                kind = Kind::Directory;
                // Writers of the old form put anything there; those that know long names do not.
                size = if long_name.is_some() { size } else { 0 };
            }
            if !is_extension && matches!(kind, Kind::File | Kind::Sparse | Kind::Other(_)) {
                size = pax.size.unwrap_or(size);
            }
            self.contents = size;
            self.padding = size.wrapping_neg() % BLOCK as u64;
            if is_extension {
                if size > self.name_limit {
                    too_long |= header.kind != Kind::PaxGlobal;
                    continue;
                }
                let mut value = Vec::new();
                if let Err(error) = self.contents().read_to_end(&mut value) {
                    self.broken = None;
                    return Err(error);
                }
                match header.kind {
                    Kind::LongName => name = Some(tar::text(&value).to_vec()),
                    Kind::LongLink => link = Some(tar::text(&value).to_vec()),
                    Kind::Pax => pax.read(&value),
                    // What it says of all members (a comment, mostly) names none of them.
                    _ => {}
                }
                continue;
            }
            let sparse = pax.sparse || header.kind == Kind::Sparse;
            return Ok(Some(Found {
                ordinal,
                name: pax.path.or(name).unwrap_or(header.name),
                kind: if sparse { Kind::Sparse } else { kind },
                at: self.at,
                size,
                link: pax.link.or(link).unwrap_or(header.link),
                too_long,
            }));
        }
        match self.broken.take() {
            Some(damage) => Err(Damage::error(damage.kind, damage.detail)),
            None => Ok(None),
        }
    }

    /// The contents of the current member, from where they were left.
    pub fn contents(&mut self) -> Contents<'_, R> {
        Contents { tar: self }
    }

    /// The next block, what is left of a member passed over; `None` where the archive ends.
    fn block(&mut self) -> io::Result<Option<[u8; BLOCK]>> {
        let rest = self.contents.saturating_add(self.padding);
        if rest > 0 {
            let passed = self.input.pass(rest).inspect_err(|_| self.ended = true)?;
            self.at = self.at.saturating_add(passed);
            if passed < rest {
                self.ended = true;
                // A last member may lack its padding.
                let whole = passed >= self.contents;
                return if whole { Ok(None) } else { Err(cut()) };
            }
            (self.contents, self.padding) = (0, 0);
        }
        if self.at > self.limit {
            self.ended = true;
            let detail = format!("the archive unpacks to more than {} bytes", self.limit);
            return Err(Damage::error(FaultKind::Limit, detail));
        }
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.input.read(&mut block[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.ended = true;
                    return Err(error);
                }
            }
        }
        self.at += filled as u64;
        if filled == BLOCK {
            return Ok(Some(block));
        }
        self.ended = true;
        // Where no header was found any more, that tells it all.
        if self.lost || filled == 0 && self.zeros {
            return Ok(None);
        }
        Err(cut())
    }
}

fn cut() -> io::Error {
    Damage::error(FaultKind::Truncated, "the archive is cut")
}

/// The contents of a member. An archive that ends inside them is an error.
pub struct Contents<'a, R> {
    tar: &'a mut Tar<R>,
}

impl<R: Forward> Read for Contents<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let want = into.len().min(usize::try_from(self.tar.contents).unwrap_or(usize::MAX));
        if want == 0 || self.tar.ended {
            return Ok(0);
        }
        let error = match self.tar.input.read(&mut into[..want]) {
            Ok(0) => cut(),
            Ok(count) => {
                self.tar.contents -= count as u64;
                self.tar.at += count as u64;
                return Ok(count);
            }
            Err(error) => error,
        };
        if error.kind() != io::ErrorKind::Interrupted {
            self.tar.ended = true;
            let unknown = || Damage { kind: Damage::kind_of(&error), detail: error.to_string() };
            self.tar.broken = Some(Damage::of(&error).cloned().unwrap_or_else(unknown));
        }
        Err(error)
    }
}
