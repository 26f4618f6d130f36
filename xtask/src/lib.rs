//! What `cargo xtask` and the laboratories in `tests/labs` share: where things lie, how other programs are run and what
//! became of them, and how Bulkhead, CUDA programs, images and packages are built.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod deb;
pub mod images;
mod oci;
pub mod paths;
pub mod programs;
pub mod report;
pub mod sh;
pub mod stage;
pub mod toolchain;
