//! Structs of before CUDA 3.2, when sizes and device addresses had 32 bits.

use super::*;

structs! {
    CUDA_ARRAY_DESCRIPTOR_v1 16 {
        width: u32,
        height: u32,
        format: u32,
        num_channels: u32,
    }
    CUDA_ARRAY3D_DESCRIPTOR_v1 24 {
        width: u32,
        height: u32,
        depth: u32,
        format: u32,
        num_channels: u32,
        flags: u32,
    }
    CUDA_MEMCPY2D_v1 96 {
        src_x_in_bytes: u32,
        src_y: u32,
        src_memory_type: u32,
        src_padding: u32,
        src_host: *const c_void,
        src_device: u32,
        src_padding1: u32,
        src_array: CUarray,
        src_pitch: u32,
        dst_x_in_bytes: u32,
        dst_y: u32,
        dst_memory_type: u32,
        dst_host: *mut c_void,
        dst_device: u32,
        dst_padding: u32,
        dst_array: CUarray,
        dst_pitch: u32,
        width_in_bytes: u32,
        height: u32,
        padding: u32,
    }
    CUDA_MEMCPY3D_v1 144 {
        src_x_in_bytes: u32,
        src_y: u32,
        src_z: u32,
        src_lod: u32,
        src_memory_type: u32,
        src_padding: u32,
        src_host: *const c_void,
        src_device: u32,
        src_padding1: u32,
        src_array: CUarray,
        reserved0: *mut c_void,
        src_pitch: u32,
        src_height: u32,
        dst_x_in_bytes: u32,
        dst_y: u32,
        dst_z: u32,
        dst_lod: u32,
        dst_memory_type: u32,
        dst_padding: u32,
        dst_host: *mut c_void,
        dst_device: u32,
        dst_padding1: u32,
        dst_array: CUarray,
        reserved1: *mut c_void,
        dst_pitch: u32,
        dst_height: u32,
        width_in_bytes: u32,
        height: u32,
        depth: u32,
        padding: u32,
    }
}
