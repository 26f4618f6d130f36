//! The backend, and the jail around workers.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use control::backend::{Choice, Options};

#[derive(Debug, Clone, Default, Args)]
pub struct BackendArgs {
    /// Driver that workers use (default: auto)
    #[arg(long, value_enum)]
    pub backend: Option<BackendArg>,
    /// Path of NVIDIA's libcuda.so.1, if it is not in a standard directory
    #[arg(long, value_name = "PATH")]
    pub driver_library: Option<PathBuf>,
    /// Number of software GPUs (default: 1)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub soft_devices: Option<u32>,
    /// Memory of each software GPU (default: 4GiB)
    #[arg(long, value_name = "SIZE", value_parser = control::size::parse_amount)]
    pub soft_memory: Option<u64>,
    /// Number of MIG instances on each software GPU (default: none)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=7))]
    pub soft_mig: Option<u32>,
}

impl BackendArgs {
    /// Whether the machine decides: no option is about one of the backends, and `auto` may have been asked for.
    pub fn may_be_either(&self) -> bool {
        let BackendArgs { backend, driver_library, soft_devices, soft_memory, soft_mig } = self;
        let soft = soft_devices.is_some() || soft_memory.is_some() || soft_mig.is_some();
        matches!(backend, None | Some(BackendArg::Auto)) && driver_library.is_none() && !soft
    }

    pub fn options(&self) -> Options {
        Options {
            choice: match self.backend {
                None | Some(BackendArg::Auto) => Choice::Auto,
                Some(BackendArg::Nvidia) => Choice::Nvidia,
                Some(BackendArg::Soft) => Choice::Soft,
            },
            driver_library: self.driver_library.clone(),
            devices: Vec::new(),
            soft_devices: self.soft_devices,
            soft_memory: self.soft_memory,
            soft_mig: self.soft_mig,
        }
    }

    /// The command-line arguments for the proxy that `run` starts.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let name = self.backend.and_then(|backend| Some(backend.to_possible_value()?.get_name().to_owned()));
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |flag: &str, value: Option<OsString>| {
            arguments.extend(value.into_iter().flat_map(|value| [flag.into(), value]));
        };
        add("--backend", name.map(Into::into));
        add("--driver-library", self.driver_library.clone().map(Into::into));
        add("--soft-devices", self.soft_devices.map(|n| n.to_string().into()));
        add("--soft-memory", self.soft_memory.map(|n| n.to_string().into()));
        add("--soft-mig", self.soft_mig.map(|n| n.to_string().into()));
        arguments
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendArg {
    /// NVIDIA if there is a GPU, else software
    Auto,
    /// NVIDIA's driver
    Nvidia,
    /// Software GPU that runs on the CPU
    Soft,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum JailArg {
    /// Refuse to start if part of the jail is unavailable
    Require,
    /// Warn about what is unavailable and continue
    BestEffort,
    /// No jail (debugging only)
    Off,
}

impl From<JailArg> for control::jail::Demand {
    fn from(arg: JailArg) -> Self {
        match arg {
            JailArg::Require => Self::Require,
            JailArg::BestEffort => Self::BestEffort,
            JailArg::Off => Self::Off,
        }
    }
}
