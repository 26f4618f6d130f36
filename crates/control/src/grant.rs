//! Grants: which zone may open what another exports.

use serde::{Deserialize, Serialize};

use super::name::ZoneName;

/// What a grant allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// To map memory for reading.
    ReadOnly,
    /// To map memory for reading and writing.
    ReadWrite,
}

impl Access {
    /// Whether memory is mapped for writing.
    pub fn may_write(self) -> bool {
        self == Self::ReadWrite
    }

    /// As operators write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::ReadWrite => "read-write",
        }
    }
}

/// One zone's permission to open what another exports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The zone that exports.
    pub from: ZoneName,
    /// The zone that may open it.
    pub to: ZoneName,
    /// What it may do with it.
    pub access: Access,
    /// Seconds since 1970 at which it ends by itself; none: it stays until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// It stands in the configuration, and goes when it no longer does.
    #[serde(default)]
    pub configured: bool,
}
