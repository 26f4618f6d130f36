//! The verbs for Kubernetes, as kubelet and an operator meet them: a real proxy on the software GPU, the real verbs, and
//! a kubelet of our own that speaks the same API and misbehaves on demand.

mod cluster;
mod device_plugin;
mod dra;
mod health;
mod kubelet;
mod load;
mod mig;
mod node;
mod sharing;
