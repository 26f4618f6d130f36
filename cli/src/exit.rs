//! Every exit status of `bulkhead`. `run` passes the status of its program on, so these are numbers that programs
//! seldom use.

use std::process::ExitCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The doctor found something that must be mended.
    Unwell = 1,
    /// Wrong arguments.
    Usage = 2,
    /// The proxy would not make the zone.
    ZoneRefused = 65,
    /// The proxy has no zone of that name.
    ZoneUnknown = 66,
    /// The backend that was asked for is not on this machine.
    NoBackend = 67,
    /// Our client library was not found.
    NoLibrary = 68,
    /// No proxy answers at the socket, or it went away.
    ProxyUnreachable = 69,
    /// Something failed that should not.
    Failure = 70,
    /// There is no Xen here, or no toolstack.
    NoXen = 71,
    /// The machine does not allow the jail that was demanded.
    NoJail = 72,
    /// The disk is full.
    NoSpace = 73,
    /// The state directory cannot be used.
    StateDir = 74,
    /// Another proxy has the state directory.
    Taken = 75,
    /// What was waited for did not happen in time.
    TimedOut = 79,
    /// The program on the other side died.
    PeerLost = 80,
    /// A guest did not start, or ended without its program.
    Guest = 76,
    /// There is no image that a guest could boot.
    NoImage = 77,
    /// The configuration file is wrong.
    Config = 78,
    /// The program was found but cannot be executed.
    NotExecutable = 126,
    /// The program was not found.
    NotFound = 127,
}

impl Exit {
    /// With a line for the manual.
    pub const ALL: [(Self, &str); 20] = [
        (Self::Unwell, "`bulkhead doctor` found errors"),
        (Self::Usage, "wrong arguments"),
        (Self::ZoneRefused, "the proxy refused the zone"),
        (Self::ZoneUnknown, "the proxy has no zone of that name"),
        (Self::NoBackend, "the backend is not on this machine"),
        (Self::NoLibrary, "Bulkhead's libcuda.so.1 was not found"),
        (Self::ProxyUnreachable, "no proxy answers at the socket"),
        (Self::Failure, "an internal failure"),
        (Self::NoXen, "this is no domain of Xen that can make others"),
        (Self::NoJail, "the machine does not allow the jail that was demanded"),
        (Self::NoSpace, "no space left for the state directory"),
        (Self::StateDir, "the state directory cannot be used"),
        (Self::Taken, "another proxy has the state directory"),
        (Self::TimedOut, "what was waited for did not happen in time"),
        (Self::PeerLost, "the program on the other side died"),
        (Self::Guest, "the guest did not start, or ended without its program"),
        (Self::NoImage, "there is no image that a guest could boot"),
        (Self::Config, "the configuration file is wrong"),
        (Self::NotExecutable, "the program cannot be executed"),
        (Self::NotFound, "the program was not found"),
    ];
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// What a verb ends with: one line for stderr, and the status.
#[derive(Debug, thiserror::Error)]
#[error("{line}")]
pub struct Failure {
    pub exit: Exit,
    pub line: String,
}

impl Failure {
    pub fn new(exit: Exit, line: impl Into<String>) -> Self {
        Self { exit, line: line.into() }
    }

    /// An error of the system: a full disk has a status of its own wherever it strikes.
    pub fn system(exit: Exit, what: &str, error: &std::io::Error) -> Self {
        let exit = if is_full(error) { Exit::NoSpace } else { exit };
        Self::new(exit, format!("{what}: {error}"))
    }
}

pub fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_its_own() {
        let mut seen: Vec<u8> = Exit::ALL.iter().map(|(exit, _)| *exit as u8).collect();
        seen.sort_unstable();
        let all = seen.len();
        seen.dedup();
        assert_eq!(seen.len(), all);
    }
}
