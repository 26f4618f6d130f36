//! Bulkhead in a folder of its own: started, used, killed, and shown to leave nothing behind.

mod binaries;
mod honest;
mod node;
mod place;
mod proxy;

use std::time::{Duration, Instant};

pub use binaries::{Binaries, MissingBinary};
pub use honest::Honest;
pub use node::{Node, on_node, on_node_with};
pub use place::Place;
pub use proxy::{Proxy, ZONE_MEMORY};

/// Far beyond what anything here takes on a busy machine: only a hang is longer.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something is true.
///
/// # Panics
/// When it never is.
pub fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < PATIENCE, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal to a process that the caller has started, or knows to be a worker of its own proxy.
pub fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a process id");
    rustix::process::kill_process(pid, signal).expect("the process is there");
}

pub fn is_alive(pid: u32) -> bool {
    // A zombie is dead: only its parent has not looked yet.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
}
