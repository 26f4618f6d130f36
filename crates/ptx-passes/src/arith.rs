//! The table of arithmetic instructions, comparisons and conversions.

use ptx::ast::Operand;

use super::CheckError;
use super::decode::{Form, expect};
use super::function::Builder;
use super::ir::*;

type Result<T> = std::result::Result<T, CheckError>;

/// The types an instruction is defined for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Int,
    Float,
    Number,
    Bits,
    Any,
}

impl On {
    fn accepts(self, ty: Type) -> bool {
        let float = ty.is_float() || ty.is_packed();
        let int = !float && ty != Type::Pred && ty.bits() <= 64;
        match self {
            On::Int => int,
            On::Float => float,
            On::Number => int || float,
            On::Bits => int || ty == Type::Pred,
            On::Any => true,
        }
    }
}

/// Name, operation, number of sources, types.
const TABLE: &[(&str, Compute, usize, On)] = &[
    ("add", Compute::Add, 2, On::Number),
    ("sub", Compute::Sub, 2, On::Number),
    ("div", Compute::Div, 2, On::Number),
    ("rem", Compute::Rem, 2, On::Int),
    ("abs", Compute::Abs, 1, On::Number),
    ("neg", Compute::Neg, 1, On::Number),
    ("min", Compute::Min, 2, On::Number),
    ("max", Compute::Max, 2, On::Number),
    ("sad", Compute::Sad, 3, On::Int),
    ("and", Compute::And, 2, On::Bits),
    ("or", Compute::Or, 2, On::Bits),
    ("xor", Compute::Xor, 2, On::Bits),
    ("not", Compute::Not, 1, On::Bits),
    ("cnot", Compute::Cnot, 1, On::Int),
    ("shl", Compute::Shl, 2, On::Int),
    ("shr", Compute::Shr, 2, On::Int),
    ("lop3", Compute::Lop3, 4, On::Int),
    ("bfe", Compute::Bfe, 3, On::Int),
    ("bfi", Compute::Bfi, 4, On::Int),
    ("bfind", Compute::Bfind, 1, On::Int),
    ("szext", Compute::Szext, 2, On::Int),
    ("bmsk", Compute::Bmsk, 2, On::Int),
    ("brev", Compute::Brev, 1, On::Int),
    ("clz", Compute::Clz, 1, On::Int),
    ("popc", Compute::Popc, 1, On::Int),
    ("fns", Compute::Fns, 3, On::Int),
    ("fma", Compute::Fma, 3, On::Float),
    ("rcp", Compute::Rcp, 1, On::Float),
    ("sqrt", Compute::Sqrt, 1, On::Float),
    ("rsqrt", Compute::Rsqrt, 1, On::Float),
    ("sin", Compute::Sin, 1, On::Float),
    ("cos", Compute::Cos, 1, On::Float),
    ("lg2", Compute::Lg2, 1, On::Float),
    ("ex2", Compute::Ex2, 1, On::Float),
    ("tanh", Compute::Tanh, 1, On::Float),
    ("copysign", Compute::Copysign, 2, On::Float),
    ("selp", Compute::Selp, 3, On::Any),
];

/// Names of PTX that this device does not implement (yet). Anything else that is unknown is an error in the text.
const ELSEWHERE: &[&str] = &[
    "istypep",
    "wgmma",
    "multimem",
    "alloca",
    "stacksave",
    "stackrestore",
    "tensormap",
    "tcgen05",
    "clusterlaunchcontrol",
    "st_async",
    "red_async",
    "ldu",
];

