//! Thread loop, function frames, branches.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, JumpTableData, TrapCode, Value, types};
use ptx_passes::ir;

use super::{Lower, trusted};
use crate::block::BlockState;
use crate::context::Context;
use crate::helpers::Helper;

impl Lower<'_, '_> {
    /// Writes x, y, z and number of the thread that runs into its context.
    pub(crate) fn store_thread(&mut self, [x, y, z, linear]: [Value; 4]) {
        let thread = offset_of!(Context, thread) as i32;
        for (value, place) in [(x, 0), (y, 4), (z, 8)] {
            self.b.ins().store(trusted(), value, self.context, thread + place);
        }
        self.b.ins().store(trusted(), linear, self.context, offset_of!(Context, linear) as i32);
    }

    /// x, y, z and number of the thread that follows, in a block of `sizes` (x and y).
    pub(crate) fn next_thread(&mut self, [x, y, z, linear]: [Value; 4], sizes: [Value; 2]) -> [Value; 4] {
        let zero = self.int(types::I32, 0);
        let x_next = self.b.ins().iadd_imm_s(x, 1);
        let x_wraps = self.b.ins().icmp(IntCC::Equal, x_next, sizes[0]);
        let x_next = self.b.ins().select(x_wraps, zero, x_next);
        let x_carry = self.b.ins().uextend(types::I32, x_wraps);
        let y_next = self.b.ins().iadd(y, x_carry);
        let y_wraps = self.b.ins().icmp(IntCC::Equal, y_next, sizes[1]);
        let y_next = self.b.ins().select(y_wraps, zero, y_next);
        let y_carry = self.b.ins().uextend(types::I32, y_wraps);
        let z_next = self.b.ins().iadd(z, y_carry);
        let linear_next = self.b.ins().iadd_imm_s(linear, 1);
        [x_next, y_next, z_next, linear_next]
    }

    /// Takes threads of the block until none is left to start. Other fibers of the block take from the same counter,
    /// which therefore is in memory, unless no other fiber can ever run before this one is through.
    pub(crate) fn thread_loop(&mut self) {
        let block = self.field(types::I64, offset_of!(Context, block));
        let sizes = [0, 4].map(|place| self.field(types::I32, offset_of!(Context, block_size) + place));
        let total = self.b.ins().load(types::I32, super::constant(), block, offset_of!(BlockState, total) as i32);
        let (head, start, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let next = offset_of!(BlockState, next) as i32;
        let counter = offset_of!(BlockState, next_linear) as i32;
        let straight = self.unit.straight;
        let current = if straight {
            let zero = self.int(types::I32, 0);
            self.b.ins().jump(head, &[BlockArg::Value(zero); 4]);
            let params = [(); 4].map(|()| self.b.append_block_param(head, types::I32));
            self.b.switch_to_block(head);
            params
        } else {
            self.b.ins().jump(head, &[]);
            self.b.switch_to_block(head);
            [next, next + 4, next + 8, counter].map(|place| self.b.ins().load(types::I32, trusted(), block, place))
        };
        let [.., linear] = current;
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, linear, total);
        self.b.ins().brif(more, start, &[], done, &[]);

        self.b.switch_to_block(done);
        if straight {
            self.b.ins().store(trusted(), total, block, counter);
        }
        self.b.ins().return_(&[]);

        self.b.switch_to_block(start);
        self.store_thread(current);
        let following = self.next_thread(current, sizes);
        if !straight {
            for (value, place) in following.into_iter().zip([next, next + 4, next + 8, counter]) {
                self.b.ins().store(trusted(), value, block, place);
            }
        }
        if self.uses_local() {
            let end = self.int(types::I64, i64::from(self.body.local_bytes.next_multiple_of(16)));
            self.b.ins().store(trusted(), end, self.context, offset_of!(Context, local_top) as i32);
        }
        self.thread = Some(current);
        self.b.ins().jump(self.blocks[0], &[]);

        self.b.switch_to_block(self.exit);
        if self.unit.waits {
            self.helper(Helper::ThreadExit, &[self.context]);
        }
        if straight {
            self.b.ins().jump(head, &following.map(BlockArg::Value));
        } else {
            self.b.ins().jump(head, &[]);
        }
    }

    fn uses_local(&self) -> bool {
        self.unit.reach.functions.len() > 1
    }

    /// Takes a frame in local memory, if the function needs one.
    pub(crate) fn function_prologue(&mut self) {
        if self.body.local_bytes > 0 {
            let top = offset_of!(Context, local_top) as i32;
            let frame = self.b.ins().load(types::I64, trusted(), self.context, top);
            let size = i64::from(self.body.local_bytes.next_multiple_of(16));
            let end = self.b.ins().iadd_imm_s(frame, size);
            let limit = self.field(types::I64, offset_of!(Context, local_size));
            let fits = self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, end, limit);
            self.require(fits, 1);
            self.b.ins().store(trusted(), end, self.context, top);
            self.frame = Some(frame);
        }
        // Recursion is a loop too.
        self.poll();
        self.b.ins().jump(self.blocks[0], &[]);
        self.b.switch_to_block(self.exit);
        self.leave(1);
    }

    /// Returns from a device function.
    pub(crate) fn leave(&mut self, ended: i64) {
        if let Some(frame) = self.frame {
            self.b.ins().store(trusted(), frame, self.context, offset_of!(Context, local_top) as i32);
        }
        let ended = self.int(types::I32, ended);
        self.b.ins().return_(&[ended]);
    }

    /// The end of a basic block. Going back in the text may be a loop, so that is where the flag is polled.
    pub(crate) fn end(&mut self, index: usize, end: &ir::End) {
        if end.goes_back(index) && !self.stride(index) {
            self.poll();
        }
        match end {
            ir::End::Jump(target) => {
                self.b.ins().jump(self.blocks[*target], &[]);
            }
            ir::End::Branch { guard, then, otherwise } => {
                let condition = self.guard(*guard);
                self.b.ins().brif(condition, self.blocks[*then], &[], self.blocks[*otherwise], &[]);
            }
            ir::End::Table { index, targets } => {
                let index = self.get(*index, ir::Type::U32);
                let bad = self.b.create_block();
                self.b.set_cold_block(bad);
                let call = |b: &mut cranelift_frontend::FunctionBuilder, block| b.func.dfg.block_call(block, &[]);
                let default = call(&mut self.b, bad);
                let targets: Vec<_> = targets.iter().map(|target| call(&mut self.b, self.blocks[*target])).collect();
                let table = self.b.create_jump_table(JumpTableData::new(default, &targets));
                self.b.ins().br_table(index, table);
                self.b.switch_to_block(bad);
                self.abort(2);
                self.b.ins().trap(TrapCode::unwrap_user(1));
            }
            ir::End::Return if !self.function.entry => self.leave(0),
            ir::End::Return | ir::End::Exit => {
                self.b.ins().jump(self.exit, &[]);
            }
        }
    }

    fn poll(&mut self) {
        let flag = self.field(types::I64, offset_of!(Context, attention));
        let raised = self.b.ins().load(types::I32, trusted(), flag, 0);
        let (look, after) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(look);
        self.b.ins().brif(raised, look, &[], after, &[]);
        self.b.switch_to_block(look);
        if !self.poll_interleaved(after) {
            self.helper(Helper::Poll, &[self.context]);
            self.b.ins().jump(after, &[]);
        }
        self.b.switch_to_block(after);
    }
}
