//! gzip, zstd and raw deflate as streams, with bounds on what they grow to. Every member and frame is read, what was
//! unpacked before damage is given, and the error that follows says what is wrong ([`Damage`]).
//!
//! The framing of gzip is read here, not by flate2's readers: on a broken block they drop what they have just unpacked,
//! which would cost the points before the damage.

use std::cell::RefCell;
use std::io::{self, Read};

use flate2::{Crc, Decompress, FlushDecompress, Status};
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use crate::model::{FaultKind, Limits};
use crate::read::Damage;

/// How a stream is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// gzip members in a row.
    Gzip,
    /// zstd frames in a row.
    Zstd,
    /// One raw deflate stream, as in zip.
    Deflate,
}

impl Codec {
    /// By the first bytes of a file, of which four suffice.
    pub fn of_magic(head: &[u8]) -> Option<Self> {
        if head.starts_with(&[0x1f, 0x8b, 8]) {
            Some(Self::Gzip)
        } else if head.first_chunk().is_some_and(|magic| is_frame(*magic)) {
            Some(Self::Zstd)
        } else {
            None
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Deflate => "deflate",
        }
    }
}

/// A zstd frame or a skippable one.
fn is_frame(magic: [u8; 4]) -> bool {
    let magic = u32::from_le_bytes(magic);
    magic == 0xfd2f_b528 || magic & 0xffff_fff0 == 0x184d_2a50
}

/// Bounds on one stream.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// Bytes that it may unpack to.
    pub output: u64,
    /// Unpacked bytes for each packed byte, beyond [`FREE`].
    pub ratio: u64,
    /// Logarithm of the largest window.
    pub window_log: u32,
}

impl Caps {
    /// Those of one compressed file or member.
    pub fn of(limits: &Limits) -> Self {
        Self { output: limits.unpacked, ratio: limits.ratio, window_log: limits.window_log }
    }
}

/// Unpacked bytes to which [`Limits::ratio`] does not apply.
pub const FREE: u64 = 64 << 20;
/// Packed bytes read at once.
const INPUT: usize = 64 << 10;

/// The unpacked bytes of a stream.
pub struct Decompressed<R> {
    input: Input<R>,
    engine: Engine,
    codec: Codec,
    caps: Caps,
    /// Bytes given so far.
    given: u64,
    /// Members or frames that are complete.
    complete: u64,
    /// What the next read says.
    failed: Option<io::Error>,
    ended: bool,
}

enum Engine {
    Inflate {
        state: Decompress,
        crc: Crc,
        inside: bool,
    },
    Zstd {
        state: Decoder<'static>,
        wish: usize,
        inside: bool,
    },
    /// Given back.
    Gone,
}

/// What a stream needs, kept by its thread for the next one: of a hundred thousand small files each would allocate it
/// anew, and leave a hole.
#[derive(Default)]
struct Spare {
    buffers: Vec<Vec<u8>>,
    inflate: Vec<Decompress>,
    zstd: Vec<Decoder<'static>>,
}

/// Kept of each.
const SPARE: usize = 2;

thread_local! {
    static KEPT: RefCell<Spare> = RefCell::default();
}

impl<R> Drop for Decompressed<R> {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.input.buffer);
        let engine = std::mem::replace(&mut self.engine, Engine::Gone);
        // While a thread ends its store may be gone.
        let _ = KEPT.try_with(|kept| {
            let Ok(mut kept) = kept.try_borrow_mut() else { return };
            if kept.buffers.len() < SPARE {
                kept.buffers.push(buffer);
            }
            match engine {
                Engine::Inflate { state, .. } if kept.inflate.len() < SPARE => kept.inflate.push(state),
                Engine::Zstd { state, .. } if kept.zstd.len() < SPARE => kept.zstd.push(state),
                _ => {}
            }
        });
    }
}

