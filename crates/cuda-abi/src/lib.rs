//! The CUDA driver API as data: one table of all functions, the C types, the result codes, the address plan.
#![warn(missing_docs, unreachable_pub)]

pub mod border;
pub mod chunks;
pub mod constants;
pub mod coverage;
pub mod driver;
pub mod env_vars;
pub mod error;
pub mod image;
pub mod plan;
pub mod pool;
pub mod space;
pub mod table;
pub mod types;
pub mod wire;

/// The driver version whose API the table describes; a node's older driver lowers what clients see.
pub const CUDA_VERSION: u32 = 13000;
