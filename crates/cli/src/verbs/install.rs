//! `bulkhead install`: installs the host service where there is no package.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bulkhead_kube::install::{self, InstallError, Parts, Systemd, Traces};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::InstallArgs;
use crate::exit::{Exit, Failure};
use crate::library;

pub(crate) fn run(args: InstallArgs) -> Result<ExitCode, Failure> {
    // A mistyped one would be made, and hold an installation that nobody starts.
    if !args.host_root.is_dir() {
        let line = format!("--host-root {}: not a directory", args.host_root.display());
        return Err(Failure::new(Exit::Usage, line));
    }
    let outcome = if args.remove { remove(&args) } else { place(&args) }?;
    let code = match args.json {
        true => super::status::print_json(&outcome.json())?,
        false => super::man::print(format!("{}\n", outcome.line()).as_bytes())?,
    };
    if args.stay {
        let mut signals = Signals::new([SIGTERM, SIGINT])
            .map_err(|error| Failure::system(Exit::Failure, "cannot wait for signals", &error))?;
        signals.forever().next();
    }
    Ok(code)
}

/// What has become of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// A package is there, which is left as it is.
    Packaged,
    Running,
    /// There is no systemd.
    NotStarted,
    Removed,
    /// A package is left; what pods had is gone.
    PackageLeft,
}

impl Outcome {
    fn line(self) -> &'static str {
        match self {
            Self::Packaged => "the host has a Bulkhead package; nothing to do",
            Self::Running => "installed; the proxy is running",
            Self::NotStarted => {
                "installed; no systemd on this host: start /opt/bulkhead/current/bin/bulkhead proxy yourself"
            }
            Self::Removed => "removed",
            Self::PackageLeft => "removed the files of pods; remove the host's Bulkhead package separately",
        }
    }

    fn json(self) -> serde_json::Value {
        let (installed, package, running) = match self {
            Self::Packaged | Self::PackageLeft => (true, true, None),
            Self::Running => (true, false, Some(true)),
            Self::NotStarted => (true, false, Some(false)),
            Self::Removed => (false, false, Some(false)),
        };
        // Whether a package's proxy runs is not looked at.
        serde_json::json!({
            "installed": installed, "package": package, "running": running, "message": self.line(),
        })
    }
}

fn failure(error: InstallError) -> Failure {
    match &error {
        InstallError::File { path, source } => {
            Failure::system(Exit::StateDir, &format!("cannot use {}", path.display()), source)
        }
        InstallError::Root(_) | InstallError::Service { .. } => Failure::new(Exit::Failure, error.to_string()),
    }
}

fn place(args: &InstallArgs) -> Result<Outcome, Failure> {
    // An invalid configuration must not get to the host: the proxy would not start with it.
    if let Some(path) = &args.config {
        config::load(path)
            .map_err(|error| Failure::new(Exit::Config, error.to_string().replace('\n', "\nbulkhead: ")))?;
    }
    let program = std::env::current_exe()
        .map_err(|error| Failure::system(Exit::Failure, "cannot find this program's own path", &error))?;
    let libraries = library::find()?;
    let version = version(&libraries)?;
    let parts = Parts { program, libraries, config: args.config.clone(), version };
    let changes = install::place(&args.host_root, &parts).map_err(failure)?;
    if changes.packaged {
        return Ok(Outcome::Packaged);
    }
    let systemd = Systemd::enter(&args.host_root).map_err(failure)?;
    if !systemd.is_there() {
        return Ok(Outcome::NotStarted);
    }
    systemd.apply(changes).map_err(failure)?;
    Ok(Outcome::Running)
}

/// The version of what is installed, which is the name of its directory: the program's own, or that of a rebuild of it, which its
/// packager has left beside the libraries.
fn version(libraries: &Path) -> Result<String, Failure> {
    let path = libraries.join("version");
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(env!("CARGO_PKG_VERSION").to_owned()),
        text => {
            text.map_err(|error| Failure::system(Exit::Failure, &format!("cannot read {}", path.display()), &error))?
        }
    };
    let version = text.trim();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".+~-".contains(&byte);
    match version.starts_with(|first: char| first.is_ascii_digit()) && version.bytes().all(plain) {
        true => Ok(version.to_owned()),
        false => Err(Failure::new(Exit::Failure, format!("{}: {version:?} is not a version", path.display()))),
    }
}

/// Waits for the DRA driver to end, but not for ever: it may be one that nobody is about to end.
fn until_driver_ended(root: &Path, traces: &Traces) {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let start = Instant::now();
    while install::driver_answers(root, traces) && start.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn remove(args: &InstallArgs) -> Result<Outcome, Failure> {
    let traces = Traces {
        kubelet: args.kubelet_dir.clone(),
        checkpoints: args.checkpoint_dir.clone(),
        cdi: args.cdi_dir.clone(),
    };
    let root = args.host_root.clone();
    until_driver_ended(&root, &traces);
    if install::is_packaged(&root) {
        install::clear(&root, &traces).map_err(failure)?;
        return Ok(Outcome::PackageLeft);
    }
    let systemd = Systemd::enter(&root).map_err(failure)?;
    // From here on the host's root is this process's root, if there is a systemd.
    let root = if systemd.is_there() { "/".into() } else { root };
    if systemd.is_there() {
        // A host on which it was never installed has no such unit.
        let _ = systemd.ask(&["stop", "bulkhead-exporter.service", "bulkhead-broker.service", "bulkhead.service"]);
    }
    install::clear(&root, &traces).map_err(failure)?;
    if systemd.is_there() {
        systemd.ask(&["daemon-reload"]).map_err(failure)?;
    }
    Ok(Outcome::Removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rebuild_has_a_version_of_its_own() {
        let directory = testkit::directory();
        assert_eq!(version(&directory).unwrap(), env!("CARGO_PKG_VERSION"));
        std::fs::write(directory.join("version"), "0.1.0-next\n").unwrap();
        assert_eq!(version(&directory).unwrap(), "0.1.0-next");
        for wrong in ["", "current", "..", "1/../../etc", "1 2"] {
            std::fs::write(directory.join("version"), wrong).unwrap();
            assert!(version(&directory).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_script_learns_what_the_line_says() {
        let state = |outcome: Outcome| {
            let json = outcome.json();
            assert_eq!(json["message"], outcome.line());
            (json["installed"].as_bool(), json["package"].as_bool(), json["running"].as_bool())
        };
        assert_eq!(state(Outcome::Running), (Some(true), Some(false), Some(true)));
        assert_eq!(state(Outcome::NotStarted), (Some(true), Some(false), Some(false)));
        assert_eq!(state(Outcome::Packaged), (Some(true), Some(true), None));
        assert_eq!(state(Outcome::Removed), (Some(false), Some(false), Some(false)));
    }
}
