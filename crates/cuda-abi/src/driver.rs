//! A backend is a CUDA driver: a table of the API's functions, filled by NVIDIA's library or by softgpu.
#![allow(non_snake_case, clippy::type_complexity, clippy::too_many_arguments)]

use crate::error::*;
use crate::types::*;

/// How the names of devices begin that are computed on the CPU.
pub const SOFTWARE_GPU: &str = "Bulkhead softgpu";

include!(concat!(env!("OUT_DIR"), "/driver.rs"));

impl Driver {
    /// A driver in which every function answers `CUDA_ERROR_NOT_SUPPORTED`: where a driver of ours starts from.
    pub const fn missing() -> Driver {
        MISSING
    }

    /// Fills the table by name. Functions that an older driver lacks answer `CUDA_ERROR_NOT_SUPPORTED`.
    ///
    /// # Safety
    /// For each name, `find` must answer with a function of the prototype the table states, valid for ever.
    pub unsafe fn load(find: &mut dyn FnMut(&std::ffi::CStr) -> Option<*const c_void>) -> Driver {
        let mut driver = MISSING;
        fill(&mut driver, find);
        driver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_functions_say_so() {
        // SAFETY: the stand-in touches nothing.
        assert_eq!(unsafe { (Driver::missing().cuInit)(0) }, CUDA_ERROR_NOT_SUPPORTED);
    }
}
