//! What workers that have fallen say of memory and of being suspended, as the broker decides about it, without sockets and
//! processes: it can be tried by the million. What they share is tried by [`Strangers`](crate::Strangers).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::ledger::{Accounts, Memory};
use crate::suspend::{Effect, Said, Suspend, Suspension};
use crate::zones::{Zone, ZoneStore};
use control::ZoneName;
use control::host_defaults::HostDefaults;
use control::messages::{ToBroker, account, to_broker};
use control::zone::{ZoneLimits, ZoneSettings};

/// How many zones there are.
const ZONES: u64 = 3;
/// GPUs of each.
const GPUS: usize = 2;
/// What each zone may have, of each GPU and pinned.
const LIMIT: u64 = 1 << 20;

/// Workers of three zones.
pub struct FallenWorkers {
    zones: ZoneStore,
    accounts: BTreeMap<u64, Accounts>,
    /// What each worker was granted and has not given back.
    granted: BTreeMap<(u64, u32), u64>,
    suspension: Suspension<()>,
    now: Instant,
}

fn zone(worker: u64) -> ZoneName {
    ["first", "second", "third"][(worker % ZONES) as usize].parse().unwrap_or_else(|_| unreachable!("a name"))
}

impl Default for FallenWorkers {
    fn default() -> Self {
        let limits = ZoneLimits { memory: Some(LIMIT), pinned: Some(LIMIT), ..ZoneLimits::default() };
        let mut zones = ZoneStore::default();
        for number in 0..ZONES {
            let new = Zone::new(number, ZoneSettings::from(limits), HostDefaults::default(), false);
            zones.insert(zone(number), new);
        }
        let suspension = Suspension::new(Suspend { on_demand: true, ..Suspend::default() });
        Self { zones, accounts: BTreeMap::new(), granted: BTreeMap::new(), suspension, now: Instant::now() }
    }
}

impl FallenWorkers {
    /// A worker, of the zone that its number says, sends a message.
    ///
    /// # Panics
    /// If it gets more than its zone has, or changes anything of another worker's.
    pub fn says(&mut self, worker: u64, message: &ToBroker) {
        let others = self.others(worker);
        let mut effects = Vec::new();
        match message.kind {
            to_broker::CHARGE | to_broker::RELEASE | to_broker::USAGE => self.on_memory(worker, message),
            to_broker::NEED_ROOM => {
                let makes_room = self.suspension.who_makes_room(worker, self.now);
                assert!(!makes_room.contains(&worker), "it makes room for itself");
            }
            to_broker::DRIVER_OBJECT => {
                let again = message.driver_words().map(ToBroker::driver_object);
                assert!(again.is_none_or(|again| again.details == message.details), "another object than was told");
            }
            _ => {
                if let Some(said) = Said::of(message) {
                    effects = self.on_suspend(worker, said);
                }
            }
        }
        assert_eq!(self.others(worker), others, "a message changed what another worker has");
        self.apply(effects);
    }

    /// What the other workers have: their accounts, and whether and how much of it is suspended.
    fn others(&self, worker: u64) -> Vec<(u64, u64, u64, bool, u64)> {
        let others = self.accounts.iter().filter(|(id, _)| **id != worker);
        let all = others.map(|(id, accounts)| {
            let (pinned, suspended) = (accounts.pinned.charged(), self.suspension.is_suspended(*id));
            (*id, accounts.total(), pinned, suspended, self.suspension.bytes(*id))
        });
        all.collect()
    }

    fn on_memory(&mut self, worker: u64, message: &ToBroker) {
        let memory = match message.account {
            account::PINNED => Memory::Pinned,
            other => match account::gpu(other).filter(|gpu| *gpu < GPUS) {
                Some(gpu) => Memory::Gpu(gpu as u32),
                // It would be ended for it.
                None => return,
            },
        };
        let (zone, bytes) = (zone(worker), message.value);
        let accounts = self.accounts.entry(worker).or_default();
        let granted = self.granted.entry((worker, message.account)).or_default();
        match message.kind {
            to_broker::CHARGE if self.zones.charge(&zone, memory, accounts, bytes).is_ok() => {
                *granted = granted.checked_add(bytes).filter(|sum| *sum <= LIMIT).expect("more than the zone has");
            }
            to_broker::RELEASE => {
                self.zones.release(&zone, memory, accounts, bytes);
                *granted = granted.saturating_sub(bytes);
            }
            _ => {}
        }
        let has = match memory {
            Memory::Gpu(gpu) => accounts.charged(gpu),
            Memory::Pinned => accounts.pinned.charged(),
        };
        assert_eq!(has, *granted, "its account is another than it was granted");
        let of_zone =
            self.granted.iter().filter(|((id, of), _)| *of == message.account && id % ZONES == worker % ZONES);
        let sum: u64 = of_zone.map(|(_, granted)| *granted).sum();
        assert!(sum <= LIMIT, "its zone has more than its limit");
        if let Memory::Gpu(gpu) = memory {
            assert_eq!(self.zones.standing(&zone, gpu).used, sum, "its zone has another sum");
        }
    }

