//! What each process uses of the GPUs, asked of NVML by a process that does nothing else.
//!
//! The broker loads no driver, and workers are not believed: so this one looks from outside, as a user that has no rights
//! over anything, and sends all it sees in one message, once a second. It ends when nobody reads it any more.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use control::meter::{MAX_READINGS, Reading, send};
use control::mig::Instance;
use libloading::Library;

mod watch;

use watch::{Events, FieldValue, Watch};

const EVERY: Duration = Duration::from_secs(1);
const MAX_GPUS: u32 = 64;
/// NVML does not know it.
const NOT_AVAILABLE: u64 = u64::MAX;

#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    #[error("cannot load NVML: {0}")]
    Library(#[from] libloading::Error),
    #[error("cannot initialize NVML (error {0})")]
    Init(u32),
}

/// Sends readings for as long as somebody takes them.
pub fn run(library: &Path, socket: &OwnedFd) -> Result<(), MeterError> {
    let nvml = Nvml::load(library)?;
    let mut watch = Watch::new(&nvml);
    loop {
        // First, so that a message that is too long loses processes and not this.
        let mut readings = watch.conditions();
        readings.extend(nvml.readings());
        if send(socket, &readings).is_err() {
            return Ok(());
        }
        watch.wait(EVERY);
    }
}

