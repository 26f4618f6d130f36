//! xenstore: the small tree through which domains find each other.
//!
//! A guest speaks through its kernel (`/dev/xen/xenbus`), the domain that runs the store through its socket; the bytes
//! are the same. Requests are answered in turn; what watches report meanwhile is kept until it is asked for.
//!
//! The store itself is trusted. What stands in a guest's nodes is the guest's, and hostile.

pub mod wire;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use thiserror::Error;
use zerocopy::{FromZeros, IntoBytes};

use crate::DomainId;
use wire::{Header, Kind};

const DEVICE: &str = "/dev/xen/xenbus";
const SOCKETS: [&str; 2] = ["/run/xenstored/socket", "/var/run/xenstored/socket"];
/// Events that nobody asked for are dropped beyond this: they are hints, and a look finds the rest.
const MAX_EVENTS: usize = 4096;

#[derive(Debug, Error)]
pub enum StoreError {
    #[error("cannot reach xenstore")]
    Reach(#[source] io::Error),
    #[error("lost the connection to xenstore")]
    Broken(#[source] io::Error),
    #[error("xenstore error {0}")]
    Refused(String),
    #[error("{0:?} is not a valid path")]
    Path(String),
    #[error("the request is too long")]
    TooLong,
    #[error("invalid answer from xenstore")]
    Nonsense,
}

impl StoreError {
    /// The node is not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused(code) if code == "ENOENT")
    }
}

/// Who may do what with a node. The first entry is the owner's, with what everybody else may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    None(DomainId),
    Read(DomainId),
    Write(DomainId),
    Both(DomainId),
}

impl Permission {
    fn text(self) -> String {
        match self {
            Self::None(domain) => format!("n{domain}\0"),
            Self::Read(domain) => format!("r{domain}\0"),
            Self::Write(domain) => format!("w{domain}\0"),
            Self::Both(domain) => format!("b{domain}\0"),
        }
    }
}

/// Something changed at or below a path that is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub path: String,
    /// What the watch was set with.
    pub token: String,
}

/// A connection.
#[derive(Debug)]
pub struct Store {
    stream: std::fs::File,
    next: u32,
    events: VecDeque<Event>,
    /// Events came that were more than are kept.
    missed: bool,
}

impl Store {
    /// Through the socket where there is one, else through the kernel.
    pub fn open() -> Result<Self, StoreError> {
        for path in SOCKETS {
            if let Ok(stream) = UnixStream::connect(path) {
                return Ok(Self::over(OwnedFd::from(stream)));
            }
        }
        let device = std::fs::OpenOptions::new().read(true).write(true).open(DEVICE).map_err(StoreError::Reach)?;
        Ok(Self::over(OwnedFd::from(device)))
    }

    /// Over a connection that exists.
    pub fn over(connection: OwnedFd) -> Self {
        Self { stream: connection.into(), next: 1, events: VecDeque::new(), missed: false }
    }

    pub fn read(&mut self, path: &str) -> Result<Vec<u8>, StoreError> {
        self.ask(Kind::Read, path, &[])
    }

