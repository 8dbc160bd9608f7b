//! Wall times as loggers write them, to milliseconds since 1970.

use chrono::{DateTime, NaiveDateTime};

/// A number of seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by its size. Numbers too
/// small to be a date after 1973 are durations: `None`.
#[inline]
pub fn from_number(value: f64) -> Option<i64> {
    let milliseconds = match value {
        v if (1e8..1e11).contains(&v) => v * 1e3,
        v if (1e11..1e14).contains(&v) => v,
        v if (1e14..1e17).contains(&v) => v / 1e3,
        v if (1e17..1e20).contains(&v) => v / 1e6,
        _ => return None,
    };
    Some((milliseconds + 0.5) as i64)
}

/// An ISO 8601 date and time, with or without zone (then taken as UTC), or a number in text.
pub fn from_text(text: &str) -> Option<i64> {
    let text = text.trim();
    if let Ok(number) = text.parse::<f64>() {
        return from_number(number);
    }
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Some(time.timestamp_millis());
    }
    ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d_%H-%M-%S", "%Y/%m/%d %H:%M:%S%.f"]
        .iter()
        .find_map(|format| NaiveDateTime::parse_from_str(text, format).ok())
        .map(|time| time.and_utc().timestamp_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_told_apart_by_size() {
        assert_eq!(from_number(1_700_000_000.5), Some(1_700_000_000_500));
        assert_eq!(from_number(1_700_000_000_500.0), Some(1_700_000_000_500));
        assert_eq!(from_number(1_700_000_000_500_000.0), Some(1_700_000_000_500));
        assert_eq!(from_number(12.5), None);
        assert_eq!(from_number(f64::NAN), None);
    }

    #[test]
    fn texts_with_and_without_zone() {
        assert_eq!(from_text("2023-11-14T22:13:20+00:00"), Some(1_700_000_000_000));
        assert_eq!(from_text("2023-11-14 22:13:20"), Some(1_700_000_000_000));
        assert_eq!(from_text("1700000000"), Some(1_700_000_000_000));
        assert_eq!(from_text("6s"), None);
    }
}
