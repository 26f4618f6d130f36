//! Modules as the driver sees them: kernels and variables of a PTX text, and programs, which know their addresses.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use ptx_passes::ir::{self, RelocationTarget, Variable};
use ptx_passes::reach::{Reach, reach};

use super::cache;
use super::code::Compiled;
use super::compile::{compile, processor};
use super::fault::{Fault, FaultKind};
use super::grid::Grid;
use super::sanitize::{self, Check, Checks, Finding};
use super::{marks, pool, signal, ticker, window};

/// PTX that cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[error("PTX line {line}: {message}")]
pub struct PtxError {
    pub line: u32,
    pub message: String,
}

/// A parsed and checked PTX text. Code is made at the first launch of a kernel, and shared by all programs.
pub struct Module {
    ir: ir::Module,
    kernels: Vec<Kernel>,
    entries: Vec<Entry>,
    /// What the text is called on disk.
    key: Option<cache::Key>,
    threads: Threads,
    /// Whether its kernels look whose memory they touch, to the byte.
    checked: bool,
    /// What the sanitizer looks for in its kernels.
    checks: Checks,
}

/// `1`: all kernels are checked to the byte; `0`: none; `memory` among others: all. By default those are checked whose PTX has line information:
/// compiling with `-lineinfo` or `-G` means debugging.
fn is_checked(ir: &ir::Module) -> bool {
    let wanted = match std::env::var(cuda_abi::env_vars::SOFT_CHECK).as_deref() {
        Ok("0") => false,
        Ok("1") => true,
        _ => !ir.locations.is_empty() || Checks::of_process().has(Check::Memory),
    };
    wanted && marks::origin().is_some()
}

/// Set to anything: threads that wait for each other always have fibers. For tests that compare.
const FIBERS: &str = "SOFTGPU_FIBERS";

/// How the threads of a block are switched where they wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// One fiber runs all of them, where that is possible.
    Interleaved,
    /// Each has a fiber of its own. Slower, with the same results: there to compare with.
    OnFibers,
}

struct Entry {
    reach: Reach,
    code: OnceLock<Result<Compiled, String>>,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("kernels", &self.kernels).finish_non_exhaustive()
    }
}

/// An `.entry` of a module.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub name: String,
    pub params: Vec<Param>,
    /// Size of the parameter buffer that `Launch::params` must have.
    pub param_bytes: u32,
    pub static_shared: u32,
    /// Local memory of a thread, without that of functions that call themselves.
    pub local_bytes: u32,
    /// Most threads in a block (`.maxntid`, else 1024).
    pub max_threads: u32,
    /// `.reqntid`, when the kernel insists on one block shape.
    pub required_block: Option<[u32; 3]>,
    /// A plausible number of registers per thread (PTX has no real one).
    pub registers: u32,
    /// PTX ISA version as CUDA writes it: 10 × major + minor.
    pub ptx_version: u32,
    /// Target architecture as CUDA writes it: 75 for `sm_75`.
    pub target: u32,
    /// Set when the kernel uses something that this device lacks; launching it is a `FaultKind::Unsupported`.
    pub unsupported: Option<String>,
}

/// Where a parameter lies in the parameter buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    pub offset: u32,
    pub size: u32,
    pub align: u32,
}

/// Takes what device `printf` writes. Called by any thread of the pool, one whole message at a time.
pub trait Output: Sync {
    fn write(&self, bytes: &[u8]);

    /// Takes what the sanitizer has found, at the end of a grid.
    fn finding(&self, _finding: Finding) {}
}

/// Where device `malloc` gets its memory. Called by any thread of the pool.
pub trait Heap: Sync {
    /// The address of so many bytes, aligned to 16, or nothing.
    fn take(&self, bytes: u64) -> Option<u64>;
    /// Gives back what `take` gave; false when it did not.
    fn give(&self, address: u64) -> bool;
}

/// One grid.
pub struct Launch<'a> {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
    pub params: &'a [u8],
    /// Set by anyone to end the grid with `FaultKind::Stopped`; noticed within milliseconds, even in endless loops.
    pub stop: &'a AtomicBool,
    pub output: &'a dyn Output,
    /// Set for cooperative grids, whose blocks all run at once: 16 zeroed bytes at which they meet.
    pub workspace: Option<u64>,
    /// Without one, device `malloc` always answers NULL.
    pub heap: Option<&'a dyn Heap>,
}

/// A module whose variables have addresses.
pub struct Program {
    module: Arc<Module>,
    addresses: Vec<u64>,
}

