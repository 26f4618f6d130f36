//! Functions of before CUDA 3.2, whose sizes and device addresses have 32 bits. Each does what its successor does. An address
//! that does not fit into 32 bits cannot be handed out: where memory would be allocated there is then none left.
#![allow(non_snake_case)]

use cuda_abi::border::{In, Out, Str};
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::copy::answer;
use crate::{api, exports};

fn narrow(address: u64) -> CudaResult<u32> {
    u32::try_from(address).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

/// As large as can be told.
fn at_most(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

pub(crate) fn cuDeviceTotalMem(bytes: Out<u32>, device: CUdevice) -> CudaResult {
    let mut total = 0;
    api::cuDeviceTotalMem_v2(Out::to(&mut total), device)?;
    bytes.put(at_most(total))
}

pub(crate) fn cuMemGetInfo(free: Out<u32>, total: Out<u32>) -> CudaResult {
    let (mut is_free, mut in_all) = (0, 0);
    api::cuMemGetInfo_v2(Out::to(&mut is_free), Out::to(&mut in_all))?;
    free.put_if(at_most(is_free));
    total.put_if(at_most(in_all));
    Ok(())
}

pub(crate) fn cuModuleGetGlobal(dptr: Out<u32>, bytes: Out<u32>, module: CUmodule, name: Str) -> CudaResult {
    let (mut address, mut len) = (0, 0);
    api::cuModuleGetGlobal_v2(Out::to(&mut address), Out::to(&mut len), module, name)?;
    if !dptr.is_null() {
        dptr.put(narrow(address)?)?;
    }
    bytes.put_if(at_most(len));
    Ok(())
}

/// Hands out what was allocated, or gives it back.
fn hand_out(address: u64) -> CudaResult<u32> {
    narrow(address).or_else(|_| {
        api::cuMemFree_v2(address)?;
        Err(CUDA_ERROR_OUT_OF_MEMORY)
    })
}

pub(crate) fn cuMemAlloc(dptr: Out<u32>, bytes: u32) -> CudaResult {
    dptr.required()?;
    let mut address = 0;
    api::cuMemAlloc_v2(Out::to(&mut address), bytes as usize)?;
    dptr.put(hand_out(address)?)
}

pub(crate) fn cuMemAllocPitch(
    dptr: Out<u32>,
    pitch: Out<u32>,
    width: u32,
    height: u32,
    element_bytes: u32,
) -> CudaResult {
    dptr.required()?;
    pitch.required()?;
    let (mut address, mut row) = (0, 0);
    let (to, to_row) = (Out::to(&mut address), Out::to(&mut row));
    api::cuMemAllocPitch_v2(to, to_row, width as usize, height as usize, element_bytes)?;
    dptr.put(hand_out(address)?)?;
    pitch.put(at_most(row))
}

pub(crate) fn cuMemFree(dptr: u32) -> CudaResult {
    api::cuMemFree_v2(dptr.into())
}

pub(crate) fn cuMemGetAddressRange(base: Out<u32>, size: Out<u32>, dptr: u32) -> CudaResult {
    let (mut start, mut len) = (0, 0);
    api::cuMemGetAddressRange_v2(Out::to(&mut start), Out::to(&mut len), dptr.into())?;
    if !base.is_null() {
        base.put(narrow(start)?)?;
    }
    size.put_if(at_most(len));
    Ok(())
}

pub(crate) fn cuMemHostGetDevicePointer(to: Out<u32>, host: *mut c_void, flags: u32) -> CudaResult {
    to.required()?;
    let mut address = 0;
    api::cuMemHostGetDevicePointer_v2(Out::to(&mut address), host, flags)?;
    to.put(narrow(address)?)
}

fn widen_2d(copy: &CUDA_MEMCPY2D_v1) -> CUDA_MEMCPY2D {
    CUDA_MEMCPY2D {
        src_x_in_bytes: copy.src_x_in_bytes as usize,
        src_y: copy.src_y as usize,
        src_memory_type: copy.src_memory_type,
        src_host: copy.src_host,
        src_device: copy.src_device.into(),
        src_array: copy.src_array,
        src_pitch: copy.src_pitch as usize,
        dst_x_in_bytes: copy.dst_x_in_bytes as usize,
        dst_y: copy.dst_y as usize,
        dst_memory_type: copy.dst_memory_type,
        dst_host: copy.dst_host,
        dst_device: copy.dst_device.into(),
        dst_array: copy.dst_array,
        dst_pitch: copy.dst_pitch as usize,
        width_in_bytes: copy.width_in_bytes as usize,
        height: copy.height as usize,
        ..Default::default()
    }
}

fn widen_3d(copy: &CUDA_MEMCPY3D_v1) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        src_x_in_bytes: copy.src_x_in_bytes as usize,
        src_y: copy.src_y as usize,
        src_z: copy.src_z as usize,
        src_lod: copy.src_lod as usize,
        src_memory_type: copy.src_memory_type,
        src_host: copy.src_host,
        src_device: copy.src_device.into(),
        src_array: copy.src_array,
        src_pitch: copy.src_pitch as usize,
        src_height: copy.src_height as usize,
        dst_x_in_bytes: copy.dst_x_in_bytes as usize,
        dst_y: copy.dst_y as usize,
        dst_z: copy.dst_z as usize,
        dst_lod: copy.dst_lod as usize,
        dst_memory_type: copy.dst_memory_type,
        dst_host: copy.dst_host,
        dst_device: copy.dst_device.into(),
        dst_array: copy.dst_array,
        dst_pitch: copy.dst_pitch as usize,
        dst_height: copy.dst_height as usize,
        width_in_bytes: copy.width_in_bytes as usize,
        height: copy.height as usize,
        depth: copy.depth as usize,
        ..Default::default()
    }
}

