//! Carrying what the command reads and prints, and what the host wants of it.

use crate::InitError;
use crate::command::{Described, Running};
use crate::tenant::Tenant;
use guest::link::frames::{Down, MAX_PAYLOAD, Up};
use guest::link::guest::GuestEnd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// What is read of the command's output at a time.
const CHUNK: usize = 16 << 10;
/// Room for a chunk and its head, and for one frame that is not output: the end must always fit.
const ROOM: usize = CHUNK + 64;

/// Does what the host says until the command has ended.
pub(crate) fn run(link: &mut GuestEnd, tenant: Tenant) -> Result<(), InitError> {
    let Some((described, terminal, size)) = describe(link)? else { return Ok(()) };
    let running = match described.start(tenant, terminal) {
        Ok(running) => running,
        Err(error) => {
            link.send(&Up::CannotStart(
                error.raw_os_error().unwrap_or(rustix::io::Errno::INVAL.raw_os_error()) as u32
            ))?;
            return Ok(());
        }
    };
    let pump = Pump::new(link, running)?;
    if let Some((rows, columns)) = size {
        pump.resize(rows, columns);
    }
    pump.run()
}

/// Takes the description of the command. None: the host is gone.
#[allow(clippy::type_complexity)]
fn describe(link: &mut GuestEnd) -> Result<Option<(Described, bool, Option<(u16, u16)>)>, InitError> {
    let (mut described, mut size) = (Described::default(), None);
    loop {
        match link.receive()? {
            Some(Down::Argument(bytes)) => described.argument(bytes),
            Some(Down::Variable(bytes)) => described.variable(bytes),
            Some(Down::WorkingDirectory(bytes)) => described.dir(bytes),
            Some(Down::Size(rows, columns)) => size = Some((rows, columns)),
            Some(Down::Start { terminal }) => return Ok(Some((described, terminal, size))),
            // No command to send it to yet: the host can end the guest.
            Some(Down::Signal(_)) => return Ok(None),
            Some(Down::Input(_) | Down::InputEnd) => {}
            None if link.host_is_gone() => return Ok(None),
            None => wait(link, Duration::from_secs(1))?,
        }
    }
}

/// Waits for an event of the link.
pub(crate) fn wait(link: &GuestEnd, time: Duration) -> Result<(), InitError> {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let mut fds = [PollFd::from_borrowed_fd(link.fd(), PollFlags::IN)];
    let _ = poll(&mut fds, Some(&time));
    Ok(link.take_event()?)
}

struct Pump<'a> {
    link: &'a mut GuestEnd,
    running: Running,
    /// Input that the command has not taken yet.
    pending: VecDeque<u8>,
    input_ended: bool,
    /// Has the command's status once it has ended.
    ended: OwnedFd,
    status: Option<u8>,
}

impl<'a> Pump<'a> {
    fn new(link: &'a mut GuestEnd, running: Running) -> Result<Self, InitError> {
        let (ended, tell) = rustix::pipe::pipe().map_err(crate::step("create a pipe"))?;
        let command = running.child.id() as i32;
        std::thread::spawn(move || reap(command, &tell));
        Ok(Self { link, running, pending: VecDeque::new(), input_ended: false, ended, status: None })
    }

    fn run(mut self) -> Result<(), InitError> {
        loop {
            let progress = self.take_frames()? | self.feed()? | self.collect()?;
            if let Some(status) = self.status
                && !progress
                && self.running.output.is_none()
                && self.running.errors.is_none()
                && self.link.send(&Up::Exited(status))?
            {
                return Ok(());
            }
            if self.link.host_is_gone() {
                return Ok(());
            }
            if !progress {
                self.sleep()?;
            }
        }
    }

    fn take_frames(&mut self) -> Result<bool, InitError> {
        let mut any = false;
        while let Some(frame) = self.link.receive()? {
            any = true;
            match frame {
                Down::Input(bytes) => self.pending.extend(bytes),
                Down::InputEnd => self.input_ended = true,
                Down::Signal(number) => self.signal(number),
                Down::Size(rows, columns) => self.resize(rows, columns),
                // Too late for these.
                Down::Argument(_) | Down::Variable(_) | Down::WorkingDirectory(_) | Down::Start { .. } => {}
            }
        }
        Ok(any)
    }

