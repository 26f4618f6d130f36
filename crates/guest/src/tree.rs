//! A file system that has not been written yet.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::sync::Arc;

/// A file, a directory, or what else a root file system is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Directory,
    File(Arc<[u8]>),
    /// A symbolic link and where it leads.
    Link(String),
    /// Major and minor number.
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
    Fifo,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub kind: Kind,
    /// The twelve bits of permission.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Node {
    /// Owned by root.
    pub fn new(kind: Kind, mode: u32) -> Self {
        Self { kind, mode, uid: 0, gid: 0 }
    }
}

/// Nodes by their path from the root, without a slash in front. A directory comes before what is in it, and the order is
/// the same whatever the order was in which things were added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
}

impl Tree {
    /// Puts `node` at `path`, in place of what was there; directories above it are made where they are missing.
    pub fn put(&mut self, path: &str, node: Node) {
        let path = path.trim_matches('/');
        for (end, _) in path.match_indices('/') {
            self.nodes.entry(path[..end].to_owned()).or_insert_with(|| Node::new(Kind::Directory, 0o755));
        }
        self.nodes.insert(path.to_owned(), node);
    }

    pub fn dir(&mut self, path: &str) {
        self.put(path, Node::new(Kind::Directory, 0o755));
    }

    pub fn file(&mut self, path: &str, mode: u32, content: impl Into<Arc<[u8]>>) {
        self.put(path, Node::new(Kind::File(content.into()), mode));
    }

    pub fn link(&mut self, path: &str, target: &str) {
        self.put(path, Node::new(Kind::Link(target.to_owned()), 0o777));
    }

    /// Removes what is at `path`, and all below it.
    pub fn remove(&mut self, path: &str) {
        self.nodes.remove(path);
        self.clear(path);
    }

    /// Removes all below `path`.
    pub fn clear(&mut self, path: &str) {
        let below = format!("{path}/");
        self.nodes.retain(|name, _| !name.starts_with(&below));
    }

    pub fn get(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path.trim_matches('/'))
    }

    pub fn iter(&self) -> btree_map::Iter<'_, String, Node> {
        self.nodes.iter()
    }

    /// The content of the file to which `path` leads, through links in its last part and in its directories.
    pub fn read(&self, path: &str) -> Option<&Arc<[u8]>> {
        match &self.nodes.get(&self.resolve(path)?)?.kind {
            Kind::File(content) => Some(content),
            _ => None,
        }
    }

    /// The path without links in it. Links that form a loop lead nowhere.
    pub fn resolve(&self, path: &str) -> Option<String> {
        let mut pending: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
        let mut at = String::new();
        let mut links = 0;
        while let Some(part) = pending.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    at.truncate(at.rfind('/').unwrap_or(0));
                    continue;
                }
                _ => {}
            }
            let next = if at.is_empty() { part } else { format!("{at}/{part}") };
            match self.nodes.get(&next).map(|node| &node.kind) {
                Some(Kind::Link(target)) => {
                    links += 1;
                    if links > 40 {
                        return None;
                    }
                    if target.starts_with('/') {
                        at.clear();
                    }
                    pending.extend(target.split('/').rev().map(str::to_owned));
                }
                _ => at = next,
            }
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_in_every_part_of_a_path_and_never_for_ever() {
        let mut tree = Tree::default();
        tree.file("usr/lib/x/libc.so.6", 0o755, *b"elf");
        tree.link("lib", "usr/lib");
        tree.link("usr/lib/x/libc.so", "libc.so.6");
        tree.link("top", "/lib/x/../x/libc.so");
        tree.link("round", "round");
        assert_eq!(tree.read("/lib/x/libc.so").unwrap()[..], *b"elf");
        assert_eq!(tree.read("top").unwrap()[..], *b"elf");
        assert_eq!(tree.read("round"), None);
        assert_eq!(tree.read("../../lib/x/libc.so.6").unwrap()[..], *b"elf", "nothing is above the root");
    }

    #[test]
    fn the_order_of_adding_does_not_matter_and_dirs_come_first() {
        let (mut one, mut other) = (Tree::default(), Tree::default());
        one.file("a/b/c", 0o644, *b"1");
        one.file("a-b", 0o644, *b"2");
        other.file("a-b", 0o644, *b"2");
        other.file("/a/b/c", 0o644, *b"1");
        assert_eq!(one, other);
        let names: Vec<&str> = one.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "a-b", "a/b", "a/b/c"]);
    }
}
