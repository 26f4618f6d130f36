//! Every exit status of `bulkhead`. `run` passes the status of its program on, so these are numbers that programs
//! seldom use.

use std::process::ExitCode;

/// Makes the type and the list of its values from one table, so that none can be left out.
macro_rules! statuses {
    ($($name:ident = $number:literal, $meaning:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Exit {
            $(#[doc = $meaning] $name = $number,)*
        }

        impl Exit {
            /// With a line for the manual.
            pub const ALL: &[(Self, &str)] = &[$((Self::$name, $meaning)),*];
        }
    };
}

statuses! {
    Unwell = 1, "`bulkhead doctor` found errors";
    Usage = 2, "wrong arguments";
    ZoneRefused = 65, "the proxy refused the zone";
    ZoneUnknown = 66, "the proxy has no zone of that name";
    NoBackend = 67, "the backend is not on this machine";
    NoLibrary = 68, "Bulkhead's libcuda.so.1 was not found";
    ProxyUnreachable = 69, "no proxy answers at the socket";
    Failure = 70, "an internal failure";
    NoXen = 71, "this is no domain of Xen that can make others";
    NoJail = 72, "the machine does not allow the jail that was demanded";
    NoSpace = 73, "no space left for the state directory";
    StateDir = 74, "the state directory cannot be used";
    Taken = 75, "another proxy has the state directory";
    Guest = 76, "the guest did not start, or ended without its program";
    NoImage = 77, "there is no image that a guest could boot";
    Config = 78, "the configuration file is wrong";
    TimedOut = 79, "what was waited for did not happen in time";
    PeerLost = 80, "the program on the other side died";
    NotExecutable = 126, "the program cannot be executed";
    NotFound = 127, "the program was not found";
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
    fn the_front_page_has_them_all() {
        const BEGIN: &str = "<!-- statuses: made from crates/proxy/src/exit.rs -->\n";
        const END: &str = "<!-- end of statuses -->\n";
        let line = |(exit, meaning): &(Exit, &str)| format!("| {} | {meaning} |\n", *exit as u8);
        let own = "| the program's | it ran; 128+n if signal n ended it |\n";
        let table: String = Exit::ALL.iter().map(line).collect();
        let table = format!("\n| exit status | meaning |\n|---:|---|\n{own}{table}\n");
        testkit::fresh_part("README.md", BEGIN, END, &table);
    }

    #[test]
    fn every_status_is_its_own() {
        let mut seen: Vec<u8> = Exit::ALL.iter().map(|(exit, _)| *exit as u8).collect();
        seen.sort_unstable();
        let all = seen.len();
        seen.dedup();
        assert_eq!(seen.len(), all);
    }
}
