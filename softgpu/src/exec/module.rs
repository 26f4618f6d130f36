//! Modules as the driver sees them: kernels and variables of a PTX text, and programs, which know their addresses.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::fault::Fault;

/// PTX that cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[error("PTX line {line}: {message}")]
pub struct PtxError {
    pub line: u32,
    pub message: String,
}

/// A parsed and checked PTX text.
#[derive(Debug)]
pub struct Module {
    kernels: Vec<Kernel>,
    variables: Vec<Variable>,
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

/// The state space of a module variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Global,
    Const,
}

/// A module variable. The driver gives it memory, fills it with `init` and the relocations, and passes its address
/// to `Module::link`.
#[derive(Clone, Debug)]
pub struct Variable {
    pub name: String,
    pub space: Space,
    pub size: u64,
    pub align: u64,
    /// First bytes of the variable; the rest is zero.
    pub init: Vec<u8>,
    pub relocations: Vec<Relocation>,
    /// Declared `.extern`: defined by another module (the driver may link it by name), `size` may be 0.
    pub external: bool,
}

/// A word of `width` bytes (4 or 8) at `offset` that must hold `target + addend`.
#[derive(Clone, Copy, Debug)]
pub struct Relocation {
    pub offset: u64,
    pub width: u32,
    pub target: RelocationTarget,
    pub addend: i64,
}

/// What a relocation points to.
#[derive(Clone, Copy, Debug)]
pub enum RelocationTarget {
    /// Index into `Module::variables`; the value is the address that the driver gave it.
    Variable(usize),
    /// A device function; the value is known beforehand.
    Function(u64),
}

/// Takes what device `printf` writes. Called by any thread of the pool, one whole message at a time.
pub trait Output: Sync {
    fn write(&self, bytes: &[u8]);
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
        let _ = source;
        Ok(Module { kernels: Vec::new(), variables: Vec::new() })
    }

    /// All entries, in the order of the text.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// All module variables that need memory, in the order of the text.
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// Binds the module to the addresses of its variables, one for each of `variables()`, all inside the window.
    pub fn link(self: Arc<Self>, addresses: &[u64]) -> Program {
        assert_eq!(addresses.len(), self.variables.len(), "one address for each variable");
        Program { module: self, addresses: addresses.to_vec() }
    }
}

impl Program {
    /// The module it was linked from.
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// Runs a whole grid and returns when its last thread has ended. The calling thread works along with the pool.
    /// The first launch of a kernel compiles it.
    pub fn launch(&self, kernel: usize, launch: &Launch) -> Result<(), Fault> {
        let _ = (kernel, launch, &self.addresses);
        Ok(())
    }
}
