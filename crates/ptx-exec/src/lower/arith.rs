//! Which arithmetic is done where, comparisons and carry chains.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use ptx_passes::ir::Value as Operand;
use ptx_passes::ir::{self, BoolOp, CarryOp, Compare, Compute, Mods, Predicate, Reg, Type};

use super::Lower;
use super::registers::machine;

impl Lower<'_, '_> {
    pub(crate) fn compute(&mut self, op: Compute, ty: Type, mods: Mods, dst: Reg, src: &[Operand]) {
        match op {
            Compute::Mov => {
                let value = self.get(src[0], ty);
                self.set(dst, value, ty);
            }
            Compute::Selp => {
                // Bits are enough, and keep floats where they are only when they are floats.
                let (a, b) = (self.get(src[0], ty), self.get(src[1], ty));
                let condition = self.get(src[2], Type::Pred);
                let value = self.b.ins().select(condition, a, b);
                self.set(dst, value, ty);
            }
            Compute::SlctInt | Compute::SlctFloat => {
                let (a, b) = (self.get(src[0], ty), self.get(src[1], ty));
                let condition = if op == Compute::SlctInt {
                    let c = self.get(src[2], Type::S32);
                    self.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, c, 0)
                } else {
                    let c = self.get(src[2], Type::F32);
                    let zero = self.b.ins().f32const(0.0);
                    self.b.ins().fcmp(FloatCC::GreaterThanOrEqual, c, zero)
                };
                let value = self.b.ins().select(condition, a, b);
                self.set(dst, value, ty);
            }
            Compute::ToGeneric(_) | Compute::FromGeneric(_) | Compute::IsSpace(_) => {
                self.address_space(op, ty, dst, src[0]);
            }
            _ if ty.is_packed() => self.packed(op, ty, mods, dst, src),
            _ if matches!(ty, Type::F16 | Type::BF16) => {
                let args: Vec<Value> = src.iter().map(|operand| self.get(*operand, ty)).collect();
                let value = self.half(op, ty, mods, &args);
                let of = if matches!(op, Compute::Testp(_)) { Type::Pred } else { ty };
                self.set(dst, value, of);
            }
            _ if ty.is_float() => self.float_op(op, ty, mods, dst, src),
            _ => self.int_op(op, ty, mods, dst, src),
        }
    }

    /// 0 or 1.
    pub(crate) fn compare(&mut self, compare: Compare, ty: Type, ftz: bool, a: Operand, b: Operand) -> Value {
        let (mut x, mut y) = (self.get(a, ty), self.get(b, ty));
        if !ty.is_float() {
            let signed = ty.is_signed();
            let code = match (compare, signed) {
                (Compare::Eq | Compare::Equ, _) => IntCC::Equal,
                (Compare::Ne | Compare::Neu, _) => IntCC::NotEqual,
                (Compare::Lt, true) => IntCC::SignedLessThan,
                (Compare::Le, true) => IntCC::SignedLessThanOrEqual,
                (Compare::Gt, true) => IntCC::SignedGreaterThan,
                (Compare::Ge, true) => IntCC::SignedGreaterThanOrEqual,
                (Compare::Lt | Compare::Lo | Compare::Ltu, _) => IntCC::UnsignedLessThan,
                (Compare::Le | Compare::Ls | Compare::Leu, _) => IntCC::UnsignedLessThanOrEqual,
                (Compare::Gt | Compare::Hi | Compare::Gtu, _) => IntCC::UnsignedGreaterThan,
                (Compare::Ge | Compare::Hs | Compare::Geu, _) => IntCC::UnsignedGreaterThanOrEqual,
                // Integers are always numbers.
                (Compare::Num, _) => return self.int(types::I8, 1),
                (Compare::Nan, _) => return self.int(types::I8, 0),
            };
            return self.b.ins().icmp(code, x, y);
        }
        if matches!(ty, Type::F16 | Type::BF16) {
            (x, y) = (self.half_to_single(x, ty), self.half_to_single(y, ty));
        } else if ftz && ty == Type::F32 {
            (x, y) = (self.flush(x), self.flush(y));
        }
        self.b.ins().fcmp(float_condition(compare), x, y)
    }

    /// 0 or 1 for the lower and for the upper half.
    pub(crate) fn compare_packed(&mut self, compare: Compare, ty: Type, a: Operand, b: Operand) -> [Value; 2] {
        let words = [a, b].map(|operand| self.get(operand, Type::B32));
        [0, 16].map(|shift| {
            let [x, y] = words.map(|word| {
                let moved = self.b.ins().ushr_imm_u(word, shift);
                let half = self.b.ins().ireduce(types::I16, moved);
                self.half_to_single(half, ty.element())
            });
            self.b.ins().fcmp(float_condition(compare), x, y)
        })
    }

    /// `set` of pairs: 1.0 or all ones in each half.
    pub(crate) fn set_halves(
        &mut self,
        halves: [Value; 2],
        combine: &Option<(BoolOp, Predicate)>,
        to: Type,
        dst: Reg,
    ) {
        let one = match to {
            Type::F16x2 => 0x3c00,
            Type::BF16x2 => 0x3f80,
            _ => 0xffff,
        };
        let [low, high] = halves.map(|half| {
            let truth = self.combine(half, combine);
            let (one, zero) = (self.int(types::I16, one), self.int(types::I16, 0));
            self.b.ins().select(truth, one, zero)
        });
        let value = self.join(low, high);
        self.set(dst, value, Type::B32);
    }

    pub(crate) fn combine(&mut self, result: Value, combine: &Option<(BoolOp, Predicate)>) -> Value {
        let Some((op, predicate)) = combine else { return result };
        let other = self.predicate(*predicate);
        match op {
            BoolOp::And => self.b.ins().band(result, other),
            BoolOp::Or => self.b.ins().bor(result, other),
            BoolOp::Xor => self.b.ins().bxor(result, other),
        }
    }

    /// `set`: all ones, or 1.0.
    pub(crate) fn set_number(&mut self, truth: Value, to: Type, dst: Reg) {
        let (one, zero) = match to {
            Type::F32 => (self.b.ins().f32const(1.0), self.b.ins().f32const(0.0)),
            Type::F64 => (self.b.ins().f64const(1.0), self.b.ins().f64const(0.0)),
            Type::F16 => (self.int(types::I16, 0x3c00), self.int(types::I16, 0)),
            Type::BF16 => (self.int(types::I16, 0x3f80), self.int(types::I16, 0)),
            _ => (self.int(machine(to), -1), self.int(machine(to), 0)),
        };
        let value = self.b.ins().select(truth, one, zero);
        self.set(dst, value, to);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one instruction")]
    pub(crate) fn carry(
        &mut self,
        op: CarryOp,
        ty: Type,
        dst: Reg,
        src: &[Operand],
        reads: bool,
        writes: bool,
        carry: Reg,
    ) {
        let args: Vec<Value> = src.iter().map(|operand| self.get(*operand, ty)).collect();
        let (a, b) = match op {
            CarryOp::Add | CarryOp::Sub => (args[0], args[1]),
            CarryOp::MadLo => (self.b.ins().imul(args[0], args[1]), args[2]),
            CarryOp::MadHi => (self.high_product(args[0], args[1], ty.is_signed()), args[2]),
        };
        let incoming = if reads {
            let flag = self.get(Operand::Reg(carry), Type::Pred);
            self.b.ins().uextend(machine(ty), flag)
        } else {
            self.int(machine(ty), 0)
        };
        let (result, flag) = if op == CarryOp::Sub {
            // The hardware adds the complement, so its flag is set where nothing was borrowed. Programs rely on it:
            // they subtract and then look at the flag with `addc`.
            let one = self.int(machine(ty), 1);
            let borrowed = if reads { self.b.ins().isub(one, incoming) } else { incoming };
            let first = self.b.ins().isub(a, b);
            let result = self.b.ins().isub(first, borrowed);
            let enough = self.b.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, a, b);
            let still = self.b.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, first, borrowed);
            (result, self.b.ins().band(enough, still))
        } else {
            let first = self.b.ins().iadd(a, b);
            let result = self.b.ins().iadd(first, incoming);
            let carry1 = self.b.ins().icmp(IntCC::UnsignedLessThan, first, a);
            let carry2 = self.b.ins().icmp(IntCC::UnsignedLessThan, result, first);
            (result, self.b.ins().bor(carry1, carry2))
        };
        self.set(dst, result, ty);
        if writes {
            self.set(carry, flag, Type::Pred);
        }
    }

    /// `cvta` and `isspacep`.
    fn address_space(&mut self, op: Compute, ty: Type, dst: Reg, src: Operand) {
        use crate::window::{APERTURE_SIZE, BASE, LOCAL_APERTURE, PARAM_APERTURE, SHARED_APERTURE, SIZE};
        let value = self.get(src, Type::U64);
        let start = |space: ir::Space| match space {
            ir::Space::Shared => Some(SHARED_APERTURE),
            ir::Space::Local => Some(LOCAL_APERTURE),
            ir::Space::Param => Some(PARAM_APERTURE),
            ir::Space::Generic | ir::Space::Global | ir::Space::Const => None,
        };
        match op {
            Compute::ToGeneric(space) | Compute::FromGeneric(space) => {
                let result = match start(space) {
                    Some(start) => {
                        let start = self.int(types::I64, start as i64);
                        if matches!(op, Compute::ToGeneric(_)) {
                            self.b.ins().iadd(value, start)
                        } else {
                            self.b.ins().isub(value, start)
                        }
                    }
                    None => value,
                };
                self.set(dst, result, ty);
            }
            Compute::IsSpace(space) => {
                let (start, size) = match start(space) {
                    Some(start) => (start, APERTURE_SIZE),
                    None => (BASE, SIZE),
                };
                let start = self.int(types::I64, start as i64);
                let offset = self.b.ins().isub(value, start);
                let size = self.int(types::I64, size as i64);
                let inside = self.b.ins().icmp(IntCC::UnsignedLessThan, offset, size);
                self.set(dst, inside, Type::Pred);
            }
            _ => {}
        }
    }
}

/// The comparison of floats that PTX calls so.
fn float_condition(compare: Compare) -> FloatCC {
    match compare {
        Compare::Eq => FloatCC::Equal,
        Compare::Ne => FloatCC::OrderedNotEqual,
        Compare::Lt | Compare::Lo => FloatCC::LessThan,
        Compare::Le | Compare::Ls => FloatCC::LessThanOrEqual,
        Compare::Gt | Compare::Hi => FloatCC::GreaterThan,
        Compare::Ge | Compare::Hs => FloatCC::GreaterThanOrEqual,
        Compare::Equ => FloatCC::UnorderedOrEqual,
        Compare::Neu => FloatCC::NotEqual,
        Compare::Ltu => FloatCC::UnorderedOrLessThan,
        Compare::Leu => FloatCC::UnorderedOrLessThanOrEqual,
        Compare::Gtu => FloatCC::UnorderedOrGreaterThan,
        Compare::Geu => FloatCC::UnorderedOrGreaterThanOrEqual,
        Compare::Num => FloatCC::Ordered,
        Compare::Nan => FloatCC::Unordered,
    }
}
