//! A cursor over Thrift's compact protocol, as the headers of Parquet files use it.
//!
//! Every list and text is walked, none is reserved for: a forged length ends at the end of the slice.

/// Why reading stopped: the slice ended inside a value, or holds what the protocol does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Index of the byte in the slice.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// Wire types of the compact protocol.
pub mod kind {
    /// A true boolean; in lists any boolean.
    pub const TRUE: u8 = 1;
    /// A false boolean.
    pub const FALSE: u8 = 2;
    /// A byte.
    pub const BYTE: u8 = 3;
    /// 16-bit integer.
    pub const I16: u8 = 4;
    /// 32-bit integer.
    pub const I32: u8 = 5;
    /// 64-bit integer.
    pub const I64: u8 = 6;
    /// 64-bit float.
    pub const DOUBLE: u8 = 7;
    /// Bytes or text.
    pub const BINARY: u8 = 8;
    /// A list.
    pub const LIST: u8 = 9;
    /// A set.
    pub const SET: u8 = 10;
    /// A map.
    pub const MAP: u8 = 11;
    /// A struct.
    pub const STRUCT: u8 = 12;
}

/// Nesting that no Parquet header reaches.
const DEPTH: u32 = 32;

/// A walk over one slice.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// One field of a struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its number.
    pub id: i16,
    /// Its wire type, one of [`kind`].
    pub kind: u8,
}

impl<'a> Cursor<'a> {
    /// A walk from the begin of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes passed.
    pub fn position(&self) -> usize {
        self.at
    }

    fn broken(&self, what: &'static str) -> Broken {
        Broken { at: self.at, what }
    }

    fn byte(&mut self) -> Result<u8, Broken> {
        let byte = *self.bytes.get(self.at).ok_or(self.broken("the header is cut"))?;
        self.at += 1;
        Ok(byte)
    }

    /// An unsigned variable-length integer.
    pub fn varint(&mut self) -> Result<u64, Broken> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.broken("an integer of more than 64 bits"))
    }

    /// A signed integer of any width.
    pub fn integer(&mut self) -> Result<i64, Broken> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Bytes or text.
    pub fn binary(&mut self) -> Result<&'a [u8], Broken> {
        let length = self.varint()?;
        let rest = &self.bytes[self.at..];
        if length > rest.len() as u64 {
            return Err(self.broken("a text is longer than the header"));
        }
        self.at += length as usize;
        Ok(&rest[..length as usize])
    }

    /// The next field of a struct whose previous field was `last` (0 at first); `None` takes the end of the struct.
    pub fn field(&mut self, last: &mut i16) -> Result<Option<Field>, Broken> {
        let byte = self.byte()?;
        let kind = byte & 0x0f;
        if kind == 0 {
            return Ok(None);
        }
        let id = match byte >> 4 {
            0 => self.integer()? as i16,
            step => last.wrapping_add(i16::from(step)),
        };
        *last = id;
        Ok(Some(Field { id, kind }))
    }

    /// The head of a list: wire type and number of its items.
    pub fn list(&mut self) -> Result<(u8, u64), Broken> {
        let byte = self.byte()?;
        let count = match byte >> 4 {
            15 => self.varint()?,
            count => u64::from(count),
        };
        Ok((byte & 0x0f, count))
    }

    /// Passes over the value of a field.
    pub fn skip(&mut self, kind: u8) -> Result<(), Broken> {
        self.skip_in(kind, false, 0)
    }

    fn skip_in(&mut self, kind: u8, in_list: bool, depth: u32) -> Result<(), Broken> {
        if depth > DEPTH {
            return Err(self.broken("nested too deep"));
        }
        match kind {
            kind::TRUE | kind::FALSE if in_list => self.advance(1),
            kind::TRUE | kind::FALSE => Ok(()),
            kind::BYTE => self.advance(1),
            kind::I16 | kind::I32 | kind::I64 => self.varint().map(drop),
            kind::DOUBLE => self.advance(8),
            kind::BINARY => self.binary().map(drop),
            kind::LIST | kind::SET => {
                let (kind, count) = self.list()?;
                // Every item takes at least a byte, so that the slice bounds the loop.
                (0..count).try_for_each(|_| self.skip_in(kind, true, depth + 1))
            }
            kind::MAP => {
                let count = self.varint()?;
                let kinds = if count == 0 { 0 } else { self.byte()? };
                (0..count).try_for_each(|_| {
                    self.skip_in(kinds >> 4, true, depth + 1)?;
                    self.skip_in(kinds & 0x0f, true, depth + 1)
                })
            }
            kind::STRUCT => {
                let mut last = 0;
                while let Some(field) = self.field(&mut last)? {
                    self.skip_in(field.kind, false, depth + 1)?;
                }
                Ok(())
            }
            _ => Err(self.broken("an unknown type of field")),
        }
    }

    fn advance(&mut self, count: usize) -> Result<(), Broken> {
        if self.bytes.len() - self.at < count {
            return Err(self.broken("the header is cut"));
        }
        self.at += count;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_by_difference_and_by_number() {
        // 1: i32 = -3, 3: "ab", 40: list of two bytes, end.
        let bytes = [0x15, 0x05, 0x28, 0x02, b'a', b'b', 0x09, 0x50, 0x23, 7, 8, 0x00];
        let mut cursor = Cursor::new(&bytes);
        let mut last = 0;
        assert_eq!(cursor.field(&mut last), Ok(Some(Field { id: 1, kind: kind::I32 })));
        assert_eq!(cursor.integer(), Ok(-3));
        assert_eq!(cursor.field(&mut last), Ok(Some(Field { id: 3, kind: kind::BINARY })));
        assert_eq!(cursor.binary(), Ok(&b"ab"[..]));
        assert_eq!(cursor.field(&mut last), Ok(Some(Field { id: 40, kind: kind::LIST })));
        cursor.skip(kind::LIST).unwrap();
        assert_eq!(cursor.field(&mut last), Ok(None));
        assert_eq!(cursor.position(), bytes.len());
    }

    #[test]
    fn forged_lengths_end_with_the_slice() {
        let endless = [0xfc, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert!(Cursor::new(&endless).skip(kind::LIST).is_err());
        assert!(Cursor::new(&endless[1..]).binary().is_err());
        let deep = [0x19; 100_000];
        assert_eq!(Cursor::new(&deep).skip(kind::LIST).unwrap_err().what, "nested too deep");
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_a_result(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..16) {
            let mut cursor = Cursor::new(&bytes);
            let _ = cursor.skip(kind);
            prop_assert!(cursor.position() <= bytes.len());
        }
    }
}
