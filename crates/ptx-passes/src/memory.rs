//! Loads, stores, atomics and calls.

use ptx::ast::Operand;

use super::CheckError;
use super::decode::{Form, expect};
use super::function::Builder;
use super::ir::*;
use super::link::Global;
use super::scope::Named;

type Result<T> = std::result::Result<T, CheckError>;

/// Modifiers that advise caches, or ask for an order that we keep anyway.
fn is_advice(word: &str) -> bool {
    matches!(
        word,
        "ca" | "cg"
            | "cs"
            | "lu"
            | "cv"
            | "wb"
            | "wt"
            | "nc"
            | "cta"
            | "gpu"
            | "sys"
            | "cluster"
            | "unified"
            | "L1"
            | "noftz"
    ) || word.starts_with("L1::")
        || word.starts_with("L2::")
}

/// Modifiers that forbid to drop or repeat an access.
fn is_strong(word: &str) -> bool {
    matches!(word, "volatile" | "relaxed" | "acquire" | "release" | "acq_rel" | "mmio" | "weak" | "sc" | "seq_cst")
}

/// Caches that programs ask for when they pass values between blocks: of those that threads share, or none at all. Older versions of
/// CUB look back with these alone, and expect of vectors what it expects of relaxed ones.
fn is_shared_cache(word: &str) -> bool {
    matches!(word, "cg" | "cv")
}

