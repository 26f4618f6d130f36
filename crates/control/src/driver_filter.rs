//! What stands between a worker and NVIDIA's kernel driver.

use std::str::FromStr;

/// How much of it the operator wants. Of the software GPU's workers nothing is filtered: they reach no driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DriverFilter {
    /// Nothing: a worker's requests go to the driver.
    #[default]
    Off,
    /// Requests that no driver library makes are refused, by number and size.
    Refuse,
    /// As [`Self::Refuse`]; and from the first answer to a client on, a process of ours makes the worker's calls that allocate,
    /// free and control objects, if their arguments are allowed.
    Supervise,
}

/// Not one of the names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected off, refuse or supervise")]
pub struct NoSuchFilter;

impl DriverFilter {
    /// All of them, from the weakest on.
    pub const ALL: [Self; 3] = [Self::Off, Self::Refuse, Self::Supervise];
    /// Their names.
    pub const NAMES: [&'static str; 3] = ["off", "refuse", "supervise"];

    /// As operators write it.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl FromStr for DriverFilter {
    type Err = NoSuchFilter;

    fn from_str(text: &str) -> Result<Self, NoSuchFilter> {
        Self::ALL.into_iter().find(|filter| filter.name() == text).ok_or(NoSuchFilter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_have_names() {
        for filter in DriverFilter::ALL {
            assert_eq!(filter.name().parse(), Ok(filter));
        }
        assert!("on".parse::<DriverFilter>().is_err());
    }
}
