//! Connections of operators and of those who only look. `S` is the connection itself.

use std::collections::BTreeMap;

use control::ZoneName;

/// Connections of each role; further ones are closed.
const MAX_CONNECTIONS: usize = 256;

/// By which socket somebody came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// `admin.sock`
    Operator,
    /// `status.sock`: it may ask, and change nothing.
    Observer,
}

struct Connection<S> {
    socket: S,
    role: Role,
    /// Zones that go with it.
    leases: Vec<ZoneName>,
}

pub(super) struct Connections<S> {
    open: BTreeMap<u64, Connection<S>>,
}

impl<S> Default for Connections<S> {
    fn default() -> Self {
        Self { open: BTreeMap::new() }
    }
}

impl<S> Connections<S> {
    pub(super) fn is_full(&self, role: Role) -> bool {
        self.open.values().filter(|connection| connection.role == role).count() >= MAX_CONNECTIONS
    }

    pub(super) fn insert(&mut self, id: u64, socket: S, role: Role) {
        self.open.insert(id, Connection { socket, role, leases: Vec::new() });
    }

    pub(super) fn get(&self, id: u64) -> Option<(&S, Role)> {
        self.open.get(&id).map(|connection| (&connection.socket, connection.role))
    }

    /// A connection holds a zone from now on; false if it does already, or is gone.
    pub(super) fn lease(&mut self, id: u64, zone: &ZoneName) -> bool {
        let connection = self.open.get_mut(&id).filter(|connection| !connection.leases.contains(zone));
        connection.map(|connection| connection.leases.push(zone.clone())).is_some()
    }

    /// A connection is gone; answers which zones it held.
    pub(super) fn remove(&mut self, id: u64) -> Vec<ZoneName> {
        self.open.remove(&id).map(|connection| connection.leases).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_holds_a_zone_once() {
        let (mut connections, zone) = (Connections::default(), "a".parse::<ZoneName>().unwrap());
        connections.insert(1, 's', Role::Operator);
        assert_eq!(connections.get(1), Some((&'s', Role::Operator)));
        assert!(connections.lease(1, &zone) && !connections.lease(1, &zone) && !connections.lease(2, &zone));
        assert_eq!((connections.remove(1), connections.remove(1)), (vec![zone], vec![]));
    }

    #[test]
    fn those_who_look_keep_no_operator_out() {
        let mut connections = Connections::default();
        for id in 0..MAX_CONNECTIONS as u64 {
            assert!(!connections.is_full(Role::Observer));
            connections.insert(id, (), Role::Observer);
        }
        assert!(connections.is_full(Role::Observer) && !connections.is_full(Role::Operator));
    }
}
