//! The cross-check of ledgers: what workers really use, as a process outside of them (the meter) has found.
//!
//! What a worker uses beyond what it was granted counts against its zone. A worker that uses much more, while its zone is
//! over its limit, has taken memory without asking, which none of ours does: it is ended.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use zerocopy::IntoBytes;

use super::overdraft::{Drawn, Measured, suspects, used_by_worker, worst_overdrafts};
use crate::Broker;
use crate::ledger::Memory;
use crate::reactor::Source;
use crate::workers::Worker;
use control::ZoneName;
use control::meter::{self, MAX_READINGS, Reading};
use control::packet;
use control::process;
use control::spawner::{Child, Program};

const MESSAGES_PER_TURN: usize = 8;

/// What is done about what the meter finds.
#[derive(Debug, Clone, Copy)]
pub struct Meter {
    /// What the workers of a zone may use beyond what they were granted, while it is over its limit.
    pub allowance: u64,
}

pub(crate) struct Running {
    child: Child,
    socket: OwnedFd,
}

impl Broker {
    /// Starts the meter, if there is to be one and it is time.
    pub(crate) fn keep_meter(&mut self) {
        let now = Instant::now();
        if self.config.meter.is_none() || !self.monitor.meter.is_due(now) {
            return;
        }
        if let Some(Running { child, .. }) = self.monitor.meter.take_dying() {
            child.reap();
        }
        match self.start_meter() {
            Ok(running) => self.monitor.meter.started(running),
            Err(error) => {
                tracing::error!(%error, "cannot start the meter");
                self.monitor.meter.ended(now);
            }
        }
    }

    fn start_meter(&self) -> io::Result<Running> {
        let (socket, theirs) = packet::pair()?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let child = self.launcher.start(&Program::Meter, Some(theirs))?;
        self.reactor.watch(&socket, Source::Meter)?;
        Ok(Running { child, socket })
    }

    pub(crate) fn on_meter(&mut self) {
        // Words of eight bytes, so that readings lie as they must.
        let mut buffer = vec![0u64; MAX_READINGS * size_of::<Reading>() / 8];
        for _ in 0..MESSAGES_PER_TURN {
            let Some(Running { socket, .. }) = self.monitor.meter.running() else { return };
            let bytes = buffer.as_mut_slice().as_mut_bytes();
            let readings = match packet::receive(socket, bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(received) if received.len > 0 => meter::read(&bytes[..received.len]).map(<[Reading]>::to_vec),
                _ => None,
            };
            match readings {
                Some(readings) => self.on_readings(&readings),
                None => return self.end_meter(),
            }
        }
    }

    fn end_meter(&mut self) {
        let Some(running) = self.monitor.meter.ended(Instant::now()) else { return };
        running.child.kill();
        self.reactor.forget(&running.socket);
        // It is gone in a moment, for which nobody waits here.
        let status = running.child.reap();
        if status.is_none() {
            self.monitor.meter.set_dying(running);
        }
        let status = status.unwrap_or_default();
        tracing::warn!(status, "meter ended; memory that drivers take for themselves is not counted meanwhile");
    }

    fn on_readings(&mut self, readings: &[Reading]) {
        for (gpu, fault) in self.monitor.faults.look(readings) {
            match fault {
                Some(fault) => tracing::error!(gpu, fault, "GPU does not work; nothing new is put on it"),
                None => tracing::info!(gpu, "GPU works again"),
            }
        }
        let readings: Vec<Reading> = readings.iter().filter(|one| one.pid != meter::CONDITION).copied().collect();
        let readings = &readings[..];
        let known: BTreeMap<u32, u64> = self.workers.iter().map(|(id, worker)| (worker.pid, id)).collect();
        let used = used_by_worker(readings, &known, process::parent);
        let charged: BTreeMap<(u64, u32), u64> = self
            .workers
            .iter()
            .flat_map(|(id, worker)| worker.gpus().iter().map(move |gpu| ((id, *gpu), worker.charged_on(*gpu))))
            .collect();
        let charged_of = |id: u64, gpu: u32| charged.get(&(id, gpu)).copied().unwrap_or(0);
        let mut by_gpu: BTreeMap<u32, BTreeMap<u64, Measured>> = BTreeMap::new();
        for (id, worker) in self.workers.iter() {
            // The driver counts memory of others that is mapped there as well, and others pay for it.
            let discounts = self.sharing.exports.unpaid(id, charged_of);
            for gpu in worker.gpus() {
                let discount = discounts.get(gpu).copied().unwrap_or(0);
                let used = used.get(&(id, *gpu)).copied().unwrap_or(0);
                let measured = Measured { used, charged: charged_of(id, *gpu), discount };
                by_gpu.entry(*gpu).or_default().insert(id, measured);
            }
        }
        for (gpu, workers) in by_gpu {
            self.observe_gpu(gpu, readings, &workers);
        }
        self.end_overdrafts();
    }

    /// The picture is whole: who is not in the readings uses nothing.
    fn observe_gpu(&mut self, gpu: u32, readings: &[Reading], workers: &BTreeMap<u64, Measured>) {
        let slack = self.config.meter.map_or(u64::MAX, |meter| meter.allowance);
        let hidden = self.monitor.hidden.look(readings, gpu, workers, slack);
        let zone_of = |id: &u64| Some((*id, self.zones.family(self.workers.get(*id)?.zone()?)));
        let suspected = suspects(workers, &workers.keys().filter_map(zone_of).collect(), hidden);
        for (id, Measured { used, discount, .. }) in workers {
            let Some((zone, accounts)) = self.workers.get_mut(*id).and_then(Worker::accounts_mut) else { continue };
            if let Some(zone) = self.zones.get_mut(zone) {
                let suspected = suspected.get(id).copied().unwrap_or(0);
                let (ledger, account) = zone.ledger_for(Memory::Gpu(gpu), accounts);
                ledger.observe(account, used.saturating_sub(discount - suspected), suspected);
            }
        }
    }

    fn end_overdrafts(&mut self) {
        let Some(Meter { allowance }) = self.config.meter else { return };
        let drawn = self.workers.iter().flat_map(|(id, worker)| {
            let is_dying = worker.is_dying();
            worker.gpus().iter().filter_map(move |gpu| {
                let (zone, account) = (worker.zone()?, worker.account(*gpu)?);
                Some(Drawn {
                    id,
                    zone,
                    gpu: *gpu,
                    beyond: account.certainly_beyond(),
                    total: account.total(),
                    is_dying,
                })
            })
        });
        let workers: Vec<Drawn<'_>> = drawn.collect();
        let worst = worst_overdrafts(&self.zones.exceeded(), &workers, allowance);
        for (beyond, id) in worst {
            let Some(worker) = self.workers.get_mut(id) else { continue };
            let (pid, name) = (worker.client_pid(), worker.zone().cloned());
            if let Some(zone) = name.as_ref().and_then(|name| self.zones.get_mut(name)) {
                zone.totals.overdrafts = zone.totals.overdrafts.saturating_add(1);
            }
            let zone = name.as_ref().map_or("", ZoneName::as_str);
            let worker_pid = worker.pid;
            tracing::warn!(
                zone,
                worker = worker_pid,
                pid,
                beyond,
                "worker ended: it uses memory that was never granted"
            );
            worker.kill();
        }
    }
}
