//! CUDA arrays: images in device memory whose layout is ours. They lie in rows, one after another.

use std::sync::Arc;

use cuda_abi::constants::array_flag;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use ptx_exec::image::{Channel, Image};

use super::abi::*;
use super::context::{Context, current};
use super::handles::{Owned, Table, of, out};
use super::memory::alloc;
use super::memory::map::{self, Kind};
use super::{copy, stream};

const KNOWN_FLAGS: u32 = array_flag::LAYERED | array_flag::SURFACE_LDST | array_flag::CUBEMAP | 8 | 16;

/// Rows start at multiples of this.
const ROW: u64 = 16;
/// No side is longer.
const MAX_SIDE: usize = 131_072;

pub(crate) static ARRAYS: Table<Array> = Table::new(30);
pub(crate) static MIPMAPS: Table<Mipmap> = Table::new(31);

pub(crate) struct Array {
    owner: u64,
    pub about: CUDA_ARRAY3D_DESCRIPTOR,
    pub image: Image,
    /// Levels of a mipmapped array do not own their memory.
    memory: Option<Arc<Memory>>,
}

pub(crate) struct Mipmap {
    owner: u64,
    pub levels: Vec<u64>,
    /// Its levels are only ways to it.
    _memory: Arc<Memory>,
}

/// Goes when the last array in it does.
struct Memory {
    owner: u64,
    base: u64,
}

impl Owned for Array {
    fn owner(&self) -> u64 {
        self.owner
    }
}

impl Owned for Mipmap {
    fn owner(&self) -> u64 {
        self.owner
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The context may have ended and the address be in use again.
        if map::find(self.base).is_some_and(|region| region.base == self.base && region.owner == self.owner) {
            let _ = alloc::free(self.base);
        }
    }
}

/// What ends with a context.
pub(crate) fn forget_context(owner: u64) {
    drop(MIPMAPS.remove_owned(owner));
    drop(ARRAYS.remove_owned(owner));
}

/// The channel of an array format.
pub(crate) fn channel(format: u32) -> CudaResult<Channel> {
    Ok(match format {
        0x01 => Channel::U8,
        0x02 => Channel::U16,
        0x03 => Channel::U32,
        0x08 => Channel::S8,
        0x09 => Channel::S16,
        0x0a => Channel::S32,
        0x10 => Channel::F16,
        0x20 => Channel::F32,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

/// The image of an array, its memory not yet known.
fn plan(about: &CUDA_ARRAY3D_DESCRIPTOR) -> CudaResult<Image> {
    let CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels, flags, .. } = *about;
    let channel = channel(format)?;
    valid(matches!(num_channels, 1 | 2 | 4) && flags & !KNOWN_FLAGS == 0)?;
    valid(width > 0 && [width, height, depth].iter().all(|side| *side <= MAX_SIDE))?;
    let (layered, cube) = (flags & array_flag::LAYERED != 0, flags & array_flag::CUBEMAP != 0);
    // Only layers make depth without height.
    valid(height > 0 || depth == 0 || layered)?;
    valid(!layered || depth > 0)?;
    valid(!cube || (width == height && depth % 6 == 0 && depth > 0 && (layered || depth == 6)))?;
    let size = [width as u32, height.max(1) as u32, depth.max(1) as u32];
    let element = channel.bytes() * u64::from(num_channels);
    let pitch = (width as u64 * element).next_multiple_of(ROW);
    let slice = pitch.checked_mul(u64::from(size[1])).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    Ok(Image { base: 0, size, pitch, slice, channel, channels: num_channels as u8, layered, cube })
}

fn bytes(image: &Image) -> CudaResult<u64> {
    image.slice.checked_mul(u64::from(image.size[2])).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

fn memory(context: &Arc<Context>, bytes: u64) -> CudaResult<Arc<Memory>> {
    let base = alloc::allocate(context, bytes, Kind::Device { pool: None })?;
    Ok(Arc::new(Memory { owner: context.id(), base }))
}

fn create(about: CUDA_ARRAY3D_DESCRIPTOR) -> CudaResult<u64> {
    let context = current()?;
    let mut image = plan(&about)?;
    let memory = memory(&context, bytes(&image)?)?;
    image.base = memory.base;
    Ok(ARRAYS.insert(Array { owner: context.id(), about, image, memory: Some(memory) }))
}

/// The array of a handle.
pub(crate) fn array(handle: CUarray) -> CudaResult<Arc<Array>> {
    ARRAYS.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_HANDLE)
}

fn cuArrayCreate_v2(to: Out<CUarray>, about: In<CUDA_ARRAY_DESCRIPTOR>) -> CudaResult {
    to.required()?;
    let CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels } = about.take()?;
    let about = CUDA_ARRAY3D_DESCRIPTOR { width, height, format, num_channels, ..Default::default() };
    to.put(out(create(about)?))
}

fn cuArray3DCreate_v2(to: Out<CUarray>, about: In<CUDA_ARRAY3D_DESCRIPTOR>) -> CudaResult {
    to.required()?;
    to.put(out(create(about.take()?)?))
}

fn cuArrayGetDescriptor_v2(to: Out<CUDA_ARRAY_DESCRIPTOR>, handle: CUarray) -> CudaResult {
    to.required()?;
    current()?;
    let CUDA_ARRAY3D_DESCRIPTOR { width, height, format, num_channels, .. } = array(handle)?.about;
    to.put(CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels })
}