pub(crate) fn cuMemcpy2D(copy: In<CUDA_MEMCPY2D_v1>) -> CudaResult {
    api::cuMemcpy2D_v2(In::of(&widen_2d(&copy.take()?)))
}

pub(crate) fn cuMemcpy2DUnaligned(copy: In<CUDA_MEMCPY2D_v1>) -> CudaResult {
    api::cuMemcpy2DUnaligned_v2(In::of(&widen_2d(&copy.take()?)))
}

pub(crate) fn cuMemcpy2DAsync(copy: In<CUDA_MEMCPY2D_v1>, stream: CUstream) -> CudaResult {
    api::cuMemcpy2DAsync_v2(In::of(&widen_2d(&copy.take()?)), stream)
}

pub(crate) fn cuMemcpy3D(copy: In<CUDA_MEMCPY3D_v1>) -> CudaResult {
    api::cuMemcpy3D_v2(In::of(&widen_3d(&copy.take()?)))
}

pub(crate) fn cuMemcpy3DAsync(copy: In<CUDA_MEMCPY3D_v1>, stream: CUstream) -> CudaResult {
    api::cuMemcpy3DAsync_v2(In::of(&widen_3d(&copy.take()?)), stream)
}

macro_rules! widened {
    ($($old:ident => $new:ident($($arg:ident: $kind:ty as $wide:ty),*);)*) => {
        $(
            pub(crate) fn $old($($arg: $kind),*) -> CudaResult {
                api::$new($($arg as $wide),*)
            }
        )*
    };
}

widened! {
    cuMemcpyAtoD => cuMemcpyAtoD_v2(to: u32 as u64, from: CUarray as CUarray, offset: u32 as usize, bytes: u32 as usize);
    cuMemcpyDtoA => cuMemcpyDtoA_v2(to: CUarray as CUarray, offset: u32 as usize, from: u32 as u64, bytes: u32 as usize);
    cuMemcpyDtoD => cuMemcpyDtoD_v2(to: u32 as u64, from: u32 as u64, bytes: u32 as usize);
    cuMemsetD8 => cuMemsetD8_v2(to: u32 as u64, value: u8 as u8, count: u32 as usize);
    cuMemsetD16 => cuMemsetD16_v2(to: u32 as u64, value: u16 as u16, count: u32 as usize);
    cuMemsetD32 => cuMemsetD32_v2(to: u32 as u64, value: u32 as u32, count: u32 as usize);
    cuMemsetD2D8 => cuMemsetD2D8_v2(
        to: u32 as u64, pitch: u32 as usize, value: u8 as u8, width: u32 as usize, height: u32 as usize
    );
    cuMemsetD2D16 => cuMemsetD2D16_v2(
        to: u32 as u64, pitch: u32 as usize, value: u16 as u16, width: u32 as usize, height: u32 as usize
    );
    cuMemsetD2D32 => cuMemsetD2D32_v2(
        to: u32 as u64, pitch: u32 as usize, value: u32 as u32, width: u32 as usize, height: u32 as usize
    );
}

pub(crate) fn cuMemcpyDtoDAsync(to: u32, from: u32, bytes: u32, stream: CUstream) -> CudaResult {
    // SAFETY: plain values.
    answer(unsafe { exports::cuMemcpyDtoDAsync_v2(to.into(), from.into(), bytes as usize, stream) })
}

pub(crate) unsafe fn cuMemcpyDtoH(to: *mut c_void, from: u32, bytes: u32) -> CudaResult {
    // SAFETY: passed on.
    unsafe { api::cuMemcpyDtoH_v2(to, from.into(), bytes as usize) }
}

pub(crate) unsafe fn cuMemcpyDtoHAsync(to: *mut c_void, from: u32, bytes: u32, stream: CUstream) -> CudaResult {
    // SAFETY: passed on.
    unsafe { api::cuMemcpyDtoHAsync_v2(to, from.into(), bytes as usize, stream) }
}

