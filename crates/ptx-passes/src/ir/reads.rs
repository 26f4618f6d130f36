//! What an operation reads.

use super::{Address, Base, Callee, Op, Predicate, Value};

impl Op {
    /// Calls `visit` with each value that is read: operands, predicates, bases of addresses and an incoming carry.
    pub fn reads(&self, visit: &mut impl FnMut(Value)) {
        match self {
            Op::Compute { src, .. } | Op::Pack { src, .. } => src.iter().for_each(|value| visit(*value)),
            Op::Carry { src, reads, carry, .. } => {
                src.iter().for_each(|value| visit(*value));
                if *reads {
                    visit(Value::Reg(*carry));
                }
            }
            Op::Convert { src, .. } | Op::Unpack { src, .. } => visit(*src),
            Op::ConvertPair { high, low, .. } => [high, low].into_iter().for_each(|value| visit(*value)),
            Op::SetP { combine, a, b, .. } | Op::Set { combine, a, b, .. } => {
                visit(*a);
                visit(*b);
                predicate(combine.iter().map(|(_, predicate)| predicate), visit);
            }
            Op::Load { address, .. } => base(address, visit),
            Op::Store { address, src, .. } => {
                base(address, visit);
                src.iter().for_each(|value| visit(*value));
            }
            Op::Atomic { address, src, swap, .. } => {
                base(address, visit);
                visit(*src);
                swap.iter().for_each(|value| visit(*value));
            }
            Op::Call { callee: Callee::Indirect(target, _), .. } => visit(*target),
            Op::Barrier { id, count, predicate: vote, .. } => {
                visit(*id);
                count.iter().for_each(|value| visit(*value));
                predicate(vote, visit);
            }
            Op::Warp { a, b, c, mask, .. } => {
                predicate(a, visit);
                b.iter().chain(c).chain(mask).for_each(|value| visit(*value));
            }
            Op::Runtime { src, .. } => src.iter().for_each(|(value, _)| visit(*value)),
            Op::Sleep(time) => visit(*time),
            Op::Call { .. } | Op::Fence | Op::Trap => {}
        }
    }
}

fn base(address: &Address, visit: &mut impl FnMut(Value)) {
    match address.base {
        Base::Reg(reg) => visit(Value::Reg(reg)),
        Base::Symbol(symbol) => visit(Value::Symbol(symbol, address.offset)),
        Base::Absolute | Base::Slot(_) | Base::Argument(_) | Base::Result(_) => {}
    }
}

fn predicate<'p>(predicates: impl IntoIterator<Item = &'p Predicate>, visit: &mut impl FnMut(Value)) {
    predicates.into_iter().for_each(|predicate| visit(predicate.value));
}
