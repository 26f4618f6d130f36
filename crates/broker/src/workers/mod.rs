//! The worker registry: all workers of a broker, what a successor must know of them, and which are to be started.

mod adoption;
mod assignment;
mod events;
mod fallen;
mod gpu_charges;
mod quota;
mod rejoin_listener;
mod rejoins;
mod slots;
mod spares;
mod starting;
mod worker;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;
use std::time::Instant;

use crate::reactor::Reactor;
use control::ZoneName;
use control::closing::Foreign;
use control::messages::Token;
pub(crate) use events::Violation;
pub use fallen::FallenWorkers;
use gpu_charges::GpuCharges;
pub(crate) use rejoin_listener::{Place, RejoinListener};
use rejoins::RejoinQueue;
use slots::{Slot, SlotFile};
use spares::Demand;
pub(crate) use spares::SparePolicy;
pub(crate) use worker::{Kind, Worker};

/// As many workers as one broker will have.
pub(crate) use slots::SLOTS;

pub(crate) struct Workers {
    table: BTreeMap<u64, Worker>,
    /// What is in here is true before it counts.
    file: SlotFile,
    gpu_charges: GpuCharges,
    pub spares: SparePolicy,
    pub rejoins: RejoinQueue<Foreign>,
    /// Where workers of a predecessor join us.
    rejoin_listener: RejoinListener,
    /// The same for those that the previous version started, while one of them is missing.
    previous_listener: Option<RejoinListener>,
}

impl Workers {
    /// `path`: the file in which a successor finds them.
    pub(crate) fn open(path: &Path, rejoin_listener: RejoinListener, now: Instant) -> io::Result<Self> {
        Ok(Self {
            table: BTreeMap::new(),
            file: SlotFile::open(path)?,
            gpu_charges: GpuCharges::open(&path.with_extension("gpus"))?,
            spares: SparePolicy::new(now),
            rejoins: RejoinQueue::new(),
            rejoin_listener,
            previous_listener: None,
        })
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Worker> {
        self.table.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Worker> {
        self.table.get_mut(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Worker)> {
        self.table.iter().map(|(id, worker)| (*id, worker))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Worker)> {
        self.table.iter_mut().map(|(id, worker)| (*id, worker))
    }

    pub(crate) fn insert(&mut self, id: u64, worker: Worker) {
        self.table.insert(id, worker);
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Worker> {
        self.table.remove(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn of_zone(&self, zone: &ZoneName) -> impl Iterator<Item = (u64, &Worker)> {
        self.iter().filter(move |(_, worker)| worker.zone() == Some(zone))
    }

    pub(crate) fn of_zone_mut(&mut self, zone: &ZoneName) -> impl Iterator<Item = &mut Worker> {
        self.table.values_mut().filter(move |worker| worker.zone() == Some(zone))
    }

    /// Kills workers; answers how many of them there were.
    pub(crate) fn kill(&mut self, ids: impl IntoIterator<Item = u64>) -> usize {
        let mut killed = 0;
        for id in ids {
            if let Some(worker) = self.table.get_mut(&id) {
                worker.kill();
            }
            killed += 1;
        }
        killed
    }

    pub(crate) fn spare_count(&self) -> usize {
        self.table.values().filter(|worker| worker.is_spare()).count()
    }

    pub(crate) fn ready_worker(&self, kind: &Kind) -> Option<u64> {
        self.iter().find(|(_, worker)| worker.is_ready() && worker.kind == *kind).map(|(id, _)| id)
    }

    /// Adds workers without a client to a demand.
    fn tally(&self, demand: &mut Demand) {
        for worker in self.table.values().filter(|worker| worker.is_spare()) {
            let tally = demand.tallies.entry(worker.kind.clone()).or_default();
            if worker.is_ready() {
                tally.ready += 1;
            } else {
                tally.starting += 1;
            }
        }
    }

    /// Ends ready workers beyond those that a demand keeps.
    fn end_surplus(&mut self, demand: &Demand) {
        for (kind, keep) in demand.ready_to_keep() {
            let ready = self.table.values_mut().filter(|worker| worker.is_ready() && worker.kind == *kind);
            ready.skip(keep).for_each(Worker::kill);
        }
    }

    /// When a worker is to be killed if it is then still there.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let kills = self.table.values().filter_map(|worker| worker.kill_at);
        let listeners = self.previous_listener.iter().chain([&self.rejoin_listener]);
        let reopenings = listeners.filter_map(RejoinListener::next_deadline);
        kills.chain(self.rejoins.next_deadline()).chain(reopenings).min()
    }

    fn listener_mut(&mut self, place: Place) -> Option<&mut RejoinListener> {
        match place {
            Place::Current => Some(&mut self.rejoin_listener),
            Place::Previous => self.previous_listener.as_mut(),
        }
    }

    /// Lets workers join again where too much was to be closed.
    pub(crate) fn reopen(&mut self, reactor: &Reactor, now: Instant) {
        self.previous_listener.iter_mut().chain([&mut self.rejoin_listener]).for_each(|one| one.reopen(reactor, now));
    }

    /// Ends those whose time is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.rejoins.expire(now);
        for worker in self.table.values_mut().filter(|worker| worker.kill_at.is_some_and(|at| at <= now)) {
            worker.kill();
        }
    }

    /// A slot of the first `most` that no worker uses, nor anybody else of whom `is_free` knows.
    pub(crate) fn free_slot(&self, most: usize, is_free: impl Fn(usize) -> bool) -> Option<usize> {
        let used: HashSet<usize> = self.table.values().map(|worker| worker.slot).collect();
        (0..most.min(SLOTS)).find(|slot| !used.contains(slot) && is_free(*slot))
    }

    /// Notes what a worker holds of its zone's account of a GPU.
    pub(crate) fn note_charged(&self, id: u64, gpu: u32) {
        let Some((slot, service)) = self.get(id).and_then(|worker| Some((worker.slot, worker.service()?))) else {
            return;
        };
        let Some(index) = service.gpus.iter().position(|known| *known == gpu) else { return };
        let charged = service.accounts.charged(gpu);
        report(match index {
            0 => self.file.write_charged(slot, charged),
            _ => self.gpu_charges.write(slot, index, charged),
        });
    }

    pub(crate) fn note_pinned(&self, slot: usize, pinned: u64) {
        report(self.file.write_pinned(slot, pinned));
    }

    /// Notes that a worker has something of another zone's: a successor must know, should the grant end then.
    pub(crate) fn note_borrows(&self, slot: usize) {
        report(self.file.write_borrows(slot));
    }

    /// Notes that a slot is free.
    pub(crate) fn note_free(&self, slot: usize) {
        report(self.file.clear(slot));
    }

    fn note(&self, slot: usize, record: &Slot) -> io::Result<()> {
        self.file.write(slot, record)
    }

    /// Notes the GPUs of a worker that is about to be assigned.
    fn note_gpus(&self, slot: usize, token: Token, gpus: &[u32]) -> io::Result<()> {
        self.gpu_charges.begin(slot, token, gpus)
    }
}

fn report(written: io::Result<()>) {
    if let Err(error) = written {
        tracing::error!(%error, "cannot write the worker registry");
    }
}

#[cfg(test)]
mod tests;
