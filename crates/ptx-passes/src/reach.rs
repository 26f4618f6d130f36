//! What a kernel can get to: functions, shared variables, local memory.

use super::ir::{Callee, Module, Op, RelocationTarget, Special, Symbol, Value};

/// Local memory that recursive functions get on top of what one pass through all functions needs.
const RECURSION_LOCAL: u64 = 64 << 10;

/// Shared memory that the system keeps for itself in each block, where a kernel asks for it.
pub const RESERVED_SHARED: u32 = 1024;

/// Everything that has to be compiled and laid out for a kernel.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// Functions, the kernel first.
    pub functions: Vec<usize>,
    /// Shared variables with their offsets.
    pub shared: Vec<(usize, u32)>,
    /// Size of the shared variables whose size is known.
    pub static_shared: u32,
    /// Where dynamic shared memory starts.
    pub dynamic_offset: u32,
    /// What is added behind all of it for the system itself.
    pub reserved_shared: u32,
    /// Local memory of a thread.
    pub local_bytes: u64,
    /// First thing on the way that cannot be done.
    pub unsupported: Option<String>,
}

/// Walks all that `kernel` may call, directly or through pointers.
pub fn reach(module: &Module, kernel: usize) -> Reach {
    let mut out = Reach { functions: vec![kernel], ..Reach::default() };
    let mut shared = vec![false; module.shared.len()];
    let mut seen = vec![false; module.functions.len()];
    seen[kernel] = true;
    let mut indirect = false;
    let mut at = 0;
    while at < out.functions.len() {
        let function = &module.functions[out.functions[at]];
        at += 1;
        let body = match &function.body {
            Ok(body) => body,
            Err(message) => {
                out.unsupported.get_or_insert_with(|| message.clone());
                continue;
            }
        };
        let mut found = Vec::new();
        for op in body.blocks.iter().flat_map(|block| &block.insts).map(|inst| &inst.op) {
            op.reads(&mut |value| match value {
                Value::Symbol(Symbol::Function(index), _) => found.push(index),
                Value::Symbol(Symbol::Shared(index), _) => shared[index] = true,
                _ => {}
            });
            if let Op::Compute { src, .. } = op
                && src.iter().any(|value| matches!(value, Value::Special(Special::ReservedShared(_))))
            {
                out.reserved_shared = RESERVED_SHARED;
            }
            if let Op::Call { callee, .. } = op {
                match callee {
                    Callee::Direct(index) => found.push(*index),
                    Callee::Indirect(..) => indirect = true,
                    Callee::Builtin(_) => {}
                }
            }
        }
        // A pointer may come from a table in memory, so any function whose address is known there may be meant.
        if indirect {
            found.extend(addressed(module));
        }
        for index in found {
            if !std::mem::replace(&mut seen[index], true) {
                out.functions.push(index);
            }
        }
    }
    lay_out_shared(module, &shared, &mut out);
    lay_out_local(module, &mut out);
    out
}

fn addressed(module: &Module) -> Vec<usize> {
    let relocations = module.variables.iter().flat_map(|variable| &variable.relocations);
    let from_memory = relocations.filter_map(|relocation| match relocation.target {
        RelocationTarget::Function(index) => Some(index),
        RelocationTarget::Variable(_) => None,
    });
    from_memory.filter(|index| !module.functions[*index].entry).collect()
}

fn lay_out_shared(module: &Module, used: &[bool], out: &mut Reach) {
    let mut at = 0u32;
    let mut dynamic_align = 16;
    for (index, variable) in module.shared.iter().enumerate().filter(|(index, _)| used[*index]) {
        if variable.dynamic {
            dynamic_align = dynamic_align.max(variable.align);
            continue;
        }
        at = at.next_multiple_of(variable.align.max(1));
        out.shared.push((index, at));
        at = at.saturating_add(variable.size);
    }
    out.static_shared = at;
    out.dynamic_offset = at.next_multiple_of(dynamic_align);
    for (index, _) in module.shared.iter().enumerate().filter(|(index, v)| used[*index] && v.dynamic) {
        out.shared.push((index, out.dynamic_offset));
    }
    if at > 228 << 10 {
        out.unsupported.get_or_insert_with(|| "too much shared memory".into());
    }
}

fn lay_out_local(module: &Module, out: &mut Reach) {
    let frames = out.functions.iter().filter_map(|index| module.functions[*index].body.as_ref().ok());
    let frames: Vec<u64> = frames.map(|body| u64::from(body.local_bytes)).collect();
    // With one frame its end is exact, so that what goes a little beyond is caught.
    let total = if let [one] = frames[..] { one } else { frames.iter().map(|size| size.next_multiple_of(16)).sum() };
    let callees = out.functions[1..].iter().filter_map(|index| module.functions[*index].body.as_ref().ok());
    let nested = callees.map(|body| body.local_bytes).max().unwrap_or(0);
    out.local_bytes = total + if nested > 0 { RECURSION_LOCAL } else { 0 };
    if out.local_bytes > 1 << 20 {
        out.unsupported.get_or_insert_with(|| "too much local memory".into());
    }
}
