//! From an opcode to what executes it.

use std::ffi::CString;
use std::sync::atomic::Ordering;

use cuda_abi::error::CUDA_SUCCESS;
use cuda_abi::wire::ops::Name;
use cuda_abi::wire::{Decode, FIRST_OP, Op, Reader, Writer};

use super::ops::graph::budget;
use super::state::Counters;
use super::{Outcome, Refusal, Worker, ops};

/// Generated from the table; its shape is the generator's, not ours to polish.
#[allow(clippy::all, unused_parens, unused_imports)]
mod generated {
    use cuda_abi::error::*;
    use cuda_abi::types::*;
    use cuda_abi::wire::{Kind, Reader, Writer};

    use super::name;
    use crate::ops::graph::capture;
    use crate::{Outcome, Refusal, Worker};

    include!(concat!(env!("OUT_DIR"), "/dispatch.rs"));
}

use generated::{NAMES, plain};

/// A name among the arguments of a function that is carried as the table says, of which there may be none.
#[allow(dead_code)]
pub(crate) fn name(message: &mut Reader<'_>) -> Result<CString, Refusal> {
    Ok(Name::decode(message)?.to_c_string()?)
}

/// What an opcode is called, for messages.
pub(crate) fn op_name(op: u16) -> &'static str {
    match Op::from_code(op) {
        Some(op) => op.name(),
        None => NAMES.get(usize::from(op)).copied().unwrap_or("?"),
    }
}

/// Does this call tell of errors of earlier, posted messages? Those that wait for the GPU or ask how far it is do. Others
/// may have changed something, which the client must learn.
pub(crate) fn reports_posted_errors(op: u16) -> bool {
    const FUNCTIONS: [&str; 3] = ["cuEventSynchronize", "cuStreamQuery", "cuEventQuery"];
    match Op::from_code(op) {
        Some(op) => {
            matches!(
                op,
                Op::Synchronize
                    | Op::SynchronizeStream
                    | Op::TakeError
                    | Op::CopySync
                    | Op::Copy3dSync
                    | Op::SharedQuery
            )
        }
        None => FUNCTIONS.contains(&op_name(op)),
    }
}

/// Executes one message, already copied out of shared memory.
pub(crate) fn execute(
    worker: &Worker,
    op: u16,
    tag: u32,
    lane: u32,
    payload: &[u8],
    reply: &mut Writer<'_>,
) -> Outcome {
    Counters::add(&worker.counters().calls, 1);
    if op == Op::Start as u16 {
        return ops::execute(worker, Op::Start, lane, payload, reply);
    }
    if !worker.started.load(Ordering::Acquire) {
        return Err(Refusal::NotStarted);
    }
    let _context = worker.enter(tag)?;
    let captures = budget::begin(worker, op)?;
    let outcome = if op < FIRST_OP {
        plain(worker, op, &mut Reader::new(payload), reply)
    } else {
        ops::execute(worker, Op::from_code(op).ok_or(Refusal::UnknownOperation)?, lane, payload, reply)
    };
    if captures && outcome == Ok(CUDA_SUCCESS) {
        budget::end(worker, op, payload);
    }
    outcome
}
