//! The sockets for operators and for those who only look: one request, one answer.

mod connections;
mod error;
pub(crate) use error::Misfit;
mod requests;
mod status;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use crate::Broker;
use crate::clients::pause_after;
use crate::reactor::{Reactor, Source};
use crate::state_dir::StateDir;
use connections::Connections;
pub(crate) use connections::Role;
use control::admin::{Answer, MAX_MESSAGE, Request};
use control::packet;
use control::spawner::Spawner;
use error::RequestError;

pub(crate) struct Admin {
    operators: OwnedFd,
    /// For those who look and change nothing.
    observers: OwnedFd,
    connections: Connections<OwnedFd>,
    /// Since when this broker serves.
    started: Instant,
}

impl Admin {
    pub(crate) fn listen(
        state_dir: &StateDir,
        spawner: &dyn Spawner,
        reactor: &Reactor,
        now: Instant,
    ) -> io::Result<Self> {
        spawner.clear_admin_socket()?;
        let operators = packet::listen(&state_dir.admin_socket(), 0o600, 16)?;
        spawner.open_admin_socket()?;
        let observers = packet::listen(&state_dir.status_socket(), 0o660, 16)?;
        reactor.watch(&operators, Source::AdminListener)?;
        reactor.watch(&observers, Source::StatusListener)?;
        Ok(Self { operators, observers, connections: Connections::default(), started: now })
    }
}

impl Broker {
    pub(super) fn accept_admin(&mut self, role: Role) {
        let listener = match role {
            Role::Operator => &self.admin.operators,
            Role::Observer => &self.admin.observers,
        };
        match packet::accept(listener) {
            Ok(Some(socket)) if !self.admin.connections.is_full(role) => {
                let id = self.reactor.new_id();
                // One that cannot be watched is closed.
                if self.reactor.watch(&socket, Source::Admin(id)).is_ok() {
                    self.admin.connections.insert(id, socket, role);
                }
            }
            Ok(_) => {}
            Err(error) => pause_after(&error),
        }
    }

    pub(super) fn on_admin(&mut self, id: u64) {
        let Some((socket, role)) = self.admin.connections.get(id) else { return };
        let mut buffer = vec![0; MAX_MESSAGE];
        let request = match packet::receive(socket, &mut buffer) {
            Ok(received) if received.len > 0 => serde_json::from_slice::<Request>(&buffer[..received.len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            _ => return self.close_admin(id),
        };
        let answer = match request {
            Ok(request) if role == Role::Observer && request.changes() => Err(RequestError::ReadOnly),
            Ok(request) => self.answer(id, request),
            Err(error) => Err(error.into()),
        };
        let answer = answer.unwrap_or_else(Answer::from);
        let Some((socket, _)) = self.admin.connections.get(id) else { return };
        if let Err(error) = send(socket, &answer) {
            tracing::warn!(%error, "cannot answer the operator");
            self.close_admin(id);
        }
    }

    fn close_admin(&mut self, id: u64) {
        let leases = self.admin.connections.remove(id);
        for name in self.zones.end_leases(&leases) {
            self.remove_zone(&name);
        }
    }
}

/// Sends an answer; one that is too long for a message goes as a descriptor of the memory it is in.
fn send(socket: &OwnedFd, answer: &Answer) -> io::Result<()> {
    /// Well below what a socket buffers by default, so that sending never has to wait.
    const SHORT: usize = 64 * 1024;
    let bytes = serde_json::to_vec(answer)?;
    if bytes.len() <= SHORT {
        return packet::send(socket, &bytes, &[]);
    }
    let memory = rustix::fs::memfd_create("bulkhead-answer", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(memory);
    io::Write::write_all(&mut file, &bytes)?;
    io::Seek::rewind(&mut file)?;
    packet::send(socket, &serde_json::to_vec(&Answer::Attached)?, &[file.as_fd()])
}
