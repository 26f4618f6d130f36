//! Fixed-size messages with descriptors over `SOCK_SEQPACKET`: the one way in which broker, workers and clients talk
//! outside of shared memory. A message is whole or it is an error; there is no partial read.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::closing::Foreign;

/// More descriptors than this in one message end the connection; the kernel closes those that did not fit.
pub const MAX_FDS: usize = 4;
/// As many as a message can have.
const ALL_FDS: usize = 253;

/// A pair of connected sockets, both closed on exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Listens at `path`, in place of whatever lies there. The caller holds the lock of the directory.
pub fn listen(path: &Path, mode: u32, backlog: i32) -> io::Result<OwnedFd> {
    clear(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    set_access(path, mode, None, None)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Says who may connect to the socket at a path, and whose it is. What a link there leads to is left alone: a tenant may
/// have put it there.
pub fn set_access(path: &Path, mode: u32, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let known = rustix::fs::fstat(&file)?;
    // One that has another name elsewhere is somebody else's.
    if FileType::from_raw_mode(known.st_mode) != FileType::Socket || known.st_nlink != 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "somebody has put something else in its place"));
    }
    // Such a descriptor is no way to change the file's mode, but in /proc it stands for this very file.
    rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), Mode::from_raw_mode(mode))?;
    if uid.is_some() || gid.is_some() {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        rustix::fs::chownat(&file, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

/// Removes whatever lies at a path, without following it.
pub fn clear(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => std::fs::remove_dir_all(path),
        result => result,
    }
}

/// Takes a waiting connection; `None` when there is none.
pub fn accept(listener: impl AsFd) -> io::Result<Option<OwnedFd>> {
    match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(Some(socket)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Connects to a listener; blocking from then on.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Whether somebody listens at `path`, or may do so: a socket that nobody answers is what is left of one who was killed.
pub fn is_served(path: &Path) -> io::Result<bool> {
    use rustix::io::Errno;
    // Nothing that lies in its place is followed.
    if !std::fs::symlink_metadata(path).is_ok_and(|known| known.file_type().is_socket()) {
        return Ok(false);
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let connected = rustix::net::connect(&socket, &SocketAddrUnix::new(path)?);
    Ok(!matches!(connected, Err(Errno::CONNREFUSED | Errno::NOENT)))
}

/// Sends one message. A full buffer of a non-blocking socket is `WouldBlock`; a vanished peer is `BrokenPipe`.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, bytes, fds, SendFlags::NOSIGNAL)
}

/// As `send`, but `WouldBlock` for a full buffer whatever the socket is.
pub fn send_now(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, bytes, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_with(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors in one message"));
    }
    rustix::io::retry_on_intr(|| match fds {
        // Jailed workers may send no descriptors, and so may not call `sendmsg` at all.
        [] => rustix::net::send(&socket, bytes, flags),
        _ => rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags),
    })?;
    Ok(())
}

/// What arrived: the number of bytes (0: the peer is gone) and the descriptors.
pub struct Received {
    /// Bytes of the message.
    pub len: usize,
    /// Descriptors that came with it, to be closed on exec.
    pub fds: Vec<OwnedFd>,
}

/// Receives one message into `buffer`; one that is longer than the buffer, or has too many descriptors, is an error.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    receive_with(socket, buffer, RecvFlags::CMSG_CLOEXEC)
}

/// As `receive`, but `WouldBlock` if there is none, whatever the socket is.
pub fn receive_now(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    receive_with(socket, buffer, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)
}

fn receive_with(socket: impl AsFd, buffer: &mut [u8], flags: RecvFlags) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let (received, whole) = receive_all(socket, buffer, flags, &mut space)?;
    whole.map(|()| received)
}

/// As `receive`, from a peer whose descriptors may be no joy to close: none is closed here, whatever the message is.
pub fn receive_foreign(socket: &Foreign, buffer: &mut [u8]) -> io::Result<(usize, Vec<Foreign>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ALL_FDS))];
    let (received, whole) = receive_all(socket, buffer, RecvFlags::CMSG_CLOEXEC, &mut space)?;
    let fds: Vec<Foreign> = received.fds.into_iter().map(|fd| socket.lane().take(fd)).collect();
    whole.and_then(|()| if fds.len() > MAX_FDS { Err(too_much()) } else { Ok((received.len, fds)) })
}

/// What arrived, and whether that was all.
fn receive_all(
    socket: impl AsFd,
    buffer: &mut [u8],
    flags: RecvFlags,
    space: &mut [MaybeUninit<u8>],
) -> io::Result<(Received, io::Result<()>)> {
    let mut ancillary = RecvAncillaryBuffer::new(space);
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)
    })?;
    let mut fds = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    let cut = message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok((Received { len: message.bytes, fds }, if cut { Err(too_much()) } else { Ok(()) }))
}

fn too_much() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the message is longer than any that is known")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_whole_with_its_descriptors() {
        let (a, b) = pair().unwrap();
        let (given, _other) = pair().unwrap();
        send(&a, b"hello", &[given.as_fd()]).unwrap();
        let mut buffer = [0; 16];
        let received = receive(&b, &mut buffer).unwrap();
        assert_eq!(&buffer[..received.len], b"hello");
        assert_eq!(received.fds.len(), 1);
    }

    #[test]
    fn links_in_the_place_of_a_socket_are_not_followed() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
        let directory = testkit::directory();
        let (victim, socket) = (directory.join("victim"), directory.join("sock"));
        std::fs::write(&victim, "as it was").unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&victim, &socket).unwrap();
        assert!(set_access(&socket, 0o666, None, Some(rustix::process::getegid().as_raw())).is_err());
        drop(listen(&socket, 0o622, 1).unwrap());
        assert_eq!(std::fs::symlink_metadata(&socket).unwrap().mode() & 0o777, 0o622);
        assert_eq!(std::fs::metadata(&victim).unwrap().mode() & 0o777, 0o600);
        // Nor does a directory there keep anybody from serving.
        std::fs::remove_file(&socket).unwrap();
        std::fs::create_dir_all(socket.join("inside")).unwrap();
        drop(listen(&socket, 0o666, 1).unwrap());
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_not_cut() {
        let (a, b) = pair().unwrap();
        send(&a, &[7; 100], &[]).unwrap();
        assert!(receive(&b, &mut [0; 16]).is_err());
    }

    #[test]
    fn too_many_descriptors_are_refused_and_closed() {
        let (a, b) = pair().unwrap();
        let given = b.try_clone().unwrap();
        // Two control messages' worth: the sender has to use its own larger buffer, as a hostile peer would.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let many = [given.as_fd(); 16];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
        rustix::net::sendmsg(&a, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
        assert!(receive(&b, &mut [0; 16]).is_err());
    }

    #[test]
    fn a_vanished_peer_is_an_end_to_the_reader_and_an_error_to_the_writer() {
        let (a, b) = pair().unwrap();
        drop(b);
        assert_eq!(receive(&a, &mut [0; 16]).unwrap().len, 0);
        assert_eq!(send(&a, b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
