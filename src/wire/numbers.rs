//! Numbers as text: JSON tokens, CSV cells, values in log lines.
//!
//! Three quarters of the time of reading a JSON or CSV recording is decimal to binary conversion, so the common shape (a
//! few digits, a point, up to 19 significant digits) is converted here in one pass that also finds the end of the token;
//! everything else goes to `fast-float2`. Both round correctly, as Rust's `str::parse` does.

/// What a cell of text holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell {
    /// A number, NaN or an infinity.
    Value(f64),
    /// Nothing was recorded: an empty cell or one of the spellings of "not available".
    Missing,
    /// Something else.
    Text,
}

/// The number that all of `text` spells, or `None`. Decimal only: a sign, digits with at most one point, an exponent.
/// Correctly rounded; beyond the range of f64 it is an infinity or zero, as everywhere.
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    match number_at(text, 0) {
        Ok((value, end)) if end == text.len() => Some(value),
        _ => None,
    }
}

/// Reads a cell of text as a value of a series, surrounding blanks aside.
///
/// Beside decimal numbers it knows the spellings of NaN and the infinities of Python, C, C++, Java, JSON writers and
/// Microsoft's runtime (`1.#QNAN`, `-nan(ind)`), the usual marks of a missing value, and numbers in the wrapping that
/// Python's `repr` puts around scalars: `tensor(0.06, device='cuda:0')`, `np.float64(0.5)`.
pub fn parse_text_value(text: &[u8]) -> Cell {
    let text = text.trim_ascii();
    let Some(&first) = text.first() else {
        return Cell::Missing;
    };
    if let Some(value) = parse_f64(text) {
        return Cell::Value(value);
    }
    if let Some(value) = parse_word(text) {
        return Cell::Value(value);
    }
    if first == b'-' && text.len() == 1 {
        return Cell::Missing;
    }
    const MISSING: [&[u8]; 6] = [b"na", b"n/a", b"<na>", b"none", b"null", b"nil"];
    if MISSING.iter().any(|missing| text.eq_ignore_ascii_case(missing)) {
        return Cell::Missing;
    }
    unwrap_repr(text).map_or(Cell::Text, Cell::Value)
}

/// A spelling of NaN or of an infinity, with its sign, in any case; `None` for all else.
pub fn parse_word(text: &[u8]) -> Option<f64> {
    let (negative, word) = match text.first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let starts = |prefix: &[u8]| word.len() >= prefix.len() && word[..prefix.len()].eq_ignore_ascii_case(prefix);
    let value = if starts(b"nan") {
        // C prints a payload: nan(ind), nan(snan), nan(0x8000000000000).
        let payload = &word[3..];
        if !(payload.is_empty() || payload.starts_with(b"(") && payload.ends_with(b")")) {
            return None;
        }
        f64::NAN
    } else if word.eq_ignore_ascii_case(b"inf") || word.eq_ignore_ascii_case(b"infinity") {
        f64::INFINITY
    } else if starts(b"1.#") {
        // Microsoft's older runtime pads the word with zeros to the asked precision: 1.#INF00.
        let kind = word[3..].trim_ascii_end();
        let kind = &kind[..kind.iter().rposition(|&byte| byte != b'0').map_or(0, |last| last + 1)];
        if kind.eq_ignore_ascii_case(b"INF") {
            f64::INFINITY
        } else if [&b"QNAN"[..], b"SNAN", b"IND"].iter().any(|nan| kind.eq_ignore_ascii_case(nan)) {
            f64::NAN
        } else {
            return None;
        }
    } else {
        return None;
    };
    Some(if negative { -value } else { value })
}

