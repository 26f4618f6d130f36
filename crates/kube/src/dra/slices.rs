//! What the node offers to claims: each GPU, of which claims take memory and share.

use std::collections::{BTreeMap, BTreeSet};

use control::admin::CardStatus;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity, ResourcePool,
    ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::DRIVER;
use crate::quantity;

const MIB: u64 = 1 << 20;
pub const MEMORY: &str = "memory";
pub const SHARE: &str = "share";

/// The name of a GPU in slices, by its place among the broker's.
pub fn device_name(gpu: usize) -> String {
    format!("gpu-{gpu}")
}

/// The name of the node's slice.
pub fn slice_name(node: &str) -> String {
    format!("{node}-{DRIVER}")
}

/// `gpus`: those that claims get parts of. `reserve`: memory of each that they do not get.
pub fn slice(
    node: &str,
    cards: &[CardStatus],
    gpus: &BTreeSet<usize>,
    reserve: u64,
    generation: i64,
) -> ResourceSlice {
    // What claims have of a GPU that does not work stays theirs; there is nothing of it for others.
    let theirs = cards.iter().enumerate().filter(|(gpu, card)| gpus.contains(gpu) && card.fault.is_none());
    let devices: Vec<Device> = theirs.map(|(gpu, card)| device(gpu, card, reserve)).collect();
    ResourceSlice {
        metadata: ObjectMeta { name: Some(slice_name(node)), ..ObjectMeta::default() },
        spec: ResourceSliceSpec {
            driver: DRIVER.to_owned(),
            node_name: Some(node.to_owned()),
            pool: ResourcePool { name: node.to_owned(), generation, resource_slice_count: 1 },
            // As the API server gives it back.
            devices: Some(devices).filter(|devices| !devices.is_empty()),
            ..ResourceSliceSpec::default()
        },
    }
}

fn device(gpu: usize, card: &CardStatus, reserve: u64) -> Device {
    let text = |text: &str| DeviceAttribute {
        // As long as an attribute may be.
        string: Some(text.chars().take(64).collect()),
        ..DeviceAttribute::default()
    };
    let version = |(major, minor): (u32, u32)| DeviceAttribute {
        version: Some(format!("{major}.{minor}.0")),
        ..DeviceAttribute::default()
    };
    let number = |value: u64| DeviceAttribute { int: i64::try_from(value).ok(), ..DeviceAttribute::default() };
    let mut attributes = vec![
        ("type", text(if card.mig.is_some() { "mig" } else { "gpu" })),
        ("uuid", text(&card.uuid)),
        ("productName", text(&card.name)),
        ("pciBusID", text(&card.bus_id)),
        ("index", number(gpu as u64)),
        ("cudaComputeCapability", version(card.capability)),
        ("multiprocessors", number(card.multiprocessors.into())),
    ];
    attributes.extend(card.numa_node.map(|node| ("numaNode", number(node.into()))));
    // The names by which drivers of other devices tell the same: a claim can ask for a GPU and a network card of one root.
    attributes.push(("resource.kubernetes.io/pciBusID", text(&card.bus_id)));
    attributes.extend(card.pcie_root.as_ref().map(|root| ("resource.kubernetes.io/pcieRoot", text(root))));
    let driver = semantic(&card.driver_version)
        .map(|version| DeviceAttribute { version: Some(version), ..DeviceAttribute::default() });
    attributes.extend(driver.map(|version| ("driverVersion", version)));
    if let Some(mig) = &card.mig {
        attributes.extend([("profile", text(&mig.profile)), ("parentUUID", text(&mig.parent_uuid))]);
    }
    let memory = card.memory.saturating_sub(reserve) / MIB * MIB;
    let memory = quantity::of_bytes(memory);
    // Who does not say how much gets all of the memory, and of the time what the others leave: a claim for memory alone
    // must not keep everybody else off the GPU.
    let capacity = [(MEMORY, capacity(&memory, "1Mi", &memory)), (SHARE, capacity("100", "1", "1"))];
    Device {
        name: device_name(gpu),
        allow_multiple_allocations: Some(true),
        attributes: Some(named(attributes)),
        capacity: Some(named(capacity)),
        ..Device::default()
    }
}

/// A driver's version as Kubernetes compares versions: three numbers without zeros before them.
fn semantic(version: &str) -> Option<String> {
    let numbers: Vec<u32> = version.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    match numbers[..] {
        [major] => Some(format!("{major}.0.0")),
        [major, minor] => Some(format!("{major}.{minor}.0")),
        [major, minor, patch] => Some(format!("{major}.{minor}.{patch}")),
        _ => None,
    }
}

/// `default`: for who does not say how much.
fn capacity(all: &str, step: &str, default: &str) -> DeviceCapacity {
    let quantity = |text: &str| Quantity(text.to_owned());
    let range =
        CapacityRequestPolicyRange { min: quantity(step), step: Some(quantity(step)), max: Some(quantity(all)) };
    let policy =
        CapacityRequestPolicy { default: Some(quantity(default)), valid_range: Some(range), valid_values: None };
    DeviceCapacity { value: quantity(all), request_policy: Some(policy) }
}

fn named<T>(entries: impl IntoIterator<Item = (&'static str, T)>) -> BTreeMap<String, T> {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(at: u32) -> CardStatus {
        CardStatus {
            name: "NVIDIA H200".into(),
            uuid: format!("GPU-{at}"),
            number: at,
            bus_id: format!("0000:{at:02x}:00.0"),
            memory: 140 << 30,
            capability: (9, 0),
            multiprocessors: 132,
            mig: None,
            numa_node: Some(at),
            pcie_root: Some(format!("pci0000:{at}0")),
            driver_version: "580.65.06".into(),
            fault: None,
        }
    }

    fn devices(cards: &[CardStatus]) -> Vec<Device> {
        slice("node", cards, &(0..cards.len()).collect(), 0, 1).spec.devices.unwrap_or_default()
    }

    #[test]
    fn claims_can_tell_gpus_apart_and_match_them_with_other_devices() {
        let devices = devices(&[card(0), card(1)]);
        let attribute = |name: &str| devices[1].attributes.as_ref().unwrap()[name].clone();
        assert_eq!(attribute("uuid").string.as_deref(), Some("GPU-1"));
        assert_eq!(attribute("numaNode").int, Some(1));
        assert_eq!(attribute("resource.kubernetes.io/pcieRoot").string.as_deref(), Some("pci0000:10"));
        assert_eq!(attribute("resource.kubernetes.io/pciBusID").string.as_deref(), Some("0000:01:00.0"));
        // 580.65.06 is no version to Kubernetes, which would refuse the whole slice.
        assert_eq!(attribute("driverVersion").version.as_deref(), Some("580.65.6"));
        for wrong in ["", "unknown", "580.x", "1.2.3.4"] {
            assert_eq!(semantic(wrong), None, "{wrong}");
        }
        assert_eq!(semantic("580.159"), Some("580.159.0".to_owned()));
        let none = CardStatus { numa_node: None, pcie_root: None, driver_version: "unknown".into(), ..card(0) };
        let known = super::tests::devices(&[none])[0].attributes.clone().unwrap();
        assert!(!known.contains_key("numaNode") && !known.contains_key("driverVersion"), "{known:?}");
    }

    #[test]
    fn a_gpu_that_does_not_work_is_offered_to_nobody() {
        let broken = CardStatus { fault: Some("lost".into()), ..card(0) };
        let devices = devices(&[broken, card(1)]);
        // The others keep their names.
        assert_eq!(devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["gpu-1"]);
    }
}