pub(crate) unsafe fn cuMemcpyHtoD(to: u32, from: *const c_void, bytes: u32) -> CudaResult {
    // SAFETY: passed on.
    unsafe { api::cuMemcpyHtoD_v2(to.into(), from, bytes as usize) }
}

pub(crate) unsafe fn cuMemcpyHtoDAsync(to: u32, from: *const c_void, bytes: u32, stream: CUstream) -> CudaResult {
    // SAFETY: passed on.
    unsafe { api::cuMemcpyHtoDAsync_v2(to.into(), from, bytes as usize, stream) }
}

pub(crate) fn cuArrayCreate(array: Out<CUarray>, about: In<CUDA_ARRAY_DESCRIPTOR_v1>) -> CudaResult {
    array.required()?;
    let CUDA_ARRAY_DESCRIPTOR_v1 { width, height, format, num_channels } = about.take()?;
    let wide = CUDA_ARRAY_DESCRIPTOR { width: width as usize, height: height as usize, format, num_channels };
    let mut made = std::ptr::null_mut();
    // SAFETY: both are locals.
    answer(unsafe { exports::cuArrayCreate_v2(&mut made, &wide) })?;
    array.put(made)
}

pub(crate) fn cuArray3DCreate(array: Out<CUarray>, about: In<CUDA_ARRAY3D_DESCRIPTOR_v1>) -> CudaResult {
    array.required()?;
    let about = about.take()?;
    let wide = CUDA_ARRAY3D_DESCRIPTOR {
        width: about.width as usize,
        height: about.height as usize,
        depth: about.depth as usize,
        format: about.format,
        num_channels: about.num_channels,
        flags: about.flags,
        padding: 0,
    };
    let mut made = std::ptr::null_mut();
    // SAFETY: both are locals.
    answer(unsafe { exports::cuArray3DCreate_v2(&mut made, &wide) })?;
    array.put(made)
}

pub(crate) fn cuArrayGetDescriptor(to: Out<CUDA_ARRAY_DESCRIPTOR_v1>, array: CUarray) -> CudaResult {
    to.required()?;
    let mut wide = CUDA_ARRAY_DESCRIPTOR::default();
    // SAFETY: the output is a local.
    answer(unsafe { exports::cuArrayGetDescriptor_v2(&mut wide, array) })?;
    to.put(CUDA_ARRAY_DESCRIPTOR_v1 {
        width: at_most(wide.width),
        height: at_most(wide.height),
        format: wide.format,
        num_channels: wide.num_channels,
    })
}

pub(crate) fn cuArray3DGetDescriptor(to: Out<CUDA_ARRAY3D_DESCRIPTOR_v1>, array: CUarray) -> CudaResult {
    to.required()?;
    let mut wide = CUDA_ARRAY3D_DESCRIPTOR::default();
    // SAFETY: the output is a local.
    answer(unsafe { exports::cuArray3DGetDescriptor_v2(&mut wide, array) })?;
    to.put(CUDA_ARRAY3D_DESCRIPTOR_v1 {
        width: at_most(wide.width),
        height: at_most(wide.height),
        depth: at_most(wide.depth),
        format: wide.format,
        num_channels: wide.num_channels,
        flags: wide.flags,
    })
}

pub(crate) fn cuTexRefGetAddress(to: Out<u32>, reference: CUtexref) -> CudaResult {
    to.required()?;
    let mut address = 0;
    // SAFETY: the output is a local.
    answer(unsafe { exports::cuTexRefGetAddress_v2(&mut address, reference) })?;
    to.put(narrow(address)?)
}

pub(crate) fn cuTexRefSetAddress(offset: Out<u32>, reference: CUtexref, address: u32, bytes: u32) -> CudaResult {
    let mut wide = 0;
    let place = if offset.is_null() { std::ptr::null_mut() } else { &raw mut wide };
    // SAFETY: the output is a local, or not wanted.
    answer(unsafe { exports::cuTexRefSetAddress_v2(place, reference, address.into(), bytes as usize) })?;
    offset.put_if(at_most(wide));
    Ok(())
}

pub(crate) fn cuTexRefSetAddress2D(
    reference: CUtexref,
    about: In<CUDA_ARRAY_DESCRIPTOR_v1>,
    address: u32,
    pitch: u32,
) -> CudaResult {
    let CUDA_ARRAY_DESCRIPTOR_v1 { width, height, format, num_channels } = about.take()?;
    let wide = CUDA_ARRAY_DESCRIPTOR { width: width as usize, height: height as usize, format, num_channels };
    api::cuTexRefSetAddress2D_v2(reference, In::of(&wide), address.into(), pitch as usize)
}
