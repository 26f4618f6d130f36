//! How much host memory may hold what was on GPUs: of a zone, and of the node.

use super::Refused;

/// Of a zone's host memory, what its workers need for themselves: the context of a driver, staging, and what clients have pinned.
const RESERVE: u64 = 1 << 30;

/// What somebody wants to move, and what there is for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub bytes: u64,
    /// The zone's own budget; none: as much as the node's.
    pub zone: Option<u64>,
    /// The limit of its workers' cgroup.
    pub zone_memory: Option<u64>,
    pub zone_held: u64,
    pub node: u64,
    pub node_held: u64,
}

/// Which limit a client does not fit into, by the key that an operator would change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// `suspend_memory` of the zone.
    Zone,
    /// `host_memory` of the zone, which its workers' cgroup enforces.
    ZoneMemory,
    /// `suspend_memory` of the node.
    Node,
}

impl Limit {
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Zone => "zone's suspend_memory",
            Self::ZoneMemory => "zone's host_memory",
            Self::Node => "node's suspend_memory",
        }
    }
}

/// Refuses what does not fit, before anything is copied.
pub(super) fn check(request: &Request) -> Result<(), Refused> {
    let enforced = request.zone_memory.map_or(u64::MAX, |memory| memory.saturating_sub(RESERVE));
    let budgets = [
        (Limit::Zone, request.zone.unwrap_or(u64::MAX).saturating_sub(request.zone_held)),
        (Limit::ZoneMemory, enforced.saturating_sub(request.zone_held)),
        (Limit::Node, request.node.saturating_sub(request.node_held)),
    ];
    let needed = request.bytes;
    match budgets.into_iter().find(|(_, left)| needed > *left) {
        Some((limit, left)) => Err(Refused::Budget { limit, needed, left }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn request() -> Request {
        Request { bytes: 10 * GIB, zone: None, zone_memory: None, zone_held: 0, node: 64 * GIB, node_held: 0 }
    }

    #[test]
    fn what_does_not_fit_into_the_zones_or_the_nodes_budget_is_refused() {
        assert_eq!(check(&request()), Ok(()));
        assert_eq!(check(&Request { node_held: 54 * GIB, ..request() }), Ok(()), "exactly");
        let refused = |limit, left| Err(Refused::Budget { limit, needed: 10 * GIB, left });
        assert_eq!(check(&Request { node_held: 55 * GIB, ..request() }), refused(Limit::Node, 9 * GIB));
        assert_eq!(
            check(&Request { zone: Some(12 * GIB), zone_held: 3 * GIB, ..request() }),
            refused(Limit::Zone, 9 * GIB)
        );
        assert_eq!(check(&Request { zone: Some(0), ..request() }), refused(Limit::Zone, 0), "a zone may forbid it");
        assert_eq!(check(&Request { node: 0, ..request() }), refused(Limit::Node, 0));
        assert_eq!(check(&Request { bytes: 0, node: 0, ..request() }), Ok(()), "nothing needs nothing");
    }

    #[test]
    fn the_cgroup_of_the_workers_is_not_run_into() {
        let small = Request { zone_memory: Some(10 * GIB), ..request() };
        assert_eq!(
            check(&small),
            Err(Refused::Budget { limit: Limit::ZoneMemory, needed: 10 * GIB, left: 10 * GIB - RESERVE })
        );
        assert_eq!(check(&Request { bytes: 9 * GIB, ..small }), Ok(()));
        assert_eq!(check(&Request { bytes: u64::MAX, node: u64::MAX, ..request() }), Ok(()), "nothing overflows");
    }
}
