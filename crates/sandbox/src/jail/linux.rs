//! The steps of the jail, performed. The process has one thread when this runs.

use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};

use super::plan::{Namespace, Step};
use super::policy::BindKind;
use super::{Kernel, seccomp, tether};
use crate::driver::{self, Branch, GuardEnd, Seal};

const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
const NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;
/// root gains nothing by being root, and nothing of this can be changed back.
const ALL_SECUREBITS_LOCKED: libc::c_ulong = 0xef;
const MAX_DESCRIPTORS: u64 = 65_536;
/// Threads of a worker and its guard.
const MAX_PROCESSES: u64 = 4_096;

pub struct Linux {
    /// Who we are before we enter a user namespace, in which we are nobody until we are mapped.
    ids: (u32, u32),
    /// Hangs up when the guard is gone.
    guard: Option<OwnedFd>,
    /// Puts us under the guard's supervision.
    seal: Option<Seal>,
}

impl Kernel for Linux {
    fn perform(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::CloseDescriptorsExcept(keep) => close_descriptors_except(keep),
            Step::Unshare(namespace) => unshare(*namespace),
            Step::MapOwnIds => map_own_ids(self.ids),
            Step::MakeMountsPrivate => {
                let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
                Ok(rustix::mount::mount_change("/", flags)?)
            }
            Step::ForkIntoPidNamespace(id, supervised) => self.fork(*id, *supervised),
            Step::MountRoot(root) => mount_tmpfs(root, "size=4m,nr_inodes=4k,mode=0755"),
            Step::Bind { root, bind } => {
                let attributes = match bind.kind {
                    BindKind::Files => RDONLY | NOSUID | NODEV,
                    BindKind::Device => NOSUID | NOEXEC,
                };
                let inside = bind.path.strip_prefix("/").unwrap_or(&bind.path);
                match self::bind(&bind.path, &root.join(inside), attributes) {
                    Err(error) if bind.optional && error.kind() == io::ErrorKind::NotFound => Ok(()),
                    result => result,
                }
            }
            Step::BindAs { root, from, to } => bind(from, &root.join(to), RDONLY | NOSUID | NODEV | NOEXEC),
            Step::Scratch { root, at, options } => {
                let at = root.join(at);
                fs::create_dir_all(&at)?;
                mount_tmpfs(&at, options)
            }
            Step::MountProc(root) => {
                let at = root.join("proc");
                fs::create_dir_all(&at)?;
                let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
                Ok(rustix::mount::mount("proc", &at, "proc", flags, None)?)
            }
            Step::PivotRoot(root) => pivot_root(root),
            Step::SetLimits => set_limits(),
            Step::DropBoundingCapabilities => drop_bounding_capabilities(),
            Step::LockSecurebits => prctl(libc::PR_SET_SECUREBITS, ALL_SECUREBITS_LOCKED),
            Step::SetIds(id) => set_ids(*id, *id),
            Step::DropCapabilities => drop_capabilities(),
            Step::Tether => self.tether(),
            Step::ForbidDumps => Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?),
            Step::NoNewPrivileges => prctl(libc::PR_SET_NO_NEW_PRIVS, 1),
            Step::FilterDriver(branch) => driver::install_refusing(branch.clone().map_err(io::Error::other)?),
            Step::TrySupervision => match &self.seal {
                Some(seal) => seal.try_out(),
                None => Err(io::Error::other("needs a pid namespace, and a user of its own")),
            },
            Step::FilterSending => seccomp::install_against_sending(),
            Step::Filter(list) => seccomp::install(*list),
        }
    }
}

impl Default for Linux {
    fn default() -> Self {
        Self {
            ids: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            guard: None,
            seal: None,
        }
    }
}

