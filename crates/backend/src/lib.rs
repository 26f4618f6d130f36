//! The CUDA drivers that a process of ours can load, NVIDIA's or the software GPU, and what they and NVML tell.
//!
//! The broker never loads any of this: each user is a process of its own, so that a driver that hangs or crashes takes
//! nobody along.
#![warn(unreachable_pub)]

pub mod calls;
pub mod checkpoint;
mod load;
pub mod meter;
pub mod recorder;
pub mod selftest;
mod soft_page;
pub mod spin;
pub mod survey;

pub use load::{LoadError, VISIBLE, load, load_library, show};
pub use soft_page::soft_page;
