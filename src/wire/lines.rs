//! Complete lines of a window.
//!
//! A window is a piece of a longer text. Only a line whose end was seen is handed out, so that any chopping of the text
//! into windows gives the same lines; the last line of the text may lack its end, and says so.

use memchr::{memchr, memchr2};

/// Which bytes end a line. `\r\n` ends a line under both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// `\n` and `\r\n`; a lone `\r` is content.
    Newline,
    /// `\n`, `\r\n` and a lone `\r`, with which progress bars redraw their line.
    CarriageReturn,
}

/// One line of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The line without its end.
    pub bytes: &'a [u8],
    /// Where the line begins, in bytes from the begin of the window.
    pub start: usize,
    /// Whether the end of the line was seen. False only for the last line of the text.
    pub terminated: bool,
}

/// Iterator over the complete lines of a window, in order.
///
/// With `at_end` the rest of the window, if any, is handed out as a last, unterminated line.
#[derive(Clone, Debug)]
pub struct Lines<'a> {
    window: &'a [u8],
    at: usize,
    at_end: bool,
    ending: Ending,
}

impl<'a> Lines<'a> {
    /// Lines of `window`; `at_end` says that nothing follows the window.
    pub fn new(window: &'a [u8], at_end: bool, ending: Ending) -> Self {
        Self { window, at: 0, at_end, ending }
    }

    /// Bytes of the window that were handed out, line ends included. The rest belongs to a line that is still open.
    pub fn used(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        let start = self.at;
        let rest = &self.window[start..];
        let found = match self.ending {
            Ending::Newline => memchr(b'\n', rest),
            Ending::CarriageReturn => memchr2(b'\n', b'\r', rest),
        };
        let Some(length) = found else {
            if !self.at_end || rest.is_empty() {
                return None;
            }
            self.at = self.window.len();
            return Some(Line { bytes: rest, start, terminated: false });
        };
        let mut bytes = &rest[..length];
        let mut used = length + 1;
        if rest[length] == b'\n' {
            bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        } else {
            match rest.get(used) {
                Some(b'\n') => used += 1,
                Some(_) => {}
                // The next window may begin with the `\n` that belongs to this `\r`.
                None if !self.at_end => return None,
                None => {}
            }
        }
        self.at = start + used;
        Some(Line { bytes, start, terminated: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &[u8], at_end: bool, ending: Ending) -> (Vec<(Vec<u8>, usize, bool)>, usize) {
        let mut lines = Lines::new(text, at_end, ending);
        let found = lines.by_ref().map(|line| (line.bytes.to_vec(), line.start, line.terminated)).collect();
        (found, lines.used())
    }

    #[test]
    fn ends() {
        let (lines, used) = all(b"a\nb\r\n\nc\rd\ne", false, Ending::Newline);
        let texts: Vec<&[u8]> = lines.iter().map(|line| line.0.as_slice()).collect();
        assert_eq!(texts, [&b"a"[..], b"b", b"", b"c\rd"]);
        assert_eq!(used, 10);
        let (lines, used) = all(b"a\rb\r\nc\r", false, Ending::CarriageReturn);
        let texts: Vec<&[u8]> = lines.iter().map(|line| line.0.as_slice()).collect();
        assert_eq!(texts, [&b"a"[..], b"b"]);
        assert_eq!(used, 5);
        assert_eq!(all(b"c\r", true, Ending::CarriageReturn).0, [(b"c".to_vec(), 0, true)]);
        assert_eq!(all(b"tail", true, Ending::Newline).0, [(b"tail".to_vec(), 0, false)]);
        assert_eq!(all(b"", true, Ending::Newline), (vec![], 0));
    }

    proptest! {
        #[test]
        fn any_chopping_gives_the_same_lines(
            text in proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'\n'), Just(b'\r')], 0..60),
            cut in 0usize..60,
            lone in any::<bool>(),
        ) {
            let ending = if lone { Ending::CarriageReturn } else { Ending::Newline };
            let cut = cut.min(text.len());
            let whole = all(&text, true, ending).0;
            let (mut pieces, used) = all(&text[..cut], false, ending);
            prop_assert_eq!(&pieces[..], &whole[..pieces.len()]);
            let rest = all(&text[used..], true, ending).0;
            pieces.extend(rest.into_iter().map(|(bytes, start, ended)| (bytes, start + used, ended)));
            prop_assert_eq!(pieces, whole);
        }
    }
}
