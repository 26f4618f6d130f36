//! Kernels whose threads need no fibers of their own.
//!
//! One fiber interleaves all threads of the block: each runs until it waits for others, saves what it will need (the live
//! registers, and where to resume) in a frame of its own, and the next one runs. A switch costs a few loads and stores,
//! where a switch of fibers costs a stack that has left the cache. Which threads run next is decided in
//! `src/interleave.rs`.
//!
//! ```text
//! ask(which threads?) ─ none ─→ done
//!   └─→ head(thread) ─ the last one was it ─→ ask
//!         ├─ it waits, or has ended ─→ head(next thread)
//!         └─ by the state in its frame
//!              ├─ 0: the kernel's first block         ┐ pause n: save, state = n ─→ head(next thread)
//!              └─ n: after pause n, registers loaded  ┘ end: status = ended ─→ head(next thread)
//! ```

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, BlockArg, InstBuilder, JumpTableData, Type, Value, types};
use cranelift_frontend::Variable;
use ptx_passes::ir;
use ptx_passes::pauses::{self, BackEdge, Pauses};

use super::{Lower, trusted};
use crate::context::Context;
use crate::helpers::Helper;
use crate::interleave::{AT_BARRIER, ENDED, HEAD, Head, IN_LOOP, IN_WARP, RUNS};

/// Iterations of a loop through memory that a thread makes before its neighbours catch up. A line of the cache must stay until the last neighbour
/// has come to it; lines that are a power of two apart share few places there.
const STRIDE: i64 = 8;

/// What the lowering of such a kernel keeps.
pub(crate) struct Interleaved {
    /// Where each pause goes on.
    resume: Vec<Block>,
    /// Pauses that have been lowered.
    seen: usize,
    frame: Value,
    /// Goes to the next thread.
    next: Block,
    /// Where local memory begins in a frame.
    local: u32,
    /// Iterations of such loops that are left until then.
    left: Variable,
}

/// Bytes of a thread's frame, and where local memory begins in it.
pub(crate) fn frame(module: &ir::Module, kernel: usize, pauses: &Pauses, local: u64) -> (u32, u32) {
    let Ok(body) = &module.functions[kernel].body else { return (HEAD, HEAD) };
    let kept = pauses.kept.iter().map(|kept| pauses::places(body, kept).1).max().unwrap_or(0);
    let start = (HEAD + kept).next_multiple_of(16);
    (start + local.next_multiple_of(16) as u32, start)
}

impl Lower<'_, '_> {
    /// Asks for threads, and finds out where each goes on.
    pub(crate) fn interleave(&mut self, pauses: &Pauses, frame_bytes: u32, local: u32) {
        let frames = self.field(types::I64, offset_of!(Context, frames));
        let sizes = [0, 4].map(|place| self.field(types::I32, offset_of!(Context, block_size) + place));
        let [ask, begin, head, look, run, finished, next] = [(); 7].map(|()| self.b.create_block());
        self.b.ins().jump(ask, &[]);

        self.b.switch_to_block(ask);
        let together = pauses.warps || pauses.back_edges.contains(&BackEdge::Strides);
        let span = self.int(types::I32, if together { 32 } else { i64::from(i32::MAX) });
        let range = self.ask(Helper::NextRange, &[self.context, span], types::I64);
        let first = self.b.ins().ireduce(types::I32, range);
        let count = self.b.ins().ushr_imm_u(range, 32);
        let count = self.b.ins().ireduce(types::I32, count);
        self.b.ins().brif(count, begin, &[], finished, &[]);

        self.b.switch_to_block(finished);
        self.b.ins().return_(&[]);

        self.b.switch_to_block(begin);
        let x = self.b.ins().urem(first, sizes[0]);
        let row = self.b.ins().udiv(first, sizes[0]);
        let y = self.b.ins().urem(row, sizes[1]);
        let z = self.b.ins().udiv(row, sizes[1]);
        let wide = self.b.ins().uextend(types::I64, first);
        let offset = self.b.ins().imul_imm_s(wide, i64::from(frame_bytes));
        let frame = self.b.ins().iadd(frames, offset);
        let last = self.b.ins().iadd(first, count);
        self.b.ins().jump(head, &[x, y, z, first, frame, last].map(BlockArg::Value));

        let [x, y, z, linear] = [(); 4].map(|()| self.b.append_block_param(head, types::I32));
        let frame = self.b.append_block_param(head, types::I64);
        let last = self.b.append_block_param(head, types::I32);
        self.b.switch_to_block(head);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, linear, last);
        self.b.ins().brif(more, look, &[], ask, &[]);

