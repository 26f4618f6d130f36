//! Where a thread of a kernel may have to let others run, and what it keeps meanwhile.

use super::ir::{BarrierOp, Base, Block, Body, Callee, Inst, Module, Op, Reg, Space, Value};
use super::live;
use super::reach::Reach;

/// Most places to pause, registers kept at one, and registers kept at all of them: beyond, the code would be all saving.
const MAX_PAUSES: usize = 1500;
const MAX_KEPT: usize = 400;
const MAX_KEPT_IN_ALL: usize = 40_000;
/// Most local memory of a thread in its frame.
const MAX_LOCAL: u64 = 16 << 10;
/// The same where threads would pause for the cache's sake: most registers at any pause, and most local memory. With more a
/// pause would cost more than it wins.
const MAX_KEPT_TO_STRIDE: usize = 48;
const MAX_LOCAL_TO_STRIDE: u64 = 256;

/// How a kernel pauses, if its threads can be interleaved on one stack.
pub struct Pauses {
    /// Registers that are kept at each pause, in the order of the text.
    pub kept: Vec<Vec<Reg>>,
    /// Whether lanes of a warp do things together.
    pub warps: bool,
    /// By block: what a thread does where it jumps backwards.
    pub back_edges: Vec<BackEdge>,
}

/// What a thread does at the end of a block that may begin another iteration of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackEdge {
    /// It goes on with the next iteration.
    Continue,
    /// It may wait for what another one writes, and lets others run when it has waited for long.
    MayWait,
    /// It goes through memory, mostly in strides that leave to its neighbours what lies between: it lets them catch up
    /// every few iterations, while that is in the cache.
    Strides,
}

/// Whether a thread pauses at an instruction.
pub fn at(inst: &Inst) -> bool {
    matches!(inst.op, Op::Barrier { .. } | Op::Warp { .. } | Op::Sleep(_))
}

/// The pauses of a kernel. None when its threads need stacks of their own: where functions are called, some threads of
/// a block are counted, or a routine makes them wait.
pub fn of(module: &Module, reach: &Reach) -> Option<Pauses> {
    let [kernel] = reach.functions[..] else { return None };
    let body = module.functions[kernel].body.as_ref().ok()?;
    if reach.local_bytes > MAX_LOCAL {
        return None;
    }
    let insts = || body.blocks.iter().flat_map(|block| &block.insts);
    if !insts().all(|inst| possible(&inst.op)) {
        return None;
    }
    if body.blocks.iter().any(|block| pauses_in_a_call(&block.insts)) {
        return None;
    }
    let must = insts().any(at);
    let kept_at =
        |back_edges: &[BackEdge]| live::at_pauses(body, at, |index| back_edges[index] != BackEdge::Continue);
    let most_of = |kept: &[Vec<Reg>]| kept.iter().map(Vec::len).max().unwrap_or(0);
    let fits = |kept: &[Vec<Reg>], most: usize| {
        let all: usize = kept.iter().map(Vec::len).sum();
        kept.len() <= MAX_PAUSES && most_of(kept) <= most && all <= MAX_KEPT_IN_ALL
    };
    let mut back_edges = back_edges(body);
    let mut kept = kept_at(&back_edges);
    let strides = back_edges.contains(&BackEdge::Strides);
    if strides && (!fits(&kept, MAX_KEPT_TO_STRIDE) || reach.local_bytes > MAX_LOCAL_TO_STRIDE) {
        back_edges.fill(BackEdge::Continue);
        kept = kept_at(&back_edges);
    }
    if !must && !back_edges.contains(&BackEdge::Strides) || !fits(&kept, MAX_KEPT) {
        return None;
    }
    let warps = insts().any(|inst| matches!(inst.op, Op::Warp { .. }));
    Some(Pauses { kept, warps, back_edges })
}

