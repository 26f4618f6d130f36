//! gRPC over Unix sockets, as kubelet speaks it.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint};

/// A channel to a server at a path.
pub fn channel(path: &Path) -> Result<Channel, tonic::transport::Error> {
    Ok(Endpoint::try_from(format!("unix:{}", path.display()))?
        .connect_timeout(Duration::from_secs(5))
        .timeout(Duration::from_secs(10))
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

/// A socket that is removed on drop, unless another process has put its own there.
pub struct Bound {
    path: PathBuf,
    identity: Option<Identity>,
}

impl Bound {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), identity: identity(path) }
    }

    /// Whether clients that use the path still get to us.
    pub fn is_ours(&self) -> bool {
        self.identity.is_some() && identity(&self.path) == self.identity
    }

    /// Waits until they no longer do.
    pub async fn until_lost(&self) {
        const PAUSE: Duration = Duration::from_secs(2);
        while self.is_ours() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.is_ours() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_another_process_put_there_stays() {
        let directory = testkit::directory();
        let path = directory.join("s");
        let bind = || std::os::unix::net::UnixListener::bind(&path).unwrap();
        let _first = bind();
        let bound = Bound::new(&path);
        assert!(bound.is_ours());
        std::fs::remove_file(&path).unwrap();
        assert!(!bound.is_ours());
        let _second = bind();
        drop(bound);
        assert!(path.exists());
        drop(Bound::new(&path));
        assert!(!path.exists());
    }
}
