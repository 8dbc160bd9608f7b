//! TensorFlow's record framing: `u64` length, masked CRC-32C of it, payload, masked CRC-32C of the payload, little-endian,
//! one record after the other, no file header. (`tensorflow/core/lib/io/record_writer.h`)
//!
//! The checksum is a parameter: which instructions may compute it is not this module's business.

/// Bytes before the payload: the length and its checksum.
pub const HEADER: usize = 12;
/// Bytes behind the payload: its checksum.
pub const FOOTER: usize = 4;

/// A checksum as it stands in the file: rotated and moved, so that checksums of data with checksums in it stay sound.
#[inline]
#[must_use]
pub const fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The payload's length, if its checksum matches.
#[inline]
pub fn length(header: &[u8; HEADER], crc: impl Fn(&[u8]) -> u32) -> Option<u64> {
    let (length, checksum) = header.split_at(8);
    let length = length.first_chunk()?;
    (masked(crc(length)).to_le_bytes() == *checksum).then_some(u64::from_le_bytes(*length))
}

/// Whether a payload is what its footer says.
#[inline]
pub fn is_intact(payload: &[u8], footer: &[u8; FOOTER], crc: impl Fn(&[u8]) -> u32) -> bool {
    masked(crc(payload)).to_le_bytes() == *footer
}

/// Index of the first byte with which a header begins whose checksum matches and whose record has at most `longest`
/// bytes. Random bytes look like one once in four billion.
pub fn find_header(bytes: &[u8], longest: u64, crc: impl Fn(&[u8]) -> u32) -> Option<usize> {
    bytes.windows(HEADER).position(|window| {
        window.first_chunk::<HEADER>().is_some_and(|header| {
            let plausible = header.first_chunk().is_some_and(|length| u64::from_le_bytes(*length) <= longest);
            plausible && length(header, &crc).is_some()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slow, and right: bit by bit.
    fn crc(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
        })
    }

    /// The first record of every event file: `brain.Event:2` at wall time 1.0.
    const RECORD: &[u8] =
        b"\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0dbrain.Event:2\x86\xbf\x57\x7a";

    #[test]
    fn known_answers() {
        assert_eq!(masked(crc(b"\x1a\x11CRC test, one two")), 0x5794_d08a);
        assert_eq!(masked(crc(&[0; 8])), 0x0798_0329);
        assert_eq!(masked(crc(b"")), 0xa282_ead8);
        let header = RECORD.first_chunk().unwrap();
        assert_eq!(length(header, crc), Some(24));
        assert!(is_intact(&RECORD[HEADER..HEADER + 24], RECORD.last_chunk().unwrap(), crc));
        assert!(!is_intact(&RECORD[HEADER + 1..HEADER + 25], RECORD.last_chunk().unwrap(), crc));
    }

    #[test]
    fn a_zero_filled_tail_holds_no_header() {
        assert_eq!(length(&[0; HEADER], crc), None);
        assert_eq!(find_header(&[0; 64], 1 << 20, crc), None);
    }

    #[test]
    fn the_next_header_is_found_behind_any_damage() {
        let damaged = [&[0xff; 3][..], &[0; 9], RECORD].concat();
        assert_eq!(find_header(&damaged, 1 << 20, crc), Some(12));
        assert_eq!(find_header(&damaged, 23, crc), None);
    }
}
