//! Zones whose work an operator has taken off the GPU.

use std::collections::BTreeSet;

use control::ZoneName;

/// Which zones are frozen. A successor does not know: who is frozen does not outlive the broker.
#[derive(Debug, Default)]
pub(crate) struct Frozen(BTreeSet<ZoneName>);

impl Frozen {
    /// Freezes or thaws a zone; true if it was not so before.
    pub(crate) fn set(&mut self, zone: &ZoneName, frozen: bool) -> bool {
        if frozen { self.0.insert(zone.clone()) } else { self.0.remove(zone) }
    }

    pub(crate) fn contains(&self, zone: &ZoneName) -> bool {
        self.0.contains(zone)
    }

    /// A zone is gone; one of that name later is another.
    pub(crate) fn forget(&mut self, zone: &ZoneName) {
        self.0.remove(zone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_frozen_until_it_is_thawed_or_gone() {
        let (mut frozen, zone) = (Frozen::default(), "team-a".parse().unwrap());
        assert!(frozen.set(&zone, true) && !frozen.set(&zone, true) && frozen.contains(&zone));
        assert!(frozen.set(&zone, false) && !frozen.contains(&zone));
        frozen.set(&zone, true);
        frozen.forget(&zone);
        assert!(!frozen.contains(&zone));
    }
}
