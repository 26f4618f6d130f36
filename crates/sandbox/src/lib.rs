//! What stands around a worker: the [`jail`] that it enters (namespaces, users, seccomp) and the [`cgroup`] that it is
//! started in (devices, processes, memory, processor time).
#![warn(unreachable_pub)]

pub mod cgroup;
pub mod jail;