impl<'a> Builder<'_, 'a> {
    pub(crate) fn arithmetic(&mut self, name: &str, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        if let Some(op) = self.carry_chain(name, form, operands)? {
            return Ok(op);
        }
        let (op, arity) = self.operation(name, form)?;
        form.done()?;
        let ty = form.ty()?;
        expect(operands, arity + 1)?;
        let mut src = Vec::with_capacity(arity);
        for (index, operand) in operands[1..].iter().enumerate() {
            src.push(self.source(op, ty, index, operand)?);
        }
        let wide = matches!(op, Compute::MulWide | Compute::MadWide);
        let dst = self.dst(&operands[0], if wide { widened(ty)? } else { ty })?;
        Ok(Op::Compute { op, ty, mods: form.mods, dst, src })
    }

    /// Sources that are not of the instruction's type.
    fn source(&self, op: Compute, ty: Type, index: usize, operand: &Operand<'a>) -> Result<Value> {
        let source = match (op, index) {
            (Compute::Shl | Compute::Shr, 1) | (Compute::Bfe, 1 | 2) | (Compute::Bfi, 2 | 3) => Type::U32,
            (Compute::MadWide, 2) => widened(ty)?,
            (Compute::Selp, 2) => Type::Pred,
            (Compute::SlctInt, 2) => Type::S32,
            (Compute::SlctFloat, 2) => Type::F32,
            _ => ty,
        };
        self.value(operand, source)
    }

    fn operation(&mut self, name: &str, form: &mut Form<'a>) -> Result<(Compute, usize)> {
        if let Some(&(_, op, arity, on)) = TABLE.iter().find(|row| row.0 == name) {
            if !on.accepts(form.ty()?) {
                return CheckError::invalid("not defined for this type");
            }
            if op == Compute::Lop3 && form.words.iter().any(|w| matches!(*w, "or" | "and")) {
                return CheckError::unsupported("predicate result");
            }
            match op {
                Compute::Bfind => form.mods.variant = form.take("shiftamt"),
                Compute::Szext | Compute::Bmsk => form.mods.variant = form.take("wrap") || !form.take("clamp"),
                Compute::Min | Compute::Max if form.take("xorsign") => {
                    form.take("abs");
                    form.mods.variant = true;
                }
                _ => {}
            }
            return Ok((op, arity));
        }
        let float = form.types.first().is_some_and(|ty| ty.is_float() || ty.is_packed());
        let op = match name {
            "mul" if float => (Compute::Mul, 2),
            "mad" if float => (Compute::Fma, 3),
            "mul" | "mad" | "mul24" | "mad24" => {
                let ty = form.ty()?;
                let (lo, hi, wide) = (form.take("lo"), form.take("hi"), form.take("wide"));
                if !On::Int.accepts(ty) || u8::from(lo) + u8::from(hi) + u8::from(wide) != 1 {
                    return CheckError::invalid("one of .lo, .hi and .wide is required");
                }
                match (name, lo, hi) {
                    ("mul", true, _) => (Compute::Mul, 2),
                    ("mul", _, true) => (Compute::MulHi, 2),
                    ("mul", ..) => (Compute::MulWide, 2),
                    ("mad", true, _) => (Compute::Mad, 3),
                    ("mad", _, true) => (Compute::MadHi, 3),
                    ("mad", ..) => (Compute::MadWide, 3),
                    ("mul24", true, _) => (Compute::Mul24, 2),
                    ("mul24", _, true) => (Compute::Mul24Hi, 2),
                    ("mad24", true, _) => (Compute::Mad24, 3),
                    _ => return CheckError::unsupported("mad24.hi"),
                }
            }
            "shf" => {
                form.mods.variant = form.take("wrap");
                form.take("clamp");
                if form.take("l") {
                    (Compute::FunnelLeft, 3)
                } else if form.take("r") {
                    (Compute::FunnelRight, 3)
                } else {
                    return CheckError::invalid("missing direction");
                }
            }
            "prmt" => {
                let mode = [
                    ("f4e", PrmtMode::Forward4),
                    ("b4e", PrmtMode::Backward4),
                    ("rc8", PrmtMode::Replicate8),
                    ("ecl", PrmtMode::EdgeClampLeft),
                    ("ecr", PrmtMode::EdgeClampRight),
                    ("rc16", PrmtMode::Replicate16),
                ]
                .into_iter()
                .find(|(word, _)| form.take(word))
                .map_or(PrmtMode::Index, |(_, mode)| mode);
                (Compute::Prmt(mode), 3)
            }
            "testp" => {
                let kind = [
                    ("finite", TestKind::Finite),
                    ("infinite", TestKind::Infinite),
                    ("number", TestKind::Number),
                    ("notanumber", TestKind::NotANumber),
                    ("normal", TestKind::Normal),
                    ("subnormal", TestKind::Subnormal),
                ]
                .into_iter()
                .find(|(word, _)| form.take(word));
                match kind {
                    Some((_, kind)) => (Compute::Testp(kind), 1),
                    None => return CheckError::invalid("missing property to test"),
                }
            }
            "slct" => match form.types.get(1) {
                Some(Type::S32) => (Compute::SlctInt, 3),
                Some(Type::F32) => (Compute::SlctFloat, 3),
                _ => return CheckError::invalid("second type must be .s32 or .f32"),
            },
            "dp4a" | "dp2a" => {
                let (Some(a), Some(b)) = (form.types.first().copied(), form.types.get(1).copied()) else {
                    return CheckError::invalid("two types are required");
                };
                let (a, b) = (a.is_signed(), b.is_signed());
                if name == "dp4a" {
                    (Compute::Dp4a(a, b), 3)
                } else {
                    let hi = form.take("hi");
                    form.take("lo");
                    (Compute::Dp2a(a, b, hi), 3)
                }
            }
            _ if ELSEWHERE.contains(&name) => return CheckError::unsupported("this instruction"),
            _ => return CheckError::invalid("unknown instruction"),
        };
        Ok(op)
    }

    /// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.lo.cc`, `madc.hi`…
    fn carry_chain(&mut self, name: &str, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Option<Op>> {
        let reads = matches!(name, "addc" | "subc" | "madc");
        if !reads && !form.words.contains(&"cc") {
            return Ok(None);
        }
        let writes = form.take("cc");
        let op = match name {
            "add" | "addc" => CarryOp::Add,
            "sub" | "subc" => CarryOp::Sub,
            "mad" | "madc" if form.take("lo") => CarryOp::MadLo,
            "mad" | "madc" if form.take("hi") => CarryOp::MadHi,
            _ => return CheckError::invalid("this instruction has no carry"),
        };
        form.done()?;
        let ty = form.ty()?;
        if !On::Int.accepts(ty) || ty.bits() < 32 {
            return CheckError::invalid("not defined for this type");
        }
        let arity = if matches!(op, CarryOp::Add | CarryOp::Sub) { 2 } else { 3 };
        expect(operands, arity + 1)?;
        let src = self.values(&operands[1..], ty)?;
        let dst = self.dst(&operands[0], ty)?;
        let carry = self.carry();
        Ok(Some(Op::Carry { op, ty, dst, src, reads, writes, carry }))
    }

    pub(crate) fn convert(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        if form.take("pack") {
            return self.convert_pack(form, operands);
        }
        if let Some(op) = self.convert_small(form, operands)? {
            return Ok(op);
        }
        form.done()?;
        let [to, from] = form.types[..] else {
            return CheckError::unsupported("this conversion");
        };
        if to.is_packed() && from == Type::F32 {
            expect(operands, 3)?;
            let high = self.value(&operands[1], from)?;
            let low = self.value(&operands[2], from)?;
            return Ok(Op::ConvertPair { to, mods: form.mods, dst: self.dst(&operands[0], to)?, high, low });
        }
        let plain = |ty: Type| ty != Type::Pred && !ty.is_packed() && ty.bits() <= 64;
        if !plain(to) || !plain(from) {
            return CheckError::unsupported("this conversion");
        }
        expect(operands, 2)?;
        let src = self.value(&operands[1], from)?;
        let dst = self.dst(&operands[0], to)?;
        // A rounding is required from float to int; a missing one means towards zero there.
        let float_to_int = from.is_float() && !to.is_float();
        let rounding = form.rounding.unwrap_or(if float_to_int { Rounding::Zero } else { Rounding::Nearest });
        Ok(Op::Convert { to, from, rounding, integral: form.integral, mods: form.mods, dst, src })
    }

    pub(crate) fn cvta(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let from_generic = form.take("to");
        let space = self.space(form)?;
        form.done()?;
        expect(operands, 2)?;
        let ty = form.ty()?;
        let op = if from_generic { Compute::FromGeneric(space) } else { Compute::ToGeneric(space) };
        let src = vec![self.value(&operands[1], ty)?];
        Ok(Op::Compute { op, ty, mods: form.mods, dst: self.dst(&operands[0], ty)?, src })
    }

    pub(crate) fn isspacep(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let space = self.space(form)?;
        form.done()?;
        expect(operands, 2)?;
        let src = vec![self.value(&operands[1], Type::U64)?];
        let dst = self.dst(&operands[0], Type::Pred)?;
        Ok(Op::Compute { op: Compute::IsSpace(space), ty: Type::U64, mods: form.mods, dst, src })
    }

    pub(crate) fn setp(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let (compare, bool_op) = comparison(form)?;
        let ty = form.ty()?;
        if ty == Type::Pred || ty == Type::B128 {
            return CheckError::unsupported("comparisons of this type");
        }
        expect(operands, 3 + usize::from(bool_op.is_some()))?;
        let combine = bool_op.map(|op| Ok((op, self.predicate(&operands[3])?))).transpose()?;
        let (dst, complement) = self.pair_dst(&operands[0])?;
        let (a, b) = (self.value(&operands[1], ty)?, self.value(&operands[2], ty)?);
        Ok(Op::SetP { compare, ty, ftz: form.mods.ftz, combine, dst, complement, a, b })
    }

    pub(crate) fn set(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let (compare, bool_op) = comparison(form)?;
        let [to, ty] = form.types[..] else {
            return CheckError::invalid("two types are required");
        };
        let pairs = ty.is_packed() && (to == ty || to.bits() == 32);
        if (ty.is_packed() || to.is_packed()) && !pairs || ty.bits() > 64 || to.bits() > 64 {
            return CheckError::unsupported("comparisons of this type");
        }
        expect(operands, 3 + usize::from(bool_op.is_some()))?;
        let combine = bool_op.map(|op| Ok((op, self.predicate(&operands[3])?))).transpose()?;
        let dst = self.dst(&operands[0], to)?;
        let (a, b) = (self.value(&operands[1], ty)?, self.value(&operands[2], ty)?);
        Ok(Op::Set { compare, to, ty, ftz: form.mods.ftz, combine, dst, a, b })
    }
}