impl<R: Read> Decompressed<R> {
    /// Unpacks `source`. Nothing is read yet.
    pub fn new(source: R, codec: Codec, caps: Caps) -> io::Result<Self> {
        let (mut buffer, mut inflate, mut zstd) = (None, None, None);
        // A thread that ends, or is in the middle of this, has no store: everything is made anew.
        let _ = KEPT.try_with(|kept| {
            let Ok(mut kept) = kept.try_borrow_mut() else { return };
            buffer = kept.buffers.pop();
            match codec {
                Codec::Gzip | Codec::Deflate => inflate = kept.inflate.pop(),
                Codec::Zstd => zstd = kept.zstd.pop(),
            }
        });
        let engine = match codec {
            Codec::Gzip | Codec::Deflate => {
                let mut state = inflate.unwrap_or_else(|| Decompress::new(false));
                state.reset(false);
                Engine::Inflate { state, crc: Crc::new(), inside: codec == Codec::Deflate }
            }
            Codec::Zstd => {
                let mut state = match zstd {
                    Some(state) => state,
                    None => Decoder::new()?,
                };
                state.reinit()?;
                state.set_parameter(DParameter::WindowLogMax(caps.window_log))?;
                Engine::Zstd { state, wish: 0, inside: false }
            }
        };
        let buffer = buffer.unwrap_or_else(|| vec![0; INPUT]);
        let input = Input { source, buffer, start: 0, end: 0, taken: 0, ended: false };
        Ok(Self { input, engine, codec, caps, given: 0, complete: 0, failed: None, ended: false })
    }