impl Module {
    /// Parses and checks a PTX text. A kernel that is well formed but uses something that is missing here does not
    /// fail the module; see `Kernel::unsupported`.
    pub fn from_ptx(source: &str) -> Result<Module, PtxError> {
        let mut tree = ptx::parse(source).map_err(|error| PtxError { line: error.line, message: error.message })?;
        ptx::library::complete(&mut tree);
        let ir = ptx_passes::build(&tree).map_err(|(line, message)| PtxError { line, message })?;
        let mut kernels = Vec::new();
        let mut entries = Vec::new();
        for (index, function) in ir.functions.iter().enumerate().filter(|(_, function)| function.entry) {
            let reach = reach(&ir, index);
            kernels.push(kernel(&ir, function, &reach));
            entries.push(Entry { reach, code: OnceLock::new() });
        }
        let (key, threads, checked) = (cache::text_key(source), Threads::Interleaved, is_checked(&ir));
        let module = Module { ir, kernels, entries, key, threads, checked, checks: Checks::NONE };
        Ok(module.sanitized(Checks::of_process()).or_fibers())
    }

    fn or_fibers(self) -> Module {
        if std::env::var_os(FIBERS).is_some() { self.with_fibers() } else { self }
    }

    /// The same module, whose kernels are checked to the byte, or not.
    pub fn with_checks(self, checked: bool) -> Module {
        Module { checked: checked && marks::origin().is_some(), ..self }
    }

    /// The same module, in whose kernels the sanitizer looks for something. Their threads have fibers.
    pub fn sanitized(self, checks: Checks) -> Module {
        let threads = if checks.instrument() { Threads::OnFibers } else { self.threads };
        let checked = self.checked || checks.has(Check::Memory) && marks::origin().is_some();
        Module { checks, threads, checked, ..self }
    }

    /// The same module, whose threads have fibers. Its code is not kept on disk.
    pub fn with_fibers(self) -> Module {
        Module { key: None, threads: Threads::OnFibers, ..self }
    }

    /// PTX ISA version as CUDA writes it: 10 × major + minor.
    pub fn version(&self) -> u32 {
        self.ir.version
    }

    /// All entries, in the order of the text.
    #[inline]
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// All module variables that need memory, in the order of the text.
    #[inline]
    pub fn variables(&self) -> &[Variable] {
        &self.ir.variables
    }

    /// The initial bytes of variable number `index` where the variables lie at `addresses`; the rest of it is zero.
    pub fn initial_bytes(&self, index: usize, addresses: &[u64]) -> Vec<u8> {
        let variable = &self.ir.variables[index];
        let mut bytes = variable.init.clone();
        for relocation in &variable.relocations {
            let target = match relocation.target {
                RelocationTarget::Variable(other) => addresses[other],
                RelocationTarget::Function(index) => window::function_address(index),
            };
            let value = target.wrapping_add_signed(relocation.addend).to_le_bytes();
            let start = relocation.offset as usize;
            let end = start + relocation.width as usize;
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[start..end].copy_from_slice(&value[..end - start]);
        }
        bytes
    }

    /// Binds the module to the addresses of its variables, one for each of `variables()`, all inside the window.
    pub fn link(self: Arc<Self>, addresses: &[u64]) -> Program {
        assert_eq!(addresses.len(), self.ir.variables.len(), "one address for each variable");
        Program { module: self, addresses: addresses.to_vec() }
    }

    fn code(&self, kernel: usize) -> Result<&Compiled, String> {
        let entry = &self.entries[kernel];
        let made = entry.code.get_or_init(|| {
            let make = || compile(&self.ir, &entry.reach, self.threads, self.checked, self.checks);
            let mut variant = format!("{} checked={}", processor(), self.checked);
            if self.checks.instrument() {
                variant += &format!(" checks={:#x}", self.checks.bits());
            }
            let image = cache::or_compile(self.key.as_ref(), kernel, &variant, make);
            let image = image.map_err(|error| error.to_string())?;
            image.place().map_err(|error| format!("cannot allocate memory for code: {error}"))
        });
        made.as_ref().map_err(Clone::clone)
    }
}