/// What a thread does at the ends of blocks.
fn back_edges(body: &Body) -> Vec<BackEdge> {
    let read = registers_read(body);
    let waits = |op: &Op| match op {
        Op::Load { volatile, .. } => *volatile,
        Op::Atomic { dst: Some(dst), .. } => read[*dst as usize],
        _ => false,
    };
    let may_wait = body.blocks.iter().flat_map(|block| &block.insts).any(|inst| waits(&inst.op));
    // Up to each block: how many of them use memory, and in how many threads synchronise.
    let count = |is: &dyn Fn(&Inst) -> bool| -> Vec<usize> {
        let mut sum = 0;
        let add = |block: &Block| {
            sum += usize::from(block.insts.iter().any(is));
            sum
        };
        std::iter::once(0).chain(body.blocks.iter().map(add)).collect()
    };
    let (memory, barriers) = (count(&|inst| is_global(&inst.op)), count(&at));
    // Where threads synchronise in each iteration, neighbours are never far apart.
    let strides =
        |first: usize, last: usize| memory[last + 1] > memory[first] && barriers[last + 1] == barriers[first];
    let edge = |(index, block): (usize, &Block)| match block.end.back_to(index) {
        None => BackEdge::Continue,
        Some(_) if may_wait => BackEdge::MayWait,
        Some(first) if strides(first, index) => BackEdge::Strides,
        Some(_) => BackEdge::Continue,
    };
    let mut back_edges: Vec<BackEdge> = body.blocks.iter().enumerate().map(edge).collect();
    // One fiber for all threads: what made a fiber wait for another must not wait there for ever.
    if back_edges.contains(&BackEdge::Strides) {
        let others = back_edges.iter_mut().enumerate().filter(|(_, edge)| **edge == BackEdge::Continue);
        for (_, edge) in others.filter(|(index, _)| body.blocks[*index].end.goes_back(*index)) {
            *edge = BackEdge::MayWait;
        }
    }
    back_edges
}

fn is_global(op: &Op) -> bool {
    let (Op::Load { space, .. } | Op::Store { space, .. } | Op::Atomic { space, .. }) = op else { return false };
    matches!(space, Space::Global | Space::Generic)
}

fn possible(op: &Op) -> bool {
    match op {
        Op::Barrier { op: BarrierOp::Arrive, .. } | Op::Barrier { count: Some(_), .. } => false,
        Op::Barrier { id, .. } => matches!(id, Value::Bits(id) if *id < 16),
        Op::Call { callee, .. } => matches!(callee, Callee::Builtin(_)),
        Op::Runtime { routine, .. } => !routine.waits(),
        _ => true,
    }
}

/// Whether a thread may pause between the arguments of a call and the call, or before it has fetched the result: these are
/// on the stack, which interleaved threads share. No compiler writes such a thing.
fn pauses_in_a_call(insts: &[Inst]) -> bool {
    let touches = |inst: &Inst| match &inst.op {
        Op::Store { address, .. } | Op::Load { address, .. } => matches!(address.base, Base::Slot(_)),
        Op::Call { .. } => true,
        _ => false,
    };
    let mut open = false;
    let mut paused = false;
    for inst in insts {
        if touches(inst) {
            let is_call = matches!(inst.op, Op::Call { .. });
            if open && paused && (is_call || matches!(inst.op, Op::Load { .. })) {
                return true;
            }
            (open, paused) = (true, false);
        } else if at(inst) {
            paused = true;
        }
    }
    false
}

fn registers_read(body: &Body) -> Vec<bool> {
    let mut read = vec![false; body.registers.len()];
    for inst in body.blocks.iter().flat_map(|block| &block.insts) {
        live::uses(inst, &mut |reg| read[reg as usize] = true);
    }
    for block in &body.blocks {
        live::end_uses(&block.end, &mut |reg| read[reg as usize] = true);
    }
    read
}

/// Where kept registers lie behind the frame's head: their offsets, and the end.
pub fn places(body: &Body, kept: &[Reg]) -> (Vec<u32>, u32) {
    let mut end = 0u32;
    let mut place = |reg: &Reg| {
        let size = if body.registers[*reg as usize].bits() > 64 { 16 } else { 8 };
        let at = end.next_multiple_of(size);
        end = at + size;
        at
    };
    let places = kept.iter().map(&mut place).collect();
    (places, end)
}

/// Whether the vote or answer of a barrier is wanted.
pub fn votes(op: BarrierOp) -> bool {
    matches!(op, BarrierOp::Popc | BarrierOp::And | BarrierOp::Or)
}