    /// Unpacks something into `into`, which is not empty. `Ok(0)`: the end.
    fn step(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let inside =
                matches!(self.engine, Engine::Inflate { inside: true, .. } | Engine::Zstd { inside: true, .. });
            if !inside && !self.begin()? {
                return Ok(0);
            }
            let given = match &mut self.engine {
                Engine::Inflate { state, crc, inside } => {
                    if self.input.rest().is_empty() && !self.input.ended {
                        self.input.want(1)?;
                    }
                    let (before_in, before_out) = (state.total_in(), state.total_out());
                    let result = state.decompress(self.input.rest(), into, FlushDecompress::None);
                    let used = (state.total_in() - before_in) as usize;
                    let given = (state.total_out() - before_out) as usize;
                    self.input.pass(used);
                    crc.update(&into[..given]);
                    let done = match result {
                        Ok(status) => status == Status::StreamEnd,
                        Err(error) => {
                            let detail = format!("a broken block in {}: {error}", self.codec.name());
                            self.failed = Some(Damage::error(FaultKind::Unparsable, detail));
                            return Ok(given);
                        }
                    };
                    if done {
                        *inside = false;
                        if let Err(error) = self.finish() {
                            self.failed = Some(error);
                            return Ok(given);
                        }
                        if given == 0 && self.ended {
                            return Ok(0);
                        }
                    } else if used == 0 && given == 0 && self.input.rest().is_empty() {
                        return Err(self.cut());
                    } else if used == 0 && given == 0 {
                        return Err(Damage::error(FaultKind::Unparsable, "deflate makes no progress"));
                    }
                    given
                }
                Engine::Zstd { state, wish, inside } => {
                    if self.input.rest().is_empty() && !self.input.ended {
                        self.input.want(1)?;
                    }
                    // As much as the decoder asks for: one block a call, so that a broken one costs none before it.
                    let rest = self.input.rest();
                    let mut source = InBuffer::around(&rest[..rest.len().min((*wish).max(1))]);
                    let mut target = OutBuffer::around(into);
                    let left = state.run(&mut source, &mut target);
                    let (used, given) = (source.pos(), target.pos());
                    self.input.pass(used);
                    match left {
                        Ok(0) => {
                            *inside = false;
                            self.complete += 1;
                        }
                        Ok(left) if used > 0 || given > 0 => *wish = left,
                        Ok(_) if self.input.rest().is_empty() => return Err(self.cut()),
                        Ok(_) => return Err(Damage::error(FaultKind::Unparsable, "zstd makes no progress")),
                        Err(error) => return Err(zstd_damage(&error)),
                    }
                    given
                }
                Engine::Gone => return Ok(0),
            };
            if given > 0 {
                return Ok(given);
            }
        }
    }

    fn cut(&self) -> io::Error {
        Damage::error(FaultKind::Truncated, format!("the {} stream is cut", self.codec.name()))
    }

    /// Goes to the next member or frame; `false` where there is none.
    fn begin(&mut self) -> io::Result<bool> {
        if self.codec == Codec::Deflate {
            self.ended = true;
            return Ok(false);
        }
        let head = self.input.want(4)?;
        let known = Codec::of_magic(head) == Some(self.codec);
        if head.is_empty() && self.complete > 0 {
            return Ok(false);
        }
        if !known && self.complete > 0 {
            let detail = |what| format!("{what} after the last {} stream", self.codec.name());
            return Err(if head.iter().all(|byte| *byte == 0) {
                Damage::error(FaultKind::Stray, detail("zeros"))
            } else {
                Damage::error(FaultKind::Unparsable, detail("other bytes"))
            });
        }
        if !known {
            return Err(if head.len() < 4 {
                self.cut()
            } else {
                Damage::error(FaultKind::Unparsable, format!("no {} stream", self.codec.name()))
            });
        }
        match &mut self.engine {
            Engine::Inflate { state, crc, inside } => {
                state.reset(false);
                crc.reset();
                *inside = true;
                self.gzip_header()?;
            }
            Engine::Zstd { wish, inside, .. } => (*wish, *inside) = (5, true),
            Engine::Gone => return Ok(false),
        }
        Ok(true)
    }

    fn gzip_header(&mut self) -> io::Result<()> {
        let fixed = self.input.want(10)?;
        let (whole, flags) = (fixed.len() >= 10, fixed.get(3).copied().unwrap_or(0));
        self.input.pass(10);
        let mut whole = whole;
        if flags & 4 != 0 {
            let extra = self.input.want(2)?;
            let length = extra.first_chunk().map(|two| usize::from(u16::from_le_bytes(*two)));
            self.input.pass(2);
            whole &= self.input.discard(length.unwrap_or(usize::MAX))?;
        }
        for text in [8, 16] {
            while whole && flags & text != 0 {
                let byte = self.input.want(1)?.first().copied();
                self.input.pass(1);
                whole = byte.is_some();
                if byte == Some(0) {
                    break;
                }
            }
        }
        if flags & 2 != 0 {
            whole &= self.input.discard(2)?;
        }
        if whole { Ok(()) } else { Err(self.cut()) }
    }

    /// Behind the last block of deflate.
    fn finish(&mut self) -> io::Result<()> {
        self.complete += 1;
        let Engine::Inflate { state, crc, .. } = &self.engine else { return Ok(()) };
        if self.codec == Codec::Deflate {
            self.ended = true;
            return Ok(());
        }
        let (sum, size) = (crc.sum(), state.total_out() as u32);
        let trailer = self.input.want(8)?;
        let Some(trailer) = trailer.first_chunk::<8>() else { return Err(self.cut()) };
        let same = trailer[..4] == sum.to_le_bytes() && trailer[4..] == size.to_le_bytes();
        self.input.pass(8);
        if same { Ok(()) } else { Err(Damage::error(FaultKind::BadChecksum, "the checksum of a gzip member is wrong")) }
    }

    /// Whether more was given than the bounds allow.
    fn passes_a_bound(&self) -> Option<String> {
        let name = self.codec.name();
        if self.given > self.caps.output {
            return Some(format!("the {name} stream unpacks to more than {} bytes", self.caps.output));
        }
        let ratio = self.given / self.input.taken.max(1);
        (self.given > FREE && ratio > self.caps.ratio)
            .then(|| format!("the {name} stream unpacks to more than {} times its size", self.caps.ratio))
    }
}

fn zstd_damage(error: &io::Error) -> io::Error {
    let text = error.to_string();
    let kind = if text.contains("too much memory") {
        FaultKind::Limit
    } else if text.contains("checksum") {
        FaultKind::BadChecksum
    } else {
        FaultKind::Unparsable
    };
    Damage::error(kind, format!("zstd: {text}"))
}

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(error) = self.failed.take() {
            self.ended = true;
            return Err(error);
        }
        if self.ended || into.is_empty() {
            return Ok(0);
        }
        match self.step(into) {
            Ok(given) => {
                self.given += given as u64;
                if let Some(detail) = self.passes_a_bound() {
                    // What was unpacked is given; there will be no more.
                    self.failed.get_or_insert_with(|| Damage::error(FaultKind::Limit, detail));
                }
                // Ended only if nothing is left to say.
                self.ended = given == 0 && self.failed.is_none();
                match self.failed.take() {
                    Some(error) if given == 0 => {
                        self.ended = true;
                        Err(error)
                    }
                    failed => {
                        self.failed = failed;
                        Ok(given)
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                self.ended = true;
                Err(error)
            }
        }
    }
}