fn cuArray3DGetDescriptor_v2(to: Out<CUDA_ARRAY3D_DESCRIPTOR>, handle: CUarray) -> CudaResult {
    to.required()?;
    current()?;
    to.put(array(handle)?.about)
}

fn cuArrayDestroy(handle: CUarray) -> CudaResult {
    let context = current()?;
    let array = array(handle)?;
    // A level goes with its mipmap.
    valid(array.memory.is_some())?;
    // What still uses it is waited for.
    context.synchronize()?;
    ARRAYS.remove(of(handle)).map(drop)
}

fn cuMipmappedArrayCreate(to: Out<CUmipmappedArray>, about: In<CUDA_ARRAY3D_DESCRIPTOR>, levels: u32) -> CudaResult {
    to.required()?;
    let context = current()?;
    let about = about.take()?;
    let largest =
        about.width.max(about.height).max(if about.flags & array_flag::LAYERED == 0 { about.depth } else { 0 });
    let most = usize::BITS - largest.leading_zeros();
    let levels = levels.clamp(1, most.max(1));
    let mut images = Vec::new();
    let mut total = 0u64;
    for level in 0..levels {
        let half = |side: usize| if side == 0 { 0 } else { (side >> level).max(1) };
        let depth = if about.flags & (array_flag::LAYERED | array_flag::CUBEMAP) == 0 {
            half(about.depth)
        } else {
            about.depth
        };
        let about = CUDA_ARRAY3D_DESCRIPTOR { width: half(about.width), height: half(about.height), depth, ..about };
        let image = plan(&about)?;
        images.push((about, image, total));
        total = total.checked_add(bytes(&image)?).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    }
    let memory = memory(&context, total)?;
    let owner = context.id();
    let insert = |(about, mut image, at): (CUDA_ARRAY3D_DESCRIPTOR, Image, u64)| {
        image.base = memory.base + at;
        ARRAYS.insert(Array { owner, about, image, memory: None })
    };
    let levels = images.into_iter().map(insert).collect();
    to.put(out(MIPMAPS.insert(Mipmap { owner, levels, _memory: memory })))
}

pub(crate) fn mipmap(handle: CUmipmappedArray) -> CudaResult<Arc<Mipmap>> {
    MIPMAPS.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_HANDLE)
}

