//! Kernels whose threads meet at barriers and nowhere else, without a fiber for each thread.
//!
//! One fiber runs all threads of the block in turns: each runs until its next barrier, leaves there what it will need
//! (the registers that are alive, and where to go on) in a frame of its own, and the next one has its turn. When all
//! have been through, everybody has reached the barrier or ended, and the next round begins. A turn costs a few loads
//! and stores, where a switch of fibers costs a stack that has left the cache.
//!
//! ```text
//! round(any = 0) ─→ head(thread, any) ─ no thread left ─→ any ? round : done
//!                     │ by the state in the thread's frame
//!                     ├─ 0: the kernel's first block      ┐ barrier n: save, state = n, any = 1 ─→ head(next thread)
//!                     ├─ n: after barrier n, registers loaded ┘ end: state = ended ─→ head(next thread)
//!                     └─ ended ─→ head(next thread)
//! ```

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, BlockArg, InstBuilder, JumpTableData, Type, Value, types};

use super::super::block::BlockState;
use super::super::context::Context;
use super::{Lower, trusted};
use crate::passes::ir::{self, BarrierOp, Op};
use crate::passes::live;
use crate::passes::reach::Reach;

/// What the lowering of such a kernel keeps.
pub struct Turns {
    /// Registers to keep at each barrier.
    alive: Vec<Vec<ir::Reg>>,
    /// Where each barrier goes on.
    resume: Vec<Block>,
    /// Barriers that have been lowered.
    seen: usize,
    frame: Value,
    /// Takes whether anybody waits, and goes to the next thread.
    next: Block,
}

/// Most barriers in a kernel of this kind, and most registers kept at one.
const MAX_BARRIERS: usize = 200;
const MAX_KEPT: usize = 250;
/// Bytes of a kept register, whatever its type.
const CELL: usize = 16;

/// Bytes of a thread's frame, if the kernel can run in turns. It can when threads wait for each other only at barriers
/// of the whole block: nothing may spin, because nobody else would get to run.
pub fn frame_bytes(module: &ir::Module, reach: &Reach) -> Option<u32> {
    let [kernel] = reach.functions[..] else { return None };
    let body = module.functions[kernel].body.as_ref().ok()?;
    if reach.local_bytes > 0 {
        return None;
    }
    let mut barriers = 0;
    for inst in body.blocks.iter().flat_map(|block| &block.insts) {
        match &inst.op {
            Op::Barrier { op: BarrierOp::Sync, id: ir::Value::Bits(id), count: None, dst: None, .. } if *id < 16 => {
                if inst.guard.is_some() {
                    return None;
                }
                barriers += 1;
            }
            Op::Barrier { .. } | Op::Warp { .. } | Op::Sleep(_) | Op::Call { .. } => return None,
            Op::Runtime { routine, .. } if routine.waits() => return None,
            Op::Load { volatile: true, .. } | Op::Atomic { dst: Some(_), .. } => return None,
            _ => {}
        }
    }
    if barriers == 0 || barriers > MAX_BARRIERS {
        return None;
    }
    let most = live::at_barriers(body).iter().map(Vec::len).max().unwrap_or(0);
    (most <= MAX_KEPT).then_some(((most + 1) * CELL) as u32)
}

impl Lower<'_, '_> {
    /// The rounds, and the code that finds out where a thread goes on.
    pub fn rounds(&mut self, frame_bytes: u32) {
        let alive = live::at_barriers(self.body);
        let block = self.field(types::I64, offset_of!(Context, block));
        let frames = self.field(types::I64, offset_of!(Context, frames));
        let sizes = [0, 4].map(|place| self.field(types::I32, offset_of!(Context, block_size) + place));
        let total = self.b.ins().load(types::I32, super::constant(), block, offset_of!(BlockState, total) as i32);
        let [round, head, turn, done, finished, next] = [(); 6].map(|()| self.b.create_block());
        let zero = self.int(types::I32, 0);
        // All threads are taken at once: should this fiber pause, no other may start any of them.
        self.b.ins().store(trusted(), total, block, offset_of!(BlockState, next_linear) as i32);
        self.b.ins().jump(round, &[]);

        self.b.switch_to_block(round);
        let start = [BlockArg::Value(zero), zero.into(), zero.into(), zero.into(), frames.into(), zero.into()];
        self.b.ins().jump(head, &start);

        let [x, y, z, linear] = [(); 4].map(|()| self.b.append_block_param(head, types::I32));
        let frame = self.b.append_block_param(head, types::I64);
        let any = self.b.append_block_param(head, types::I32);
        self.b.switch_to_block(head);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, linear, total);
        self.b.ins().brif(more, turn, &[], done, &[]);

