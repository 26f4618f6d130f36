//! The zone's cards: finding them, and what they are.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use cuda_abi::wire::view::{Card, MAX_CARDS, ZoneView};
use inquiry::PciAddress;

use crate::codes::*;
use crate::entry::{NvmlResult, Out, OutSlice, Str, Versioned, put_text, take_text};
use crate::session;
use crate::types::*;

/// A handle is the address of one of these: never NULL, and of nobody else's use.
static HANDLES: [u64; MAX_CARDS] = [0; MAX_CARDS];

pub(crate) fn handle(index: usize) -> NvmlResult<Device> {
    HANDLES.get(index).map(|place| std::ptr::from_ref(place).cast::<c_void>()).ok_or(INVALID_ARGUMENT)
}

/// The index of a card and the view it is of.
pub(crate) fn find(device: Device) -> NvmlResult<(usize, Arc<ZoneView>)> {
    let view = session::first()?;
    let index = (0..view.cards.len()).find(|index| handle(*index) == Ok(device));
    Ok((index.ok_or(INVALID_ARGUMENT)?, view))
}

fn with<T>(device: Device, answer: impl FnOnce(&Card) -> T) -> NvmlResult<T> {
    find(device).map(|(index, view)| answer(&view.cards[index]))
}

/// The first card of which something is true.
fn first(is: impl Fn(&Card) -> bool) -> NvmlResult<Device> {
    let index = session::first()?.cards.iter().position(is).ok_or(NOT_FOUND)?;
    handle(index)
}

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let len = text.len().min(N - 1);
    bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
    bytes
}

/// An address in the form of earlier versions.
fn legacy_text(address: PciAddress) -> String {
    let PciAddress { domain, bus, device } = address;
    format!("{domain:04X}:{bus:02X}:{device:02X}.0")
}

fn address(device: Device) -> NvmlResult<(PciAddress, u32, u32)> {
    with(device, |card| Some((PciAddress::parse(&card.bus_id)?, card.pci_device, card.pci_subsystem)))?.ok_or(UNKNOWN)
}

/// `nvmlDeviceArchitecture_t` of a compute capability.
fn architecture((major, minor): (u32, u32)) -> u32 {
    const UNKNOWN: u32 = u32::MAX;
    match (major, minor) {
        (3, _) => 2,
        (5, _) => 3,
        (6, _) => 4,
        (7, 0..5) => 5,
        (7, _) => 6,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        (10..=12, _) => 10,
        _ => UNKNOWN,
    }
}

fn cores_per_multiprocessor(capability: (u32, u32)) -> u32 {
    match capability {
        (3, _) => 192,
        (6, 0) | (7, _) | (8, 0) => 64,
        _ => 128,
    }
}

