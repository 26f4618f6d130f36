//! A process that the agent was asked to run, from `Create` or `Exec` to `Delete`.

use crate::container::Cgroup;
use crate::oci::{Process as ProcessSpec, Spec};
use crate::protocol::{PidNamespace, StreamKind, WINDOW};
use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

pub(super) struct Process {
    pub kind: Kind,
    pub state: State,
    pub terminal: bool,
    pub input: Input,
    /// Standard output and standard error; a terminal has the first alone.
    pub outputs: [Output; 2],
    /// The terminal, for its size.
    pub console: Option<File>,
}

pub(super) enum Kind {
    Container(Box<Container>),
    Exec { container: u32, spec: Box<ProcessSpec> },
}

pub(super) struct Container {
    pub spec: Spec,
    pub root: PathBuf,
    pub cgroup: Cgroup,
    pub pids: PidNamespace,
    pub frozen: bool,
}

pub(super) enum State {
    Created,
    /// On its way; how it goes is said through the socket, and the request is answered then.
    Starting {
        report: OwnedFd,
        request: u32,
        pid: Option<u32>,
    },
    Running {
        pid: u32,
        pidfd: Option<OwnedFd>,
    },
    Ended,
}

/// What the process is to read.
#[derive(Default)]
pub(super) struct Input {
    pub file: Option<File>,
    pending: VecDeque<u8>,
    ended: bool,
}

impl Input {
    /// Takes over the end that the process reads from; what has come already stays.
    pub(super) fn open(&mut self, file: Option<File>) {
        self.file = file;
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend(bytes);
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    pub(super) fn wants_to_write(&self) -> bool {
        self.file.is_some() && !self.pending.is_empty()
    }

    /// Gives the process what it takes; the number of bytes that are gone from here.
    pub(super) fn feed(&mut self, terminal: bool) -> u32 {
        let mut gone = 0;
        while let Some(file) = &mut self.file {
            if self.pending.is_empty() {
                if self.ended && !terminal {
                    self.file = None;
                } else if self.ended {
                    // What a terminal sends at the end of input.
                    self.pending.push_back(4);
                    self.ended = false;
                    continue;
                }
                break;
            }
            match file.write(self.pending.as_slices().0) {
                Ok(count) => {
                    self.pending.drain(..count);
                    gone += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.file = None,
            }
        }
        if self.file.is_none() {
            // Nobody will read it any more.
            gone += self.pending.len();
            self.pending.clear();
        }
        u32::try_from(gone).unwrap_or(u32::MAX)
    }
}

/// What the process prints.
pub(super) struct Output {
    pub file: Option<File>,
    /// How much more the shim takes.
    credit: u32,
    /// Whether the shim knows that there is no more.
    pub end_said: bool,
}

impl Default for Output {
    fn default() -> Self {
        Self { file: None, credit: WINDOW, end_said: true }
    }
}

impl Output {
    pub(super) fn open(&mut self, file: File) {
        *self = Self { file: Some(file), credit: self.credit, end_said: false };
    }

    pub(super) fn grant(&mut self, bytes: u32) {
        self.credit = self.credit.saturating_add(bytes);
    }

    pub(super) fn wants_to_read(&self) -> bool {
        self.file.is_some() && self.credit > 0
    }

    /// Reads once. None: nothing now, or no more at all.
    pub(super) fn read(&mut self, most: usize) -> Option<Vec<u8>> {
        let file = self.file.as_mut()?;
        let mut buffer = vec![0; most.min(self.credit as usize)];
        if buffer.is_empty() {
            return None;
        }
        match file.read(&mut buffer) {
            Ok(0) => self.file = None,
            Ok(count) => {
                buffer.truncate(count);
                self.credit -= u32::try_from(count).unwrap_or(self.credit);
                return Some(buffer);
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // A terminal whose last user has closed it.
            Err(_) => self.file = None,
        }
        None
    }
}

/// The kinds of the two outputs, in their order.
pub(super) const OUTPUTS: [StreamKind; 2] = [StreamKind::Stdout, StreamKind::Stderr];

/// A pipe whose end for this side never blocks.
pub(super) fn pipe(we_read: bool) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let ours = if we_read { &read } else { &write };
    rustix::fs::fcntl_setfl(ours, OFlags::NONBLOCK)?;
    Ok((read, write))
}
