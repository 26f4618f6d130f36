//! The private proxy that `run` starts.
//!
//! A socket connects the two: the proxy reports on it when it is ready, and learns from its hang-up that `run` is gone,
//! however that happened; it then ends its workers and removes the directory. If the proxy ends first, `run` starts
//! another one in the same directory, which takes the workers over.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use control::packet;
use control::{env_vars, lock, state_dir};
use rustix::event::{PollFd, PollFlags};

use crate::args::{BackendArgs, JailArg};
use crate::check::Check;
use crate::exit::{Exit, Failure};
use crate::progress::Progress;
use crate::soft_cache;

const PREFIX: &str = "bulkhead-run-";
/// How long the proxy may take to end its workers when `run` is done.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct PrivateProxy {
    dir: PathBuf,
    /// Locked while this process lives, so that another `run` does not remove the directory as stale.
    _owner: File,
    arguments: Vec<std::ffi::OsString>,
    /// What the software GPU is to look for.
    checks: Option<String>,
    process: Option<(Child, OwnedFd)>,
}

impl PrivateProxy {
    pub(crate) fn start(backend: &BackendArgs, jail: JailArg, check: Option<&Check>) -> Result<Self, Failure> {
        let base = base();
        remove_stale(&base);
        let (dir, owner) = make_dir(&base).map_err(|error| {
            Failure::system(Exit::StateDir, &format!("cannot create a directory in {}", base.display()), &error)
        })?;
        let mut arguments: Vec<std::ffi::OsString> = ["proxy", "--private", "--state-dir"].map(Into::into).into();
        arguments.push(dir.clone().into());
        arguments.extend(["--jail".into(), sandbox::jail::Demand::from(jail).name().into()]);
        arguments.extend(backend.to_arguments());
        arguments.extend(soft_cache::path().into_iter().flat_map(|path| ["--soft-cache".into(), path.into()]));
        let checks = check.map(|check| check.wanted().to_owned());
        arguments.extend(check.into_iter().flat_map(|check| ["--soft-report".into(), check.report().into()]));
        let mut proxy = Self { dir, _owner: owner, arguments, checks, process: None };
        // A driver of a busy node takes its time.
        let _progress = Progress::of("starting a proxy");
        proxy.restart()?;
        Ok(proxy)
    }

    pub(crate) fn admin_socket(&self) -> PathBuf {
        self.dir.join("admin.sock")
    }

    /// Starts the proxy in the directory and waits until it serves.
    pub(crate) fn restart(&mut self) -> Result<(), Failure> {
        let failure = |error: io::Error| Failure::system(Exit::Failure, "cannot start a proxy", &error);
        if let Some((mut child, lifeline)) = self.process.take() {
            drop(lifeline);
            let _ = child.wait();
        }
        let (ours, theirs) = packet::pair().map_err(failure)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("bulkhead").args(&self.arguments).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        command.envs(self.checks.as_ref().map(|checks| (env_vars::SOFT_CHECK, checks)));
        // In a process group of its own: the terminal's signals are for the program.
        command.process_group(0);
        let mut child = command.spawn().map_err(failure)?;
        drop(command);
        let ready = packet::receive(&ours, &mut [0; 16]);
        if matches!(ready, Ok(received) if received.len > 0) {
            self.process = Some((child, ours));
            return Ok(());
        }
        let status = child.wait().map_err(failure)?;
        let exit = Exit::ALL.iter().map(|(exit, _)| *exit).find(|exit| status.code() == Some(*exit as i32));
        Err(match exit {
            // It has printed why.
            Some(exit) => Failure::new(exit, ""),
            None => Failure::new(Exit::Failure, format!("cannot start a proxy ({status})")),
        })
    }
}

impl Drop for PrivateProxy {
    fn drop(&mut self) {
        if let Some((mut child, lifeline)) = self.process.take() {
            drop(lifeline);
            if !ended_within(&child, SHUTDOWN_TIMEOUT) {
                let _ = child.kill();
            }
            let _ = child.wait();
        }
        state_dir::remove(&self.dir);
    }
}

fn ended_within(child: &Child, time: Duration) -> bool {
    let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) else { return true };
    let Ok(process) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { return true };
    let time = rustix::event::Timespec { tv_sec: time.as_secs() as i64, tv_nsec: 0 };
    let mut fds = [PollFd::new(&process, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&time)).is_ok_and(|count| count > 0)
}

/// The user's runtime directory, or /tmp; socket paths must be short.
fn base() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usable = |path: &PathBuf| {
        path.is_absolute()
            && std::fs::metadata(path)
                .is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw())
    };
    runtime.filter(usable).unwrap_or_else(|| PathBuf::from("/tmp"))
}

fn make_dir(base: &Path) -> io::Result<(PathBuf, File)> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let dir = base.join(format!("{PREFIX}{:016x}", u64::from_ne_bytes(random)));
    DirBuilder::new().mode(0o700).create(&dir)?;
    // Nobody else can have locked a file in a directory that is this new.
    let owner = File::create(dir.join("owner")).and_then(|owner| lock::try_lock(&owner).map(|_| owner));
    match owner {
        Ok(owner) => Ok((dir, owner)),
        Err(error) => {
            state_dir::remove(&dir);
            Err(error)
        }
    }
}

/// Removes stale directories, whose `run` and proxy were both killed: those without a lock.
fn remove_stale(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    let me = rustix::process::geteuid().as_raw();
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == me);
        let free = |name: &str| match File::open(entry.path().join(name)) {
            Ok(file) => lock::try_lock(&file).unwrap_or(false),
            // A directory that is only just being made has no owner yet.
            Err(_) => name != "owner",
        };
        if ours && free("owner") && free("lock") {
            state_dir::remove(&entry.path());
        }
    }
}
