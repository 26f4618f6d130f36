//! Which zone may open what another exports. Without a grant a zone shares with itself alone.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::control::ZoneName;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

impl Access {
    pub fn may_write(self) -> bool {
        self == Self::ReadWrite
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The zone that exports.
    pub from: ZoneName,
    /// The zone that may open it.
    pub to: ZoneName,
    pub access: Access,
    /// Seconds since 1970 after which nothing new is opened; none: until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
}

#[derive(Debug, Default)]
pub struct Grants {
    list: Vec<Grant>,
}

/// Grants of a node; more are refused.
const MOST: usize = 4096;

impl Grants {
    pub fn list(&self) -> &[Grant] {
        &self.list
    }

    /// What a zone may do with another's exports.
    pub fn access(&self, from: &ZoneName, to: &ZoneName) -> Option<Access> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let found = self.list.iter().find(|grant| grant.from == *from && grant.to == *to)?;
        found.expires.is_none_or(|expires| now < expires).then_some(found.access)
    }

    /// Adds a grant, in place of one between the same zones; false when there are too many.
    pub fn allow(&mut self, grant: Grant) -> bool {
        self.revoke(&grant.from, &grant.to);
        if self.list.len() >= MOST {
            return false;
        }
        self.list.push(grant);
        true
    }

    /// Answers whether there was one.
    pub fn revoke(&mut self, from: &ZoneName, to: &ZoneName) -> bool {
        let before = self.list.len();
        self.list.retain(|grant| grant.from != *from || grant.to != *to);
        self.list.len() != before
    }
}
