//! Plurals in what we print.

/// `1 zone`, `2 zones`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_singular_and_all_else_plural() {
        assert_eq!(
            ["0 workers", "1 worker", "2 workers"],
            [0, 1, 2].map(|count| counted(count, "worker")).as_slice()
        );
    }
}
