//! Which domain is which zone: said by the toolstack, in a part of xenstore that no guest can write.
//!
//! `/tool/bulkhead/domains/<domid>/zone` names the zone, `…/vm` the machine that was meant: numbers of domains come round
//! again, the identity of a machine does not. The Xen backend watches the directory. What it tells the guest stands in
//! `<home>/bulkhead`, which the guest can read and not write.

use crate::DomainId;
use crate::card;
use crate::store::{Permission, Store, StoreError};

/// The directory that the Xen backend watches.
pub const DOMAINS: &str = "/tool/bulkhead/domains";

/// Makes a domain a zone's. The zone must exist when the domain's first client comes.
pub fn admit(store: &mut Store, domain: DomainId, zone: &str) -> Result<(), StoreError> {
    let vm = machine(store, domain)?.ok_or_else(|| StoreError::Refused("ENOENT".to_owned()))?;
    let dir = format!("{DOMAINS}/{domain}");
    store.write(&format!("{dir}/vm"), vm.as_bytes())?;
    // Last: an entry counts once it has a zone.
    store.write(&format!("{dir}/zone"), zone.as_bytes())
}

/// Takes that back. Its clients lose their workers.
pub fn dismiss(store: &mut Store, domain: DomainId) -> Result<(), StoreError> {
    store.remove(&format!("{DOMAINS}/{domain}"))
}

/// Those that have an entry, whatever it says.
pub fn admitted(store: &mut Store) -> Result<Vec<DomainId>, StoreError> {
    Ok(store.list(DOMAINS)?.iter().filter_map(|name| name.parse().ok()).collect())
}

/// The zone of a domain, if the entry is of this very machine.
pub fn zone_of(store: &mut Store, domain: DomainId) -> Result<Option<String>, StoreError> {
    let dir = format!("{DOMAINS}/{domain}");
    let Some(zone) = store.read_text(&format!("{dir}/zone"))? else { return Ok(None) };
    let meant = store.read_text(&format!("{dir}/vm"))?;
    let is = machine(store, domain)?;
    Ok((meant.is_some() && meant == is && store.is_introduced(domain)?).then_some(zone))
}

fn machine(store: &mut Store, domain: DomainId) -> Result<Option<String>, StoreError> {
    let home = store.domain_path(domain)?;
    store.read_text(&format!("{home}/vm"))
}

/// Tells a guest that its clients are expected: by `backend`, which offers this version of the driver.
pub fn open_service(
    store: &mut Store,
    domain: DomainId,
    backend: DomainId,
    driver_version: Option<u32>,
) -> Result<(), StoreError> {
    let dir = format!("{}/{}", store.domain_path(domain)?, card::SERVICE);
    let mut nodes = vec![("version", card::VERSION.to_string())];
    nodes.extend(driver_version.map(|version| ("driver-version", version.to_string())));
    // Last: a client that finds it comes at once.
    nodes.push(("backend", backend.to_string()));
    let permissions = [Permission::None(backend), Permission::Read(domain)];
    store.write(&dir, b"")?;
    store.set_permissions(&dir, &permissions)?;
    for (name, value) in nodes {
        let path = format!("{dir}/{name}");
        store.write(&path, value.as_bytes())?;
        store.set_permissions(&path, &permissions)?;
    }
    Ok(())
}

/// Takes that back.
pub fn close_service(store: &mut Store, domain: DomainId) -> Result<(), StoreError> {
    let dir = format!("{}/{}", store.domain_path(domain)?, card::SERVICE);
    store.remove(&dir)
}
