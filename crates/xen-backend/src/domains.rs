//! What the backend knows of one domain.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use xen::DomainId;

use control::ZoneName;

/// Clients of one domain that are attended at the same time. The broker has a limit of its own, which is lower and which
/// clients are told of.
const MAX_CLIENTS: usize = 512;
/// Nodes that are remembered as attended; xenstore lets a guest have fewer.
const MAX_NODES: usize = 4096;

pub(crate) struct Domain {
    pub id: DomainId,
    /// The domain that the backend runs in.
    pub host: DomainId,
    pub zone: String,
    dir: PathBuf,
    socket: PathBuf,
    /// Pages of it that may be mapped here at a time.
    most_pages: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Nodes that somebody attends or has attended.
    nodes: HashSet<String>,
    clients: usize,
    pages: usize,
    /// Sockets of workers, by the number of the visit; hanging up ends the worker.
    workers: BTreeMap<u64, Arc<OwnedFd>>,
    next: u64,
    ended: bool,
}

/// What is the same for all of them.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// The domain that the backend runs in.
    pub host: DomainId,
    /// The broker's directory.
    pub state_dir: PathBuf,
    /// Pages of one domain that may be mapped at a time.
    pub most_pages: usize,
}

impl Domain {
    /// None: no zone can have such a name.
    pub(crate) fn new(id: DomainId, zone: String, terms: &Terms) -> Option<Self> {
        let name: ZoneName = zone.parse().ok()?;
        let dir = terms.state_dir.join("zones").join(name.as_str());
        let socket = terms.state_dir.join("guests").join(name.as_str());
        Some(Self { id, host: terms.host, zone, dir, socket, most_pages: terms.most_pages, state: Mutex::default() })
    }

    /// Where the broker takes clients that are in guests: others may not bring a region of their own.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// As the broker left it beside the zone's socket.
    pub(crate) fn driver_version(&self) -> Option<u32> {
        std::fs::read_to_string(self.dir.join("driver-version")).ok()?.trim().parse().ok()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Begins to attend a client, unless its node has been seen or there are too many.
    pub(crate) fn begin(self: &Arc<Self>, node: &str) -> Option<Visit> {
        let mut state = self.lock();
        if state.ended || state.clients >= MAX_CLIENTS || state.nodes.len() >= MAX_NODES {
            return None;
        }
        if !state.nodes.insert(node.to_owned()) {
            return None;
        }
        state.clients += 1;
        state.next += 1;
        Some(Visit { domain: self.clone(), number: state.next })
    }

    /// So many of its pages, unless it has as many as it may have.
    pub(crate) fn charge(self: &Arc<Self>, pages: usize) -> Option<Charge> {
        let mut state = self.lock();
        let all = state.pages.checked_add(pages).filter(|all| *all <= self.most_pages)?;
        state.pages = all;
        Some(Charge { domain: self.clone(), pages })
    }

    /// The node is gone.
    pub(crate) fn forget(&self, node: &str) {
        self.lock().nodes.remove(node);
    }

    /// Ends all its workers, and all that are being sought.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        for worker in state.workers.values() {
            let _ = rustix::net::shutdown(&**worker, rustix::net::Shutdown::Both);
        }
    }
}

/// Pages that count for a domain until this is dropped.
pub(crate) struct Charge {
    domain: Arc<Domain>,
    pages: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.domain.lock().pages -= self.pages;
    }
}

/// A client that is attended.
pub(crate) struct Visit {
    pub domain: Arc<Domain>,
    number: u64,
}

impl Visit {
    /// The worker, which ends when the domain does. False: it has ended.
    pub(crate) fn set_worker(&self, socket: Arc<OwnedFd>) -> bool {
        let mut state = self.domain.lock();
        if !state.ended {
            state.workers.insert(self.number, socket);
        }
        !state.ended
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut state = self.domain.lock();
        state.workers.remove(&self.number);
        state.clients -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms { host: 0, state_dir: "/state".into(), most_pages: 100 }
    }

    fn domain() -> Arc<Domain> {
        Arc::new(Domain::new(3, "team-a".to_owned(), &terms()).unwrap())
    }

    #[test]
    fn a_domain_has_only_so_many_pages_at_a_time() {
        let domain = domain();
        let first = domain.charge(60).unwrap();
        assert!(domain.charge(41).is_none() && domain.charge(usize::MAX).is_none());
        let second = domain.charge(40).unwrap();
        assert!(domain.charge(1).is_none());
        drop(first);
        assert!(domain.charge(61).is_none());
        let third = domain.charge(60).unwrap();
        drop((second, third));
        assert!(domain.charge(100).is_some());
    }

    #[test]
    fn a_zone_has_the_name_of_a_zone() {
        assert_eq!(domain().socket(), Path::new("/state/guests/team-a"));
        for bad in ["", "..", "a/b", "../../etc"] {
            assert!(Domain::new(3, bad.to_owned(), &terms()).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn a_node_is_attended_once_and_their_number_is_bounded() {
        let domain = domain();
        let first = domain.begin("a").unwrap();
        assert!(domain.begin("a").is_none());
        drop(first);
        assert!(domain.begin("a").is_none(), "not while it is there");
        domain.forget("a");
        assert!(domain.begin("a").is_some());
        let visits: Vec<Visit> = (0..MAX_CLIENTS).map(|i| domain.begin(&i.to_string()).unwrap()).collect();
        assert!(domain.begin("more").is_none());
        drop(visits);
        assert!(domain.begin("more").is_some());
    }

    #[test]
    fn the_end_of_a_domain_is_the_end_of_its_workers() {
        let domain = domain();
        let visit = domain.begin("a").unwrap();
        let (ours, theirs) = control::packet::pair().unwrap();
        assert!(visit.set_worker(Arc::new(ours)));
        domain.end();
        assert_eq!(control::packet::receive(&theirs, &mut [0; 8]).unwrap().len, 0);
        assert!(domain.begin("b").is_none());
        assert!(!visit.set_worker(Arc::new(theirs)));
    }
}
