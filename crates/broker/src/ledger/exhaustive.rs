//! Every sequence of a few charges, releases and observations of two workers, against an account kept in wider numbers.

use super::*;

const MAX: u64 = u64::MAX;

#[derive(Debug, Clone, Copy)]
enum Action {
    Charge(usize, u64),
    Release(usize, u64),
    Impose(usize, u64),
    Observe(usize, u64),
    Limit(Option<u64>),
}

fn actions() -> Vec<Action> {
    use Action::{Charge, Impose, Limit, Observe, Release};
    let of_one = |who| {
        [
            Charge(who, 1),
            Charge(who, 3),
            Charge(who, MAX),
            Release(who, 1),
            Release(who, MAX),
            Impose(who, 2),
            Impose(who, MAX),
            Observe(who, 0),
            Observe(who, 4),
            Observe(who, MAX),
        ]
    };
    [of_one(0), of_one(1)].concat().into_iter().chain([Limit(None), Limit(Some(3)), Limit(Some(MAX))]).collect()
}

/// What the accounts must say: granted and beyond, of each worker, and the most there ever was.
#[derive(Debug, Clone, Copy, Default)]
struct Model {
    granted: [u128; 2],
    beyond: [u128; 2],
    limit: Option<u64>,
    peak: u128,
    refused: u64,
}

impl Model {
    fn used(&self) -> u128 {
        self.granted.iter().chain(&self.beyond).sum()
    }

    /// Answers what the ledger must answer: granted, or how many bytes it was.
    fn act(&mut self, action: Action) -> Option<u128> {
        let room = u128::from(MAX) - self.used();
        let answer = match action {
            Action::Charge(who, bytes) => {
                let fits = self.used() + u128::from(bytes) <= u128::from(self.limit.unwrap_or(MAX));
                if fits {
                    self.granted[who] += u128::from(bytes);
                } else {
                    self.refused += 1;
                }
                fits.then_some(0)
            }
            Action::Release(who, bytes) => {
                let given = self.granted[who].min(bytes.into());
                self.granted[who] -= given;
                Some(given)
            }
            Action::Impose(who, bytes) => {
                let imposed = room.min(bytes.into());
                self.granted[who] += imposed;
                Some(imposed)
            }
            Action::Observe(who, bytes) => {
                let room = room + self.beyond[who];
                self.beyond[who] = u128::from(bytes).saturating_sub(self.granted[who]).min(room);
                Some(0)
            }
            Action::Limit(limit) => {
                self.limit = limit;
                Some(0)
            }
        };
        self.peak = self.peak.max(self.used());
        answer
    }
}

/// Does all of it from the beginning, and compares after each step.
fn check(sequence: &[Action]) {
    let mut model = Model { limit: Some(5), ..Model::default() };
    let mut ledger = Ledger::new(Some(5));
    let mut accounts = [Account::default(), Account::default()];
    for action in sequence {
        let answer = match *action {
            Action::Charge(who, bytes) => ledger.charge(&mut accounts[who], bytes).ok().map(|()| 0),
            Action::Release(who, bytes) => Some(ledger.release(&mut accounts[who], bytes).into()),
            Action::Impose(who, bytes) => Some(ledger.impose(&mut accounts[who], bytes).into()),
            Action::Observe(who, bytes) => {
                ledger.observe(&mut accounts[who], bytes, 0);
                Some(0)
            }
            Action::Limit(limit) => {
                ledger.limit = limit;
                Some(0)
            }
        };
        assert_eq!(answer, model.act(*action), "{sequence:?}");
        for (who, account) in accounts.iter().enumerate() {
            let known = (u128::from(account.charged()), u128::from(account.beyond()));
            assert_eq!(known, (model.granted[who], model.beyond[who]), "{sequence:?}");
        }
        let known = (u128::from(ledger.used), u128::from(ledger.peak), ledger.refused);
        assert_eq!(known, (model.used(), model.peak, model.refused), "{sequence:?}");
    }
    for account in accounts {
        ledger.close(account);
    }
    assert_eq!(ledger.used, 0, "{sequence:?}");
}

#[test]
fn every_short_sequence_keeps_the_account() {
    const DEPTH: u32 = 4;
    let actions = actions();
    for sequence in 0..actions.len().pow(DEPTH) {
        let step = |at| actions[sequence / actions.len().pow(at) % actions.len()];
        check(&(0..DEPTH).map(step).collect::<Vec<_>>());
    }
}
