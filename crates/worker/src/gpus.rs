//! The GPUs of a worker, as its broker knows them.
//!
//! A driver numbers what it shows, and a client can have that changed (`CUDA_VISIBLE_DEVICES`). The broker keeps accounts and
//! dispatch states for each GPU: by its *index*, which is its place among all that the worker was started for.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use cuda_abi::driver::Driver;
use cuda_abi::error::{CUDA_ERROR_SYSTEM_NOT_READY, CUDA_SUCCESS, CUresult};
use cuda_abi::wire::MAX_DEVICES;

use control::backend::Backend;

pub(crate) struct Gpus {
    /// PCI addresses, by index.
    bus_ids: Vec<String>,
    /// Whether the driver says of memory of another process whose GPU's it is. Ours does not.
    knows_origins: bool,
    /// Indices, by the driver's number; known once it has started.
    indices: OnceLock<Vec<u32>>,
}

impl Gpus {
    /// `bus_ids`: of NVIDIA's GPUs, as they were before the jail.
    pub(crate) fn new(backend: &Backend, bus_ids: Vec<String>) -> Self {
        let bus_ids = match backend {
            Backend::Nvidia { .. } => bus_ids,
            // Parts of GPUs that are cut have no address of their own.
            Backend::Soft { instances: 1.., .. } => Vec::new(),
            Backend::Soft { .. } => backend.gpus(&[]).into_iter().map(|gpu| softgpu::bus_id(gpu as usize)).collect(),
        };
        Self { bus_ids, knows_origins: matches!(backend, Backend::Nvidia { .. }), indices: OnceLock::new() }
    }

    /// The driver has started. It must show nothing that nobody expects: that would be on nobody's account.
    pub(crate) fn learn(&self, driver: &Driver) -> CUresult {
        let mut count = 0;
        // SAFETY: the output is a local.
        let code = unsafe { (driver.cuDeviceGetCount)(&mut count) };
        if code != CUDA_SUCCESS {
            return code;
        }
        let find = |device: i32| match self.bus_ids.is_empty() {
            // One instance of a GPU that is cut. The broker knows how many there are, and ends a worker that names another.
            true => u32::try_from(device).ok(),
            false => place(&self.bus_ids, &bus_id(driver, device)?),
        };
        let found: Option<Vec<u32>> = (0..count.min(MAX_DEVICES as i32)).map(find).collect();
        match found {
            Some(indices) => {
                let _ = self.indices.set(indices);
                CUDA_SUCCESS
            }
            None => {
                tracing::error!(expected = ?self.bus_ids, "the driver shows a GPU that this worker was not started for");
                CUDA_ERROR_SYSTEM_NOT_READY
            }
        }
    }

    pub(crate) fn knows_origins(&self) -> bool {
        self.knows_origins
    }

    /// The index of a device of the driver's.
    #[inline]
    pub(crate) fn index(&self, device: u32) -> u32 {
        self.indices.get().and_then(|indices| indices.get(device as usize)).copied().unwrap_or(0)
    }
}

fn place(bus_ids: &[String], id: &str) -> Option<u32> {
    let wanted = address(id)?;
    let at = bus_ids.iter().position(|known| address(known).as_ref() == Some(&wanted))?;
    u32::try_from(at).ok().filter(|at| *at < MAX_DEVICES as u32)
}

/// Domain, and what lies in it. The domain is written with four digits here and with eight there.
fn address(id: &str) -> Option<(u32, String)> {
    let (domain, rest) = id.split_once(':')?;
    Some((u32::from_str_radix(domain, 16).ok()?, rest.to_ascii_lowercase()))
}

fn bus_id(driver: &Driver, device: i32) -> Option<String> {
    let mut text = [0u8; 32];
    // SAFETY: the buffer is as long as said.
    let code = unsafe { (driver.cuDeviceGetPCIBusId)(text.as_mut_ptr().cast::<c_char>(), text.len() as i32, device) };
    let text = CStr::from_bytes_until_nul(&text).ok().filter(|_| code == CUDA_SUCCESS)?;
    text.to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_found_by_its_address_however_it_is_written() {
        let known = ["0000:18:00.0".to_owned(), "0000:2a:00.0".to_owned()];
        assert_eq!(place(&known, "00000000:2A:00.0"), Some(1));
        assert_eq!(place(&known, "0000:18:00.0"), Some(0));
        assert_eq!(place(&known, "0000:19:00.0"), None);
        assert_eq!(place(&known, "0001:18:00.0"), None);
        // Some machines have each GPU in a domain of its own.
        let domains = ["0001:00:00.0".to_owned(), "0002:00:00.0".to_owned()];
        assert_eq!((place(&domains, "00000002:00:00.0"), place(&domains, "1:00:00.0")), (Some(1), Some(0)));
    }

    #[test]
    fn what_is_not_known_yet_is_the_first() {
        let backend = Backend::Soft { devices: 2, memory: 1 << 30, instances: 0, only: vec![1] };
        let gpus = Gpus::new(&backend, Vec::new());
        assert_eq!((gpus.index(0), gpus.index(9)), (0, 0));
        assert_eq!(place(&gpus.bus_ids, &softgpu::bus_id(1)), Some(0), "the only one that it was started for");
    }
}
