//! Where a line of PTX comes from.

use std::fmt;

/// A line of a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub file: String,
    pub line: u32,
    /// File and line of the outermost call, where the line is in a function that was inlined.
    pub caller: Option<(String, u32)>,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        match &self.caller {
            Some((file, line)) => write!(f, ", called from {file}:{line}"),
            None => Ok(()),
        }
    }
}
