//! One test body per behaviour, run on every backend and transport; and Bulkhead put through what users and attackers do
//! to it: processes killed, messages forged.
//!
//! * `harness`: a proxy, zones and clients in a directory of their own, and the proof that nothing is left of them.
//! * `suite`: what a CUDA driver does, as NVIDIA documents it. `runner` runs it, each test in its own process.
//! * `kernels`: what kernels compute, part of the suite where nvcc or its output is at hand.
//! * `client`: an honest program that does what its standard input says.
//! * `sharer`: one that shares memory and events with others.
//! * `truth_table`: those, in every combination of namespaces and privilege.
//! * `attack`: a hostile one, that speaks the protocol itself.
//! * `soak`: all kinds of processes killed at random, under load.
#![warn(unreachable_pub)]

pub mod attack;
pub mod backend;
mod calls;
pub mod client;
pub mod harness;
pub mod kernels;
pub mod runner;
pub mod sharer;
pub mod soak;
pub mod suite;
pub mod truth_table;
