//! PTX text to syntax tree. The tree borrows from the text and knows no meaning: `ptx-passes` gives it one.
//!
//! The text is a tenant's. Parsing it takes time and memory in proportion to its length, and nesting is bounded.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

pub mod ast;
mod join;
mod lexer;
pub mod library;
mod parser;

pub use join::join;
pub use parser::parse;

/// A text that is not PTX.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line}: {message}")]
pub struct SyntaxError {
    /// The line of the text, from 1.
    pub line: u32,
    /// What is wrong there.
    pub message: String,
}
