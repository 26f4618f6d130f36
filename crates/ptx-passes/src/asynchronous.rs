//! Copies that a thread starts and waits for later, and the barriers in memory that count them.

use ptx::ast::Operand;

use super::CheckError;
use super::decode::{Form, expect};
use super::function::Builder;
use super::ir::{Op, Routine, Type, Value};
use super::matrix::space_number;

type Result<T> = std::result::Result<T, CheckError>;

/// What is done to an `mbarrier`, by the number that compiled code passes. The space is in bits 28 to 30.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in PTX")]
pub enum BarrierCall {
    Init,
    Invalidate,
    Arrive,
    ArriveDrop,
    TestWait,
    TryWait,
    TestParity,
    TryParity,
    Pending,
    /// `cp.async.mbarrier.arrive`: the copies are done already.
    ArriveCopies,
    /// The same with `.noinc`.
    ArriveCopiesCounted,
    ExpectBytes,
}

impl BarrierCall {
    /// All of them, by number.
    pub const ALL: [BarrierCall; 12] = [
        BarrierCall::Init,
        BarrierCall::Invalidate,
        BarrierCall::Arrive,
        BarrierCall::ArriveDrop,
        BarrierCall::TestWait,
        BarrierCall::TryWait,
        BarrierCall::TestParity,
        BarrierCall::TryParity,
        BarrierCall::Pending,
        BarrierCall::ArriveCopies,
        BarrierCall::ArriveCopiesCounted,
        BarrierCall::ExpectBytes,
    ];
}

