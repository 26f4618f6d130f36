//! Integer arithmetic. Nothing here may trap, whatever the operands are.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use ptx_passes::ir::Value as Operand;
use ptx_passes::ir::{Compute, Mods, PrmtMode, Reg, Type};

use super::Lower;
use super::registers::machine;
use crate::helpers::Helper;

impl Lower<'_, '_> {
    pub(crate) fn int_op(&mut self, op: Compute, ty: Type, mods: Mods, dst: Reg, src: &[Operand]) {
        let signed = ty.is_signed();
        let width = machine(ty);
        let get = |lower: &mut Self, index: usize| lower.get(src[index], ty);
        let mut of = ty;
        let value = match op {
            Compute::Add | Compute::Sub if mods.sat => {
                let (a, b) = (get(self, 0), get(self, 1));
                self.saturated(op, a, b)
            }
            Compute::Add => {
                let (a, b) = (get(self, 0), get(self, 1));
                self.b.ins().iadd(a, b)
            }
            Compute::Sub => {
                let (a, b) = (get(self, 0), get(self, 1));
                self.b.ins().isub(a, b)
            }
            Compute::Mul => {
                let (a, b) = (get(self, 0), get(self, 1));
                self.b.ins().imul(a, b)
            }
            Compute::Mad => {
                let (a, b, c) = (get(self, 0), get(self, 1), get(self, 2));
                let product = self.b.ins().imul(a, b);
                self.b.ins().iadd(product, c)
            }
            Compute::MulHi => {
                let (a, b) = (get(self, 0), get(self, 1));
                self.high_product(a, b, signed)
            }
            Compute::MadHi => {
                let (a, b, c) = (get(self, 0), get(self, 1), get(self, 2));
                let high = self.high_product(a, b, signed);
                if mods.sat { self.saturated(Compute::Add, high, c) } else { self.b.ins().iadd(high, c) }
            }
            Compute::MulWide | Compute::MadWide => {
                of = wide(ty);
                let double = machine(of);
                let (a, b) = (get(self, 0), get(self, 1));
                let (a, b) = (self.fit(a, double, signed), self.fit(b, double, signed));
                let product = self.b.ins().imul(a, b);
                if op == Compute::MadWide {
                    let c = self.get(src[2], of);
                    self.b.ins().iadd(product, c)
                } else {
                    product
                }
            }
            Compute::Mul24 | Compute::Mad24 | Compute::Mul24Hi => {
                let (a, b) = (get(self, 0), get(self, 1));
                let (a, b) = (self.cut24(a, signed), self.cut24(b, signed));
                let product = self.b.ins().imul(a, b);
                let shifted = if op == Compute::Mul24Hi { self.b.ins().ushr_imm_u(product, 16) } else { product };
                let low = self.b.ins().ireduce(types::I32, shifted);
                if op == Compute::Mad24 {
                    let c = get(self, 2);
                    self.b.ins().iadd(low, c)
                } else {
                    low
                }
            }
            Compute::Div | Compute::Rem => {
                let (a, b) = (get(self, 0), get(self, 1));
                self.divide(op == Compute::Div, a, b, ty)
            }
            Compute::Abs => {
                let a = get(self, 0);
                self.b.ins().iabs(a)
            }
            Compute::Neg => {
                let a = get(self, 0);
                self.b.ins().ineg(a)
            }
            Compute::Min | Compute::Max => {
                let (a, b) = (get(self, 0), get(self, 1));
                let value = self.extreme(op == Compute::Min, a, b, signed);
                if mods.relu {
                    let zero = self.int(width, 0);
                    self.b.ins().smax(value, zero)
                } else {
                    value
                }
            }
            Compute::Sad => {
                let (a, b, c) = (get(self, 0), get(self, 1), get(self, 2));
                let (low, high) = (self.extreme(true, a, b, signed), self.extreme(false, a, b, signed));
                let distance = self.b.ins().isub(high, low);
                self.b.ins().iadd(distance, c)
            }
            Compute::And => {
                let (a, b) = (get(self, 0), get(self, 1));
                self.b.ins().band(a, b)
            }
            Compute::Or => {
                let (a, b) = (get(self, 0), get(self, 1));
                self.b.ins().bor(a, b)
            }
            Compute::Xor => {
                let (a, b) = (get(self, 0), get(self, 1));
                self.b.ins().bxor(a, b)
            }
            Compute::Not => {
                let a = get(self, 0);
                if ty == Type::Pred { self.b.ins().bxor_imm_s(a, 1) } else { self.b.ins().bnot(a) }
            }
            Compute::Cnot => {
                let a = get(self, 0);
                let zero = self.not(a);
                self.fit(zero, width, false)
            }
            Compute::Shl | Compute::Shr => {
                let a = get(self, 0);
                self.shift(op == Compute::Shl, a, src[1], ty)
            }
            Compute::FunnelLeft | Compute::FunnelRight => {
                let (low, high, amount) = (get(self, 0), get(self, 1), get(self, 2));
                self.funnel(op == Compute::FunnelLeft, mods.variant, low, high, amount)
            }
            Compute::Lop3 => self.lop3(ty, src),
            Compute::Prmt(mode) => {
                let (a, b, c) = (get(self, 0), get(self, 1), get(self, 2));
                self.permute(mode, a, b, c, src[2])
            }
            Compute::Bfe => self.extract(ty, src),
            Compute::Bfi => self.insert(ty, src),
            Compute::Bfind => {
                of = Type::U32;
                let a = get(self, 0);
                self.find_bit(a, ty, mods.variant)
            }
            Compute::Bmsk => {
                let (a, b) = (get(self, 0), get(self, 1));
                self.bit_mask(a, b, mods.variant)
            }
            Compute::Szext => {
                let (a, n) = (get(self, 0), get(self, 1));
                self.size_extend(a, n, signed, mods.variant)
            }
            Compute::Brev => {
                let a = get(self, 0);
                self.b.ins().bitrev(a)
            }
            Compute::Clz | Compute::Popc => {
                of = Type::U32;
                let a = get(self, 0);
                let count = if op == Compute::Clz { self.b.ins().clz(a) } else { self.b.ins().popcnt(a) };
                self.fit(count, types::I32, false)
            }
            Compute::Fns => {
                let (a, b, c) = (get(self, 0), get(self, 1), get(self, 2));
                self.ask(Helper::Fns, &[a, b, c], types::I32)
            }
            Compute::Dp4a(a, b) => self.dot(src, 4, a, b, 0),
            Compute::Dp2a(a, b, high) => self.dot(src, 2, a, b, if high { 2 } else { 0 }),
            _ => {
                self.abort(3);
                self.zero(width)
            }
        };
        self.set(dst, value, of);
    }

