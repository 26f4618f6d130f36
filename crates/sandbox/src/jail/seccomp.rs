//! Which system calls a worker may make. Lists, each with the reason for what happens to a call on it.
//!
//! Several filters are installed, and the sternest answer wins:
//! * calls that no library makes and that only serve to break out end the process;
//! * calls that a library may try, and do without, get `EPERM`;
//! * for the software backend, whose calls we know, all others get `EPERM` as well: a call that was forgotten in the
//!   list is then an error that can be read in a log, not a dead tenant.

use std::collections::BTreeMap;
use std::io;

use crate::driver::{Branch, LISTENER_REQUESTS, requests};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};

/// The lists, by who they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syscalls {
    Soft,
    Nvidia,
}

/// Ways out of the jail, into the kernel, or into other processes. Calling one is an attack.
const KILL: &[libc::c_long] = &[
    // The file tree.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    // Namespaces.
    libc::SYS_setns,
    libc::SYS_unshare,
    // The kernel itself.
    libc::SYS_bpf,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    // Keys are not namespaced.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Other processes.
    libc::SYS_ptrace,
];

/// What a driver library might try on its way, and does without.
const REFUSE: &[libc::c_long] = &[
    // NVIDIA's library starts nvidia-modprobe when a device node is missing; ours are there or not meant to be.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Much attack surface for little speed.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_name_to_handle_at,
    libc::SYS_personality,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
];

/// The calls by which a descriptor gets into another process. Who has fallen would else give the GPU's to its tenant.
const SENDING: &[libc::c_long] = &[
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    // Which sends messages as well.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];
/// Kinds of requests that do so to a descriptor which the other process has lent: a listener of its own filter takes
/// files of the process that answers it, and binder passes them on.
const SENDING_REQUESTS: [u8; 2] = [b'!', b'b'];

/// All that a worker needs which computes on the CPU.
const SOFT: &[libc::c_long] = &[
    // Its descriptors: rings, sockets, memfds, doorbells.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_lseek,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_memfd_create,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_connect,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // Memory, executable memory of the code generator included.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_brk,
    libc::SYS_membarrier,
    // Threads; `clone` is allowed below for threads only, and `clone3` is answered by a filter of its own.
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_gettid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Signals, to itself: there is nobody else in its pid namespace.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_kill,
    libc::SYS_restart_syscall,
    // Time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_times,
    // What it can learn about itself.
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_getcpu,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_prlimit64,
    // The watched end of a client.
    libc::SYS_pidfd_open,
    libc::SYS_waitid,
];

/// All that the preemptor needs: it waits for requests and for the ends of processes, and makes one kind of driver call.
const PREEMPTOR: &[libc::c_long] = &[
    // The broker's socket, doorbells of its threads, the log.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    // The page of a software GPU: its size and seals.
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fcntl,
    // Memory and threads; `clone` is allowed below for threads only.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_tgkill,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
];

/// All that a supervisor needs: it learns of calls, reads and writes its worker's memory, duplicates its files, and makes its
/// calls.
const SUPERVISOR: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_ppoll,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    // What kind of file it is.
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    // Whose thread has called: sends no signal.
    libc::SYS_tgkill,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_wait4,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
];

