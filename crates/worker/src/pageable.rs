//! GPUs whose kernels reach the pageable memory of their process (HMM, ATS).
//!
//! There a tenant's kernel could read and write its worker without any bug of anybody. Such a GPU is not used, unless the
//! operator has said that it may: the driver then starts as if it could not.

use std::sync::OnceLock;

use cuda_abi::constants::device_attribute;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;

/// The functions of the driver as it is.
static REAL: OnceLock<Driver> = OnceLock::new();

/// Puts the check before everything else that the driver does.
pub(crate) fn refuse(driver: Driver) -> Driver {
    let guarded = Driver { cuInit: init, ..driver };
    let _ = REAL.set(driver);
    guarded
}

extern "C" fn init(flags: u32) -> CUresult {
    let Some(driver) = REAL.get() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: as our caller does it.
    let code = unsafe { (driver.cuInit)(flags) };
    if code == CUDA_SUCCESS && is_reached(driver) {
        tracing::error!(
            "kernels reach the memory of their process on this machine (HMM), so no tenant is let in; load nvidia-uvm with \
             uvm_disable_hmm=1, or set allow_hmm if all tenants may be trusted"
        );
        return CUDA_ERROR_NOT_PERMITTED;
    }
    code
}

fn is_reached(driver: &Driver) -> bool {
    let mut count = 0;
    // SAFETY: the driver has started; the output is a local.
    unsafe { (driver.cuDeviceGetCount)(&mut count) };
    (0..count).any(|ordinal| {
        let (mut device, mut value) = (0, 0);
        // SAFETY: outputs are locals.
        unsafe {
            (driver.cuDeviceGet)(&mut device, ordinal) == CUDA_SUCCESS
                && (driver.cuDeviceGetAttribute)(&mut value, device_attribute::PAGEABLE_MEMORY_ACCESS, device)
                    == CUDA_SUCCESS
                && value != 0
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn reached(value: *mut i32, attribute: u32, _device: i32) -> CUresult {
        // SAFETY: the caller's own local.
        unsafe { *value = i32::from(attribute == device_attribute::PAGEABLE_MEMORY_ACCESS) };
        CUDA_SUCCESS
    }

    #[test]
    fn a_gpu_that_reaches_its_process_does_not_start() {
        let soft = softgpu::driver(softgpu::Config { devices: 2, memory: 1 << 30 });
        // SAFETY: the driver's first call.
        assert_eq!(unsafe { (soft.cuInit)(0) }, CUDA_SUCCESS);
        assert!(!is_reached(&soft));
        let guarded = refuse(Driver { cuDeviceGetAttribute: reached, ..soft });
        // SAFETY: as above.
        assert_eq!(unsafe { (guarded.cuInit)(0) }, CUDA_ERROR_NOT_PERMITTED);
    }
}
