//! Barriers and what the lanes of a warp do together.

use ptx::ast::Operand;

use super::CheckError;
use super::decode::{Form, expect};
use super::function::Builder;
use super::ir::*;

type Result<T> = std::result::Result<T, CheckError>;

/// `shfl`, `vote` and their kind without anything yet.
fn warp(op: WarpOp) -> Op {
    Op::Warp { op, dst: None, predicate: None, a: None, b: None, c: None, mask: None, wide: false }
}

fn plain(value: Value) -> Option<Predicate> {
    Some(Predicate { value, negated: false })
}

impl<'a> Builder<'_, 'a> {
    pub(crate) fn barrier(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        if form.take("warp") {
            form.take("sync");
            form.done()?;
            expect(operands, 1)?;
            let value = self.value(&operands[0], Type::U32)?;
            let mut op = warp(WarpOp::Sync);
            if let Op::Warp { mask, .. } = &mut op {
                *mask = Some(value);
            }
            return Ok(op);
        }
        if form.take("cluster") {
            return self.cluster_barrier(form);
        }
        form.take("cta");
        form.take("aligned");
        let op = if form.take("arrive") {
            BarrierOp::Arrive
        } else if form.take("red") {
            if form.take("popc") {
                BarrierOp::Popc
            } else if form.take("and") {
                BarrierOp::And
            } else if form.take("or") {
                BarrierOp::Or
            } else {
                return CheckError::invalid("missing reduction");
            }
        } else if form.take("sync") {
            BarrierOp::Sync
        } else {
            return CheckError::unsupported("barriers of this kind");
        };
        form.done()?;
        let reduces = matches!(op, BarrierOp::Popc | BarrierOp::And | BarrierOp::Or);
        let mut rest = operands;
        let mut dst = None;
        let mut predicate = None;
        if reduces {
            let [first, middle @ .., last] = rest else {
                return CheckError::invalid("missing operands");
            };
            dst = self.maybe_dst(first)?;
            predicate = Some(self.predicate(last)?);
            rest = middle;
        }
        let (id, count) = match rest {
            [id] => (id, None),
            [id, count] => (id, Some(self.value(count, Type::U32)?)),
            _ => return CheckError::invalid("wrong number of operands"),
        };
        if op == BarrierOp::Arrive && count.is_none() {
            return CheckError::invalid("arrive needs a count");
        }
        Ok(Op::Barrier { op, id: self.value(id, Type::U32)?, count, predicate, dst })
    }

    /// A cluster is one block here, and a thread that waits has arrived before: a barrier of the block does both.
    fn cluster_barrier(&mut self, form: &mut Form<'a>) -> Result<Op> {
        let wait = form.take("wait");
        form.words.retain(|word| !matches!(*word, "arrive" | "aligned" | "acquire" | "release" | "relaxed"));
        form.done()?;
        if !wait {
            return Ok(Op::Fence);
        }
        Ok(Op::Barrier { op: BarrierOp::Sync, id: Value::Bits(0), count: None, predicate: None, dst: None })
    }

    pub(crate) fn warp(&mut self, name: &str, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        if name == "activemask" {
            expect(operands, 1)?;
            let result = self.maybe_dst(&operands[0])?;
            let mut op = warp(WarpOp::ActiveMask);
            if let Op::Warp { dst, .. } = &mut op {
                *dst = result;
            }
            return Ok(op);
        }
        if !form.take("sync") {
            return CheckError::unsupported("operations without .sync");
        }
        match name {
            "shfl" => self.shfl(form, operands),
            "vote" => self.vote(form, operands),
            "match" => self.matching(form, operands),
            "redux" => self.redux(form, operands),
            _ => {
                form.done()?;
                expect(operands, 2)?;
                let (dst, predicate) = self.pair_dst(&operands[0])?;
                let mask = Some(self.value(&operands[1], Type::U32)?);
                Ok(Op::Warp { op: WarpOp::Elect, dst, predicate, a: None, b: None, c: None, mask, wide: false })
            }
        }
    }

    fn shfl(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let op = if form.take("up") {
            WarpOp::ShflUp
        } else if form.take("down") {
            WarpOp::ShflDown
        } else if form.take("bfly") {
            WarpOp::ShflBfly
        } else if form.take("idx") {
            WarpOp::ShflIdx
        } else {
            return CheckError::invalid("missing mode");
        };
        form.done()?;
        expect(operands, 5)?;
        let (dst, predicate) = self.pair_dst(&operands[0])?;
        let value = |operand| self.value(operand, Type::U32);
        let a = plain(value(&operands[1])?);
        let (b, c, mask) = (value(&operands[2])?, value(&operands[3])?, value(&operands[4])?);
        Ok(Op::Warp { op, dst, predicate, a, b: Some(b), c: Some(c), mask: Some(mask), wide: false })
    }

    fn vote(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let op = if form.take("all") {
            WarpOp::VoteAll
        } else if form.take("any") {
            WarpOp::VoteAny
        } else if form.take("uni") {
            WarpOp::VoteUni
        } else if form.take("ballot") || form.ty()? == Type::B32 {
            WarpOp::Ballot
        } else {
            // The general modifiers eat `.uni`.
            WarpOp::VoteUni
        };
        form.done()?;
        expect(operands, 3)?;
        let dst = self.maybe_dst(&operands[0])?;
        let a = Some(self.predicate(&operands[1])?);
        let mask = Some(self.value(&operands[2], Type::U32)?);
        Ok(Op::Warp { op, dst, predicate: None, a, b: None, c: None, mask, wide: false })
    }

    fn matching(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let op = if form.take("any") {
            WarpOp::MatchAny
        } else if form.take("all") {
            WarpOp::MatchAll
        } else {
            return CheckError::invalid("missing mode");
        };
        form.done()?;
        expect(operands, 3)?;
        let ty = form.ty()?;
        let (dst, predicate) = self.pair_dst(&operands[0])?;
        let a = plain(self.value(&operands[1], ty)?);
        let mask = Some(self.value(&operands[2], Type::U32)?);
        Ok(Op::Warp { op, dst, predicate, a, b: None, c: None, mask, wide: ty.bits() == 64 })
    }

    fn redux(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let signed = match form.ty()? {
            Type::S32 => true,
            Type::U32 | Type::B32 => false,
            _ => return CheckError::unsupported("reductions of this type"),
        };
        const TABLE: &[(&str, WarpOp, WarpOp)] = &[
            ("add", WarpOp::ReduxAdd, WarpOp::ReduxAdd),
            ("min", WarpOp::ReduxMinU, WarpOp::ReduxMinS),
            ("max", WarpOp::ReduxMaxU, WarpOp::ReduxMaxS),
            ("and", WarpOp::ReduxAnd, WarpOp::ReduxAnd),
            ("or", WarpOp::ReduxOr, WarpOp::ReduxOr),
            ("xor", WarpOp::ReduxXor, WarpOp::ReduxXor),
        ];
        let Some((_, unsigned_op, signed_op)) = TABLE.iter().find(|row| form.take(row.0)) else {
            return CheckError::invalid("missing operation");
        };
        form.done()?;
        expect(operands, 3)?;
        let dst = self.maybe_dst(&operands[0])?;
        let a = plain(self.value(&operands[1], Type::U32)?);
        let mask = Some(self.value(&operands[2], Type::U32)?);
        let op = if signed { *signed_op } else { *unsigned_op };
        Ok(Op::Warp { op, dst, predicate: None, a, b: None, c: None, mask, wide: false })
    }
}
