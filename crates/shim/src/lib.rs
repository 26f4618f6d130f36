//! The containerd shim of pods that have a machine of their own.
//!
//! containerd starts one shim for each pod (containers are grouped by their sandbox). The shim boots a [`Machine`] for it,
//! and passes on what containerd asks for to the agent in the machine ([`link`]); it runs no container itself. What the
//! specification of a container asks of the host is refused by name ([`policy`]) or brought into the machine
//! ([`volumes`]).
//!
//! Nothing that the machine says is believed: see [`agent::protocol`].
#![forbid(unsafe_code)]

mod link;
pub mod machine;
mod policy;
mod service;
mod stats;
mod stdio;
mod volumes;

pub use machine::{Booted, Machine, MachineError, Pod};
pub use service::serve;
