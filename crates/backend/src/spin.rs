//! A kernel that never ends unless it is told to, for trying whether a driver can be preempted. It counts its rounds in a
//! page that another process can look at.

use std::ffi::{CString, c_void};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cuda_abi::driver::Driver;
use cuda_abi::plan;
use cuda_abi::types::*;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

const SIZE: usize = 4096;
const PORTABLE_AND_MAPPED: u32 = 3;
/// Goes round until the first word is not 0; the first thread of all counts in the second.
const KERNEL: &str = r#".version 7.0
.target sm_52
.address_size 64
.visible .entry spin(.param .u64 page)
{
    .reg .pred %first, %p;
    .reg .b32 %end, %thread, %block;
    .reg .b64 %page, %rounds;
    ld.param.u64 %page, [page];
    cvta.to.global.u64 %page, %page;
    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    or.b32 %thread, %thread, %block;
    setp.eq.u32 %first, %thread, 0;
    mov.u64 %rounds, 0;
AGAIN:
    add.u64 %rounds, %rounds, 1;
    @%first st.volatile.global.u64 [%page+8], %rounds;
    ld.volatile.global.u32 %end, [%page];
    setp.eq.u32 %p, %end, 0;
    @%p bra AGAIN;
    ret;
}
"#;

#[repr(C)]
struct Words {
    end: AtomicU32,
    reserved: u32,
    rounds: AtomicU64,
}

/// The page of a kernel.
pub struct Page(NonNull<Words>);

impl Page {
    /// Makes one, for another process to map.
    pub fn make() -> io::Result<(OwnedFd, Self)> {
        let file = rustix::fs::memfd_create("bulkhead-spin", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, SIZE as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let page = Self::map_at(&file, 0, MapFlags::SHARED)?;
        Ok((file, page))
    }

    /// Maps one where kernels of every driver reach it; it stays mapped.
    pub fn map(file: impl AsFd) -> io::Result<Self> {
        Self::map_at(file, plan::HOST_BASE as usize, MapFlags::SHARED | MapFlags::FIXED_NOREPLACE)
    }

    fn map_at(file: impl AsFd, address: usize, flags: MapFlags) -> io::Result<Self> {
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let address = std::ptr::without_provenance_mut(address);
        // SAFETY: a new mapping, in place of none.
        let start = unsafe { rustix::mm::mmap(address, SIZE, prot, flags, file, 0)? };
        NonNull::new(start.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn words(&self) -> &Words {
        // SAFETY: mapped for ever, aligned to a page, and any bytes are valid atomics.
        unsafe { self.0.as_ref() }
    }

    /// How often the kernel has gone round.
    pub fn rounds(&self) -> u64 {
        self.words().rounds.load(Ordering::Relaxed)
    }

    /// Has the kernel end.
    pub fn end(&self) {
        self.words().end.store(1, Ordering::Relaxed);
    }
}

/// A kernel that runs.
pub struct Spinning<'a> {
    driver: &'a Driver,
}

fn check(call: &str, code: u32) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{call} answers {code} ({})", cuda_abi::error::name(code))) }
}

/// Starts the kernel on the first device, with so many blocks of so many threads.
pub fn spin<'a>(driver: &'a Driver, page: &Page, blocks: u32, threads: u32) -> Result<Spinning<'a>, String> {
    let image = CString::new(KERNEL).map_err(|error| error.to_string())?;
    let (mut context, mut module, mut function, mut address) = (null_mut(), null_mut(), null_mut(), 0);
    let host: *mut c_void = page.0.as_ptr().cast();
    // SAFETY: outputs are locals; the page stays mapped; the kernel has this parameter, which lives across the launch.
    unsafe {
        check("cuInit", (driver.cuInit)(0))?;
        check("cuDevicePrimaryCtxRetain", (driver.cuDevicePrimaryCtxRetain)(&mut context, 0))?;
        check("cuCtxSetCurrent", (driver.cuCtxSetCurrent)(context))?;
        check("cuMemHostRegister", (driver.cuMemHostRegister_v2)(host, SIZE, PORTABLE_AND_MAPPED))?;
        let found = (driver.cuMemHostGetDevicePointer_v2)(&mut address, host, 0);
        check("cuMemHostGetDevicePointer", found)?;
        check("cuModuleLoadData", (driver.cuModuleLoadData)(&mut module, image.as_ptr().cast()))?;
        let name = c"spin".as_ptr();
        check("cuModuleGetFunction", (driver.cuModuleGetFunction)(&mut function, module, name))?;
        let mut parameters: [*mut c_void; 1] = [(&raw mut address).cast::<CUdeviceptr>().cast()];
        let launched = (driver.cuLaunchKernel)(
            function,
            blocks,
            1,
            1,
            threads,
            1,
            1,
            0,
            null_mut(),
            parameters.as_mut_ptr(),
            null_mut(),
        );
        check("cuLaunchKernel", launched)?;
    }
    Ok(Spinning { driver })
}

impl Spinning<'_> {
    /// Waits for its end.
    pub fn wait(self) -> Result<(), String> {
        // SAFETY: waits for work of the current context.
        check("cuCtxSynchronize", unsafe { (self.driver.cuCtxSynchronize)() })
    }
}
