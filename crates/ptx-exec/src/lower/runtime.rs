//! Instructions that the runtime does as a whole.

use cranelift_codegen::ir::{InstBuilder, StackSlotData, StackSlotKind, types};
use ptx_passes::ir::Value as Operand;
use ptx_passes::ir::{Reg, Routine, Type};

use super::registers::machine;
use super::{Lower, trusted};
use crate::helpers::Helper;

impl Lower<'_, '_> {
    /// Lays the sources out as words, calls, and takes the results from the same words.
    pub(crate) fn runtime(
        &mut self,
        routine: Routine,
        code: u64,
        src: &[(Operand, Type)],
        dst: &[(Option<Reg>, Type)],
    ) {
        let words = src.len().max(dst.len()).max(1) as u32;
        let slot = StackSlotData::new(StackSlotKind::ExplicitSlot, words * 8, 4);
        let slot = self.b.create_sized_stack_slot(slot);
        let pointer = self.b.ins().stack_addr(types::I64, slot, 0);
        for (at, (operand, ty)) in src.iter().enumerate() {
            let value = self.get(*operand, *ty);
            let wide = self.fit(value, types::I64, ty.is_signed());
            self.b.ins().store(trusted(), wide, pointer, at as i32 * 8);
        }
        self.note_line();
        let which = self.int(types::I32, routine as i64);
        let code = self.int(types::I64, code as i64);
        self.helper(Helper::Runtime, &[self.context, which, code, pointer]);
        for (at, (reg, ty)) in dst.iter().enumerate() {
            if let Some(reg) = reg {
                let value = self.b.ins().load(types::I64, trusted(), pointer, at as i32 * 8);
                let cut = self.fit(value, machine(*ty), false);
                self.set(*reg, cut, *ty);
            }
        }
    }
}
