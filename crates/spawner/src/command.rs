//! How each kind of process is started.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use control::backend::Backend;
use control::checkpoint::{Move, Target};
use control::env_vars;
use control::spawner::Confined;

use crate::Settings;
use crate::settings::Helper;

/// Variables that workers get. A tenant's worker has no business with the rest of the operator's environment.
const PASSED_ON: [&str; 5] =
    [env_vars::LOG, env_vars::SOFT_THREADS, env_vars::SOFT_CHECK, env_vars::DRIVER_CALLS, "RUST_BACKTRACE"];

/// A worker, or with `inventory` the process that describes the cards.
pub(crate) fn worker(
    settings: &Settings,
    confined: &Confined,
    backend: &Backend,
    inventory: bool,
    root: bool,
) -> Command {
    let mut command = program(settings);
    command.args(&settings.worker_arguments).args(backend.to_arguments());
    command.arg("--rejoin").arg(settings.state_dir.join("workers/rejoin/sock"));
    command.arg("--jail").arg(settings.jail.name());
    command.arg("--jail-root").arg(settings.state_dir.join("jail"));
    if root {
        command.arg("--jail-uid").arg(settings.uid(confined.slot).to_string());
    }
    command.args(confined.without_pid_namespace.then_some("--without-pid-namespace"));
    command.args(confined.names_descriptors.then_some("--names-descriptors"));
    command.args(confined.fresh.then_some("--fresh"));
    command.args(inventory.then_some("--inventory"));
    command.env_clear();
    for name in PASSED_ON {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    if let Backend::Nvidia { library, .. } = backend {
        // The driver loads its other libraries by name; they lie beside it.
        command.envs(library.parent().map(|directory| ("LD_LIBRARY_PATH", directory)));
    }
    sandbox::jail::lead_session(&mut command);
    command
}

pub(crate) fn meter(settings: &Settings, meter: &Helper, root: bool) -> Command {
    let mut command = helper(settings, meter);
    command.envs(std::env::var_os(env_vars::LOG).map(|value| (env_vars::LOG, value)));
    if root {
        command.uid(settings.meter_uid()).gid(settings.meter_uid());
    }
    command
}

/// The preemptor, or what tests whether it can do anything. It needs no right but the descriptors that it is given: the
/// driver would count what this user may do.
pub(crate) fn preemptor(settings: &Settings, preemptor: &Helper, root: bool) -> Command {
    let mut command = helper(settings, preemptor);
    for name in PASSED_ON {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    if root {
        command.uid(settings.preemptor_uid()).gid(settings.preemptor_uid());
    }
    command
}

pub(crate) fn mover(settings: &Settings, mover: &Helper, target: &Target, which: Move) -> Command {
    let mut command = helper(settings, mover);
    command.arg(which.name());
    command.args([target.pid.to_string(), target.start_time.to_string(), target.uid.to_string()]);
    command
}

fn helper(settings: &Settings, helper: &Helper) -> Command {
    let mut command = program(settings);
    command.args(&helper.arguments).env_clear();
    command.envs(settings.json_logs.then_some((env_vars::LOG_FORMAT, "json")));
    command.envs(helper.libraries.as_ref().map(|directory| ("LD_LIBRARY_PATH", directory)));
    command.process_group(0);
    command
}

fn program(settings: &Settings) -> Command {
    let mut command = Command::new(&settings.program);
    // Started from /proc/self/exe, it would be called "exe" in every list of processes.
    command.arg0("bulkhead").stdout(Stdio::null());
    command
}

/// What a process is talked to by is its standard input: it needs no number of its own, and nothing else leaks in.
pub(crate) fn connect(command: &mut Command, stdin: Option<OwnedFd>, stderr: Option<OwnedFd>) {
    command.stdin(stdin.map_or_else(Stdio::null, Stdio::from));
    if let Some(stderr) = stderr {
        command.stderr(stderr);
    }
}
