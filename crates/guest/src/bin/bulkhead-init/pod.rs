//! A pod's machine: this process is the agent, and runs the pod's containers until the shim is gone.

use crate::{InitError, disk, modules, names, step};
use agent::server::{Interest, Transport};
use guest::link::bytes::ByteEnd;
use guest::link::guest::GuestEnd;
use guest::link::{LinkError, options};
use rustix::event::PollFlags;
use rustix::mount::{MountFlags, mount, mount_bind_recursive, mount_move};
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

/// Where the agent keeps root file systems and volumes.
const HOME: &str = "/pod";
/// Where the socket for named buffers is.
const ZONE_DIR: &str = "/run/bulkhead/zone";
const CGROUP: &str = "/sys/fs/cgroup";
/// What clients in containers need of Xen. Whoever is in this machine is the pod.
const DEVICES: [&str; 3] = ["/dev/xen/gntalloc", "/dev/xen/evtchn", "/dev/xen/xenbus"];

/// Runs the agent until the link ends.
pub(crate) fn run(cmdline: &str, link: GuestEnd) -> Result<(), InitError> {
    leave_first_root()?;
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("cgroup2", CGROUP, "cgroup2", plain, c"").map_err(step("mount cgroup2"))?;
    for device in DEVICES {
        // One that is missing is missed by clients, and by nobody else.
        let _ = rustix::fs::chmod(device, rustix::fs::Mode::from_raw_mode(0o666));
    }
    modules::load_for_pod()?;
    disk::make(HOME)?;
    match crate::cmdline::value::<String>(cmdline, options::SCRATCH) {
        Some(name) => disk::mount_scratch(&name, HOME)?,
        None => mount("tmpfs", HOME, "tmpfs", MountFlags::NOSUID, c"mode=755").map_err(step("mount a tmpfs"))?,
    }
    // Containers with a zone mount it, also where nobody serves in it.
    disk::make(ZONE_DIR)?;
    names::serve_apart();
    let ended = agent::server::run(Stream(link), PathBuf::from(HOME));
    match ended {
        // That is how a pod ends.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        other => other.map_err(|error| InitError::Step("serve the shim".into(), error)),
    }
}

/// Moves everything over the file system that the kernel unpacked the archive into: nobody can `pivot_root` away from that
/// one, which is how containers get their own.
fn leave_first_root() -> Result<(), InitError> {
    const ROOT: &str = "/machine";
    let what = || "leave the first root file system";
    disk::make(ROOT)?;
    mount_bind_recursive("/", ROOT).map_err(step(what()))?;
    rustix::process::chdir(ROOT).map_err(step(what()))?;
    mount_move(ROOT, "/").map_err(step(what()))?;
    rustix::process::chroot(".").map_err(step(what()))?;
    rustix::process::chdir("/").map_err(step(what()))
}

/// The link as the agent wants it.
struct Stream<E>(E);

fn failed(error: LinkError) -> io::Error {
    io::Error::other(error)
}

impl<E: ByteEnd> Read for Stream<E> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // In this order: what comes after the look has an event of its own.
        self.0.take_event().map_err(failed)?;
        let gone = self.0.peer_is_gone();
        match self.0.read(into).map_err(failed)? {
            0 if gone => Ok(0),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }
}

impl<E: ByteEnd> Write for Stream<E> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self.0.write(from).map_err(failed)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<E: ByteEnd> Transport for Stream<E> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn interest(&self, has_output: bool) -> Interest {
        // An event channel can always be written to: room is told from the ring. A link that is broken is ready to say so.
        let ready = match self.0.level() {
            Ok((filled, room)) => filled > 0 || has_output && room > 0,
            Err(_) => true,
        };
        Interest { events: PollFlags::IN, ready: ready || self.0.peer_is_gone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest::link::bytes::memory::pair;

    #[test]
    fn what_is_left_in_the_ring_is_ready_without_an_event() {
        let (mut host, guest) = pair();
        let mut agent = Stream(guest);
        host.write(b"two parts").unwrap();
        let mut part = [0; 3];
        assert_eq!(agent.read(&mut part).unwrap(), 3);
        // The event is taken, and bytes are left.
        assert_eq!(agent.interest(false), Interest { events: PollFlags::IN, ready: true });
        assert_eq!(agent.read(&mut [0; 9]).unwrap(), 6);
        assert!(!agent.interest(true).ready || agent.0.level().unwrap().1 > 0);
        assert!(!agent.interest(false).ready);
        assert_eq!(agent.read(&mut part).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_full_ring_is_waited_for_and_not_asked_again_and_again() {
        let (mut host, guest) = pair();
        let mut agent = Stream(guest);
        let room = agent.0.level().unwrap().1;
        assert_eq!(agent.write(&vec![1; room + 1]).unwrap(), room);
        assert_eq!(agent.write(&[1]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(!agent.interest(true).ready);
        host.read(&mut [0; 10]).unwrap();
        assert!(agent.interest(true).ready);
    }

    #[test]
    fn the_shims_last_words_come_before_its_end() {
        let (mut host, guest) = pair();
        let mut agent = Stream(guest);
        host.write(b"end").unwrap();
        drop(host);
        assert!(agent.interest(false).ready);
        assert_eq!(agent.read(&mut [0; 9]).unwrap(), 3);
        assert_eq!(agent.read(&mut [0; 9]).unwrap(), 0);
    }
}
