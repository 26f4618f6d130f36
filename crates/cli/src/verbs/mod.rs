//! One file per command.

pub mod bench;
pub mod bench_rendezvous;
pub mod cdi;
pub mod completions;
pub mod device_plugin;
pub mod doctor;
pub mod dra;
pub mod grants;
pub mod image;
pub mod install;
pub mod ipc;
pub mod man;
pub mod meter;
pub mod mover;
pub mod proxy;
pub mod run;
pub mod selftest;
pub mod status;
pub mod top;
pub mod topology;
pub mod worker;
pub mod xen;
pub mod xen_backend;
pub mod zones;
