//! Has done what follows: starts the processes, registers workers, takes answers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use zerocopy::FromBytes;

use super::{ANSWER_TIMEOUT, ASK, CALL_TIMEOUT, PAUSE, Running, Standing, TEST_TIMEOUT};
use crate::Broker;
use crate::reactor::Source;
use crate::workers::Violation;
use control::ZoneName;
use control::backend::Backend;
use control::closing::Foreign;
use control::messages::{ToBroker, ToWorker, to_broker, to_worker};
use control::packet;
use control::process;
use control::spawner::Program;
use preempt::messages::{Reply, Request, kind};
use preempt::rm::{Class, Object};

/// Of the preemptor, which answers for all workers.
const MESSAGES_PER_TURN: usize = 1024;
/// More clients than any driver library has.
const MAX_CLIENTS: usize = 16;

impl Broker {
    /// Starts the test, and then the preemptor, when it is time.
    pub(crate) fn keep_preemptor(&mut self) {
        let now = Instant::now();
        self.preemption.dying.retain(|child| child.reap().is_none() && process::is_alive(child.process()));
        match &self.preemption.standing {
            Standing::Untested if self.config.private => {
                self.preemption.standing = Standing::Off("one tenant has the GPU to itself".to_owned());
            }
            // Tests of ours try it with every version.
            Standing::Untested if matches!(self.config.backend, Backend::Soft { .. }) => {
                self.set_standing(Standing::InForce("software GPU".to_owned()));
            }
            Standing::Untested => {
                self.preemption.standing = Standing::Testing;
                match self.start_spoken_to(&Program::PreemptionTest, Source::PreemptionTest) {
                    Ok(running) => self.preemption.test = Some((running, now + TEST_TIMEOUT)),
                    Err(error) => self.set_standing(Standing::Off(format!("cannot start the self-test: {error}"))),
                }
            }
            // There is one at a time: its predecessor may be closing files of the driver, which takes a while.
            Standing::InForce(_) if self.preemption.may_start(now) => self.start_preemptor(now),
            _ => {}
        }
    }

    fn start_spoken_to(&self, program: &Program, source: Source) -> io::Result<Running> {
        let (socket, theirs) = packet::pair()?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let child = self.launcher.start(program, Some(theirs))?;
        self.reactor.watch(&socket, source)?;
        Ok(Running { child, socket })
    }

    fn start_preemptor(&mut self, now: Instant) {
        match self.start_spoken_to(&Program::Preemptor, Source::Preemptor) {
            Ok(running) => {
                self.preemption.preemptor = Some(running);
                self.preemption.started_at = Some(now);
                let ids: Vec<u64> = self.workers.iter().map(|(id, _)| id).collect();
                ids.into_iter().for_each(|id| self.ask_for_channels(id));
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                self.preemption.standing = Standing::Off(error.to_string());
            }
            Err(error) => {
                tracing::error!(%error, "cannot start the preemptor");
                self.preemption.again = Some(now + PAUSE);
            }
        }
    }

    fn set_standing(&mut self, standing: Standing) {
        match &standing {
            Standing::InForce(measured) => tracing::info!(measured, "preemption is in force"),
            Standing::Off(reason) => tracing::warn!(reason, "preemption is not in force; zones take turns"),
            Standing::Untested | Standing::Testing => {}
        }
        self.preemption.standing = standing;
    }

