//! Kubernetes' quantities: `10Gi`, `100`, `1500m`, `1e3`.

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a valid quantity")]
pub struct BadQuantity(String);

/// A whole number; what is beyond the point counts as one more, as everywhere in Kubernetes.
pub fn parse(text: &str) -> Result<u64, BadQuantity> {
    let bad = || BadQuantity(text.chars().take(64).collect());
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() || part.contains('.') || part.len() > 18 {
        return Err(bad());
    }
    // Without the point, multiplied or divided by what the suffix says and by where the point was.
    let digits: u128 = format!("{whole}{part}").parse().map_err(|_| bad())?;
    let (times, divided) = match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        exponent => {
            let power = exponent.strip_prefix(['e', 'E']).and_then(|power| power.parse::<i32>().ok());
            let power = power.filter(|power| (-18..=18).contains(power)).ok_or_else(bad)?;
            let factor = 10u128.pow(power.unsigned_abs());
            if power < 0 { (1, factor) } else { (factor, 1) }
        }
    };
    let divided = divided * 10u128.pow(part.len() as u32);
    let value = digits.checked_mul(times).ok_or_else(bad)?.div_ceil(divided);
    u64::try_from(value).map_err(|_| bad())
}

/// Bytes, as Kubernetes writes them itself: what it gives back can then be compared with what it was given.
pub fn of_bytes(bytes: u64) -> String {
    const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut value, mut at) = (bytes, 0);
    while value != 0 && value % 1024 == 0 && at + 1 < SUFFIXES.len() {
        value /= 1024;
        at += 1;
    }
    format!("{value}{}", SUFFIXES[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_kubernetes_does() {
        let pairs = [(0, "0"), (1000, "1000"), (4 << 30, "4Gi"), (3 << 29, "1536Mi"), (1 << 20, "1Mi")];
        for (bytes, text) in pairs {
            assert_eq!(of_bytes(bytes), text);
            assert_eq!(parse(text), Ok(bytes));
        }
    }

    #[test]
    fn quantities_are_read_as_kubernetes_does() {
        let good = [
            ("0", 0),
            ("100", 100),
            ("10Gi", 10 << 30),
            ("1.5Gi", 3 << 29),
            ("1500m", 2),
            ("1e3", 1000),
            ("1E3", 1000),
            ("2k", 2000),
            ("10240Mi", 10 << 30),
            (".5Ki", 512),
        ];
        for (text, value) in good {
            assert_eq!(parse(text), Ok(value), "{text}");
        }
        for bad in ["", ".", "-1", "1..2", "Gi", "1 Gi", "10GiB", "99999999999999999999", "1e99", "1Ee"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
