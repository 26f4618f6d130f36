//! A link without a broker's process: whoever made it answers. Fuzzing and tests of a worker's dispatch have no time for a
//! socket, and want to know what the worker believes to hold.

use std::os::fd::OwnedFd;

use super::{Answer, BrokerLink, Outcome, Request, State};
use crate::messages::{ToBroker, ToWorker, to_broker};

/// Answers a worker's message, as a broker would: the code and whatever its kind calls for. The answer to a `RELEASE` is
/// not looked at.
pub type Answers = Box<dyn Fn(&ToBroker) -> (ToWorker, Vec<OwnedFd>) + Send + Sync>;

impl BrokerLink {
    /// A link whose requests are answered on the spot, by the thread that asks.
    pub fn in_process(answers: Answers) -> Self {
        Self::new(None, None, false, Some(answers))
    }
}

impl State {
    /// Asks, after telling what was given back before.
    pub(super) fn ask(&mut self, answers: &Answers, mut message: ToBroker, request: Request) -> Option<Box<Answer>> {
        for (number, account) in (0..).zip(&mut self.accounts).filter(|(_, account)| account.unsent_release > 0) {
            let mut release = ToBroker::new(to_broker::RELEASE);
            (release.account, release.value) = (number, std::mem::take(&mut account.unsent_release));
            answers(&release);
        }
        message.seq = self.next_seq;
        self.next_seq += 1;
        self.requests.insert(message.seq, request);
        let (mut answer, fds) = answers(&message);
        (answer.seq, answer.account) = (message.seq, message.account);
        self.take_reply(answer, fds);
        match self.requests.remove(&message.seq)?.outcome? {
            Outcome::Answered(answer) => Some(answer),
            Outcome::Lost => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::messages::{account, code, to_worker};

    #[test]
    fn charges_and_releases_reach_whoever_answers() {
        const LIMIT: u64 = 100;
        let held = Arc::new(AtomicU64::new(0));
        let ledger = held.clone();
        let link = BrokerLink::in_process(Box::new(move |message| {
            let mut answer = ToWorker::new(to_worker::REPLY);
            assert_eq!(message.account, account::DEVICE);
            match message.kind {
                to_broker::RELEASE => _ = ledger.fetch_sub(message.value, Ordering::Relaxed),
                to_broker::CHARGE if ledger.load(Ordering::Relaxed) + message.value <= LIMIT => {
                    ledger.fetch_add(message.value, Ordering::Relaxed);
                }
                _ => answer.code = code::OVER_LIMIT,
            }
            (answer, Vec::new())
        }));
        assert!(link.charge(0, 60).is_ok());
        assert_eq!(link.charge(0, 60), Err(super::super::Denied::OverLimit));
        link.release(0, 20);
        link.release(0, LIMIT);
        assert!(link.charge(0, 100).is_ok(), "what was given back is told first, and no more than was held");
        assert_eq!(held.load(Ordering::Relaxed), LIMIT);
    }
}
