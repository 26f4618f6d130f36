//! The agent in a pod's machine, and the link between it and the shim on the host.
//!
//! A machine is one pod: a Xen domain, or in tests a set of namespaces. Its first process is the agent ([`server`]). It
//! runs the pod's containers as the OCI runtime specification has them ([`container`]), carries what they read and print,
//! and keeps the pod's files ([`volumes`]). What it and the shim say to each other is in [`protocol`]; the shim takes
//! every message of the agent's for an attack, because a tenant that has taken over its machine is the agent.

pub mod container;
mod network;
pub mod oci;
pub mod protocol;
pub mod server;
pub mod volumes;
