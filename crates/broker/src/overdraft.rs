//! The cross-check of ledgers: what workers really use, as a meter outside of them has found.
//!
//! What a worker uses beyond what it was granted counts against its zone. A worker that uses much more, while its zone is
//! over its limit, has taken memory without asking, which none of ours does: it is ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use super::reactor::Source;
use super::{Broker, budgets};
use control::ZoneName;
use control::meter::{self, MAX_READINGS, Reading};
use control::packet;
use control::process;
use control::spawner::{Child, Program};

/// A meter that ended is not started again before this.
const PAUSE: Duration = Duration::from_secs(10);
/// A worker's own process is at most so many below the one that the broker started.
const GENERATIONS: usize = 4;
const MESSAGES_PER_TURN: usize = 8;

/// What is done about what the meter finds.
#[derive(Debug, Clone, Copy)]
pub struct Meter {
    /// What a worker may use beyond what it was granted, while its zone is over its limit.
    pub allowance: u64,
}

/// What is known of the meter.
#[derive(Default)]
pub struct Watch {
    running: Option<(Child, OwnedFd)>,
    again: Option<Instant>,
    /// The last one, if it was not gone yet when it was buried.
    dying: Option<Child>,
}

impl Watch {
    pub fn deadline(&self) -> Option<Instant> {
        self.again
    }
}

impl Broker {
    /// Starts the meter, if there is to be one and it is time.
    pub(super) fn keep_meter(&mut self) {
        if self.config.meter.is_none() {
            return;
        }
        if self.overdrafts.running.is_some() || self.overdrafts.again.is_some_and(|again| again > Instant::now()) {
            return;
        }
        if let Some(child) = self.overdrafts.dying.take() {
            child.reap();
        }
        match self.start_meter() {
            Ok(running) => self.overdrafts = Watch { running: Some(running), ..Watch::default() },
            Err(error) => {
                tracing::error!(%error, "cannot start the meter");
                self.overdrafts.again = Some(Instant::now() + PAUSE);
            }
        }
    }

    fn start_meter(&self) -> io::Result<(Child, OwnedFd)> {
        let (ours, theirs) = packet::pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let child = Child::start(&self.spawner, &Program::Meter, Some(theirs), None)?;
        self.reactor.watch(&ours, Source::Meter)?;
        Ok((child, ours))
    }

    pub(super) fn on_meter(&mut self) {
        // Words of eight bytes, so that readings lie as they must.
        let mut buffer = vec![0u64; MAX_READINGS * size_of::<Reading>() / 8];
        for _ in 0..MESSAGES_PER_TURN {
            let Some((_, socket)) = &self.overdrafts.running else { return };
            let bytes = buffer.as_mut_slice().as_mut_bytes();
            let readings = match packet::receive(socket, bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(received) if received.len > 0 => meter::read(&bytes[..received.len]).map(<[Reading]>::to_vec),
                _ => None,
            };
            match readings {
                Some(readings) => self.on_readings(&readings),
                None => return self.bury_meter(),
            }
        }
    }

    fn bury_meter(&mut self) {
        let Some((child, _)) = self.overdrafts.running.take() else { return };
        child.kill();
        // It is gone in a moment, for which nobody waits here.
        let status = child.reap();
        if status.is_none() {
            self.overdrafts.dying = Some(child);
        }
        let status = status.unwrap_or_default();
        tracing::warn!(status, "the meter ended: what drivers take beyond what was granted does not count meanwhile");
        self.overdrafts.again = Some(Instant::now() + PAUSE);
    }

    fn on_readings(&mut self, readings: &[Reading]) {
        let known: BTreeMap<u32, u64> = self.workers.iter().map(|(id, worker)| (worker.pid, *id)).collect();
        let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
        for reading in readings.iter().filter(|reading| reading.pid != 0) {
            if let Some(id) = owner(reading.pid, &known, process::parent) {
                let sum = sums.entry(id).or_default();
                *sum = sum.saturating_add(reading.bytes);
            }
        }
        let charged: BTreeMap<u64, u64> = self.workers.iter().map(|(id, worker)| (*id, worker.charged())).collect();
        let charged = |id: u64| charged.get(&id).copied().unwrap_or(0);
        // The picture is whole: who is not in it uses nothing.
        for (id, worker) in &mut self.workers {
            let Some((zone, account)) = worker.account_mut() else { continue };
            if let Some(zone) = self.zones.get_mut(zone) {
                // The driver counts memory of others that is mapped there as well, and others pay for it.
                let measured = sums.get(id).copied().unwrap_or(0);
                zone.ledger.observe(account, measured.saturating_sub(self.exports.unpaid(*id, charged)));
            }
        }
        self.end_overdrafts();
    }

    fn end_overdrafts(&mut self) {
        let Some(allowance) = self.config.meter.as_ref().map(|meter| meter.allowance) else { return };
        // Of those that one limit holds for, one at a time: with the worst of them gone, the others may be within bounds.
        let mut worst = BTreeSet::new();
        for zones in budgets::exceeded(&self.zones, &self.budgets) {
            let of_them =
                self.workers.iter().filter(|(_, worker)| worker.zone().is_some_and(|zone| zones.contains(&zone)));
            let most = of_them.map(|(id, worker)| (worker.beyond(), *id)).max();
            worst.extend(most.filter(|(beyond, _)| *beyond > allowance));
        }
        for (beyond, id) in worst {
            // One that was ended and is not gone yet is waited for: the others may be within bounds without it.
            let Some(worker) = self.workers.get_mut(&id).filter(|worker| !worker.is_dying()) else { continue };
            let (pid, name) = (worker.client_pid(), worker.zone().cloned());
            if let Some(zone) = name.as_ref().and_then(|name| self.zones.get_mut(name)) {
                zone.overdrafts = zone.overdrafts.saturating_add(1);
            }
            let zone = name.as_ref().map_or("", ZoneName::as_str);
            tracing::warn!(
                zone,
                worker = worker.pid,
                pid,
                beyond,
                "worker ended: it uses memory that it never asked for"
            );
            worker.kill();
        }
    }
}

/// The worker that a process belongs to: itself, or the one it descends from.
fn owner(pid: u32, known: &BTreeMap<u32, u64>, parent: impl Fn(u32) -> Option<u32>) -> Option<u64> {
    let mut next = Some(pid);
    for _ in 0..GENERATIONS {
        let pid = next.filter(|pid| *pid > 1)?;
        if let Some(id) = known.get(&pid) {
            return Some(*id);
        }
        next = parent(pid);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_belongs_to_the_worker_it_descends_from() {
        let known = BTreeMap::from([(10, 7)]);
        let parent = |pid: u32| Some(pid - 1);
        assert_eq!(owner(10, &known, parent), Some(7));
        assert_eq!(owner(12, &known, parent), Some(7));
        assert_eq!(owner(15, &known, parent), None, "not that far away");
        assert_eq!(owner(9, &known, parent), None);
        assert_eq!(owner(3, &known, parent), None);
        assert_eq!(process::parent(std::process::id()), Some(std::os::unix::process::parent_id()));
    }
}
