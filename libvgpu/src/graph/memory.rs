//! What graphs' own memory is asked about. No node allocates any, so there is none.

use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::device;
use crate::entry::{Cuda, not_null};

/// In use and reserved, now and at most.
const LAST_ATTRIBUTE: u32 = 3;
const IS_HIGH_MARK: u32 = 1;

#[allow(non_snake_case)]
pub mod api {
    use super::*;

    pub unsafe fn cuDeviceGetGraphMemAttribute(dev: CUdevice, attribute: u32, value: *mut c_void) -> Cuda {
        device::find(dev)?;
        not_null(value)?;
        if attribute > LAST_ATTRIBUTE {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: all attributes are 64-bit, by the API's contract.
        unsafe { value.cast::<u64>().write_unaligned(0) };
        Ok(())
    }

    pub unsafe fn cuDeviceSetGraphMemAttribute(dev: CUdevice, attribute: u32, value: *mut c_void) -> Cuda {
        device::find(dev)?;
        not_null(value)?;
        // The high marks can be reset, and only to zero.
        // SAFETY: as above.
        let resets = unsafe { value.cast::<u64>().read_unaligned() } == 0;
        let allowed = attribute <= LAST_ATTRIBUTE && attribute & IS_HIGH_MARK != 0 && resets;
        if allowed { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    pub unsafe fn cuDeviceGraphMemTrim(dev: CUdevice) -> Cuda {
        device::find(dev).map(|_| ())
    }
}