/// `nvmlBrandType_t`, as far as a name tells.
fn brand(name: &str) -> u32 {
    let known = [("GeForce RTX", 15), ("GeForce", 5), ("Tesla", 2), ("Quadro", 1), ("NVIDIA", 14)];
    known.iter().find(|(part, _)| name.contains(part)).map_or(0, |(_, brand)| *brand)
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) fn nvmlDeviceGetCount(count: Out<u32>) -> NvmlResult {
        count.put(session::first()?.cards.len() as u32)
    }

    pub(crate) fn nvmlDeviceGetCount_v2(count: Out<u32>) -> NvmlResult {
        nvmlDeviceGetCount(count)
    }

    pub(crate) fn nvmlDeviceGetHandleByIndex(index: u32, device: Out<Device>) -> NvmlResult {
        let known = (index as usize) < session::first()?.cards.len();
        let found = if known { handle(index as usize)? } else { return Err(INVALID_ARGUMENT) };
        device.put(found)
    }

    pub(crate) fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<Device>) -> NvmlResult {
        nvmlDeviceGetHandleByIndex(index, device)
    }

    pub(crate) fn nvmlDeviceGetHandleByUUID(uuid: Str, device: Out<Device>) -> NvmlResult {
        let wanted = take_text(uuid)?;
        let found = first(|card| card.uuid_text().eq_ignore_ascii_case(wanted))?;
        device.put(found)
    }

    pub(crate) fn nvmlDeviceGetHandleByUUIDV(uuid: Versioned<Uuid>, device: Out<Device>) -> NvmlResult {
        const ASCII: u32 = 1;
        const BINARY: u32 = 2;
        let Uuid { kind, value, .. } = uuid.of_version(version::<Uuid>(1), ARGUMENT_VERSION_MISMATCH)?.take()?;
        let found = match kind {
            ASCII => {
                let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
                first(|card| card.uuid_text().as_bytes().eq_ignore_ascii_case(&value[..end]))?
            }
            BINARY => first(|card| card.uuid == value[..16])?,
            _ => return Err(INVALID_ARGUMENT),
        };
        device.put(found)
    }

    pub(crate) fn nvmlDeviceGetHandleByPciBusId(id: Str, device: Out<Device>) -> NvmlResult {
        let wanted = PciAddress::parse(take_text(id)?).ok_or(INVALID_ARGUMENT)?;
        let found = first(|card| PciAddress::parse(&card.bus_id) == Some(wanted))?;
        device.put(found)
    }

    pub(crate) fn nvmlDeviceGetHandleByPciBusId_v2(id: Str, device: Out<Device>) -> NvmlResult {
        nvmlDeviceGetHandleByPciBusId(id, device)
    }

    pub(crate) fn nvmlDeviceGetName(device: Device, name: OutSlice<c_char>, _length: u32) -> NvmlResult {
        with(device, |card| put_text(name, &card.name))?
    }

    pub(crate) fn nvmlDeviceGetUUID(device: Device, uuid: OutSlice<c_char>, _length: u32) -> NvmlResult {
        with(device, |card| put_text(uuid, &card.uuid_text()))?
    }

    pub(crate) fn nvmlDeviceGetIndex(device: Device, index: Out<u32>) -> NvmlResult {
        index.put(find(device)?.0 as u32)
    }

    pub(crate) fn nvmlDeviceGetBrand(device: Device, to: Out<u32>) -> NvmlResult {
        with(device, |card| to.put(brand(&card.name)))?
    }

    pub(crate) fn nvmlDeviceGetArchitecture(device: Device, to: Out<u32>) -> NvmlResult {
        with(device, |card| to.put(architecture(card.capability)))?
    }

    pub(crate) fn nvmlDeviceGetCudaComputeCapability(device: Device, major: Out<i32>, minor: Out<i32>) -> NvmlResult {
        let capability = with(device, |card| card.capability)?;
        major.put(capability.0 as i32)?;
        minor.put(capability.1 as i32)
    }

    pub(crate) fn nvmlDeviceGetNumGpuCores(device: Device, cores: Out<u32>) -> NvmlResult {
        let count =
            with(device, |card| card.multiprocessors.saturating_mul(cores_per_multiprocessor(card.capability)))?;
        cores.put(count)
    }

    pub(crate) fn nvmlDeviceGetPciInfo(device: Device, info: Out<PciInfoLegacy>) -> NvmlResult {
        let (address, pci_device, pci_subsystem) = address(device)?;
        let PciAddress { domain, bus, device } = address;
        let bus_id = padded(&legacy_text(address));
        let found = PciInfoLegacy { bus_id, domain, bus, device, pci_device, pci_subsystem, reserved: [0; 4] };
        info.put(found)
    }

    pub(crate) fn nvmlDeviceGetPciInfo_v2(device: Device, info: Out<PciInfoLegacy>) -> NvmlResult {
        nvmlDeviceGetPciInfo(device, info)
    }

    pub(crate) fn nvmlDeviceGetPciInfo_v3(device: Device, info: Out<PciInfo>) -> NvmlResult {
        let (address, pci_device, pci_subsystem) = address(device)?;
        let PciAddress { domain, bus, device } = address;
        let (bus_id_legacy, bus_id) = (padded(&legacy_text(address)), padded(&address.to_string()));
        let found = PciInfo { bus_id_legacy, domain, bus, device, pci_device, pci_subsystem, bus_id };
        info.put(found)
    }

    pub(crate) fn nvmlDeviceGetPciInfoExt(device: Device, info: Versioned<PciInfoExt>) -> NvmlResult {
        /// A 3D controller, as PCI knows it.
        const CLASS: (u32, u32) = (3, 2);
        let (address, pci_device, pci_subsystem) = address(device)?;
        let PciAddress { domain, bus, device } = address;
        let (base_class, sub_class) = CLASS;
        let version = version::<PciInfoExt>(1);
        let info = info.of_version(version, ARGUMENT_VERSION_MISMATCH)?;
        let bus_id = padded(&address.to_string());
        let found =
            PciInfoExt { version, domain, bus, device, pci_device, pci_subsystem, base_class, sub_class, bus_id };
        info.put(found)
    }

    /// Everybody may compute.
    pub(crate) fn nvmlDeviceGetComputeMode(device: Device, mode: Out<u32>) -> NvmlResult {
        find(device).and_then(|_| mode.put(0))
    }

    /// The card is kept up by those who serve it.
    pub(crate) fn nvmlDeviceGetPersistenceMode(device: Device, mode: Out<u32>) -> NvmlResult {
        find(device).and_then(|_| mode.put(1))
    }

    pub(crate) fn nvmlDeviceGetDisplayActive(device: Device, state: Out<u32>) -> NvmlResult {
        find(device).and_then(|_| state.put(0))
    }

    pub(crate) fn nvmlDeviceGetDisplayMode(device: Device, state: Out<u32>) -> NvmlResult {
        find(device).and_then(|_| state.put(0))
    }

    pub(crate) fn nvmlDeviceGetMultiGpuBoard(device: Device, multi: Out<u32>) -> NvmlResult {
        find(device).and_then(|_| multi.put(0))
    }

    pub(crate) fn nvmlDeviceIsMigDeviceHandle(device: Device, answer: Out<u32>) -> NvmlResult {
        find(device).and_then(|_| answer.put(0))
    }

    pub(crate) fn nvmlDeviceGetMaxMigDeviceCount(device: Device, count: Out<u32>) -> NvmlResult {
        find(device).and_then(|_| count.put(0))
    }

    /// Whatever the cards could do, zones do not do it.
    pub(crate) fn nvmlDeviceGetP2PStatus(a: Device, b: Device, _index: u32, status: Out<u32>) -> NvmlResult {
        const P2P_NOT_SUPPORTED: u32 = 5;
        find(a)?;
        find(b)?;
        status.put(P2P_NOT_SUPPORTED)
    }

    /// How the node is wired is not for tenants: as far apart as can be.
    pub(crate) fn nvmlDeviceGetTopologyCommonAncestor(a: Device, b: Device, level: Out<u32>) -> NvmlResult {
        const SYSTEM: u32 = 50;
        find(a)?;
        find(b)?;
        level.put(SYSTEM)
    }

    pub(crate) fn nvmlDeviceOnSameBoard(a: Device, b: Device, same: Out<i32>) -> NvmlResult {
        let answer = find(a)?.0 == find(b)?.0;
        same.put(i32::from(answer))
    }

    /// Each field has a code of its own, and none of them has an answer.
    pub(crate) unsafe fn nvmlDeviceGetFieldValues(device: Device, count: i32, values: *mut FieldValue) -> NvmlResult {
        find(device)?;
        let count = usize::try_from(count).ok().filter(|count| *count > 0 && !values.is_null());
        for index in 0..count.ok_or(INVALID_ARGUMENT)? {
            // SAFETY: the caller vouches for `count` values.
            unsafe { (&raw mut (*values.add(index)).code).write(NOT_SUPPORTED) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_addresses_differ_in_their_domain() {
        let address = PciAddress { domain: 0, bus: 0x18, device: 0 };
        assert_eq!(legacy_text(address), "0000:18:00.0");
        assert_eq!(&padded::<32>(&address.to_string())[..17], b"00000000:18:00.0\0");
    }

    #[test]
    fn generations_have_their_numbers() {
        let known = [((8, 0), 7), ((8, 6), 7), ((8, 9), 8), ((9, 0), 9), ((10, 0), 10), ((12, 0), 10), ((7, 5), 6)];
        for (capability, number) in known {
            assert_eq!(architecture(capability), number, "{capability:?}");
        }
        assert_eq!(architecture((0, 0)), u32::MAX);
    }
}
