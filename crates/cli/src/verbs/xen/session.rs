//! Forwards input, output, signals and the exit status of a program in a guest.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use guest::domain::Domain;
use guest::link::LinkError;
use guest::link::frames::{Down, MAX_INPUT, MAX_PAYLOAD, Up};
use guest::link::host::HostEnd;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::termios::{self, OptionalActions, Termios};
use xen::store::Store;

use crate::exit::{Exit, Failure};
use crate::signals::Signals;

const CHUNK: usize = 16 << 10;
/// How many termination signals it takes to destroy the domain without asking it.
const MAX_TERMINATIONS: u32 = 3;
/// How long a guest may take to shut down after its init process is gone.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Session {
    link: HostEnd,
    signals: Signals,
    /// Watches for domains that end: one that is destroyed cannot say so itself.
    store: Store,
    /// Some domain has ended since this one was looked for.
    some_ended: bool,
    /// Frames for which there was no room yet.
    waiting: VecDeque<Down>,
    /// Input that the program has not taken yet.
    under_way: usize,
    input_open: bool,
    terminal: Option<Raw>,
    terminations: u32,
}

enum End {
    Exited(u8),
    /// The reader of our output is gone.
    Unread,
}

impl Session {
    /// `store` watches `@releaseDomain`.
    pub(super) fn new(link: HostEnd, signals: Signals, store: Store, terminal: bool) -> Self {
        let terminal = if terminal { Raw::enter().ok() } else { None };
        let some_ended = true;
        Self {
            link,
            signals,
            store,
            some_ended,
            waiting: VecDeque::new(),
            under_way: 0,
            input_open: true,
            terminal,
            terminations: 0,
        }
    }

    /// Sends these before anything else.
    pub(super) fn send_all(&mut self, frames: &[Down]) -> Result<(), Failure> {
        if self.terminal.is_some() {
            self.waiting.extend(size());
        }
        self.waiting.extend(frames.iter().cloned());
        if self
            .waiting
            .iter()
            .any(|frame| matches!(frame, Down::Argument(bytes) | Down::Variable(bytes) if bytes.len() > MAX_PAYLOAD))
        {
            return Err(Failure::new(Exit::Usage, "an argument or environment variable is too long"));
        }
        Ok(())
    }

    /// Until the program has ended.
    pub(super) fn run(&mut self, domain: &Domain) -> Result<ExitCode, Failure> {
        let mut gone_since = None;
        loop {
            match self.step() {
                Ok(Some(End::Exited(status))) => return Ok(ExitCode::from(status)),
                Ok(Some(End::Unread)) => return Ok(ExitCode::from(128 + 13)),
                Ok(None) => {}
                Err(error) => return Err(Failure::new(Exit::Guest, error.to_string())),
            }
            if self.terminations >= MAX_TERMINATIONS {
                return Ok(ExitCode::from(128 + 15));
            }
            // Everything that it said has been read by now.
            let ended = std::mem::take(&mut self.some_ended) && !domain.exists();
            let left = self.link.guest_is_gone() && {
                let since = *gone_since.get_or_insert_with(Instant::now);
                !domain.exists() || since.elapsed() > SHUTDOWN_TIMEOUT
            };
            if ended || left {
                return Err(Failure::new(Exit::Guest, "the guest ended before its program"));
            }
            self.sleep();
        }
    }

    fn step(&mut self) -> Result<Option<End>, LinkError> {
        self.link.take_event()?;
        while let Some(frame) = self.link.receive()? {
            match frame {
                Up::Ready(_) => {}
                Up::Output(bytes) => {
                    if !print(io::stdout(), &bytes) {
                        return Ok(Some(End::Unread));
                    }
                }
                Up::Errors(bytes) => drop(print(io::stderr(), &bytes)),
                Up::InputTaken(count) => {
                    self.under_way = self.under_way.checked_sub(count as usize).ok_or(LinkError::Broken)?;
                }
                Up::CannotStart(why) => {
                    let error = io::Error::from_raw_os_error(i32::try_from(why).unwrap_or(0));
                    eprintln!("bulkhead: cannot start the program in the guest: {error}");
                    let exit =
                        if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::NotExecutable };
                    return Ok(Some(End::Exited(exit as u8)));
                }
                Up::Exited(status) => return Ok(Some(End::Exited(status))),
            }
        }
        for signal in self.signals.take() {
            if signal == signal_hook::consts::SIGWINCH {
                let resized = self.terminal.as_ref().and_then(|_| size());
                self.waiting.extend(resized);
                continue;
            }
            self.terminations += u32::from(Signals::is_termination(signal));
            self.waiting.push_back(Down::Signal(signal as u32));
        }
        while let Some(frame) = self.waiting.front() {
            if !self.link.send(frame)? {
                break;
            }
            self.waiting.pop_front();
        }
        Ok(None)
    }

    fn wants_input(&self) -> bool {
        self.input_open && self.waiting.is_empty() && self.under_way + CHUNK <= MAX_INPUT
    }

    fn sleep(&mut self) {
        let (link, signals, stdin) = (self.link.fd(), self.signals.fd(), io::stdin());
        let watched = [link, signals, self.store.as_fd()];
        let mut fds: Vec<_> = watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).into();
        if self.wants_input() {
            fds.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        }
        // A timeout, so that a lost event cannot block this forever.
        let _ = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }));
        let came = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let (store, input) = (came(2), came(3));
        drop(fds);
        if store {
            self.take_store_events();
        }
        if input {
            self.read_input();
        }
    }

    fn take_store_events(&mut self) {
        loop {
            match self.store.next_event(Some(Duration::ZERO)) {
                Ok(Some(event)) => self.some_ended |= event.path == "@releaseDomain",
                Ok(None) => return,
                // Without a store there is no toolstack either; what can still be heard is heard through the link.
                Err(_) => return std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn read_input(&mut self) {
        let mut buffer = vec![0; CHUNK];
        // Not through std's buffer: what it holds back nobody would poll for.
        match rustix::io::read(io::stdin(), &mut buffer) {
            Ok(0) => {
                self.input_open = false;
                self.waiting.push_back(Down::InputEnd);
            }
            Ok(count) => {
                buffer.truncate(count);
                self.under_way += count;
                self.waiting.push_back(Down::Input(buffer));
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(_) => {
                self.input_open = false;
                self.waiting.push_back(Down::InputEnd);
            }
        }
    }
}

fn print(mut to: impl Write, bytes: &[u8]) -> bool {
    to.write_all(bytes).and_then(|()| to.flush()).is_ok()
}

fn size() -> Option<Down> {
    let size = termios::tcgetwinsize(io::stdout()).ok()?;
    Some(Down::Size(size.ws_row, size.ws_col))
}

/// Our own terminal, which passes everything on while the guest has one.
struct Raw(Termios);

impl Raw {
    fn enter() -> io::Result<Self> {
        let before = termios::tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