impl<'a> Builder<'_, 'a> {
    /// `cp.async`. Copies are done at once, so waiting for them is nothing.
    pub(crate) fn copy_async(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Option<Op>> {
        let words = form.modifiers.clone();
        if words.first() != Some(&"async") || words.contains(&"bulk") {
            return CheckError::unsupported("bulk and tensor copies");
        }
        if words.iter().any(|word| matches!(*word, "commit_group" | "wait_group" | "wait_all")) {
            return Ok(None);
        }
        if words.contains(&"mbarrier") {
            expect(operands, 1)?;
            let counted = words.contains(&"noinc");
            let call = if counted { BarrierCall::ArriveCopiesCounted } else { BarrierCall::ArriveCopies };
            let shared = words.iter().any(|word| word.starts_with("shared"));
            return self.barrier_call(call, shared, &operands[0], &[], None).map(Some);
        }
        let [dst, src, size, rest @ ..] = operands else {
            return CheckError::invalid("missing operands");
        };
        let Value::Bits(size) = self.value(size, Type::U32)? else {
            return CheckError::invalid("the size must be a constant");
        };
        if !matches!(size, 4 | 8 | 16) {
            return CheckError::invalid("the size must be 4, 8 or 16 bytes");
        }
        // Fewer bytes may be taken; the rest is zero. A cache policy may follow, which is 64 bits wide.
        let wide = |operand: &Operand| match operand {
            Operand::Name(name) => self.scopes.register(name).is_some_and(|(_, ty)| ty.bits() == 64),
            _ => false,
        };
        let ignored = |operand: &Operand| match operand {
            Operand::Name(name) => self.scopes.register(name).is_some_and(|(_, ty)| ty == Type::Pred),
            Operand::Not(_) => true,
            _ => false,
        };
        let mut source_size = (Value::Bits(size), Type::U32);
        let mut skip = (Value::Bits(0), Type::Pred);
        match rest.first() {
            Some(operand) if ignored(operand) => {
                let predicate = self.predicate(operand)?;
                if predicate.negated {
                    return CheckError::unsupported("a negated predicate here");
                }
                skip = (predicate.value, Type::Pred);
            }
            Some(operand) if !wide(operand) => source_size = (self.value(operand, Type::U32)?, Type::U32),
            _ => {}
        }
        let mut words = self.flat_address(dst)?;
        words.extend(self.flat_address(src)?);
        words.extend([source_size, skip]);
        Ok(Some(Op::Runtime { routine: Routine::CopyAsync, code: size, src: words, dst: Vec::new() }))
    }

    fn barrier_call(
        &mut self,
        call: BarrierCall,
        shared: bool,
        address: &Operand<'a>,
        values: &[&Operand<'a>],
        result: Option<&Operand<'a>>,
    ) -> Result<Op> {
        let space = if shared { super::ir::Space::Shared } else { super::ir::Space::Generic };
        let mut src = self.flat_address(address)?;
        for operand in values {
            src.push((self.value(operand, Type::U64)?, Type::U64));
        }
        src.resize(4, (Value::Bits(1), Type::U64));
        let dst = match result {
            Some(operand) => {
                let ty = match call {
                    BarrierCall::TestWait
                    | BarrierCall::TryWait
                    | BarrierCall::TestParity
                    | BarrierCall::TryParity => Type::Pred,
                    BarrierCall::Pending => Type::U32,
                    _ => Type::B64,
                };
                vec![(self.maybe_dst(operand)?, ty)]
            }
            None => Vec::new(),
        };
        let code = call as u64 | space_number(space) << 28;
        Ok(Op::Runtime { routine: Routine::MemoryBarrier, code, src, dst })
    }

    /// `mbarrier.init.shared.b64 [a], count` and all the others.
    pub(crate) fn memory_barrier(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        let words = form.modifiers.clone();
        if words.iter().any(|word| matches!(*word, "cluster" | "shared::cluster")) && words.contains(&"remote") {
            return CheckError::unsupported("barriers of other blocks");
        }
        let shared = words.iter().any(|word| word.starts_with("shared"));
        let (kind, parity) = (words.first().copied().unwrap_or(""), words.contains(&"parity"));
        let call = match (kind, parity) {
            ("init", _) => BarrierCall::Init,
            ("inval", _) => BarrierCall::Invalidate,
            ("arrive", _) if words.contains(&"expect_tx") => BarrierCall::ExpectBytes,
            ("arrive", _) => BarrierCall::Arrive,
            ("arrive_drop", _) => BarrierCall::ArriveDrop,
            ("test_wait", false) => BarrierCall::TestWait,
            ("try_wait", false) => BarrierCall::TryWait,
            ("test_wait", true) => BarrierCall::TestParity,
            ("try_wait", true) => BarrierCall::TryParity,
            ("pending_count", _) => BarrierCall::Pending,
            _ => return CheckError::unsupported("barriers of this kind"),
        };
        match call {
            BarrierCall::Init => {
                expect(operands, 2)?;
                self.barrier_call(call, shared, &operands[0], &[&operands[1]], None)
            }
            BarrierCall::Invalidate => {
                expect(operands, 1)?;
                self.barrier_call(call, shared, &operands[0], &[], None)
            }
            BarrierCall::Pending => {
                expect(operands, 2)?;
                // The state itself says it; no memory is read.
                let src = vec![
                    (Value::Bits(0), Type::U64),
                    (Value::Bits(0), Type::U64),
                    (self.value(&operands[1], Type::U64)?, Type::U64),
                    (Value::Bits(0), Type::U64),
                ];
                let dst = vec![(self.maybe_dst(&operands[0])?, Type::U32)];
                Ok(Op::Runtime { routine: Routine::MemoryBarrier, code: call as u64, src, dst })
            }
            BarrierCall::Arrive | BarrierCall::ArriveDrop => match operands {
                [state, address] => self.barrier_call(call, shared, address, &[], Some(state)),
                [state, address, count] => self.barrier_call(call, shared, address, &[count], Some(state)),
                _ => CheckError::invalid("wrong number of operands"),
            },
            BarrierCall::ExpectBytes => CheckError::unsupported("barriers that count bytes"),
            _ => match operands {
                // A limit on the time may follow.
                [done, address, state] | [done, address, state, _] => {
                    self.barrier_call(call, shared, address, &[state], Some(done))
                }
                _ => CheckError::invalid("wrong number of operands"),
            },
        }
    }
}
