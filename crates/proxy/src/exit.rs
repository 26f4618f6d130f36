//! Every exit status of `bulkhead`. `run` returns the status of its program, so these are numbers that programs seldom
//! use.

use std::process::ExitCode;

/// Generates the type and the list of its values from one table, so that none can be left out.
macro_rules! statuses {
    ($($name:ident = $number:literal, $meaning:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Exit {
            $(#[doc = $meaning] $name = $number,)*
        }

        impl Exit {
            /// Every status with its description in the man page.
            pub const ALL: &[(Self, &str)] = &[$((Self::$name, $meaning)),*];
        }
    };
}

statuses! {
    Unwell = 1, "`bulkhead doctor` found errors";
    Usage = 2, "invalid arguments";
    ZoneRefused = 65, "the proxy refused the request";
    ZoneUnknown = 66, "the zone does not exist";
    NoBackend = 67, "the backend is not available on this machine";
    NoLibrary = 68, "the client library libcuda.so.1 was not found";
    ProxyUnreachable = 69, "the proxy is unreachable";
    Failure = 70, "internal error";
    NoXen = 71, "not in a Xen control domain";
    NoJail = 72, "the required jail is not available on this machine";
    NoSpace = 73, "no space left on device";
    StateDir = 74, "the state directory is not usable";
    Taken = 75, "another proxy uses the state directory";
    Guest = 76, "the guest did not boot, or ended before its program";
    NoImage = 77, "no guest image";
    Config = 78, "invalid configuration";
    TimedOut = 79, "timed out";
    PeerLost = 80, "the peer process died";
    Findings = 81, "the program succeeded, and `bulkhead run --check` found mistakes";
    NotExecutable = 126, "the program cannot be executed";
    NotFound = 127, "the program was not found";
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error that ends a command: one line for stderr, and the exit status.
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

    /// A system error; a full disk always has a status of its own.
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
        let own = "| the program's | the program ran; 128+n if signal n killed it |\n";
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
