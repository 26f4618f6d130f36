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
    let said = if args.remove { remove(&args) } else { place(&args) };
    let code = super::man::print(format!("{}\n", said?).as_bytes())?;
    if args.stay {
        let mut signals = Signals::new([SIGTERM, SIGINT])
            .map_err(|error| Failure::system(Exit::Failure, "cannot wait for signals", &error))?;
        signals.forever().next();
    }
    Ok(code)
}

fn failure(error: InstallError) -> Failure {
    match &error {
        InstallError::File { path, source } => {
            Failure::system(Exit::StateDir, &format!("cannot use {}", path.display()), source)
        }
        InstallError::Root(_) | InstallError::Service { .. } => Failure::new(Exit::Failure, error.to_string()),
    }
}

fn place(args: &InstallArgs) -> Result<&'static str, Failure> {
    // An invalid configuration must not get to the host: the proxy would not start with it.
    if let Some(path) = &args.config {
        config::load(path)
            .map_err(|error| Failure::new(Exit::Config, error.to_string().replace('\n', "\nbulkhead: ")))?;
    }
    let program = std::env::current_exe()
        .map_err(|error| Failure::system(Exit::Failure, "cannot find this program's own path", &error))?;
    let parts = Parts {
        program,
        libraries: library::find()?,
        config: args.config.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let changes = install::place(&args.host_root, &parts).map_err(failure)?;
    if changes.packaged {
        return Ok("the host has a Bulkhead package; nothing to do");
    }
    let systemd = Systemd::enter(&args.host_root).map_err(failure)?;
    if !systemd.is_there() {
        return Ok("installed; no systemd on this host: start /opt/bulkhead/current/bin/bulkhead proxy yourself");
    }
    systemd.apply(changes).map_err(failure)?;
    Ok("installed; the proxy is running")
}

/// Waits for the DRA driver to end, but not for ever: it may be one that nobody is about to end.
fn until_driver_ended(root: &Path, traces: &Traces) {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let start = Instant::now();
    while install::driver_answers(root, traces) && start.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn remove(args: &InstallArgs) -> Result<&'static str, Failure> {
    let traces = Traces {
        kubelet: args.kubelet_dir.clone(),
        checkpoints: args.checkpoint_dir.clone(),
        cdi: args.cdi_dir.clone(),
    };
    let root = args.host_root.clone();
    until_driver_ended(&root, &traces);
    if install::is_packaged(&root) {
        install::clear(&root, &traces).map_err(failure)?;
        return Ok("removed the files of pods; remove the host's Bulkhead package separately");
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
    Ok("removed")
}