/// `nvmlMemory_v2_t`
#[repr(C)]
struct MemoryInfo {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlProcessInfo_t`, as versions 2 and 3 of the function fill it.
#[derive(Clone, Copy)]
#[repr(C)]
struct ProcessInfo {
    pid: u32,
    padding: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

type Init = unsafe extern "C" fn() -> u32;
type GetCount = unsafe extern "C" fn(*mut u32) -> u32;
type GetHandle = unsafe extern "C" fn(u32, *mut *mut c_void) -> u32;
type GetNumber = unsafe extern "C" fn(*mut c_void, *mut u32) -> u32;
type GetMemory = unsafe extern "C" fn(*mut c_void, *mut MemoryInfo) -> u32;
type GetFields = unsafe extern "C" fn(*mut c_void, i32, *mut FieldValue) -> u32;
type GetProcesses = unsafe extern "C" fn(*mut c_void, *mut u32, *mut ProcessInfo) -> u32;

struct Nvml {
    count: GetCount,
    handle: GetHandle,
    minor: GetNumber,
    /// Older drivers do not have it.
    memory: Option<GetMemory>,
    processes: GetProcesses,
    /// Older drivers do not have it.
    fields: Option<GetFields>,
    events: Option<Events>,
    _library: Library,
}

impl Nvml {
    fn load(path: &Path) -> Result<Self, MeterError> {
        // SAFETY: NVIDIA's library, which the operator's driver brought; its functions have these types.
        unsafe {
            let library = Library::new(path)?;
            let init = *library.get::<Init>(b"nvmlInit_v2\0")?;
            let count = *library.get::<GetCount>(b"nvmlDeviceGetCount_v2\0")?;
            let handle = *library.get::<GetHandle>(b"nvmlDeviceGetHandleByIndex_v2\0")?;
            let minor = *library.get::<GetNumber>(b"nvmlDeviceGetMinorNumber\0")?;
            let memory = library.get::<GetMemory>(b"nvmlDeviceGetMemoryInfo_v2\0").ok().map(|found| *found);
            let newest = library.get::<GetProcesses>(b"nvmlDeviceGetComputeRunningProcesses_v3\0");
            let processes =
                *newest.or_else(|_| library.get::<GetProcesses>(b"nvmlDeviceGetComputeRunningProcesses_v2\0"))?;
            let fields = library.get::<GetFields>(b"nvmlDeviceGetFieldValues\0").ok().map(|found| *found);
            let events = Events::load(&library);
            match init() {
                0 => Ok(Self { count, handle, minor, memory, processes, fields, events, _library: library }),
                error => Err(MeterError::Init(error)),
            }
        }
    }

    fn readings(&self) -> Vec<Reading> {
        let mut sums: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        let mut gpus = 0;
        // SAFETY: the output is a local.
        if unsafe { (self.count)(&mut gpus) } != 0 {
            return Vec::new();
        }
        let empty = ProcessInfo { pid: 0, padding: 0, used: 0, gpu_instance: 0, compute_instance: 0 };
        let mut infos = vec![empty; MAX_READINGS];
        for gpu in 0..gpus.min(MAX_GPUS) {
            let (mut handle, mut count, mut minor) = (std::ptr::null_mut(), MAX_READINGS as u32, 0);
            // SAFETY: outputs are locals; the array has as many places as are said.
            let named = unsafe { (self.handle)(gpu, &mut handle) == 0 && (self.minor)(handle, &mut minor) == 0 };
            let before = self.used(handle).filter(|_| named);
            // SAFETY: as above.
            let told = named && unsafe { (self.processes)(handle, &mut count, infos.as_mut_ptr()) } == 0;
            if !told {
                continue;
            }
            for info in infos.iter().take(count as usize).filter(|info| info.used != NOT_AVAILABLE) {
                let sum = sums.entry((info.pid, info.gpu(minor))).or_default();
                *sum = sum.saturating_add(info.used);
            }
            // What somebody takes or gives back meanwhile is in neither picture.
            if let (Some(before), Some(after)) = (before, self.used(handle)) {
                let used = before.min(after);
                // Before all processes, whose numbers are higher: it is told however many there are.
                sums.insert((0, minor), used);
            }
        }
        sums.into_iter().map(|((pid, gpu), bytes)| Reading { pid, gpu, bytes }).collect()
    }

    /// What is used of a GPU, without what the driver keeps for itself.
    fn used(&self, handle: *mut c_void) -> Option<u64> {
        let version = u32::try_from(size_of::<MemoryInfo>()).ok()? | 2 << 24;
        let mut memory = MemoryInfo { version, total: 0, reserved: 0, free: 0, used: 0 };
        // SAFETY: the struct is as its version says.
        (unsafe { (self.memory?)(handle, &mut memory) } == 0).then_some(memory.used)
    }
}

impl ProcessInfo {
    /// The number of what it uses: the GPU, or the instance of it.
    fn gpu(&self, minor: u32) -> u32 {
        let Self { gpu_instance, compute_instance, .. } = *self;
        let instance = Instance { gpu: minor, gpu_instance, compute_instance };
        // A process on a whole GPU has the highest numbers there are, which no instance has.
        instance.number().unwrap_or(minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library with two GPUs, the second of them cut, on which the same process uses 5 and 7 bytes, and another an
    /// unknown amount.
    const FAKE: &str = r#"
        typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } info;
        int nvmlInit_v2(void) { return 0; }
        int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
        int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(unsigned long)(i + 1); return 0; }
        int nvmlDeviceGetMinorNumber(void *h, unsigned *n) { *n = h == (void *)1 ? 3 : 1; return 0; }
        typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory;
        int nvmlDeviceGetMemoryInfo_v2(void *h, memory *m) {
            if (m->version != (sizeof(memory) | 2 << 24) || h == (void *)2) return 1;
            m->used = 6;
            return 0;
        }
        int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, info *p) {
            if (*n < 2) return 7;
            *n = 2;
            p[0] = (info){ 42, h == (void *)1 ? 5 : 7, h == (void *)1 ? ~0u : 2, h == (void *)1 ? ~0u : 0 };
            p[1] = (info){ 43, ~0ull, ~0u, ~0u };
            return 0;
        }"#;

    #[test]
    fn what_a_process_uses_is_told_of_each_gpu() {
        let directory = testkit::directory();
        let library = directory.shared_library("libnvidia-ml.so.1", FAKE);
        let readings = Nvml::load(&library).unwrap().readings();
        let instance = Instance { gpu: 1, gpu_instance: 2, compute_instance: 0 }.number().unwrap();
        let expected =
            [(0, 3, 6), (42, 3, 5), (42, instance, 7)].map(|(pid, gpu, bytes)| Reading { pid, gpu, bytes });
        assert_eq!(readings, expected);
        assert!(matches!(Nvml::load(Path::new("/nowhere.so")), Err(MeterError::Library(_))));
    }
}
