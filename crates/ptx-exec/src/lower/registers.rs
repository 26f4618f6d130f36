//! Registers and operands: bits in, bits out, in whatever type an instruction wants them.

use cranelift_codegen::ir::{InstBuilder, MemFlagsData, StackSlot, StackSlotData, StackSlotKind, Type, Value, types};
use cranelift_frontend::FunctionBuilder;
use ptx_passes::ir::Value as Operand;
use ptx_passes::ir::{self, Compute, Op, Symbol};

use super::Lower;
use crate::window;

/// The machine type of a PTX type. Halves live in integers.
pub(super) fn machine(ty: ir::Type) -> Type {
    match ty {
        ir::Type::F32 => types::F32,
        ir::Type::F64 => types::F64,
        other => match other.bits() {
            1 | 8 => types::I8,
            16 => types::I16,
            32 => types::I32,
            64 => types::I64,
            _ => types::I128,
        },
    }
}

/// A slot on the native stack for a parameter.
pub(super) fn stack_slot(b: &mut FunctionBuilder, size: u32) -> StackSlot {
    b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, size.max(1), 4))
}

/// Newer compilers put floats into untyped registers. Such a register lives in a float register here when most of
/// the instructions that use it compute with floats.
pub(super) fn classes(body: &ir::Body) -> Vec<Type> {
    let mut votes = vec![0i32; body.registers.len()];
    let mut vote = |reg: ir::Reg, ty: ir::Type| {
        votes[reg as usize] += if matches!(ty, ir::Type::F32 | ir::Type::F64) { 1 } else { -1 };
    };
    for inst in body.blocks.iter().flat_map(|block| &block.insts) {
        let mut source = |value: &Operand, ty: ir::Type| {
            if let Operand::Reg(reg) = value {
                vote(*reg, ty);
            }
        };
        match &inst.op {
            Op::Compute { op: Compute::Mov | Compute::Selp, .. } => {}
            Op::Compute { ty, dst, src, .. } => {
                src.iter().for_each(|value| source(value, *ty));
                vote(*dst, *ty);
            }
            Op::Convert { to, from, dst, src, .. } => {
                source(src, *from);
                vote(*dst, *to);
            }
            Op::SetP { ty, a, b, .. } | Op::Set { ty, a, b, .. } => {
                source(a, *ty);
                source(b, *ty);
            }
            Op::Load { ty, dst, address, .. } => {
                if let ir::Base::Reg(reg) = address.base {
                    vote(reg, ir::Type::U64);
                }
                if ty.is_float() {
                    dst.iter().flatten().for_each(|reg| vote(*reg, *ty));
                }
            }
            Op::Store { ty, src, address, .. } => {
                if ty.is_float() {
                    src.iter().for_each(|value| source(value, *ty));
                }
                if let ir::Base::Reg(reg) = address.base {
                    vote(reg, ir::Type::U64);
                }
            }
            _ => {}
        }
    }
    let class = |(ty, votes): (&ir::Type, &i32)| match ty {
        ir::Type::B32 if *votes > 0 => types::F32,
        ir::Type::B64 if *votes > 0 => types::F64,
        ty => machine(*ty),
    };
    body.registers.iter().zip(&votes).map(class).collect()
}

impl Lower<'_, '_> {
    fn variable(&mut self, reg: ir::Reg) -> cranelift_frontend::Variable {
        let index = reg as usize;
        match self.variables[index] {
            Some(variable) => variable,
            None => {
                let variable = self.b.declare_var(self.classes[index]);
                self.variables[index] = Some(variable);
                variable
            }
        }
    }

    /// What a register holds, as it is kept.
    pub(crate) fn register_value(&mut self, reg: ir::Reg) -> Value {
        let variable = self.variable(reg);
        self.b.use_var(variable)
    }

    /// Gives a register a value that `register_value` gave.
    pub(crate) fn define_register(&mut self, reg: ir::Reg, value: Value) {
        let variable = self.variable(reg);
        self.b.def_var(variable, value);
    }

    /// The value of an operand as type `ty`.
    pub(crate) fn get(&mut self, operand: Operand, ty: ir::Type) -> Value {
        let wanted = machine(ty);
        match operand {
            Operand::Reg(reg) => {
                let variable = self.variable(reg);
                let value = self.b.use_var(variable);
                self.fit(value, wanted, ty.is_signed())
            }
            Operand::Bits(bits) => match wanted {
                types::F32 => self.b.ins().f32const(f32::from_bits(bits as u32)),
                types::F64 => self.b.ins().f64const(f64::from_bits(bits)),
                types::I128 => {
                    let value = self.b.ins().iconst(types::I64, bits as i64);
                    self.b.ins().uextend(types::I128, value)
                }
                types::I8 if ty == ir::Type::Pred => self.int(types::I8, i64::from(bits != 0)),
                _ => self.int(wanted, bits as i64),
            },
            Operand::Special(special) => {
                let value = self.special(special);
                self.fit(value, wanted, false)
            }
            Operand::Symbol(symbol, offset) => {
                let value = self.symbol(symbol, offset);
                self.fit(value, wanted, false)
            }
        }
    }

