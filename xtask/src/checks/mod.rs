//! Rules about the repository itself, which no compiler checks.

pub mod cargo_deny;
pub mod documents;
pub mod metadata;
pub mod rooms;
pub mod rust_version;
pub mod unsafe_code;
