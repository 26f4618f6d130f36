//! What the kernel was started with.

use crate::InitError;
use std::str::FromStr;

pub(crate) fn read() -> Result<String, InitError> {
    std::fs::read_to_string("/proc/cmdline").map_err(|error| InitError::Step("read /proc/cmdline".into(), error))
}

/// The value of `name=value`, the last if there are several.
pub(crate) fn value<T: FromStr>(cmdline: &str, name: &str) -> Option<T> {
    let mut values = cmdline.split_whitespace().filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    values.next_back().and_then(|value| value.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_counts() {
        let line = "console=hvc0 bulkhead.host=1 bulkhead.hosts=7 bulkhead.host=2\n";
        assert_eq!(value(line, "bulkhead.host"), Some(2u16));
        assert_eq!(value::<u16>(line, "bulkhead"), None);
        assert_eq!(value::<u16>("bulkhead.host=x", "bulkhead.host"), None);
    }
}
