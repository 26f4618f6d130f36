//! What stands around a worker: the [`jail`] that it enters (namespaces, users, seccomp), the [`cgroup`] that it is
//! started in (devices, processes, memory, processor time), and the filter before NVIDIA's kernel driver ([`driver`]).
#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

pub mod cgroup;
pub mod driver;
pub mod jail;
