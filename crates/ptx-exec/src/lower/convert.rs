//! Conversions between numbers.

use cranelift_codegen::ir::{InstBuilder, Value, types};
use ptx_passes::ir::Value as Operand;
use ptx_passes::ir::{Mods, Reg, Rounding, Type};

use super::Lower;
use super::registers::machine;
use crate::half_math::format_code;
use crate::helpers::Helper;
use crate::math::rounding_code;

impl Lower<'_, '_> {
    #[expect(clippy::too_many_arguments, reason = "the fields of one instruction")]
    pub(crate) fn convert(
        &mut self,
        to: Type,
        from: Type,
        rounding: Rounding,
        integral: bool,
        mods: Mods,
        dst: Reg,
        src: Operand,
    ) {
        let value = self.get(src, from);
        let result = match (from.is_float(), to.is_float()) {
            (false, false) => self.int_to_int(value, from, to, mods.sat),
            (false, true) => self.int_to_float(value, from, to, rounding, mods),
            (true, false) => self.float_to_int(value, from, to, rounding, mods),
            (true, true) => self.float_to_float(value, from, to, rounding, integral, mods),
        };
        self.set(dst, result, to);
    }

    fn int_to_int(&mut self, value: Value, from: Type, to: Type, saturate: bool) -> Value {
        let signed = from.is_signed();
        if !saturate {
            return self.fit(value, machine(to), signed);
        }
        // In 64 bits, except that unsigned 64-bit numbers do not fit into signed ones.
        let wide = self.fit(value, types::I64, signed);
        let (low, high) = range(to);
        let clamped = if signed {
            let high = if to == Type::U64 { i64::MAX } else { high };
            self.clamp_int(wide, low, high, true)
        } else {
            self.clamp_int(wide, 0, high, false)
        };
        self.fit(clamped, machine(to), false)
    }

    fn int_to_float(&mut self, value: Value, from: Type, to: Type, rounding: Rounding, mods: Mods) -> Value {
        let signed = from.is_signed();
        if matches!(to, Type::F16 | Type::BF16) {
            let exact = self.int_to_float(value, from, Type::F64, Rounding::Nearest, Mods::default());
            return self.make_half(exact, to, rounding, mods);
        }
        let class = machine(to);
        let result = if rounding != Rounding::Nearest {
            let wide = self.fit(value, types::I64, signed);
            let code = self.int(types::I32, rounding_code(rounding) | if signed { 4 } else { 0 });
            let helper = if to == Type::F64 { Helper::IntTo64 } else { Helper::IntTo32 };
            self.ask(helper, &[code, wide], class)
        } else if signed {
            let wide = if from.bits() < 32 { self.fit(value, types::I32, true) } else { value };
            self.b.ins().fcvt_from_sint(class, wide)
        } else {
            // Numbers of 32 bits are positive in 64.
            let wide = self.fit(value, types::I64, false);
            if from.bits() < 64 {
                self.b.ins().fcvt_from_sint(class, wide)
            } else {
                self.b.ins().fcvt_from_uint(class, wide)
            }
        };
        if mods.sat { self.saturate(result, to) } else { result }
    }

    fn float_to_int(&mut self, value: Value, from: Type, to: Type, rounding: Rounding, mods: Mods) -> Value {
        let mut value = value;
        if matches!(from, Type::F16 | Type::BF16) {
            value = self.half_to_single(value, from);
        } else if mods.ftz && from == Type::F32 {
            value = self.flush(value);
        }
        let rounded = self.round(value, rounding);
        let width = if to.bits() == 64 { types::I64 } else { types::I32 };
        let signed = to.is_signed();
        // Both clamp to the range and turn NaN into zero.
        let converted = if signed {
            self.b.ins().fcvt_to_sint_sat(width, rounded)
        } else {
            self.b.ins().fcvt_to_uint_sat(width, rounded)
        };
        let (low, high) = range(to);
        let narrowed = if to.bits() < 32 { self.clamp_int(converted, low, high, signed) } else { converted };
        let result = self.fit(narrowed, machine(to), signed);
        // Where 64 bits are involved, the hardware turns NaN into the highest bit alone.
        if from == Type::F64 || to.bits() == 64 {
            let nan = self.is_nan(value);
            let top = self.int(machine(to), 1 << (to.bits() - 1));
            return self.b.ins().select(nan, top, result);
        }
        result
    }

