//! By what a pod's domain is known.

use sha2::{Digest, Sha256};

/// Follows from containerd's namespace and the sandbox's name, so that it is known without a file that could be lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The domain's name, and that of its directories.
    pub name: String,
    /// The domain's identity. Somebody may have given the name to a domain of his own; this he did not.
    pub uuid: String,
}

impl Identity {
    pub(crate) fn of(namespace: &str, id: &str) -> Self {
        // Neither has a zero in it, so no two pairs are one text.
        let digest = Sha256::digest(format!("bulkhead pod\0{namespace}\0{id}"));
        let (for_name, for_uuid) = digest.split_at(16);
        let mut uuid: Vec<u8> = for_uuid.to_vec();
        // As RFC 9562 has it for numbers that are made in a way of one's own: version 8, variant 1.
        uuid[6] = uuid[6] & 0x0f | 0x80;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        let text = hex::encode(uuid);
        let parts = [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]];
        Self { name: format!("bulkhead-{}", hex::encode(&for_name[..8])), uuid: parts.join("-") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_pod_is_the_same_domain_and_others_are_others() {
        let one = Identity::of("k8s.io", "abc");
        assert_eq!(one, Identity::of("k8s.io", "abc"));
        for other in [Identity::of("default", "abc"), Identity::of("k8s.io", "abd"), Identity::of("k8s.ioabc", "")] {
            assert!(other.name != one.name && other.uuid != one.uuid, "{other:?}");
        }
    }

    #[test]
    fn names_and_identities_are_well_formed() {
        let Identity { name, uuid } = Identity::of("k8s.io", &"f".repeat(64));
        assert_eq!(name.len(), "bulkhead-".len() + 16);
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(uuid.as_bytes()[14], b'8');
        assert!(b"89ab".contains(&uuid.as_bytes()[19]), "{uuid}");
    }
}