/// The number in `tensor(0.5, device='cuda:0')`, `np.float64(0.5)`, `Array(0.5, dtype=float32)`.
fn unwrap_repr(text: &[u8]) -> Option<f64> {
    let inner = text.strip_suffix(b")")?;
    let open = inner.iter().position(|&byte| byte == b'(')?;
    let (name, argument) = (&inner[..open], &inner[open + 1..]);
    let name = name.rsplit(|&byte| byte == b'.').next()?;
    let scalar = [&b"tensor"[..], b"array", b"Array", b"DTensor", b"Tensor"].contains(&name)
        || [&b"float"[..], b"int", b"uint", b"bfloat"].iter().any(|kind| name.starts_with(kind));
    if !scalar {
        return None;
    }
    let value = argument.split(|&byte| byte == b',').next()?.trim_ascii();
    parse_f64(value).or_else(|| parse_word(value))
}

/// A step that was recorded as a number: rounded down, and whether it had a fractional part. Beyond the range of i64 it
/// saturates. `None` for NaN, which is no step.
pub fn parse_i64_step(value: f64) -> Option<(i64, bool)> {
    if value.is_nan() {
        return None;
    }
    let floor = value.floor();
    // `as` saturates.
    Some((floor as i64, floor != value))
}

/// The number that begins at `bytes[at]`, and the index after its last byte.
///
/// Digits end where no digit follows: the caller judges the next byte. The error is the index at which a byte fits no
/// number; it is `bytes.len()` where more bytes could have made one.
#[inline]
pub fn number_at(bytes: &[u8], at: usize) -> Result<(f64, usize), usize> {
    match scan::<true>(bytes, at) {
        Some(found) => Ok(found),
        None => number_at_slow(bytes, at),
    }
}

/// As [`number_at`], without the value.
#[inline]
pub fn number_end(bytes: &[u8], at: usize) -> Result<usize, usize> {
    match scan::<false>(bytes, at) {
        Some((_, end)) => Ok(end),
        None => number_end_slow(bytes, at),
    }
}

/// Extent and (if `VALUE`) value of a number of the common shape, eight digits at a time. `None` near the end of the
/// slice and for every number that takes a second look.
#[inline(always)]
fn scan<const VALUE: bool>(bytes: &[u8], at: usize) -> Option<(f64, usize)> {
    // A branch, not arithmetic: the processor guesses the sign, and need not wait for it to look for the digits.
    if *bytes.get(at)? == b'-' {
        let (value, end) = scan_unsigned::<VALUE>(bytes, at + 1)?;
        return Some((-value, end));
    }
    scan_unsigned::<VALUE>(bytes, at)
}

#[inline(always)]
fn scan_unsigned<const VALUE: bool>(bytes: &[u8], at: usize) -> Option<(f64, usize)> {
    let block: &[u8; 64] = bytes.get(at..)?.first_chunk()?;
    let digit = |byte: u8| Some(u64::from(byte.wrapping_sub(b'0'))).filter(|&digit| digit < 10);
    let whole = digit(block[0])?;
    // One digit before the point is so common that it is worth its own copy, in which all places are constants.
    if block[1] == b'.' {
        return finish::<VALUE>(block, at, Fraction::find::<VALUE>(block[2..26].first_chunk()?)?, 1, whole);
    }
    let mut whole = whole;
    let mut length = 1;
    while let Some(next) = digit(block[length]) {
        whole = whole * 10 + next;
        length += 1;
        if length > 18 {
            return None;
        }
    }
    let fraction = match block[length] {
        b'.' => Fraction::find::<VALUE>(block[length + 1..].first_chunk()?)?,
        next => Fraction { length: 0, digits: 0, next },
    };
    finish::<VALUE>(block, at, fraction, length, whole)
}

/// The digits after a point.
struct Fraction {
    length: usize,
    digits: u64,
    /// The byte after them.
    next: u8,
}

