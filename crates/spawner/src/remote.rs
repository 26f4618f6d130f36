//! The broker's end of the connection to a spawner that is a process of its own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use control::ZoneName;
use control::namespaces::Numbers;
use control::packet;
use control::spawner::{Facts, HostLimits, Program, Spawner, Started};
use parking_lot::Mutex;
use zerocopy::{FromBytes, IntoBytes};

use crate::messages::{Asked, Reply, Request};

/// A spawner at the other end of a socket.
pub struct Remote {
    /// Held from the request to its reply.
    socket: Mutex<OwnedFd>,
    /// Hangs up when the spawner is gone.
    watched: OwnedFd,
    facts: Facts,
}

impl Remote {
    /// Connects to the spawner that listens at a path.
    pub fn connect(path: &Path) -> io::Result<Self> {
        Self::over(packet::connect(path)?)
    }

    /// Speaks to the spawner at the other end of a socket.
    pub fn over(socket: OwnedFd) -> io::Result<Self> {
        let watched = socket.try_clone()?;
        let mut remote = Self { socket: Mutex::new(socket), watched, facts: Facts::default() };
        remote.facts = remote.ask(&Asked::Facts, &[])?.0.facts()?;
        Ok(remote)
    }

    fn ask(&self, asked: &Asked, fds: &[BorrowedFd<'_>]) -> io::Result<(Reply, Option<OwnedFd>)> {
        let request = Request::of(asked)?;
        let socket = self.socket.lock();
        packet::send(&*socket, request.as_bytes(), fds)?;
        let mut buffer = [0; size_of::<Reply>()];
        let mut received = packet::receive(&*socket, &mut buffer)?;
        let reply = Reply::read_from_bytes(&buffer[..received.len])
            .map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the spawner is gone"))?;
        Ok((reply.result()?, received.fds.pop()))
    }

    fn child(&self, asked: &Asked, fds: &[BorrowedFd<'_>]) -> io::Result<Started> {
        let (reply, process) = self.ask(asked, fds)?;
        let (id, pid) = reply.child();
        Ok(Started { id, pid, process: process.ok_or(io::ErrorKind::InvalidData)? })
    }

    /// Of what has no answer: that the spawner is gone is noticed by its lifeline.
    fn tell(&self, asked: &Asked) {
        if let Err(error) = self.ask(asked, &[]) {
            tracing::warn!(%error, ?asked, "request to the spawner failed");
        }
    }
}

impl Spawner for Remote {
    fn facts(&self) -> Facts {
        self.facts
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watched.as_fd())
    }

    fn start(&self, program: &Program, stdin: Option<OwnedFd>, stderr: Option<OwnedFd>) -> io::Result<Started> {
        let asked = Asked::Start(program.clone(), stdin.is_some(), stderr.is_some());
        let fds: Vec<BorrowedFd<'_>> = stdin.iter().chain(&stderr).map(AsFd::as_fd).collect();
        self.child(&asked, &fds)
    }

    fn adopt(&self, slot: usize, pid: u32, start_time: u64, zone: Option<&ZoneName>) -> io::Result<Started> {
        self.child(&Asked::Adopt { slot, pid, start_time, zone: zone.cloned() }, &[])
    }

    fn sweep(&self) {
        self.tell(&Asked::Sweep);
    }

    fn kill(&self, id: u64) {
        self.tell(&Asked::Kill(id));
    }

    fn reap(&self, id: u64) -> Option<String> {
        let (reply, _) = self.ask(&Asked::Reap(id), &[]).ok()?;
        reply.flag().then(|| reply.text().unwrap_or_default().to_owned())
    }

    fn is_free(&self, slot: usize) -> bool {
        self.ask(&Asked::IsFree(slot), &[]).is_ok_and(|(reply, _)| reply.flag())
    }

    fn open_inside(&self, id: u64) -> io::Result<()> {
        self.ask(&Asked::OpenInside(id), &[]).map(drop)
    }

    fn take_descriptor(&self, id: u64, number: i32) -> io::Result<OwnedFd> {
        Ok(self.ask(&Asked::TakeDescriptor(id, number), &[])?.1.ok_or(io::ErrorKind::InvalidData)?)
    }

    fn set_client(&self, id: u64, connection: BorrowedFd<'_>) -> io::Result<()> {
        self.ask(&Asked::SetClient(id), &[connection]).map(drop)
    }

    fn kill_client(&self, id: u64) -> bool {
        self.ask(&Asked::KillClient(id), &[]).is_ok_and(|(reply, _)| reply.flag())
    }

    fn set_zone(&self, zone: &ZoneName, limits: HostLimits) -> io::Result<bool> {
        Ok(self.ask(&Asked::SetZone(zone.clone(), limits), &[])?.0.flag())
    }

    fn remove_zone(&self, zone: &ZoneName) {
        self.tell(&Asked::RemoveZone(zone.clone()));
    }

    fn make_zone_directory(&self, zone: &ZoneName, users: bool) -> io::Result<()> {
        self.ask(&Asked::MakeZoneDirectory(zone.clone(), users), &[]).map(drop)
    }

    fn remove_zone_directory(&self, zone: &ZoneName) {
        self.tell(&Asked::RemoveZoneDirectory(zone.clone()));
    }

    fn clear_admin_socket(&self) -> io::Result<()> {
        self.ask(&Asked::ClearAdminSocket, &[]).map(drop)
    }

    fn open_admin_socket(&self) -> io::Result<()> {
        self.ask(&Asked::OpenAdminSocket, &[]).map(drop)
    }

    fn set_access(&self, zone: &ZoneName, mode: u32, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.ask(&Asked::SetAccess { zone: zone.clone(), mode, uid, gid }, &[]).map(drop)
    }

    fn admit(&self, id: u64, zone: &ZoneName, gpus: &[u32]) -> io::Result<()> {
        self.ask(&Asked::Admit(id, zone.clone(), gpus.to_vec()), &[]).map(drop)
    }

    fn numbers(&self, pid: u32) -> Numbers {
        self.ask(&Asked::Numbers(pid), &[]).map_or_else(|_| Numbers::default(), |(reply, _)| reply.numbers())
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tidy(&self, _now: Instant) {}

    fn retire(&self, everything: bool) {
        self.tell(&Asked::Retire(everything));
    }
}
