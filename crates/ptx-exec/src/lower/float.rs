//! Floating-point arithmetic.

use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use ptx_passes::ir::Value as Operand;
use ptx_passes::ir::{Compute, Mods, Reg, Rounding, TestKind, Type};

use super::Lower;
use super::registers::machine;
use crate::half_math;
use crate::helpers::Helper;
use crate::math::{RoundedOp, rounded_code};

impl Lower<'_, '_> {
    pub(crate) fn float_op(&mut self, op: Compute, ty: Type, mods: Mods, dst: Reg, src: &[Operand]) {
        let mut args: Vec<Value> = src.iter().map(|operand| self.get(*operand, ty)).collect();
        if let Compute::Testp(kind) = op {
            let result = self.test(kind, ty, args[0]);
            return self.set(dst, result, Type::Pred);
        }
        let flush = mods.ftz && ty == Type::F32;
        if flush {
            args = args.into_iter().map(|value| self.flush(value)).collect();
        }
        let mut value = self.float_value(op, ty, mods, &args);
        if flush && !matches!(op, Compute::Abs | Compute::Neg) {
            value = self.flush(value);
        }
        if mods.sat {
            value = self.saturate(value, ty);
        }
        self.set(dst, value, ty);
    }

    fn float_value(&mut self, op: Compute, ty: Type, mods: Mods, args: &[Value]) -> Value {
        let rounded = match op {
            Compute::Add => Some(RoundedOp::Add),
            Compute::Sub => Some(RoundedOp::Sub),
            Compute::Mul => Some(RoundedOp::Mul),
            Compute::Div => Some(RoundedOp::Div),
            Compute::Fma => Some(RoundedOp::Fma),
            Compute::Sqrt => Some(RoundedOp::Sqrt),
            Compute::Rcp => {
                let one = self.one(ty);
                return self.float_value(Compute::Div, ty, mods, &[one, args[0]]);
            }
            _ => None,
        };
        if let Some(rounded) = rounded {
            let inline = mods.rounding == Rounding::Nearest && (op != Compute::Fma || self.unit.has_fma);
            if !inline {
                return self.rounded(rounded, mods.rounding, ty, args);
            }
        }
        match op {
            Compute::Add => self.b.ins().fadd(args[0], args[1]),
            Compute::Sub => self.b.ins().fsub(args[0], args[1]),
            Compute::Mul => self.b.ins().fmul(args[0], args[1]),
            Compute::Div => self.b.ins().fdiv(args[0], args[1]),
            Compute::Fma => self.b.ins().fma(args[0], args[1], args[2]),
            Compute::Sqrt => self.b.ins().sqrt(args[0]),
            Compute::Rsqrt => {
                let root = self.b.ins().sqrt(args[0]);
                let one = self.one(ty);
                self.b.ins().fdiv(one, root)
            }
            Compute::Abs => self.b.ins().fabs(args[0]),
            Compute::Neg => self.b.ins().fneg(args[0]),
            Compute::Copysign => self.b.ins().fcopysign(args[1], args[0]),
            Compute::Min | Compute::Max => self.float_extreme(op == Compute::Min, mods, args[0], args[1]),
            Compute::Sin | Compute::Cos | Compute::Ex2 | Compute::Lg2 | Compute::Tanh if ty == Type::F32 => {
                let helper = match op {
                    Compute::Sin => Helper::Sin,
                    Compute::Cos => Helper::Cos,
                    Compute::Ex2 => Helper::Ex2,
                    Compute::Lg2 => Helper::Lg2,
                    _ => Helper::Tanh,
                };
                self.ask(helper, &[args[0]], types::F32)
            }
            _ => {
                self.abort(3);
                self.zero(machine(ty))
            }
        }
    }

    fn one(&mut self, ty: Type) -> Value {
        if ty == Type::F64 { self.b.ins().f64const(1.0) } else { self.b.ins().f32const(1.0) }
    }

