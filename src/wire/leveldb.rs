//! The log framing of LevelDB, as the trackers use it: a file header of 7 bytes, then blocks of 32,768 bytes (the header counts
//! in the first) that hold chunks. A chunk is the `u32` checksum, the `u16` length, the type (FULL, FIRST, MIDDLE, LAST) and the
//! payload, little-endian; none crosses a block, and the last bytes of a block that could hold no chunk header are zero. The
//! checksum is the plain CRC-32 of zlib over type and payload, unlike LevelDB's own. (`core/pkg/leveldb/record.go` of W&B)

/// Bytes of a block.
pub const BLOCK: u64 = 32 << 10;
/// Bytes before a chunk's payload.
pub const CHUNK_HEADER: usize = 7;
/// Bytes of the file header.
pub const FILE_HEADER: usize = 7;

const FULL: u8 = 1;
const FIRST: u8 = 2;
const LAST: u8 = 4;

/// Bytes that may be checked in vain for each byte that is passed over, and at least: what bounds the work on a file
/// that is made of chunk headers.
const CHECKS: (u64, u64) = (64, 4 << 20);
/// Zero bytes at the end of a file that are no part of a payload.
const ZERO_TAIL: u64 = 16;

/// The file header: four letters, two bytes of magic, the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// `:W&B`, `:SWL`.
    pub ident: [u8; 4],
    /// As they stand in the file.
    pub magic: [u8; 2],
    /// The versions that are read.
    pub versions: &'static [u8],
}

impl FileHeader {
    /// The version that a file says, if it begins with this header.
    pub fn version_of(&self, bytes: &[u8]) -> Option<u8> {
        bytes.strip_prefix(&self.ident)?.strip_prefix(&self.magic)?.first().copied()
    }

    /// Whether bytes too few for a header may become one.
    pub fn may_begin(&self, bytes: &[u8]) -> bool {
        [&self.ident[..], &self.magic].concat().starts_with(bytes)
    }

    /// The header of a version.
    pub fn bytes(&self, version: u8) -> [u8; FILE_HEADER] {
        let ([a, b, c, d], [e, f]) = (self.ident, self.magic);
        [a, b, c, d, e, f, version]
    }
}

/// The checksum of a chunk: over its type byte and payload.
#[inline]
#[must_use]
pub fn checksum(type_and_payload: &[u8]) -> u32 {
    crc32fast::hash(type_and_payload)
}

/// One record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Offset of its first chunk.
    pub at: u64,
    /// The payload.
    pub bytes: &'a [u8],
    /// Equal for equal payloads that are cut alike, and hardly for others: made of the checksums.
    pub fingerprint: u64,
}

/// Why bytes were passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// No chunk with a sound checksum; records may be missing.
    Damage,
    /// A record begins, and another one follows before its end.
    Unfinished,
    /// A record longer than is allowed.
    Limit,
    /// The file ends inside a record.
    Cut,
    /// The file ends in bytes that were never written.
    Zeros,
}

/// What comes next.
#[derive(Debug)]
pub enum Next<'a> {
    /// A record.
    Record(Record<'a>),
    /// A stretch that holds none: offset, bytes, reason.
    Passed(u64, u64, Passed),
    /// More bytes are wanted, or the end is reached.
    More,
}

/// A stretch that is being passed over.
#[derive(Clone, Copy, Debug)]
struct Lost {
    begin: u64,
    reason: Passed,
    /// Behind its last byte that is not zero.
    nonzero: u64,
    /// Where the chunk would end with which it begins.
    claimed: u64,
}

/// A walk over the records of a file in windows. What comes out does not depend on the windows as long as they can hold each
/// chunk.
#[derive(Debug)]
pub struct Log {
    /// Bytes that a record and a window may hold.
    limit: usize,
    assembled: Vec<u8>,
    /// Offset and fingerprint of the record that is assembled.
    begun: Option<(u64, u64)>,
    is_given: bool,
    lost: Option<Lost>,
    passed: u64,
    checked: u64,
}

/// What stands at an offset.
enum Chunk<'a> {
    /// A sound one.
    Sound { kind: u8, crc: u32, payload: &'a [u8] },
    /// None; where it would end if its length were right.
    Broken { claimed: u64 },
    /// Too few bytes to tell.
    Short,
    /// No chunk fits before the next block.
    Padding(usize),
}

impl Log {
    /// A walk from behind the file header; records of more than `limit` bytes are passed over.
    pub fn new(limit: usize) -> Self {
        let (assembled, begun, is_given, lost) = (Vec::new(), None, false, None);
        Self { limit, assembled, begun, is_given, lost, passed: 0, checked: 0 }
    }

