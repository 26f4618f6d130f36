//! What a [`Suspension`](super::Suspension) decides is done: messages to workers, and movers.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use super::{Effect, Moved, Outcome, Said};
use crate::Broker;
use crate::reactor::Source;
use control::checkpoint::Move;
use control::messages::{ToWorker, to_worker};
use control::spawner::{Child, Program};

impl Broker {
    /// Has idle workers suspended.
    pub(crate) fn look_for_idle(&mut self, now: Instant) {
        let serving = self.workers.iter_mut().filter(|(_, worker)| worker.is_serving() && worker.has_socket());
        let done = serving.map(|(id, worker)| {
            let counted = worker.count();
            (id, (counted.calls, counted.gpu_time_ns))
        });
        let effects = self.suspend.observe(done, now);
        self.apply_suspend(effects);
    }

    pub(crate) fn on_suspend_message(&mut self, id: u64, said: Said) {
        let effect = self.suspend.on_message(id, said, Instant::now());
        self.apply_suspend(effect);
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
        let Some(worker) = self.workers.get(id) else { return self.suspend.forget(id) };
        let (pid, bytes, zone) = (worker.client_pid(), worker.charged(), worker.zone().cloned());
        let Some((moved, effects)) = self.suspend.move_ended(id, Outcome::of(&status), Instant::now()) else {
            return;
        };
        let name = zone.as_ref().map(|zone| zone.as_str());
        match moved {
            Moved::Suspended => {
                tracing::info!(zone = name, pid, bytes, "client suspended: memory moved to the host");
                if let Some(zone) = zone.and_then(|zone| self.zones.get_mut(&zone)) {
                    zone.totals.suspensions += 1;
                }
            }
            Moved::Interrupted => tracing::warn!(pid, status, "suspend interrupted; moving the memory back"),
            Moved::NotSuspended => tracing::warn!(pid, status, "cannot suspend an idle client"),
            Moved::Resumed => tracing::info!(zone = name, pid, bytes, "client resumed: memory is back on the GPU"),
            Moved::Stranded => tracing::warn!(pid, status, "cannot resume a client yet"),
        }
        self.apply_suspend(effects);
    }

    fn apply_suspend(&mut self, effects: impl IntoIterator<Item = Effect>) {
        let mut effects: VecDeque<Effect> = effects.into_iter().collect();
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Ask(id) => {
                    self.ask_to_suspend(id);
                }
                Effect::AskFirst(ids) => {
                    ids.into_iter().any(|id| self.ask_to_suspend(id));
                }
                Effect::StartMove(id, which) => match self.start_mover(id, which) {
                    Ok(mover) => self.suspend.move_started(id, which, mover, Instant::now()),
                    Err(error) => {
                        tracing::error!(%error, "cannot start a mover");
                        effects.extend(self.suspend.move_not_started(id, which, Instant::now()));
                    }
                },
                Effect::Resume(id) => {
                    if let Some(worker) = self.workers.get_mut(id)
                        && worker.tell(&ToWorker::new(to_worker::RESUME), &[]).is_err()
                    {
                        worker.kill();
                    }
                }
                Effect::KillMover(id) => {
                    if let Some(mover) = self.suspend.mover(id) {
                        mover.kill();
                    }
                }
            }
        }
    }

    /// False if the worker shares memory, or does not take the message.
    fn ask_to_suspend(&mut self, id: u64) -> bool {
        let Some(worker) = self.workers.get(id).filter(|_| !self.sharing.exports.is_sharing(id)) else {
            return false;
        };
        let told = worker.tell(&ToWorker::new(to_worker::SUSPEND), &[]).is_ok();
        if told {
            self.suspend.asked(id, Instant::now());
        }
        told
    }

    fn start_mover(&self, id: u64, which: Move) -> io::Result<Child> {
        let worker = self.workers.get(id).ok_or(io::ErrorKind::NotFound)?;
        let program = Program::Mover { worker: worker.child().id(), which };
        let child = self.launcher.start(&program, None)?;
        self.reactor.watch(child.process(), Source::Mover(id))?;
        Ok(child)
    }
}
