//! The numbers that a process has in the pid namespaces from which it can be seen.
//!
//! A tenant must read of its own processes by the numbers that it knows, which are those of its own namespace.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

/// From the broker's namespace inwards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Numbers {
    pids: Vec<u32>,
    /// Inode numbers of the namespaces; fewer where we may not look.
    namespaces: Vec<u64>,
}

impl Numbers {
    /// From what another process has found out.
    pub fn new(pids: Vec<u32>, namespaces: Vec<u64>) -> Self {
        Self { pids, namespaces }
    }

    /// Its numbers, from the outermost namespace inwards.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// The inode numbers of the namespaces that those are of; none where they are not known.
    pub fn namespaces(&self) -> &[u64] {
        &self.namespaces
    }

    /// The number by which `other` knows this process; none when it cannot see it.
    pub fn seen_by(&self, other: &Numbers) -> Option<u32> {
        match other.pids.len() {
            0 => None,
            // A process that shares our namespace sees everything, as we do.
            1 => self.pids.first().copied(),
            depth => {
                let theirs = other.namespaces.get(depth - 1)?;
                (self.namespaces.get(depth - 1) == Some(theirs)).then(|| self.pids.get(depth - 1).copied())?
            }
        }
    }
}

/// What `/proc` tells of a process; nothing of one that is gone.
pub fn numbers(pid: u32) -> Numbers {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pids = parse(&status);
    let mut namespaces = Vec::new();
    let mut next = File::open(format!("/proc/{pid}/ns/pid")).ok();
    while let Some(namespace) = next.filter(|_| namespaces.len() < pids.len()) {
        namespaces.extend(namespace.metadata().map(|meta| meta.ino()).ok());
        next = parent(&namespace);
    }
    namespaces.reverse();
    // Counted from the inside; where the outer ones could not be reached, the numbers do not fit the levels.
    if namespaces.len() != pids.len() {
        namespaces.clear();
    }
    Numbers { pids, namespaces }
}

/// The line `NSpid` of a process's status.
fn parse(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    line.split_whitespace().map_while(|number| number.parse().ok()).collect()
}

fn parent(namespace: &File) -> Option<File> {
    const NS_GET_PARENT: libc::Ioctl = 0xb702;
    // SAFETY: the request takes no argument and returns a new descriptor, or -1.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
    // SAFETY: a descriptor that nobody else owns.
    (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pids: &[u32], namespaces: &[u64]) -> Numbers {
        Numbers { pids: pids.to_vec(), namespaces: namespaces.to_vec() }
    }

    #[test]
    fn a_process_is_known_by_the_number_of_the_one_who_asks() {
        let pod = of(&[4242, 7], &[1, 100]);
        assert_eq!(pod.seen_by(&of(&[4300, 9], &[1, 100])), Some(7));
        assert_eq!(pod.seen_by(&of(&[4300], &[1])), Some(4242));
        assert_eq!(pod.seen_by(&of(&[4300], &[])), Some(4242));
        // A sandbox inside the pod is seen from the pod, and does not see out.
        let nested = of(&[4500, 12, 1], &[1, 100, 200]);
        assert_eq!(nested.seen_by(&pod), Some(12));
        assert_eq!(pod.seen_by(&nested), None);
    }

    #[test]
    fn other_containers_and_unknown_namespaces_have_no_number() {
        let a = of(&[10, 1], &[1, 100]);
        assert_eq!(a.seen_by(&of(&[11, 1], &[1, 101])), None);
        assert_eq!(a.seen_by(&of(&[11, 1], &[])), None);
        assert_eq!(a.seen_by(&of(&[], &[])), None);
        assert_eq!(of(&[], &[]).seen_by(&of(&[1], &[1])), None);
    }

    #[test]
    fn we_know_ourselves() {
        let me = numbers(std::process::id());
        assert_eq!(me.seen_by(&me), Some(std::process::id()));
        assert_eq!(parse("Name:\tx\nNSpid:\t31513\t12\t1\nThreads: 1"), [31513, 12, 1]);
        assert_eq!(parse(""), [0; 0]);
    }
}
