//! What a CUDA program needs, tried step by step with the `libcuda.so.1` that the loader finds: memory, copies, a kernel,
//! and memory of another process.

use std::ffi::c_void;
use std::ptr::null_mut;

use cuda_abi::driver::Driver;
use cuda_abi::types::*;
use serde::{Deserialize, Serialize};

const LIBRARY: &str = "libcuda.so.1";
const COUNT: usize = 1 << 20;
/// Adds one to each of so many numbers.
const KERNEL: &str = r#".version 7.0
.target sm_52
.address_size 64
.visible .entry add_one(.param .u64 data, .param .u64 count)
{
    .reg .pred %p;
    .reg .b32 %value, %block, %size, %thread;
    .reg .b64 %data, %count, %index, %offset, %place;
    ld.param.u64 %data, [data];
    ld.param.u64 %count, [count];
    cvta.to.global.u64 %data, %data;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.wide.u32 %index, %block, %size, 0;
    cvt.u64.u32 %offset, %thread;
    add.u64 %index, %index, %offset;
    setp.ge.u64 %p, %index, %count;
    @%p bra DONE;
    shl.b64 %offset, %index, 2;
    add.u64 %place, %data, %offset;
    ld.global.u32 %value, [%place];
    add.u32 %value, %value, 1;
    st.global.u32 [%place], %value;
DONE:
    ret;
}
"#;

/// One step, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub name: String,
    /// None where it worked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

struct Test {
    driver: Driver,
    memory: CUdeviceptr,
}

fn check(call: &str, code: u32) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{call} answers {code} ({})", cuda_abi::error::name(code))) }
}

fn load() -> Result<Driver, String> {
    // SAFETY: the `libcuda.so.1` that programs load: whether it works for them is what is tested.
    unsafe { crate::load::load_library(LIBRARY) }.map_err(|error| error.to_string())
}

/// Does the steps one after the other, as far as they work, and tells of each. `open` gives another process a handle, and
/// answers with the first number that it read there.
pub fn run(open: impl FnOnce(&str) -> Result<u32, String>, mut tell: impl FnMut(Step)) -> bool {
    let mut step = |name: &str, result: Result<(), String>| {
        let fine = result.is_ok();
        tell(Step { name: name.to_owned(), failure: result.err() });
        fine
    };
    let driver = match load() {
        Ok(driver) => driver,
        Err(why) => return step("load libcuda.so.1", Err(why)),
    };
    let mut test = Test { driver, memory: 0 };
    step("start the driver", test.start())
        && step("allocate", test.allocate())
        && step("copy", test.copy())
        && step("launch a kernel", test.launch())
        && step("share with another process", test.share(open))
}

/// The other process: opens a handle and says the first number there.
pub fn open(handle: &str) -> Result<u32, String> {
    let test = Test { driver: load()?, memory: 0 };
    test.start()?;
    let mut bytes = [0; 64];
    hex::decode_to_slice(handle, &mut bytes).map_err(|_| "the handle does not have 64 bytes")?;
    let handle = CUipcMemHandle(bytes);
    let (mut memory, mut value) = (0, 0u32);
    // SAFETY: outputs are locals; the copy is of that size.
    unsafe {
        check("cuIpcOpenMemHandle", (test.driver.cuIpcOpenMemHandle_v2)(&mut memory, handle, 1))?;
        check("cuMemcpyDtoH", (test.driver.cuMemcpyDtoH_v2)((&raw mut value).cast(), memory, 4))?;
        check("cuIpcCloseMemHandle", (test.driver.cuIpcCloseMemHandle)(memory))?;
    }
    Ok(value)
}

impl Test {
    fn start(&self) -> Result<(), String> {
        let (mut count, mut context) = (0, null_mut());
        // SAFETY: outputs are locals.
        unsafe {
            check("cuInit", (self.driver.cuInit)(0))?;
            check("cuDeviceGetCount", (self.driver.cuDeviceGetCount)(&mut count))?;
            if count == 0 {
                return Err("no GPU".to_owned());
            }
            check("cuDevicePrimaryCtxRetain", (self.driver.cuDevicePrimaryCtxRetain)(&mut context, 0))?;
            check("cuCtxSetCurrent", (self.driver.cuCtxSetCurrent)(context))
        }
    }

    fn allocate(&mut self) -> Result<(), String> {
        // SAFETY: the output is our own.
        unsafe { check("cuMemAlloc", (self.driver.cuMemAlloc_v2)(&mut self.memory, COUNT * 4)) }
    }

    fn read(&self) -> Result<Vec<u32>, String> {
        let mut values = vec![0u32; COUNT];
        // SAFETY: the buffer has the size that is copied.
        unsafe {
            check("cuMemcpyDtoH", (self.driver.cuMemcpyDtoH_v2)(values.as_mut_ptr().cast(), self.memory, COUNT * 4))?;
        }
        Ok(values)
    }

    fn copy(&self) -> Result<(), String> {
        let values: Vec<u32> = (0..COUNT as u32).collect();
        // SAFETY: the buffer has the size that is copied.
        unsafe {
            check("cuMemcpyHtoD", (self.driver.cuMemcpyHtoD_v2)(self.memory, values.as_ptr().cast(), COUNT * 4))?;
        }
        if self.read()? == values {
            Ok(())
        } else {
            Err("the data read back differs from what was written".to_owned())
        }
    }

    fn launch(&self) -> Result<(), String> {
        let image = std::ffi::CString::new(KERNEL).map_err(|error| error.to_string())?;
        let (mut module, mut function) = (null_mut(), null_mut());
        let words = [self.memory, COUNT as u64];
        let mut parameters: Vec<*mut c_void> =
            words.iter().map(|word| (&raw const *word).cast_mut().cast()).collect();
        let (grid, block) = (COUNT as u32 / 256, 256);
        // SAFETY: outputs are locals; the kernel has these two parameters, which live across the launch.
        unsafe {
            check("cuModuleLoadData", (self.driver.cuModuleLoadData)(&mut module, image.as_ptr().cast()))?;
            let name = c"add_one".as_ptr();
            check("cuModuleGetFunction", (self.driver.cuModuleGetFunction)(&mut function, module, name))?;
            let code = (self.driver.cuLaunchKernel)(
                function,
                grid,
                1,
                1,
                block,
                1,
                1,
                0,
                null_mut(),
                parameters.as_mut_ptr(),
                null_mut(),
            );
            check("cuLaunchKernel", code)?;
            check("cuCtxSynchronize", (self.driver.cuCtxSynchronize)())?;
        }
        let right = self.read()?.iter().enumerate().all(|(at, value)| *value == at as u32 + 1);
        if right { Ok(()) } else { Err("wrong result of the kernel".to_owned()) }
    }

    fn share(&self, open: impl FnOnce(&str) -> Result<u32, String>) -> Result<(), String> {
        let mut handle = CUipcMemHandle::default();
        // SAFETY: the output is a local.
        unsafe { check("cuIpcGetMemHandle", (self.driver.cuIpcGetMemHandle)(&mut handle, self.memory))? };
        match open(&hex::encode(handle.0))? {
            1 => Ok(()),
            other => Err(format!("the other process reads {other} instead of 1")),
        }
    }
}
