//! A CUDA driver that runs PTX on the CPU.

pub mod driver;
pub mod exec;
pub mod image;
pub mod passes;
pub mod ptx;
pub mod window;
