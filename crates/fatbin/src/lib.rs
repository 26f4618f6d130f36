//! Module images: from what an application hands to the driver to PTX text.
//!
//! ```text
//! pointer ─(cuda_abi::image: sizes from headers)→ bytes ─(container: entries)→ best PTX entry ─(unpack: LZ4, zstd)→ text
//! ```
//!
//! `text` expects anything.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

pub mod container;
mod unpack;

use cuda_abi::image::Image;

/// What an image cannot be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// No format that is known.
    #[error("the image is neither PTX nor a fat binary")]
    Unknown,
    /// Sizes or payloads that do not add up.
    #[error("the fat binary is corrupt")]
    Damaged,
    /// A compression that is not known.
    #[error("the image's PTX is compressed with an unsupported method")]
    Compression,
    /// More text than is ever unpacked.
    #[error("the image's PTX is larger than {} MiB", unpack::MAX_TEXT >> 20)]
    TooLarge,
    /// Machine code alone.
    #[error(
        "the image contains machine code for NVIDIA GPUs only, no PTX (nvcc: -gencode arch=compute_75,code=compute_75; \
         CuPy: CUPY_COMPILE_WITH_PTX=1; Numba: without nvidia-nvjitlink)"
    )]
    NoPtx,
    /// PTX for one capability (the first) alone, which is not the device's (the second).
    #[error("the image's PTX is specific to compute capability {0}, this device has {1}")]
    Specific(u32, u32),
}

/// The PTX text of an image for a device of compute capability `capability` (90 for 9.0).
pub fn text(image: &[u8], capability: u32) -> Result<String, ImageError> {
    if image.starts_with(&container::MAGIC) {
        return container::text(image, capability);
    }
    if image.starts_with(b"\x7fELF") {
        return Err(ImageError::NoPtx);
    }
    plain(image)
}

/// The PTX text of an image and, if it has none, of everything that it was linked from.
pub fn linked_text(image: &Image<'_>, capability: u32) -> Result<String, ImageError> {
    let linked = text(image.main, capability);
    if linked != Err(ImageError::NoPtx) {
        return linked;
    }
    // The device runtime is linked to every program, and is machine code or for the newest GPUs. What is missed of it is
    // refused by name.
    let fits = |part: &&[u8]| container::has_fitting_text(part, capability);
    let some_fit = image.parts.iter().any(fits);
    let texts = image.parts.iter().filter(|part| !some_fit || fits(part)).map(|part| text(part, capability));
    let texts = texts.filter(|text| *text != Err(ImageError::NoPtx)).collect::<Result<Vec<String>, ImageError>>()?;
    if texts.is_empty() { Err(ImageError::NoPtx) } else { Ok(ptx::join(&texts)) }
}

/// Checks that bytes are PTX as far as that can be told by a look.
fn plain(bytes: &[u8]) -> Result<String, ImageError> {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(bytes).map_err(|_| ImageError::Unknown)?;
    if text.contains(".version") { Ok(text.to_owned()) } else { Err(ImageError::Unknown) }
}
