//! Images come as bare pointers; how long one is, is in its own headers.

use std::ffi::{CStr, c_char, c_void};

use super::{ImageError, fatbin};

const WRAPPER: u32 = 0x4662_43B1;
/// Text longer than this is no module.
const MAX_BYTES: usize = 1 << 30;

/// The bytes of an image: a fat binary's container, PTX text without its NUL, or the first bytes of machine code
/// (which is of no use here, but must be told apart).
///
/// # Safety
/// `image` must point to an image as the driver API defines it, which stays unchanged for as long as the answer is
/// used.
pub unsafe fn read<'a>(image: *const c_void) -> Result<&'a [u8], ImageError> {
    if image.is_null() {
        return Err(ImageError::Unknown);
    }
    // SAFETY: every kind of image has at least four bytes: a magic number, or text with its NUL. Byte by byte, so that
    // shorter text is not overrun.
    let magic = unsafe { CStr::from_ptr(image.cast::<c_char>()) }.to_bytes();
    let magic = magic.get(..4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
    match magic {
        Some(WRAPPER) => {
            // SAFETY: a wrapper is two words of 4 bytes and two pointers; the first leads to the container.
            let container = unsafe { image.cast::<u8>().add(8).cast::<*const c_void>().read_unaligned() };
            // SAFETY: as promised by the wrapper.
            unsafe { container_at(container) }
        }
        Some(magic) if magic.to_le_bytes() == fatbin::MAGIC => {
            // SAFETY: the caller's word.
            unsafe { container_at(image) }
        }
        // SAFETY: machine code starts with a header of 64 bytes.
        Some(magic) if &magic.to_le_bytes() == b"\x7fELF" => Ok(unsafe { slice(image, 64) }),
        _ => {
            // SAFETY: everything else is text that ends with a NUL.
            let text = unsafe { CStr::from_ptr(image.cast::<c_char>()) }.to_bytes();
            if text.len() > MAX_BYTES { Err(ImageError::TooLarge) } else { Ok(text) }
        }
    }
}

/// # Safety
/// `container` must be NULL or point to a container.
unsafe fn container_at<'a>(container: *const c_void) -> Result<&'a [u8], ImageError> {
    if container.is_null() {
        return Err(ImageError::Unknown);
    }
    // SAFETY: a container starts with a header of 16 bytes.
    let (_, total) = fatbin::size(unsafe { slice(container, 16) })?;
    if total > MAX_BYTES {
        return Err(ImageError::TooLarge);
    }
    // SAFETY: the header says how long it is.
    Ok(unsafe { slice(container, total) })
}

/// # Safety
/// `len` bytes must be readable.
unsafe fn slice<'a>(from: *const c_void, len: usize) -> &'a [u8] {
    // SAFETY: the caller's word.
    unsafe { std::slice::from_raw_parts(from.cast(), len) }
}
