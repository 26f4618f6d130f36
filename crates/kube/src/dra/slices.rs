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
    let theirs = cards.iter().enumerate().filter(|(gpu, _)| gpus.contains(gpu));
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