        self.b.switch_to_block(look);
        let status = self.b.ins().load(types::I32, trusted(), frame, offset_of!(Head, status) as i32);
        self.b.ins().brif(status, next, &[], run, &[]);

        self.b.switch_to_block(next);
        let [x_next, y_next, z_next, linear_next] = self.next_thread([x, y, z, linear], sizes);
        let frame_next = self.b.ins().iadd_imm_s(frame, i64::from(frame_bytes));
        let following = [x_next, y_next, z_next, linear_next, frame_next, last].map(BlockArg::Value);
        self.b.ins().jump(head, &following);

        self.b.switch_to_block(run);
        self.store_thread([x, y, z, linear]);
        if local != frame_bytes {
            let place = self.b.ins().iadd_imm_s(frame, i64::from(local));
            self.b.ins().store(trusted(), place, self.context, offset_of!(Context, local) as i32);
        }
        let left = self.b.declare_var(types::I32);
        let stride = self.int(types::I32, STRIDE);
        self.b.def_var(left, stride);
        let state = self.b.ins().load(types::I32, trusted(), frame, offset_of!(Head, state) as i32);
        let resume: Vec<Block> = pauses.kept.iter().map(|_| self.b.create_block()).collect();
        let call = |b: &mut cranelift_frontend::FunctionBuilder, block| b.func.dfg.block_call(block, &[]);
        // There are no other states; a thread in one would end.
        let other = call(&mut self.b, self.exit);
        let mut targets = vec![call(&mut self.b, self.blocks[0])];
        for block in &resume {
            targets.push(call(&mut self.b, *block));
        }
        let table = self.b.create_jump_table(JumpTableData::new(other, &targets));
        self.b.ins().br_table(state, table);
        self.thread = Some([x, y, z, linear]);

