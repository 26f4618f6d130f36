//! One file per command.

pub(crate) mod bench;
pub(crate) mod bench_rendezvous;
#[cfg(feature = "kubernetes")]
pub(crate) mod cdi;
pub(crate) mod completions;
#[cfg(feature = "kubernetes")]
pub(crate) mod device_plugin;
pub(crate) mod doctor;
#[cfg(feature = "kubernetes")]
pub(crate) mod dra;
pub(crate) mod driver_calls;
pub(crate) mod grants;
#[cfg(feature = "xen")]
pub(crate) mod image;
#[cfg(feature = "kubernetes")]
pub(crate) mod install;
pub(crate) mod ipc;
pub(crate) mod man;
pub(crate) mod meter;
pub(crate) mod mover;
pub(crate) mod preemption_test;
pub(crate) mod preemptor;
pub(crate) mod run;
pub(crate) mod selftest;
pub(crate) mod status;
mod suspend;
pub(crate) mod top;
pub(crate) mod topology;
pub(crate) mod worker;
#[cfg(feature = "xen")]
pub(crate) mod xen;
pub(crate) mod xen_backend;
pub(crate) mod zones;
