//! Calls: of device functions, through pointers, and of what the device provides.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    ExtFuncData, ExternalName, FuncRef, InstBuilder, Signature, UserExternalName, Value, types,
};
use cranelift_codegen::isa::CallConv;
use ptx_passes::ir::{Builtin, Callee, Type};

use super::{Lower, native_signature, pointers, trusted};
use crate::context::{Context, FunctionEntry};
use crate::helpers::Helper;
use crate::window;

impl Lower<'_, '_> {
    pub(crate) fn call(&mut self, callee: &Callee, returns: &[usize], args: &[usize]) {
        if let Callee::Builtin(builtin) = callee {
            return self.builtin(*builtin, returns, args);
        }
        let mut values = vec![self.context];
        for slot in returns.iter().chain(args) {
            values.push(self.b.ins().stack_addr(types::I64, self.slots[*slot], 0));
        }
        let call = match callee {
            Callee::Direct(index) => {
                let function = self.function_ref(*index);
                self.b.ins().call(function, &values)
            }
            Callee::Indirect(target, prototype) => {
                let target = self.get(*target, Type::U64);
                let code = self.checked_target(target, *prototype);
                let mut signature = Signature::new(CallConv::SystemV);
                let purpose = cranelift_codegen::ir::ArgumentPurpose::VMContext;
                signature.params.push(cranelift_codegen::ir::AbiParam::special(types::I64, purpose));
                pointers(&mut signature, &self.body.prototypes[*prototype]);
                let signature = self.b.import_signature(signature);
                self.b.ins().call_indirect(signature, code, &values)
            }
            Callee::Builtin(_) => return,
        };
        // The thread may have ended down there.
        let ended = self.b.inst_results(call)[0];
        let after = self.b.create_block();
        self.b.ins().brif(ended, self.exit, &[], after, &[]);
        self.b.switch_to_block(after);
    }

    fn function_ref(&mut self, index: usize) -> FuncRef {
        if let Some((_, known)) = self.functions.iter().find(|(other, _)| *other == index) {
            return *known;
        }
        let signature = self.b.import_signature(native_signature(&self.unit.module.functions[index]));
        let name = UserExternalName { namespace: 0, index: index as u32 };
        let name = self.b.func.declare_imported_user_function(name);
        let data = ExtFuncData { name: ExternalName::user(name), signature, colocated: true, patchable: false };
        let function = self.b.import_function(data);
        self.functions.push((index, function));
        function
    }

    /// The code of a function pointer, if it is one, and of a function of the right shape.
    fn checked_target(&mut self, target: Value, prototype: usize) -> Value {
        let start = self.int(types::I64, window::FUNCTION_APERTURE as i64);
        let offset = self.b.ins().isub(target, start);
        let index = self.b.ins().rotr_imm_u(offset, i64::from(window::FUNCTION_STRIDE.trailing_zeros()));
        let count = self.unit.module.functions.len() as i64;
        let known = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, index, count);
        self.require(known, 2);
        let table = self.field(types::I64, offset_of!(Context, functions));
        let place = self.b.ins().imul_imm_s(index, size_of::<FunctionEntry>() as i64);
        let entry = self.b.ins().iadd(table, place);
        let signature = offset_of!(FunctionEntry, signature) as i32;
        let have = self.b.ins().load(types::I64, trusted(), entry, signature);
        // Numbers start at 1, so what the kernel cannot reach (0) never matches.
        let want = self.unit.signature_number(&self.body.prototypes[prototype]).unwrap_or(u64::MAX);
        let want = self.int(types::I64, want as i64);
        let same = self.b.ins().icmp(IntCC::Equal, have, want);
        self.require(same, 2);
        self.b.ins().load(types::I64, trusted(), entry, offset_of!(FunctionEntry, code) as i32)
    }

    fn builtin(&mut self, builtin: Builtin, returns: &[usize], args: &[usize]) {
        let arg = |lower: &mut Self, index: usize, ty| {
            let slot = lower.slots[args[index]];
            let pointer = lower.b.ins().stack_addr(types::I64, slot, 0);
            lower.b.ins().load(ty, trusted(), pointer, 0)
        };
        let result = match builtin {
            Builtin::Printf => {
                let (format, list) = (arg(self, 0, types::I64), arg(self, 1, types::I64));
                self.helper(Helper::Printf, &[self.context, format, list])
            }
            Builtin::AssertFail => {
                let (message, file) = (arg(self, 0, types::I64), arg(self, 1, types::I64));
                let (line, function) = (arg(self, 2, types::I32), arg(self, 3, types::I64));
                self.helper(Helper::AssertFail, &[self.context, message, file, line, function])
            }
            Builtin::Malloc => {
                let bytes = arg(self, 0, types::I64);
                self.helper(Helper::Malloc, &[self.context, bytes])
            }
            Builtin::Free => {
                let address = arg(self, 0, types::I64);
                self.helper(Helper::Free, &[self.context, address])
            }
        };
        if let (Some(value), Some(slot)) = (result, returns.first()) {
            let pointer = self.b.ins().stack_addr(types::I64, self.slots[*slot], 0);
            self.b.ins().store(trusted(), value, pointer, 0);
        }
    }
}
