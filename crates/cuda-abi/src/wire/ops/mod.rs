//! What every operation asks and answers, a file for each family.
//!
//! `libcuda` fills in a request and sends it (`crates/libcuda/src/operation.rs`); the worker's `ops`, which has the same
//! families, gets it decoded and answers with the reply.

pub mod capture;
pub mod context;
pub mod copy;
pub mod graph;
pub mod ipc;
pub mod launch;
pub mod memory;
pub mod module;
pub mod texture;
pub mod vmm;

pub use capture::*;
pub use context::*;
pub use copy::*;
pub use graph::*;
pub use ipc::*;
pub use launch::*;
pub use memory::*;
pub use module::*;
pub use texture::*;
pub use vmm::*;

use super::definition::message;

message! {
    /// What the GPU is to write when it is through: the number of a completion word, and its value.
    Completion {
        word: u64,
        value: u64,
    }
}
