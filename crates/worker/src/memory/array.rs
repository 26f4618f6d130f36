//! How much memory a CUDA array takes, from what the client says of it: the driver has no word for it before it is made.

use cuda_abi::types::{CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR};

/// No array has more levels: each is half the one before.
const MAX_LEVELS: u32 = 32;

/// What an array is made from.
pub(crate) trait ArrayShape {
    /// Width, height and depth in elements, channels and format.
    fn shape(&self) -> ([u64; 3], u32, u32);
}

impl ArrayShape for CUDA_ARRAY_DESCRIPTOR {
    fn shape(&self) -> ([u64; 3], u32, u32) {
        ([self.width as u64, self.height as u64, 1], self.num_channels, self.format)
    }
}

impl ArrayShape for CUDA_ARRAY3D_DESCRIPTOR {
    fn shape(&self) -> ([u64; 3], u32, u32) {
        ([self.width as u64, self.height as u64, self.depth as u64], self.num_channels, self.format)
    }
}

/// Bytes of all levels. A shape that makes no sense is the driver's to refuse; what it says must not overflow.
pub(crate) fn array_bytes(shape: &impl ArrayShape, levels: u32) -> u64 {
    let (extents, channels, format) = shape.shape();
    let element = u64::from(format_bytes(format)).saturating_mul(channels.clamp(1, 4).into());
    (0..levels.clamp(1, MAX_LEVELS)).fold(0, |sum: u64, level| {
        let elements = extents.iter().fold(1u64, |product, extent| product.saturating_mul((extent >> level).max(1)));
        sum.saturating_add(elements.saturating_mul(element))
    })
}

/// Of one channel. Formats of several channels in one (NV12, UNORM) and compressed ones take no more than this.
fn format_bytes(format: u32) -> u32 {
    match format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(width: usize, height: usize, depth: usize) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format: 0x20, num_channels: 4, ..Default::default() }
    }

    #[test]
    fn arrays_cost_what_they_hold() {
        let plane = CUDA_ARRAY_DESCRIPTOR { width: 100, height: 10, format: 0x01, num_channels: 2 };
        assert_eq!(array_bytes(&plane, 1), 2000);
        assert_eq!(array_bytes(&array(8, 0, 0), 1), 8 * 16);
        assert_eq!(array_bytes(&array(8, 4, 2), 1), 64 * 16);
        assert_eq!(array_bytes(&array(8, 8, 0), 4), (64 + 16 + 4 + 1) * 16);
    }

    #[test]
    fn absurd_shapes_do_not_overflow() {
        assert_eq!(array_bytes(&array(usize::MAX, usize::MAX, usize::MAX), u32::MAX), u64::MAX);
        assert_eq!(array_bytes(&array(0, 0, 0), 0), 16);
    }
}
