//! What a node's cards look like, asked of the driver by a process that does nothing else.
//!
//! The broker must be able to tell a zone what its GPU is before any client has come, and may not load a driver itself.
//! So it starts a worker that answers this one question, from inside the jail, and ends.

use std::path::Path;

use cuda_abi::constants::device_attribute;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::CUuuid;
use cuda_abi::wire::view::{self, Card, MAX_CARDS, MAX_VIEW};
use cuda_abi::wire::{Malformed, Writer};

use super::Prepared;
use super::snapshot::until_nul;
use backend::survey::{self, Slice, simulated};
use control::backend::Backend;
use control::kernel_module;
use control::mig::Instance;

impl Prepared {
    /// Starts the driver and tells of its cards, in the form that [`view::read_cards`] reads.
    pub fn inventory(&self, backend: &Backend) -> Result<Vec<u8>, Malformed> {
        let mut buffer = vec![0; MAX_VIEW];
        let mut writer = Writer::new(&mut buffer);
        let mut cards = match backend {
            Backend::Soft { instances, .. } => soft_cards(&self.driver, *instances),
            Backend::Nvidia { library, devices } => nvidia_cards(&self.driver, library, devices),
        };
        cards.truncate(MAX_CARDS);
        view::write_cards(&cards, &mut writer);
        let len = writer.finish()?;
        buffer.truncate(len);
        Ok(buffer)
    }
}

fn soft_cards(driver: &Driver, instances: u32) -> Vec<Card> {
    let mut cards = cards(driver).unwrap_or_default();
    if instances > 0 {
        simulated::cut_cards(&mut cards, instances);
    }
    cards
}

/// Whole GPUs are asked of CUDA, which shows a process one instance only; so instances are asked of NVML.
fn nvidia_cards(driver: &Driver, library: &Path, devices: &[u32]) -> Vec<Card> {
    if !devices.iter().any(|number| Instance::of(*number).is_some()) {
        return cards(driver).unwrap_or_default();
    }
    let gpus = kernel_module::gpus(Path::new(kernel_module::PROC));
    let whole = gpus.into_iter().filter(|gpu| devices.contains(&gpu.minor)).filter_map(|gpu| gpu.uuid);
    let whole: Vec<String> = whole.collect();
    let mut found = Vec::new();
    if !whole.is_empty() {
        backend::show(&whole.join(","));
        found = cards(driver).unwrap_or_default();
    }
    match survey::cut_gpus(library) {
        Ok(cut) => found.extend(cut.iter().flat_map(instance_cards).filter(|card| is_among(card, devices))),
        Err(error) => tracing::warn!(%error, "cannot list MIG instances"),
    }
    found
}

fn is_among(card: &Card, devices: &[u32]) -> bool {
    card.mig.as_ref().is_some_and(|instance| devices.contains(&instance.number))
}

fn instance_cards(gpu: &survey::Gpu) -> Vec<Card> {
    let card = |slice: &survey::Slice| {
        let Slice { gpu_instance, compute_instance, .. } = *slice;
        let number = Instance { gpu: gpu.minor?, gpu_instance, compute_instance }.number()?;
        let (major, minor) = gpu.compute_capability.split_once('.')?;
        Some(Card {
            name: slice.name.clone(),
            uuid: uuid(&slice.uuid)?,
            bus_id: gpu.pci_bus_id.clone(),
            memory: slice.memory_bytes,
            capability: (major.parse().ok()?, minor.parse().ok()?),
            multiprocessors: slice.multiprocessors,
            mig: Some(view::Instance { gpu: uuid(&gpu.uuid)?, profile: slice.profile.clone(), number }),
            ..Card::default()
        })
    };
    gpu.mig.iter().flat_map(|mig| &mig.slices).filter_map(card).collect()
}

/// The bytes of a UUID that is written with what it is of in front.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let (_, digits) = text.split_once('-')?;
    let digits: Vec<u8> = digits.bytes().filter(|byte| *byte != b'-').collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect::<Option<_>>()?;
    bytes.try_into().ok()
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
        capability: (
            attribute(device_attribute::COMPUTE_CAPABILITY_MAJOR)?,
            attribute(device_attribute::COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(device_attribute::MULTIPROCESSOR_COUNT)?,
        // What only the node's own files know, the broker adds.
        ..Card::default()
    })
}

fn check(code: CUresult) -> Result<(), CUresult> {
    if code == CUDA_SUCCESS { Ok(()) } else { Err(code) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_abi::wire::Reader;

    #[test]
    fn the_software_gpu_is_described() {
        let backend = Backend::Soft { devices: 2, memory: 1 << 30, instances: 0, only: Vec::new() };
        let inventory = Prepared::load(&backend, Vec::new()).unwrap().inventory(&backend).unwrap();
        let cards = view::read_cards(&mut Reader::new(&inventory)).unwrap();
        // As many as the survey's test has: the driver starts once in a process.
        assert_eq!(cards.len(), 2);
        assert_eq!((cards[0].memory, cards[0].name.as_str()), (1 << 30, "Bulkhead softgpu"));
        assert_ne!(cards[0].uuid, cards[1].uuid);
        assert_ne!(cards[0].bus_id, cards[1].bus_id);
        // The same devices, as the instances of one GPU.
        let mut cut = cards.clone();
        simulated::cut_cards(&mut cut, 2);
        let instances: Vec<&view::Instance> = cut.iter().filter_map(|card| card.mig.as_ref()).collect();
        assert_eq!((instances[0].number, instances[1].number), (64, 72));
        assert_eq!((instances[0].gpu, instances[0].profile.as_str()), (instances[1].gpu, "1g.1gb"));
        assert_ne!(instances[0].gpu, cards[0].uuid);
    }

    #[test]
    fn an_instance_is_a_card_of_its_own() {
        let slice = Slice {
            name: "NVIDIA H200 MIG 1g.18gb".into(),
            uuid: "MIG-00112233-4455-6677-8899-aabbccddeeff".into(),
            profile: "1g.18gb".into(),
            memory_bytes: 16 << 30,
            multiprocessors: 16,
            gpu_instance: 9,
            ..Slice::default()
        };
        let nonsense = Slice { uuid: "MIG-GPU-0011/9/0".into(), ..slice.clone() };
        let gpu = survey::Gpu {
            uuid: "GPU-ff112233-4455-6677-8899-aabbccddeeff".into(),
            pci_bus_id: "0000:41:00.0".into(),
            compute_capability: "9.0".into(),
            minor: Some(3),
            mig: Some(survey::Mig { enabled: true, slices: vec![slice, nonsense] }),
            ..survey::Gpu::default()
        };
        let [card] = &instance_cards(&gpu)[..] else { panic!("one") };
        assert_eq!(card.uuid_text(), "MIG-00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!((card.capability, card.memory, card.bus_id.as_str()), ((9, 0), 16 << 30, "0000:41:00.0"));
        let instance = card.mig.as_ref().unwrap();
        assert_eq!((instance.gpu_uuid_text(), instance.profile.as_str()), (gpu.uuid, "1g.18gb"));
        let named = Instance { gpu: 3, gpu_instance: 9, compute_instance: 0 };
        assert_eq!(Instance::of(instance.number), Some(named));
        assert!(is_among(card, &[instance.number]) && !is_among(card, &[3]));
    }
}
