//! The steps of the jail and their order.

use std::path::PathBuf;

use super::policy::Bind;
use super::seccomp::Syscalls;
use super::{DriverFilter, Part, REJOIN_INSIDE, Request};
use crate::driver::{Branch, UnknownBranch};

/// One thing to ask of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    CloseDescriptorsExcept(Vec<i32>),
    Unshare(Namespace),
    /// In a new user namespace: we stay who we are, and nobody else is there.
    MapOwnIds,
    /// Mounts made from now on stay ours.
    MakeMountsPrivate,
    /// The child goes on as first process of its pid namespace; the parent becomes its guard, with the same user: its
    /// death must be allowed to kill the child.
    /// With a branch of NVIDIA's driver, the guard is prepared to supervise what the child asks of it.
    ForkIntoPidNamespace(Option<u32>, Option<Branch>),
    MountRoot(PathBuf),
    Bind {
        root: PathBuf,
        bind: Bind,
    },
    BindAs {
        root: PathBuf,
        from: PathBuf,
        to: &'static str,
    },
    Scratch {
        root: PathBuf,
        at: &'static str,
        options: &'static str,
    },
    MountProc(PathBuf),
    PivotRoot(PathBuf),
    SetLimits,
    DropBoundingCapabilities,
    LockSecurebits,
    SetIds(u32),
    DropCapabilities,
    /// Death of the guard is ours. After the change of user, which undoes it.
    Tether,
    ForbidDumps,
    NoNewPrivileges,
    /// No request that the driver library of this branch does not make; of a driver that nobody has read, none is known.
    FilterDriver(Result<Branch, UnknownBranch>),
    /// The guard must be able to supervise us; it begins when we are told to.
    TrySupervision,
    /// No call by which a descriptor could be sent to another process.
    FilterSending,
    Filter(Syscalls),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    User,
    Mount,
    Pid,
    Network,
    Ipc,
    Uts,
    Cgroup,
}

impl Step {
    /// Steps after whose failure the process cannot do its work: in a pid namespace that was made but not entered,
    /// there can be no threads.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::ForkIntoPidNamespace(..) | Self::Tether)
    }
}

/// The steps for a worker, in order: namespaces while we may make them, the root while we see the host, then the
/// privileges that were needed for it, and last the filter that forbids all of the above.
pub fn plan(request: &Request) -> Vec<(Part, Step)> {
    use Step::*;
    let policy = &request.policy;
    let root = &request.root;
    let mut steps = vec![(Part::Descriptors, CloseDescriptorsExcept(request.keep.clone()))];
    if request.uid.is_none() {
        steps.extend([(Part::UserNamespace, Unshare(Namespace::User)), (Part::UserNamespace, MapOwnIds)]);
    }
    steps.extend([
        (Part::MountNamespace, Unshare(Namespace::Mount)),
        (Part::MountNamespace, MakeMountsPrivate),
        (Part::NetworkNamespace, Unshare(Namespace::Network)),
        (Part::IpcNamespace, Unshare(Namespace::Ipc)),
        (Part::UtsNamespace, Unshare(Namespace::Uts)),
        (Part::CgroupNamespace, Unshare(Namespace::Cgroup)),
    ]);
    let pid = !request.without_pid_namespace;
    let filter = if policy.needs_driver() { request.driver_filter } else { DriverFilter::Off };
    let branch = &request.branch;
    // The guard looks into the worker, as anybody of its user could: it must have one of its own.
    let supervised =
        branch.as_ref().ok().filter(|_| filter == DriverFilter::Supervise && request.uid.is_some()).copied();
    if pid {
        steps.push((Part::PidNamespace, Unshare(Namespace::Pid)));
        steps.push((Part::PidNamespace, ForkIntoPidNamespace(request.uid, supervised)));
    }
    steps.push((Part::Root, MountRoot(root.clone())));
    steps.extend(policy.binds().into_iter().map(|bind| (Part::Root, Bind { root: root.clone(), bind })));
    if let Some(from) = request.rejoin.clone() {
        let to = REJOIN_INSIDE.trim_start_matches('/');
        steps.push((Part::Root, BindAs { root: root.clone(), from, to }));
    }
    for (at, options) in policy.scratch() {
        steps.push((Part::Root, Scratch { root: root.clone(), at, options }));
    }
    if policy.needs_proc() {
        if pid {
            steps.push((Part::Proc, MountProc(root.clone())));
        } else {
            steps.push((Part::Root, BindAs { root: root.clone(), from: "/proc".into(), to: "proc" }));
        }
    }
    steps.extend([
        (Part::Root, PivotRoot(root.clone())),
        (Part::Limits, SetLimits),
        (Part::Capabilities, DropBoundingCapabilities),
        (Part::Capabilities, LockSecurebits),
    ]);
    steps.extend(request.uid.map(|uid| (Part::Identity, SetIds(uid))));
    steps.push((Part::Capabilities, DropCapabilities));
    if pid {
        steps.push((Part::PidNamespace, Tether));
    }
    steps.extend([(Part::NoNewPrivileges, ForbidDumps), (Part::NoNewPrivileges, NoNewPrivileges)]);
    if filter != DriverFilter::Off {
        steps.push((Part::DriverFilter, FilterDriver(branch.clone())));
    }
    if filter == DriverFilter::Supervise {
        steps.push((Part::DriverFilter, TrySupervision));
    }
    if request.names_descriptors {
        steps.push((Part::KeptDescriptors, FilterSending));
    }
    // Last: it may not allow another filter.
    steps.push((Part::Seccomp, Filter(policy.syscalls())));
    steps
}
