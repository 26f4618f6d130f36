//! The Xen backend: brings clients that are in Xen guests to the broker, as clients of their domain's zone.
//!
//! It is a process of its own in the driver domain. It reads what guests leave in xenstore, chooses the pages that they
//! granted, and hands them to workers; the broker knows of it only that such a client brings its region along. Which
//! zone a domain is stands in a part of xenstore that no guest can write (`xen::admission`), and which domain granted a
//! page or offered a channel is the hypervisor's word. So nothing that a guest writes names its zone.
//!
//! The main thread looks after domains. Each client has a thread, which makes the acquaintance and from then on gets for
//! the worker what only the backend may choose: further pages of the same domain.
#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]
#![forbid(unsafe_code)]

mod client;
mod domains;
mod lending;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use xen::DomainId;
use xen::store::{Event, Store, StoreError};
use xen::{admission, card};

use domains::{Domain, Terms};

#[derive(Debug, thiserror::Error)]
pub enum XenBackendError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot wait for events")]
    Wait(#[source] io::Error),
}

pub struct XenBackend {
    store: Store,
    terms: Terms,
    domains: BTreeMap<DomainId, Arc<Domain>>,
}

const DOMAINS_TOKEN: &str = "domains";
const RELEASED_TOKEN: &str = "released";

impl XenBackend {
    /// `state_dir` is the broker's. Of each guest `guest_memory` bytes may be mapped at a time.
    pub fn open(state_dir: PathBuf, guest_memory: u64) -> Result<Self, XenBackendError> {
        let mut store = Store::open()?;
        let host = store.read_text("domid")?.and_then(|text| text.parse().ok()).unwrap_or(0);
        store.watch(admission::DOMAINS, DOMAINS_TOKEN)?;
        store.watch("@releaseDomain", RELEASED_TOKEN)?;
        let most_pages = usize::try_from(guest_memory).unwrap_or(usize::MAX) / xen::PAGE;
        Ok(Self { store, terms: Terms { host, state_dir, most_pages }, domains: BTreeMap::new() })
    }

    /// Serves until `stop` can be read.
    pub fn run(mut self, stop: OwnedFd) -> Result<(), XenBackendError> {
        loop {
            while let Some(event) = self.store.next_event(Some(Duration::ZERO))? {
                self.on_event(&event)?;
            }
            if self.store.has_missed_events() {
                self.look_at_everything()?;
            }
            let mut polled = [PollFd::new(&self.store, PollFlags::IN), PollFd::new(&stop, PollFlags::IN)];
            match rustix::event::poll(&mut polled, None) {
                Ok(_) if !polled[1].revents().is_empty() => break,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(XenBackendError::Wait(error.into())),
            }
        }
        for domain in std::mem::take(&mut self.domains).into_values() {
            domain.end();
            let _ = admission::close_service(&mut self.store, domain.id);
        }
        Ok(())
    }

    fn on_event(&mut self, event: &Event) -> Result<(), XenBackendError> {
        match event.token.as_str() {
            DOMAINS_TOKEN | RELEASED_TOKEN => self.look_at_domains(),
            token => match token.parse::<DomainId>() {
                Ok(id) => self.look_at_node(id, &event.path),
                Err(_) => Ok(()),
            },
        }
    }

    /// Takes in those that are new, and ends those that are gone, or are somebody else's by now.
    fn look_at_domains(&mut self) -> Result<(), XenBackendError> {
        let mut now = BTreeMap::new();
        for id in admission::admitted(&mut self.store)? {
            let zone = admission::zone_of(&mut self.store, id).map_err(XenBackendError::from);
            match of_one(id, zone)?.flatten() {
                Some(zone) => _ = now.insert(id, zone),
                None if self.store.is_introduced(id)? => {}
                // Its number may be given to another machine.
                None => _ = of_one(id, admission::dismiss(&mut self.store, id).map_err(XenBackendError::from))?,
            }
        }
        let gone = |id: &DomainId, domain: &Arc<Domain>| now.get(id).is_none_or(|zone| *zone != domain.zone);
        let ended: Vec<DomainId> =
            self.domains.iter().filter(|(id, domain)| gone(id, domain)).map(|(id, _)| *id).collect();
        for id in ended {
            let parted = self.part_with(id);
            of_one(id, parted)?;
        }
        for (id, zone) in now {
            if !self.domains.contains_key(&id) {
                let taken = self.take_in(id, zone);
                if of_one(id, taken)?.is_none() {
                    // What goes with it is the next event's business.
                    self.domains.remove(&id).into_iter().for_each(|domain| domain.end());
                }
            }
        }
        Ok(())
    }

    /// A guest that changes its nodes without end has events of others lost: nothing is, if all is looked at again.
    fn look_at_everything(&mut self) -> Result<(), XenBackendError> {
        self.look_at_domains()?;
        for id in self.domains.keys().copied().collect::<Vec<_>>() {
            let clients = format!("{}/{}", self.store.domain_path(id)?, card::CLIENTS);
            let names = self.store.list(&clients).map_err(XenBackendError::from);
            for name in of_one(id, names)?.unwrap_or_default() {
                self.look_at_node(id, &format!("{clients}/{name}"))?;
            }
        }
        Ok(())
    }

    fn take_in(&mut self, id: DomainId, zone: String) -> Result<(), XenBackendError> {
        let Some(domain) = Domain::new(id, zone, &self.terms) else {
            tracing::warn!(domain = id, "the domain does not name a valid zone");
            return Ok(());
        };
        tracing::info!(domain = id, zone = domain.zone, "domain added");
        let driver_version = domain.driver_version();
        self.domains.insert(id, Arc::new(domain));
        let clients = format!("{}/{}", self.store.domain_path(id)?, card::CLIENTS);
        // Cards of a predecessor's clients: each client has been told, or has given up.
        self.store.remove(&clients)?;
        self.store.watch(&clients, &id.to_string())?;
        Ok(admission::open_service(&mut self.store, id, self.terms.host, driver_version)?)
    }

    fn part_with(&mut self, id: DomainId) -> Result<(), XenBackendError> {
        let Some(domain) = self.domains.remove(&id) else { return Ok(()) };
        tracing::info!(domain = id, zone = domain.zone, "domain removed");
        domain.end();
        let clients = format!("{}/{}", self.store.domain_path(id)?, card::CLIENTS);
        let _ = self.store.unwatch(&clients, &id.to_string());
        if self.store.is_introduced(id)? {
            admission::close_service(&mut self.store, id)?;
        }
        Ok(())
    }

    /// Something changed below a guest's own node: perhaps a client's card.
    fn look_at_node(&mut self, id: DomainId, path: &str) -> Result<(), XenBackendError> {
        let Some(domain) = self.domains.get(&id).cloned() else { return Ok(()) };
        let Some(name) = path.rsplit('/').next().filter(|name| is_name(name)) else { return Ok(()) };
        match self.store.read(path) {
            Ok(node) => {
                if let Some(visit) = domain.begin(name) {
                    let path = path.to_owned();
                    client::attend(visit, node, path);
                }
                Ok(())
            }
            Err(StoreError::Refused(_)) => {
                domain.forget(name);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// As clients call their nodes.
fn is_name(name: &str) -> bool {
    name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What the store refuses of one domain (its nodes went with it a moment ago) is that domain's misfortune alone.
fn of_one<T>(id: DomainId, result: Result<T, XenBackendError>) -> Result<Option<T>, XenBackendError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(XenBackendError::Store(StoreError::Refused(why))) => {
            tracing::warn!(domain = id, %why, "cannot use the domain's xenstore nodes");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
