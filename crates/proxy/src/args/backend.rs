//! The GPU, and the jail around workers.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use control::backend::{Choice, Options};

#[derive(Debug, Clone, Default, Args)]
pub struct BackendArgs {
    /// The driver that workers call (default: auto)
    #[arg(long, value_enum)]
    pub backend: Option<BackendArg>,
    /// NVIDIA's libcuda.so.1, where it is not in a usual place
    #[arg(long, value_name = "PATH")]
    pub driver_library: Option<PathBuf>,
    /// How many GPUs the software backend shows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub soft_devices: Option<u32>,
    /// How much memory each of them has
    #[arg(long, value_name = "SIZE", value_parser = control::size::parse)]
    pub soft_memory: Option<u64>,
    /// How many MIG instances each of them is cut into
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=7))]
    pub soft_mig: Option<u32>,
}

impl BackendArgs {
    /// Has nobody said anything of it?
    pub fn is_left_open(&self) -> bool {
        let BackendArgs { backend, driver_library, soft_devices, soft_memory, soft_mig } = self;
        let soft = soft_devices.is_some() || soft_memory.is_some() || soft_mig.is_some();
        backend.is_none() && driver_library.is_none() && !soft
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

    /// As arguments again, for the proxy that `run` starts.
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
    /// NVIDIA where there is a GPU, else software
    Auto,
    /// NVIDIA's driver
    Nvidia,
    /// A GPU computed on the CPU
    Soft,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum JailArg {
    /// Do not start
    Require,
    /// Say what is missing and go on
    BestEffort,
    /// No jail at all, for looking for faults
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
