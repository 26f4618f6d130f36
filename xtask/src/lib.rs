//! What `cargo xtask` and the laboratories in `tests/labs` share: where things lie, how other programs are run and what
//! became of them, and how Bulkhead, CUDA programs, images and packages are built.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod archive;
pub mod deb;
pub mod distribution;
pub mod images;
pub mod oci;
pub mod package;
pub mod page;
pub mod paths;
pub mod programs;
pub mod progress;
pub mod report;
pub mod sh;
pub mod stage;
pub mod toolchain;
