//! A device with memory and nothing else: what tests of kernels need.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ptx_exec::window;
use ptx_exec::{Checks, Fault, Finding, Launch, Module, Output, Program};

static NEXT: AtomicU64 = AtomicU64::new(window::BASE + (1 << 40));

/// Zeroed memory in the window, with unmapped pages behind it. Never freed.
pub fn alloc(bytes: u64) -> u64 {
    let size = bytes.max(1).next_multiple_of(4096);
    let address = NEXT.fetch_add(size + (1 << 20), Ordering::Relaxed);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address that nobody else uses.
    let got =
        unsafe { libc::mmap(address as *mut _, size as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_eq!(got as u64, address, "mmap");
    address
}

/// Memory filled with `values`.
pub fn upload<T: Copy>(values: &[T]) -> u64 {
    let address = alloc(size_of_val(values) as u64);
    // SAFETY: just allocated, large enough.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), address as *mut T, values.len()) };
    address
}

/// What lies at `address`.
pub fn download<T: Copy>(address: u64, count: usize) -> Vec<T> {
    // SAFETY: tests ask only for what they have uploaded.
    unsafe { std::slice::from_raw_parts(address as *const T, count).to_vec() }
}

/// Kernel parameters, aligned as the compiler does it.
#[derive(Default)]
pub struct Params(pub Vec<u8>);

impl Params {
    pub fn new() -> Params {
        Params::default()
    }

    pub fn add<T: Copy>(mut self, value: T) -> Params {
        self.0.resize(self.0.len().next_multiple_of(align_of::<T>()), 0);
        let start = self.0.len();
        self.0.resize(start + size_of::<T>(), 0);
        // SAFETY: the bytes were just added.
        unsafe { self.0[start..].as_mut_ptr().cast::<T>().write_unaligned(value) };
        self
    }
}

/// Collects what kernels print, and what the sanitizer finds.
#[derive(Default)]
pub struct Printed(pub Mutex<Vec<u8>>, pub Mutex<Vec<Finding>>);

impl Output for Printed {
    fn write(&self, bytes: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(bytes);
    }

    fn finding(&self, finding: Finding) {
        self.1.lock().unwrap().push(finding);
    }
}

/// A loaded module.
pub struct Device {
    pub program: Program,
    pub printed: Printed,
    pub stop: AtomicBool,
    pub addresses: Vec<u64>,
}

impl Device {
    pub fn load(source: &str) -> Device {
        Device::of(Module::from_ptx(source).unwrap_or_else(|error| panic!("{error}")))
    }

    /// The same, where each thread has a fiber.
    pub fn with_fibers(source: &str) -> Device {
        Device::of(Module::from_ptx(source).unwrap_or_else(|error| panic!("{error}")).with_fibers())
    }

    /// The same, in which the sanitizer looks for something.
    pub fn sanitized(source: &str, checks: Checks) -> Device {
        Device::of(Module::from_ptx(source).unwrap_or_else(|error| panic!("{error}")).sanitized(checks))
    }

    fn of(module: Module) -> Device {
        let module = Arc::new(module);
        let addresses: Vec<u64> = module.variables().iter().map(|variable| alloc(variable.size)).collect();
        for (index, address) in addresses.iter().enumerate() {
            let bytes = module.initial_bytes(index, &addresses);
            // SAFETY: just allocated, large enough.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), *address as *mut u8, bytes.len()) };
        }
        let program = module.link(&addresses);
        Device { program, printed: Printed::default(), stop: AtomicBool::new(false), addresses }
    }

    /// The kernel whose name contains `name`.
    pub fn kernel(&self, name: &str) -> usize {
        let kernels = self.program.module().kernels();
        let found = kernels.iter().position(|kernel| kernel.name == name);
        found.or_else(|| kernels.iter().position(|kernel| kernel.name.contains(name))).expect("no such kernel")
    }

    pub fn launch(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        params: Params,
    ) -> Result<(), Fault> {
        let launch = Launch {
            grid,
            block,
            dynamic_shared: shared,
            params: &params.0,
            stop: &self.stop,
            output: &self.printed,
            heap: None,
            workspace: None,
        };
        self.program.launch(self.kernel(name), &launch)
    }

    /// A launch that must go well.
    pub fn run(&self, name: &str, grid: u32, block: u32, params: Params) {
        self.launch(name, [grid, 1, 1], [block, 1, 1], 0, params).unwrap_or_else(|fault| panic!("{fault}"));
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.printed.0.lock().unwrap().clone()).unwrap()
    }
}
