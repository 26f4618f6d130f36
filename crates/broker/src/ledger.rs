//! A zone's account of one GPU's memory, or of pinned host memory, over all its workers: what they asked for, and what was
//! found that they use beyond it (the
//! driver's own memory: contexts, code, heaps, stacks). Pure arithmetic: no input can make it panic, wrap or go below what others hold.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub limit: Option<u64>,
    pub used: u64,
    pub peak: u64,
    pub refused: u64,
}

/// What one worker holds of its zone's account.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// What it asked for and was granted.
    charged: u64,
    /// What it uses beyond that, as somebody else has found.
    beyond: u64,
    /// Part of it that it is only suspected of: it counts, and nobody is ended for it.
    suspected: u64,
}

/// What one worker holds of its zone's accounts.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// By the GPU's number.
    pub gpus: BTreeMap<u32, Account>,
    /// Host memory pinned for GPUs.
    pub pinned: Account,
}

/// Memory that has an account of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Of the GPU with this number.
    Gpu(u32),
    Pinned,
}

impl Accounts {
    /// What was granted of a GPU.
    pub(crate) fn charged(&self, gpu: u32) -> u64 {
        self.gpus.get(&gpu).map_or(0, Account::charged)
    }

    /// All that counts on all GPUs.
    pub(crate) fn total(&self) -> u64 {
        self.gpus.values().fold(0, |sum: u64, account| sum.saturating_add(account.total()))
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("over the limit")]
pub(crate) struct OverLimit;

impl Account {
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    pub(crate) fn beyond(&self) -> u64 {
        self.beyond
    }

    /// The part of it that is certain.
    pub(crate) fn certainly_beyond(&self) -> u64 {
        self.beyond.saturating_sub(self.suspected)
    }

    /// All that counts against the limit.
    pub(crate) fn total(&self) -> u64 {
        self.charged.saturating_add(self.beyond)
    }
}

impl Ledger {
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self { limit, ..Self::default() }
    }

    pub(crate) fn charge(&mut self, account: &mut Account, bytes: u64) -> Result<(), OverLimit> {
        let fits = self.used.checked_add(bytes).filter(|total| self.limit.is_none_or(|limit| *total <= limit));
        match fits {
            Some(total) => {
                self.used = total;
                self.peak = self.peak.max(total);
                // An account is a part of the total, so it cannot overflow before the total does.
                account.charged += bytes;
                Ok(())
            }
            None => {
                self.refused = self.refused.saturating_add(1);
                Err(OverLimit)
            }
        }
    }

    /// Puts on an account what is in use already and whose payer is gone, even beyond the limit. Answers how much it was.
    pub(crate) fn impose(&mut self, account: &mut Account, bytes: u64) -> u64 {
        let bytes = bytes.min(u64::MAX - self.used);
        self.used += bytes;
        self.peak = self.peak.max(self.used);
        account.charged += bytes;
        bytes
    }

    /// Gives back at most what the account holds, and says how much that was.
    pub(crate) fn release(&mut self, account: &mut Account, bytes: u64) -> u64 {
        let bytes = bytes.min(account.charged);
        account.charged -= bytes;
        self.used = self.used.saturating_sub(bytes);
        bytes
    }

    /// Takes note of what the driver says that a worker uses, a part of which may be suspected only. More than it was granted counts from now on, even beyond
    /// the limit: then nothing is granted any more.
    pub(crate) fn observe(&mut self, account: &mut Account, measured: u64, suspected: u64) {
        account.suspected = suspected;
        let others = self.used.saturating_sub(account.beyond);
        account.beyond = measured.saturating_sub(account.charged).min(u64::MAX - others);
        self.used = others + account.beyond;
        self.peak = self.peak.max(self.used);
    }

    /// Takes over what a predecessor has granted, even where the limit has been lowered since.
    pub(crate) fn adopt(&mut self, bytes: u64) -> Account {
        let bytes = bytes.min(u64::MAX - self.used);
        self.used += bytes;
        self.peak = self.peak.max(self.used);
        Account { charged: bytes, ..Account::default() }
    }

    pub(crate) fn close(&mut self, account: Account) {
        self.used = self.used.saturating_sub(account.total());
    }
}

#[cfg(test)]
mod exhaustive;

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(limit: u64) -> Ledger {
        Ledger::new(Some(limit))
    }

    #[test]
    fn the_limit_holds_over_all_workers() {
        let mut ledger = ledger(100);
        let (mut a, mut b) = (Account::default(), Account::default());
        assert_eq!(ledger.charge(&mut a, 60), Ok(()));
        assert_eq!(ledger.charge(&mut b, 41), Err(OverLimit));
        assert_eq!(ledger.charge(&mut b, 40), Ok(()));
        assert_eq!((ledger.used, ledger.refused), (100, 1));
    }

    #[test]
    fn a_worker_cannot_release_what_another_holds() {
        let mut ledger = ledger(100);
        let (mut a, mut b) = (Account::default(), Account::default());
        ledger.charge(&mut a, 60).unwrap();
        ledger.charge(&mut b, 30).unwrap();
        assert_eq!(ledger.release(&mut b, u64::MAX), 30);
        assert_eq!(ledger.used, 60);
        ledger.close(a);
        assert_eq!(ledger.used, 0);
    }

    #[test]
    fn absurd_figures_are_refused() {
        let mut ledger = Ledger::default();
        let mut a = Account::default();
        ledger.charge(&mut a, u64::MAX).unwrap();
        assert_eq!(ledger.charge(&mut a, 1), Err(OverLimit));
        let adopted = ledger.adopt(5);
        assert_eq!(adopted.charged(), 0);
    }

    #[test]
    fn what_the_driver_takes_counts_and_goes_with_the_worker() {
        let mut ledger = ledger(100);
        let (mut a, mut b) = (Account::default(), Account::default());
        ledger.charge(&mut a, 20).unwrap();
        // Its context and its code cost 50 beyond what it asked for.
        ledger.observe(&mut a, 70, 0);
        assert_eq!((ledger.used, a.charged(), a.total()), (70, 20, 70));
        assert_eq!(ledger.charge(&mut b, 31), Err(OverLimit));
        ledger.charge(&mut a, 30).unwrap();
        assert_eq!(ledger.used, 100);
        ledger.observe(&mut a, 100, 0);
        assert_eq!(ledger.used, 100, "what it was granted meanwhile does not count twice");
        // Nobody gives back what it never asked for, and it may be more than the limit.
        assert_eq!(ledger.release(&mut a, u64::MAX), 50);
        ledger.observe(&mut a, 500, 0);
        assert_eq!((ledger.used, ledger.charge(&mut b, 1)), (500, Err(OverLimit)));
        ledger.observe(&mut a, u64::MAX, 0);
        ledger.charge(&mut b, 1).unwrap_err();
        ledger.observe(&mut a, 0, 0);
        assert_eq!(ledger.used, 0);
        ledger.observe(&mut a, 10, 0);
        ledger.close(a);
        assert_eq!(ledger.used, 0);
    }

    #[test]
    fn an_adopted_account_may_exceed_a_lowered_limit_but_not_grow() {
        let mut ledger = ledger(10);
        let mut a = ledger.adopt(50);
        assert_eq!(ledger.charge(&mut a, 1), Err(OverLimit));
        ledger.release(&mut a, 45);
        assert_eq!(ledger.charge(&mut a, 5), Ok(()));
    }
}
