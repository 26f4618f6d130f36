//! Unix seqpacket sockets: every message arrives whole or not at all.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{BootstrapError, system};

/// Connects to a listening socket.
pub fn connect(path: &Path) -> Result<OwnedFd, BootstrapError> {
    let address = SocketAddrUnix::new(path).map_err(system("use the socket's path"))?;
    let socket = new_socket()?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address)).map_err(system("connect"))?;
    Ok(socket)
}

/// Listens at a path at which nothing exists yet.
pub fn listen(path: &Path) -> Result<OwnedFd, BootstrapError> {
    let address = SocketAddrUnix::new(path).map_err(system("use the socket's path"))?;
    let socket = new_socket()?;
    rustix::net::bind(&socket, &address).map_err(system("bind the socket"))?;
    rustix::net::listen(&socket, 128).map_err(system("listen"))?;
    Ok(socket)
}

/// The next connection; a client that went away again while it queued is passed over.
pub fn accept(listener: impl AsFd) -> Result<OwnedFd, BootstrapError> {
    loop {
        match rustix::net::accept_with(&listener, SocketFlags::CLOEXEC) {
            Ok(socket) => return Ok(socket),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(source) => return Err(system("accept")(source)),
        }
    }
}

/// Two sockets that are connected to each other.
pub fn pair() -> Result<(OwnedFd, OwnedFd), BootstrapError> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(system("make a socket pair"))
}

fn new_socket() -> Result<OwnedFd, BootstrapError> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(system("make a socket"))
}
