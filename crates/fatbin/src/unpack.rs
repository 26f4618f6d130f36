//! Payloads of fat binary entries: stored, LZ4 or zstd.

use std::borrow::Cow;
use std::io::Read;

use super::ImageError;
use super::container::Entry;

/// No PTX text is larger; what claims to be is not unpacked.
pub(crate) const MAX_TEXT: usize = 256 << 20;

const ZLIB: u64 = 0x1000;
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;

/// The payload as it was before compression.
pub(crate) fn unpack<'a>(entry: &Entry<'a>) -> Result<Cow<'a, [u8]>, ImageError> {
    if entry.flags & (ZLIB | LZ4 | ZSTD) == 0 {
        return Ok(Cow::Borrowed(entry.payload));
    }
    let size = usize::try_from(entry.unpacked).ok().filter(|size| *size <= MAX_TEXT).ok_or(ImageError::TooLarge)?;
    let packed = entry.payload.get(..entry.packed as usize).ok_or(ImageError::Damaged)?;
    if entry.flags & LZ4 != 0 {
        // An LZ4 byte yields at most 255; a size that cannot be reached is not worth its memory.
        if size / 255 > packed.len() {
            return Err(ImageError::Damaged);
        }
        lz4_flex::block::decompress(packed, size).map(Cow::Owned).map_err(|_| ImageError::Damaged)
    } else if entry.flags & ZSTD != 0 {
        zstd(packed, size).map(Cow::Owned)
    } else {
        Err(ImageError::Compression)
    }
}

fn zstd(packed: &[u8], size: usize) -> Result<Vec<u8>, ImageError> {
    let decoder = ruzstd::decoding::StreamingDecoder::new(packed).map_err(|_| ImageError::Damaged)?;
    let mut text = Vec::new();
    // One byte more than promised is enough to see a lie.
    decoder.take(size as u64 + 1).read_to_end(&mut text).map_err(|_| ImageError::Damaged)?;
    if text.len() == size { Ok(text) } else { Err(ImageError::Damaged) }
}
