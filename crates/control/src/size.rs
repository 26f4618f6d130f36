//! Memory sizes as people write them: `2GiB`, `512 MiB`, `1.5G`, `1048576`.

use std::fmt;

/// Why a text is not a size.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SizeError {
    #[error("{0:?} is not a memory size (write it like 2GiB, 512MiB or 1073741824)")]
    NotASize(String),
    #[error("{0:?} is too large for a memory size")]
    TooLarge(String),
    #[error("a memory size must be more than 0")]
    Zero,
    /// A small number without a unit.
    #[error("{0:?} has no unit (write {0}GiB or {0}MiB)")]
    NoUnit(String),
}

/// Reads a size. Units are binary (`K`, `KiB`, `M`, `MiB`, …) unless they end in a plain `B` (`KB`, `MB`, …).
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let wrong = || SizeError::NotASize(text.to_owned());
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..split], trimmed[split..].trim_start().to_ascii_lowercase());
    let scale: u64 = match unit.as_str() {
        "" | "b" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1 << 30,
        "t" | "ti" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || (number.contains('.') && (fraction.is_empty() || scale == 1)) {
        return Err(wrong());
    }
    let too_large = || SizeError::TooLarge(text.to_owned());
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    // Twelve digits after the point are finer than a byte of a TiB.
    let fraction = &fraction[..fraction.len().min(12)];
    let tenths = 10u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    let part = if fraction.is_empty() { 0 } else { fraction.parse::<u128>().map_err(|_| wrong())? };
    let bytes = u128::from(whole) * u128::from(scale) + part * u128::from(scale) / tenths;
    match u64::try_from(bytes) {
        Ok(0) => Err(SizeError::Zero),
        // What does not fit a signed length cannot be a size of memory either, and u64::MAX means "no limit" on the wire.
        Ok(bytes) if bytes <= i64::MAX as u64 => Ok(bytes),
        _ => Err(too_large()),
    }
}

/// Less than this is no amount of a GPU's memory: a unit was forgotten.
const LEAST_BYTES: u64 = 1 << 20;

/// Reads an amount of memory that somebody is to have. As [`parse`], but a small number without a unit is refused: nobody
/// means to give 20 bytes.
pub fn parse_amount(text: &str) -> Result<u64, SizeError> {
    let bytes = parse(text)?;
    let plain = text.trim();
    if bytes < LEAST_BYTES && plain.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(SizeError::NoUnit(plain.to_owned()));
    }
    Ok(bytes)
}

/// Shows a size in the largest unit that keeps it exact, or with one decimal.
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        for (unit, scale) in UNITS {
            if self.0 >= scale {
                return if self.0.is_multiple_of(scale) {
                    write!(f, "{} {unit}", self.0 / scale)
                } else {
                    write!(f, "{:.1} {unit}", self.0 as f64 / scale as f64)
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_people_write() {
        assert_eq!(parse("2GiB"), Ok(2 << 30));
        assert_eq!(parse("512 MiB"), Ok(512 << 20));
        assert_eq!(parse("1.5g"), Ok(3 << 29));
        assert_eq!(parse("1048576"), Ok(1 << 20));
        assert_eq!(parse("3MB"), Ok(3_000_000));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "GiB", "two", "2GiBs", "-1", "1..5G", "1.G", "0x10", "1.5", "2 GiB x", ".5G", "１G"] {
            assert!(matches!(parse(text), Err(SizeError::NotASize(_))), "{text}");
        }
        assert_eq!(parse("0"), Err(SizeError::Zero));
        assert!(matches!(parse("99999999999T"), Err(SizeError::TooLarge(_))));
        assert!(matches!(parse("99999999999999999999999"), Err(SizeError::TooLarge(_))));
    }

    #[test]
    fn an_amount_needs_a_unit_unless_it_can_be_bytes() {
        assert_eq!(parse_amount("20"), Err(SizeError::NoUnit("20".to_owned())));
        assert_eq!(SizeError::NoUnit("20".to_owned()).to_string(), "\"20\" has no unit (write 20GiB or 20MiB)");
        assert_eq!(parse_amount("1073741824"), Ok(1 << 30));
        assert_eq!((parse_amount("20B"), parse_amount("20K")), (Ok(20), Ok(20 << 10)));
        assert_eq!(parse_amount("0"), Err(SizeError::Zero));
    }

    #[test]
    fn sizes_are_shown_as_they_are_written() {
        assert_eq!(Size(2 << 30).to_string(), "2 GiB");
        assert_eq!(Size(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(Size(12).to_string(), "12 B");
    }
}
