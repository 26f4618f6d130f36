//! Names in the archive with a tenant's root file system.

/// The tenant's root file system.
pub const ROOT: &str = "tenant";
/// What its image says about how it is run: words, each ended by a zero.
pub const ENVIRONMENT: &str = "tenant.d/environment";
pub const FOLDER: &str = "tenant.d/folder";
pub const COMMAND: &str = "tenant.d/command";
