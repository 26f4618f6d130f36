//! What the operator is told of this client: a few relaxed additions for each message.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cuda_abi::error::*;
use cuda_abi::wire::Op;

use super::{Outcome, Refusal};
use control::statistics::{self, Denial, Page, Writer};

pub(crate) struct Counters {
    page: Writer,
    /// A fault stays and answers every later call; it is counted once.
    faulted: AtomicBool,
}

impl Deref for Counters {
    type Target = Page;

    fn deref(&self) -> &Page {
        &self.page
    }
}

impl Counters {
    pub(crate) fn new(page: Writer) -> Self {
        Self { page, faulted: AtomicBool::new(false) }
    }

    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        statistics::add(counter, amount);
    }

    /// A message is about to be executed.
    pub(crate) fn begin(&self, op: u16) {
        Self::add(&self.in_progress, 1);
        if is_copy(op) {
            Self::add(&self.copies, 1);
        }
    }

    /// It has been.
    pub(crate) fn end(&self, outcome: &Outcome) {
        self.in_progress.fetch_sub(1, Ordering::Relaxed);
        let code = match outcome {
            Ok(CUDA_SUCCESS | CUDA_ERROR_NOT_READY) => return,
            Ok(code) => *code,
            Err(refusal) => {
                if let Some(reason) = reason(refusal) {
                    self.deny(reason);
                }
                match refusal {
                    Refusal::Code(code) => *code,
                    _ => CUDA_ERROR_INVALID_VALUE,
                }
            }
        };
        if code == CUDA_ERROR_NOT_READY {
            return;
        }
        Self::add(&self.errors, 1);
        if is_sticky(code) && !self.faulted.swap(true, Ordering::Relaxed) {
            self.fault(code);
        }
    }
}

/// Whether an operation copies memory.
pub(crate) fn is_copy(op: u16) -> bool {
    matches!(
        Op::from_code(op),
        Some(
            Op::CopyInline
                | Op::CopyFromStaging
                | Op::CopyToStaging
                | Op::CopyAsync
                | Op::CopySync
                | Op::Copy3dAsync
                | Op::Copy3dSync
        )
    )
}

/// What a refusal counts as. Memory is the broker's to refuse and to count.
fn reason(refusal: &Refusal) -> Option<Denial> {
    match refusal {
        Refusal::Code(CUDA_ERROR_INVALID_HANDLE | CUDA_ERROR_INVALID_CONTEXT | CUDA_ERROR_CONTEXT_IS_DESTROYED) => {
            Some(Denial::Handle)
        }
        Refusal::Code(CUDA_ERROR_INVALID_VALUE) => Some(Denial::Argument),
        Refusal::Code(CUDA_ERROR_NOT_SUPPORTED) => Some(Denial::Unsupported),
        Refusal::Code(_) => None,
        _ => Some(Denial::Protocol),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_count_as_what_they_are() {
        let counters = Counters::new(Writer::new(None));
        let outcomes = [
            Ok(CUDA_SUCCESS),
            Ok(CUDA_ERROR_NOT_READY),
            Err(Refusal::Code(CUDA_ERROR_INVALID_HANDLE)),
            Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY)),
            Err(Refusal::Malformed),
            Ok(CUDA_ERROR_ILLEGAL_ADDRESS),
            Ok(CUDA_ERROR_ILLEGAL_ADDRESS),
        ];
        for outcome in &outcomes {
            counters.begin(Op::CopySync as u16);
            counters.end(outcome);
        }
        let stats = counters.read();
        assert_eq!((stats.copies, stats.errors, stats.denied(), stats.in_progress), (7, 5, 2, 0));
        assert_eq!(stats.faulted(), 1, "a fault that stays is one fault");
    }
}