impl<'a> Builder<'_, 'a> {
    /// Takes the state space out of the modifiers.
    pub(crate) fn space(&self, form: &mut Form<'a>) -> Result<Space> {
        const SPACES: &[(&str, Space)] = &[
            ("global", Space::Global),
            ("const", Space::Const),
            ("shared", Space::Shared),
            ("shared::cta", Space::Shared),
            // A cluster is one block here.
            ("shared::cluster", Space::Shared),
            ("local", Space::Local),
            ("param", Space::Param),
            ("param::entry", Space::Param),
            ("param::func", Space::Param),
        ];
        for (word, space) in SPACES {
            if form.take(word) {
                return Ok(*space);
            }
        }
        Ok(Space::Generic)
    }

    fn access(&mut self, form: &mut Form<'a>) -> Result<(Space, usize, bool)> {
        let space = self.space(form)?;
        let mut width = 1;
        let mut strong = false;
        for word in std::mem::take(&mut form.words) {
            match word {
                "v2" => width = 2,
                "v4" => width = 4,
                "v8" => width = 8,
                _ if is_strong(word) => strong |= word != "weak",
                _ if is_advice(word) => strong |= is_shared_cache(word),
                _ => return CheckError::unsupported(format!("modifier .{word}")),
            }
        }
        let ty = form.ty()?;
        if ty == Type::Pred || ty.bytes() as usize * width > 32 {
            return CheckError::invalid("invalid type for this access");
        }
        Ok((space, width, strong))
    }

    fn lanes<'o>(&self, operand: &'o Operand<'a>, width: usize) -> Result<Vec<&'o Operand<'a>>> {
        let lanes: Vec<_> = match operand {
            Operand::Vector(parts) => parts.iter().collect(),
            other => vec![other],
        };
        if lanes.len() == width { Ok(lanes) } else { CheckError::invalid("wrong vector size") }
    }

    pub(crate) fn load(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let (space, width, volatile) = self.access(form)?;
        // A cache policy may follow.
        if operands.len() != 3 {
            expect(operands, 2)?;
        }
        let ty = form.ty()?;
        let lanes = self.lanes(&operands[0], width)?;
        let dst = lanes.into_iter().map(|lane| self.maybe_dst(lane)).collect::<Result<Vec<_>>>()?;
        let address = self.checked_address(&operands[1], space, ty, width)?;
        Ok(Op::Load { space, ty, volatile, dst, address })
    }

    pub(crate) fn store(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let (space, width, volatile) = self.access(form)?;
        if operands.len() != 3 {
            expect(operands, 2)?;
        }
        let ty = form.ty()?;
        let lanes = self.lanes(&operands[1], width)?;
        let src = lanes.into_iter().map(|lane| self.value(lane, ty)).collect::<Result<Vec<_>>>()?;
        let address = self.checked_address(&operands[0], space, ty, width)?;
        if space == Space::Const
            || (space == Space::Param && !matches!(address.base, Base::Slot(_) | Base::Result(_)))
        {
            return CheckError::invalid("this state space is read-only");
        }
        Ok(Op::Store { space, ty, volatile, src, address })
    }

    /// Parameters of functions live on the native stack, so what reaches them is checked here, once and for all.
    fn checked_address(&self, operand: &Operand<'a>, space: Space, ty: Type, width: usize) -> Result<Address> {
        let address = self.address(operand)?;
        let size = i64::from(ty.bytes()).saturating_mul(i64::try_from(width).unwrap_or(i64::MAX));
        let slot = match address.base {
            Base::Slot(index) => Some(self.slot(index)),
            Base::Argument(index) => Some(self.argument(index)),
            Base::Result(index) => Some(self.result(index)),
            Base::Symbol(Symbol::Param(offset)) => {
                if space != Space::Param {
                    return CheckError::invalid("parameters are read by ld.param");
                }
                let end = i64::from(offset).checked_add(address.offset).and_then(|at| at.checked_add(size));
                let start = i64::from(offset).saturating_add(address.offset);
                if start < 0 || end.is_none_or(|end| end > i64::from(self.param_bytes())) {
                    return CheckError::invalid("out of bounds of the parameters");
                }
                if start % size.min(16) != 0 {
                    return CheckError::invalid("misaligned parameter access");
                }
                None
            }
            Base::Reg(_) | Base::Absolute if space == Space::Param && !self.is_entry() => {
                return CheckError::unsupported("computed addresses of function parameters");
            }
            _ => None,
        };
        if let Some(slot) = slot {
            if space != Space::Param {
                return CheckError::invalid("parameters are accessed by ld.param and st.param");
            }
            let inside = address.offset >= 0
                && address.offset.checked_add(size).is_some_and(|end| end <= i64::from(slot.size));
            if !inside {
                return CheckError::invalid("out of bounds of the parameter");
            }
        }
        Ok(address)
    }

    pub(crate) fn atomic(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>], reduction: bool) -> Result<Op> {
        let space = self.space(form)?;
        let mut op = None;
        for word in std::mem::take(&mut form.words) {
            op = Some(match word {
                "add" => AtomicOp::Add,
                "and" => AtomicOp::And,
                "or" => AtomicOp::Or,
                "xor" => AtomicOp::Xor,
                "exch" => AtomicOp::Exch,
                "cas" => AtomicOp::Cas,
                "min" => AtomicOp::Min,
                "max" => AtomicOp::Max,
                "inc" => AtomicOp::Inc,
                "dec" => AtomicOp::Dec,
                _ if is_strong(word) || is_advice(word) => continue,
                _ => return CheckError::unsupported(format!("modifier .{word}")),
            });
        }
        let Some(op) = op else { return CheckError::invalid("missing operation") };
        let ty = form.ty()?;
        if !matches!(space, Space::Generic | Space::Global | Space::Shared) {
            return CheckError::invalid("atomics are not allowed in this state space");
        }
        let float = ty.is_float() || ty.is_packed();
        let defined = match op {
            AtomicOp::Add => true,
            AtomicOp::Min | AtomicOp::Max => ty != Type::F32 && ty != Type::F64,
            AtomicOp::And | AtomicOp::Or | AtomicOp::Xor => !float,
            AtomicOp::Exch | AtomicOp::Cas => !float || ty.bits() >= 32,
            AtomicOp::Inc | AtomicOp::Dec => ty == Type::U32,
        };
        if !defined || ty == Type::Pred || ty.bits() < 16 {
            return CheckError::invalid("not defined for this type");
        }
        if ty == Type::B128 {
            return CheckError::unsupported("128-bit atomics");
        }
        let at = usize::from(!reduction);
        let count = at + 2 + usize::from(op == AtomicOp::Cas);
        // A cache policy may follow.
        if operands.len() != count + 1 {
            expect(operands, count)?;
        }
        let dst = if reduction { None } else { self.maybe_dst(&operands[0])? };
        let address = self.address(&operands[at])?;
        if matches!(
            address.base,
            Base::Slot(_) | Base::Argument(_) | Base::Result(_) | Base::Symbol(Symbol::Param(_))
        ) {
            return CheckError::invalid("atomics on parameters are not allowed");
        }
        let src = self.value(&operands[at + 1], ty)?;
        let swap = if op == AtomicOp::Cas { Some(self.value(&operands[at + 2], ty)?) } else { None };
        Ok(Op::Atomic { space, op, ty, dst, address, src, swap })
    }

    /// `call (ret), name, (args), prototype;`
    pub(crate) fn call(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        form.done()?;
        let mut rest = operands;
        let mut returns = Vec::new();
        if let [Operand::List(list), tail @ ..] = rest {
            returns = self.call_slots(list)?;
            rest = tail;
        }
        let [Operand::Name(name), tail @ ..] = rest else {
            return CheckError::invalid("missing call target");
        };
        let mut args = Vec::new();
        let mut prototype = None;
        for operand in tail {
            match operand {
                Operand::List(list) => args = self.call_slots(list)?,
                Operand::Name(name) => {
                    if let Some(Named::Prototype(index)) = self.scopes.named(name) {
                        prototype = Some(index);
                    }
                }
                _ => return CheckError::invalid("unexpected operand"),
            }
        }
        let shape = Signature {
            returns: returns.iter().map(|slot| self.slot(*slot)).collect(),
            params: args.iter().map(|slot| self.slot(*slot)).collect(),
        };
        let callee = if let Some((reg, _)) = self.scopes.register(name) {
            let Some(prototype) = prototype else {
                return CheckError::unsupported("indirect call without a prototype");
            };
            self.same_shape(&shape, &self.body.prototypes[prototype])?;
            Callee::Indirect(Value::Reg(reg), prototype)
        } else {
            match self.linker.names.get(name) {
                Some(Global::Function(index)) => {
                    self.same_shape(&shape, &self.linker.module.functions[*index].signature)?;
                    if self.linker.module.functions[*index].entry {
                        return CheckError::unsupported("call of a kernel");
                    }
                    Callee::Direct(*index)
                }
                Some(Global::Builtin(builtin)) => {
                    self.builtin_shape(*builtin, &shape)?;
                    Callee::Builtin(*builtin)
                }
                _ => return CheckError::invalid(format!("undefined function {name}")),
            }
        };
        Ok(Op::Call { callee, returns, args })
    }

    fn call_slots(&self, list: &[Operand<'a>]) -> Result<Vec<usize>> {
        let mut out = Vec::new();
        for operand in list {
            match operand {
                Operand::Name(name) => match self.scopes.named(name) {
                    Some(Named::Slot(index)) => out.push(index),
                    _ => return CheckError::unsupported(format!("argument {name} outside of .param")),
                },
                _ => return CheckError::unsupported("argument outside of .param"),
            }
        }
        Ok(out)
    }

    /// The callee trusts its parameters to have the declared sizes.
    fn same_shape(&self, have: &Signature, want: &Signature) -> Result<()> {
        let fits = |have: &[Slot], want: &[Slot]| {
            have.len() == want.len() && have.iter().zip(want).all(|(h, w)| h.size >= w.size)
        };
        if fits(&have.returns, &want.returns) && fits(&have.params, &want.params) {
            Ok(())
        } else {
            CheckError::invalid("arguments do not match the parameters of the function")
        }
    }

    fn builtin_shape(&self, builtin: Builtin, have: &Signature) -> Result<()> {
        let (returns, params): (&[u32], &[u32]) = match builtin {
            Builtin::Printf => (&[4], &[8, 8]),
            Builtin::AssertFail => (&[], &[8, 8, 4, 8, 8]),
            Builtin::Malloc => (&[8], &[8]),
            Builtin::Free => (&[], &[8]),
        };
        let fits = |have: &[Slot], want: &[u32]| {
            have.len() == want.len() && have.iter().zip(want).all(|(h, w)| h.size >= *w)
        };
        if fits(&have.returns, returns) && fits(&have.params, params) {
            Ok(())
        } else {
            CheckError::invalid("arguments do not match the parameters of the function")
        }
    }
}
