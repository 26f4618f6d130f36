//! The agent's end of the link: frames in and out of a stream that never blocks.

use crate::protocol::{Decode, Down, MAX_DOWN, Up, frame};
use rustix::event::PollFlags;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

/// What frames travel over. Reading and writing never block.
pub trait Transport: Read + Write {
    /// What is polled.
    fn fd(&self) -> BorrowedFd<'_>;

    /// What to wait for before the next round. Asked right before the wait, and after everything that could be read or
    /// written was.
    fn interest(&self, has_output: bool) -> Interest;
}

/// What a transport waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    /// What its descriptor is polled for.
    pub events: PollFlags,
    /// There is something to do right now: an event channel has no level, so what its event announced and was left for
    /// the next round must be told from the memory itself.
    pub ready: bool,
}

impl Transport for std::os::unix::net::UnixStream {
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn interest(&self, has_output: bool) -> Interest {
        let events = if has_output { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        Interest { events, ready: false }
    }
}

/// Output waits here no longer than this: what is read from processes stops before.
const HIGH_WATER: usize = 1 << 20;

pub(super) struct Link<T> {
    transport: T,
    input: Vec<u8>,
    output: VecDeque<u8>,
}

impl<T: Transport> Link<T> {
    pub(super) fn new(transport: T) -> Self {
        Self { transport, input: Vec::new(), output: VecDeque::new() }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.transport.fd()
    }

    pub(super) fn send(&mut self, message: &Up) {
        self.output.extend(frame(&message.encode()));
    }

    pub(super) fn interest(&self) -> Interest {
        self.transport.interest(!self.output.is_empty())
    }

    /// Whether more may be read from processes.
    pub(super) fn has_room(&self) -> bool {
        self.output.len() < HIGH_WATER
    }

    /// Writes what can be written now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.transport.write(self.output.as_slices().0) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what has come; the shim's end is an error.
    pub(super) fn receive(&mut self) -> io::Result<Vec<Down>> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match self.transport.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.input.extend(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            // A whole request at most, and the rest in the next round.
            if self.input.len() > MAX_DOWN + 4 {
                break;
            }
        }
        let mut messages = Vec::new();
        let mut at = 0;
        while let Some(head) = self.input.get(at..at + 4) {
            let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
            if length > MAX_DOWN {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "frame is too long"));
            }
            let Some(body) = self.input.get(at + 4..at + 4 + length) else { break };
            let message = Down::decode(body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            messages.push(message);
            at += 4 + length;
        }
        self.input.drain(..at);
        Ok(messages)
    }
}
