//! The GPUs of the node. A jailed helper that loads the driver is asked for them once, at the first inquiry; clients that ask
//! meanwhile wait for it. `H` is the running helper.

use std::time::{Duration, Instant};

use cuda_abi::wire::view::Card;

/// A driver on a busy node takes seconds to start.
const HELPER_TIMEOUT: Duration = Duration::from_secs(120);
/// A helper that failed is not started again before this.
const HELPER_PAUSE: Duration = Duration::from_secs(5);

pub(crate) struct Inventory<H> {
    cards: Option<Vec<Card>>,
    /// Of the kernel's driver; known with the cards.
    driver_version: String,
    helper: Option<(H, Instant)>,
    failed_at: Option<Instant>,
    /// Clients that wait until the cards are known.
    waiting: Vec<u64>,
}

/// What is done about somebody who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Answer now: the cards are known, or a helper has just failed.
    Answer,
    StartHelper,
    /// A helper is at it.
    Wait,
}

impl<H> Default for Inventory<H> {
    fn default() -> Self {
        Self { cards: None, driver_version: String::new(), helper: None, failed_at: None, waiting: Vec::new() }
    }
}

impl<H> Inventory<H> {
    pub(crate) fn cards(&self) -> Option<&[Card]> {
        self.cards.as_deref()
    }

    pub(crate) fn driver_version(&self) -> &str {
        &self.driver_version
    }

    pub(crate) fn helper(&self) -> Option<&H> {
        self.helper.as_ref().map(|(helper, _)| helper)
    }

    pub(crate) fn lookup(&self, now: Instant) -> Lookup {
        let failed_lately = self.failed_at.is_some_and(|at| now.saturating_duration_since(at) < HELPER_PAUSE);
        match (&self.cards, &self.helper) {
            (Some(_), _) => Lookup::Answer,
            (None, Some(_)) => Lookup::Wait,
            (None, None) if failed_lately => Lookup::Answer,
            (None, None) => Lookup::StartHelper,
        }
    }

    pub(crate) fn helper_started(&mut self, helper: H, now: Instant) {
        self.helper = Some((helper, now + HELPER_TIMEOUT));
    }

    pub(crate) fn take_helper(&mut self) -> Option<H> {
        self.helper.take().map(|(helper, _)| helper)
    }

    pub(crate) fn found(&mut self, cards: Vec<Card>, driver_version: String) {
        (self.cards, self.driver_version) = (Some(cards), driver_version);
    }

    pub(crate) fn failed(&mut self, now: Instant) {
        self.failed_at = Some(now);
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.helper.as_ref().map(|(_, deadline)| *deadline)
    }

    /// The helper, if it is to be killed. Its end is an event of its own; until then there is nothing to be late for.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<&H> {
        let (helper, deadline) = self.helper.as_mut().filter(|(_, deadline)| *deadline <= now)?;
        *deadline = now + HELPER_TIMEOUT;
        Some(helper)
    }

    /// A client waits until the cards are known; those that are gone are forgotten. False if its zone has too many that wait.
    pub(crate) fn wait(
        &mut self,
        id: u64,
        is_there: impl Fn(u64) -> bool,
        of_zone: impl Fn(u64) -> bool,
        max: usize,
    ) -> bool {
        self.waiting.retain(|id| is_there(*id));
        let fits = self.waiting.iter().filter(|id| of_zone(**id)).count() < max;
        if fits {
            self.waiting.push(id);
        }
        fits
    }

    pub(crate) fn take_waiting(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_who_asks_has_the_helper_started_and_the_others_wait() {
        let (mut inventory, now) = (Inventory::default(), Instant::now());
        assert_eq!(inventory.lookup(now), Lookup::StartHelper);
        inventory.helper_started('h', now);
        assert_eq!((inventory.lookup(now), inventory.next_deadline()), (Lookup::Wait, Some(now + HELPER_TIMEOUT)));
        assert_eq!(inventory.expire(now), None);
        assert_eq!(inventory.expire(now + HELPER_TIMEOUT), Some(&'h'));
        assert_eq!(inventory.expire(now + HELPER_TIMEOUT), None, "once is enough");
        assert_eq!(inventory.take_helper(), Some('h'));
        inventory.failed(now);
        assert_eq!(inventory.lookup(now), Lookup::Answer, "without cards");
        assert_eq!(inventory.lookup(now + HELPER_PAUSE), Lookup::StartHelper);
        inventory.found(Vec::new(), "580".to_owned());
        assert_eq!((inventory.lookup(now), inventory.driver_version()), (Lookup::Answer, "580"));
    }

    #[test]
    fn a_zone_has_only_so_many_that_wait() {
        let mut inventory = Inventory::<()>::default();
        let wait = |inventory: &mut Inventory<()>, id| {
            inventory.wait(id, |id| id != 2, |other| (other < 10) == (id < 10), 2)
        };
        assert!(wait(&mut inventory, 1) && wait(&mut inventory, 2), "one of them is gone before the next comes");
        assert!(wait(&mut inventory, 3) && wait(&mut inventory, 11));
        assert!(!wait(&mut inventory, 4), "others are not in the way");
        assert_eq!((inventory.take_waiting(), inventory.take_waiting()), (vec![1, 3, 11], vec![]));
    }
}
