//! Counts and times in what we print.

/// `1 zone`, `2 zones`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

/// Seconds in the two largest units that they have, as options take them: `59m59s`, `1d1h`.
pub(crate) fn roughly(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let largest = UNITS.iter().position(|(scale, _)| seconds >= *scale).unwrap_or(UNITS.len() - 1);
    let mut text = format!("{}{}", seconds / UNITS[largest].0, UNITS[largest].1);
    if let Some((scale, unit)) = UNITS.get(largest + 1) {
        let rest = seconds % UNITS[largest].0 / scale;
        text += &if rest > 0 { format!("{rest}{unit}") } else { String::new() };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{counted, roughly};

    #[test]
    fn one_is_singular_and_all_else_plural() {
        assert_eq!(
            ["0 workers", "1 worker", "2 workers"],
            [0, 1, 2].map(|count| counted(count, "worker")).as_slice()
        );
    }

    #[test]
    fn times_have_units_that_people_read() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (3_599, "59m59s"), (3_600, "1h"), (3_661, "1h1m"), (90_061, "1d1h")]
        {
            assert_eq!(roughly(seconds), text);
            assert!(control::duration::parse(text).is_ok(), "{text}");
        }
    }
}
