//! What a [`Suspension`](super::Suspension) decides is done: messages to workers, and movers.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use super::{Effect, MOVE_TIMEOUT, Moved, Outcome, Refused, Said, Seen, budget};
use crate::Broker;
use crate::reactor::Source;
use control::ZoneName;
use control::admin::{SuspendState, SuspendStatus};
use control::checkpoint::Move;
use control::messages::{MOVES_ITSELF, ToBroker, ToWorker, suspend_by, to_broker, to_worker};
use control::spawner::{Child, Program};

impl Said {
    /// None where a message says nothing of this kind.
    pub(crate) fn of(message: &ToBroker) -> Option<Self> {
        match message.kind {
            to_broker::SUSPENDED => Some(Self::Suspended {
                itself: (message.version == MOVES_ITSELF).then_some(message.value),
                away: message.details.kind != 0,
            }),
            to_broker::BUSY => Some(Self::Busy),
            to_broker::NOT_SUSPENDED => Some(Self::NotSuspended(message.value)),
            to_broker::MOVED => {
                let (which, report) = control::link::MoveReport::of_message(message);
                Some(Self::Moved(which, report))
            }
            _ => None,
        }
    }
}

impl Broker {
    /// Has idle workers suspended.
    pub(crate) fn look_for_idle(&mut self, now: Instant) {
        let zones = &self.zones;
        let serving = self.workers.iter_mut().filter(|(_, worker)| worker.is_serving() && worker.has_socket());
        let seen = serving.map(|(id, worker)| {
            let counted = worker.count();
            let priority = worker.zone().and_then(|zone| zones.get(zone)).map_or(0, |zone| zone.limits().priority);
            Seen { id, done: (counted.calls, counted.gpu_time_ns), priority }
        });
        let effects = self.suspend.observe(seen, now);
        self.apply_suspend(effects);
    }

    pub(crate) fn on_suspend_message(&mut self, id: u64, said: Said) {
        let now = Instant::now();
        let said = self.believable(id, said);
        let was_asked = self.suspend.snapshot(id).state == SuspendState::Suspending;
        if let Said::Moved(which, report) = said {
            let moved = self.suspend.on_report(id, which, &report, now);
            if let Some((moved, effects)) = moved {
                self.note_moved(id, moved, Some((report.bytes, report.time)), "");
                self.apply_suspend(effects);
            }
            return;
        }
        let effect = self.suspend.on_message(id, said, now);
        if let (Said::NotSuspended(_), true, Some(why)) = (said, was_asked, self.suspend.snapshot(id).refused) {
            self.log_refusal(id, why);
        }
        self.apply_suspend(effect);
    }

    /// What a worker says, within what can be: it has no more memory than it was granted.
    fn believable(&self, id: u64, said: Said) -> Said {
        let most = self.workers.get(id).map_or(0, |worker| worker.charged());
        match said {
            Said::Suspended { itself, away } => Said::Suspended { itself: itself.map(|bytes| bytes.min(most)), away },
            Said::Moved(which, report) => {
                let (bytes, time) = (report.bytes.min(most), report.time.min(MOVE_TIMEOUT));
                Said::Moved(which, control::link::MoveReport { bytes, time, ..report })
            }
            other => other,
        }
    }

    pub(crate) fn tick_suspend(&mut self, now: Instant) {
        let effects = self.suspend.tick(now);
        self.apply_suspend(effects);
    }

    /// A mover has ended, well or not.
    pub(crate) fn on_mover(&mut self, id: u64) {
        let Some(mover) = self.suspend.mover(id) else { return };
        self.reactor.forget(mover.process());
        let status = mover.reap().unwrap_or_default();
        if self.workers.get(id).is_none() {
            return self.suspend.forget(id);
        }
        let Some((moved, effects)) = self.suspend.move_ended(id, Outcome::of(&status), Instant::now()) else {
            return;
        };
        self.note_moved(id, moved, None, &status);
        self.apply_suspend(effects);
    }

