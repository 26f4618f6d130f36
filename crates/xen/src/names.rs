//! The socket over which programs in a guest meet others by name: each connection is carried to the broker.
//!
//! In a container that socket is the broker's own. Here somebody of the guest listens in its place: the first process of
//! our images, or `bulkhead ipc serve`. All of this is on the tenant's side, and nothing is protected by it: the broker
//! sees what a tenant may send in either case.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use idm::bootstrap::{self, BootstrapError, First, Opening};

use crate::guest::{self, ConnectError};
use crate::talk::TalkError;

/// Where programs look for it, if they have no socket of their zone.
pub const SOCKET: &str = "/run/bulkhead/zone/names";

/// As many connections as the broker lets a zone have.
const MOST: usize = 256;
/// How long the proxy may take to take this guest in, and to answer; a program waits for its answer as long.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A thread that carries messages needs little.
const STACK: usize = 128 << 10;

#[derive(Debug, thiserror::Error)]
enum NameError {
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error("this socket serves only named buffers (bulkhead ipc)")]
    Other,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Talk(#[from] TalkError),
}

/// A socket that listens.
pub struct Listener(OwnedFd);

impl Listener {
    /// Listens at `path`, for every user of the guest, in place of a predecessor.
    pub fn at(path: &Path) -> Result<Self, BootstrapError> {
        use std::os::unix::fs::FileTypeExt;
        // Without the directory there is no socket either, and that says why.
        let _ = path.parent().map(std::fs::create_dir_all);
        if std::fs::symlink_metadata(path).is_ok_and(|there| there.file_type().is_socket()) {
            let _ = std::fs::remove_file(path);
        }
        let listener = bootstrap::listen(path)?;
        let anybody = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::chmod(path, anybody)
            .map_err(|source| BootstrapError::System { what: "let others use the socket", source })?;
        Ok(Self(listener))
    }

    /// Serves for ever; `complain` is told what goes wrong.
    pub fn serve(self, complain: impl Fn(String) + Clone + Send + 'static) -> ! {
        let here = Arc::new(AtomicUsize::new(0));
        loop {
            let Ok(program) = bootstrap::accept(&self.0) else {
                // No descriptors are left, for instance.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            let Some(place) = Place::take(&here) else { continue };
            let say = complain.clone();
            let carried = std::thread::Builder::new().name("names".into()).stack_size(STACK).spawn(move || {
                let _place = place;
                if let Err(error) = carry(&program) {
                    let why = std::error::Error::source(&error).map(|why| format!(": {why}")).unwrap_or_default();
                    say(format!("{error}{why}"));
                }
            });
            if let Err(error) = carried {
                complain(format!("cannot serve a program: {error}"));
            }
        }
    }
}

/// One of the connections that there may be.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(here: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |count: usize| (count < MOST).then_some(count + 1);
        here.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(here.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn carry(program: &OwnedFd) -> Result<(), NameError> {
    let (opening, _) = bootstrap::recv_within::<Opening>(program, TIMEOUT)?;
    if opening.first() != Some(First::Rendezvous) {
        return Err(NameError::Other);
    }
    let mut talk = guest::talk(TIMEOUT, TIMEOUT)?;
    let carried = talk.carry(program);
    // The program need not wait for the rest.
    let _ = rustix::net::shutdown(program, rustix::net::Shutdown::Both);
    talk.leave(TIMEOUT)?;
    Ok(carried?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_only_so_many_places() {
        let here = Arc::new(AtomicUsize::new(0));
        let mut places: Vec<Place> = (0..MOST).map(|_| Place::take(&here).unwrap()).collect();
        assert!(Place::take(&here).is_none());
        places.pop();
        assert!(Place::take(&here).is_some());
    }

    #[test]
    fn only_who_wants_to_meet_is_carried() {
        let (program, guest) = bootstrap::pair().unwrap();
        bootstrap::send(&program, &bootstrap::Inquiry::default(), &[]).unwrap();
        assert!(matches!(carry(&guest), Err(NameError::Other)));
        drop(program);
        assert!(matches!(carry(&guest), Err(NameError::Bootstrap(BootstrapError::Closed))));
    }
}
