//! Names of zones. They become directory names and parts of messages, so they are checked once, here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// As long as a Kubernetes label may be.
pub const MAX: usize = 63;

/// A checked name: letters, digits, `-`, `_` and `.`, beginning with a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ZoneName(String);

/// A text that is not a valid zone name, shortened.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} is not a valid zone name (1 to {MAX} letters, digits, '-', '_' or '.', beginning with a letter or digit)"
)]
pub struct BadName(String);

impl FromStr for ZoneName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let fine = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
        let first = text.bytes().next();
        if text.len() <= MAX && text.bytes().all(fine) && first.is_some_and(|c| c.is_ascii_alphanumeric()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadName(text.chars().take(80).collect()))
        }
    }
}

impl TryFrom<String> for ZoneName {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        text.parse()
    }
}

impl From<ZoneName> for String {
    fn from(name: ZoneName) -> Self {
        name.0
    }
}

impl ZoneName {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name in a field of fixed length, padded with zeros.
    pub fn to_field(&self) -> [u8; MAX + 1] {
        let mut field = [0; MAX + 1];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }

    /// Reads such a field, which may come from anywhere.
    pub fn from_field(field: &[u8; MAX + 1]) -> Option<Self> {
        let end = field.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&field[..end]).ok()?.parse().ok()
    }
}

impl fmt::Display for ZoneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_their_directory_are_refused() {
        for bad in ["", ".", "..", "../x", "a/b", "-a", "a b", "ä", "a\0b", &"x".repeat(64)] {
            assert!(bad.parse::<ZoneName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_name_survives_its_field() {
        for good in ["a", "team-a.prod_1", &"x".repeat(63)] {
            let name: ZoneName = good.parse().unwrap();
            assert_eq!(ZoneName::from_field(&name.to_field()), Some(name));
        }
        assert_eq!(ZoneName::from_field(&[b'x'; 64]), None);
    }
}