    /// Says and counts what a move came to. `measured`: bytes and time, where the worker moved them itself.
    fn note_moved(&mut self, id: u64, moved: Moved, measured: Option<(u64, Duration)>, status: &str) {
        let Some(worker) = self.workers.get(id) else { return };
        let (pid, charged, zone) = (worker.client_pid(), worker.charged(), worker.zone().cloned());
        let (bytes, time) = measured.map_or((charged, None), |(bytes, time)| (bytes, Some(time)));
        let seconds = time.map(|time| time.as_secs_f64());
        let resident = charged.saturating_sub(bytes);
        let name = zone.as_ref().map(|zone| zone.as_str());
        match moved {
            Moved::Suspended => {
                tracing::info!(
                    zone = name,
                    pid,
                    bytes,
                    resident,
                    seconds,
                    "client suspended: memory moved to the host"
                );
            }
            Moved::Interrupted => tracing::warn!(pid, status, "suspend interrupted; moving the memory back"),
            Moved::NotSuspended => tracing::warn!(zone = name, pid, status, "cannot suspend a client"),
            Moved::Resumed => {
                tracing::info!(zone = name, pid, bytes, seconds, "client resumed: memory is back on the GPU")
            }
            Moved::Stranded => tracing::warn!(zone = name, pid, status, "cannot resume a client yet"),
        }
        let Some(totals) = zone.and_then(|zone| self.zones.get_mut(&zone)).map(|zone| &mut zone.totals) else {
            return;
        };
        let micros = time.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        match moved {
            Moved::Suspended => {
                totals.suspensions += 1;
                totals.moved_out.add(bytes, micros);
            }
            Moved::Resumed => totals.moved_back.add(bytes, micros),
            _ => {}
        }
    }

    fn log_refusal(&self, id: u64, why: Refused) {
        let Some(worker) = self.workers.get(id) else { return };
        let zone = worker.zone().map(|zone| zone.as_str());
        tracing::warn!(zone, pid = worker.client_pid(), reason = %why, "client not suspended");
    }

