//! What a node's cards look like, asked of the driver by a process that does nothing else.
//!
//! The broker must be able to tell a zone what its GPU is before any client has come, and may not load a driver itself.
//! So it starts a worker that answers this one question, from inside the jail, and ends.

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::CUuuid;
use cuda_abi::wire::view::{self, Card, MAX_CARDS, MAX_VIEW};
use cuda_abi::wire::{Malformed, Writer};

use super::Prepared;
use super::snapshot::until_nul;

const CAPABILITY_MAJOR: u32 = 75;
const CAPABILITY_MINOR: u32 = 76;
const MULTIPROCESSORS: u32 = 16;

impl Prepared {
    /// Starts the driver and tells of its cards, in the form that [`view::read_cards`] reads.
    pub fn inventory(&self) -> Result<Vec<u8>, Malformed> {
        let mut buffer = vec![0; MAX_VIEW];
        let mut writer = Writer::new(&mut buffer);
        view::write_cards(&cards(&self.driver).unwrap_or_default(), &mut writer);
        let len = writer.finish()?;
        buffer.truncate(len);
        Ok(buffer)
    }
}

fn cards(driver: &Driver) -> Result<Vec<Card>, CUresult> {
    let mut count = 0;
    // SAFETY: the driver's first call; the output is a local.
    unsafe {
        check((driver.cuInit)(0))?;
        check((driver.cuDeviceGetCount)(&mut count))?;
    }
    (0..count.clamp(0, MAX_CARDS as i32)).map(|ordinal| card(driver, ordinal)).collect()
}

fn card(driver: &Driver, ordinal: i32) -> Result<Card, CUresult> {
    let (mut device, mut memory, mut uuid) = (0, 0usize, CUuuid::default());
    let (mut name, mut bus) = ([0u8; 256], [0u8; 64]);
    // SAFETY: outputs are locals of the sizes given.
    unsafe {
        check((driver.cuDeviceGet)(&mut device, ordinal))?;
        check((driver.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as i32, device))?;
        check((driver.cuDeviceGetUuid_v2)(&mut uuid, device))?;
        check((driver.cuDeviceTotalMem_v2)(&mut memory, device))?;
        check((driver.cuDeviceGetPCIBusId)(bus.as_mut_ptr().cast(), bus.len() as i32, device))?;
    }
    let attribute = |number: u32| -> Result<u32, CUresult> {
        let mut value = 0;
        // SAFETY: the output is a local.
        unsafe { check((driver.cuDeviceGetAttribute)(&mut value, number, device))? };
        Ok(u32::try_from(value).unwrap_or(0))
    };
    Ok(Card {
        name: String::from_utf8_lossy(until_nul(&name)).into_owned(),
        uuid: uuid.0,
        bus_id: String::from_utf8_lossy(until_nul(&bus)).into_owned(),
        memory: memory as u64,
        capability: (attribute(CAPABILITY_MAJOR)?, attribute(CAPABILITY_MINOR)?),
        multiprocessors: attribute(MULTIPROCESSORS)?,
        // What only the node's own files know, the broker adds.
        pci_device: 0,
        pci_subsystem: 0,
    })
}

fn check(code: CUresult) -> Result<(), CUresult> {
    if code == CUDA_SUCCESS { Ok(()) } else { Err(code) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use cuda_abi::wire::Reader;

    #[test]
    fn the_software_gpu_is_described() {
        let prepared = Prepared::load(&Backend::Soft { devices: 2, memory: 1 << 30, only: Vec::new() }).unwrap();
        let cards = view::read_cards(&mut Reader::new(&prepared.inventory().unwrap())).unwrap();
        // As many as the survey's test has: the driver starts once in a process.
        assert_eq!(cards.len(), 2);
        assert_eq!((cards[0].memory, cards[0].name.as_str()), (1 << 30, "Bulkhead softgpu"));
        assert_ne!(cards[0].uuid, cards[1].uuid);
        assert_ne!(cards[0].bus_id, cards[1].bus_id);
    }
}
