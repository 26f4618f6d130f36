//! Which devices a worker may open: the nodes that its jail shows, and no others.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::jail::Policy;

/// A character device that may be read and written. None may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    pub major: u32,
    pub minor: u32,
}

impl Rule {
    /// As version 1 wants it.
    pub fn text(self) -> String {
        format!("c {}:{} rw", self.major, self.minor)
    }
}

/// The nodes of a policy that this machine has now: a driver may make some of them late.
pub fn of_policy(policy: &Policy) -> Vec<Rule> {
    let mut rules = Vec::new();
    for node in policy.device_nodes() {
        collect(&node, 1, &mut rules);
    }
    rules.sort_unstable();
    rules.dedup();
    rules
}

fn collect(path: &Path, depth: usize, rules: &mut Vec<Rule>) {
    let Ok(metadata) = std::fs::metadata(path) else { return };
    if metadata.file_type().is_char_device() {
        let number = metadata.rdev();
        rules.push(Rule { major: rustix::fs::major(number), minor: rustix::fs::minor(number) });
    } else if metadata.is_dir() && depth > 0 {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            collect(&entry.path(), depth - 1, rules);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_policy_needs_three_nodes() {
        let rules = of_policy(&Policy::Soft);
        assert_eq!(rules, [(1, 3), (1, 5), (1, 9)].map(|(major, minor)| Rule { major, minor }));
        assert_eq!(rules[0].text(), "c 1:3 rw");
    }
}
