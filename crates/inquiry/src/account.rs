//! The zone's memory account, shown as its cards' memory, and its own processes.

use cuda_abi::wire::view::{Process, ZoneView};

/// Bytes of a card, as the zone may count on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

/// Of a card by its place in the view; none where there is no such card.
pub fn memory(view: &ZoneView, card: usize) -> Option<Memory> {
    let there = view.cards.get(card)?;
    let zone = view.on_card(card);
    let total = zone.limit.map_or(there.memory, |limit| limit.min(there.memory));
    // A limit that was lowered may be below what is in use.
    let used = zone.used.min(total);
    Some(Memory { total, free: total - used, used })
}

/// The zone's processes on a card. Of several cards, a process is on those of which it holds something.
pub fn processes(view: &ZoneView, card: usize) -> Vec<Process> {
    let one = view.card_use.len() < 2 || view.holdings.is_empty();
    let held = |process: &Process| Process { pid: process.pid, used: view.held(process, card) };
    view.processes.iter().map(held).filter(|process| one || process.used > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_abi::wire::view::{Card, CardUse, Holding};

    fn of(limit: Option<u64>, used: u64) -> (u64, u64, u64) {
        let cards = vec![Card { memory: 100, ..Card::default() }];
        let view = ZoneView { limit, used, cards, ..ZoneView::default() };
        let Memory { total, free, used } = memory(&view, 0).unwrap();
        (total, free, used)
    }

    #[test]
    fn a_zone_sees_its_limit_and_its_own_use() {
        assert_eq!(of(Some(40), 10), (40, 30, 10));
        assert_eq!(of(None, 10), (100, 90, 10));
        // More than the card has is not to be had, and a lowered limit shows no free memory.
        assert_eq!(of(Some(1000), 0), (100, 100, 0));
        assert_eq!(of(Some(5), 10), (5, 0, 5));
    }

    #[test]
    fn a_process_is_on_the_cards_of_which_it_holds_something() {
        let processes_of = |cards: usize| ZoneView {
            cards: vec![Card::default(); cards],
            card_use: vec![CardUse::default(); cards],
            processes: vec![Process { pid: 7, used: 5 }],
            holdings: vec![Holding { pid: 7, card: 1, used: 5 }],
            ..ZoneView::default()
        };
        assert_eq!(processes(&processes_of(2), 0), []);
        assert_eq!(processes(&processes_of(2), 1), [Process { pid: 7, used: 5 }]);
        assert_eq!(processes(&processes_of(1), 0), [Process { pid: 7, used: 5 }]);
    }
}
