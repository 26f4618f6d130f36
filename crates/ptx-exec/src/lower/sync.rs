//! Barriers and warp operations, which the runtime does.

use std::mem::offset_of;

use cranelift_codegen::ir::{InstBuilder, types};
use ptx_passes::ir::Value as Operand;
use ptx_passes::ir::{BarrierOp, Op, Predicate, Reg, Type, WarpOp};

use super::{Lower, trusted};
use crate::context::Context;
use crate::helpers::Helper;

impl Lower<'_, '_> {
    pub(crate) fn barrier(
        &mut self,
        op: BarrierOp,
        id: Operand,
        count: Option<Operand>,
        predicate: Option<Predicate>,
        dst: Option<Reg>,
    ) {
        let number = id;
        let id = self.get(id, Type::U32);
        let count = match count {
            Some(count) => self.get(count, Type::U32),
            None => self.int(types::I32, 0),
        };
        let vote = match predicate {
            Some(predicate) => {
                let value = self.predicate(predicate);
                self.fit(value, types::I32, false)
            }
            None => self.int(types::I32, 0),
        };
        let result = self.interleaved_barrier(op, number, vote);
        let result = result.unwrap_or_else(|| {
            // Where it waits, should it wait for ever.
            let line = self.int(types::I32, i64::from(self.line));
            self.b.ins().store(trusted(), line, self.context, offset_of!(Context, line) as i32);
            let code = self.int(types::I32, op as i64);
            self.ask(Helper::Barrier, &[self.context, code, id, count, vote], types::I32)
        });
        if let Some(dst) = dst {
            self.set(dst, result, Type::U32);
        }
    }

    pub(crate) fn warp(&mut self, op: &Op) {
        let Op::Warp { op, dst, predicate, a, b, c, mask, wide } = op else { return };
        let votes = matches!(op, WarpOp::VoteAll | WarpOp::VoteAny | WarpOp::VoteUni | WarpOp::Ballot);
        let value = match a {
            Some(a) if votes => {
                let value = self.predicate(*a);
                self.fit(value, types::I64, false)
            }
            Some(a) => {
                let ty = if *wide { Type::B64 } else { Type::B32 };
                let value = self.get(a.value, ty);
                self.fit(value, types::I64, false)
            }
            None => self.int(types::I64, 0),
        };
        let word = |lower: &mut Self, operand: &Option<Operand>, ty| match operand {
            Some(operand) => {
                let value = lower.get(*operand, Type::U32);
                lower.fit(value, ty, false)
            }
            None => lower.int(ty, -1),
        };
        let (b, c) = (word(self, b, types::I64), word(self, c, types::I64));
        let c = self.b.ins().ishl_imm_u(c, 32);
        let b = self.b.ins().band_imm_u(b, 0xffff_ffff);
        let both = self.b.ins().bor(b, c);
        let mask = word(self, mask, types::I32);
        let code = self.int(types::I32, *op as i64);
        // Lanes that ask for the active mask must be at the same place to count as active together.
        let site = if *op == WarpOp::ActiveMask { i64::from(self.line) } else { 0 };
        let site = self.int(types::I64, site);
        self.note_if_checked();
        let answer = self.interleaved_warp(code, value, both, mask, site);
        let answer = answer
            .unwrap_or_else(|| self.ask(Helper::Warp, &[self.context, code, value, both, mask, site], types::I64));
        if let Some(dst) = dst {
            let low = self.b.ins().ireduce(types::I32, answer);
            let ty = if self.body.registers[*dst as usize] == Type::Pred { Type::Pred } else { Type::U32 };
            self.set(*dst, low, ty);
        }
        if let Some(predicate) = predicate {
            let high = self.b.ins().ushr_imm_u(answer, 32);
            let flag = self.b.ins().ireduce(types::I8, high);
            self.set(*predicate, flag, Type::Pred);
        }
    }
}