    /// The next record of `window`, which begins at offset `at` of the file and of which `used` bytes are done with; `end`
    /// says that nothing follows.
    #[inline]
    pub fn next<'a>(&'a mut self, window: &'a [u8], used: &mut usize, at: u64, end: bool) -> Next<'a> {
        if self.is_given {
            self.is_given = false;
            self.assembled.clear();
        }
        loop {
            let (rest, place) = (&window[*used..], at + *used as u64);
            if self.lost.is_some() {
                match self.pass_over(window, used, at, end) {
                    Some(next) => return next,
                    None => continue,
                }
            }
            match chunk(rest, place) {
                Chunk::Sound { kind: FULL, crc, payload } if self.begun.is_none() => {
                    *used += CHUNK_HEADER + payload.len();
                    if payload.len() > self.limit {
                        self.lose(place, Passed::Limit, place);
                        continue;
                    }
                    let fingerprint = fingerprint(0, crc, payload.len());
                    return Next::Record(Record { at: place, bytes: payload, fingerprint });
                }
                Chunk::Sound { kind: FULL | FIRST, .. } if self.begun.is_some() => {
                    let (begin, _) = self.begun.take().unwrap_or((place, 0));
                    self.assembled.clear();
                    return Next::Passed(begin, place - begin, Passed::Unfinished);
                }
                Chunk::Sound { kind, crc, payload } => {
                    let begun = if kind == FIRST { Some((place, 0)) } else { self.begun };
                    let Some((begin, hash)) = begun else {
                        self.lose(place, Passed::Damage, place);
                        continue;
                    };
                    *used += CHUNK_HEADER + payload.len();
                    if self.assembled.len() + payload.len() > self.limit {
                        self.lose(begin, Passed::Limit, begin);
                        continue;
                    }
                    self.assembled.extend_from_slice(payload);
                    let hash = fingerprint(hash, crc, payload.len());
                    if kind != LAST {
                        self.begun = Some((begin, hash));
                        continue;
                    }
                    self.begun = None;
                    self.is_given = true;
                    return Next::Record(Record { at: begin, bytes: &self.assembled, fingerprint: hash });
                }
                Chunk::Padding(count) => *used += count,
                Chunk::Broken { claimed } => self.lose(place, Passed::Damage, claimed),
                Chunk::Short if end && rest.is_empty() => {
                    let Some((begin, _)) = self.begun.take() else { return Next::More };
                    return Next::Passed(begin, place - begin, Passed::Cut);
                }
                // Whether the end cuts this chunk, or its length is wrong, is told by what follows.
                Chunk::Short if end => self.lose(place, Passed::Cut, place),
                Chunk::Short if *used == 0 && window.len() >= self.limit => self.lose(place, Passed::Limit, place),
                Chunk::Short => return Next::More,
            }
        }
    }

    /// From here on, or from the begin of the record that is being assembled, nothing counts until a record begins.
    #[cold]
    fn lose(&mut self, place: u64, reason: Passed, claimed: u64) {
        let begin = self.begun.take().map_or(place, |(begin, _)| begin);
        self.assembled.clear();
        self.lost = Some(Lost { begin, reason, nonzero: begin, claimed });
    }

    /// Looks for the next record; `None` once it is found or the end is reached without anything to tell.
    #[cold]
    fn pass_over<'a>(&mut self, window: &'a [u8], used: &mut usize, at: u64, end: bool) -> Option<Next<'a>> {
        let mut lost = self.lost?;
        let from = *used;
        while *used < window.len() {
            let (rest, place) = (&window[*used..], at + *used as u64);
            // A header that is not whole might be one.
            if rest.len() < CHUNK_HEADER && !end {
                self.keep(lost, *used - from);
                return Some(Next::More);
            }
            // A chunk that is cut is no record whatever it says, and the one with which the damage begins is none.
            if place > lost.begin && begins_record(rest) && self.checked < self.may_check(*used - from) {
                match chunk(rest, place) {
                    Chunk::Sound { .. } => break,
                    Chunk::Short if !end && (*used > 0 || window.len() < self.limit) => {
                        self.keep(lost, *used - from);
                        return Some(Next::More);
                    }
                    Chunk::Broken { claimed } => self.checked += claimed - place,
                    Chunk::Short | Chunk::Padding(_) => {}
                }
            }
            if rest[0] != 0 {
                lost.nonzero = place + 1;
            }
            *used += 1;
        }
        let place = at + *used as u64;
        if *used == window.len() && !end {
            self.keep(lost, *used - from);
            return Some(Next::More);
        }
        self.passed += (*used - from) as u64;
        self.lost = None;
        let is_found = *used < window.len();
        let zeros = place - lost.nonzero;
        let reason = match lost.reason {
            Passed::Cut if is_found => Passed::Damage,
            // What was never written reads as zero: alone, or as the end of the last record.
            Passed::Damage | Passed::Cut
                if !is_found && (lost.nonzero == lost.begin || (zeros >= ZERO_TAIL && lost.claimed > lost.nonzero)) =>
            {
                Passed::Zeros
            }
            reason => reason,
        };
        Some(Next::Passed(lost.begin, place - lost.begin, reason))
    }

    fn keep(&mut self, lost: Lost, passed: usize) {
        self.passed += passed as u64;
        self.lost = Some(lost);
    }

    fn may_check(&self, passed: usize) -> u64 {
        CHECKS.1.saturating_add((self.passed + passed as u64).saturating_mul(CHECKS.0))
    }
}