    /// As `read`; a node that is not there, or is not text, is none.
    pub fn read_text(&mut self, path: &str) -> Result<Option<String>, StoreError> {
        match self.read(path) {
            Ok(bytes) => Ok(String::from_utf8(bytes).ok()),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn write(&mut self, path: &str, value: &[u8]) -> Result<(), StoreError> {
        self.ask(Kind::Write, path, value).map(drop)
    }

    /// Removes a node and all below it. One that is not there is fine.
    pub fn remove(&mut self, path: &str) -> Result<(), StoreError> {
        match self.ask(Kind::Remove, path, &[]) {
            Err(error) if !error.is_missing() => Err(error),
            _ => Ok(()),
        }
    }

    /// The names right below a node; none where there is no node.
    pub fn list(&mut self, path: &str) -> Result<Vec<String>, StoreError> {
        match self.ask(Kind::Directory, path, &[]) {
            Ok(payload) => Ok(wire::strings(&payload).map(str::to_owned).collect()),
            Err(error) if error.is_missing() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    pub fn set_permissions(&mut self, path: &str, permissions: &[Permission]) -> Result<(), StoreError> {
        let text: String = permissions.iter().map(|permission| permission.text()).collect();
        self.ask(Kind::SetPermissions, path, text.as_bytes()).map(drop)
    }

    /// Watches a node and all below it. There is an event at once, and one for each change.
    pub fn watch(&mut self, path: &str, token: &str) -> Result<(), StoreError> {
        self.ask(Kind::Watch, path, format!("{token}\0").as_bytes()).map(drop)
    }

    pub fn unwatch(&mut self, path: &str, token: &str) -> Result<(), StoreError> {
        self.ask(Kind::Unwatch, path, format!("{token}\0").as_bytes()).map(drop)
    }

    pub fn domain_path(&mut self, domain: DomainId) -> Result<String, StoreError> {
        let payload = self.ask(Kind::GetDomainPath, &domain.to_string(), &[])?;
        wire::strings(&payload).next().map(str::to_owned).ok_or(StoreError::Nonsense)
    }

    /// Whether there is such a domain, as far as the store knows.
    pub fn is_introduced(&mut self, domain: DomainId) -> Result<bool, StoreError> {
        Ok(self.ask(Kind::IsDomainIntroduced, &domain.to_string(), &[])?.starts_with(b"T"))
    }

    /// Have events come that there was no room for? Then everything must be looked at again. Asked once.
    pub fn has_missed_events(&mut self) -> bool {
        std::mem::take(&mut self.missed)
    }

    /// The next event; none when the time is up.
    pub fn next_event(&mut self, timeout: Option<Duration>) -> Result<Option<Event>, StoreError> {
        let start = Instant::now();
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            let left = left.map(|left| Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() });
            let mut polled = [PollFd::new(&self.stream, PollFlags::IN)];
            match rustix::event::poll(&mut polled, left.as_ref()) {
                Ok(0) => return Ok(None),
                Ok(_) => self.receive().map(drop)?,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(StoreError::Broken(error.into())),
            }
        }
    }

    /// Sends a request about a path and waits for its answer.
    fn ask(&mut self, kind: Kind, path: &str, rest: &[u8]) -> Result<Vec<u8>, StoreError> {
        if !wire::is_path(path) {
            return Err(StoreError::Path(path.to_owned()));
        }
        let request = self.next;
        self.next = self.next.wrapping_add(1);
        let message = wire::message(kind, request, &[path.as_bytes(), b"\0", rest]).ok_or(StoreError::TooLong)?;
        self.stream.write_all(&message).map_err(StoreError::Broken)?;
        loop {
            let Some((header, payload)) = self.receive()? else { continue };
            if header.request != request {
                // The answer to a request that was given up.
                continue;
            }
            if header.kind == Kind::Error as u32 {
                let code = wire::strings(&payload).next().unwrap_or("nothing").to_owned();
                return Err(StoreError::Refused(code));
            }
            return if header.kind == kind as u32 { Ok(payload) } else { Err(StoreError::Nonsense) };
        }
    }

    /// Receives a message. Events are put aside.
    fn receive(&mut self) -> Result<Option<(Header, Vec<u8>)>, StoreError> {
        let mut header = Header::new_zeroed();
        self.stream.read_exact(header.as_mut_bytes()).map_err(StoreError::Broken)?;
        let len = header.len as usize;
        if len > wire::MAX_PAYLOAD {
            return Err(StoreError::Nonsense);
        }
        let mut payload = vec![0; len];
        self.stream.read_exact(&mut payload).map_err(StoreError::Broken)?;
        if header.kind != Kind::WatchEvent as u32 {
            return Ok(Some((header, payload)));
        }
        let mut parts = wire::strings(&payload);
        if let (Some(path), Some(token)) = (parts.next(), parts.next()) {
            if self.events.len() < MAX_EVENTS {
                self.events.push_back(Event { path: path.to_owned(), token: token.to_owned() });
            } else {
                self.missed = true;
            }
        }
        Ok(None)
    }
}

impl AsFd for Store {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests;