impl Fraction {
    /// Up to 19 significant digits of at most 23.
    #[inline(always)]
    fn find<const VALUE: bool>(block: &[u8; 24]) -> Option<Self> {
        let words = block.as_chunks::<8>().0;
        let word = |i: usize| u64::from_le_bytes(words[i]);
        let first = word(0);
        let others = other_than_digits(first);
        if others != 0 {
            let length = others.trailing_zeros() / 8;
            // The zeros that the shift brings in read as digits before the first.
            let digits = eight_digits(first << 8 << (56 - 8 * length));
            return Some(Self { length: length as usize, digits, next: (first >> (8 * length)) as u8 });
        }
        // Sixteen digits or seventeen are a toss of a coin, so the other two words are taken without a branch.
        let (second, third) = (word(1), word(2));
        let (in_second, in_third) = (other_than_digits(second), other_than_digits(third));
        if in_second | in_third == 0 {
            return None;
        }
        let more = if in_second != 0 { in_second.trailing_zeros() / 8 } else { 8 + in_third.trailing_zeros() / 8 };
        let length = 8 + more as usize;
        let next = block[length.min(23)];
        if !VALUE {
            return Some(Self { length, digits: 0, next });
        }
        let pair = (u128::from(third) << 64 | u128::from(second)) << 8 << (120 - 8 * more);
        let first = eight_digits(first);
        if length > 19 && first >= TENS[27 - length] {
            return None;
        }
        let last = eight_digits(pair as u64) * 100_000_000 + eight_digits((pair >> 64) as u64);
        Some(Self { length, digits: first * TENS[more as usize] + last, next })
    }
}

/// The exponent, and the value of it all.
#[inline(always)]
fn finish<const VALUE: bool>(
    block: &[u8; 64],
    at: usize,
    fraction: Fraction,
    whole_length: usize,
    whole: u64,
) -> Option<(f64, usize)> {
    let has_point = fraction.length > 0 || block[whole_length.min(63)] == b'.';
    let mut end = whole_length + usize::from(has_point) + fraction.length;
    let mut exponent = -(fraction.length as i32);
    if fraction.next | 0x20 == b'e' {
        let digit = |at: usize| block.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit < 10);
        let sign = *block.get(end + 1)?;
        end += 1 + usize::from((sign == b'-') | (sign == b'+'));
        let mut power = i32::from(digit(end)?);
        end += 1;
        if let Some(second) = digit(end) {
            power = power * 10 + i32::from(second);
            end += 1;
            if digit(end).is_some() {
                return None;
            }
        }
        exponent += if sign == b'-' { -power } else { power };
    }
    if !VALUE {
        return Some((0.0, at + end));
    }
    let mut mantissa = fraction.digits;
    if whole != 0 {
        if whole_length + fraction.length > 19 {
            return None;
        }
        mantissa += whole * TENS[fraction.length];
    }
    Some((scale(mantissa, exponent)?, at + end))
}

/// The high bit of each byte that is no digit; of those after the first such byte it says nothing.
#[inline(always)]
fn other_than_digits(word: u64) -> u64 {
    // A digit has 0 to 9 left, any other byte at least 10.
    let left = word ^ 0x3030_3030_3030_3030;
    (left.wrapping_add(0x7676_7676_7676_7676) | left) & 0x8080_8080_8080_8080
}

#[cold]
fn number_at_slow(bytes: &[u8], at: usize) -> Result<(f64, usize), usize> {
    let end = number_end_slow(bytes, at)?;
    match fast_float2::parse::<f64, _>(&bytes[at..end]) {
        Ok(value) => Ok((value, end)),
        Err(_) => Err(at),
    }
}

/// The definition of a number's extent, byte by byte.
fn number_end_slow(bytes: &[u8], at: usize) -> Result<usize, usize> {
    let digits = |mut at: usize| {
        while bytes.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        at
    };
    let mut end = at;
    if matches!(bytes.get(end), Some(b'-' | b'+')) {
        end += 1;
    }
    let whole = end;
    end = digits(end);
    let mut count = end - whole;
    if bytes.get(end) == Some(&b'.') {
        let fraction = end + 1;
        end = digits(fraction);
        count += end - fraction;
    }
    if count == 0 {
        return Err(end);
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let mut exponent = end + 1;
        if matches!(bytes.get(exponent), Some(b'-' | b'+')) {
            exponent += 1;
        }
        end = digits(exponent);
        if end == exponent {
            return Err(end);
        }
    }
    Ok(end)
}

