//! Launches: checked here, because natively a wrong one fails at once, then posted.

use cuda_abi::border::In;
use cuda_abi::constants::{device_attribute, launch_extra};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{Attributes, Launch};
use cuda_abi::wire::{Block, MAX_LAUNCH_ATTRS, MAX_PARAMS, Typed, is_plain_launch_attribute};

use crate::entry::not_null;
use crate::functions::{self, Function};
use crate::{context, device, exports, operation, stream};

pub(crate) struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
}

/// Where the parameters of a launch are.
pub(crate) enum Params {
    /// One pointer for each.
    Pointers(*mut *mut c_void),
    /// All in one buffer.
    Buffer(*const u8),
    None,
}

impl Params {
    /// Copies all parameters to their places. Gaps between them stay as they are.
    ///
    /// # Safety
    /// The caller vouches for one readable parameter each, of the size that the driver told, or for the buffer.
    pub(crate) unsafe fn pack(&self, function: &Function, packed: &mut [u8]) {
        match self {
            Params::None => {}
            // SAFETY: the caller's promise; the room is as large as all parameters.
            Params::Buffer(from) => unsafe {
                std::ptr::copy_nonoverlapping(*from, packed.as_mut_ptr(), function.param_bytes);
            },
            Params::Pointers(from) => {
                for (at, (offset, size)) in function.params.iter().enumerate() {
                    // SAFETY: as above.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            (*from.add(at)).cast::<u8>(),
                            packed.as_mut_ptr().add(*offset),
                            *size,
                        );
                    }
                }
            }
        }
    }
}

/// What the driver refuses at once.
pub(crate) fn check(function: &Function, shape: &Shape) -> CudaResult {
    const MAX_BLOCK: [u32; 3] = [2, 3, 4];
    const MAX_GRID: [u32; 3] = [5, 6, 7];
    let device = device::find(context::current_device()?)?;
    let limit = |number| device.attribute(number).map_or(u32::MAX, |value| value as u32);
    for axis in 0..3 {
        let block_fits = (1..=limit(MAX_BLOCK[axis])).contains(&shape.block[axis]);
        let grid_fits = (1..=limit(MAX_GRID[axis])).contains(&shape.grid[axis]);
        if !block_fits || !grid_fits {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
    }
    let threads: u64 = shape.block.iter().map(|extent| u64::from(*extent)).product();
    if threads > u64::from(limit(device_attribute::MAX_THREADS_PER_BLOCK)) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if function.max_threads.is_some_and(|most| threads > u64::from(most)) {
        return Err(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    }
    if shape.shared > 0 && shape.shared > function.max_dynamic_shared()? {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}

/// Blocks of a cooperative launch wait for each other: all must fit on the device at once.
fn check_cooperative(function: &Function, shape: &Shape) -> CudaResult {
    let threads = shape.block.iter().product::<u32>() as i32;
    let mut resident = 0;
    // SAFETY: the output is a local.
    let result = unsafe {
        exports::cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &mut resident,
            function.word as CUfunction,
            threads,
            shape.shared as usize,
        )
    };
    if result != CUDA_SUCCESS {
        return Err(result);
    }
    let processors = device::find(context::current_device()?)?.attribute(device_attribute::MULTIPROCESSOR_COUNT)?;
    let blocks: u64 = shape.grid.iter().map(|extent| u64::from(*extent)).product();
    let room = resident.max(0) as u64 * processors.max(0) as u64;
    if blocks > room { Err(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE) } else { Ok(()) }
}

/// Reads the `kernelParams` and `extra` arguments.
///
/// # Safety
/// Both are as `cuLaunchKernel` wants them.
pub(crate) unsafe fn params(
    function: &Function,
    kernel_params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CudaResult<Params> {
    if !kernel_params.is_null() {
        return if extra.is_null() { Ok(Params::Pointers(kernel_params)) } else { Err(CUDA_ERROR_INVALID_VALUE) };
    }
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), None);
    let mut at = extra;
    // SAFETY: `extra` is a list of names and values that ends with 0, by the caller's promise.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            match *at as usize {
                launch_extra::BUFFER_POINTER => buffer = (*at.add(1)).cast_const().cast(),
                launch_extra::BUFFER_SIZE => size = Some(*(*at.add(1)).cast::<usize>()),
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            }
            at = at.add(2);
        }
    }
    match size {
        _ if function.param_bytes == 0 => Ok(Params::None),
        Some(size) if size >= function.param_bytes && !buffer.is_null() => Ok(Params::Buffer(buffer)),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// # Safety
/// Parameters are as `cuLaunchKernel` wants them.
unsafe fn launch(
    function: CUfunction,
    shape: Shape,
    stream: CUstream,
    is_cooperative: bool,
    attributes: &[CUlaunchAttribute],
    kernel_params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CudaResult {
    context::current()?;
    let function = functions::loaded(function)?;
    let stream = stream::resolve(stream)?;
    check(&function, &shape)?;
    if is_cooperative || attributes.iter().any(|attribute| attribute.id == 2 && attribute.value[0] as u32 != 0) {
        check_cooperative(&function, &shape)?;
    }
    // SAFETY: the caller's promise.
    let params = unsafe { params(&function, kernel_params, extra) }?;
    let bytes = function.param_bytes;
    if bytes > MAX_PARAMS || attributes.len() > MAX_LAUNCH_ATTRS {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let request = Launch {
        function: Typed(function.word),
        stream: Typed(stream),
        grid: shape.grid,
        block: shape.block,
        shared_bytes: shape.shared,
        is_cooperative,
        attributes: Attributes::new(attributes),
        parameters: Block::Reserved(bytes),
    };
    // Zeros are there already: gaps between parameters do not carry what an earlier message left in the ring.
    operation::post_and_fill(&request, |slot| {
        let packed = Block::<{ MAX_PARAMS }>::place(slot, bytes);
        // SAFETY: the caller's promise.
        unsafe { params.pack(&function, packed) };
    })?;
    function.note_launch();
    Ok(())
}

/// The attributes of a launch, if all can be carried.
///
/// # Safety
/// `config` is as `cuLaunchKernelEx` wants it.
pub(crate) unsafe fn attributes<'a>(config: &CUlaunchConfig) -> CudaResult<&'a [CUlaunchAttribute]> {
    if config.num_attrs == 0 {
        return Ok(&[]);
    }
    not_null(config.attrs)?;
    // SAFETY: the caller's promise.
    let list = unsafe { std::slice::from_raw_parts(config.attrs, config.num_attrs as usize) };
    if !list.iter().all(|attribute| is_plain_launch_attribute(attribute.id)) {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    Ok(list)
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn cuLaunchKernel(
        function: CUfunction,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: CUstream,
        kernel_params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> CudaResult {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        // SAFETY: passed on.
        unsafe { launch(function, shape, stream, false, &[], kernel_params, extra) }
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn cuLaunchCooperativeKernel(
        function: CUfunction,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: CUstream,
        kernel_params: *mut *mut c_void,
    ) -> CudaResult {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        // SAFETY: passed on.
        unsafe { launch(function, shape, stream, true, &[], kernel_params, std::ptr::null_mut()) }
    }

    pub(crate) unsafe fn cuLaunchKernelEx(
        config: In<CUlaunchConfig>,
        function: CUfunction,
        kernel_params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> CudaResult {
        let config = config.take()?;
        let shape = Shape { grid: config.grid, block: config.block, shared: config.shared_mem_bytes };
        // SAFETY: by the API's contract, as many attributes as it says and the function's parameters.
        unsafe { launch(function, shape, config.stream, false, attributes(&config)?, kernel_params, extra) }
    }
}