impl Linux {
    /// The child goes on; the parent stays outside of the new pid namespace, holds nothing, can do nothing, and ends
    /// as the child ends.
    fn fork(&mut self, id: Option<u32>, supervised: Option<Branch>) -> io::Result<()> {
        let (seal, supervision) = supervised.map(driver::pair).transpose()?.unzip();
        let (child_end, guard_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        // SAFETY: the process has one thread, so the child's memory is whole.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                (self.guard, self.seal) = (Some(child_end), seal);
                Ok(())
            }
            child => {
                drop((child_end, seal));
                guard(child, &guard_end, id, supervision)
            }
        }
    }

    /// By which a worker whose jail is complete comes under supervision; none where that is not wanted.
    pub fn take_seal(&mut self) -> Option<Seal> {
        self.seal.take()
    }

    fn tether(&mut self) -> io::Result<()> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        let Some(guard) = self.guard.take() else { return Ok(()) };
        // The guard may have died before the kernel knew of our wish.
        let mut fds = [PollFd::new(&guard, PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut fds, Some(&now))? {
            0 => Ok(()),
            // Nobody is left to tell.
            _ => std::process::exit(128 + libc::SIGKILL),
        }
    }
}

/// The parent's life from here on.
fn guard(child: libc::pid_t, pipe: &OwnedFd, id: Option<u32>, supervision: Option<GuardEnd>) -> ! {
    // What fails here leaves a process that waits, and does nothing else, with more rights than it needs.
    let keep = supervision.as_ref().map(AsRawFd::as_raw_fd).into_iter().chain([pipe.as_raw_fd()]);
    let _ = close_descriptors_except(&keep.collect::<Vec<_>>());
    let _ = drop_bounding_capabilities();
    let _ = id.map(|id| set_ids(id, id));
    let _ = drop_capabilities();
    let _ = prctl(libc::PR_SET_NO_NEW_PRIVS, 1);
    if let Some(end) = supervision {
        let branch = end.branch();
        // A driver counts the rights of who calls it: one with any left supervises nobody, and the worker ends with it.
        let supervised =
            has_no_rights().and_then(|()| driver::supervise(end, child, || seccomp::confine_supervisor(branch)));
        if let Err(error) = supervised {
            let _ = writeln!(io::stderr(), "supervisor: {error}");
            // SAFETY: ends the process; the child is killed with it.
            unsafe { libc::_exit(128 + libc::SIGKILL) }
        }
    }
    let mut status = 0;
    loop {
        // SAFETY: status is a local int.
        let result = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if result == child || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            break;
        }
    }
    let code = if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) };
    // SAFETY: ends the process; what the child has to clean up it has cleaned up.
    unsafe { libc::_exit(code) }
}

/// Whether none of the capabilities is left.
fn has_no_rights() -> io::Result<()> {
    let sets = rustix::thread::capabilities(None)?;
    match sets.effective.is_empty() && sets.permitted.is_empty() {
        true => Ok(()),
        false => Err(io::Error::other("capabilities are left")),
    }
}

fn unshare(namespace: Namespace) -> io::Result<()> {
    let flag = match namespace {
        Namespace::User => libc::CLONE_NEWUSER,
        Namespace::Mount => libc::CLONE_NEWNS,
        Namespace::Pid => libc::CLONE_NEWPID,
        Namespace::Network => libc::CLONE_NEWNET,
        Namespace::Ipc => libc::CLONE_NEWIPC,
        Namespace::Uts => libc::CLONE_NEWUTS,
        Namespace::Cgroup => libc::CLONE_NEWCGROUP,
    };
    // SAFETY: none of these flags touches memory or descriptors of this process.
    check(unsafe { libc::unshare(flag) })
}

fn map_own_ids((uid, gid): (u32, u32)) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))
}

fn mount_tmpfs(at: &Path, options: &str) -> io::Result<()> {
    let options = CString::new(options)?;
    Ok(rustix::mount::mount("tmpfs", at, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())?)
}

fn bind(from: &Path, to: &Path, attributes: u64) -> io::Result<()> {
    if fs::metadata(from)?.is_dir() {
        fs::create_dir_all(to)?;
    } else {
        fs::create_dir_all(to.parent().unwrap_or(to))?;
        fs::File::create(to)?;
    }
    rustix::mount::mount_bind_recursive(from, to)?;
    set_attributes(to, attributes, libc::AT_RECURSIVE as libc::c_uint)
}

/// Adds attributes to a mount, and keeps those that it has: an unprivileged user may not take any away.
fn set_attributes(at: &Path, attributes: u64, flags: libc::c_uint) -> io::Result<()> {
    let path = CString::new(at.as_os_str().as_bytes())?;
    let change = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: path and change live through the call, and the size is that of the struct.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const change,
            size_of::<libc::mount_attr>(),
        )
    };
    check(result)
}

