//! The zone's memory account, shown as its card's memory, and how busy the zone keeps its card.

use cuda_abi::wire::view::ZoneView;

use crate::cards::find;
use crate::codes::*;
use crate::entry::{NvmlResult, Out, Versioned};
use crate::session;
use crate::types::*;

fn account(view: &ZoneView, index: usize) -> NvmlResult<Memory> {
    let inquiry::Memory { total, free, used } = inquiry::memory(view, index).ok_or(UNKNOWN)?;
    Ok(Memory { total, free, used })
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
