//! Operands: registers, literals, special registers, addresses.

use ptx::ast::{self, Operand};

use super::CheckError;
use super::function::Builder;
use super::ir::{Address, Base, Guard, Predicate, Reg, Relation, Special, Symbol, Type, Value};
use super::link::{Global, literal};
use super::reach::RESERVED_SHARED;
use super::scope::Named;

type Result<T> = std::result::Result<T, CheckError>;

impl<'a> Builder<'_, 'a> {
    /// A register by name.
    pub(crate) fn register(&self, name: &str) -> Result<Reg> {
        match self.scopes.register(name) {
            Some((reg, _)) => Ok(reg),
            None => CheckError::invalid(format!("undefined register {name}")),
        }
    }

    pub(crate) fn guard(&self, guard: Option<ast::Guard>) -> Result<Option<Guard>> {
        guard.map(|g| Ok(Guard { reg: self.predicate_register(g.register)?, negated: g.negated })).transpose()
    }

    fn predicate_register(&self, name: &str) -> Result<Reg> {
        match self.scopes.register(name) {
            Some((reg, Type::Pred)) => Ok(reg),
            _ => CheckError::invalid(format!("undefined predicate register {name}")),
        }
    }

    /// A register that is written; `_` is one that is never read.
    pub(crate) fn dst(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Reg> {
        match operand {
            Operand::Name("_") => Ok(self.scratch(ty)),
            Operand::Name(name) => self.register(name),
            _ => CheckError::invalid("the result must be a register"),
        }
    }

    /// A register that is written, or `None` for `_`.
    pub(crate) fn maybe_dst(&self, operand: &Operand<'a>) -> Result<Option<Reg>> {
        match operand {
            Operand::Name("_") => Ok(None),
            Operand::Name(name) => self.register(name).map(Some),
            _ => CheckError::invalid("the result must be a register"),
        }
    }

    /// Destination `d|p` or `d`.
    pub(crate) fn pair_dst(&self, operand: &Operand<'a>) -> Result<(Option<Reg>, Option<Reg>)> {
        let one = |name: &str| if name == "_" { Ok(None) } else { self.register(name).map(Some) };
        match operand {
            Operand::Pair(a, b) => Ok((one(a)?, one(b)?)),
            other => Ok((self.maybe_dst(other)?, None)),
        }
    }

    /// A value that is read as type `ty`.
    pub(crate) fn value(&self, operand: &Operand<'a>, ty: Type) -> Result<Value> {
        match operand {
            Operand::Number(number) => Ok(Value::Bits(literal(*number, ty))),
            Operand::Name(name) => {
                if let Some((reg, _)) = self.scopes.register(name) {
                    return Ok(Value::Reg(reg));
                }
                if let Some(special) = special(name, "") {
                    return Ok(Value::Special(special));
                }
                Ok(Value::Symbol(self.symbol(name)?, 0))
            }
            Operand::Component(name, component) => match special(name, component) {
                Some(special) => Ok(Value::Special(special)),
                None => CheckError::unsupported(format!("special register {name}.{component}")),
            },
            Operand::Sum(name, offset) => Ok(Value::Symbol(self.symbol(name)?, *offset)),
            _ => CheckError::invalid("operand is not a value"),
        }
    }

    pub(crate) fn values(&self, operands: &[Operand<'a>], ty: Type) -> Result<Vec<Value>> {
        operands.iter().map(|operand| self.value(operand, ty)).collect()
    }

    /// `p`, `!p` or a literal.
    pub(crate) fn predicate(&self, operand: &Operand<'a>) -> Result<Predicate> {
        match operand {
            Operand::Not(name) => Ok(Predicate { value: Value::Reg(self.predicate_register(name)?), negated: true }),
            Operand::Name(name) => {
                Ok(Predicate { value: Value::Reg(self.predicate_register(name)?), negated: false })
            }
            Operand::Number(ast::Number::Int(i)) => {
                Ok(Predicate { value: Value::Bits(u64::from(*i != 0)), negated: false })
            }
            _ => CheckError::invalid("operand is not a predicate"),
        }
    }

    /// Something with an address.
    pub(crate) fn symbol(&self, name: &str) -> Result<Symbol> {
        if let Some(named) = self.scopes.named(name) {
            return match named {
                Named::Local(offset) => Ok(Symbol::Local(offset)),
                Named::Shared(index) => Ok(Symbol::Shared(index)),
                Named::Variable(index) => Ok(Symbol::Variable(index)),
                Named::KernelParam(offset) => Ok(Symbol::Param(offset)),
                Named::Slot(_) | Named::Argument(_) | Named::Result(_) => {
                    CheckError::unsupported(format!("address of parameter {name}"))
                }
                Named::Prototype(_) => CheckError::invalid(format!("{name} has no address")),
            };
        }
        match self.linker.names.get(name) {
            Some(Global::Function(index)) => Ok(Symbol::Function(*index)),
            Some(Global::Variable(index)) => Ok(Symbol::Variable(*index)),
            Some(Global::Shared(index)) => Ok(Symbol::Shared(*index)),
            Some(Global::Builtin(_)) => CheckError::unsupported(format!("address of {name}")),
            Some(Global::Unsupported) => CheckError::unsupported(format!("variable {name}")),
            None if name.starts_with('%') => CheckError::invalid(format!("undefined register {name}")),
            None => CheckError::invalid(format!("undefined name {name}")),
        }
    }

    /// `[base + offset]`
    pub(crate) fn address(&self, operand: &Operand<'a>) -> Result<Address> {
        let Operand::Address { base, offset, rest } = operand else {
            return CheckError::invalid("operand is not an address");
        };
        if !rest.is_empty() {
            return CheckError::unsupported("addresses with several parts");
        }
        let offset = *offset;
        let Some(name) = base else {
            return Ok(Address { base: Base::Absolute, offset });
        };
        if let Some((reg, _)) = self.scopes.register(name) {
            return Ok(Address { base: Base::Reg(reg), offset });
        }
        let base = match self.scopes.named(name) {
            Some(Named::Slot(index)) => Base::Slot(index),
            Some(Named::Argument(index)) => Base::Argument(index),
            Some(Named::Result(index)) => Base::Result(index),
            _ => Base::Symbol(self.symbol(name)?),
        };
        Ok(Address { base, offset })
    }
}

/// The special register of that name.
fn special(name: &str, component: &str) -> Option<Special> {
    let axis = match component {
        "x" => 0,
        "y" => 1,
        "z" => 2,
        "w" => 3,
        "" => 4,
        _ => return None,
    };
    // Sizes are 1 and positions 0 on the fourth axis.
    let axes = |make: fn(u8) -> Special, w: u32| match axis {
        0..=2 => Some(make(axis)),
        3 => Some(Special::Constant(w)),
        _ => None,
    };
    match name {
        "%tid" => return axes(Special::Tid, 0),
        "%ntid" => return axes(Special::Ntid, 1),
        "%ctaid" | "%clusterid" => return axes(Special::Ctaid, 0),
        "%nctaid" | "%nclusterid" => return axes(Special::Nctaid, 1),
        "%cluster_ctaid" => return (axis < 4).then_some(Special::Constant(0)),
        "%cluster_nctaid" => return (axis < 4).then_some(Special::Constant(1)),
        _ => {}
    }
    if axis != 4 {
        return None;
    }
    Some(match name {
        "%laneid" => Special::LaneId,
        "%warpid" => Special::WarpId,
        "%nwarpid" => Special::NWarpId,
        "%smid" => Special::SmId,
        "%nsmid" => Special::NSmId,
        "%gridid" => Special::GridId,
        "%lanemask_eq" => Special::LaneMask(Relation::Eq),
        "%lanemask_le" => Special::LaneMask(Relation::Le),
        "%lanemask_lt" => Special::LaneMask(Relation::Lt),
        "%lanemask_ge" => Special::LaneMask(Relation::Ge),
        "%lanemask_gt" => Special::LaneMask(Relation::Gt),
        "%clock" => Special::Clock,
        "%clock_hi" => Special::ClockHi,
        "%clock64" => Special::Clock64,
        "%globaltimer" => Special::GlobalTimer,
        "%globaltimer_lo" => Special::GlobalTimerLo,
        "%globaltimer_hi" => Special::GlobalTimerHi,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" | "%aggr_smem_size" => Special::TotalShared,
        "WARP_SZ" => Special::Constant(32),
        "%reserved_smem_offset_begin" | "%reserved_smem_offset_0" => Special::ReservedShared(0),
        "%reserved_smem_offset_1" => Special::ReservedShared(64),
        "%reserved_smem_offset_end" => Special::ReservedShared(RESERVED_SHARED),
        "%reserved_smem_offset_cap" => Special::Constant(RESERVED_SHARED),
        "%is_explicit_cluster" | "%cluster_ctarank" => Special::Constant(0),
        "%cluster_nctarank" => Special::Constant(1),
        // Where the driver tells cooperative grids of their workspace.
        "%envreg1" => Special::Workspace(true),
        "%envreg2" => Special::Workspace(false),
        _ if name.starts_with("%envreg") => Special::Constant(0),
        _ => return None,
    })
}
