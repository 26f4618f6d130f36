//! The zone's own processes, and nobody else's.

use cuda_abi::wire::view::Process;

use crate::cards::find;
use crate::codes::*;
use crate::entry::{InOut, NvmlResult, OutSlice, Versioned};
use crate::session;
use crate::types::*;

/// Of a card that is not cut into instances.
const NO_INSTANCE: u32 = u32::MAX;

/// What a list is of. Programs in a zone compute; there is no other kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Compute,
    Other,
}

pub(crate) fn list(device: Device, kind: Kind) -> NvmlResult<Vec<Process>> {
    let (card, _) = find(device)?;
    match kind {
        Kind::Compute => Ok(inquiry::processes(&session::now()?, card)),
        Kind::Other => Ok(Vec::new()),
    }
}

/// Fills an array of the caller's: `count` says how many fit, and afterwards how many there are.
fn fill<T: Copy>(
    processes: &[Process],
    count: InOut<u32>,
    entries: OutSlice<T>,
    make: impl Fn(&Process) -> T,
) -> NvmlResult {
    let room = count.take()? as usize;
    if room > 0 {
        entries.required()?;
    }
    count.put(processes.len() as u32)?;
    if processes.len() > room {
        return Err(INSUFFICIENT_SIZE);
    }
    entries.put_list(&processes.iter().map(make).collect::<Vec<_>>()).map(|_| ())
}

fn fill_v1(device: Device, kind: Kind, count: InOut<u32>, infos: OutSlice<ProcessV1>) -> NvmlResult {
    let make = |process: &Process| ProcessV1 { pid: process.pid, used: process.used };
    fill(&list(device, kind)?, count, infos, make)
}

fn fill_v2(device: Device, kind: Kind, count: InOut<u32>, infos: OutSlice<ProcessV2>) -> NvmlResult {
    let make = |process: &Process| ProcessV2 {
        pid: process.pid,
        used: process.used,
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
    };
    fill(&list(device, kind)?, count, infos, make)
}

/// The same function under the names of the table.
macro_rules! lists {
    ($($name:ident: $fill:ident($kind:expr) of $entry:ty;)*) => {
        $(pub(crate) fn $name(device: Device, count: InOut<u32>, infos: OutSlice<$entry>) -> NvmlResult {
            $fill(device, $kind, count, infos)
        })*
    };
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    lists! {
        nvmlDeviceGetComputeRunningProcesses: fill_v1(Kind::Compute) of ProcessV1;
        nvmlDeviceGetComputeRunningProcesses_v2: fill_v2(Kind::Compute) of ProcessV2;
        nvmlDeviceGetComputeRunningProcesses_v3: fill_v2(Kind::Compute) of ProcessV2;
        nvmlDeviceGetGraphicsRunningProcesses: fill_v1(Kind::Other) of ProcessV1;
        nvmlDeviceGetGraphicsRunningProcesses_v2: fill_v2(Kind::Other) of ProcessV2;
        nvmlDeviceGetGraphicsRunningProcesses_v3: fill_v2(Kind::Other) of ProcessV2;
        nvmlDeviceGetMPSComputeRunningProcesses: fill_v1(Kind::Other) of ProcessV1;
        nvmlDeviceGetMPSComputeRunningProcesses_v2: fill_v2(Kind::Other) of ProcessV2;
        nvmlDeviceGetMPSComputeRunningProcesses_v3: fill_v2(Kind::Other) of ProcessV2;
    }

    pub(crate) fn nvmlDeviceGetRunningProcessDetailList(
        device: Device,
        to: Versioned<ProcessDetailList>,
    ) -> NvmlResult {
        const MODES: [Kind; 4] = [Kind::Compute, Kind::Other, Kind::Other, Kind::Compute];
        let to = to.of_version(version::<ProcessDetailList>(1), ARGUMENT_VERSION_MISMATCH)?;
        let mut details = to.take()?;
        let ProcessDetailList { mode, entries, count: room, .. } = details;
        let kind = *MODES.get(mode as usize).ok_or(INVALID_ARGUMENT)?;
        let make = |process: &Process| ProcessDetail {
            pid: process.pid,
            used: process.used,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
            protected: 0,
        };
        // SAFETY: by the API's contract, NULL or room for as many entries as the list says.
        let entries = unsafe { OutSlice::from_raw(entries, room.into()) };
        let filled = fill(&list(device, kind)?, InOut::with(&mut details.count), entries, make);
        to.put(details)?;
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn into(room: u32, array: &mut [u32]) -> (NvmlResult, u32) {
        let processes = [Process { pid: 7, used: 1 }, Process { pid: 8, used: 2 }];
        let mut count = room;
        let entries = if array.is_empty() { std::ptr::null_mut() } else { array.as_mut_ptr() };
        // SAFETY: the array is as long as it is said to be.
        let entries = unsafe { OutSlice::from_raw(entries, room.into()) };
        let result = fill(&processes, InOut::with(&mut count), entries, |process| process.pid);
        (result, count)
    }

    #[test]
    fn a_list_says_how_much_room_it_needs() {
        assert_eq!(into(0, &mut []), (Err(INSUFFICIENT_SIZE), 2));
        assert_eq!(into(1, &mut [0]), (Err(INSUFFICIENT_SIZE), 2));
        assert_eq!(into(2, &mut []), (Err(INVALID_ARGUMENT), 2));
        let mut array = [0; 3];
        assert_eq!(into(3, &mut array), (Ok(()), 2));
        assert_eq!(array, [7, 8, 0]);
    }
}
