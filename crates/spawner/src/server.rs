//! The spawner as a process of its own: one broker at a time, one request after the other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use control::packet;
use control::spawner::{Spawner, Started};
use rustix::event::{PollFd, PollFlags, Timespec};
use zerocopy::{FromBytes, IntoBytes};

use crate::Local;
use crate::messages::{Asked, Malformed, Reply, Request};

/// Why a broker is not served any more.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It sent what no broker sends.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The connection broke, or the broker does not take its answers.
    #[error("lost the connection to the broker: {0}")]
    Connection(#[from] io::Error),
}

/// How a broker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// It hung up. Whether it had said before that nothing of it is to stay.
    HungUp { everything: bool },
    /// Something else wants our attention: it is not served any more, whatever it may still want.
    Interrupted,
}

/// Serves a broker until it hangs up, or one of the others can be read. What it has started runs on: the next broker
/// adopts it.
pub fn serve(local: &Local, broker: &OwnedFd, others: &[BorrowedFd<'_>]) -> Result<Served, ServeError> {
    local.begin();
    let served = answer_all(local, broker, others);
    local.bury();
    served
}

fn answer_all(local: &Local, broker: &OwnedFd, others: &[BorrowedFd<'_>]) -> Result<Served, ServeError> {
    let mut buffer = [0; size_of::<Request>()];
    let mut everything = false;
    loop {
        if !wait(local, broker, others)? {
            return Ok(Served::Interrupted);
        }
        let received = packet::receive(broker, &mut buffer)?;
        if received.len == 0 {
            return Ok(Served::HungUp { everything });
        }
        let request = Request::read_from_bytes(&buffer[..received.len]).map_err(|_| Malformed)?;
        let asked = request.asked()?;
        everything |= asked == Asked::Retire(true);
        let (reply, fd) = answer(local, asked, received.fds).unwrap_or_else(|error| (Reply::of_error(&error), None));
        let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
        // It waits for each answer before it asks again; one that does not take them would have us wait for ever.
        packet::send_now(broker, reply.as_bytes(), &fds)?;
    }
}

/// Waits for a request, and does meanwhile what is due. False when one of the others is to be looked at instead.
fn wait(local: &Local, broker: &OwnedFd, others: &[BorrowedFd<'_>]) -> io::Result<bool> {
    loop {
        if local.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            local.tidy(Instant::now());
        }
        let time = local.deadline().map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // One that is due at once is waited for a moment: rounded down, it would have us spin.
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()).max(1_000_000) }
        });
        let mut fds = vec![PollFd::new(broker, PollFlags::IN)];
        fds.extend(others.iter().map(|other| PollFd::new(other, PollFlags::IN)));
        match rustix::event::poll(&mut fds, time.as_ref()) {
            Ok(_) if fds[1..].iter().any(|other| !other.revents().is_empty()) => return Ok(false),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

fn answer(local: &Local, asked: Asked, fds: Vec<OwnedFd>) -> io::Result<(Reply, Option<OwnedFd>)> {
    let mut fds = fds.into_iter();
    let started = |started: Started| (Reply::of_child(started.id, started.pid), Some(started.process));
    let done = |()| (Reply::done(), None);
    let flag = |flag: bool| (Reply::of_flag(flag), None);
    Ok(match asked {
        Asked::Facts => (Reply::of_facts(local.facts()), None),
        Asked::Start(program, stdin, stderr) => {
            let stdin = if stdin { fds.next() } else { None };
            let stderr = if stderr { fds.next() } else { None };
            started(local.start(&program, stdin, stderr)?)
        }
        Asked::Adopt { slot, pid, start_time, zone } => started(local.adopt(slot, pid, start_time, zone.as_ref())?),
        Asked::Sweep => {
            local.sweep();
            done(())
        }
        Asked::Kill(child) => {
            local.kill(child);
            done(())
        }
        Asked::Reap(child) => (Reply::of_text(local.reap(child).as_deref()), None),
        Asked::IsFree(slot) => flag(local.is_free(slot)),
        Asked::OpenInside(child) => done(local.open_inside(child)?),
        Asked::TakeDescriptor(child, number) => (Reply::done(), Some(local.take_descriptor(child, number)?)),
        Asked::SetClient(child) => {
            let connection = fds.next().ok_or(io::ErrorKind::InvalidInput)?;
            done(local.set_client(child, connection.as_fd())?)
        }
        Asked::KillClient(child) => flag(local.kill_client(child)),
        Asked::SetZone(zone, limits) => flag(local.set_zone(&zone, limits)?),
        Asked::RemoveZone(zone) => {
            local.remove_zone(&zone);
            done(())
        }
        Asked::MakeZoneDirectory(zone, users) => done(local.make_zone_directory(&zone, users)?),
        Asked::RemoveZoneDirectory(zone) => {
            local.remove_zone_directory(&zone);
            done(())
        }
        Asked::ClearAdminSocket => done(local.clear_admin_socket()?),
        Asked::OpenAdminSocket => done(local.open_admin_socket()?),
        Asked::SetAccess { zone, mode, uid, gid } => done(local.set_access(&zone, mode, uid, gid)?),
        Asked::Admit(child, zone, gpus) => done(local.admit(child, &zone, &gpus)?),
        Asked::Numbers(pid) => (Reply::of_numbers(&local.numbers(pid)), None),
        // The top group stays for as long as we do: the next broker's workers go there.
        Asked::Retire(_) => {
            local.retire(false);
            done(())
        }
    })
}
