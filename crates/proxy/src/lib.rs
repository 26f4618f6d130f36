//! What runs on the host: the broker, which is the only privileged part, and the jailed workers, which hold the GPU
//! contexts of the tenants' processes.

pub mod atomic_file;
pub mod backend;
pub mod broker;
pub mod cage;
pub mod checkpoint;
mod closing;
pub mod config;
pub mod control;
pub mod elf;
pub mod gate;
pub mod histogram;
pub mod http;
pub mod jail;
pub mod kernel_module;
pub mod meter;
pub mod mig;
pub mod packet;
mod region;
pub mod size;
pub mod statistics;
pub mod survey;
mod throttle;
pub mod turn_page;
pub mod worker;

pub use cuda_abi::env_vars;
