//! Taking the kernel out of its own unpacker.
//!
//! A `bzImage` is a small program that unpacks the kernel behind it. Xen's toolstack knows how to do that, too, but
//! where instructions are emulated it takes ten seconds a boot, which the tests do not want to spend.

use lzma_rust2::XzReader;
use std::io::{self, Read};

#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("not a bzImage")]
    NotAKernel,
    #[error("cannot unpack the kernel in the bzImage")]
    Unpack(#[source] io::Error),
    #[error("the kernel in the bzImage is not an ELF file")]
    NotElf,
}

// Offsets in the setup header, see the kernel's Documentation/arch/x86/boot.rst.
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

/// The ELF file in a `bzImage` that was compressed with xz.
pub fn uncompressed(image: &[u8]) -> Result<Vec<u8>, KernelError> {
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    let payload = || {
        (image.get(MAGIC..MAGIC + 4)? == b"HdrS").then_some(())?;
        // Zero means four, for kernels older than all of us.
        let setup = match image[SETUP_SECTORS] {
            0 => 5,
            sectors => usize::from(sectors) + 1,
        };
        image.get(setup * 512..)?.get(word(PAYLOAD_OFFSET)?..)?.get(..word(PAYLOAD_LENGTH)?)
    };
    let payload = payload().ok_or(KernelError::NotAKernel)?;
    let mut elf = Vec::new();
    // Behind the stream are four bytes with the size, which are not the decompressor's business.
    XzReader::new(payload, false).read_to_end(&mut elf).map_err(KernelError::Unpack)?;
    if !elf.starts_with(b"\x7fELF") {
        return Err(KernelError::NotElf);
    }
    Ok(elf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_kernel_is_refused() {
        for bytes in [vec![], vec![0; 0x1000], b"\x7fELF".repeat(1000)] {
            assert!(matches!(uncompressed(&bytes), Err(KernelError::NotAKernel)));
        }
        let mut lies = vec![0; 0x1000];
        lies[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        lies[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(uncompressed(&lies), Err(KernelError::NotAKernel)));
    }
}
