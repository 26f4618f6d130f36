//! Calls of the sanitizer, in kernels that are checked.

use cranelift_codegen::ir::types;
use ptx_passes::ir::Value as Operand;
use ptx_passes::ir::{Address, Base, Space, Symbol, Type, WarpOp};

use super::Lower;
use super::registers::untyped;
use crate::helpers::Helper;
use crate::sanitize::hooks::Touch;
use crate::warp::LOCKSTEP;

/// Whether others can see that memory.
fn is_common(space: Space, address: Address) -> bool {
    let own =
        matches!(address.base, Base::Slot(_) | Base::Argument(_) | Base::Result(_) | Base::Symbol(Symbol::Param(_)));
    !own && matches!(space, Space::Generic | Space::Global | Space::Shared)
}

impl Lower<'_, '_> {
    /// Tells of an access that has passed its checks; with the value where a store has one.
    pub(crate) fn touch(&mut self, space: Space, address: Address, touch: Touch, value: Option<(Operand, Type)>) {
        if !self.unit.checks.accesses() || !is_common(space, address) {
            return;
        }
        let value = value.filter(|(_, ty)| ty.bits() <= 64);
        let info = self.int(types::I64, touch.value(value.is_some()).0);
        let value = match value {
            Some((operand, ty)) => {
                let bits = self.get(operand, untyped(ty));
                self.fit(bits, types::I64, false)
            }
            None => self.int(types::I64, 0),
        };
        let address = self.effective(address, types::I64);
        self.helper(Helper::Touch, &[self.context, address, info, value]);
    }

    pub(crate) fn touch_of(&self, space: Space, size: u32) -> Touch {
        Touch::new(size, space, self.line)
    }

    /// Where warps run in lockstep: lanes that are at the same access go on together, those that come first in the text before
    /// others.
    pub(crate) fn lockstep(&mut self, space: Space, address: Address) {
        if !self.unit.checks.lockstep() || !is_common(space, address) {
            return;
        }
        let code = self.int(types::I32, WarpOp::ActiveMask as i64);
        let site = self.int(types::I64, (LOCKSTEP | u64::from(self.line)) as i64);
        let (nothing, mask) = (self.int(types::I64, 0), self.int(types::I32, -1));
        self.helper(Helper::Warp, &[self.context, code, nothing, nothing, mask, site]);
    }

    /// Leaves the line where the sanitizer finds it.
    pub(crate) fn note_if_checked(&mut self) {
        if self.unit.checks.instrument() {
            self.note_line();
        }
    }
}

/// The value of a store of one element.
pub(crate) fn single(src: &[Operand], ty: Type) -> Option<(Operand, Type)> {
    match src {
        [one] => Some((*one, ty)),
        _ => None,
    }
}
