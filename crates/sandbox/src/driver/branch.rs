//! Branches of the driver whose requests we have read.

use std::path::Path;

/// A branch of NVIDIA's driver, by the first number of its versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Branch(u16);

/// A driver whose requests nobody has read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no list of requests for driver {0}")]
pub struct UnknownBranch(String);

/// Those whose sources the lists were compared with.
const KNOWN: [u16; 5] = [535, 550, 570, 580, 590];

impl Branch {
    /// Of the driver that this kernel runs. A jailed process does not see this file.
    pub fn running() -> Result<Self, UnknownBranch> {
        Self::at(Path::new("/sys/module/nvidia/version"))
    }

    fn at(path: &Path) -> Result<Self, UnknownBranch> {
        let text = std::fs::read_to_string(path).map_err(|_| UnknownBranch("(none is loaded)".into()))?;
        Self::of(&text)
    }

    /// Of a version such as `580.159.04`.
    pub fn of(version: &str) -> Result<Self, UnknownBranch> {
        let version = version.trim();
        let first = version.split_once('.').and_then(|(first, _)| first.parse().ok());
        let known = first.filter(|first| KNOWN.contains(first)).map(Self);
        known.ok_or_else(|| UnknownBranch(version.chars().take(32).collect()))
    }

    /// The first number of its versions.
    pub fn number(self) -> u16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_branches_that_were_read_are_known() {
        assert_eq!(Branch::of("580.159.04\n").unwrap().number(), 580);
        for version in ["", "580", "600.1.2", "x.y", "-580.1"] {
            assert!(Branch::of(version).is_err(), "{version}");
        }
        let unknown = Branch::of("470.1.2").unwrap_err();
        assert_eq!(unknown.to_string(), "no list of requests for driver 470.1.2");
        assert!(Branch::at(Path::new("/nowhere")).is_err());
    }
}
