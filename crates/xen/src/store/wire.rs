//! xenstore's wire protocol: a header of four words and up to 4,096 bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The longest payload of a message, either way.
pub const MAX_PAYLOAD: usize = 4096;
/// The longest absolute path.
pub const MAX_PATH: usize = 3072;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Directory = 1,
    Read = 2,
    Watch = 4,
    Unwatch = 5,
    GetDomainPath = 10,
    Write = 11,
    Remove = 13,
    SetPermissions = 14,
    WatchEvent = 15,
    Error = 16,
    IsDomainIntroduced = 17,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    pub kind: u32,
    /// Chosen by who asks, repeated in the answer.
    pub request: u32,
    pub transaction: u32,
    pub len: u32,
}

/// A whole request.
pub fn message(kind: Kind, request: u32, parts: &[&[u8]]) -> Option<Vec<u8>> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    if len > MAX_PAYLOAD {
        return None;
    }
    let header = Header { kind: kind as u32, request, transaction: 0, len: len as u32 };
    let mut bytes = header.as_bytes().to_vec();
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    Some(bytes)
}

/// A path that xenstore will not take for something else.
pub fn is_path(path: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-/_@".contains(&byte);
    !path.is_empty() && path.len() <= MAX_PATH && path.bytes().all(legal)
}

/// The strings of a payload, each ended by a zero byte.
pub fn strings(payload: &[u8]) -> impl Iterator<Item = &str> {
    payload.split(|byte| *byte == 0).filter(|part| !part.is_empty()).filter_map(|part| str::from_utf8(part).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_header_and_its_parts() {
        let bytes = message(Kind::Write, 7, &[b"a/b", b"\0", b"value"]).unwrap();
        let (header, rest) = Header::read_from_prefix(&bytes).unwrap();
        assert_eq!(header, Header { kind: 11, request: 7, transaction: 0, len: 9 });
        assert_eq!(rest, b"a/b\0value");
        assert!(message(Kind::Write, 7, &[&[0; MAX_PAYLOAD + 1]]).is_none());
    }

    #[test]
    fn paths_hold_nothing_that_ends_them() {
        assert!(is_path("/local/domain/3/data/x-1_2") && is_path("@releaseDomain"));
        assert!(!is_path("") && !is_path("a\0b") && !is_path("a b") && !is_path(&"a".repeat(MAX_PATH + 1)));
    }

    #[test]
    fn strings_end_with_zeroes() {
        assert_eq!(strings(b"a\0bc\0").collect::<Vec<_>>(), ["a", "bc"]);
        assert_eq!(strings(b"\0\xff\0x").collect::<Vec<_>>(), ["x"]);
    }
}
