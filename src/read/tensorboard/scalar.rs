//! A `TensorProto` of one element as a number (`tensorflow/core/framework/tensor.proto`, `types.proto`).

use crate::wire::protobuf::{Fields, Malformed, Value, varint};
use crate::wire::small_floats::SmallFloat;

/// A number as it was recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number {
    pub value: f64,
    /// It was a 32-bit float, or narrower.
    pub narrow: bool,
}

/// How elements of a `DataType` are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    F32,
    F64,
    Small(SmallFloat),
    Signed(usize),
    Unsigned(usize),
}

/// By the number of the `DataType`; texts, complex numbers and what is narrower than a byte are no scalars.
fn element(dtype: u64) -> Option<Element> {
    Some(match dtype {
        1 => Element::F32,
        2 => Element::F64,
        3 | 13 => Element::Signed(4),
        4 | 10 | 12 => Element::Unsigned(1),
        5 | 15 => Element::Signed(2),
        6 | 11 => Element::Signed(1),
        9 => Element::Signed(8),
        14 => Element::Small(SmallFloat::Bfloat16),
        16 | 17 => Element::Unsigned(2),
        19 => Element::Small(SmallFloat::Half),
        22 => Element::Unsigned(4),
        23 => Element::Unsigned(8),
        24 => Element::Small(SmallFloat::E5M2),
        25 => Element::Small(SmallFloat::E4M3Fn),
        26 => Element::Small(SmallFloat::E4M3Fnuz),
        27 => Element::Small(SmallFloat::E4M3B11Fnuz),
        28 => Element::Small(SmallFloat::E5M2Fnuz),
        _ => return None,
    })
}

/// The field that lists elements of a `DataType` where they are not in `tensor_content`.
fn list_field(dtype: u64) -> u32 {
    match dtype {
        1 => 5,
        2 => 6,
        9 => 10,
        10 => 11,
        14 | 19 => 13,
        22 => 16,
        23 => 17,
        24.. => 18,
        _ => 7,
    }
}

/// The number in a tensor of one element; `None` if it has several, or none that is a real number.
pub fn number(tensor: &[u8]) -> Result<Option<Number>, Malformed> {
    let (mut dtype, mut single, mut content) = (0, true, None);
    for field in Fields::new(tensor) {
        match field? {
            (1, Value::Varint(code)) => dtype = code,
            (2, Value::Bytes(shape)) => single = is_single(shape)?,
            (4, Value::Bytes(bytes)) => content = Some(bytes).filter(|bytes| !bytes.is_empty()),
            _ => {}
        }
    }
    // The fields were walked once: no error is left.
    let listed = Fields::new(tensor).flatten().filter(|(field, _)| *field == list_field(dtype)).last();
    let Some(element) = element(dtype).filter(|_| single) else { return Ok(None) };
    let value = match (content, listed) {
        (Some(bytes), _) => element.stored(bytes),
        (None, Some((_, value))) => element.listed(value)?,
        // Fields of default value are not written: an empty tensor of one element holds a zero.
        (None, None) => Some(0.0),
    };
    let narrow = !matches!(element, Element::F64 | Element::Signed(4 | 8) | Element::Unsigned(4 | 8));
    Ok(value.map(|value| Number { value, narrow }))
}

/// The bytes of the only 32-bit float in a tensor that [`number`] read.
pub fn float_bytes(tensor: &[u8]) -> Option<&[u8]> {
    let (mut dtype, mut content, mut listed) = (0, None, None);
    for (number, value) in Fields::new(tensor).flatten() {
        match (number, value) {
            (1, Value::Varint(code)) => dtype = code,
            (4, Value::Bytes(bytes)) if !bytes.is_empty() => content = Some(bytes),
            (5, Value::Bytes(bytes)) => listed = Some(bytes),
            _ => {}
        }
    }
    content.or(listed).filter(|bytes| dtype == 1 && bytes.len() == size_of::<f32>())
}

/// Whether a shape has one element. One that is absent or empty is that of a scalar.
fn is_single(shape: &[u8]) -> Result<bool, Malformed> {
    let mut single = true;
    for field in Fields::new(shape) {
        match field? {
            (2, Value::Bytes(dimension)) => {
                let mut size = 0;
                for field in Fields::new(dimension) {
                    if let (1, Value::Varint(elements)) = field? {
                        size = elements;
                    }
                }
                single &= size == 1;
            }
            (3, Value::Varint(unknown_rank)) => single &= unknown_rank == 0,
            _ => {}
        }
    }
    Ok(single)
}

