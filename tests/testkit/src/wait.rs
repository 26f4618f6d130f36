//! Waiting for what other threads and processes do.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Far beyond what anything takes on a busy machine: only a hang is longer.
pub const TIMEOUT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until something is true.
///
/// # Panics
/// When it never is.
#[track_caller]
pub fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < TIMEOUT, "never came true: {what}");
        std::thread::sleep(PAUSE);
    }
}

/// Waits until somebody accepts connections at a socket: the path alone may be what a killed process left behind.
///
/// # Panics
/// When nobody ever does.
#[track_caller]
pub fn until_listening(socket: &Path) {
    until(&format!("{} is served", socket.display()), || UnixStream::connect(socket).is_ok());
}