/// The number that eight digits spell, the first in the lowest byte. A zero byte counts as the digit 0.
#[inline(always)]
fn eight_digits(digits: u64) -> u64 {
    let pairs = (digits & 0x0F0F_0F0F_0F0F_0F0F).wrapping_mul(10 * 256 + 1) >> 8;
    let fours = (pairs & 0x00FF_00FF_00FF_00FF).wrapping_mul(100 * 65_536 + 1) >> 16;
    (fours & 0x0000_FFFF_0000_FFFF).wrapping_mul(10_000 * 4_294_967_296 + 1) >> 32
}

/// 10^n as u64.
const TENS: [u64; 20] = {
    let mut tens = [1; 20];
    let mut n = 1;
    while n < 20 {
        tens[n] = tens[n - 1] * 10;
        n += 1;
    }
    tens
};

/// 10^n as f64, exact.
const EXACT_TENS: [f64; 23] = {
    let mut tens = [1.0; 23];
    let mut n = 1;
    while n < 23 {
        tens[n] = tens[n - 1] * 10.0;
        n += 1;
    }
    tens
};

const LEAST_POWER: i32 = -50;
const GREATEST_POWER: i32 = 38;

/// The 128 leading bits of 5^q for q in `LEAST_POWER..=GREATEST_POWER`, the highest bit set. Positive powers and those
/// below -27 are truncated, the others rounded up, as the proof of the method asks.
const FIVES: [u128; (GREATEST_POWER - LEAST_POWER + 1) as usize] = {
    let mut fives = [0; (GREATEST_POWER - LEAST_POWER + 1) as usize];
    let mut q = LEAST_POWER;
    while q <= GREATEST_POWER {
        let mut power: u128 = 1;
        let mut n = 0;
        while n < q.abs() {
            power *= 5;
            n += 1;
        }
        fives[(q - LEAST_POWER) as usize] = if q >= 0 {
            power << power.leading_zeros()
        } else {
            // Long division of a power of two by 5^-q: 128 bits from the first that is set.
            let mut quotient: u128 = 0;
            let mut remainder: u128 = 1;
            while quotient >> 127 == 0 {
                remainder <<= 1;
                quotient <<= 1;
                if remainder >= power {
                    remainder -= power;
                    quotient |= 1;
                }
            }
            quotient + (q >= -27) as u128
        };
        q += 1;
    }
    fives
};