/// Both roots are stacked at "." for a moment; the old one is then detached, and nothing leads to it any more.
fn pivot_root(root: &Path) -> io::Result<()> {
    rustix::process::chdir(root)?;
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    set_attributes(Path::new("/"), RDONLY | NOSUID | NODEV, 0)
}

fn set_limits() -> io::Result<()> {
    let limit = |resource, wanted: u64| -> io::Result<()> {
        let hard = rustix::process::getrlimit(resource).maximum;
        let value = Some(hard.map_or(wanted, |hard| hard.min(wanted)));
        Ok(rustix::process::setrlimit(resource, Rlimit { current: value, maximum: value })?)
    };
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, MAX_DESCRIPTORS)?;
    // Counted for the user, so it can only be set where the worker has one of its own; root is about to get it.
    if rustix::process::geteuid().is_root() { limit(Resource::Nproc, MAX_PROCESSES) } else { Ok(()) }
}

fn drop_bounding_capabilities() -> io::Result<()> {
    for capability in 0..64 {
        match prctl(libc::PR_CAPBSET_DROP, capability) {
            // One more than the kernel knows.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            result => result?,
        }
    }
    Ok(())
}

fn set_ids(user: u32, group: u32) -> io::Result<()> {
    // SAFETY: no groups are read from the null pointer, since there are none; the process has one thread.
    check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: plain numbers.
    check(unsafe { libc::setresgid(group, group, group) })?;
    // SAFETY: plain numbers.
    check(unsafe { libc::setresuid(user, user, user) })
}

/// Becomes an ordinary user for good, with one group and no way back. For a process of ours that is not jailed.
pub fn become_user(user: u32, group: u32) -> io::Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    tether::stay_tied(|| {
        set_ids(user, group)?;
        drop_capabilities()
    })
}

fn drop_capabilities() -> io::Result<()> {
    set_capabilities(0)
}

/// Gives up all capabilities but these, for good. For a process of ours that is not jailed.
pub fn keep_capabilities(keep: &[u32]) -> io::Result<()> {
    let keep = keep.iter().fold(0u64, |mask, capability| mask | 1 << capability);
    for capability in 0..64 {
        if keep >> capability & 1 == 1 {
            continue;
        }
        match prctl(libc::PR_CAPBSET_DROP, capability) {
            // One more than the kernel knows; or one who is not root, and has none.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) => break,
            result => result?,
        }
    }
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    let has = rustix::thread::capabilities(None)?.permitted.bits();
    tether::stay_tied(|| set_capabilities(keep & has))
}

fn set_capabilities(keep: u64) -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0 as libc::c_ulong, 0, 0)
    })?;
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    let (low, high) = ((keep & 0xffff_ffff) as u32, (keep >> 32) as u32);
    // Effective, permitted, inheritable.
    let sets = [[low, low, 0], [high, high, 0]];
    // SAFETY: version 3 of the call takes this header and two triples of sets.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) })
}

fn close_descriptors_except(keep: &[i32]) -> io::Result<()> {
    let close = |first: i32, last: libc::c_uint| -> io::Result<()> {
        match libc::c_uint::try_from(first) {
            // SAFETY: nothing in this process uses a descriptor in this range: it is called before anything is opened
            // that stays, and `keep` is excluded. Not by the C library's function, which older ones do not have.
            Ok(first) if first <= last => check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }),
            _ => Ok(()),
        }
    };
    let mut keep = keep.to_vec();
    keep.sort_unstable();
    let mut from = 3;
    for stays in keep {
        close(from, libc::c_uint::try_from(stays - 1).unwrap_or(2))?;
        from = from.max(stays + 1);
    }
    close(from, libc::c_uint::MAX)
}

fn prctl(option: libc::c_int, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: used with options that take a number, not a pointer.
    check(unsafe { libc::prctl(option, value, 0 as libc::c_ulong, 0 as libc::c_ulong, 0) })
}

fn check(result: impl Into<i64>) -> io::Result<()> {
    if result.into() == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
