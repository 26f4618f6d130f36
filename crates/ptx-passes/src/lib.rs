//! Syntax tree to typed, checked instructions in a control flow graph.
//!
//! `link` resolves the names of a module and lays out its variables; `function` turns each body into basic blocks of
//! `ir::Inst`; `decode` and its tables know the instructions; `reach` finds out what a kernel can get to.
//!
//! The tree is a tenant's. What comes out of here is what `ptx-exec` relies on.
//!
//! What running kernels call (how an instruction's `code` is taken apart) is `#[inline]`: release builds have no link-time
//! optimisation across crates.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

mod arith;
pub mod asynchronous;
mod decode;
mod function;
#[expect(missing_docs, reason = "variants and fields are what PTX calls them")]
pub mod ir;
mod link;
pub mod live;
pub mod matrix;
mod memory;
mod operand;
pub mod pauses;
pub mod reach;
mod scope;
pub mod small;
mod sync;
pub mod texture;
pub mod video;

pub use link::build;

/// Why a function or module was not accepted.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum CheckError {
    /// The text breaks the rules of PTX.
    #[error("{0}")]
    Invalid(String),
    /// Correct as far as we can tell, but not something that this device does.
    #[error("{0}")]
    Unsupported(String),
}

impl CheckError {
    fn invalid<T>(message: impl Into<String>) -> Result<T, CheckError> {
        Err(CheckError::Invalid(message.into()))
    }

    fn unsupported<T>(message: impl Into<String>) -> Result<T, CheckError> {
        Err(CheckError::Unsupported(message.into()))
    }
}