    fn rounded(&mut self, op: RoundedOp, rounding: Rounding, ty: Type, args: &[Value]) -> Value {
        let code = self.int(types::I32, rounded_code(op, rounding));
        let zero = self.zero(machine(ty));
        let arg = |index: usize| args.get(index).copied().unwrap_or(zero);
        let helper = if ty == Type::F64 { Helper::Rounded64 } else { Helper::Rounded32 };
        self.ask(helper, &[code, arg(0), arg(1), arg(2)], machine(ty))
    }

    /// Denormal singles become zeros of the same sign.
    pub(crate) fn flush(&mut self, value: Value) -> Value {
        let size = self.b.ins().fabs(value);
        let smallest = self.b.ins().f32const(f32::MIN_POSITIVE);
        let denormal = self.b.ins().fcmp(FloatCC::LessThan, size, smallest);
        let zero = self.b.ins().f32const(0.0);
        let signed_zero = self.b.ins().fcopysign(zero, value);
        self.b.ins().select(denormal, signed_zero, value)
    }

    /// To [0, 1]; NaN and -0 become 0.
    pub(crate) fn saturate(&mut self, value: Value, ty: Type) -> Value {
        let (zero, one) = (self.zero(machine(ty)), self.one(ty));
        let below = self.b.ins().fcmp(FloatCC::UnorderedOrLessThanOrEqual, value, zero);
        let floor = self.b.ins().select(below, zero, value);
        let above = self.b.ins().fcmp(FloatCC::GreaterThan, floor, one);
        self.b.ins().select(above, one, floor)
    }

    /// A NaN loses against a number, unless `.NaN` says otherwise; a NaN that comes out is the canonical one.
    fn float_extreme(&mut self, min: bool, mods: Mods, a: Value, b: Value) -> Value {
        let (x, y) = if mods.variant { (self.b.ins().fabs(a), self.b.ins().fabs(b)) } else { (a, b) };
        let both = if min { self.b.ins().fmin(x, y) } else { self.b.ins().fmax(x, y) };
        let mut value = both;
        if !mods.nan {
            let x_nan = self.b.ins().fcmp(FloatCC::Unordered, x, x);
            let y_nan = self.b.ins().fcmp(FloatCC::Unordered, y, y);
            let without_y = self.b.ins().select(y_nan, x, both);
            value = self.b.ins().select(x_nan, y, without_y);
        }
        // Hardware does so for singles alone.
        if self.b.func.dfg.value_type(value) == types::F32 {
            let (nan, canonical) = (self.is_nan(value), self.b.ins().f32const(f32::from_bits(0x7fff_ffff)));
            value = self.b.ins().select(nan, canonical, value);
        }
        if mods.variant {
            // `.xorsign.abs`: the product's sign.
            let class = self.b.func.dfg.value_type(a);
            let word = if class == types::F64 { types::I64 } else { types::I32 };
            let flags = MemFlagsData::new;
            let (i, j) = (self.b.ins().bitcast(word, flags(), a), self.b.ins().bitcast(word, flags(), b));
            let sign = self.b.ins().bxor(i, j);
            let sign = self.b.ins().bitcast(class, flags(), sign);
            value = self.b.ins().fcopysign(value, sign);
        }
        value
    }

    fn test(&mut self, kind: TestKind, ty: Type, value: Value) -> Value {
        let size = self.b.ins().fabs(value);
        let (infinity, smallest) = if ty == Type::F64 {
            (self.b.ins().f64const(f64::INFINITY), self.b.ins().f64const(f64::MIN_POSITIVE))
        } else {
            (self.b.ins().f32const(f32::INFINITY), self.b.ins().f32const(f32::MIN_POSITIVE))
        };
        let zero = self.zero(machine(ty));
        match kind {
            TestKind::Finite => self.b.ins().fcmp(FloatCC::LessThan, size, infinity),
            TestKind::Infinite => self.b.ins().fcmp(FloatCC::Equal, size, infinity),
            TestKind::Number => self.b.ins().fcmp(FloatCC::Ordered, size, size),
            TestKind::NotANumber => self.b.ins().fcmp(FloatCC::Unordered, size, size),
            TestKind::Normal => {
                // Zero counts as normal.
                let small = self.b.ins().fcmp(FloatCC::GreaterThanOrEqual, size, smallest);
                let none = self.b.ins().fcmp(FloatCC::Equal, size, zero);
                let large = self.b.ins().bor(small, none);
                let finite = self.b.ins().fcmp(FloatCC::LessThan, size, infinity);
                self.b.ins().band(large, finite)
            }
            TestKind::Subnormal => {
                let small = self.b.ins().fcmp(FloatCC::LessThan, size, smallest);
                let some = self.b.ins().fcmp(FloatCC::GreaterThan, size, zero);
                self.b.ins().band(small, some)
            }
        }
    }