fn kernel(ir: &ir::Module, function: &ir::Function, reach: &Reach) -> Kernel {
    let slots = function.signature.params.iter().zip(&function.param_offsets);
    let threads = function.required_threads.or(function.max_threads);
    let threads = threads.map(|[x, y, z]| x.saturating_mul(y).saturating_mul(z));
    let registers = function.body.as_ref().map_or(0, |body| body.registers.len());
    Kernel {
        name: function.name.clone(),
        params: slots.map(|(slot, offset)| Param { offset: *offset, size: slot.size, align: slot.align }).collect(),
        param_bytes: function.param_bytes,
        static_shared: reach.static_shared,
        local_bytes: function.body.as_ref().map_or(0, |body| body.local_bytes),
        max_threads: threads.unwrap_or(MAX_BLOCK).clamp(1, MAX_BLOCK),
        required_block: function.required_threads,
        registers: registers.clamp(8, 64) as u32,
        ptx_version: ir.version,
        target: ir.target,
        unsupported: reach.unsupported.clone(),
    }
}

/// Most threads in a block.
const MAX_BLOCK: u32 = 1024;
/// Most shared memory in a block, static and dynamic together.
const MAX_SHARED: u32 = 228 << 10;

impl Program {
    /// The module it was linked from.
    #[inline]
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// Compiles a kernel now instead of at its first launch.
    pub fn compile(&self, kernel: usize) -> Result<(), Fault> {
        let about = self.supported(kernel)?;
        self.module.code(kernel).map_err(|m| refused(&about.name, FaultKind::Unsupported, m))?;
        Ok(())
    }

    fn supported(&self, kernel: usize) -> Result<&Kernel, Fault> {
        let Some(about) = self.module.kernels.get(kernel) else {
            return Err(refused("", FaultKind::InvalidLaunch, format!("there is no kernel with index {kernel}")));
        };
        match &about.unsupported {
            Some(reason) => Err(refused(&about.name, FaultKind::Unsupported, reason.clone())),
            None => Ok(about),
        }
    }

    /// Runs a whole grid and returns when its last thread has ended. The calling thread works along with the pool.
    /// The first launch of a kernel compiles it.
    pub fn launch(&self, kernel: usize, launch: &Launch) -> Result<(), Fault> {
        let about = self.supported(kernel)?;
        let reach = &self.module.entries[kernel].reach;
        let shared = check(about, reach, launch).map_err(|m| refused(&about.name, FaultKind::InvalidLaunch, m))?;
        let code = self.module.code(kernel).map_err(|m| refused(&about.name, FaultKind::Unsupported, m))?;
        signal::install();
        let _ticking = ticker::tick();
        let marks = if self.module.checked { marks::origin().unwrap_or(0) } else { 0 };
        let checks = (marks, self.module.checks);
        let grid = Grid::new(launch, code, &self.addresses, &about.name, shared, reach.local_bytes, checks);
        pool::run(&grid);
        sanitize::report(&grid, &self.module.ir);
        grid.result().map_err(|mut fault| {
            let source = fault.line.and_then(|line| self.module.ir.source(line));
            fault.source = source.map(Box::new);
            fault
        })
    }
}

fn refused(kernel: &str, kind: FaultKind, message: String) -> Fault {
    Fault {
        kind,
        kernel: kernel.to_owned(),
        block: [0; 3],
        thread: [0; 3],
        address: None,
        message,
        line: None,
        source: None,
    }
}

/// Checks a launch; answers the shared memory that a block needs. Compiled code relies on all of this.
fn check(kernel: &Kernel, reach: &Reach, launch: &Launch) -> Result<u32, String> {
    let threads = launch.block.iter().try_fold(1u32, |product, n| product.checked_mul(*n)).unwrap_or(u32::MAX);
    if threads == 0 || threads > kernel.max_threads {
        return Err(format!("{threads} threads per block, the limit is {}", kernel.max_threads));
    }
    if kernel.required_block.is_some_and(|required| required != launch.block) {
        return Err(format!("block size {:?} is not the one that the kernel requires", launch.block));
    }
    let [x, y, z] = launch.grid;
    if x == 0 || y == 0 || z == 0 || x > i32::MAX as u32 || y > 65535 || z > 65535 {
        return Err(format!("invalid grid size {:?}", launch.grid));
    }
    if launch.params.len() < kernel.param_bytes as usize {
        return Err(format!("{} bytes of parameters, {} required", launch.params.len(), kernel.param_bytes));
    }
    let shared = if launch.dynamic_shared == 0 {
        Some(reach.static_shared)
    } else {
        reach.dynamic_offset.checked_add(launch.dynamic_shared)
    };
    match shared {
        // The end is exact where nothing lies behind it, so that what goes a little beyond is caught.
        Some(shared) if shared <= MAX_SHARED && reach.reserved_shared == 0 => Ok(shared),
        Some(shared) if shared <= MAX_SHARED => Ok(shared.next_multiple_of(16) + reach.reserved_shared),
        _ => Err("too much shared memory".into()),
    }
}
