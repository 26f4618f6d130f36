//! The zone's own processes, and nobody else's.

use cuda_abi::wire::view::Process;

use crate::cards::find;
use crate::codes::*;
use crate::entry::Nvml;
use crate::session;
use crate::types::*;

/// Of a card that is not cut into instances.
const NO_INSTANCE: u32 = u32::MAX;

/// What a list is of. Programs in a zone compute; there is no other kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Compute,
    Other,
}

pub fn list(device: Device, kind: Kind) -> Nvml<Vec<Process>> {
    find(device)?;
    match kind {
        Kind::Compute => Ok(session::now()?.processes),
        Kind::Other => Ok(Vec::new()),
    }
}

/// Fills an array of the caller's: `count` says how many fit, and afterwards how many there are.
///
/// # Safety
/// `count` is NULL or writable; `entries` is NULL or writable for as many entries as `count` says.
unsafe fn fill<T>(processes: &[Process], count: *mut u32, entries: *mut T, make: impl Fn(&Process) -> T) -> Nvml {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not NULL.
    let room = unsafe { count.read() } as usize;
    if room > 0 && entries.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: as above.
    unsafe { count.write(processes.len() as u32) };
    if processes.len() > room {
        return Err(INSUFFICIENT_SIZE);
    }
    for (index, process) in processes.iter().enumerate() {
        // SAFETY: there is room for all of them.
        unsafe { entries.add(index).write(make(process)) };
    }
    Ok(())
}

unsafe fn fill_v1(device: Device, kind: Kind, count: *mut u32, infos: *mut ProcessV1) -> Nvml {
    let make = |process: &Process| ProcessV1 { pid: process.pid, used: process.used };
    // SAFETY: passed on.
    unsafe { fill(&list(device, kind)?, count, infos, make) }
}

unsafe fn fill_v2(device: Device, kind: Kind, count: *mut u32, infos: *mut ProcessV2) -> Nvml {
    let make = |process: &Process| ProcessV2 {
        pid: process.pid,
        used: process.used,
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
    };
    // SAFETY: passed on.
    unsafe { fill(&list(device, kind)?, count, infos, make) }
}

/// The same function under the names of the table.
macro_rules! lists {
    ($($name:ident: $fill:ident($kind:expr) of $entry:ty;)*) => {
        $(pub unsafe fn $name(device: Device, count: *mut u32, infos: *mut $entry) -> Nvml {
            // SAFETY: passed on.
            unsafe { $fill(device, $kind, count, infos) }
        })*
    };
}

#[allow(non_snake_case)]
pub mod api {
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

    pub unsafe fn nvmlDeviceGetRunningProcessDetailList(device: Device, to: *mut ProcessDetailList) -> Nvml {
        const MODES: [Kind; 4] = [Kind::Compute, Kind::Other, Kind::Other, Kind::Compute];
        if to.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not NULL; the version comes first in whatever struct it is.
        if unsafe { (&raw const (*to).version).read() } != version::<ProcessDetailList>(1) {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        // SAFETY: of the version that we know.
        let (mode, entries) = unsafe { ((*to).mode, (*to).entries) };
        let kind = *MODES.get(mode as usize).ok_or(INVALID_ARGUMENT)?;
        let make = |process: &Process| ProcessDetail {
            pid: process.pid,
            used: process.used,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
            protected: 0,
        };
        // SAFETY: the caller vouches for the array and its count.
        unsafe { fill(&list(device, kind)?, &raw mut (*to).count, entries, make) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn into(room: u32, array: &mut [u32]) -> (Nvml, u32) {
        let processes = [Process { pid: 7, used: 1 }, Process { pid: 8, used: 2 }];
        let mut count = room;
        let entries = if array.is_empty() { std::ptr::null_mut() } else { array.as_mut_ptr() };
        // SAFETY: the array is as long as it is said to be.
        let result = unsafe { fill(&processes, &mut count, entries, |process| process.pid) };
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
