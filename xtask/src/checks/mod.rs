//! Rules about the repository itself, which no compiler checks.

pub mod advisories;
pub mod documents;
pub mod licences;
pub mod metadata;
pub mod rooms;
pub mod unsafe_code;