fn cuMipmappedArrayGetLevel(to: Out<CUarray>, handle: CUmipmappedArray, level: u32) -> CudaResult {
    to.required()?;
    current()?;
    let mipmap = mipmap(handle)?;
    to.put(out(*mipmap.levels.get(level as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?))
}

fn cuMipmappedArrayDestroy(handle: CUmipmappedArray) -> CudaResult {
    let context = current()?;
    let mipmap = mipmap(handle)?;
    context.synchronize()?;
    MIPMAPS.remove(of(handle))?;
    for level in &mipmap.levels {
        let _ = ARRAYS.remove(*level);
    }
    Ok(())
}

/// Where bytes `offset` and on of a 1D array are.
fn row(handle: CUarray, offset: usize, len: usize) -> CudaResult<u64> {
    let image = array(handle)?.image;
    let row = u64::from(image.size[0]) * image.element();
    // Rows follow each other with gaps, so a copy by bytes stays in one.
    let (at, within) = (offset as u64 / row, offset as u64 % row);
    valid(within + len as u64 <= row && at < u64::from(image.size[1]))?;
    Ok(image.base + at * image.pitch + within)
}

unsafe fn cuMemcpyHtoA_v2(to: CUarray, offset: usize, from: *const c_void, len: usize) -> CudaResult {
    let queue = current()?.legacy();
    copy::copy(&queue, row(to, offset, len)?, from as u64, len as u64, copy::Return::Done)
}

unsafe fn cuMemcpyAtoH_v2(to: *mut c_void, from: CUarray, offset: usize, len: usize) -> CudaResult {
    let queue = current()?.legacy();
    copy::copy(&queue, to as u64, row(from, offset, len)?, len as u64, copy::Return::Done)
}

unsafe fn cuMemcpyHtoAAsync_v2(
    to: CUarray,
    offset: usize,
    from: *const c_void,
    len: usize,
    stream: CUstream,
) -> CudaResult {
    let queue = stream::queue(stream)?;
    copy::copy(&queue, row(to, offset, len)?, from as u64, len as u64, copy::Return::Queued)
}

unsafe fn cuMemcpyAtoHAsync_v2(
    to: *mut c_void,
    from: CUarray,
    offset: usize,
    len: usize,
    stream: CUstream,
) -> CudaResult {
    let queue = stream::queue(stream)?;
    copy::copy(&queue, to as u64, row(from, offset, len)?, len as u64, copy::Return::Queued)
}

fn cuMemcpyDtoA_v2(to: CUarray, offset: usize, from: CUdeviceptr, len: usize) -> CudaResult {
    let queue = current()?.legacy();
    copy::copy(&queue, row(to, offset, len)?, from, len as u64, copy::Return::Done)
}

fn cuMemcpyAtoD_v2(to: CUdeviceptr, from: CUarray, offset: usize, len: usize) -> CudaResult {
    let queue = current()?.legacy();
    copy::copy(&queue, to, row(from, offset, len)?, len as u64, copy::Return::Done)
}

fn cuMemcpyAtoA_v2(to: CUarray, to_offset: usize, from: CUarray, offset: usize, len: usize) -> CudaResult {
    let queue = current()?.legacy();
    let (to, from) = (row(to, to_offset, len)?, row(from, offset, len)?);
    copy::copy(&queue, to, from, len as u64, copy::Return::Done)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuArrayCreate_v2,
        cuArray3DCreate_v2,
        cuArrayGetDescriptor_v2,
        cuArray3DGetDescriptor_v2,
        cuArrayDestroy,
        cuMipmappedArrayCreate,
        cuMipmappedArrayGetLevel,
        cuMipmappedArrayDestroy,
        cuMemcpyHtoA_v2,
        cuMemcpyAtoH_v2,
        cuMemcpyHtoAAsync_v2,
        cuMemcpyAtoHAsync_v2,
        cuMemcpyDtoA_v2,
        cuMemcpyAtoD_v2,
        cuMemcpyAtoA_v2
    )
}
