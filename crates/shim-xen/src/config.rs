//! `/etc/bulkhead/xen-pods.toml`: what domains of pods are made of. Without the file, the defaults hold.

use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::de::{DeTable, DeValue};

pub(crate) const PATH: &str = "/etc/bulkhead/xen-pods.toml";

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read {PATH}")]
    Read(#[source] std::io::Error),
    #[error("{PATH}: {0}")]
    Wrong(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// The guest image (`bulkhead image build`).
    pub image: PathBuf,
    /// Where disks are kept: `pods/NAME` for what a pod writes, `images` for what its containers start from.
    pub directory: PathBuf,
    /// The script that tells Xen's toolstack that a disk is there.
    pub block_script: PathBuf,
    /// The one that tells it that a network interface is.
    pub network_script: PathBuf,
    /// What a domain gets beyond its pod's limit, for its kernel and the agent; the RuntimeClass says the same.
    pub overhead: u64,
    /// What a pod without a limit gets.
    pub memory: u64,
    /// Processors of a pod without a limit.
    pub vcpus: u32,
    /// What a pod's containers may write.
    pub scratch: u64,
    /// What a pod's programs may grant to the driver domain at a time.
    pub shared_memory: u64,
    /// How long a domain may take until it offers its link.
    pub boot_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            image: "/var/lib/bulkhead/image".into(),
            directory: "/var/lib/bulkhead".into(),
            block_script: "/usr/lib/bulkhead/xen-block".into(),
            network_script: "/usr/lib/bulkhead/xen-vif".into(),
            overhead: 96 << 20,
            memory: 512 << 20,
            vcpus: 1,
            scratch: 10 << 30,
            shared_memory: 128 << 20,
            boot_timeout: Duration::from_secs(120),
        }
    }
}

impl Config {
    pub(crate) fn load() -> Result<Self, ConfigError> {
        match std::fs::read_to_string(PATH) {
            Ok(text) => Self::parse(&text).map_err(ConfigError::Wrong),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(ConfigError::Read(error)),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let table = DeTable::parse(text).map_err(|error| error.message().to_owned())?;
        let mut config = Self::default();
        for (key, value) in table.get_ref() {
            let (key, value) = (key.get_ref().as_ref(), value.get_ref());
            match key {
                "image" => config.image = path(key, value)?,
                "directory" => config.directory = path(key, value)?,
                "block_script" => config.block_script = path(key, value)?,
                "network_script" => config.network_script = path(key, value)?,
                "overhead" => config.overhead = size(key, value)?,
                "memory" => config.memory = size(key, value)?,
                "scratch" => config.scratch = size(key, value)?,
                "shared_memory" => config.shared_memory = size(key, value)?,
                "vcpus" => config.vcpus = number(key, value, 512)?,
                "boot_timeout" => config.boot_timeout = Duration::from_secs(number(key, value, 3600)?.into()),
                other => return Err(format!("unknown key \"{other}\"")),
            }
        }
        Ok(config)
    }
}

fn path(key: &str, value: &DeValue) -> Result<PathBuf, String> {
    let path = value.as_str().map(Path::new).filter(|path| path.is_absolute());
    path.map(Path::to_owned).ok_or_else(|| format!("{key} must be an absolute path"))
}

fn size(key: &str, value: &DeValue) -> Result<u64, String> {
    let text = value.as_str().ok_or_else(|| format!("{key} must be a size such as \"512MiB\""))?;
    control::size::parse_amount(text).map_err(|error| format!("{key}: {error}"))
}

fn number(key: &str, value: &DeValue, most: u32) -> Result<u32, String> {
    let number = match value {
        DeValue::Integer(integer) => integer.as_str().parse().ok(),
        _ => None,
    };
    let wrong = || format!("{key} must be a number from 1 to {most}");
    number.filter(|number| (1..=most).contains(number)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_does_not_say_is_the_default() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
        let text = "overhead = \"128MiB\"\nvcpus = 4\nboot_timeout = 300\nimage = \"/srv/image\"\n";
        let config = Config::parse(text).unwrap();
        assert_eq!((config.overhead, config.vcpus), (128 << 20, 4));
        assert_eq!(config.boot_timeout, Duration::from_secs(300));
        assert_eq!(config.image, PathBuf::from("/srv/image"));
        assert_eq!(config.memory, Config::default().memory);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("overhed = \"1GiB\"", "unknown key \"overhed\""),
            ("overhead = 7", "overhead must be a size"),
            ("overhead = \"7\"", "overhead: "),
            ("vcpus = 0", "vcpus must be a number from 1 to 512"),
            ("vcpus = \"2\"", "vcpus must be a number"),
            ("image = \"image\"", "image must be an absolute path"),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
        assert!(Config::parse("[").is_err());
    }
}
