//! Versions of the driver in which these calls are what we take them for.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The version of the kernel's driver: `580.159.04`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverVersion(u16, u16, u16);

/// A branch of the driver whose headers we have read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownDriver {
    /// The first number of its versions.
    pub branch: u16,
    /// `NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO`.
    pub handle_info: u32,
    /// `NVA06C_CTRL_CMD_SET_TIMESLICE`.
    pub set_timeslice: u32,
    /// `NVA06C_CTRL_CMD_GET_TIMESLICE`.
    pub get_timeslice: u32,
    /// `NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS`.
    pub disable_channels: u32,
}

/// A driver whose calls nobody has looked at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("driver {0} is not known to preempt")]
pub struct UnknownDriver(String);

const fn branch(branch: u16) -> KnownDriver {
    KnownDriver {
        branch,
        handle_info: 0x0d02,
        set_timeslice: 0xa06c_0103,
        get_timeslice: 0xa06c_0104,
        disable_channels: 0x2080_110b,
    }
}

impl KnownDriver {
    /// Numbers, layouts and rights of these calls are the same in all of them. Tried: 580.159.04.
    pub const ALL: [Self; 7] =
        [branch(535), branch(550), branch(570), branch(575), branch(580), branch(590), branch(595)];

    /// The driver that this kernel runs.
    pub fn running() -> Result<Self, UnknownDriver> {
        Self::at(Path::new("/sys/module/nvidia/version"))
    }

    fn at(path: &Path) -> Result<Self, UnknownDriver> {
        let text = std::fs::read_to_string(path).map_err(|_| UnknownDriver("(none is loaded)".into()))?;
        let version: DriverVersion = text.parse()?;
        Self::of(version)
    }

    /// The branch of a version.
    pub fn of(version: DriverVersion) -> Result<Self, UnknownDriver> {
        let known = Self::ALL.into_iter().find(|known| known.branch == version.0);
        known.ok_or_else(|| UnknownDriver(version.to_string()))
    }
}

impl FromStr for DriverVersion {
    type Err = UnknownDriver;

    fn from_str(text: &str) -> Result<Self, UnknownDriver> {
        let text = text.trim();
        let mut numbers = text.split('.').map(str::parse::<u16>);
        let mut next = || numbers.next().and_then(Result::ok);
        match (next(), next()) {
            (Some(branch), Some(minor)) => Ok(Self(branch, minor, next().unwrap_or(0))),
            _ => Err(UnknownDriver(text.chars().take(32).collect())),
        }
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{:02}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let version: DriverVersion = "580.159.04\n".parse().unwrap();
        assert_eq!((KnownDriver::of(version).unwrap().branch, version.to_string().as_str()), (580, "580.159.04"));
        assert!("580.95".parse::<DriverVersion>().unwrap() < version);
        let unknown = KnownDriver::of("470.1.2".parse().unwrap()).unwrap_err();
        assert_eq!(unknown.to_string(), "driver 470.1.02 is not known to preempt");
        for text in ["", "580", "x.y", "-1.2"] {
            assert!(text.parse::<DriverVersion>().is_err(), "{text}");
        }
        assert!(KnownDriver::at(Path::new("/nowhere")).is_err());
    }
}
