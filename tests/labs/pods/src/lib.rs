//! A machine of namespaces, so that shim, agent and containerd can be tried in minutes and without a hypervisor.
//!
//! It is for tests and never installed: it keeps no tenant in.

pub mod machine;
