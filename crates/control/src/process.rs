//! Processes by descriptor, so that a number used twice never hits the wrong one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

/// A process that can be watched and killed.
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Opens the process with this number only if it is the one that started then.
pub fn open_if_same(pid: u32, start: u64) -> Option<OwnedFd> {
    let process = open(pid).ok()?;
    // The time is read after the descriptor was made: if it matches, the descriptor is of that process.
    (start_time(pid) == Some(start)).then_some(process)
}

/// Sends SIGKILL.
pub fn kill(process: impl AsFd) {
    // A process that is gone already is what was wanted.
    let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
}

/// Takes the exit status of a child; those of a predecessor are not ours to reap.
pub fn reap(process: BorrowedFd<'_>) -> Option<String> {
    let status =
        rustix::process::waitid(WaitId::PidFd(process), WaitIdOptions::EXITED | WaitIdOptions::NOHANG).ok()??;
    Some(match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (_, Some(signal)) => format!("signal {signal}"),
        _ => "unknown".to_owned(),
    })
}

/// Field 22 of `/proc/<pid>/stat`: clock ticks between boot and the start of the process.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in field 2 may hold anything, but the last ')' ends it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Field 3 of the same: whether somebody has stopped the process (`SIGSTOP`), so that it does nothing until it is continued.
pub fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| matches!(rest.split_whitespace().next(), Some("T" | "t")))
}

/// Field 4 of the same: the process that started it.
pub fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The user that a process runs as; its directory in /proc may be root's all the same.
pub fn uid(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

/// Whether a process runs still. What was read under its number before counts only then.
pub fn is_alive(process: &OwnedFd) -> bool {
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [rustix::event::PollFd::new(process, rustix::event::PollFlags::IN)];
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(0))
}

/// The process at the end of a line of only children: of a jailed worker, the one that has the driver.
pub fn innermost(pid: u32) -> u32 {
    let only_child = |pid: &u32| -> Option<u32> {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        let mut children = children.split_whitespace();
        let child = children.next()?.parse().ok()?;
        children.next().is_none().then_some(child)
    };
    std::iter::successors(Some(pid), only_child).take(4).last().unwrap_or(pid)
}

/// The same, opened, of a process that is held open itself. Both are looked at once more when their numbers can no longer
/// have become those of others.
pub fn open_innermost(pid: u32, held: &OwnedFd) -> Option<OwnedFd> {
    let inside = innermost(pid);
    let process = open(inside).ok()?;
    (innermost(pid) == inside && is_alive(&process) && is_alive(held)).then_some(process)
}

/// Takes a descriptor out of another process, as if that had sent it.
pub fn take_descriptor(process: impl AsFd, number: i32) -> io::Result<OwnedFd> {
    Ok(rustix::process::pidfd_getfd(process, number, rustix::process::PidfdGetfdFlags::empty())?)
}

/// Who is at the other end of a socket.
#[derive(Debug)]
pub struct Peer {
    /// In our pid namespace; 0 if it has none there.
    pub pid: u32,
    /// When it connected.
    pub uid: u32,
    /// When it connected.
    pub gid: u32,
    /// Where the kernel has such descriptors.
    pub pidfd: Option<OwnedFd>,
    /// The descriptor is of the process that connected, and not of one that has its number by now.
    pub exact: bool,
}

/// Asks the kernel.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    // SAFETY: the kernel writes a ucred, which has no invalid values.
    unsafe { socket_option(socket.as_fd(), libc::SO_PEERCRED, &mut credentials)? };
    // A peer outside of our pid namespace has the number 0.
    let pid = u32::try_from(credentials.pid).unwrap_or(0);
    let exact = peer_pidfd(socket.as_fd());
    let is_exact = exact.is_some();
    let pidfd = exact.or_else(|| open(pid).ok());
    Ok(Peer { pid, uid: credentials.uid, gid: credentials.gid, pidfd, exact: is_exact })
}

impl Peer {
    /// Whether it is known to run still.
    pub fn is_alive(&self) -> bool {
        self.pidfd.as_ref().is_some_and(is_alive)
    }
}

/// `SO_PEERPIDFD`, since Linux 6.5: exact also when the number has been used again.
fn peer_pidfd(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: libc::c_int = -1;
    // SAFETY: the kernel writes an int.
    unsafe { socket_option(socket, SO_PEERPIDFD, &mut fd).ok()? };
    // SAFETY: on success the kernel has given us a new descriptor that nobody else owns.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// # Safety
/// Whatever bytes the kernel writes for this option must be a valid `T`.
unsafe fn socket_option<T>(socket: BorrowedFd<'_>, option: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut length = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    let value: *mut T = value;
    // SAFETY: the kernel writes at most `length` bytes to `value`, which the caller has lent for writing.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value.cast(), &raw mut length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start() {
        let me = std::process::id();
        let start = start_time(me).unwrap();
        assert!(open_if_same(me, start).is_some());
        assert!(open_if_same(me, start + 1).is_none());
    }

    #[test]
    fn a_stopped_process_is_known() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(!is_stopped(child.id()));
        rustix::process::pidfd_send_signal(open(child.id()).unwrap(), Signal::STOP).unwrap();
        testkit::until("it is stopped", || is_stopped(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_stopped(child.id()));
    }

    #[test]
    fn a_child_is_killed_and_reaped() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = open(child.id()).unwrap();
        kill(&process);
        let mut fds = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
        assert_eq!(reap(process.as_fd()).as_deref(), Some("signal 9"));
        assert!(child.wait().is_err(), "it was not reaped");
    }

    #[test]
    fn a_descriptor_is_taken_out_of_a_process() {
        use std::io::{Read, Write};
        use std::process::{Command, Stdio};
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"word").unwrap();
        let held = open(child.id()).unwrap();
        let process = open_innermost(child.id(), &held).unwrap();
        let mut text = String::new();
        std::fs::File::from(take_descriptor(&process, 0).unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "word");
        for none in [1 << 20, i32::MAX] {
            assert!(take_descriptor(&process, none).is_err(), "{none}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(take_descriptor(&process, 0).is_err());
        // The number may be another's by now.
        assert!(open_innermost(std::process::id(), &held).is_none());
    }

    #[test]
    fn the_peer_of_a_socket_is_known() {
        let (a, _b) = crate::packet::pair().unwrap();
        let peer = peer(&a).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert!(peer.pidfd.is_some());
    }
}
