//! A CUDA driver that runs PTX on the CPU.

pub mod exec;
pub mod passes;
pub mod ptx;
pub mod window;
