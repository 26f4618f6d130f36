//! The verbs for Kubernetes, as kubelet and an operator meet them: a real proxy on the software GPU, the real verbs, and
//! a kubelet of our own that speaks the same API and misbehaves on demand.

mod cluster;
#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "../common/mod.rs"]
mod common;
mod device_plugin;
mod dra;
mod events;
mod health;
mod kubelet;
mod load;
mod mig;
mod node;
mod sharing;
