//! The one range of addresses that kernels may touch: device memory and pinned host memory lie in it.

/// First address of the window.
pub const BASE: u64 = 0x2000_0000_0000;
/// Size of the window in bytes.
pub const SIZE: u64 = 0x2000_0000_0000;

// Shared, local and parameter memory have addresses of their own just behind the window, so that a generic pointer is
// classified by its upper bits and never collides with memory that the driver hands out.

/// Generic addresses of the block's shared memory start here.
pub const SHARED_APERTURE: u64 = BASE + SIZE;
/// Generic addresses of the thread's local memory start here.
pub const LOCAL_APERTURE: u64 = SHARED_APERTURE + APERTURE_SIZE;
/// Generic addresses of the kernel's parameters start here.
pub const PARAM_APERTURE: u64 = LOCAL_APERTURE + APERTURE_SIZE;
/// Addresses of functions start here, `FUNCTION_STRIDE` bytes apart. They can be called, never read.
pub const FUNCTION_APERTURE: u64 = PARAM_APERTURE + APERTURE_SIZE;
/// The address by which function number `index` of a module is called.
pub(crate) fn function_address(index: usize) -> u64 {
    FUNCTION_APERTURE + index as u64 * FUNCTION_STRIDE
}

/// Distance between the addresses of two functions.
pub const FUNCTION_STRIDE: u64 = 16;
/// Each aperture spans 4 GiB.
pub const APERTURE_SIZE: u64 = 1 << 32;
