//! UTF-16 text (PowerShell's `>` writes it) turned into UTF-8 while it streams.

use std::borrow::Cow;
use std::io::{self, Read};

/// Byte order of a UTF-16 text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Low byte first.
    Little,
    /// High byte first.
    Big,
}

/// Whether a text that begins so is UTF-16: by its byte order mark, or by the zero bytes of its first two characters.
pub fn order(head: &[u8]) -> Option<Order> {
    match head {
        [0xff, 0xfe, ..] => Some(Order::Little),
        [0xfe, 0xff, ..] => Some(Order::Big),
        [a, 0, b, 0, ..] if *a != 0 && *b != 0 => Some(Order::Little),
        [0, a, 0, b, ..] if *a != 0 && *b != 0 => Some(Order::Big),
        _ => None,
    }
}

/// A head as UTF-8.
pub fn head_as_utf8(head: &[u8]) -> Cow<'_, [u8]> {
    let Some(order) = order(head) else { return Cow::Borrowed(head) };
    let mut text = Vec::new();
    // Reading from a slice cannot fail.
    let _ = Utf8::new(head, order).read_to_end(&mut text);
    Cow::Owned(text)
}

/// Reads UTF-16 and gives UTF-8; lone surrogates become U+FFFD.
#[derive(Debug)]
pub struct Utf8<R> {
    inner: R,
    order: Order,
    raw: Vec<u8>,
    text: Vec<u8>,
    given: usize,
    ended: bool,
}

impl<R: Read> Utf8<R> {
    /// Reads `inner`, whose units are in `order`.
    pub fn new(inner: R, order: Order) -> Self {
        Self { inner, order, raw: Vec::new(), text: Vec::new(), given: 0, ended: false }
    }

    fn refill(&mut self) -> io::Result<()> {
        let mut chunk = [0u8; 16 << 10];
        let count = self.inner.read(&mut chunk)?;
        self.ended = count == 0;
        self.raw.extend_from_slice(&chunk[..count]);
        let unit = |pair: &[u8]| match self.order {
            Order::Little => u16::from_le_bytes([pair[0], pair[1]]),
            Order::Big => u16::from_be_bytes([pair[0], pair[1]]),
        };
        let mut units: Vec<u16> = self.raw.chunks_exact(2).map(unit).collect();
        // A pair of surrogates may be cut by the chunk.
        let waits = !self.ended && units.last().is_some_and(|last| (0xd800..0xdc00).contains(last));
        if waits {
            units.pop();
        }
        self.raw.drain(..units.len() * 2);
        self.text.clear();
        self.given = 0;
        let mut utf8 = [0; 4];
        for decoded in char::decode_utf16(units) {
            let character = decoded.unwrap_or(char::REPLACEMENT_CHARACTER);
            self.text.extend_from_slice(character.encode_utf8(&mut utf8).as_bytes());
        }
        Ok(())
    }
}

impl<R: Read> Read for Utf8<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.given == self.text.len() && !self.ended {
            self.refill()?;
        }
        let rest = &self.text[self.given..];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.given += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dribble<'a>(&'a [u8]);

    impl Read for Dribble<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.0.len().min(3).min(into.len());
            into[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    #[test]
    fn any_chopping_gives_the_same_text() {
        let text = "{\"löss\": 1, \"🙂\": 2}\n".repeat(2000);
        for (order, bom) in [(Order::Little, true), (Order::Big, true), (Order::Little, false), (Order::Big, false)] {
            let mark = bom.then_some(0xfeffu16);
            let bytes: Vec<u8> = mark
                .into_iter()
                .chain(text.encode_utf16())
                .flat_map(|unit| if order == Order::Little { unit.to_le_bytes() } else { unit.to_be_bytes() })
                .collect();
            assert_eq!(super::order(&bytes), Some(order));
            let mut read = String::new();
            Utf8::new(Dribble(&bytes), order).read_to_string(&mut read).unwrap();
            assert_eq!(read.trim_start_matches('\u{feff}'), text);
        }
    }

    #[test]
    fn utf8_is_left_alone() {
        assert_eq!(order(b"{\"step\": 1}"), None);
        assert_eq!(order(b"\xef\xbb\xbf{\"step\": 1}"), None);
        assert_eq!(order(b"\0\0\0\0"), None);
    }
}