/// The chunk with which `rest` begins, at an offset of the file.
#[inline(always)]
fn chunk(rest: &[u8], place: u64) -> Chunk<'_> {
    let room = (BLOCK - place % BLOCK) as usize;
    if room < CHUNK_HEADER {
        return if rest.len() < room { Chunk::Short } else { Chunk::Padding(room) };
    }
    let Some((header, behind)) = rest.split_first_chunk::<CHUNK_HEADER>() else { return Chunk::Short };
    let [a, b, c, d, low, high, kind] = *header;
    let length = usize::from(u16::from_le_bytes([low, high]));
    let claimed = place + (CHUNK_HEADER + length) as u64;
    // Between FIRST and LAST is MIDDLE.
    if !(FULL..=LAST).contains(&kind) || CHUNK_HEADER + length > room {
        return Chunk::Broken { claimed: place + CHUNK_HEADER as u64 };
    }
    let Some(payload) = behind.get(..length) else { return Chunk::Short };
    let crc = checksum(&rest[CHUNK_HEADER - 1..CHUNK_HEADER + length]);
    if crc == u32::from_le_bytes([a, b, c, d]) {
        Chunk::Sound { kind, crc, payload }
    } else {
        Chunk::Broken { claimed }
    }
}

/// Whether the first chunk of a record may begin here.
fn begins_record(rest: &[u8]) -> bool {
    matches!(rest.get(CHUNK_HEADER - 1), Some(&(FULL | FIRST)))
}

