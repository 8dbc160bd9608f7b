//! CRC-32C (Castagnoli) with the processor's instruction.
//!
//! Event files carry two checksums a record, over 8 bytes and over some 40: the call must cost as little as the work, so
//! the processor is asked once, when the [`Level`] is made, and not on every call.
#![allow(unsafe_code)]

use super::level::Level;
use super::naive;

/// The CRC-32C of `bytes`: reflected polynomial 0x82F63B78, initial value and final xor 0xFFFFFFFF.
///
/// Inside of [`Level::run`] it costs no call.
#[inline(always)]
#[must_use]
pub fn crc32c(level: Level, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if level.is_v3() {
        // SAFETY: `is_v3` proves every feature of x86-64-v3, SSE4.2 among them.
        return unsafe { with_sse42(bytes) };
    }
    let _ = level;
    naive::crc32c(bytes)
}

/// # Safety
///
/// The processor has SSE4.2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn with_sse42(bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};
    let (words, rest) = bytes.as_chunks::<8>();
    let (halves, rest) = rest.as_chunks::<4>();
    let mut wide = 0xffff_ffff;
    for word in words {
        // SAFETY: the caller has SSE4.2; the same for the two below.
        wide = unsafe { _mm_crc32_u64(wide, u64::from_le_bytes(*word)) };
    }
    let mut crc = wide as u32;
    for half in halves {
        // SAFETY: as above.
        crc = unsafe { _mm_crc32_u32(crc, u32::from_le_bytes(*half)) };
    }
    for byte in rest {
        // SAFETY: as above.
        crc = unsafe { _mm_crc32_u8(crc, *byte) };
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_answers() {
        for level in Level::all_available() {
            assert_eq!(crc32c(level, b"123456789"), 0xe306_9283, "{}", level.name());
            assert_eq!(crc32c(level, &[0; 32]), 0x8a91_36aa, "{}", level.name());
            assert_eq!(crc32c(level, b""), 0, "{}", level.name());
        }
    }

    proptest! {
        #[test]
        fn every_level_equals_the_twin(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for level in Level::all_available() {
                prop_assert_eq!(crc32c(level, &bytes), naive::crc32c(&bytes));
            }
        }
    }
}
