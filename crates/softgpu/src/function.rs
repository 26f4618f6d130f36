//! Functions: kernels of a module, with the settings that launches obey.

use std::ffi::CString;
use std::sync::Arc;

use cuda_abi::constants::function_attribute;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::Mutex;
use ptx_exec::Kernel;

use super::abi::*;
use super::attributes as is;
use super::context::current;
use super::handles::{Owned, Table, of, out};
use super::library::KERNELS;
use super::module::Module;
use super::state;

pub(crate) static FUNCTIONS: Table<Function> = Table::new(7);

pub(crate) struct Function {
    pub module: Arc<Module>,
    pub index: usize,
    pub settings: Arc<Settings>,
    pub name: CString,
}

impl Owned for Function {
    fn owner(&self) -> u64 {
        self.module.owner()
    }
}

/// What can be set on a function, or on a kernel for a device.
pub(crate) struct Settings(Mutex<Values>);

#[derive(Clone, Copy)]
struct Values {
    max_dynamic: u32,
    carveout: i32,
    non_portable: i32,
    scheduling: i32,
}

impl Settings {
    pub(crate) fn of(kernel: &Kernel) -> Arc<Settings> {
        let max_dynamic = is::SHARED_PER_BLOCK.saturating_sub(kernel.static_shared);
        Arc::new(Settings(Mutex::new(Values { max_dynamic, carveout: -1, non_portable: 0, scheduling: 0 })))
    }

    pub(crate) fn max_dynamic(&self) -> u32 {
        self.0.lock().max_dynamic
    }

    pub(crate) fn get(&self, kernel: &Kernel, attribute: u32) -> CudaResult<i32> {
        let values = *self.0.lock();
        Ok(match attribute {
            function_attribute::MAX_THREADS_PER_BLOCK => kernel.max_threads as i32,
            function_attribute::SHARED_SIZE_BYTES => kernel.static_shared as i32,
            function_attribute::CONST_SIZE_BYTES | function_attribute::CACHE_MODE_CA => 0, // constants of its own, cache mode
            function_attribute::LOCAL_SIZE_BYTES => kernel.local_bytes as i32,
            function_attribute::NUM_REGS => kernel.registers as i32,
            // The architecture that the text was compiled for, not the version of its language.
            function_attribute::PTX_VERSION => kernel.target as i32,
            function_attribute::BINARY_VERSION => is::MAJOR * 10 + is::MINOR,
            function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => values.max_dynamic as i32,
            function_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT => values.carveout,
            function_attribute::CLUSTER_SIZE_MUST_BE_SET..=function_attribute::REQUIRED_CLUSTER_DEPTH => 0, // clusters
            function_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED => values.non_portable,
            function_attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE => values.scheduling,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        })
    }

    pub(crate) fn set(&self, kernel: &Kernel, attribute: u32, value: i32) -> CudaResult {
        let mut values = self.0.lock();
        match attribute {
            function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let most = is::SHARED_OPT_IN.saturating_sub(kernel.static_shared);
                values.max_dynamic =
                    u32::try_from(value).ok().filter(|size| *size <= most).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            }
            function_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT => {
                valid((-1..=100).contains(&value))?;
                values.carveout = value;
            }
            function_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED => values.non_portable = value,
            function_attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE => values.scheduling = value,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }
}

impl Function {
    pub(crate) fn kernel(&self) -> &Kernel {
        &self.module.code.kernels()[self.index]
    }
}

/// The function that a handle means: a function's own, or a kernel's in the current context.
pub(crate) fn function(handle: CUfunction) -> CudaResult<Arc<Function>> {
    state::state()?;
    if let Ok(function) = FUNCTIONS.get(of(handle)) {
        function.module.context.usable()?;
        return Ok(function);
    }
    let kernel = KERNELS.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
    FUNCTIONS.get(kernel.function(&current()?)?)
}

fn cuFuncGetAttribute(pi: Out<i32>, attribute: u32, handle: CUfunction) -> CudaResult {
    pi.required()?;
    let function = function(handle)?;
    pi.put(function.settings.get(function.kernel(), attribute)?)
}

fn cuFuncSetAttribute(handle: CUfunction, attribute: u32, value: i32) -> CudaResult {
    let function = function(handle)?;
    function.settings.set(function.kernel(), attribute, value)
}

fn cuFuncGetName(name: Out<*const c_char>, handle: CUfunction) -> CudaResult {
    // The function, and with it the name, lives as long as its module is loaded.
    name.put(function(handle)?.name.as_ptr())
}

fn cuFuncGetModule(module: Out<CUmodule>, handle: CUfunction) -> CudaResult {
    module.put(out(function(handle)?.module.handle))
}

fn cuFuncGetParamInfo(handle: CUfunction, index: usize, offset: Out<usize>, size: Out<usize>) -> CudaResult {
    state::state()?;
    // Unlike elsewhere, a kernel's handle is not good here.
    let function = FUNCTIONS.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
    param_info(function.kernel(), index, offset, size)
}

/// Offset and size of a parameter.
pub(crate) fn param_info(kernel: &Kernel, index: usize, offset: Out<usize>, size: Out<usize>) -> CudaResult {
    offset.required()?;
    let param = kernel.params.get(index).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    offset.put(param.offset as usize)?;
    size.put_if(param.size as usize);
    Ok(())
}

fn cuFuncIsLoaded(state: Out<CUfunctionLoadingState>, handle: CUfunction) -> CudaResult {
    state.required()?;
    function(handle)?;
    state.put(1)
}

fn cuFuncLoad(handle: CUfunction) -> CudaResult {
    function(handle).map(|_| ())
}

fn cuFuncSetCacheConfig(handle: CUfunction, config: u32) -> CudaResult {
    function(handle)?;
    valid(config <= 3)
}

fn cuFuncSetSharedMemConfig(handle: CUfunction, config: u32) -> CudaResult {
    function(handle)?;
    valid(config <= 2)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuFuncGetAttribute,
        cuFuncSetAttribute,
        cuFuncGetName,
        cuFuncGetModule,
        cuFuncGetParamInfo,
        cuFuncIsLoaded,
        cuFuncLoad,
        cuFuncSetCacheConfig,
        cuFuncSetSharedMemConfig
    )
}
