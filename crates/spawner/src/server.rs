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
    /// The connection broke.
    #[error("the connection to the broker broke: {0}")]
    Connection(#[from] io::Error),
}

/// Serves a broker until it hangs up. What it has started runs on: the next broker adopts it.
pub fn serve(local: &Local, broker: &OwnedFd) -> Result<(), ServeError> {
    let mut buffer = [0; size_of::<Request>()];
    loop {
        wait(local, broker)?;
        let received = packet::receive(broker, &mut buffer)?;
        if received.len == 0 {
            local.bury();
            return Ok(());
        }
        let request = Request::read_from_bytes(&buffer[..received.len]).map_err(|_| Malformed)?;
        let (reply, fd) =
            answer(local, request.asked()?, received.fds).unwrap_or_else(|error| (Reply::of_error(&error), None));
        let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
        packet::send(broker, reply.as_bytes(), &fds)?;
    }
}

/// Waits for a request, and does meanwhile what is due.
fn wait(local: &Local, broker: &OwnedFd) -> io::Result<()> {
    loop {
        let time = local.deadline().map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // One that is due at once is waited for a moment: rounded down, it would have us spin.
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()).max(1_000_000) }
        });
        let mut fds = [PollFd::new(broker, PollFlags::IN)];
        match rustix::event::poll(&mut fds, time.as_ref()) {
            Ok(0) => local.tidy(Instant::now()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
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
        Asked::SetAccess { zone, mode, uid, gid } => done(local.set_access(&zone, mode, uid, gid)?),
        Asked::Admit(child, zone, gpus) => done(local.admit(child, &zone, &gpus)?),
        Asked::Numbers(pid) => (Reply::of_numbers(&local.numbers(pid)), None),
        Asked::Retire(everything) => {
            local.retire(everything);
            done(())
        }
    })
}