    /// Signed addition or subtraction that stops at the ends of the range.
    fn saturated(&mut self, op: Compute, a: Value, b: Value) -> Value {
        let (a, b) = (self.fit(a, types::I64, true), self.fit(b, types::I64, true));
        let exact = if op == Compute::Add { self.b.ins().iadd(a, b) } else { self.b.ins().isub(a, b) };
        let (low, high) = (self.int(types::I64, i64::from(i32::MIN)), self.int(types::I64, i64::from(i32::MAX)));
        let floor = self.b.ins().smax(exact, low);
        let clamped = self.b.ins().smin(floor, high);
        self.b.ins().ireduce(types::I32, clamped)
    }

    pub(crate) fn high_product(&mut self, a: Value, b: Value, signed: bool) -> Value {
        let ty = self.b.func.dfg.value_type(a);
        if ty == types::I64 {
            return if signed { self.b.ins().smulhi(a, b) } else { self.b.ins().umulhi(a, b) };
        }
        let (a, b) = (self.fit(a, types::I64, signed), self.fit(b, types::I64, signed));
        let product = self.b.ins().imul(a, b);
        let high = self.b.ins().ushr_imm_u(product, i64::from(ty.bits()));
        self.b.ins().ireduce(ty, high)
    }

    fn cut24(&mut self, value: Value, signed: bool) -> Value {
        let wide = self.fit(value, types::I64, false);
        let up = self.b.ins().ishl_imm_u(wide, 40);
        if signed { self.b.ins().sshr_imm_u(up, 40) } else { self.b.ins().ushr_imm_u(up, 40) }
    }

    /// Division by zero gives all ones, its remainder the dividend; overflow wraps. The machine would trap.
    fn divide(&mut self, quotient: bool, a: Value, b: Value, ty: Type) -> Value {
        let width = machine(ty);
        let zero = self.b.ins().icmp_imm_u(IntCC::Equal, b, 0);
        let one = self.int(width, 1);
        let mut divisor = self.b.ins().select(zero, one, b);
        let result = if ty.is_signed() {
            // -1 is done by negation, because the smallest number has no positive counterpart.
            let minus = self.b.ins().icmp_imm_s(IntCC::Equal, b, -1);
            divisor = self.b.ins().select(minus, one, divisor);
            if quotient {
                let plain = self.b.ins().sdiv(a, divisor);
                let negated = self.b.ins().ineg(a);
                self.b.ins().select(minus, negated, plain)
            } else {
                self.b.ins().srem(a, divisor)
            }
        } else if quotient {
            self.b.ins().udiv(a, divisor)
        } else {
            self.b.ins().urem(a, divisor)
        };
        let undefined = if quotient { self.int(width, -1) } else { a };
        self.b.ins().select(zero, undefined, result)
    }