fn widened(ty: Type) -> Result<Type> {
    Ok(match ty {
        Type::U16 | Type::B16 => Type::U32,
        Type::S16 => Type::S32,
        Type::U32 | Type::B32 => Type::U64,
        Type::S32 => Type::S64,
        _ => return CheckError::invalid("no type is twice as wide as this one"),
    })
}

fn comparison(form: &mut Form) -> Result<(Compare, Option<BoolOp>)> {
    let mut compare = None;
    let mut bool_op = None;
    for word in std::mem::take(&mut form.words) {
        match word {
            "and" => bool_op = Some(BoolOp::And),
            "or" => bool_op = Some(BoolOp::Or),
            "xor" => bool_op = Some(BoolOp::Xor),
            _ => {
                compare = Some(match word {
                    "eq" => Compare::Eq,
                    "ne" => Compare::Ne,
                    "lt" => Compare::Lt,
                    "le" => Compare::Le,
                    "gt" => Compare::Gt,
                    "ge" => Compare::Ge,
                    "lo" => Compare::Lo,
                    "ls" => Compare::Ls,
                    "hi" => Compare::Hi,
                    "hs" => Compare::Hs,
                    "equ" => Compare::Equ,
                    "neu" => Compare::Neu,
                    "ltu" => Compare::Ltu,
                    "leu" => Compare::Leu,
                    "gtu" => Compare::Gtu,
                    "geu" => Compare::Geu,
                    "num" => Compare::Num,
                    "nan" => Compare::Nan,
                    _ => return CheckError::unsupported(format!("modifier .{word}")),
                });
            }
        }
    }
    // `.NaN` would have been eaten by the general modifiers; PTX spells this comparison `.nan`.
    match compare {
        Some(compare) => Ok((compare, bool_op)),
        None => CheckError::invalid("missing comparison"),
    }
}