/// `mantissa` x 10^`exponent`, correctly rounded, or `None` where this method cannot tell.
///
/// The method of Eisel and Lemire ("Number parsing at a gigabyte per second", 2021): one multiplication by a truncated
/// power of five, a second where the first leaves the rounding open.
#[inline(always)]
fn scale(mantissa: u64, exponent: i32) -> Option<f64> {
    if exponent == 0 || mantissa == 0 {
        return Some(mantissa as f64);
    }
    // Both are exact, so that one division rounds once. The bound is below 2^53, at 15 digits, since 16 or 17 are as
    // likely as each other.
    if mantissa < 1_000_000_000_000_000 && (-22..0).contains(&exponent) {
        return Some(mantissa as f64 / EXACT_TENS[(-exponent) as usize]);
    }
    if !(LEAST_POWER..=GREATEST_POWER).contains(&exponent) {
        return None;
    }
    let five = FIVES[(exponent - LEAST_POWER) as usize];
    let shift = mantissa.leading_zeros();
    let mantissa = mantissa << shift;
    let wide = |factor: u64| u128::from(mantissa) * u128::from(factor);
    let mut product = wide((five >> 64) as u64);
    // 53 bits, one to round by, and two to spare are needed; only if all below them are ones can a carry reach them.
    const BELOW: u64 = u64::MAX >> 55;
    if (product >> 64) as u64 & BELOW == BELOW {
        product = product.wrapping_add(wide(five as u64) >> 64);
    }
    let (low, high) = (product as u64, (product >> 64) as u64);
    if low == u64::MAX && exponent < -27 {
        return None;
    }
    let upper = (high >> 63) as u32;
    let drop = upper + 64 - 52 - 3;
    let mut bits = high >> drop;
    // A tie is possible only for small powers; it goes to the even neighbour.
    if low <= 1 && (-4..=23).contains(&exponent) && bits & 3 == 1 && bits << drop == high {
        bits &= !1;
    }
    bits = (bits + (bits & 1)) >> 1;
    // The powers above keep the result far from subnormal numbers and infinity. A carry out of the mantissa moves into
    // the exponent by the addition.
    let power = ((exponent * 217_706) >> 16) + 63 + upper as i32 - shift as i32 + 1023;
    Some(f64::from_bits(bits.wrapping_add(((power - 1) as u64) << 52)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rust's own parser, on the numbers of this module's grammar.
    fn reference(text: &str) -> Option<f64> {
        if text.bytes().any(|byte| byte.is_ascii_alphabetic() && !matches!(byte, b'e' | b'E')) {
            return None;
        }
        text.parse().ok()
    }

    /// Compares with the reference, alone and with neighbours that let the fast way run.
    fn check(text: &str) {
        let expected = reference(text).map(f64::to_bits);
        assert_eq!(parse_f64(text.as_bytes()).map(f64::to_bits), expected, "{text:?}");
        let padded = format!("{{\"some long key before it\": {text}, \"another long key after it\": 1}}");
        let found = number_at(padded.as_bytes(), 28);
        if let Some(bits) = expected {
            assert_eq!(found.map(|(value, end)| (value.to_bits(), end)), Ok((bits, 28 + text.len())), "{text:?}");
            assert_eq!(number_end(padded.as_bytes(), 28), Ok(28 + text.len()));
        }
    }

    #[test]
    fn edges_of_the_range_and_ties() {
        for text in [
            "0",
            "-0",
            "0.0",
            "-0.0",
            "1",
            "17",
            "+1",
            ".5",
            "5.",
            "1.e3",
            "",
            "-",
            "+",
            ".",
            "e5",
            "1e",
            "1e+",
            "1.2.3",
            "1-2",
            "9007199254740993",
            "9007199254740992.5",
            "9007199254740993.0",
            "9007199254740991.5",
            "4503599627370497.5",
            "1.7976931348623157e308",
            "1.7976931348623159e308",
            "1e309",
            "-1e400",
            "5e-324",
            "2e-324",
            "2.2250738585072011e-308",
            "123456789012345678",
            "1234567890123456789",
            "12345678901234567890",
            "18446744073709551615",
            "18446744073709551616",
            "0.00000000000000000000000000012345678901234567",
            "0.000012345678901234567",
            "0.00001234567890123456789",
            "99999999999999999999.5",
            "9.5367431640625e-07",
            "1.00000005960464477539062",
            "1e22",
            "1e23",
            "1e-22",
            "1e38",
            "1e39",
            "1e-50",
            "1e-51",
            "1234567890.1234567891",
            "1.5e+0000000000000000000000000000000000001",
            "0e999",
            "65504.0",
            "nan",
            "inf",
            "1e5x",
            "00012",
            "-000.5e-3",
            "0x10",
            "1_000",
            " 1",
            "1 ",
        ] {
            check(text);
        }
    }

    #[test]
    fn words_of_digits() {
        assert_eq!(eight_digits(u64::from_le_bytes(*b"12345678")), 12_345_678);
        assert_eq!(eight_digits(u64::from_le_bytes(*b"\0\0\x30\x3045\x36\x37")), 4_567);
        for byte in 0..=255u8 {
            for place in 0..8 {
                let mut word = *b"03579142";
                word[place] = byte;
                let first = if byte.is_ascii_digit() { 8 } else { place as u32 };
                let others = other_than_digits(u64::from_le_bytes(word));
                assert_eq!(others.trailing_zeros() / 8, first, "{byte} at {place}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn shortest_digits_come_back(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            check(&format!("{value:?}"));
            check(&format!("{value:e}"));
            let small = f64::from_bits((bits & !(0x7FF << 52)) | ((1023 - 40 + (bits >> 52) % 80) << 52));
            check(&format!("{small:?}"));
            check(&format!("{small}"));
            check(&format!("{small:.17e}"));
            check(&format!("{:?}", small as f32 as f64));
        }

        #[test]
        fn decimals_round_as_rust_rounds(text in "[-+]?[0-9]{0,22}(\\.[0-9]{0,24})?([eE][-+]?[0-9]{1,3})?") {
            check(&text);
        }

        #[test]
        fn near_ties_round_to_even(high in 1u64 << 52..1 << 53, shift in 0u32..11, delta in -1i64..=1) {
            // Halfway between two neighbours, and one beside it.
            let tie = ((high << 1 | 1) << shift).wrapping_add_signed(delta);
            check(&format!("{tie}"));
            check(&format!("{tie}.0"));
            check(&format!("{}.{:03}", tie / 1000, tie % 1000));
        }

        #[test]
        fn anything_is_a_number_or_not(text in "[-+.eE0-9a-z ]{0,40}") {
            check(&text);
        }
    }

    #[test]
    fn spellings() {
        for text in [
            "nan",
            "NaN",
            "NAN",
            "-nan",
            "+nan",
            "-NaN",
            "nan(ind)",
            "-nan(ind)",
            "nan(0x1)",
            "1.#QNAN",
            "1.#IND",
            "-1.#IND",
            "-1.#IND00",
            "tensor(nan)",
            "tensor(nan, device='cuda:0')",
            "np.float32(nan)",
            " nan\t",
        ] {
            assert!(matches!(parse_text_value(text.as_bytes()), Cell::Value(value) if value.is_nan()), "{text}");
        }
        for text in ["inf", "Inf", "+inf", "Infinity", "+Infinity", "INF", "1.#INF", "1.#INF00", "tensor(inf)"] {
            assert_eq!(parse_text_value(text.as_bytes()), Cell::Value(f64::INFINITY), "{text}");
        }
        for text in ["-inf", "-Inf", "-Infinity", "-1.#INF", "tensor(-inf, dtype=torch.float16)"] {
            assert_eq!(parse_text_value(text.as_bytes()), Cell::Value(f64::NEG_INFINITY), "{text}");
        }
        for text in ["", " ", "\t", "NA", "N/A", "n/a", "None", "null", "NULL", "nil", "-", " - ", "<NA>"] {
            assert_eq!(parse_text_value(text.as_bytes()), Cell::Missing, "{text:?}");
        }
        for text in [
            "nano",
            "nanoGPT",
            "info",
            "infinite",
            "nan%",
            "nanms",
            "--",
            "1.#",
            "1.#INFX",
            "10/438",
            "1,5",
            "12 s",
            "tensor([1.0, 2.0])",
            "foo(1.0)",
            "tensor()",
            "true",
            "0.5x",
            "n",
            "i",
        ] {
            assert_eq!(parse_text_value(text.as_bytes()), Cell::Text, "{text:?}");
        }
        for (text, value) in [
            ("0.5", 0.5),
            (" 3.62E-06 ", 3.62e-6),
            ("tensor(0.0652, device='cuda:0')", 0.0652),
            ("tensor(1091.0826)", 1091.0826),
            ("np.float64(0.5)", 0.5),
            ("numpy.float32(-2)", -2.0),
            ("Array(0.25, dtype=float32)", 0.25),
            ("tensor(2., grad_fn=<MeanBackward0>)", 2.0),
        ] {
            assert_eq!(parse_text_value(text.as_bytes()), Cell::Value(value), "{text:?}");
        }
    }

    #[test]
    fn steps() {
        assert_eq!(parse_i64_step(17.0), Some((17, false)));
        assert_eq!(parse_i64_step(17.9), Some((17, true)));
        assert_eq!(parse_i64_step(-0.5), Some((-1, true)));
        assert_eq!(parse_i64_step(1e300), Some((i64::MAX, false)));
        assert_eq!(parse_i64_step(f64::NEG_INFINITY), Some((i64::MIN, false)));
        assert_eq!(parse_i64_step(f64::NAN), None);
    }
}
