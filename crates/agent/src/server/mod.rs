//! The agent: one thread, one loop over the link, the processes' streams and their ends.
//!
//! Each round does what can be done without waiting, in this order: requests, what processes said on their way to their
//! program, children that have ended, input, output. A child is collected before reports are read for the last time:
//! whoever made it had said its number before it could end (see [`crate::container`]).

mod process;
mod requests;
mod root;
mod streams;
mod transport;

pub use transport::{Interest, Transport};

use crate::container::Trees;
use crate::protocol::{Up, VERSION};
use crate::volumes::Volumes;
use process::{Process, State};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, WaitOptions, WaitStatus};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use transport::Link;

/// Orphans of containers that nobody waits for are collected at least this often.
const ROUND: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const NOT_AT_ALL: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

struct Agent<T> {
    link: Link<T>,
    /// Where root file systems are mounted.
    home: PathBuf,
    trees: Trees,
    volumes: Volumes,
    processes: BTreeMap<u32, Process>,
}

/// Serves the shim until the link ends. `home` is a directory of the machine's that is empty and the agent's own.
///
/// The process must have one thread: the agent forks and goes on in the child.
pub fn run(transport: impl Transport, home: PathBuf) -> io::Result<()> {
    let volumes = Volumes::new(home.join("volumes"))?;
    let mut agent =
        Agent { link: Link::new(transport), home, trees: Trees::find(), volumes, processes: BTreeMap::new() };
    agent.link.send(&Up::Ready { version: VERSION });
    loop {
        agent.round()?;
    }
}

impl<T: Transport> Agent<T> {
    fn round(&mut self) -> io::Result<()> {
        self.link.flush()?;
        self.wait();
        for message in self.link.receive()? {
            self.take(message);
        }
        let ended = collect();
        self.read_reports();
        for (pid, status) in ended {
            self.ended(pid, status);
        }
        self.feed();
        self.print();
        Ok(())
    }

    /// Sleeps until there is something to do.
    fn wait(&self) {
        let link = self.link.interest();
        let mut fds = vec![PollFd::from_borrowed_fd(self.link.fd(), link.events)];
        let room = self.link.has_room();
        for process in self.processes.values() {
            match &process.state {
                State::Starting { report, .. } => fds.push(PollFd::new(report, PollFlags::IN)),
                State::Running { pidfd: Some(pidfd), .. } => fds.push(PollFd::new(pidfd, PollFlags::IN)),
                State::Running { .. } | State::Created | State::Ended => {}
            }
            if let (true, Some(file)) = (process.input.wants_to_write(), &process.input.file) {
                fds.push(PollFd::from_borrowed_fd(file.as_fd(), PollFlags::OUT));
            }
            let outputs = process.outputs.iter().filter(|output| room && output.wants_to_read());
            fds.extend(
                outputs.filter_map(|output| {
                    Some(PollFd::from_borrowed_fd(output.file.as_ref()?.as_fd(), PollFlags::IN))
                }),
            );
        }
        let time = if link.ready { NOT_AT_ALL } else { ROUND };
        let _ = poll(&mut fds, Some(&time));
    }

    /// A child has ended.
    fn ended(&mut self, pid: Pid, status: u8) {
        let pid = pid.as_raw_nonzero().get();
        let of_pid = |process: &Process| match &process.state {
            State::Running { pid: running, .. } => i64::from(*running) == i64::from(pid),
            _ => false,
        };
        let Some((number, _)) = self.processes.iter().find(|(_, process)| of_pid(process)) else { return };
        let number = *number;
        self.finish(number, status);
    }
}

/// All children that have ended.
fn collect() -> Vec<(Pid, u8)> {
    let mut ended = Vec::new();
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if let Some(status) = status_of(status) {
            ended.push((pid, status));
        }
    }
    ended
}

/// The status as containers have it: 128 and the signal's number for one that was killed.
fn status_of(status: WaitStatus) -> Option<u8> {
    let status = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?))?;
    Some((status & 0xff) as u8)
}
