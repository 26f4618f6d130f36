//! The zone's memory account, shown as its card's memory, and how busy the zone keeps its card.

use cuda_abi::wire::view::ZoneView;

use crate::cards::find;
use crate::codes::*;
use crate::entry::{NvmlResult, Out, Versioned};
use crate::session;
use crate::types::*;

/// Total, used and free bytes of a card, as the zone may count on them.
fn account(view: &ZoneView, index: usize) -> NvmlResult<Memory> {
    let card = view.cards.get(index).ok_or(UNKNOWN)?;
    let zone = view.on_card(index);
    let total = zone.limit.map_or(card.memory, |limit| limit.min(card.memory));
    // A limit that was lowered may be below what is in use.
    let used = zone.used.min(total);
    Ok(Memory { total, free: total - used, used })
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) fn nvmlDeviceGetMemoryInfo(device: Device, memory: Out<Memory>) -> NvmlResult {
        let (index, _) = find(device)?;
        memory.put(account(&session::now()?, index)?)
    }

    pub(crate) fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: Versioned<MemoryV2>) -> NvmlResult {
        let (index, _) = find(device)?;
        let version = version::<MemoryV2>(2);
        let memory = memory.of_version(version, ARGUMENT_VERSION_MISMATCH)?;
        let Memory { total, free, used } = account(&session::now()?, index)?;
        memory.put(MemoryV2 { version, total, reserved: 0, free, used })
    }

    pub(crate) fn nvmlDeviceGetUtilizationRates(device: Device, rates: Out<Utilization>) -> NvmlResult {
        let (index, _) = find(device)?;
        let gpu = session::now()?.on_card(index).busy.ok_or(NOT_SUPPORTED)?;
        rates.put(Utilization { gpu, memory: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_abi::wire::view::Card;

    fn of(limit: Option<u64>, used: u64) -> (u64, u64, u64) {
        let cards = vec![Card { memory: 100, ..Card::default() }];
        let view = ZoneView { limit, used, cards, ..ZoneView::default() };
        let Memory { total, free, used } = account(&view, 0).unwrap();
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
}
