//! Functions and modules.

use ptx::ast::Location;

use super::*;

/// How many calls within each other are followed to the outermost.
const MAX_INLINED: usize = 64;

/// An instruction that does not change the flow.
#[derive(Clone, Debug, PartialEq)]
pub struct Inst {
    pub line: u32,
    pub guard: Option<Guard>,
    pub op: Op,
}

/// How a basic block ends.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Jump(usize),
    Branch {
        guard: Guard,
        then: usize,
        otherwise: usize,
    },
    /// Outside of the table is a fault.
    Table {
        index: Value,
        targets: Vec<usize>,
    },
    Return,
    Exit,
}

impl End {
    /// Whether block number `index`, ending so, may lead to itself or an earlier one. Every loop has such a block.
    pub fn goes_back(&self, index: usize) -> bool {
        self.back_to(index).is_some()
    }

    /// The first of the blocks to which it goes back.
    pub fn back_to(&self, index: usize) -> Option<usize> {
        let first = match self {
            End::Jump(target) => Some(*target),
            End::Branch { then, otherwise, .. } => Some(*then.min(otherwise)),
            End::Table { targets, .. } => targets.iter().min().copied(),
            End::Return | End::Exit => None,
        };
        first.filter(|target| *target <= index)
    }
}

/// A basic block.
#[derive(Clone, Debug)]
pub struct Block {
    pub insts: Vec<Inst>,
    pub end: End,
}

/// A function body. Block 0 is where it starts.
#[derive(Clone, Debug)]
pub struct Body {
    pub registers: Vec<Type>,
    pub blocks: Vec<Block>,
    pub slots: Vec<Slot>,
    pub prototypes: Vec<Signature>,
    /// Size of the frame in local memory.
    pub local_bytes: u32,
}

/// An `.entry` or `.func`.
#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    pub entry: bool,
    pub signature: Signature,
    /// Offset of each parameter in a kernel's parameter buffer.
    pub param_offsets: Vec<u32>,
    pub param_bytes: u32,
    pub max_threads: Option<[u32; 3]>,
    pub required_threads: Option<[u32; 3]>,
    pub body: Result<Body, String>,
}

/// A shared variable; `size` 0 and `dynamic` for the extern array.
#[derive(Clone, Debug)]
pub struct SharedVariable {
    pub name: String,
    pub size: u32,
    pub align: u32,
    pub dynamic: bool,
}

/// A whole module, all names resolved.
#[derive(Clone, Debug, Default)]
pub struct Module {
    pub version: u32,
    pub target: u32,
    pub functions: Vec<Function>,
    pub variables: Vec<Variable>,
    pub shared: Vec<SharedVariable>,
    /// Source files by number.
    pub files: Vec<(u32, String)>,
    /// Where the text says that it comes from, in the order of the text.
    pub locations: Vec<Location>,
}

impl Module {
    /// Where a line of the text comes from, where the text says so.
    pub fn source(&self, ptx: u32) -> Option<Source> {
        let at = self.locations.partition_point(|location| location.ptx <= ptx);
        let location = self.locations[..at].last()?;
        let (file, line) = self.place((location.file, location.line))?;
        // The caller may itself have been inlined: what counts is the outermost.
        let mut outermost = location.caller;
        for _ in 0..MAX_INLINED {
            let Some(caller) = outermost else { break };
            let same = |location: &&Location| (location.file, location.line) == caller;
            let Some(next) = self.locations[..at].iter().rev().find(same).and_then(|location| location.caller) else {
                break;
            };
            outermost = Some(next);
        }
        Some(Source { file, line, caller: outermost.and_then(|caller| self.place(caller)) })
    }

    fn place(&self, (file, line): (u32, u32)) -> Option<(String, u32)> {
        let (_, name) = self.files.iter().find(|(number, _)| *number == file)?;
        Some((name.clone(), line))
    }
}
