//! Fills the driver table.

use std::ffi::{CStr, OsStr, c_void};
use std::path::Path;

use cuda_abi::driver::Driver;

use crate::survey;
use control::backend::Backend;
use control::mig::Instance;

/// The variable by which a driver is told what to show.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The variable that says in which order a driver numbers its devices.
const ORDER: &str = "CUDA_DEVICE_ORDER";

/// Why no driver could be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot load the driver library {path}")]
    Library { path: String, source: libloading::Error },
    #[error("cannot enumerate MIG instances")]
    Nvml(#[from] survey::NvmlError),
    #[error("MIG instance {gpu_instance}/{compute_instance} of GPU {gpu} does not exist", gpu = .0.gpu,
        gpu_instance = .0.gpu_instance, compute_instance = .0.compute_instance)]
    NoInstance(Instance),
}

/// Fills the table of driver functions.
pub fn load(backend: &Backend) -> Result<Driver, LoadError> {
    match backend {
        Backend::Nvidia { library, devices } => {
            if let [number] = devices[..]
                && let Some(instance) = Instance::of(number)
            {
                show(&uuid_of(library, instance)?);
            }
            crate::recorder::start();
            if std::env::var_os(ORDER).is_none() {
                // As zones and NVML count; a client that wants another order says so.
                // SAFETY: the process has one thread until its driver starts.
                unsafe { std::env::set_var(ORDER, "PCI_BUS_ID") };
            }
            let failed = |source| LoadError::Library { path: library.display().to_string(), source };
            // SAFETY: the operator names NVIDIA's library; its initialisers are as trusted as the driver.
            unsafe { load_library(library) }.map_err(failed)
        }
        Backend::Soft { devices, memory, instances, only } => {
            // An instance is a device of the software driver, of a part of the memory.
            let parts = (*instances).max(1);
            let slot = |number: &u32| match Instance::of(*number) {
                Some(Instance { gpu, gpu_instance, .. }) => gpu * parts + gpu_instance,
                None => *number,
            };
            softgpu::show_only(only.iter().map(|number| slot(number) as usize).collect());
            // Without a page it cannot be stopped, and computes all the same.
            crate::soft_page::install();
            let config = softgpu::Config { devices: (devices * parts) as usize, memory: memory / u64::from(parts) };
            Ok(softgpu::driver(config))
        }
    }
}

/// The functions of a `libcuda.so.1`, which stays loaded.
///
/// # Safety
/// The library's initialisers must be sound to run, and its functions must have the prototypes of the table.
pub unsafe fn load_library(path: impl AsRef<OsStr>) -> Result<Driver, libloading::Error> {
    // SAFETY: the caller's promise.
    let library = unsafe { libloading::os::unix::Library::new(path.as_ref()) }?;
    let mut find = |name: &CStr| -> Option<*const c_void> {
        // SAFETY: only the address is taken; the table knows its prototype.
        let symbol = unsafe { library.get::<*const c_void>(name.to_bytes_with_nul()) };
        symbol.ok().map(|symbol| symbol.into_raw().cast_const())
    };
    // SAFETY: the prototypes are the caller's promise, and the library is never unloaded.
    let driver = unsafe { Driver::load(&mut find) };
    std::mem::forget(library);
    Ok(driver)
}

/// Has the driver, which has not started, see the device of this name alone. In a jail it could open no other.
pub fn show(devices: &str) {
    // SAFETY: the process has one thread until its driver starts.
    unsafe { std::env::set_var(VISIBLE, devices) };
}

fn uuid_of(library: &Path, instance: Instance) -> Result<String, LoadError> {
    let cut = survey::cut_gpus(library)?;
    let mut slices =
        cut.iter().flat_map(|gpu| gpu.mig.iter().flat_map(|mig| &mig.slices).map(move |slice| (gpu, slice)));
    let is_it = |(gpu, slice): &(&survey::Gpu, &survey::Slice)| {
        gpu.minor == Some(instance.gpu)
            && (slice.gpu_instance, slice.compute_instance) == (instance.gpu_instance, instance.compute_instance)
    };
    slices.find(is_it).map(|(_, slice)| slice.uuid.clone()).ok_or(LoadError::NoInstance(instance))
}