        self.b.switch_to_block(done);
        self.b.ins().brif(any, round, &[], finished, &[]);
        self.b.switch_to_block(finished);
        self.b.ins().return_(&[]);

        self.b.switch_to_block(next);
        let waits = self.b.append_block_param(next, types::I32);
        let x_next = self.b.ins().iadd_imm_s(x, 1);
        let x_wraps = self.b.ins().icmp(IntCC::Equal, x_next, sizes[0]);
        let x_next = self.b.ins().select(x_wraps, zero, x_next);
        let carry = self.b.ins().uextend(types::I32, x_wraps);
        let y_next = self.b.ins().iadd(y, carry);
        let y_wraps = self.b.ins().icmp(IntCC::Equal, y_next, sizes[1]);
        let y_next = self.b.ins().select(y_wraps, zero, y_next);
        let carry = self.b.ins().uextend(types::I32, y_wraps);
        let z_next = self.b.ins().iadd(z, carry);
        let linear_next = self.b.ins().iadd_imm_s(linear, 1);
        let frame_next = self.b.ins().iadd_imm_s(frame, i64::from(frame_bytes));
        let following = [x_next, y_next, z_next, linear_next, frame_next, waits].map(BlockArg::Value);
        self.b.ins().jump(head, &following);

        self.b.switch_to_block(turn);
        let thread = offset_of!(Context, thread) as i32;
        for (value, place) in [(x, 0), (y, 4), (z, 8)] {
            self.b.ins().store(trusted(), value, self.context, thread + place);
        }
        self.b.ins().store(trusted(), linear, self.context, offset_of!(Context, linear) as i32);
        let state = self.b.ins().load(types::I32, trusted(), frame, 0);
        let resume: Vec<Block> = alive.iter().map(|_| self.b.create_block()).collect();
        let call = |b: &mut cranelift_frontend::FunctionBuilder, block, args: &[BlockArg]| {
            b.func.dfg.block_call(block, args)
        };
        // Whatever is not a place to go on has ended.
        let ended = call(&mut self.b, next, &[any.into()]);
        let mut targets = vec![call(&mut self.b, self.blocks[0], &[])];
        for block in &resume {
            targets.push(call(&mut self.b, *block, &[]));
        }
        let table = self.b.create_jump_table(JumpTableData::new(ended, &targets));
        self.b.ins().br_table(state, table);
        self.thread = Some([x, y, z, linear]);

        self.b.switch_to_block(self.exit);
        let gone = self.int(types::I32, -1);
        self.b.ins().store(trusted(), gone, frame, 0);
        self.b.ins().jump(next, &[any.into()]);
        self.turns = Some(Turns { alive, resume, seen: 0, frame, next });
    }

    /// The end of a turn. True when the kernel runs in turns.
    pub fn end_turn(&mut self) -> bool {
        let Some(turns) = &mut self.turns else { return false };
        let number = turns.seen;
        turns.seen += 1;
        let (Some(kept), Some(resume)) = (turns.alive.get(number).cloned(), turns.resume.get(number).copied()) else {
            return false;
        };
        let (frame, next) = (turns.frame, turns.next);
        let place = |at: usize| ((at + 1) * CELL) as i32;
        for (at, reg) in kept.iter().enumerate() {
            let value = self.register_value(*reg);
            self.b.ins().store(trusted(), value, frame, place(at));
        }
        let state = self.int(types::I32, number as i64 + 1);
        self.b.ins().store(trusted(), state, frame, 0);
        let one = self.int(types::I32, 1);
        self.b.ins().jump(next, &[one.into()]);
        self.b.switch_to_block(resume);
        for (at, reg) in kept.iter().enumerate() {
            let class: Type = self.classes[*reg as usize];
            let value = self.b.ins().load(class, trusted(), frame, place(at));
            self.define_register(*reg, value);
        }
        true
    }
}