    fn round(&mut self, value: Value, rounding: Rounding) -> Value {
        match rounding {
            Rounding::Nearest => self.b.ins().nearest(value),
            Rounding::Zero => self.b.ins().trunc(value),
            Rounding::Down => self.b.ins().floor(value),
            Rounding::Up => self.b.ins().ceil(value),
        }
    }

    fn float_to_float(
        &mut self,
        value: Value,
        from: Type,
        to: Type,
        rounding: Rounding,
        integral: bool,
        mods: Mods,
    ) -> Value {
        let half = |ty: Type| matches!(ty, Type::F16 | Type::BF16);
        let mut value = value;
        let mut from = from;
        if half(from) {
            if from == to && !integral && !mods.sat && !mods.relu {
                return value;
            }
            value = self.half_to_single(value, from);
            from = Type::F32;
        }
        if mods.ftz && from == Type::F32 {
            value = self.flush(value);
        }
        if integral {
            value = self.round(value, rounding);
        }
        if half(to) {
            let wide = if from == Type::F64 { value } else { self.b.ins().fpromote(types::F64, value) };
            return self.make_half(wide, to, if integral { Rounding::Nearest } else { rounding }, mods);
        }
        let mut result = match (from, to) {
            (Type::F32, Type::F64) => self.b.ins().fpromote(types::F64, value),
            (Type::F64, Type::F32) if rounding == Rounding::Nearest || integral => {
                self.b.ins().fdemote(types::F32, value)
            }
            (Type::F64, Type::F32) => {
                let code = self.int(types::I32, rounding_code(rounding));
                self.ask(Helper::Narrow, &[code, value], types::F32)
            }
            _ => value,
        };
        if mods.ftz && to == Type::F32 {
            result = self.flush(result);
        }
        if mods.sat { self.saturate(result, to) } else { result }
    }

    /// A double to a half.
    fn make_half(&mut self, value: Value, to: Type, rounding: Rounding, mods: Mods) -> Value {
        let mut value = value;
        if mods.sat {
            value = self.saturate(value, Type::F64);
        }
        if mods.relu {
            let zero = self.b.ins().f64const(0.0);
            let negative = self.b.ins().fcmp(cranelift_codegen::ir::condcodes::FloatCC::LessThanOrEqual, value, zero);
            value = self.b.ins().select(negative, zero, value);
        }
        let code = self.int(types::I32, format_code(to == Type::BF16, rounding));
        let bits = self.ask(Helper::DoubleToHalf, &[code, value], types::I32);
        let bits = self.b.ins().ireduce(types::I16, bits);
        let nan = self.is_nan(value);
        let canonical = self.int(types::I16, 0x7fff);
        self.b.ins().select(nan, canonical, bits)
    }

    /// Two singles into a packed pair.
    pub(crate) fn convert_pair(&mut self, to: Type, mods: Mods, dst: Reg, high: Operand, low: Operand) {
        let parts = [low, high].map(|operand| {
            let value = self.get(operand, Type::F32);
            let wide = self.b.ins().fpromote(types::F64, value);
            self.make_half(wide, to.element(), mods.rounding, mods)
        });
        let value = self.join(parts[0], parts[1]);
        self.set(dst, value, to);
    }
}

/// The smallest and largest number of an integer type, as 64 bits.
fn range(ty: Type) -> (i64, i64) {
    match (ty.is_signed(), ty.bits()) {
        (true, 64) => (i64::MIN, i64::MAX),
        (true, bits) => (-1 << (bits - 1), (1 << (bits - 1)) - 1),
        (false, 64) => (0, -1),
        (false, bits) => (0, (1 << bits) - 1),
    }
}