impl Element {
    /// From `tensor_content`: raw little-endian elements, one of them.
    fn stored(self, bytes: &[u8]) -> Option<f64> {
        let unsigned = |width: usize| {
            let fits = bytes.len() == width;
            fits.then(|| bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)))
        };
        match self {
            Self::F32 => Some(f64::from(f32::from_le_bytes(bytes.try_into().ok()?))),
            Self::F64 => Some(f64::from_le_bytes(bytes.try_into().ok()?)),
            Self::Small(kind) => Some(kind.widen(unsigned(kind.width())? as u16)),
            Self::Unsigned(width) => Some(unsigned(width)? as f64),
            Self::Signed(width) => {
                let unused = 64 - 8 * width as u32;
                Some((((unsigned(width)? << unused) as i64) >> unused) as f64)
            }
        }
    }

    /// From a list of values (`float_val` ...), packed or not. Of several the last counts: it is what TensorFlow repeats.
    fn listed(self, value: Value<'_>) -> Result<Option<f64>, Malformed> {
        Ok(match (self, value) {
            (Self::F32, Value::Fixed32(bits)) => Some(f64::from(f32::from_bits(bits))),
            (Self::F64, Value::Fixed64(bits)) => Some(f64::from_bits(bits)),
            (Self::F32, Value::Bytes(packed)) if packed.len().is_multiple_of(4) => {
                packed.last_chunk().map(|bytes| f64::from(f32::from_le_bytes(*bytes)))
            }
            (Self::F64, Value::Bytes(packed)) if packed.len().is_multiple_of(8) => {
                packed.last_chunk().map(|bytes| f64::from_le_bytes(*bytes))
            }
            // `float8_val` is bytes, not packed numbers.
            (Self::Small(kind), Value::Bytes(bytes)) if kind.width() == 1 => {
                bytes.last().map(|byte| kind.widen(u16::from(*byte)))
            }
            (_, Value::Varint(bits)) => self.varint_value(bits),
            (Self::F32 | Self::F64, _) => None,
            (_, Value::Bytes(mut packed)) => {
                let mut last = None;
                while !packed.is_empty() {
                    last = Some(varint(&mut packed).ok_or(Malformed)?);
                }
                last.and_then(|bits| self.varint_value(bits))
            }
            _ => None,
        })
    }

    fn varint_value(self, bits: u64) -> Option<f64> {
        match self {
            // torch's `add_tensor` fills `half_val` with the bits of a 32-bit float: no 16-bit pattern is that large.
            Self::Small(kind) => Some(match u16::try_from(bits) {
                Ok(bits) => kind.widen(bits),
                Err(_) => f64::from(f32::from_bits(bits as u32)),
            }),
            Self::Signed(_) => Some(bits as i64 as f64),
            Self::Unsigned(_) => Some(bits as f64),
            Self::F32 | Self::F64 => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(tensor: &[u8]) -> Option<f64> {
        number(tensor).unwrap().map(|number| number.value)
    }

    #[test]
    fn every_way_to_store_a_float() {
        assert_eq!(value(b"\x08\x01\x12\0\x22\x04\0\0\x20\x40"), Some(2.5), "tensor_content");
        assert_eq!(value(b"\x08\x01\x2a\x04\0\0\x20\x40"), Some(2.5), "packed float_val");
        assert_eq!(value(b"\x08\x01\x2d\0\0\x20\x40"), Some(2.5), "unpacked float_val");
        assert_eq!(value(b"\x08\x02\x32\x08\0\0\0\0\0\0\x04\x40"), Some(2.5), "double_val");
        assert_eq!(value(b"\x08\x01\x12\0"), Some(0.0), "an empty tensor");
        assert_eq!(number(b"\x08\x02\x32\x08\0\0\0\0\0\0\x04\x40"), Ok(Some(Number { value: 2.5, narrow: false })));
    }

    #[test]
    fn half_val_holds_a_half_or_torchs_float() {
        assert_eq!(value(b"\x08\x13\x6a\x02\x80\x78"), Some(1.0), "0x3c00");
        assert_eq!(value(b"\x08\x0e\x6a\x03\xa0\x80\x01"), Some(2.5), "bfloat16 0x4020");
        assert_eq!(value(b"\x08\x13\x6a\x05\x80\x80\x80\x81\x04"), Some(2.5), "the bits of a 32-bit 2.5");
        assert!(value(b"\x08\x13\x6a\x05\x80\x80\x80\xfe\x07").is_some_and(f64::is_nan), "the bits of a 32-bit NaN");
        assert_eq!(value(b"\x08\x18\x92\x01\x01\x7c"), Some(f64::INFINITY), "float8_val");
    }

    #[test]
    fn integers_and_booleans() {
        assert_eq!(value(b"\x08\x03\x3a\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Some(-1.0));
        assert_eq!(value(b"\x08\x09\x52\x01\x07"), Some(7.0));
        assert_eq!(value(b"\x08\x0a\x5a\x01\x01"), Some(1.0));
        assert_eq!(value(b"\x08\x05\x22\x02\xfe\xff"), Some(-2.0));
        assert_eq!(value(b"\x08\x16\x82\x01\x05\xff\xff\xff\xff\x0f"), Some(4294967295.0));
    }

    #[test]
    fn several_elements_texts_and_complex_numbers_are_no_scalars() {
        assert_eq!(value(b"\x08\x01\x12\x04\x12\x02\x08\x02\x2a\x04\0\0\x20\x40"), None, "shape [2]");
        assert_eq!(value(b"\x08\x01\x12\x04\x12\x02\x08\x01\x2a\x04\0\0\x20\x40"), Some(2.5), "shape [1]");
        assert_eq!(value(b"\x08\x01\x12\x02\x18\x01\x2a\x04\0\0\x20\x40"), None, "unknown rank");
        assert_eq!(value(b"\x08\x01\x12\x02\x12\x00"), None, "shape [0]");
        assert_eq!(value(b"\x08\x07\x42\x01a"), None, "a text");
        assert_eq!(value(b"\x08\x01\x22\x03\0\0\x20"), None, "three bytes of a float");
        assert_eq!(value(b"\x08\x02\x32\x0c\0\0\0\0\0\0\x04\x40\0\0\0\0"), None, "one and a half doubles");
        assert_eq!(value(b"\x08\x02\x6a\x02\x80\x78"), Some(0.0), "a double with a list of halves has none of its own");
        assert_eq!(number(b"\x08\x03\x3a\x01\xff"), Err(Malformed));
    }
}