#[cfg(target_arch = "x86_64")]
const SOFT_OLD: &[libc::c_long] = &[
    // Older forms that C libraries still use on x86.
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_readlink,
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_time,
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const SOFT_OLD: &[libc::c_long] = &[];

#[cfg(target_arch = "x86_64")]
const KILL_OLD: &[libc::c_long] =
    &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_kexec_file_load, libc::SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const KILL_OLD: &[libc::c_long] = &[];

/// New namespaces by way of `clone`; a user namespace would open much of the kernel to us again.
const NAMESPACE_FLAGS: [libc::c_int; 7] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// A worker ends with its guard. One that has fallen would else outlive it, and all that the broker does to end it.
const UNTIE: u64 = libc::PR_SET_PDEATHSIG as u64;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Installs the filters on this thread; the process must have no other.
pub(super) fn install(list: Syscalls) -> io::Result<()> {
    for program in programs(list).map_err(io::Error::other)? {
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Installs the filters that keep descriptors inside, on this thread.
pub(super) fn install_against_sending() -> io::Result<()> {
    for program in [no_second_abi(), against_sending().map_err(io::Error::other)?] {
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Leaves this process nothing but waiting, and one driver request. It must have no other thread.
pub fn confine_preemptor(request: u32) -> io::Result<()> {
    for program in preemptor(request).map_err(io::Error::other)? {
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Leaves a supervisor its work, and nothing else.
pub(crate) fn confine_supervisor(branch: Branch) -> io::Result<()> {
    let mut rules = always(SUPERVISOR);
    let calls = requests::supervised(branch).into_iter().map(u64::from);
    let requests = LISTENER_REQUESTS.into_iter().chain(calls).map(|request| when(1, SeccompCmpOp::Eq, request));
    rules.insert(libc::SYS_ioctl, requests.collect::<Result<_, _>>().map_err(io::Error::other)?);
    #[cfg(target_arch = "x86_64")]
    rules.extend(always(&[libc::SYS_poll]));
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    for program in [no_second_abi(), filter(rules, refused, SeccompAction::Allow).map_err(io::Error::other)?] {
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

fn preemptor(request: u32) -> Result<[BpfProgram; 3], seccompiler::BackendError> {
    let errno = |errno: libc::c_int| SeccompAction::Errno(errno.unsigned_abs());
    let mut rules = always(PREEMPTOR);
    let thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
    rules.insert(libc::SYS_clone, vec![when(0, SeccompCmpOp::MaskedEq(thread), thread)?]);
    rules.insert(libc::SYS_ioctl, vec![when(1, SeccompCmpOp::Eq, request.into())?]);
    // Names of threads.
    rules.insert(libc::SYS_prctl, vec![when(0, SeccompCmpOp::Eq, libc::PR_SET_NAME as u64)?]);
    #[cfg(target_arch = "x86_64")]
    rules.extend(always(&[libc::SYS_poll]));
    rules.insert(libc::SYS_clone3, Vec::new());
    let clone3 = filter(always(&[libc::SYS_clone3]), SeccompAction::Allow, errno(libc::ENOSYS))?;
    Ok([no_second_abi(), clone3, filter(rules, errno(libc::EPERM), SeccompAction::Allow)?])
}

fn against_sending() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules = always(SENDING);
    // Of a request the kernel looks at kind and number alone, whatever size and direction it says.
    let requests = SENDING_REQUESTS.map(|kind| when(1, SeccompCmpOp::MaskedEq(0xff00), u64::from(kind) << 8));
    rules.insert(libc::SYS_ioctl, requests.into_iter().collect::<Result<_, _>>()?);
    filter(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM.unsigned_abs()))
}

fn programs(list: Syscalls) -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let errno = |errno: libc::c_int| SeccompAction::Errno(errno.unsigned_abs());
    let refuse = match list {
        Syscalls::Soft => filter(allowed_soft()?, errno(libc::EPERM), SeccompAction::Allow)?,
        Syscalls::Nvidia => filter(refused_nvidia()?, SeccompAction::Allow, errno(libc::EPERM))?,
    };
    let mut kill = always(KILL.iter().chain(KILL_OLD));
    if list == Syscalls::Soft {
        kill.extend(always(&[libc::SYS_execve, libc::SYS_execveat]));
    }
    let kill = filter(kill, SeccompAction::Allow, SeccompAction::KillProcess)?;
    // The flags of clone3 are in memory, where a filter cannot see them. C libraries take ENOSYS as a reason to use
    // clone.
    let clone3 = filter(always(&[libc::SYS_clone3]), SeccompAction::Allow, errno(libc::ENOSYS))?;
    // The list of what is allowed comes last: it does not allow another filter.
    Ok(vec![no_second_abi(), kill, clone3, refuse])
}

fn allowed_soft() -> Result<Rules, seccompiler::BackendError> {
    let mut rules = always(SOFT.iter().chain(SOFT_OLD));
    let thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
    rules.insert(libc::SYS_clone, vec![when(0, SeccompCmpOp::MaskedEq(thread), thread)?]);
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        rules.insert(call, vec![when(0, SeccompCmpOp::Eq, libc::AF_UNIX as u64)?]);
    }
    // Names of threads and mappings; nothing that it gives back can be taken again, for no_new_privs is set.
    rules.insert(libc::SYS_prctl, vec![when(0, SeccompCmpOp::Ne, UNTIE)?]);
    // Ringing the bell of a client that is in a guest; the descriptor is good for that client's domain alone.
    rules.insert(libc::SYS_ioctl, vec![when(1, SeccompCmpOp::Eq, xen::sys::evtchn::NOTIFY)?]);
    Ok(rules)
}

fn refused_nvidia() -> Result<Rules, seccompiler::BackendError> {
    let mut rules = always(REFUSE);
    let flags = NAMESPACE_FLAGS.iter().map(|flag| {
        let flag = u64::from(flag.unsigned_abs());
        when(0, SeccompCmpOp::MaskedEq(flag), flag)
    });
    rules.insert(libc::SYS_clone, flags.collect::<Result<_, _>>()?);
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        rules.insert(call, vec![when(0, SeccompCmpOp::Ne, libc::AF_UNIX as u64)?]);
    }
    rules.insert(libc::SYS_prctl, vec![when(0, SeccompCmpOp::Eq, UNTIE)?]);
    // A descriptor of /dev/xen/gntdev could choose pages of any domain; a worker maps what was chosen for it. The driver's
    // own requests are of other kinds.
    let kind = u64::from(xen::sys::gntdev::KIND) << 8;
    let gntdev = when(1, SeccompCmpOp::MaskedEq(0xff00), kind)?;
    rules.insert(libc::SYS_ioctl, vec![gntdev, terminals()?]);
    Ok(rules)
}

/// Requests to terminals, of which a client may have lent one: input could be put into it, or its sessions changed. Of
/// the same kind are a few requests to any descriptor, and the question whether it is a terminal.
fn terminals() -> Result<SeccompRule, seccompiler::BackendError> {
    const KIND: u64 = 0x5400;
    let harmless = [libc::FIONBIO, libc::FIONREAD, libc::FIOCLEX, libc::FIONCLEX, libc::TCGETS];
    let condition = |operator, value| SeccompCondition::new(1, SeccompCmpArgLen::Dword, operator, value);
    let kind = condition(SeccompCmpOp::MaskedEq(0xff00), KIND);
    let others = harmless.into_iter().map(|request| condition(SeccompCmpOp::Ne, request));
    SeccompRule::new([kind].into_iter().chain(others).collect::<Result<_, _>>()?)
}

fn always<'a>(calls: impl IntoIterator<Item = &'a libc::c_long>) -> Rules {
    calls.into_iter().map(|call| (*call, Vec::new())).collect()
}

fn when(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?])
}

fn filter(
    rules: Rules,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    SeccompFilter::new(rules, otherwise, matched, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// x86 has a second set of numbers (x32) for the same calls, which the lists above would not see.
fn no_second_abi() -> BpfProgram {
    const X32_BIT: u32 = 0x4000_0000;
    #[expect(clippy::cast_possible_truncation, reason = "opcodes have 16 bits")]
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| sock_filter { code: code as u16, jt, jf, k };
    vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32_BIT),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_compile_and_do_not_contradict_each_other() {
        assert_eq!(programs(Syscalls::Soft).unwrap().len(), 4);
        assert_eq!(programs(Syscalls::Nvidia).unwrap().len(), 4);
        assert!(preemptor(7).is_ok());
        assert!(PREEMPTOR.iter().all(|call| !KILL.contains(call) && !REFUSE.contains(call)));
        assert!(SOFT.iter().all(|call| !KILL.contains(call) && !REFUSE.contains(call)));
    }
}