    /// Writes a value of type `ty` to a register. A wider register gets it extended.
    pub(crate) fn set(&mut self, reg: ir::Reg, value: Value, ty: ir::Type) {
        let class = self.classes[reg as usize];
        let value = self.fit(value, class, ty.is_signed());
        let variable = self.variable(reg);
        self.b.def_var(variable, value);
    }

    /// Brings a value to another machine type: same bits, cut or extended.
    pub(crate) fn fit(&mut self, value: Value, wanted: Type, signed: bool) -> Value {
        let have = self.b.func.dfg.value_type(value);
        if have == wanted {
            return value;
        }
        let as_int = |ty: Type| match ty {
            types::F32 => types::I32,
            types::F64 => types::I64,
            other => other,
        };
        let mut value = value;
        if have.is_float() {
            value = self.b.ins().bitcast(as_int(have), MemFlagsData::new(), value);
        }
        let (from, to) = (as_int(have), as_int(wanted));
        if from.bits() > to.bits() {
            value = self.b.ins().ireduce(to, value);
        } else if from.bits() < to.bits() {
            value = if signed { self.b.ins().sextend(to, value) } else { self.b.ins().uextend(to, value) };
        }
        if wanted.is_float() {
            value = self.b.ins().bitcast(wanted, MemFlagsData::new(), value);
        }
        value
    }

    /// A predicate as 0 or 1.
    pub(crate) fn predicate(&mut self, predicate: ir::Predicate) -> Value {
        let value = self.get(predicate.value, ir::Type::Pred);
        if predicate.negated { self.b.ins().bxor_imm_s(value, 1) } else { value }
    }

    /// The condition of a guard.
    pub(crate) fn guard(&mut self, guard: ir::Guard) -> Value {
        self.predicate(ir::Predicate { value: Operand::Reg(guard.reg), negated: guard.negated })
    }

    /// The address of something, in its own space.
    pub(crate) fn symbol(&mut self, symbol: Symbol, offset: i64) -> Value {
        match symbol {
            Symbol::Variable(index) => {
                let table = self.field(types::I64, std::mem::offset_of!(crate::context::Context, variables));
                let place = (index * 8) as i32;
                let address = self.b.ins().load(types::I64, super::constant(), table, place);
                self.b.ins().iadd_imm_s(address, offset)
            }
            Symbol::Shared(index) => {
                let base = self.unit.shared.get(index).copied().flatten().unwrap_or(0);
                self.int(types::I64, i64::from(base).wrapping_add(offset))
            }
            Symbol::Local(base) => {
                let place = i64::from(base).wrapping_add(offset);
                match self.frame {
                    Some(frame) => self.b.ins().iadd_imm_s(frame, place),
                    None => self.int(types::I64, place),
                }
            }
            Symbol::Param(base) => self.int(types::I64, i64::from(base).wrapping_add(offset)),
            Symbol::Function(index) => {
                let address = window::function_address(index);
                self.int(types::I64, (address as i64).wrapping_add(offset))
            }
        }
    }

    /// `mov.b64 d, {a, b}`
    pub(crate) fn pack(&mut self, ty: ir::Type, dst: ir::Reg, src: &[Operand]) {
        let bits = ty.bits() / src.len().max(1) as u32;
        let part = part_type(bits);
        let whole = machine(untyped(ty));
        let mut result: Option<Value> = None;
        for (index, operand) in src.iter().enumerate() {
            let value = self.get(*operand, part);
            let wide = self.fit(value, whole, false);
            let placed = if index == 0 { wide } else { self.shift_left(wide, index as u32 * bits) };
            result = Some(match result {
                Some(sum) => self.b.ins().bor(sum, placed),
                None => placed,
            });
        }
        if let Some(result) = result {
            self.set(dst, result, untyped(ty));
        }
    }

    fn shift_left(&mut self, value: Value, by: u32) -> Value {
        let amount = self.int(types::I32, i64::from(by));
        self.b.ins().ishl(value, amount)
    }

    /// `mov.b64 {a, b}, d`
    pub(crate) fn unpack(&mut self, ty: ir::Type, dst: &[Option<ir::Reg>], src: Operand) {
        let bits = ty.bits() / dst.len().max(1) as u32;
        let part = part_type(bits);
        let value = self.get(src, untyped(ty));
        for (index, reg) in dst.iter().enumerate() {
            if let Some(reg) = reg {
                let amount = self.int(types::I32, i64::from(index as u32 * bits));
                let shifted = if index == 0 { value } else { self.b.ins().ushr(value, amount) };
                let cut = self.fit(shifted, machine(part), false);
                self.set(*reg, cut, part);
            }
        }
    }
}

fn part_type(bits: u32) -> ir::Type {
    match bits {
        8 => ir::Type::B8,
        16 => ir::Type::B16,
        32 => ir::Type::B32,
        _ => ir::Type::B64,
    }
}

/// The type of the same width without a meaning.
pub(super) fn untyped(ty: ir::Type) -> ir::Type {
    match ty.bits() {
        1 => ir::Type::Pred,
        8 => ir::Type::B8,
        16 => ir::Type::B16,
        32 => ir::Type::B32,
        64 => ir::Type::B64,
        _ => ir::Type::B128,
    }
}
