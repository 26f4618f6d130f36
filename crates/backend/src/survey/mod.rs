//! What GPUs a machine has and how they reach each other, and whether a program can use one: for people, not for the
//! proxy. Each runs in a process of its own, since it loads a driver: the broker never does, and a driver that hangs or
//! crashes takes nobody along.

mod driver;
mod nvml;
pub mod simulated;

use std::path::{Path, PathBuf};

use crate::load::LoadError;
use control::backend::Backend;

pub use control::topology::{Gpu, Kind, Link, Mig, NvLink, Slice, Survey};
pub use nvml::NvmlError;

#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    #[error(transparent)]
    Driver(#[from] LoadError),
    #[error("{call} failed with {name} ({code})", name = cuda_abi::error::name(*code))]
    Cuda { call: &'static str, code: u32 },
}

/// Looks at all GPUs of a backend. Call it in a process that does nothing else.
pub fn look(backend: &Backend) -> Result<Survey, SurveyError> {
    let mut survey = driver::look(backend)?;
    match backend {
        Backend::Soft { instances, .. } => {
            if *instances > 0 {
                simulated::cut(&mut survey, *instances);
            }
            for (from, row) in survey.links.iter_mut().enumerate() {
                for (_, link) in row.iter_mut().enumerate().filter(|(to, _)| *to != from) {
                    link.kind = Kind::Memory;
                }
            }
        }
        Backend::Nvidia { library, .. } => {
            if let Err(error) = nvml::complete(&mut survey, &nvml_of(library)) {
                survey.without_nvml = Some(error.to_string());
            }
        }
    }
    Ok(survey)
}

/// NVIDIA's GPUs that are cut into instances.
pub fn cut_gpus(driver_library: &Path) -> Result<Vec<Gpu>, NvmlError> {
    nvml::cut_gpus(&nvml_of(driver_library))
}

/// NVML lies beside the driver, or where the loader finds it.
fn nvml_of(driver_library: &Path) -> PathBuf {
    const NAME: &str = "libnvidia-ml.so.1";
    let beside = driver_library.with_file_name(NAME);
    if beside.exists() { beside } else { PathBuf::from(NAME) }
}

/// What programs of the zone see that this process is in: GPUs as our client library shows them.
pub fn look_in_zone() -> Result<Survey, SurveyError> {
    let library = Path::new("libcuda.so.1");
    let mut survey = driver::look(&Backend::Nvidia { library: library.to_owned(), devices: Vec::new() })?;
    survey.backend = "zone".to_owned();
    if let Err(error) = nvml::complete(&mut survey, Path::new("libnvidia-ml.so.1")) {
        survey.without_nvml = Some(error.to_string());
    }
    Ok(survey)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_software_gpus_reach_each_other_through_memory() {
        // As many as other tests here have: there is one software driver in a process.
        let survey = look(&Backend::Soft { devices: 2, memory: 1 << 30, instances: 0, only: Vec::new() }).unwrap();
        assert_eq!((survey.gpus.len(), survey.links.len()), (2, 2));
        assert_eq!(survey.gpus[1].memory_bytes, 1 << 30);
        assert!(survey.gpus[0].uuid.starts_with("GPU-") && survey.gpus[0].uuid != survey.gpus[1].uuid);
        for (from, row) in survey.links.iter().enumerate() {
            for (to, link) in row.iter().enumerate() {
                let kind = if from == to { Kind::Itself } else { Kind::Memory };
                assert_eq!((link.kind, link.peer_access), (kind, true), "{from} {to}");
            }
        }
        let text = serde_json::to_string(&survey).unwrap();
        assert_eq!(serde_json::from_str::<Survey>(&text).unwrap(), survey);
    }
}
