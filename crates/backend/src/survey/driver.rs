//! What the CUDA driver itself tells of its GPUs.

use cuda_abi::constants::{device_attribute, p2p_attribute};
use cuda_abi::driver::Driver;
use cuda_abi::types::CUuuid;

use super::{Gpu, Kind, Link, Survey, SurveyError};
use control::backend::Backend;

const MAX_GPUS: i32 = 64;

fn check(call: &'static str, code: u32) -> Result<(), SurveyError> {
    if code == 0 { Ok(()) } else { Err(SurveyError::Cuda { call, code }) }
}

pub(super) fn look(backend: &Backend) -> Result<Survey, SurveyError> {
    let driver = crate::load(backend)?;
    let (mut version, mut count) = (0, 0);
    // SAFETY: outputs are locals; cuInit comes first.
    unsafe {
        check("cuInit", (driver.cuInit)(0))?;
        check("cuDriverGetVersion", (driver.cuDriverGetVersion)(&mut version))?;
        check("cuDeviceGetCount", (driver.cuDeviceGetCount)(&mut count))?;
    }
    let count = count.clamp(0, MAX_GPUS);
    let gpus = (0..count).map(|index| gpu(&driver, index)).collect::<Result<Vec<_>, _>>()?;
    let row = |from: i32| (0..count).map(|to| link(&driver, from, to)).collect();
    Ok(Survey {
        backend: backend.name().to_owned(),
        cuda_version: format!("{}.{}", version / 1000, version % 1000 / 10),
        gpus,
        links: (0..count).map(row).collect(),
        ..Survey::default()
    })
}

fn gpu(driver: &Driver, index: i32) -> Result<Gpu, SurveyError> {
    let (mut device, mut memory, mut uuid) = (0, 0usize, CUuuid::default());
    let (mut name, mut bus) = ([0u8; 256], [0u8; 64]);
    // SAFETY: outputs are locals of the sizes given.
    unsafe {
        check("cuDeviceGet", (driver.cuDeviceGet)(&mut device, index))?;
        check("cuDeviceGetName", (driver.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as i32, device))?;
        check("cuDeviceGetUuid", (driver.cuDeviceGetUuid_v2)(&mut uuid, device))?;
        check("cuDeviceTotalMem", (driver.cuDeviceTotalMem_v2)(&mut memory, device))?;
        check(
            "cuDeviceGetPCIBusId",
            (driver.cuDeviceGetPCIBusId)(bus.as_mut_ptr().cast(), bus.len() as i32, device),
        )?;
    }
    let attribute = |number: u32| {
        let mut value = 0;
        // SAFETY: the output is a local.
        let code = unsafe { (driver.cuDeviceGetAttribute)(&mut value, number, device) };
        check("cuDeviceGetAttribute", code).map(|()| u32::try_from(value).unwrap_or(0))
    };
    Ok(Gpu {
        index: index as u32,
        name: text(&name),
        uuid: cuda_abi::wire::view::uuid_text("GPU", &uuid.0),
        pci_bus_id: text(&bus),
        memory_bytes: memory as u64,
        multiprocessors: attribute(device_attribute::MULTIPROCESSOR_COUNT)?,
        compute_capability: format!(
            "{}.{}",
            attribute(device_attribute::COMPUTE_CAPABILITY_MAJOR)?,
            attribute(device_attribute::COMPUTE_CAPABILITY_MINOR)?
        ),
        pageable_memory_access: attribute(device_attribute::PAGEABLE_MEMORY_ACCESS).is_ok_and(|value| value != 0),
        ..Gpu::default()
    })
}

fn link(driver: &Driver, from: i32, to: i32) -> Link {
    if from == to {
        return Link { kind: Kind::Itself, peer_access: true, native_atomics: true, rank: None };
    }
    let attribute = |number: u32| {
        let mut value = 0;
        // SAFETY: the output is a local; the devices were found before.
        let code = unsafe { (driver.cuDeviceGetP2PAttribute)(&mut value, number, from, to) };
        (code == 0).then_some(value)
    };
    let mut can = 0;
    // SAFETY: the output is a local.
    let told = unsafe { (driver.cuDeviceCanAccessPeer)(&mut can, from, to) } == 0;
    Link {
        kind: Kind::Unknown,
        peer_access: told && can != 0,
        native_atomics: attribute(p2p_attribute::NATIVE_ATOMIC_SUPPORTED).is_some_and(|value| value != 0),
        rank: attribute(p2p_attribute::PERFORMANCE_RANK),
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printable() {
        assert_eq!(text(b"a\x07b\0c"), "ab");
    }
}
