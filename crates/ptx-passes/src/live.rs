//! Which registers an instruction reads and writes, and which are alive at a pause.

use super::ir::{Body, End, Inst, Op, Reg, Value};

/// Calls `visit` with each register that is read.
pub fn uses(inst: &Inst, visit: &mut impl FnMut(Reg)) {
    if let Some(guard) = inst.guard {
        visit(guard.reg);
    }
    inst.op.reads(&mut |value| {
        if let Value::Reg(reg) = value {
            visit(reg);
        }
    });
}

/// Calls `visit` with each register that is written.
pub fn writes(op: &Op, visit: &mut impl FnMut(Reg)) {
    match op {
        Op::Compute { dst, .. }
        | Op::Convert { dst, .. }
        | Op::ConvertPair { dst, .. }
        | Op::Set { dst, .. }
        | Op::Pack { dst, .. } => visit(*dst),
        Op::Carry { dst, writes, carry, .. } => {
            visit(*dst);
            if *writes {
                visit(*carry);
            }
        }
        Op::SetP { dst, complement, .. } => dst.iter().chain(complement).for_each(|reg| visit(*reg)),
        Op::Load { dst, .. } | Op::Unpack { dst, .. } => dst.iter().flatten().for_each(|reg| visit(*reg)),
        Op::Atomic { dst, .. } | Op::Barrier { dst, .. } => dst.iter().for_each(|reg| visit(*reg)),
        Op::Warp { dst, predicate, .. } => dst.iter().chain(predicate).for_each(|reg| visit(*reg)),
        Op::Runtime { dst, .. } => dst.iter().filter_map(|(reg, _)| *reg).for_each(visit),
        Op::Store { .. } | Op::Call { .. } | Op::Sleep(_) | Op::Fence | Op::Trap => {}
    }
}

/// A set of registers.
#[derive(Clone, PartialEq, Eq)]
struct Set(Vec<u64>);

impl Set {
    fn new(registers: usize) -> Set {
        Set(vec![0; registers.div_ceil(64)])
    }

    fn insert(&mut self, reg: Reg) {
        self.0[reg as usize / 64] |= 1 << (reg % 64);
    }

    fn remove(&mut self, reg: Reg) {
        self.0[reg as usize / 64] &= !(1 << (reg % 64));
    }

    /// True when that added anything.
    fn merge(&mut self, other: &Set) -> bool {
        let mut grown = false;
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            grown |= *more & !*word != 0;
            *word |= more;
        }
        grown
    }

    fn registers(&self) -> Vec<Reg> {
        let each = |(first, word): (Reg, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
        };
        (0..).step_by(64).zip(&self.0).flat_map(each).collect()
    }
}

fn step_back(inst: &Inst, live: &mut Set) {
    // What is switched off by its guard leaves the old value.
    if inst.guard.is_none() {
        writes(&inst.op, &mut |reg| live.remove(reg));
    }
    uses(inst, &mut |reg| live.insert(reg));
}

/// What is kept while an instruction waits: not what it writes itself, unless its guard may switch it off.
fn alive_across(inst: &Inst, live: &Set) -> Vec<Reg> {
    let mut kept = live.clone();
    if inst.guard.is_none() {
        writes(&inst.op, &mut |reg| kept.remove(reg));
    }
    kept.registers()
}

fn after(body: &Body, index: usize, entries: &[Set]) -> Set {
    let mut live = Set::new(body.registers.len());
    match &body.blocks[index].end {
        End::Jump(target) => {
            live.merge(&entries[*target]);
        }
        End::Branch { guard, then, otherwise } => {
            live.merge(&entries[*then]);
            live.merge(&entries[*otherwise]);
            live.insert(guard.reg);
        }
        End::Table { index, targets } => {
            for target in targets {
                live.merge(&entries[*target]);
            }
            if let Value::Reg(reg) = index {
                live.insert(*reg);
            }
        }
        End::Return | End::Exit => {}
    }
    live
}

/// Calls `visit` with each register that the end of a block reads.
pub fn end_uses(end: &End, visit: &mut impl FnMut(Reg)) {
    match end {
        End::Branch { guard, .. } => visit(guard.reg),
        End::Table { index: Value::Reg(reg), .. } => visit(*reg),
        _ => {}
    }
}

/// The registers that are alive just after each instruction at which a thread pauses, in the order of the text; and
/// those at the end of each block of which `ends` says so.
pub fn at_pauses(body: &Body, pauses: impl Fn(&Inst) -> bool, ends: impl Fn(usize) -> bool) -> Vec<Vec<Reg>> {
    let mut entries = vec![Set::new(body.registers.len()); body.blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for index in (0..body.blocks.len()).rev() {
            let mut live = after(body, index, &entries);
            body.blocks[index].insts.iter().rev().for_each(|inst| step_back(inst, &mut live));
            changed |= entries[index].merge(&live);
        }
    }
    let mut out = Vec::new();
    for (index, block) in body.blocks.iter().enumerate() {
        let mut live = after(body, index, &entries);
        let mut here = Vec::new();
        if ends(index) {
            here.push(live.registers());
        }
        for inst in block.insts.iter().rev() {
            if pauses(inst) {
                here.push(alive_across(inst, &live));
            }
            step_back(inst, &mut live);
        }
        out.extend(here.into_iter().rev());
    }
    out
}