    fn extreme(&mut self, min: bool, a: Value, b: Value, signed: bool) -> Value {
        match (min, signed) {
            (true, true) => self.b.ins().smin(a, b),
            (true, false) => self.b.ins().umin(a, b),
            (false, true) => self.b.ins().smax(a, b),
            (false, false) => self.b.ins().umax(a, b),
        }
    }

    /// Amounts beyond the width shift everything out.
    fn shift(&mut self, left: bool, a: Value, amount: Operand, ty: Type) -> Value {
        let signed = ty.is_signed();
        let bits = i64::from(ty.bits());
        if let Operand::Bits(amount) = amount {
            let amount = amount & 0xffff_ffff;
            return match (left, signed, amount as i64 >= bits) {
                (true, _, false) => self.b.ins().ishl_imm_u(a, amount as i64),
                (false, false, false) => self.b.ins().ushr_imm_u(a, amount as i64),
                (false, true, out) => self.b.ins().sshr_imm_u(a, if out { bits - 1 } else { amount as i64 }),
                _ => self.int(machine(ty), 0),
            };
        }
        let amount = self.get(amount, Type::U32);
        if !left && signed {
            let most = self.int(types::I32, bits - 1);
            let amount = self.b.ins().umin(amount, most);
            return self.b.ins().sshr(a, amount);
        }
        let shifted = if left { self.b.ins().ishl(a, amount) } else { self.b.ins().ushr(a, amount) };
        let inside = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, amount, bits);
        let zero = self.int(machine(ty), 0);
        self.b.ins().select(inside, shifted, zero)
    }

    fn funnel(&mut self, left: bool, wrap: bool, low: Value, high: Value, amount: Value) -> Value {
        let amount = if wrap {
            self.b.ins().band_imm_u(amount, 31)
        } else {
            let most = self.int(types::I32, 32);
            self.b.ins().umin(amount, most)
        };
        let (low, high) = (self.fit(low, types::I64, false), self.fit(high, types::I64, false));
        let high = self.b.ins().ishl_imm_u(high, 32);
        let both = self.b.ins().bor(low, high);
        if left {
            let shifted = self.b.ins().ishl(both, amount);
            let top = self.b.ins().ushr_imm_u(shifted, 32);
            self.b.ins().ireduce(types::I32, top)
        } else {
            let shifted = self.b.ins().ushr(both, amount);
            self.b.ins().ireduce(types::I32, shifted)
        }
    }

    /// Any function of three bits, by its truth table.
    fn lop3(&mut self, ty: Type, src: &[Operand]) -> Value {
        let Operand::Bits(table) = src[3] else {
            self.abort(3);
            return self.zero(machine(ty));
        };
        let [a, b, c] = [0, 1, 2].map(|index| self.get(src[index], ty));
        let nots = [a, b, c].map(|value| self.b.ins().bnot(value));
        let mut result = None;
        for row in 0..8 {
            if table >> row & 1 == 1 {
                let pick = |bit: u64, index: usize, yes: Value| if row & bit != 0 { yes } else { nots[index] };
                let (x, y, z) = (pick(4, 0, a), pick(2, 1, b), pick(1, 2, c));
                let pair = self.b.ins().band(x, y);
                let term = self.b.ins().band(pair, z);
                result = Some(match result {
                    Some(sum) => self.b.ins().bor(sum, term),
                    None => term,
                });
            }
        }
        result.unwrap_or_else(|| self.zero(machine(ty)))
    }

    /// Bytes 0 to 3 come from a, 4 to 7 from b.
    fn permute(&mut self, mode: PrmtMode, a: Value, b: Value, c: Value, selector: Operand) -> Value {
        let (low, high) = (self.fit(a, types::I64, false), self.fit(b, types::I64, false));
        let high = self.b.ins().ishl_imm_u(high, 32);
        let bytes = self.b.ins().bor(low, high);
        let fixed = if let Operand::Bits(bits) = selector { Some(bits as u32) } else { None };
        let mut result = self.int(types::I32, 0);
        for place in 0..4i64 {
            let (index, sign) = if mode == PrmtMode::Index {
                match fixed {
                    Some(bits) => {
                        let nibble = i64::from(bits >> (4 * place) & 15);
                        (self.int(types::I32, nibble & 7), Some(Err(nibble & 8 != 0)))
                    }
                    None => {
                        let nibble = self.b.ins().ushr_imm_u(c, 4 * place);
                        let sign = self.b.ins().band_imm_u(nibble, 8);
                        (self.b.ins().band_imm_u(nibble, 7), Some(Ok(sign)))
                    }
                }
            } else {
                let selector = self.b.ins().band_imm_u(c, 3);
                let index = match mode {
                    PrmtMode::Forward4 => self.b.ins().iadd_imm_s(selector, place),
                    PrmtMode::Backward4 => {
                        let moved = self.b.ins().iadd_imm_s(selector, 8 - place);
                        self.b.ins().band_imm_u(moved, 7)
                    }
                    PrmtMode::Replicate8 => selector,
                    PrmtMode::EdgeClampLeft => {
                        let place = self.int(types::I32, place);
                        self.b.ins().umax(selector, place)
                    }
                    PrmtMode::EdgeClampRight => {
                        let place = self.int(types::I32, place);
                        self.b.ins().umin(selector, place)
                    }
                    _ => {
                        let half = self.b.ins().band_imm_u(selector, 1);
                        let double = self.b.ins().ishl_imm_u(half, 1);
                        self.b.ins().iadd_imm_s(double, place & 1)
                    }
                };
                (index, None)
            };
            let bits = self.b.ins().ishl_imm_u(index, 3);
            let moved = self.b.ins().ushr(bytes, bits);
            let byte = self.b.ins().ireduce(types::I8, moved);
            let byte = match sign {
                None | Some(Err(false)) => byte,
                Some(Err(true)) => self.b.ins().sshr_imm_u(byte, 7),
                Some(Ok(sign)) => {
                    let spread = self.b.ins().sshr_imm_u(byte, 7);
                    self.b.ins().select(sign, spread, byte)
                }
            };
            let wide = self.b.ins().uextend(types::I32, byte);
            let placed = self.b.ins().ishl_imm_u(wide, 8 * place);
            result = self.b.ins().bor(result, placed);
        }
        result
    }

    /// Position and length of bit fields: 8 bits each count, and 64-bit arithmetic has room for all of them.
    fn field_bounds(&mut self, position: Operand, length: Operand) -> (Value, Value) {
        let one = |lower: &mut Self, operand: Operand| {
            let value = lower.get(operand, Type::U32);
            lower.b.ins().band_imm_u(value, 0xff)
        };
        (one(self, position), one(self, length))
    }

    fn extract(&mut self, ty: Type, src: &[Operand]) -> Value {
        let a = self.get(src[0], ty);
        let (position, length) = self.field_bounds(src[1], src[2]);
        let bits = i64::from(ty.bits());
        let width = machine(ty);
        // Bits above the value are zero, or copies of the sign bit at min(position + length - 1, last bit).
        let last = self.int(types::I32, bits - 1);
        let end = self.b.ins().iadd(position, length);
        let end = self.b.ins().iadd_imm_s(end, -1);
        let sign_place = self.b.ins().umin(end, last);
        let fill = if ty.is_signed() {
            let moved = self.b.ins().ushr(a, sign_place);
            let bit = self.b.ins().band_imm_u(moved, 1);
            let empty = self.not(length);
            let spread = self.b.ins().ineg(bit);
            let zero = self.int(width, 0);
            self.b.ins().select(empty, zero, spread)
        } else {
            self.int(width, 0)
        };
        // a >> position, with the fill coming in from above.
        let in_range = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, position, bits);
        let shifted = if ty.is_signed() { self.b.ins().sshr(a, position) } else { self.b.ins().ushr(a, position) };
        let value = self.b.ins().select(in_range, shifted, fill);
        let mask = self.low_mask(length, ty);
        let kept = self.b.ins().band(value, mask);
        let unmask = self.b.ins().bnot(mask);
        let upper = self.b.ins().band(fill, unmask);
        self.b.ins().bor(kept, upper)
    }

    /// The lowest `count` bits set; all of them from the width on.
    fn low_mask(&mut self, count: Value, ty: Type) -> Value {
        let width = machine(ty);
        let one = self.int(width, 1);
        let power = self.b.ins().ishl(one, count);
        let mask = self.b.ins().iadd_imm_s(power, -1);
        let all = self.int(width, -1);
        let inside = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, count, i64::from(ty.bits()));
        self.b.ins().select(inside, mask, all)
    }

    fn insert(&mut self, ty: Type, src: &[Operand]) -> Value {
        let (a, b) = (self.get(src[0], ty), self.get(src[1], ty));
        let (position, length) = self.field_bounds(src[2], src[3]);
        let width = machine(ty);
        let mask = self.low_mask(length, ty);
        let zero = self.int(width, 0);
        let in_range = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, position, i64::from(ty.bits()));
        let moved_mask = self.b.ins().ishl(mask, position);
        let moved_mask = self.b.ins().select(in_range, moved_mask, zero);
        let moved = self.b.ins().ishl(a, position);
        let new = self.b.ins().band(moved, moved_mask);
        let keep = self.b.ins().bnot(moved_mask);
        let old = self.b.ins().band(b, keep);
        self.b.ins().bor(new, old)
    }

    /// The highest bit that is not a sign bit; all ones when there is none.
    fn find_bit(&mut self, a: Value, ty: Type, shift_amount: bool) -> Value {
        let bits = i64::from(ty.bits());
        let magnitude = if ty.is_signed() {
            let sign = self.b.ins().sshr_imm_u(a, bits - 1);
            self.b.ins().bxor(a, sign)
        } else {
            a
        };
        let zeros = self.b.ins().clz(magnitude);
        let zeros = self.fit(zeros, types::I32, false);
        let found = if shift_amount {
            zeros
        } else {
            let last = self.int(types::I32, bits - 1);
            self.b.ins().isub(last, zeros)
        };
        let none = self.not(magnitude);
        let all = self.int(types::I32, -1);
        self.b.ins().select(none, all, found)
    }

    fn bit_mask(&mut self, position: Value, length: Value, wrap: bool) -> Value {
        let (position, length) = if wrap {
            (self.b.ins().band_imm_u(position, 31), self.b.ins().band_imm_u(length, 31))
        } else {
            let most = self.int(types::I32, 32);
            (self.b.ins().umin(position, most), self.b.ins().umin(length, most))
        };
        // In 64 bits neither shift runs over.
        let one = self.int(types::I64, 1);
        let power = self.b.ins().ishl(one, length);
        let mask = self.b.ins().iadd_imm_s(power, -1);
        let moved = self.b.ins().ishl(mask, position);
        self.b.ins().ireduce(types::I32, moved)
    }

    fn size_extend(&mut self, a: Value, size: Value, signed: bool, wrap: bool) -> Value {
        let size = if wrap {
            self.b.ins().band_imm_u(size, 31)
        } else {
            let most = self.int(types::I32, 32);
            self.b.ins().umin(size, most)
        };
        let full = self.int(types::I32, 64);
        let away = self.b.ins().isub(full, size);
        let wide = self.fit(a, types::I64, false);
        // A size of 0 shifts by 64, which the machine takes as 0.
        let up = self.b.ins().ishl(wide, away);
        let down = if signed { self.b.ins().sshr(up, away) } else { self.b.ins().ushr(up, away) };
        let low = self.b.ins().ireduce(types::I32, down);
        let empty = self.not(size);
        let zero = self.int(types::I32, 0);
        self.b.ins().select(empty, zero, low)
    }

    /// Sum of products of parts; parts of b start at byte `first`.
    fn dot(&mut self, src: &[Operand], parts: i64, a_signed: bool, b_signed: bool, first: i64) -> Value {
        let (a, b) = (self.get(src[0], Type::B32), self.get(src[1], Type::B32));
        let mut sum = self.get(src[2], Type::B32);
        let part = |lower: &mut Self, value: Value, at: i64, size: i64, signed: bool| {
            let up = lower.b.ins().ishl_imm_u(value, 32 - size - at);
            if signed { lower.b.ins().sshr_imm_u(up, 32 - size) } else { lower.b.ins().ushr_imm_u(up, 32 - size) }
        };
        for index in 0..parts {
            let x = part(self, a, index * (32 / parts), 32 / parts, a_signed);
            let y = part(self, b, (first + index) * 8, 8, b_signed);
            let product = self.b.ins().imul(x, y);
            sum = self.b.ins().iadd(sum, product);
        }
        sum
    }
}

fn wide(ty: Type) -> Type {
    match ty {
        Type::U16 | Type::B16 => Type::U32,
        Type::S16 => Type::S32,
        Type::S32 => Type::S64,
        _ => Type::U64,
    }
}
