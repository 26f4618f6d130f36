//! A zone's memory account. Pure arithmetic: no input can make it panic, wrap or go below what others hold.

use crate::control::ZoneLimits;

#[derive(Debug, Default)]
pub struct Ledger {
    pub limit: Option<u64>,
    pub used: u64,
    pub peak: u64,
    pub refused: u64,
}

/// What one worker holds of its zone's account.
#[derive(Debug, Default)]
pub struct Account(u64);

#[derive(Debug, PartialEq, Eq)]
pub struct OverLimit;

impl Account {
    pub fn charged(&self) -> u64 {
        self.0
    }
}

impl Ledger {
    pub fn new(limits: &ZoneLimits) -> Self {
        Self { limit: limits.memory, ..Self::default() }
    }

    pub fn charge(&mut self, account: &mut Account, bytes: u64) -> Result<(), OverLimit> {
        let fits = self.used.checked_add(bytes).filter(|total| self.limit.is_none_or(|limit| *total <= limit));
        match fits {
            Some(total) => {
                self.used = total;
                self.peak = self.peak.max(total);
                // An account is a part of the total, so it cannot overflow before the total does.
                account.0 += bytes;
                Ok(())
            }
            None => {
                self.refused = self.refused.saturating_add(1);
                Err(OverLimit)
            }
        }
    }

    /// Gives back at most what the account holds, and says how much that was.
    pub fn release(&mut self, account: &mut Account, bytes: u64) -> u64 {
        let bytes = bytes.min(account.0);
        account.0 -= bytes;
        self.used -= bytes;
        bytes
    }

    /// Takes over what a predecessor's books say, even where the limit has been lowered since.
    pub fn adopt(&mut self, bytes: u64) -> Account {
        let bytes = bytes.min(u64::MAX - self.used);
        self.used += bytes;
        self.peak = self.peak.max(self.used);
        Account(bytes)
    }

    pub fn close(&mut self, account: Account) {
        self.used -= account.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(limit: u64) -> Ledger {
        Ledger::new(&ZoneLimits { memory: Some(limit), ..ZoneLimits::default() })
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
    fn an_adopted_account_may_exceed_a_lowered_limit_but_not_grow() {
        let mut ledger = ledger(10);
        let mut a = ledger.adopt(50);
        assert_eq!(ledger.charge(&mut a, 1), Err(OverLimit));
        ledger.release(&mut a, 45);
        assert_eq!(ledger.charge(&mut a, 5), Ok(()));
    }
}
