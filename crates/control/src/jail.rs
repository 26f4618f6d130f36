//! The parts of the jail, by name, so that a machine which cannot give one of them says which.

use std::fmt;

/// A part that a machine may refuse. The number is its bit on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Part {
    /// Maps the worker's user to no other.
    UserNamespace = 0,
    /// Mounts of its own.
    MountNamespace,
    /// It sees no process but its own.
    PidNamespace,
    /// No network.
    NetworkNamespace,
    /// No System V or POSIX IPC of others.
    IpcNamespace,
    /// A host name of its own.
    UtsNamespace,
    /// It sees its own part of the cgroup tree.
    CgroupNamespace,
    /// A root directory with nothing in it but what the driver needs.
    Root,
    /// A `/proc` that shows the worker's own pid namespace.
    Proc,
    /// A user id that nothing else on the machine has.
    Identity,
    /// None are left.
    Capabilities,
    /// No program that it starts gains privileges.
    NoNewPrivileges,
    /// Resource limits.
    Limits,
    /// System calls that it needs, and no others.
    Seccomp,
    /// All that it was not given are closed.
    Descriptors,
    /// It cannot send its descriptors to anybody: the broker takes what there is to be taken.
    KeptDescriptors,
    /// A control group of its own, which the broker makes.
    Cgroup,
    /// Only its GPUs' device nodes can be opened.
    DeviceRules,
    /// A bounded number of processes and threads.
    ProcessLimit,
    /// Requests of NVIDIA's driver that it needs, and no others.
    DriverFilter,
}

const ALL: [Part; 20] = [
    Part::UserNamespace,
    Part::MountNamespace,
    Part::PidNamespace,
    Part::NetworkNamespace,
    Part::IpcNamespace,
    Part::UtsNamespace,
    Part::CgroupNamespace,
    Part::Root,
    Part::Proc,
    Part::Identity,
    Part::Capabilities,
    Part::NoNewPrivileges,
    Part::Limits,
    Part::Seccomp,
    Part::Descriptors,
    Part::KeptDescriptors,
    Part::Cgroup,
    Part::DeviceRules,
    Part::ProcessLimit,
    Part::DriverFilter,
];

impl Part {
    /// Parts without which this one must not even be tried: a root mounted without a mount namespace would be
    /// everybody's.
    pub fn needs(self) -> &'static [Part] {
        match self {
            Self::Root => &[Self::MountNamespace],
            Self::Proc => &[Self::MountNamespace, Self::PidNamespace, Self::Root],
            _ => &[],
        }
    }

    /// As operators read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::UserNamespace => "user namespace",
            Self::MountNamespace => "mount namespace",
            Self::PidNamespace => "pid namespace",
            Self::NetworkNamespace => "network namespace",
            Self::IpcNamespace => "ipc namespace",
            Self::UtsNamespace => "uts namespace",
            Self::CgroupNamespace => "cgroup namespace",
            Self::Root => "root of its own",
            Self::Proc => "proc of its own",
            Self::Identity => "user of its own",
            Self::Capabilities => "dropped capabilities",
            Self::NoNewPrivileges => "no_new_privs",
            Self::Limits => "resource limits",
            Self::Seccomp => "seccomp filter",
            Self::Descriptors => "closed descriptors",
            Self::KeptDescriptors => "kept descriptors",
            Self::Cgroup => "control group",
            Self::DeviceRules => "device rules",
            Self::ProcessLimit => "process limit",
            Self::DriverFilter => "driver filter",
        }
    }
}

/// A set of parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Missing(u32);

impl Missing {
    /// Nothing of the jail is there.
    pub fn all() -> Self {
        ALL.iter().fold(Self::default(), |set, part| set.with(*part))
    }

    /// As it is sent.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Bits that no part has are dropped: they come from a worker.
    pub fn from_bits(bits: u32) -> Self {
        Self(bits & Self::all().0)
    }

    /// The set and this part.
    #[must_use]
    pub fn with(self, part: Part) -> Self {
        Self(self.0 | 1 << part as u32)
    }

    /// What is missing here or there.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether this part is missing.
    pub fn contains(self, part: Part) -> bool {
        self.0 & 1 << part as u32 != 0
    }

    /// Whether the jail is complete.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// In the order of [`Part`].
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        ALL.iter().filter(move |part| self.contains(**part)).map(|part| part.name())
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.names().enumerate() {
            write!(f, "{}{name}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// What to do where the machine does not allow all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Do not start.
    Require,
    /// Say what is missing and go on.
    BestEffort,
    /// No jail at all, for looking for faults.
    Off,
}

impl Demand {
    /// As operators write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Require => "require",
            Self::BestEffort => "best-effort",
            Self::Off => "off",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_parts_are_named_in_one_line() {
        let missing = Missing::default().with(Part::Root).with(Part::UserNamespace);
        assert_eq!(missing.to_string(), "user namespace, root of its own");
        assert_eq!(Missing::from_bits(u32::MAX), Missing::all());
        assert_eq!(Missing::all().names().count(), ALL.len());
    }
}