/// Packed bytes, a buffer at a time.
struct Input<R> {
    source: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes passed in all.
    taken: u64,
    ended: bool,
}

impl<R: Read> Input<R> {
    fn rest(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn pass(&mut self, count: usize) {
        let count = count.min(self.end - self.start);
        self.start += count;
        self.taken += count as u64;
    }

    /// What lies ahead: at least `count` bytes, at most the buffer's, unless the source ends.
    fn want(&mut self, count: usize) -> io::Result<&[u8]> {
        while self.end - self.start < count && !self.ended {
            if self.start > 0 {
                self.buffer.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.rest())
    }

    /// Passes over bytes; `false` if the source ends before.
    fn discard(&mut self, count: usize) -> io::Result<bool> {
        let mut left = count;
        while left > 0 {
            let here = self.want(1)?.len().min(left);
            if here == 0 {
                return Ok(false);
            }
            self.pass(here);
            left -= here;
        }
        Ok(true)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use flate2::write::{DeflateEncoder, GzEncoder};
    use flate2::{Compression, GzBuilder};
    use std::io::Write;

    pub fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    pub fn zstd(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
        encoder.include_checksum(true).unwrap();
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Text that compresses as metrics do.
    pub fn text(lines: usize) -> Vec<u8> {
        let line = |k: usize| format!("{{\"step\": {k}, \"grad_norm\": {}}}\n", (k * 7919 % 1000) as f64 / 7.0);
        (0..lines).map(line).collect::<String>().into_bytes()
    }

    /// What comes out in reads of `chunk` bytes, and the error behind it.
    fn unpack_with(codec: Codec, bytes: &[u8], chunk: usize, caps: Caps) -> (Vec<u8>, Option<(FaultKind, String)>) {
        let mut stream = Decompressed::new(bytes, codec, caps).unwrap();
        let (mut out, mut buffer) = (Vec::new(), vec![0; chunk]);
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => {
                    assert_eq!(stream.read(&mut buffer).unwrap(), 0);
                    return (out, None);
                }
                Ok(count) => out.extend(&buffer[..count]),
                Err(error) => {
                    let kind = Damage::kind_of(&error);
                    assert_eq!(stream.read(&mut buffer).unwrap(), 0, "an error comes once");
                    return (out, Some((kind, error.to_string())));
                }
            }
        }
    }

    fn unpack(codec: Codec, bytes: &[u8]) -> (Vec<u8>, Option<FaultKind>) {
        let caps = Caps::of(&Limits::default());
        let (out, error) = unpack_with(codec, bytes, 256 << 10, caps);
        for chunk in [1, 1000] {
            if bytes.len() < 100_000 {
                let (chopped, same) = unpack_with(codec, bytes, chunk, caps);
                assert!(chopped == out || error.is_some(), "reads of {chunk} bytes");
                assert_eq!(same.map(|e| e.0), error.as_ref().map(|e| e.0), "reads of {chunk} bytes");
            }
        }
        (out, error.map(|error| error.0))
    }

    fn pack(codec: Codec, bytes: &[u8]) -> Vec<u8> {
        match codec {
            Codec::Gzip => gzip(bytes),
            Codec::Zstd => zstd(bytes),
            Codec::Deflate => {
                let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(bytes).unwrap();
                encoder.finish().unwrap()
            }
        }
    }

    #[test]
    fn all_members_and_frames_in_a_row() {
        let (a, b) = (text(3000), text(10));
        for codec in [Codec::Gzip, Codec::Zstd] {
            let whole = [pack(codec, &a), pack(codec, b""), pack(codec, &b)].concat();
            assert_eq!(unpack(codec, &whole), ([a.clone(), b.clone()].concat(), None), "{codec:?}");
            assert_eq!(Codec::of_magic(&whole), Some(codec));
        }
        assert_eq!(unpack(Codec::Deflate, &pack(Codec::Deflate, &a)), (a.clone(), None));
        let skippable = [&[0x5e, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc", &zstd(&b)].concat();
        assert_eq!(unpack(Codec::Zstd, &[skippable.clone(), skippable].concat()), ([b.clone(), b].concat(), None));
        let mut header = GzBuilder::new().filename("metrics").comment("by hand").extra(vec![7; 300]);
        header = header.mtime(5);
        let mut named = header.write(Vec::new(), Compression::fast());
        named.write_all(&a).unwrap();
        assert_eq!(unpack(Codec::Gzip, &named.finish().unwrap()), (a, None));
    }

    #[test]
    fn a_cut_gives_what_came_before_it() {
        let whole = text(3000);
        for codec in [Codec::Gzip, Codec::Zstd, Codec::Deflate] {
            let packed = pack(codec, &whole);
            let mut before = 0;
            for cut in (0..packed.len()).step_by(97).chain([packed.len() - 1]) {
                let (out, kind) = unpack(codec, &packed[..cut]);
                assert!(whole.starts_with(&out) && out.len() >= before, "{codec:?} cut at {cut}");
                assert_eq!(kind, Some(FaultKind::Truncated), "{codec:?} cut at {cut}");
                before = out.len();
            }
            assert!(before * 10 > whole.len() * 9, "{codec:?}: {before} of {}", whole.len());
        }
    }

    #[test]
    fn damage_costs_nothing_before_it() {
        // Incompressible enough to have many blocks.
        let mut seed = 1u64;
        let mut noise = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u8
        };
        let whole: Vec<u8> = (0..1_000_000).map(|_| noise() & 0x3f).collect();
        for codec in [Codec::Gzip, Codec::Zstd] {
            let mut packed = pack(codec, &whole);
            let at = packed.len() / 2;
            packed[at..at + 64].fill(0xff);
            let (out, kind) = unpack(codec, &packed);
            let same = out.iter().zip(&whole).take_while(|(a, b)| a == b).count();
            assert!(same > 300_000, "{codec:?}: {same}");
            assert!(matches!(kind, Some(FaultKind::Unparsable | FaultKind::BadChecksum)), "{codec:?}: {kind:?}");
            // A wrong checksum comes behind all bytes.
            let mut packed = pack(codec, &text(50));
            let at = packed.len() - if codec == Codec::Gzip { 8 } else { 1 };
            packed[at] ^= 1;
            assert_eq!(unpack(codec, &packed), (text(50), Some(FaultKind::BadChecksum)));
        }
    }

    #[test]
    fn what_follows_the_last_stream() {
        for codec in [Codec::Gzip, Codec::Zstd] {
            for (tail, kind) in [(&[0u8; 700][..], FaultKind::Stray), (b"{\"step\": 1}", FaultKind::Unparsable)] {
                let padded = [&pack(codec, &text(5)), tail].concat();
                assert_eq!(unpack(codec, &padded), (text(5), Some(kind)));
            }
            assert_eq!(unpack(codec, b""), (vec![], Some(FaultKind::Truncated)));
            assert_eq!(unpack(codec, b"plain text"), (vec![], Some(FaultKind::Unparsable)));
        }
    }

    #[test]
    fn growth_is_bounded() {
        let zeros = vec![0; 16 << 20];
        for codec in [Codec::Gzip, Codec::Zstd] {
            let bomb: Vec<u8> = pack(codec, &zeros).repeat(8);
            let caps = Caps::of(&Limits::default());
            let (out, error) = unpack_with(codec, &bomb, 256 << 10, caps);
            assert_eq!(error.map(|error| error.0), Some(FaultKind::Limit), "{codec:?}");
            assert!(out.len() as u64 <= FREE + (1 << 20), "{codec:?}: {}", out.len());
            let small = Caps { output: 1000, ..caps };
            let (out, error) = unpack_with(codec, &pack(codec, &text(100)), 64, small);
            assert_eq!((error.map(|error| error.0), out.len() <= 1064), (Some(FaultKind::Limit), true));
        }
        let mut wide = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        wide.window_log(28).unwrap();
        wide.long_distance_matching(true).unwrap();
        wide.write_all(&text(100)).unwrap();
        let (out, kind) = unpack(Codec::Zstd, &wide.finish().unwrap());
        assert_eq!((out.len(), kind), (0, Some(FaultKind::Limit)));
    }
}
