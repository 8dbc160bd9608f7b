//! Passing over one value of any size.

use super::{Stop, is_stray};
use memchr::memchr2;

/// How far a [`Skipper`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// The value ends after so many bytes of the window.
    Done(usize),
    /// The whole window belongs to the value, or to the white space before it.
    More,
}

/// Passes over one value, window by window, in constant memory whatever its size and depth.
///
/// Windows are given in order and without gaps, until the value is done. Inside objects and arrays only quotes and the
/// depth of brackets are looked at: `[1, 2}` passes for a value.
#[derive(Clone, Debug, Default)]
pub struct Skipper {
    state: State,
    depth: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before the value.
    #[default]
    Before,
    /// Inside an array or object, between strings.
    Between,
    /// Inside a string.
    String,
    /// Inside a string, after a backslash.
    Escape,
    /// Inside a number or a bare word.
    Bare,
}

impl Skipper {
    /// Before a value.
    pub fn new() -> Self {
        Self::default()
    }

    /// Passes over the next window; `at_end` says that no other follows.
    ///
    /// [`Stop::Invalid`] if no value begins, [`Stop::Incomplete`] if the text ends inside the value.
    pub fn feed(&mut self, window: &[u8], at_end: bool) -> Result<Skip, Stop> {
        let mut at = 0;
        while let Some(&first) = window.get(at) {
            let rest = &window[at..];
            match self.state {
                State::Before => {
                    at += 1;
                    self.state = match first {
                        b' ' => State::Before,
                        _ if is_stray(first) => State::Before,
                        b'{' | b'[' => {
                            self.depth = 1;
                            State::Between
                        }
                        b'"' => State::String,
                        _ if is_bare(first) => State::Bare,
                        _ => return Err(Stop::Invalid { at: at - 1, expected: "a value" }),
                    };
                }
                State::Between => match between(rest, &mut self.depth) {
                    Found::End(length) => return Ok(Skip::Done(at + length)),
                    Found::Quote(length) => {
                        at += length;
                        self.state = State::String;
                    }
                    Found::Nothing => at = window.len(),
                },
                State::String => match memchr2(b'"', b'\\', rest) {
                    Some(length) => {
                        at += length + 1;
                        if rest[length] == b'\\' {
                            self.state = State::Escape;
                        } else if self.depth == 0 {
                            return Ok(Skip::Done(at));
                        } else {
                            self.state = State::Between;
                        }
                    }
                    None => at = window.len(),
                },
                State::Escape => {
                    at += 1;
                    self.state = State::String;
                }
                State::Bare => match rest.iter().position(|&byte| !is_bare(byte)) {
                    Some(length) => return Ok(Skip::Done(at + length)),
                    None => at = window.len(),
                },
            }
        }
        match self.state {
            _ if !at_end => Ok(Skip::More),
            State::Bare => Ok(Skip::Done(window.len())),
            _ => Err(Stop::Incomplete),
        }
    }
}

/// Bytes of numbers and bare words.
fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

enum Found {
    /// The bracket that closes the value is the last of so many bytes.
    End(usize),
    /// A quote is the last of so many bytes.
    Quote(usize),
    Nothing,
}

/// Counts brackets up to the next quote.
fn between(bytes: &[u8], depth: &mut u64) -> Found {
    let mut at = 0;
    loop {
        // Between keys and values lie a few bytes: too few for blocks to pay.
        for &byte in &bytes[at..bytes.len().min(at + 16)] {
            at += 1;
            match byte {
                b'"' => return Found::Quote(at),
                b'{' | b'[' => *depth += 1,
                b'}' | b']' => {
                    *depth -= 1;
                    if *depth == 0 {
                        return Found::End(at);
                    }
                }
                _ => {}
            }
        }
        if at == bytes.len() {
            return Found::Nothing;
        }
        for block in bytes[at..].as_chunks::<64>().0 {
            let (mut quotes, mut opening, mut closing) = (0u8, 0u8, 0u8);
            for &byte in block {
                quotes += u8::from(byte == b'"');
                // [ and {, ] and } differ in one bit.
                opening += u8::from(byte | 0x20 == b'{');
                closing += u8::from(byte | 0x20 == b'}');
            }
            if quotes > 0 || u64::from(closing) >= *depth {
                break;
            }
            *depth = *depth + u64::from(opening) - u64::from(closing);
            at += 64;
        }
    }
}
