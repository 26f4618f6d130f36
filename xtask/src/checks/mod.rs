//! Rules about the repository itself, which no compiler checks.

pub(crate) mod cargo_deny;
pub(crate) mod documents;
pub(crate) mod metadata;
pub(crate) mod rooms;
pub(crate) mod rust_version;
pub(crate) mod unsafe_code;
