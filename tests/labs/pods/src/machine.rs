//! A pod's machine made of namespaces of the host: mounts, processes, hostname, IPC, and the network that CNI has made.
//!
//! The shim runs itself again as the machine's outer process, which makes the namespaces and forks the agent as their first
//! process. Each dies with its parent, so that a killed shim leaves nothing behind.

use agent::oci::Mount;
use agent::protocol::{Root, RootMount};
use control::ZoneName;
use parking_lot::Mutex;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use shim::{Booted, Machine, MachineError, Pod};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

/// Where the agent keeps root file systems and volumes, in memory of the machine's.
const HOME: &str = "/run/bulkhead-agent";
/// Set where tests need directories of the host, as critest does.
const HOST_PATHS: &str = "BULKHEAD_LAB_HOST_PATHS";

pub struct Namespaces {
    child: Mutex<Option<Child>>,
}

impl Machine for Namespaces {
    const RUNTIME: &'static str = "io.containerd.bulkhead-namespaces.v2";

    fn new() -> Self {
        Self { child: Mutex::new(None) }
    }

    fn boot(&self, pod: &Pod) -> Result<Booted, MachineError> {
        let (ours, theirs) = UnixStream::pair().map_err(MachineError::Start)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("machine").args(pod.network.iter()).stdin(Stdio::from(OwnedFd::from(theirs)));
        // A process dies with the thread that made it, so that one must stay as long as this process does.
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = sender.send(command.spawn());
            drop(command);
            loop {
                std::thread::park();
            }
        });
        let child = receiver.recv().map_err(|error| MachineError::Start(io::Error::other(error)))?;
        let child = child.map_err(MachineError::Start)?;
        let pid = child.id();
        *self.child.lock() = Some(child);
        let from = ours.try_clone().map_err(MachineError::Start)?;
        // It is in CNI's namespace itself.
        Ok(Booted { from: Box::new(from), to: Box::new(ours), pid, network: None })
    }

    fn attach_root(&self, _: &str, mounts: &[RootMount]) -> Result<Root, MachineError> {
        Ok(Root::Mounts(mounts.to_vec()))
    }

    fn detach_root(&self, _: &str) {}

    fn attach_zone(&self, _: &ZoneName, mounts: Vec<Mount>) -> Result<Vec<Mount>, MachineError> {
        // The socket of a zone works in every namespace.
        Ok(mounts)
    }

    fn shows_host_paths(&self) -> bool {
        std::env::var_os(HOST_PATHS).is_some()
    }

    fn kill(&self) {
        if let Some(mut child) = self.child.lock().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn clean_up(_: &str, _: &str) {
        // All of it has died with the shim.
    }
}

/// The outer process: makes the namespaces, and waits for the agent in them. The link is standard input.
pub fn become_machine(network: Option<OsString>) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut flags = UnshareFlags::NEWNS | UnshareFlags::NEWPID | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
    match network.map(PathBuf::from) {
        Some(path) => {
            let namespace = File::open(path)?;
            rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        None => flags |= UnshareFlags::NEWNET,
    }
    // SAFETY: only the descriptor table could be pulled away from under others, and CLONE_FILES is not among the flags.
    unsafe { rustix::thread::unshare_unsafe(flags) }?;
    // SAFETY: this process has one thread, so that the child may do whatever its parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => agent(),
        pid => {
            let pid = rustix::process::Pid::from_raw(pid);
            rustix::process::waitpid(pid, rustix::process::WaitOptions::empty())?;
            Ok(())
        }
    }
}

/// The first process in the machine.
fn agent() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let link = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?);
    let null = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    link.set_nonblocking(true)?;
    // What is mounted on the host later is seen here too, for tests that mount the host's directories.
    let downstream = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", downstream)?;
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("proc", "/proc", "proc", plain, c"")?;
    std::fs::create_dir_all(HOME)?;
    rustix::mount::mount("agent", HOME, "tmpfs", MountFlags::NOSUID, c"mode=755")?;
    loopback();
    agent::server::run(link, Path::new(HOME).to_owned())
}

/// Brings the loopback device up; a network of CNI's has it up already.
fn loopback() {
    let _ = Command::new("ip").args(["link", "set", "lo", "up"]).status();
}