    /// The self-test has said something, or ended.
    pub(crate) fn on_preemption_test(&mut self) {
        let Some((running, _)) = self.preemption.test.take() else { return };
        let mut buffer = [0; size_of::<Reply>()];
        let reply = match packet::receive(&running.socket, &mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.preemption.test = Some((running, Instant::now() + TEST_TIMEOUT));
                return;
            }
            received => received.ok().and_then(|received| Reply::read_from_bytes(&buffer[..received.len]).ok()),
        };
        self.reactor.forget(&running.socket);
        running.child.kill();
        self.preemption.dying.push(running.child);
        self.set_standing(match reply.map(|reply| (reply.result(), reply.microseconds)) {
            Some((Ok(()), stop)) => {
                Standing::InForce(format!("self-test passed; an endless kernel stops in {stop} us"))
            }
            Some((Err(why), _)) => Standing::Off(why),
            None => Standing::Off("the self-test ended without a result".to_owned()),
        });
    }

    pub(crate) fn on_preemptor(&mut self) {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(running) = &self.preemption.preemptor else { return };
            let mut buffer = [0; size_of::<Reply>()];
            let reply = match packet::receive(&running.socket, &mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(received) => Reply::read_from_bytes(&buffer[..received.len]).ok(),
                Err(_) => None,
            };
            let Some(reply) = reply else { return self.end_preemptor("it hung up") };
            self.on_preemptor_reply(&reply);
        }
    }

    fn on_preemptor_reply(&mut self, reply: &Reply) {
        if reply.kind == kind::PING {
            self.preemption.answer_by = None;
            return;
        }
        let Some(worker) = self.workers.get(reply.worker) else { return };
        let (pid, zone) = (worker.pid, worker.zone().map_or("", ZoneName::as_str));
        let frozen = worker.zone().is_some_and(|zone| self.preemption.frozen.contains(zone));
        if let kind::STOP | kind::RESUME = reply.kind {
            self.preemption.pending.remove(&reply.worker);
            // One that could not be resumed is tried again with its next turn.
            self.scheduler.set_off(reply.worker, reply.kind == kind::STOP && reply.result().is_ok());
        }
        match (reply.kind, reply.result()) {
            (kind::STOP, Ok(())) if frozen => {
                tracing::info!(zone, worker = pid, us = reply.microseconds, "worker frozen");
            }
            // Twenty times a second, as long as its work is longer than turns are.
            (kind::STOP, Ok(())) => tracing::debug!(zone, worker = pid, us = reply.microseconds, "worker preempted"),
            // A new preemptor resumes each worker; one without a context has nothing to resume.
            (kind::RESUME, _) => tracing::debug!(zone, worker = pid, us = reply.microseconds, "worker resumed"),
            (kind::STOP, Err(error)) => tracing::warn!(zone, worker = pid, error, "cannot freeze a worker"),
            (_, Err(error)) => tracing::debug!(zone, worker = pid, error, "the preemptor refuses"),
            (_, Ok(())) => {}
        }
    }

    fn end_preemptor(&mut self, why: &str) {
        let Some(running) = self.preemption.preemptor.take() else { return };
        running.child.kill();
        self.reactor.forget(&running.socket);
        self.preemption.dying.push(running.child);
        self.preemption.ends += 1;
        self.preemption.answer_by = None;
        self.preemption.outbox.clear();
        self.preemption.watched.clear();
        self.preemption.files.clear();
        self.preemption.pending.clear();
        self.preemption.left_out.clear();
        // Whoever is off the GPU stays so until the next one knows it: only that resumes it.
        for id in std::mem::take(&mut self.preemption.announced) {
            self.scheduler.set_stoppable(id, false);
        }
        // Mostly at once: whoever it had stopped waits.
        let lived = self.preemption.started_at.map_or(PAUSE, |at| at.elapsed());
        self.preemption.again = (lived < PAUSE).then(|| Instant::now() + PAUSE);
        tracing::warn!("preemptor ended: {why}; starting another");
    }

    /// Sends a request; one that the preemptor does not take is its end.
    fn tell_preemptor(&mut self, request: Request, fds: &[BorrowedFd<'_>]) {
        let seq = self.preemption.next_seq;
        self.preemption.next_seq += 1;
        let Some(running) = &self.preemption.preemptor else { return };
        if let Err(error) = self.preemption.outbox.send(&running.socket, request.numbered(seq), fds) {
            self.end_preemptor(&error.to_string());
        }
    }

    /// Sends what a worker has told, which may be without end: where there is no room it is left out.
    fn try_tell_preemptor(&mut self, request: Request) {
        if self.preemption.outbox.has_room() {
            self.tell_preemptor(request, &[]);
        } else {
            self.preemption.left_out.insert(request.worker);
        }
    }

    /// Sends what the preemptor had no room for.
    fn flush_preemptor(&mut self, now: Instant) {
        let Some(running) = &self.preemption.preemptor else { return };
        if let Err(error) = self.preemption.outbox.flush(&running.socket, now) {
            self.end_preemptor(&error.to_string());
        }
    }

    /// Asks for a sign of life within a time.
    fn ping_preemptor(&mut self, within: Duration) {
        if self.preemption.preemptor.is_some() {
            self.preemption.answer_by.get_or_insert(Instant::now() + within);
            self.tell_preemptor(Request::new(kind::PING, 0, 0), &[]);
        }
    }

    /// Has a worker tell of its driver's files and channels.
    pub(crate) fn ask_for_channels(&mut self, id: u64) {
        if self.preemption.preemptor.is_some()
            && let Some(worker) = self.workers.get(id)
        {
            // One that does not take it is ended by what it does not take next.
            let _ = worker.tell(&ToWorker::new(to_worker::ANNOUNCE), &[]);
        }
    }

    /// What a worker says of its driver.
    pub(crate) fn on_driver_message(
        &mut self,
        id: u64,
        message: &ToBroker,
        fds: Vec<Foreign>,
    ) -> Result<(), Violation> {
        if self.preemption.preemptor.is_none() {
            return Ok(());
        }
        match message.kind {
            to_broker::DRIVER_FILE => {
                self.watch_worker(id);
                let Some(worker) = self.workers.get(id) else { return Ok(()) };
                let file = match message.named_descriptor() {
                    // One whose descriptors cannot be taken yet is asked again when it is ready.
                    Some(number) => worker.take_descriptor(number).ok(),
                    None => fds.into_iter().next(),
                };
                let Some(file) = file else { return Ok(()) };
                let kind = if message.value == 0 { kind::SOFT } else { kind::NVIDIA };
                if !is_lendable(kind, &file) {
                    return Err(Violation::Malformed);
                }
                if !self.preemption.outbox.has_room() {
                    self.preemption.left_out.insert(id);
                    return Ok(());
                }
                if let (kind::NVIDIA, Some(number)) = (kind, message.named_descriptor()) {
                    let client = u32::try_from(message.value).map_err(|_| Violation::Malformed)?;
                    let files = self.preemption.files.entry(id).or_default();
                    files.retain(|(known, _)| *known != client);
                    if files.len() >= MAX_CLIENTS {
                        return Err(Violation::Malformed);
                    }
                    files.push((client, number));
                }
                self.tell_preemptor(Request::new(kind, id, message.value), &[file.as_fd()]);
                // What it tells of its objects is looked at when it is used.
                if self.preemption.files.contains_key(&id) {
                    self.tell_preemptor(Request::new(kind::RELEASE, id, 0), &[]);
                }
            }
            to_broker::DRIVER_OBJECT => {
                let words = message.driver_words().ok_or(Violation::Malformed)?;
                let [client, parent, handle, class, engine] = words;
                let object = Object { client, parent, handle, class, engine, descriptor: -1 };
                self.try_tell_preemptor(Request::of_object(id, object));
                if let Some(slice) = self.preemption.told_of(id, object.kind() == Some(Class::ChannelGroup)) {
                    self.set_slice(id, slice);
                }
            }
            _ if !self.preemption.has_announced(id) => {}
            _ => {
                self.scheduler.set_stoppable(id, self.preemption.can_stop(id));
                self.set_stopped(id);
            }
        }
        Ok(())
    }

    fn watch_worker(&mut self, id: u64) {
        let Some(worker) = self.workers.get(id) else { return };
        if !self.preemption.watched.insert(id) {
            return;
        }
        // The process that has the driver; its guard may outlive it for a moment.
        let inside = process::open_innermost(worker.pid, worker.child().process());
        let Some(process) = inside.or_else(|| worker.child().process().try_clone().ok()) else { return };
        self.tell_preemptor(Request::new(kind::WATCH, id, 0), &[process.as_fd()]);
        if let Some(slice) = self.preemption.slices.get(&id) {
            let microseconds = slice.as_micros() as u64;
            self.tell_preemptor(Request::new(kind::SLICE, id, microseconds), &[]);
        }
    }

    /// Stops a worker whose zone is frozen, or that the scheduler wants off the GPU, and resumes any other.
    pub(crate) fn set_stopped(&mut self, id: u64) {
        let zone = self.workers.get(id).and_then(|worker| worker.zone().cloned());
        let frozen = zone.is_some_and(|zone| self.preemption.frozen.contains(&zone));
        self.scheduler.set_frozen(id, frozen);
        if !self.preemption.watched.contains(&id) {
            return;
        }
        let kind = if frozen || self.preemption.preempted.contains(&id) { kind::STOP } else { kind::RESUME };
        self.preemption.pending.insert(id, Instant::now());
        self.with_files(id, Request::new(kind, id, 0));
    }

    /// The scheduler wants the work of a worker off the GPU, or back.
    pub(crate) fn preempt(&mut self, id: u64, stop: bool) {
        let Some(worker) = self.workers.get(id) else { return };
        if stop && self.preemption.ever_preempted.insert(id) {
            let zone = worker.zone().map_or("", ZoneName::as_str);
            let text = "worker preempted: its work outlasts its zone's turns, and is taken off the GPU after each";
            tracing::info!(zone, worker = worker.pid, "{text}");
        }
        let changed = if stop { self.preemption.preempted.insert(id) } else { self.preemption.preempted.remove(&id) };
        if changed {
            self.set_stopped(id);
        }
    }

    /// A worker has got a client: tells the scheduler what is known of it.
    pub(crate) fn schedule_stops(&self, id: u64) {
        if self.preemption.can_stop(id) {
            self.scheduler.set_stoppable(id, true);
        }
    }

    /// Sends a request for which the preemptor needs the driver's files of a worker.
    fn with_files(&mut self, id: u64, request: Request) {
        let files = self.preemption.files.get(&id).cloned().unwrap_or_default();
        for (client, number) in &files {
            // One that is gone takes its objects along.
            let Some(Ok(file)) = self.workers.get(id).map(|worker| worker.take_descriptor(*number)) else { continue };
            // One that has fallen may have put another file there.
            if !is_lendable(kind::NVIDIA, &file) {
                continue;
            }
            self.tell_preemptor(Request::new(kind::NVIDIA, id, (*client).into()), &[file.as_fd()]);
        }
        self.tell_preemptor(request, &[]);
        if !files.is_empty() {
            self.tell_preemptor(Request::new(kind::RELEASE, id, 0), &[]);
        }
    }

    /// Says how long the GPU is to run a worker's work before that of others.
    pub(crate) fn set_slice(&mut self, id: u64, slice: Duration) {
        self.preemption.slices.insert(id, slice);
        if self.preemption.watched.contains(&id) {
            self.with_files(id, Request::new(kind::SLICE, id, slice.as_micros() as u64));
        }
    }

    /// A worker is gone: nothing may keep its GPU memory.
    pub(crate) fn worker_ended(&mut self, id: u64) {
        self.preemption.slices.remove(&id);
        self.preemption.files.remove(&id);
        self.preemption.pending.remove(&id);
        self.preemption.announced.remove(&id);
        self.preemption.left_out.remove(&id);
        self.preemption.told.remove(&id);
        self.preemption.preempted.remove(&id);
        self.preemption.ever_preempted.remove(&id);
        if self.preemption.watched.remove(&id) {
            self.tell_preemptor(Request::new(kind::FORGET, id, 0), &[]);
            let preemptor = self.preemption.preemptor.as_ref().map(|running| running.child.pid());
            if preemptor.is_some_and(process::is_stopped) {
                return self.end_preemptor("somebody has stopped it");
            }
            self.ping_preemptor(ANSWER_TIMEOUT);
        }
    }

    /// Freezes or thaws a zone and its parts; answers how many workers that concerns.
    pub(crate) fn freeze_zone(&mut self, name: &ZoneName, frozen: bool) -> usize {
        let parts: usize = self.zones.parts(name).iter().map(|part| self.freeze_zone(part, frozen)).sum();
        if self.preemption.frozen.set(name, frozen) {
            tracing::info!(zone = %name, "{}", if frozen { "zone frozen" } else { "zone thawed" });
        }
        let ids: Vec<u64> = self.workers.of_zone(name).map(|(id, _)| id).collect();
        ids.iter().for_each(|id| self.set_stopped(*id));
        self.ping_preemptor(ANSWER_TIMEOUT);
        parts + ids.len()
    }

    /// Asks those again who serve a client and have not told of their channels.
    fn ask_the_silent(&mut self, now: Instant) {
        if self.preemption.preemptor.is_none() || self.preemption.ask_again.is_some_and(|at| now < at) {
            return;
        }
        let serving = self.workers.iter().filter(|(_, worker)| worker.zone().is_some()).map(|(id, _)| id);
        let silent: Vec<u64> = serving.filter(|id| !self.preemption.announced.contains(id)).collect();
        self.preemption.ask_again = (!silent.is_empty()).then(|| now + ASK);
        silent.into_iter().for_each(|id| self.ask_for_channels(id));
    }

    /// Ends what is late, and asks again for what was not told.
    pub(crate) fn expire_preemption(&mut self, now: Instant) {
        self.flush_preemptor(now);
        self.ask_the_silent(now);
        let late: Vec<u64> = self.preemption.late_calls(now).collect();
        if !late.is_empty() {
            self.preemption.pending.retain(|id, _| !late.contains(id));
            self.ping_preemptor(CALL_TIMEOUT);
        }
        if self.preemption.answer_by.is_some_and(|by| by <= now) {
            self.end_preemptor("it does not answer");
        }
        if let Some((running, until)) = &self.preemption.test
            && *until <= now
        {
            // Its hang-up is its result.
            running.child.kill();
        }
    }
}

/// Whether a descriptor is what workers lend: the driver's control file, or the page of a software GPU. Others are not even held for
/// a moment, as closing them may take as long as whoever made them likes. Nor does looking wait for a file system.
fn is_lendable(kind: u32, file: impl AsFd) -> bool {
    use rustix::fs::{AtFlags, FileType, SealFlags, StatxFlags};
    if kind == kind::SOFT {
        return rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    }
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(file.as_fd(), c"", flags, StatxFlags::TYPE).is_ok_and(|stat| {
        let is_device = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::CharacterDevice;
        is_device && (stat.stx_rdev_major, stat.stx_rdev_minor) == preempt::rm::CONTROL_DEVICE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_workers_lend_is_taken() {
        let (page, _words) = preempt::soft::make_page().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let (socket, _other) = packet::pair().unwrap();
        let open = rustix::fs::memfd_create("page", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(is_lendable(kind::SOFT, &page) && !is_lendable(kind::NVIDIA, &page));
        for file in [null.as_fd(), socket.as_fd(), open.as_fd()] {
            assert!(!is_lendable(kind::SOFT, file) && !is_lendable(kind::NVIDIA, file));
        }
    }
}