    fn signal(&self, number: u32) {
        let signal = i32::try_from(number).ok().and_then(Signal::from_named_raw);
        let group = Pid::from_raw(self.running.child.id() as i32);
        if let (Some(signal), Some(group), None) = (signal, group, self.status) {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    fn resize(&self, rows: u16, columns: u16) {
        if let Some(terminal) = &self.running.terminal {
            let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
            let _ = rustix::termios::tcsetwinsize(terminal, size);
        }
    }

    /// Gives the command what it takes of its input.
    fn feed(&mut self) -> Result<bool, InitError> {
        let Some(input) = &mut self.running.input else {
            // Nobody will read it any more.
            let count = self.pending.len();
            self.pending.clear();
            return self.taken(count);
        };
        if self.pending.is_empty() {
            if self.input_ended && self.running.terminal.is_none() {
                self.running.input = None;
            } else if self.input_ended {
                // What a terminal sends at the end of input.
                self.pending.push_back(4);
                self.input_ended = false;
            }
            return Ok(false);
        }
        match input.write(self.pending.as_slices().0) {
            Ok(count) => {
                self.pending.drain(..count);
                self.taken(count)
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(_) => {
                self.running.input = None;
                Ok(true)
            }
        }
    }

    fn taken(&mut self, count: usize) -> Result<bool, InitError> {
        if count == 0 {
            return Ok(false);
        }
        while !self.link.send(&Up::InputTaken(count as u32))? {
            if self.link.host_is_gone() {
                break;
            }
            wait(self.link, Duration::from_secs(1))?;
        }
        Ok(true)
    }

    /// Sends on what the command printed, and learns whether it has ended.
    fn collect(&mut self) -> Result<bool, InitError> {
        const { assert!(CHUNK <= MAX_PAYLOAD) };
        let mut any = false;
        if self.link.room()? >= ROOM {
            any |= chunk(&mut self.running.output, self.link, Up::Output)?;
        }
        if self.link.room()? >= ROOM {
            any |= chunk(&mut self.running.errors, self.link, Up::Errors)?;
        }
        if self.status.is_some() && !any && self.link.room()? >= ROOM {
            // A child that it left behind may hold the pipes open for ever. What was printed before the end is read.
            (self.running.output, self.running.errors) = (None, None);
        }
        if self.status.is_none() {
            let mut fds = [PollFd::new(&self.ended, PollFlags::IN)];
            if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
                let mut status = [0];
                let read = rustix::io::read(&self.ended, &mut status);
                self.status = Some(if read == Ok(1) { status[0] } else { u8::MAX });
                any = true;
            }
        }
        Ok(any)
    }

    fn sleep(&mut self) -> Result<(), InitError> {
        let room = self.link.room()? >= ROOM;
        let mut fds = vec![PollFd::from_borrowed_fd(self.link.fd(), PollFlags::IN)];
        if self.status.is_none() {
            fds.push(PollFd::new(&self.ended, PollFlags::IN));
        }
        let output = room.then_some(&self.running.output).into_iter().chain(room.then_some(&self.running.errors));
        fds.extend(output.flatten().map(|file| PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)));
        if let (Some(input), false) = (&self.running.input, self.pending.is_empty()) {
            fds.push(PollFd::from_borrowed_fd(input.as_fd(), PollFlags::OUT));
        }
        // Nothing is known to need it, but a lost event must not stop the guest for ever.
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }));
        drop(fds);
        Ok(self.link.take_event()?)
    }
}

/// Reads once. False: there is nothing now.
fn chunk(from: &mut Option<File>, link: &mut GuestEnd, frame: fn(Vec<u8>) -> Up) -> Result<bool, InitError> {
    let Some(file) = from else { return Ok(false) };
    let mut buffer = vec![0; CHUNK];
    match file.read(&mut buffer) {
        Ok(0) => *from = None,
        Ok(count) => {
            buffer.truncate(count);
            link.send(&frame(buffer))?;
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
        // A terminal whose last user has closed it.
        Err(_) => *from = None,
    }
    Ok(true)
}

/// Collects children, which orphans of the command become, until the command itself has ended; then tells its status.
fn reap(command: i32, tell: &OwnedFd) {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == command => {
                let _ = rustix::io::write(tell, &[status_of(status)]);
                return;
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

fn status_of(status: WaitStatus) -> u8 {
    let status = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?));
    status.map_or(u8::MAX, |status| (status & 0xff) as u8)
}
