//! Which driver a test body runs on.

use std::str::FromStr;

use cuda_abi::driver::Driver;

/// Devices of the software GPU that is called directly, and their memory.
const DEVICES: usize = 1;
const MEMORY: u64 = 1 << 30;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// The software GPU, in the test's own process.
    SoftDirect,
    /// A `libcuda.so.1`: ours in a zone, or NVIDIA's.
    Library(String),
}

#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("{0:?} is neither soft-direct nor libcuda[=PATH]")]
    Unknown(String),
    #[error("cannot load {path}")]
    Load { path: String, source: libloading::Error },
}

impl FromStr for Backend {
    type Err = BackendError;

    fn from_str(text: &str) -> Result<Self, BackendError> {
        match text.split_once('=') {
            None if text == "soft-direct" => Ok(Self::SoftDirect),
            None if text == "libcuda" => Ok(Self::Library("libcuda.so.1".to_owned())),
            Some(("libcuda", path)) => Ok(Self::Library(path.to_owned())),
            _ => Err(BackendError::Unknown(text.to_owned())),
        }
    }
}

impl Backend {
    pub fn name(&self) -> &'static str {
        match self {
            Self::SoftDirect => "soft-direct",
            Self::Library(_) => "libcuda",
        }
    }

    /// As an argument again.
    pub fn argument(&self) -> String {
        match self {
            Self::SoftDirect => "soft-direct".to_owned(),
            Self::Library(path) => format!("libcuda={path}"),
        }
    }

    pub fn load(&self) -> Result<Driver, BackendError> {
        match self {
            Self::SoftDirect => Ok(softgpu::driver(softgpu::Config { devices: DEVICES, memory: MEMORY })),
            Self::Library(path) => load(path),
        }
    }
}

fn load(path: &str) -> Result<Driver, BackendError> {
    // SAFETY: the user who runs the tests names a `libcuda.so.1`; its initialisers are what programs run as well.
    unsafe { ::backend::load_library(path) }.map_err(|source| BackendError::Load { path: path.to_owned(), source })
}