    /// A half (an integer here) as a single.
    pub(crate) fn half_to_single(&mut self, value: Value, ty: Type) -> Value {
        let wide = self.fit(value, types::I32, false);
        if ty == Type::BF16 {
            let bits = self.b.ins().ishl_imm_u(wide, 16);
            return self.b.ins().bitcast(types::F32, MemFlagsData::new(), bits);
        }
        let code = self.int(types::I32, half_math::format_code(false, Rounding::Nearest));
        self.ask(Helper::HalfToSingle, &[code, wide], types::F32)
    }

    /// Arithmetic on one half.
    pub(crate) fn half(&mut self, op: Compute, ty: Type, mods: Mods, args: &[Value]) -> Value {
        if let Compute::Testp(kind) = op {
            let single = self.half_to_single(args[0], ty);
            return self.test(kind, Type::F32, single);
        }
        let Some(code) = half_math::operation_code(op, ty == Type::BF16, mods) else {
            self.abort(3);
            return self.zero(types::I16);
        };
        let code = self.int(types::I32, code);
        let mut wide: Vec<Value> = args.iter().map(|value| self.fit(*value, types::I32, false)).collect();
        let zero = self.int(types::I32, 0);
        wide.resize(3, zero);
        let result = self.ask(Helper::Half, &[code, wide[0], wide[1], wide[2]], types::I32);
        self.b.ins().ireduce(types::I16, result)
    }

    /// Arithmetic on both halves of 32 bits.
    pub(crate) fn packed(&mut self, op: Compute, ty: Type, mods: Mods, dst: Reg, src: &[Operand]) {
        let words: Vec<Value> = src.iter().map(|operand| self.get(*operand, ty)).collect();
        let lows: Vec<Value> = words.iter().map(|word| self.b.ins().ireduce(types::I16, *word)).collect();
        let highs: Vec<Value> = words
            .iter()
            .map(|word| {
                let moved = self.b.ins().ushr_imm_u(*word, 16);
                self.b.ins().ireduce(types::I16, moved)
            })
            .collect();
        let low = self.half(op, ty.element(), mods, &lows);
        let high = self.half(op, ty.element(), mods, &highs);
        let value = self.join(low, high);
        self.set(dst, value, ty);
    }

    /// Two halves into 32 bits.
    pub(crate) fn join(&mut self, low: Value, high: Value) -> Value {
        let (low, high) = (self.fit(low, types::I32, false), self.fit(high, types::I32, false));
        let high = self.b.ins().ishl_imm_u(high, 16);
        self.b.ins().bor(low, high)
    }

    /// 1 where the value is NaN.
    pub(crate) fn is_nan(&mut self, value: Value) -> Value {
        self.b.ins().fcmp(FloatCC::Unordered, value, value)
    }

    /// Clamps an integer to what `ty` can hold.
    pub(crate) fn clamp_int(&mut self, value: Value, low: i64, high: i64, signed: bool) -> Value {
        let class = self.b.func.dfg.value_type(value);
        let (low, high) = (self.int(class, low), self.int(class, high));
        if signed {
            let floor = self.b.ins().smax(value, low);
            self.b.ins().smin(floor, high)
        } else {
            self.b.ins().umin(value, high)
        }
    }
}
