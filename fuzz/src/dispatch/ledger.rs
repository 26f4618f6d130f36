//! The account of the worker, in place of a broker.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use control::link::Answers;
use control::messages::{Shared, ToBroker, ToWorker, account, code, event_page, shared, to_broker, to_worker};

use crate::witness::{FOREIGN, some_file};

/// How much there is of each GPU's memory, and of pinned memory.
const GPU: u64 = 256 << 20;
const PINNED: u64 = 64 << 20;

pub struct Ledger {
    /// By account.
    charged: Vec<AtomicU64>,
    /// Of what workers ask beside memory some is refused.
    count: AtomicU64,
    seed: u64,
}

impl Ledger {
    pub fn new(seed: u64) -> Self {
        Self { charged: (0..account::COUNT).map(|_| AtomicU64::new(0)).collect(), count: AtomicU64::new(0), seed }
    }

    /// Bytes of device memory on all accounts.
    pub fn charged(&self) -> u64 {
        let of_gpus = self.charged.iter().zip(0..).filter(|(_, number)| *number != account::PINNED);
        of_gpus.map(|(charged, _)| charged.load(Ordering::Relaxed)).sum()
    }

    /// As a link to a broker wants it.
    pub fn answers(self: &Arc<Self>) -> Answers {
        let ledger = self.clone();
        Box::new(move |message| ledger.answer(message))
    }

    fn answer(&self, message: &ToBroker) -> (ToWorker, Vec<OwnedFd>) {
        let mut answer = ToWorker::new(to_worker::REPLY);
        let mut files = Vec::new();
        let charged = &self.charged[message.account as usize];
        let limit = if message.account == account::PINNED { PINNED } else { GPU };
        let held = charged.load(Ordering::Relaxed);
        let count = self.count.fetch_add(1, Ordering::Relaxed) ^ self.seed;
        match message.kind {
            to_broker::CHARGE if message.value <= limit - held => {
                charged.store(held + message.value, Ordering::Relaxed);
            }
            to_broker::CHARGE => answer.code = code::OVER_LIMIT,
            to_broker::RELEASE => {
                assert!(message.value <= held, "{} bytes given back, of {held}", message.value);
                charged.store(held - message.value, Ordering::Relaxed);
            }
            to_broker::EXPORT if count % 4 != 0 => answer.token = token(count),
            to_broker::IMPORT if count % 4 != 0 => {
                // Memory of another zone, which pays for it; or an event.
                answer.details = match message.value {
                    shared::EVENT => {
                        Shared { kind: shared::EVENT, len: event_page::CELL as u64, ..Shared::default() }
                    }
                    kind => Shared { kind, size: FOREIGN, offset: 0, len: FOREIGN, flags: count & 2 },
                };
                answer.token = token(count % 8);
                files.extend(some_file().try_clone());
            }
            to_broker::USAGE | to_broker::WITHDRAW | to_broker::CLOSE => {}
            _ => answer.code = code::UNKNOWN,
        }
        (answer.used, answer.limit) = (charged.load(Ordering::Relaxed), limit);
        (answer, files)
    }
}

fn token(number: u64) -> [u8; 16] {
    let mut token = [0x42; 16];
    token[..8].copy_from_slice(&number.to_le_bytes());
    token
}
