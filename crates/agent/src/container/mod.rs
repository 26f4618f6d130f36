//! Containers as the OCI runtime specification has them.
//!
//! The agent has one thread, so that it can fork and go on in Rust. A container's process is made in two steps:
//!
//! ```text
//! agent ── fork ──▶ first: joins the cgroup, makes or joins the process namespace
//!                     └─ fork ──▶ second: says who it is; mount namespace, tree, user, seccomp, then the program
//! ```
//!
//! The first tells the number of the second, and ends; the second becomes the agent's child, which waits for it. Both
//! report through a socket that closes when the program runs: what comes before that is a terminal, or why it failed.

mod cgroup;
mod credentials;
mod mounts;
mod seccomp;
mod syscalls;

pub(crate) use cgroup::{Cgroup, Trees};
pub(crate) use mounts::inside;
pub(crate) use seccomp::{compile, flags};

use crate::oci::{Process, Spec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

/// Why a container's process could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("cannot {0}")]
    Step(&'static str, #[source] io::Error),
    #[error("cannot mount {0}")]
    Mount(String, #[source] io::Error),
    #[error("cannot make device {0}")]
    Device(String, #[source] io::Error),
    #[error("cannot set sysctl {0}")]
    Sysctl(String, #[source] io::Error),
    #[error("cannot set limit {0}")]
    Rlimit(String, #[source] io::Error),
    #[error("exec: {0:?}: executable file not found in $PATH or cannot be run")]
    Exec(String, #[source] io::Error),
    #[error("no program to run")]
    NoProgram,
}

/// All that a process needs, worked out before the fork.
pub(crate) struct Plan<'a> {
    pub process: &'a Process,
    pub cgroup: &'a Cgroup,
    pub place: Place<'a>,
    /// A seccomp program and its flags.
    pub seccomp: Option<(Vec<libc::sock_filter>, u64)>,
    pub stdio: Stdio,
}

/// Where a process runs.
pub(crate) enum Place<'a> {
    /// The first of a container: its specification, its root file system, the machine's volumes, and the process whose
    /// process namespace it joins.
    New { spec: &'a Spec, root: &'a Path, volumes: &'a Path, pids_of: Option<u32> },
    /// In the container of this process.
    In(u32),
}

/// What a process has as its standard streams.
pub(crate) enum Stdio {
    /// A terminal of the container's, which the process makes and hands over.
    Terminal(Option<rustix::termios::Winsize>),
    Pipes([OwnedFd; 3]),
}

/// What comes through the report socket: one byte says which, text follows.
pub(crate) const REPORT_PID: u8 = b'P';
pub(crate) const REPORT_TERMINAL: u8 = b'T';
pub(crate) const REPORT_ERROR: u8 = b'E';

/// Namespaces of a process that is to be joined, opened while `/proc` is still the machine's.
struct Joined {
    pids: File,
    mounts: Option<File>,
    cgroups: Option<File>,
}

impl Joined {
    fn open(pid: u32, all: bool) -> Result<Self, SetupError> {
        let open = |name: &str| {
            File::open(format!("/proc/{pid}/ns/{name}"))
                .map_err(|error| SetupError::Step("join the container, which is not running", error))
        };
        Ok(Self {
            pids: open("pid")?,
            mounts: all.then(|| open("mnt")).transpose()?,
            cgroups: if all { open("cgroup").ok() } else { None },
        })
    }
}

/// Starts a process; the socket reports how that goes.
pub(crate) fn spawn(plan: &Plan<'_>) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    if fork()? == 0 {
        drop(ours);
        let report = Report(theirs);
        if let Err(error) = first(plan, &report) {
            report.failed(&error);
        }
        leave();
    }
    Ok(ours)
}

/// In the first process.
fn first(plan: &Plan<'_>, report: &Report) -> Result<(), SetupError> {
    // Nobody in a container looks into a process of ours on its way there.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let joined = match &plan.place {
        Place::In(pid) => Some(Joined::open(*pid, true)?),
        Place::New { pids_of: Some(pid), .. } => Some(Joined::open(*pid, false)?),
        Place::New { pids_of: None, .. } => None,
    };
    plan.cgroup.join().map_err(|error| SetupError::Step("join the cgroup", error))?;
    match &joined {
        Some(joined) => set_namespace(joined.pids.as_fd(), LinkNameSpaceType::ProcessID)?,
        None => unshare(UnshareFlags::NEWPID)?,
    }
    match fork().map_err(|error| SetupError::Step("fork", error))? {
        0 => {
            if let Err(error) = second(plan, joined, report) {
                report.failed(&error);
            }
            leave();
        }
        pid => report.send(REPORT_PID, pid.to_string().as_bytes(), None),
    }
    Ok(())
}

/// In the second: becomes the program.
fn second(plan: &Plan<'_>, joined: Option<Joined>, report: &Report) -> Result<(), SetupError> {
    let step = |what: &'static str| move |error: rustix::io::Errno| SetupError::Step(what, error.into());
    rustix::process::setsid().map_err(step("make a session"))?;
    if let Some(score) = plan.process.oom_score_adj {
        // Machines may forbid even root to lower it.
        let _ = std::fs::write("/proc/self/oom_score_adj", score.to_string());
    }
    match &plan.place {
        Place::New { spec, root, volumes, .. } => {
            let own_cgroups = spec.linux.namespaces.iter().any(|namespace| namespace.kind == "cgroup");
            let cgroups = if own_cgroups { UnshareFlags::NEWCGROUP } else { UnshareFlags::empty() };
            unshare(UnshareFlags::NEWNS | cgroups)?;
            mounts::enter(spec, root, volumes)?;
            if !spec.hostname.is_empty() {
                let name = rustix::system::sethostname(spec.hostname.as_bytes());
                name.map_err(step("set the hostname"))?;
            }
        }
        Place::In(_) => {
            let joined = joined.as_ref();
            if let Some(cgroups) = joined.and_then(|joined| joined.cgroups.as_ref()) {
                set_namespace(cgroups.as_fd(), LinkNameSpaceType::ControlGroup)?;
            }
            if let Some(mounts) = joined.and_then(|joined| joined.mounts.as_ref()) {
                set_namespace(mounts.as_fd(), LinkNameSpaceType::Mount)?;
            }
        }
    }
    drop(joined);
    let terminal_uid = plan.process.user.uid;
    match &plan.stdio {
        Stdio::Terminal(size) => {
            terminal(*size, terminal_uid, matches!(plan.place, Place::New { .. }), report)?;
        }
        Stdio::Pipes([input, output, errors]) => {
            rustix::stdio::dup2_stdin(input).map_err(step("set standard input"))?;
            rustix::stdio::dup2_stdout(output).map_err(step("set standard output"))?;
            rustix::stdio::dup2_stderr(errors).map_err(step("set standard error"))?;
            // Those who may not be root open them again through /proc or /dev/stdout.
            for stream in [input, output, errors] {
                let _ = rustix::fs::fchown(stream, Some(rustix::fs::Uid::from_raw(terminal_uid)), None);
            }
        }
    }
    if let Place::New { spec, .. } = &plan.place {
        mounts::restrict(spec)?;
        if !plan.process.cwd.is_empty() {
            let _ = std::fs::create_dir_all(&plan.process.cwd);
        }
    }
    confine_and_run(plan)
}

fn confine_and_run(plan: &Plan<'_>) -> Result<(), SetupError> {
    let process = plan.process;
    credentials::limit(&process.rlimits)?;
    let filter = || match &plan.seccomp {
        Some((program, flags)) => {
            seccomp::install(program, *flags).map_err(|error| SetupError::Step("install the seccomp profile", error))
        }
        None => Ok(()),
    };
    // Without no_new_privs only a privileged process may install a filter; with it, the later the better.
    if !process.no_new_privileges {
        filter()?;
    }
    credentials::become_user(process)?;
    let cwd = if process.cwd.is_empty() { "/" } else { &process.cwd };
    rustix::process::chdir(cwd).map_err(|error| SetupError::Step("enter the working directory", error.into()))?;
    let (program, rest) = process.args.split_first().ok_or(SetupError::NoProgram)?;
    let mut command = std::process::Command::new(program);
    command.args(rest).env_clear();
    for variable in &process.env {
        if let Some((name, value)) = variable.split_once('=').filter(|(name, _)| !name.is_empty()) {
            command.env(name, value);
        }
    }
    if process.no_new_privileges {
        let set = rustix::thread::set_no_new_privs(true);
        set.map_err(|error| SetupError::Step("set no_new_privs", error.into()))?;
        filter()?;
    }
    Err(SetupError::Exec(program.clone(), command.exec()))
}

/// Opens a terminal in the container's own devpts, hands over its end, and makes it the process's.
fn terminal(
    size: Option<rustix::termios::Winsize>,
    uid: u32,
    first: bool,
    report: &Report,
) -> Result<(), SetupError> {
    use rustix::fs::{Mode, OFlags};
    use rustix::pty::OpenptFlags;
    let step = |error: rustix::io::Errno| SetupError::Step("open a terminal", error.into());
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let ours = rustix::fs::open("/dev/pts/ptmx", flags, Mode::empty()).map_err(step)?;
    rustix::pty::unlockpt(&ours).map_err(step)?;
    let peer_flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, peer_flags).map_err(step)?;
    if let Some(size) = size {
        let _ = rustix::termios::tcsetwinsize(&ours, size);
    }
    let _ = rustix::fs::fchown(&theirs, Some(rustix::fs::Uid::from_raw(uid)), None);
    if first && let Ok(name) = rustix::pty::ptsname(&ours, Vec::new()) {
        let console = Path::new("/dev/console");
        let made = std::fs::OpenOptions::new().create(true).append(true).open(console).is_ok();
        let name = OsStr::new(name.to_str().unwrap_or_default());
        if made {
            let _ = rustix::mount::mount_bind(PathBuf::from(name), console);
        }
    }
    rustix::stdio::dup2_stdin(&theirs).map_err(step)?;
    rustix::stdio::dup2_stdout(&theirs).map_err(step)?;
    rustix::stdio::dup2_stderr(&theirs).map_err(step)?;
    rustix::process::ioctl_tiocsctty(&theirs).map_err(step)?;
    report.send(REPORT_TERMINAL, b"", Some(ours.as_fd()));
    Ok(())
}

/// The child's end of the report socket.
struct Report(OwnedFd);

impl Report {
    fn send(&self, kind: u8, text: &[u8], file: Option<BorrowedFd<'_>>) {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
        }
        let _ = sendmsg(&self.0, &[IoSlice::new(&[kind]), IoSlice::new(text)], &mut ancillary, SendFlags::NOSIGNAL);
    }

    fn failed(&self, error: &SetupError) {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(error) = source {
            text.push_str(": ");
            text.push_str(&error.to_string());
            source = error.source();
        }
        text.truncate(text.floor_char_boundary(1024));
        self.send(REPORT_ERROR, text.as_bytes(), None);
    }
}

fn set_namespace(file: BorrowedFd<'_>, kind: LinkNameSpaceType) -> Result<(), SetupError> {
    rustix::thread::move_into_link_name_space(file, Some(kind))
        .map_err(|error| SetupError::Step("join a namespace of the container", error.into()))
}

fn unshare(flags: UnshareFlags) -> Result<(), SetupError> {
    // SAFETY: only the descriptor table could be pulled away from under others, and CLONE_FILES is never among the flags.
    unsafe { rustix::thread::unshare_unsafe(flags) }
        .map_err(|error| SetupError::Step("make namespaces", error.into()))
}

/// Forks the agent, which has one thread.
fn fork() -> io::Result<i32> {
    // SAFETY: this process has one thread (`server::run` is called before any other is made, and makes none), so that
    // the child's copy of every lock is free and it may do whatever its parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid),
    }
}

/// Ends a child without what the agent would do at its end.
fn leave() -> ! {
    let _ = io::stderr().flush();
    // SAFETY: ends the process; nothing of ours runs after it.
    unsafe { libc::_exit(128) }
}