    fn apply_suspend(&mut self, effects: impl IntoIterator<Item = Effect>) {
        let mut effects: VecDeque<Effect> = effects.into_iter().collect();
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Ask(id) => _ = self.ask_to_suspend(id),
                Effect::AskFirst(ids) => _ = ids.into_iter().any(|id| self.ask_to_suspend(id).is_ok()),
                Effect::StartMove(id, which) => effects.extend(self.start_move(id, which)),
                Effect::Resume(id) => {
                    if let Some(worker) = self.workers.get_mut(id)
                        && worker.tell(&ToWorker::new(to_worker::RESUME), &[]).is_err()
                    {
                        worker.kill();
                    }
                }
                Effect::KillMover(id) => self.kill_mover(id),
                Effect::End(id) => {
                    if let Some(worker) = self.workers.get_mut(id) {
                        let (zone, pid) = (worker.zone().map(|zone| zone.to_string()), worker.client_pid());
                        tracing::error!(zone, pid, "client ended: no GPU memory to resume it within resume_timeout");
                        worker.kill();
                    }
                }
            }
        }
    }

    fn kill_mover(&mut self, id: u64) {
        if let Some(mover) = self.suspend.mover(id) {
            return mover.kill();
        }
        let frozen = |zone: &ZoneName| self.preemption.frozen.contains(zone);
        // What is frozen does not copy either, and is not late for it.
        if let Some(worker) = self.workers.get(id).filter(|worker| !worker.zone().is_some_and(frozen)) {
            tracing::error!(pid = worker.client_pid(), "client ended: its worker does not finish moving its memory");
            if let Some(worker) = self.workers.get_mut(id) {
                worker.kill();
            }
        }
    }

    fn ask_to_suspend(&mut self, id: u64) -> Result<(), Refused> {
        let itself = !self.config.suspend.with_context;
        let Some(worker) = self.workers.get(id) else { return Err(Refused::Unable) };
        if !itself && self.sharing.exports.is_sharing(id) {
            return Err(Refused::Sharing);
        }
        // Whose work stands still never becomes idle, and nothing could be copied. A worker waits for its next turn by
        // itself; the driver's checkpoint would wait for ever.
        let frozen = worker.zone().is_some_and(|zone| self.preemption.frozen.contains(zone));
        if frozen || (!itself && self.preemption.is_preempted(id)) {
            return Err(Refused::Frozen);
        }
        let mut message = ToWorker::new(to_worker::SUSPEND);
        message.code = if itself { suspend_by::WORKER } else { suspend_by::DRIVER };
        message.value = u64::try_from(self.suspend.wait_for(id).as_millis()).unwrap_or(0);
        worker.tell(&message, &[]).map_err(|_| Refused::Unable)?;
        self.suspend.asked(id, Instant::now());
        Ok(())
    }

    /// Has the memory moved; answers what follows when that cannot be begun.
    fn start_move(&mut self, id: u64, which: Move) -> Option<Effect> {
        let now = Instant::now();
        if !self.suspend.moves_itself(id) {
            return match self.start_mover(id, which) {
                Ok(mover) => {
                    self.suspend.move_started(id, which, Some(mover), now);
                    None
                }
                Err(error) => {
                    tracing::error!(%error, "cannot start a mover");
                    self.suspend.move_not_started(id, which, Some(Refused::Failed), now)
                }
            };
        }
        if let (Move::Out, Err(why)) = (which, self.check_suspend_budget(id)) {
            self.log_refusal(id, why);
            return self.suspend.move_not_started(id, which, Some(why), now);
        }
        let mut message = ToWorker::new(to_worker::MOVE);
        message.value = u64::from(which == Move::Back);
        let told = self.workers.get(id).is_some_and(|worker| worker.tell(&message, &[]).is_ok());
        match told {
            true => {
                self.suspend.move_started(id, which, None, now);
                None
            }
            false => self.suspend.move_not_started(id, which, Some(Refused::Unable), now),
        }
    }

    fn check_suspend_budget(&self, id: u64) -> Result<(), Refused> {
        let zone_of = |id: u64| self.workers.get(id).and_then(|worker| worker.zone());
        let name = zone_of(id);
        let limits = name.and_then(|name| self.zones.get(name)).map(|zone| zone.limits_in_force());
        budget::check(&budget::Request {
            bytes: self.suspend.bytes(id),
            zone: limits.and_then(|limits| limits.suspend_memory),
            zone_memory: limits.and_then(|limits| limits.host_memory),
            zone_held: self.suspend.held(|other| zone_of(other) == name),
            node: self.config.suspend.memory,
            node_held: self.suspend.held(|_| true),
        })
    }

    fn start_mover(&self, id: u64, which: Move) -> io::Result<Child> {
        let worker = self.workers.get(id).ok_or(io::ErrorKind::NotFound)?;
        let program = Program::Mover { worker: worker.child().id(), which };
        let child = self.launcher.start(&program, None)?;
        self.reactor.watch(child.process(), Source::Mover(id))?;
        Ok(child)
    }

    /// A worker has no GPU memory to allocate; whether there will be some soon.
    pub(crate) fn makes_room(&mut self, id: u64, gpu: u32) -> bool {
        if !self.config.suspend.on_demand {
            return false;
        }
        let now = Instant::now();
        let holds = |victim: u64| self.workers.get(victim).is_some_and(|worker| worker.charged_on(gpu) > 0);
        if self.suspend.is_making_room(now, holds) {
            return true;
        }
        let victims = self.suspend.who_makes_room(id, now);
        let victims: Vec<u64> = victims.into_iter().filter(|victim| holds(*victim)).collect();
        victims.into_iter().any(|victim| self.ask_to_suspend(victim).is_ok())
    }

    /// Suspends the clients of a zone and its parts; answers how many were asked.
    pub(crate) fn suspend_zone(&mut self, name: &ZoneName, hold: bool) -> usize {
        let parts: usize = self.zones.parts(name).iter().map(|part| self.suspend_zone(part, hold)).sum();
        let mut asked = 0;
        for id in self.workers_of(name) {
            if !self.suspend.request(id, hold, Instant::now()) {
                continue;
            }
            match self.ask_to_suspend(id) {
                Ok(()) => asked += 1,
                Err(why) => {
                    self.log_refusal(id, why);
                    self.suspend.refuse(id, why);
                }
            }
        }
        tracing::info!(zone = %name, workers = asked, hold, "suspending a zone");
        parts + asked
    }

    /// Brings the memory of a zone's clients back; answers of how many.
    pub(crate) fn resume_zone(&mut self, name: &ZoneName) -> usize {
        let parts: usize = self.zones.parts(name).iter().map(|part| self.resume_zone(part)).sum();
        let away: Vec<u64> = self
            .workers_of(name)
            .into_iter()
            .filter(|id| self.suspend.snapshot(*id).state != SuspendState::Running)
            .collect();
        for id in &away {
            let effect = self.suspend.release(*id);
            self.apply_suspend(effect);
        }
        tracing::info!(zone = %name, workers = away.len(), "resuming a zone");
        parts + away.len()
    }

    fn workers_of(&self, name: &ZoneName) -> Vec<u64> {
        let serving = self.workers.iter().filter(|(_, worker)| worker.is_serving() && worker.zone() == Some(name));
        serving.map(|(id, _)| id).collect()
    }

    /// How a worker stands, as operators are told.
    pub(crate) fn suspend_status(&self, id: u64) -> SuspendStatus {
        let known = self.suspend.snapshot(id);
        let charged = self.workers.get(id).map_or(0, |worker| worker.charged());
        let is_away = self.suspend.is_suspended(id);
        // The driver moves all of it.
        let bytes = if is_away && !self.suspend.moves_itself(id) { charged } else { known.bytes };
        SuspendStatus {
            state: known.state,
            held: known.held,
            bytes,
            resident: if is_away { charged.saturating_sub(bytes) } else { charged },
            out_ms: known.out.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            back_ms: known.back.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            refused: known.refused.map(|why| why.to_string()),
        }
    }
}
