//! Durations as people write them: `30` (seconds), `30s`, `1.5h`, `500ms`, `1h30m`.

use std::fmt;
use std::time::Duration;

/// Longer than anybody waits, and short enough to be added to any point in time.
const LONGEST: f64 = 100.0 * 365.0 * 86_400.0;

/// Text that is not a duration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DurationError {
    /// It does not read as one.
    #[error("{0:?} is not a duration (write it like 30s, 5m, 1h or 500ms; a plain number is in seconds)")]
    NotADuration(String),
    /// More than a hundred years.
    #[error("{0:?} is too long")]
    TooLong(String),
}

/// Reads a duration: numbers with units (`ms`, `s`, `m`, `h`, `d`), the largest first by custom; or seconds without a unit.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let wrong = || DurationError::NotADuration(text.to_owned());
    let mut rest = text.trim();
    let mut seconds = 0.0;
    let mut units = 0;
    while !rest.is_empty() {
        let split = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(split);
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let scale = match unit {
            // Only alone: in "1h30" the 30 could be anything.
            "" if units == 0 && next.is_empty() => 1.0,
            "ms" => 1e-3,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return Err(wrong()),
        };
        let complete = number.starts_with(|c: char| c.is_ascii_digit()) && !number.ends_with('.');
        let number: f64 = number.parse().ok().filter(|_| complete).ok_or_else(wrong)?;
        seconds += number * scale;
        (units, rest) = (units + 1, next);
    }
    match units {
        0 => Err(wrong()),
        _ if seconds > LONGEST => Err(DurationError::TooLong(text.to_owned())),
        _ => Ok(Duration::from_secs_f64(seconds)),
    }
}

/// Reads a duration of whole seconds in a range, for settings that are kept in seconds.
pub fn parse_seconds(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let time = parse(text).map_err(|error| error.to_string())?;
    match time.as_secs() {
        seconds if time.subsec_nanos() == 0 && (least..=most).contains(&seconds) => Ok(seconds),
        _ => Err(format!("expected a duration between {} and {}, in whole seconds", Length(least), Length(most))),
    }
}

/// Shows seconds in the largest unit that keeps them exact.
pub struct Length(pub u64);

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, scale) in [("d", 86_400), ("h", 3_600), ("m", 60)] {
            if self.0 >= scale && self.0.is_multiple_of(scale) {
                return write!(f, "{}{unit}", self.0 / scale);
            }
        }
        write!(f, "{}s", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_people_write() {
        for (text, millis) in [
            ("30", 30_000),
            ("0.5", 500),
            ("30s", 30_000),
            ("500ms", 500),
            ("1h", 3_600_000),
            ("1.5h", 5_400_000),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
            (" 5min ", 300_000),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "h", "1x", "-1", "1 hour", "1h30", "1..5s", "1.", ".5", "1e3", "NaN", "inf", "１s", "5 s"] {
            assert_eq!(parse(text), Err(DurationError::NotADuration(text.to_owned())), "{text}");
        }
        assert!(matches!(parse("99999999999d"), Err(DurationError::TooLong(_))));
        assert!(matches!(parse(&"9".repeat(400)), Err(DurationError::TooLong(_))));
    }

    #[test]
    fn seconds_in_a_range() {
        assert_eq!(parse_seconds("1h", 1, 86_400), Ok(3_600));
        let refused = parse_seconds("2d", 1, 86_400).unwrap_err();
        assert_eq!(refused, "expected a duration between 1s and 1d, in whole seconds");
        assert!(parse_seconds("1500ms", 1, 10).is_err() && parse_seconds("0", 1, 10).is_err());
    }
}