        self.b.switch_to_block(self.exit);
        let gone = self.int(types::I32, i64::from(ENDED));
        self.b.ins().store(trusted(), gone, frame, offset_of!(Head, status) as i32);
        self.b.ins().jump(next, &[]);
        self.interleaved = Some(Interleaved { resume, seen: 0, frame, next, local, left });
    }

    /// Where this thread's local memory is, where threads are interleaved.
    pub(crate) fn local_in_frame(&mut self) -> Option<Value> {
        let Interleaved { frame, local, .. } = *self.interleaved.as_ref()?;
        Some(self.b.ins().iadd_imm_s(frame, i64::from(local)))
    }

    /// Pauses with this status. What follows is lowered into where the thread goes on.
    fn pause(&mut self, status: Value) {
        let unit = self.unit;
        let Some(threads) = &mut self.interleaved else { return };
        let number = threads.seen;
        threads.seen += 1;
        let (frame, next) = (threads.frame, threads.next);
        let (Some(resume), Some(pauses)) = (threads.resume.get(number).copied(), &unit.pauses) else { return };
        let kept = &pauses.kept[number];
        let (places, _) = pauses::places(self.body, kept);
        let place = |at: usize| (HEAD + places[at]) as i32;
        for (at, reg) in kept.iter().enumerate() {
            let value = self.register_value(*reg);
            self.b.ins().store(trusted(), value, frame, place(at));
        }
        let state = self.int(types::I32, number as i64 + 1);
        self.b.ins().store(trusted(), state, frame, offset_of!(Head, state) as i32);
        self.b.ins().store(trusted(), status, frame, offset_of!(Head, status) as i32);
        self.b.ins().jump(next, &[]);
        self.b.switch_to_block(resume);
        for (at, reg) in kept.iter().enumerate() {
            let class: Type = self.classes[*reg as usize];
            let value = self.b.ins().load(class, trusted(), frame, place(at));
            self.define_register(*reg, value);
        }
    }

    /// The same with a status that is known.
    fn pause_as(&mut self, status: u32) {
        let status = self.int(types::I32, i64::from(status));
        self.pause(status);
    }

    /// Writes words into the head of the frame.
    fn bring(&mut self, words: &[(Value, usize)]) {
        let Some(frame) = self.interleaved.as_ref().map(|threads| threads.frame) else { return };
        for (value, place) in words {
            self.b.ins().store(trusted(), *value, frame, *place as i32);
        }
    }

    /// What the thread was told when it was let go.
    fn told(&mut self) -> Value {
        let frame = self.interleaved.as_ref().map_or(self.context, |threads| threads.frame);
        self.b.ins().load(types::I64, trusted(), frame, offset_of!(Head, a) as i32)
    }

    /// Waits at a barrier. The answer, or nothing when threads have fibers.
    pub(crate) fn interleaved_barrier(&mut self, op: ir::BarrierOp, id: ir::Value, vote: Value) -> Option<Value> {
        self.interleaved.as_ref()?;
        let ir::Value::Bits(id) = id else { return None };
        let code = self.int(types::I32, (id as i64) << 16 | op as i64);
        // Where it waits, should it wait for ever.
        let line = self.int(types::I64, i64::from(self.line));
        self.bring(&[(code, offset_of!(Head, op)), (line, offset_of!(Head, site))]);
        if pauses::votes(op) {
            let vote = self.b.ins().uextend(types::I64, vote);
            self.bring(&[(vote, offset_of!(Head, a))]);
        }
        self.pause_as(AT_BARRIER);
        let answer = self.told();
        Some(self.b.ins().ireduce(types::I32, answer))
    }

    /// Does something with the warp. The answer, or nothing when threads have fibers.
    pub(crate) fn interleaved_warp(
        &mut self,
        code: Value,
        a: Value,
        bc: Value,
        mask: Value,
        site: Value,
    ) -> Option<Value> {
        self.interleaved.as_ref()?;
        self.bring(&[
            (a, offset_of!(Head, a)),
            (bc, offset_of!(Head, bc)),
            (mask, offset_of!(Head, mask)),
            (code, offset_of!(Head, op)),
            (site, offset_of!(Head, site)),
        ]);
        self.pause_as(IN_WARP);
        Some(self.told())
    }

    /// Lets others run. False when threads have fibers.
    pub(crate) fn yield_thread(&mut self) -> bool {
        if self.interleaved.is_none() {
            return false;
        }
        self.pause_as(RUNS);
        true
    }

    /// Another iteration of a loop through memory: every few of them neighbours catch up. False where block `index` does not end
    /// such a loop.
    pub(crate) fn stride(&mut self, index: usize) -> bool {
        let strides = |pauses: &Pauses| pauses.back_edges[index] == BackEdge::Strides;
        let Some(left) = self.interleaved.as_ref().map(|threads| threads.left) else { return false };
        if !self.unit.pauses.as_ref().is_some_and(strides) {
            return false;
        }
        let (enough, after) = (self.b.create_block(), self.b.create_block());
        let fewer = self.b.use_var(left);
        let fewer = self.b.ins().iadd_imm_s(fewer, -1);
        self.b.def_var(left, fewer);
        self.b.ins().brif(fewer, after, &[], enough, &[]);
        self.b.switch_to_block(enough);
        // When the flag is up, all others run: this may be a loop that waits for one of them after all.
        let (look, rest) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(look);
        let status = self.b.append_block_param(rest, types::I32);
        let flag = self.field(types::I64, offset_of!(Context, attention));
        let raised = self.b.ins().load(types::I32, trusted(), flag, 0);
        let (runs, in_loop) = (self.int(types::I32, i64::from(RUNS)), self.int(types::I32, i64::from(IN_LOOP)));
        self.b.ins().brif(raised, look, &[], rest, &[BlockArg::Value(in_loop)]);
        self.b.switch_to_block(look);
        let yes = self.ask(Helper::PollInterleaved, &[self.context], types::I32);
        let looked = self.b.ins().select(yes, runs, in_loop);
        self.b.ins().jump(rest, &[BlockArg::Value(looked)]);
        self.b.switch_to_block(rest);
        self.pause(status);
        self.b.ins().jump(after, &[]);
        self.b.switch_to_block(after);
        true
    }

    /// The flag is up in a loop: whether the thread may be waiting there, so that others must run. Ends in a block of its
    /// own, which goes to `after`. False when threads do not pause in loops of this kernel.
    pub(crate) fn poll_interleaved(&mut self, after: Block) -> bool {
        let may_wait = |pauses: &Pauses| pauses.back_edges.contains(&BackEdge::MayWait);
        if self.interleaved.is_none() || !self.unit.pauses.as_ref().is_some_and(may_wait) {
            return false;
        }
        let yields = self.b.create_block();
        self.b.set_cold_block(yields);
        let yes = self.ask(Helper::PollInterleaved, &[self.context], types::I32);
        self.b.ins().brif(yes, yields, &[], after, &[]);
        self.b.switch_to_block(yields);
        self.pause_as(RUNS);
        self.b.ins().jump(after, &[]);
        true
    }
}
