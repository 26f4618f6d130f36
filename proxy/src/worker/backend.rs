//! Fills the driver table.

use std::ffi::{CStr, c_void};

use cuda_abi::driver::Driver;

use super::WorkerError;
use crate::backend::Backend;

pub fn load(backend: &Backend) -> Result<Driver, WorkerError> {
    match backend {
        Backend::Nvidia { library, .. } => {
            let failed = |source| WorkerError::Library { path: library.display().to_string(), source };
            // SAFETY: the operator names the driver's library; its initialisers are as trusted as the driver.
            let library = unsafe { libloading::os::unix::Library::new(library) }.map_err(failed)?;
            let mut find = |name: &CStr| -> Option<*const c_void> {
                // SAFETY: only the address is taken; the table knows its prototype.
                let symbol = unsafe { library.get::<*const c_void>(name.to_bytes_with_nul()) };
                symbol.ok().map(|symbol| symbol.into_raw().cast_const())
            };
            // SAFETY: NVIDIA's library has the prototypes of the table, and it is never unloaded.
            let driver = unsafe { Driver::load(&mut find) };
            std::mem::forget(library);
            Ok(driver)
        }
        Backend::Soft { devices, memory, only } => {
            softgpu::driver::show_only(only.iter().map(|slot| *slot as usize).collect());
            let config = softgpu::driver::Config { devices: *devices as usize, memory: *memory };
            Ok(softgpu::driver::driver(config))
        }
    }
}