    fn on_suspend(&mut self, worker: u64, said: Said) -> Vec<Effect> {
        let effect = match said {
            // What it has moved away may be room for another.
            Said::Moved(which, report) => {
                let ended = self.suspension.on_report(worker, which, &report, self.now);
                return ended.map_or(Vec::new(), |(_, effects)| effects);
            }
            said => self.suspension.on_message(worker, said, self.now),
        };
        let is_own = match &effect {
            Some(Effect::StartMove(id, _) | Effect::Resume(id)) => *id == worker,
            other => other.is_none(),
        };
        assert!(is_own, "it had another worker moved");
        effect.into_iter().collect()
    }

    /// Has moves begin, as the broker does.
    fn apply(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            if let Effect::StartMove(id, which) = effect {
                let by = (!self.suspension.moves_itself(id)).then_some(());
                self.suspension.move_started(id, which, by, self.now);
            }
        }
    }

    /// The broker asks a worker to be suspended.
    pub fn suspend(&mut self, worker: u64) {
        if self.suspension.request(worker, false, self.now) {
            self.suspension.asked(worker, self.now);
        }
    }

    /// A new broker takes a worker over: what it was before is not known.
    pub fn adopt(&mut self, worker: u64) {
        self.suspension.forget(worker);
        self.suspension.adopt(worker, self.now);
    }

    /// Time goes by.
    pub fn wait(&mut self, seconds: u8) {
        self.now += Duration::from_secs(seconds.into());
        let effects = self.suspension.tick(self.now);
        self.apply(effects);
    }

    /// A worker is gone, and with it all that it has.
    ///
    /// # Panics
    /// If its zone pays for it still.
    pub fn ends(&mut self, worker: u64) {
        self.granted.retain(|(id, _), _| *id != worker);
        if let (Some(accounts), Some(zone)) = (self.accounts.remove(&worker), self.zones.get_mut(&zone(worker))) {
            zone.close(accounts);
        }
        self.suspension.worker_gone(worker);
        self.suspension.forget(worker);
        assert!(!self.suspension.is_suspended(worker));
    }

    /// All are gone.
    ///
    /// # Panics
    /// If anything is left of them.
    pub fn end(&mut self, workers: u64) {
        (0..workers).for_each(|worker| self.ends(worker));
        for number in 0..ZONES {
            let used = (0..GPUS as u32).map(|gpu| self.zones.standing(&zone(number), gpu).used);
            assert_eq!(used.sum::<u64>(), 0, "a zone pays for the dead");
        }
        assert_eq!(self.suspension.held(|_| true), 0, "host memory of the dead is counted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short run of what the fuzz target tries for long.
    #[test]
    fn whatever_fallen_workers_say_concerns_themselves_only() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        for _ in 0..200 {
            let mut fallen = FallenWorkers::default();
            for _ in 0..200 {
                let worker = random() % 6;
                match random() % 8 {
                    0 => fallen.suspend(worker),
                    1 => fallen.wait((random() % 256) as u8),
                    2 => fallen.ends(worker),
                    3 => fallen.adopt(worker),
                    _ => {
                        let mut message = ToBroker::new((random() % 21) as u32);
                        message.account = (random() % 5) as u32;
                        message.version = (random() % 4) as u32;
                        message.value =
                            if random() % 8 == 0 { u64::MAX - random() % 4 } else { random() % (LIMIT / 4) };
                        message.details.kind = random() % 3;
                        message.details.len = random();
                        fallen.says(worker, &message);
                    }
                }
            }
            fallen.end(6);
        }
    }
}