#[inline]
fn fingerprint(before: u64, crc: u32, length: usize) -> u64 {
    (before.rotate_left(29) ^ u64::from(crc) ^ ((length as u64) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The writing side, for tests.
#[cfg(test)]
pub(crate) mod writer {
    use super::{BLOCK, CHUNK_HEADER, FILE_HEADER, FIRST, FULL, LAST, checksum};

    /// One chunk.
    pub fn chunk(kind: u8, payload: &[u8]) -> Vec<u8> {
        let body = [&[kind][..], payload].concat();
        let length = (payload.len() as u16).to_le_bytes();
        [&checksum(&body).to_le_bytes()[..], &length, &body].concat()
    }

    /// A file with these records, cut into chunks as the trackers do.
    pub fn log<B: AsRef<[u8]>>(header: [u8; FILE_HEADER], records: impl IntoIterator<Item = B>) -> Vec<u8> {
        let mut file = header.to_vec();
        for record in records {
            let mut rest = record.as_ref();
            let mut is_first = true;
            loop {
                let mut room = BLOCK as usize - file.len() % BLOCK as usize;
                if room < CHUNK_HEADER {
                    file.resize(file.len() + room, 0);
                    room = BLOCK as usize;
                }
                let (now, later) = rest.split_at(rest.len().min(room - CHUNK_HEADER));
                let kind = match (is_first, later.is_empty()) {
                    (true, true) => FULL,
                    (true, false) => FIRST,
                    (false, true) => LAST,
                    (false, false) => 3,
                };
                file.extend(chunk(kind, now));
                (rest, is_first) = (later, false);
                if rest.is_empty() {
                    break;
                }
            }
        }
        file
    }
}

#[cfg(test)]
mod tests {
    use super::writer::{chunk, log};
    use super::*;

    const FORMAT: FileHeader = FileHeader { ident: *b":W&B", magic: [0xe1, 0xbe], versions: &[0] };
    const HEADER: [u8; FILE_HEADER] = *b":W&B\xe1\xbe\0";

    type Walked = (Vec<(u64, Vec<u8>)>, Vec<(u64, u64, Passed)>);

    /// Records and stretches that were passed over, as windows of at most `window` bytes show them.
    fn walk(file: &[u8], window: usize, limit: usize) -> Walked {
        let (mut records, mut passed) = (Vec::new(), Vec::new());
        let mut log = Log::new(limit);
        let (mut at, mut length) = (FILE_HEADER, window);
        loop {
            let to = (at + length).min(file.len());
            let mut used = 0;
            loop {
                match log.next(&file[at..to], &mut used, at as u64, to == file.len()) {
                    Next::Record(record) => records.push((record.at, record.bytes.to_vec())),
                    Next::Passed(begin, bytes, reason) => passed.push((begin, bytes, reason)),
                    Next::More => break,
                }
            }
            if to == file.len() {
                assert_eq!(at + used, to, "not all is used at the end");
                return (records, passed);
            }
            at += used;
            length = if used == 0 { (length * 2).min(limit.max(length + 1)) } else { window };
        }
    }

    fn payloads(count: usize) -> Vec<Vec<u8>> {
        // Lengths that leave every kind of rest in a block, with zeros and type bytes inside.
        (0..count).map(|at| (0..(at * 997) % 5000).map(|byte| (byte % 7 * at % 5) as u8).collect()).collect()
    }

    #[test]
    fn known_answers() {
        assert_eq!(checksum(b"123456789"), 0xcbf4_3926);
        assert_eq!(FORMAT.bytes(0), HEADER);
        assert_eq!(FORMAT.version_of(b":W&B\xe1\xbe\x07rest"), Some(7));
        assert_eq!(FORMAT.version_of(b":W&B\xbe\xe1\0"), None);
        assert!(FORMAT.may_begin(b":W&") && !FORMAT.may_begin(b":SW") && FORMAT.may_begin(b""));
    }

    #[test]
    fn records_come_whole_through_any_window() {
        let mut want = payloads(60);
        want.push(vec![7; 100_000]);
        want.push(Vec::new());
        want.push(b"last".to_vec());
        let file = log(HEADER, &want);
        assert!(file.len() > 8 * BLOCK as usize);
        for window in [8, 100, 4096, 32_768, 1 << 20] {
            let (records, passed) = walk(&file, window, 1 << 20);
            assert_eq!(records.iter().map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>(), want, "window {window}");
            assert_eq!(passed, [], "window {window}");
        }
    }

    #[test]
    fn equal_records_have_equal_fingerprints() {
        let file = log(HEADER, [&b"abc"[..], b"abd", b"abc", b""]);
        let (mut log, mut used, mut found) = (Log::new(1 << 20), FILE_HEADER, Vec::new());
        while let Next::Record(record) = log.next(&file, &mut used, 0, true) {
            found.push(record.fingerprint);
        }
        assert_eq!(found.len(), 4);
        assert_eq!(found[0], found[2]);
        assert!(found[0] != found[1] && found[0] != found[3]);
    }

    #[test]
    fn a_changed_byte_costs_its_record_alone_and_is_told_once() {
        let want = payloads(12);
        let file = log(HEADER, &want);
        let mut begins: Vec<usize> = walk(&file, 1 << 20, 1 << 20).0.iter().map(|(at, _)| *at as usize).collect();
        assert_eq!(begins.len(), 12);
        begins.push(file.len());
        for at in (FILE_HEADER..file.len()).step_by(3) {
            let mut changed = file.clone();
            changed[at] ^= 0x41;
            let hit = begins.partition_point(|begin| *begin <= at) - 1;
            let mut left = want.clone();
            left.remove(hit);
            for window in [64, 1 << 20] {
                let (records, passed) = walk(&changed, window, 1 << 20);
                let found: Vec<Vec<u8>> = records.into_iter().map(|(_, bytes)| bytes).collect();
                assert_eq!(found, left, "byte {at}, window {window}");
                let bytes = (begins[hit + 1] - begins[hit]) as u64;
                assert_eq!(passed.len(), 1, "byte {at}, window {window}: {passed:?}");
                assert_eq!((passed[0].0, passed[0].1), (begins[hit] as u64, bytes), "byte {at}");
                let is_last = hit == 11;
                assert!(passed[0].2 == Passed::Damage || (is_last && passed[0].2 == Passed::Cut), "byte {at}");
            }
        }
    }

    #[test]
    fn a_cut_keeps_what_was_whole_and_is_no_damage() {
        let want = payloads(20);
        let file = log(HEADER, &want);
        let ends: Vec<u64> = walk(&file, 1 << 20, 1 << 20).0.iter().map(|(at, _)| *at).skip(1).collect();
        let mut cuts = 0;
        for cut in (FILE_HEADER..file.len()).step_by(11) {
            let (records, passed) = walk(&file[..cut], 4096, 1 << 20);
            let whole = ends.iter().filter(|end| **end <= cut as u64).count();
            assert!(records.len() == whole || records.len() == whole + 1, "{cut}: {} of {whole}", records.len());
            assert!(records.iter().zip(&want).all(|((_, got), want)| got == want), "{cut}");
            assert!(passed.len() <= 1 && passed.iter().all(|(.., why)| matches!(why, Passed::Cut | Passed::Zeros)));
            cuts += passed.len();
        }
        assert!(cuts > 1000, "only {cuts} cuts fell into a record");
    }

    #[test]
    fn bytes_that_were_never_written_are_a_cut() {
        let file = log(HEADER, [&b"one"[..], b"two"]);
        let zeros = [&file[..], &[0; 70_000]].concat();
        let (records, passed) = walk(&zeros, 4096, 1 << 20);
        assert_eq!((records.len(), passed), (2, vec![(file.len() as u64, 70_000, Passed::Zeros)]));
        // A record of which the end was not written.
        let mut half = [&file[..], &chunk(FULL, &[9; 500])].concat();
        half.truncate(file.len() + 200);
        half.resize(file.len() + 5_000, 0);
        let (records, passed) = walk(&half, 4096, 1 << 20);
        assert_eq!((records.len(), passed), (2, vec![(file.len() as u64, 5_000, Passed::Zeros)]));
        // In the middle of a file they are damage.
        let mut hole = file[..FILE_HEADER + 10].to_vec();
        hole.resize(BLOCK as usize, 0);
        hole.extend(chunk(FULL, b"three"));
        let (records, passed) = walk(&hole, 4096, 1 << 20);
        assert_eq!(records.iter().map(|(_, bytes)| &bytes[..]).collect::<Vec<_>>(), [&b"one"[..], b"three"]);
        assert_eq!(passed, [(FILE_HEADER as u64 + 10, BLOCK - FILE_HEADER as u64 - 10, Passed::Damage)]);
    }

    #[test]
    fn what_lacks_its_begin_or_end_is_passed_over() {
        let middle = [&HEADER[..], &chunk(3, b"x"), &chunk(LAST, b"y"), &chunk(FULL, b"whole")].concat();
        let (records, passed) = walk(&middle, 1 << 20, 1 << 20);
        assert_eq!((records.len(), passed), (1, vec![(7, 16, Passed::Damage)]));
        let begun = [&HEADER[..], &chunk(FIRST, b"x"), &chunk(FULL, b"whole")].concat();
        let (records, passed) = walk(&begun, 1 << 20, 1 << 20);
        assert_eq!((records.len(), passed), (1, vec![(7, 8, Passed::Unfinished)]));
    }

    #[test]
    fn a_record_beyond_the_limit_is_passed_over() {
        let file = log(HEADER, [vec![1; 10], vec![2; 100_000], vec![3; 10]]);
        for window in [4096, 40_000, 1 << 20] {
            let (records, passed) = walk(&file, window, 50_000);
            assert_eq!(records.iter().map(|(_, bytes)| bytes[0]).collect::<Vec<_>>(), [1, 3], "window {window}");
            assert_eq!(passed.len(), 1);
            assert_eq!((passed[0].0, passed[0].2), (24, Passed::Limit));
        }
        // One chunk that no window holds.
        let file = log(HEADER, [vec![1; 10], vec![2; 3000], vec![3; 10]]);
        let (records, passed) = walk(&file, 64, 256);
        assert_eq!(records.iter().map(|(_, bytes)| bytes[0]).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(passed, [(24, 3007, Passed::Limit)]);
    }

    #[test]
    fn a_file_of_nothing_but_chunk_headers_ends_in_time() {
        // Each of these could be the header of a long chunk.
        let file: Vec<u8> = HEADER.into_iter().chain((0..1 << 20).map(|_| 1)).collect();
        let (records, passed) = walk(&file, 1 << 18, 1 << 20);
        assert_eq!((records.len(), passed.len()), (0, 1));
    }
}
