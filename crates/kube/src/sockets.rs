//! gRPC over Unix sockets, as kubelet speaks it.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint};

/// A channel to a server at a path.
pub fn channel(path: &Path) -> Result<Channel, tonic::transport::Error> {
    Ok(Endpoint::try_from(format!("unix:{}", path.display()))?
        .connect_timeout(std::time::Duration::from_secs(5))
        .timeout(std::time::Duration::from_secs(10))
        .connect_lazy())
}

/// Listens at a path, for the owner only, and replaces an existing socket.
pub fn listen(path: &Path) -> io::Result<UnixListenerStream> {
    control::atomic_file::remove(path)?;
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(UnixListenerStream::new(listener))
}

/// The identity of a file, which tells it from another one with the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity(u64, u64, i64, i64);

pub fn identity(path: &Path) -> Option<Identity> {
    let data = std::fs::symlink_metadata(path).ok()?;
    Some(Identity(data.dev(), data.ino(), data.ctime(), data.ctime_nsec()))
}

/// A socket that is removed on drop.
pub struct Bound(pub PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
