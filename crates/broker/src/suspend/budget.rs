//! How much host memory may hold what was on GPUs: of a zone, and of the node.

use super::Refused;

/// Of a zone's host memory, what its workers need for themselves.
const RESERVE: u64 = 256 << 20;

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

/// Refuses what does not fit, before anything is copied.
pub(super) fn check(request: &Request) -> Result<(), Refused> {
    let enforced = request.zone_memory.map_or(u64::MAX, |memory| memory.saturating_sub(RESERVE));
    let of_zone = request.zone.unwrap_or(u64::MAX).min(enforced).saturating_sub(request.zone_held);
    let of_node = request.node.saturating_sub(request.node_held);
    let needed = request.bytes;
    if needed > of_zone {
        return Err(Refused::Budget { of_zone: true, needed, left: of_zone });
    }
    if needed > of_node {
        return Err(Refused::Budget { of_zone: false, needed, left: of_node });
    }
    Ok(())
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
        let refused = |of_zone, left| Err(Refused::Budget { of_zone, needed: 10 * GIB, left });
        assert_eq!(check(&Request { node_held: 55 * GIB, ..request() }), refused(false, 9 * GIB));
        assert_eq!(check(&Request { zone: Some(12 * GIB), zone_held: 3 * GIB, ..request() }), refused(true, 9 * GIB));
        assert_eq!(check(&Request { zone: Some(0), ..request() }), refused(true, 0), "a zone may forbid it");
        assert_eq!(check(&Request { node: 0, ..request() }), refused(false, 0));
        assert_eq!(check(&Request { bytes: 0, node: 0, ..request() }), Ok(()), "nothing needs nothing");
    }

    #[test]
    fn the_cgroup_of_the_workers_is_not_run_into() {
        let small = Request { zone_memory: Some(10 * GIB), ..request() };
        assert_eq!(check(&small), Err(Refused::Budget { of_zone: true, needed: 10 * GIB, left: 10 * GIB - RESERVE }));
        assert_eq!(check(&Request { bytes: 9 * GIB, ..small }), Ok(()));
        assert_eq!(check(&Request { bytes: u64::MAX, node: u64::MAX, ..request() }), Ok(()), "nothing overflows");
    }
}
