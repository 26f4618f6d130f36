//! PTX text to syntax tree. The tree borrows from the text and knows no meaning: `passes` gives it one.

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
    pub line: u32,
    pub message: String,
}
