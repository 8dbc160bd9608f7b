//! A walk over the fields of one protocol-buffer message. Nested messages are slices, walked in their turn: nothing
//! recurses and nothing is reserved for a length that stands in the bytes.

/// One field's value, by its wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Wire type 0: integers, booleans, enums.
    Varint(u64),
    /// Wire type 1: the bits of 8 bytes.
    Fixed64(u64),
    /// Wire type 2: texts, bytes, nested messages, packed numbers.
    Bytes(&'a [u8]),
    /// Wire type 5: the bits of 4 bytes.
    Fixed32(u32),
}

/// The bytes are no message: cut inside a field, or a wire type that no writer of today uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The fields of a message in order: number and value. Ends at the first that is malformed.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The fields of `message`.
    #[inline]
    pub fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// The fields that were not walked yet.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        let key = varint(&mut self.rest)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut self.rest)?),
            1 => Value::Fixed64(u64::from_le_bytes(take(&mut self.rest)?)),
            2 => {
                let length = usize::try_from(varint(&mut self.rest)?).ok()?;
                let (bytes, rest) = self.rest.split_at_checked(length)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            5 => Value::Fixed32(u32::from_le_bytes(take(&mut self.rest)?)),
            _ => return None,
        };
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
        Some((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or(Malformed))
    }
}

#[inline]
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*head)
}

/// Takes a varint of at most ten bytes; bits beyond 64 are dropped, as protobuf itself does.
#[inline]
pub fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first()?;
    if *first < 0x80 {
        *bytes = rest;
        return Some(u64::from(*first));
    }
    let mut value = 0;
    for (index, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if *byte < 0x80 {
            *bytes = &bytes[index + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wire_type() {
        let message = b"\x08\x96\x01\x11\0\0\0\0\0\0\xf0\x3f\x1a\x03abc\x25\0\0\x20\x40";
        let fields: Vec<_> = Fields::new(message).collect();
        let want = [
            Ok((1, Value::Varint(150))),
            Ok((2, Value::Fixed64(1.0f64.to_bits()))),
            Ok((3, Value::Bytes(b"abc"))),
            Ok((4, Value::Fixed32(2.5f32.to_bits()))),
        ];
        assert_eq!(fields, want);
    }

    #[test]
    fn negative_numbers_take_ten_bytes() {
        let mut bytes = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01rest".as_slice();
        assert_eq!(varint(&mut bytes), Some(u64::MAX));
        assert_eq!(bytes, b"rest");
        assert_eq!(varint(&mut [0x80; 11].as_slice()), None);
        assert_eq!(varint(&mut [0x80; 3].as_slice()), None);
    }

    #[test]
    fn what_is_no_message_ends_the_walk() {
        // A group, a length beyond the end, field number 0, a cut number.
        for bad in [
            &b"\x0b\x01\x0c"[..],
            b"\x0a\x05abc",
            b"\x00\x01",
            b"\x11\0\0",
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        ] {
            let fields: Vec<_> = Fields::new(bad).collect();
            assert_eq!(fields, [Err(Malformed)], "{bad:?}");
        }
    }
}
