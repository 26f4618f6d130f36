//! Turns a claim into limits for the broker.

use std::collections::BTreeSet;

use control::ZoneLimits;
use control::zone::{MAX_PRIORITY, MAX_SHARE};
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use serde::{Deserialize, Serialize};

use super::DRIVER;
use super::slices::{MEMORY, SHARE};
use crate::quantity;

/// A device of a claim, as kubelet is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    pub request: String,
    pub pool: String,
    pub device: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    pub limits: ZoneLimits,
    pub devices: Vec<Prepared>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ClaimError {
    #[error("claim {0} was deleted and created again: its UID is not the one that kubelet asked for")]
    Another(String),
    #[error("claim {0} is not allocated")]
    NotAllocated(String),
    #[error("claim {0} has no device of driver {DRIVER}")]
    NotOurs(String),
    #[error("claim {claim}: {what}")]
    Wrong { claim: String, what: String },
}

/// What `config[].opaque.parameters` of a claim or a class may say.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Parameters {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    cap: Option<u32>,
    priority: Option<u32>,
    pinned_memory: Option<String>,
}

/// Reads a claim that kubelet wants prepared.
pub fn terms(claim: &ResourceClaim, uid: &str) -> Result<Terms, ClaimError> {
    let name = claim.metadata.name.clone().unwrap_or_default();
    if claim.metadata.uid.as_deref() != Some(uid) {
        return Err(ClaimError::Another(name));
    }
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let devices = devices.ok_or_else(|| ClaimError::NotAllocated(name.clone()))?;
    let results = devices.results.iter().flatten().filter(|result| result.driver == DRIVER);
    let results: Vec<&DeviceRequestAllocationResult> = results.collect();
    if results.is_empty() {
        return Err(ClaimError::NotOurs(name));
    }
    let wrong = |what: String| ClaimError::Wrong { claim: name.clone(), what };
    let mut limits = ZoneLimits { memory: None, share: 0, ..ZoneLimits::default() };
    for result in &results {
        let consumed = |what: &str| {
            let quantity = result.consumed_capacity.as_ref().and_then(|consumed| consumed.get(what));
            quantity
                .map(|quantity| quantity::parse(&quantity.0))
                .transpose()
                .map_err(|error| wrong(error.to_string()))
        };
        if let Some(memory) = consumed(MEMORY)? {
            limits.memory = Some(limits.memory.unwrap_or(0).saturating_add(memory));
        }
        let share = consumed(SHARE)?.unwrap_or(100);
        limits.share = limits.share.saturating_add(u32::try_from(share).unwrap_or(MAX_SHARE)).clamp(1, MAX_SHARE);
    }
    if limits.memory == Some(0) {
        return Err(wrong("consumed memory is 0".to_owned()));
    }
    for config in devices.config.iter().flatten() {
        let Some(opaque) = config.opaque.as_ref().filter(|opaque| opaque.driver == DRIVER) else { continue };
        let parameters: Parameters = serde_json::from_value(opaque.parameters.0.clone())
            .map_err(|error| wrong(format!("parameters of {DRIVER}: {error}")))?;
        apply(&mut limits, &parameters, config.source == "FromClass").map_err(&wrong)?;
    }
    let prepared = results.into_iter().map(|result| Prepared {
        // A request with alternatives is known to containers by its own name, without that of the alternative.
        request: result.request.split('/').next().unwrap_or_default().to_owned(),
        pool: result.pool.clone(),
        device: result.device.clone(),
        share_id: result.share_id.clone(),
    });
    Ok(Terms { limits, devices: prepared.collect() })
}

/// The cluster's operator creates the class, a tenant the claim: a claim can only lower the limits of its class.
fn apply(limits: &mut ZoneLimits, parameters: &Parameters, from_class: bool) -> Result<(), String> {
    let version = (parameters.api_version.as_str(), parameters.kind.as_str());
    if !matches!(version, ("bulkhead.dev/v1alpha1", "ZoneParameters") | ("", "")) {
        return Err(format!("unknown parameters {} {}", version.0, version.1));
    }
    if let Some(cap) = parameters.cap {
        if !(1..=100).contains(&cap) {
            return Err("cap must be between 1 and 100".to_owned());
        }
        limits.cap = Some(limits.cap.map_or(cap, |known| known.min(cap)));
    }
    match parameters.priority {
        Some(_) if !from_class => return Err("priority can only be set by a DeviceClass".to_owned()),
        Some(priority) if priority > MAX_PRIORITY => {
            return Err(format!("priority must be between 0 and {MAX_PRIORITY}"));
        }
        Some(priority) => limits.priority = priority,
        None => {}
    }
    if let Some(pinned) = &parameters.pinned_memory {
        let pinned = quantity::parse(pinned).map_err(|error| format!("pinnedMemory: {error}"))?;
        if pinned == 0 {
            return Err("pinnedMemory must be greater than 0".to_owned());
        }
        limits.pinned = Some(limits.pinned.map_or(pinned, |known| known.min(pinned)));
    }
    Ok(())
}

/// The GPUs of a claim, by their names in the ResourceSlice.
pub fn gpus(devices: &[Prepared]) -> BTreeSet<&str> {
    devices.iter().map(|device| device.device.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(status: serde_json::Value) -> ResourceClaim {
        let text = serde_json::json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "name": "c", "namespace": "n", "uid": "u" },
            "spec": {}, "status": status
        });
        serde_json::from_value(text).unwrap()
    }

    fn allocated(results: serde_json::Value, config: serde_json::Value) -> ResourceClaim {
        claim(serde_json::json!({ "allocation": { "devices": { "results": results, "config": config } } }))
    }

    fn result(memory: &str, share: &str) -> serde_json::Value {
        serde_json::json!({ "driver": DRIVER, "pool": "p", "device": "gpu-0", "request": "r/sub", "shareID": "s",
            "consumedCapacity": { "memory": memory, "share": share } })
    }

    fn parameters(source: &str, parameters: serde_json::Value) -> serde_json::Value {
        serde_json::json!({ "source": source, "opaque": { "driver": DRIVER, "parameters": parameters } })
    }

    #[test]
    fn what_was_consumed_is_what_is_enforced() {
        let claim = allocated(serde_json::json!([result("10Gi", "25"), result("1Gi", "5")]), serde_json::json!([]));
        let terms = terms(&claim, "u").unwrap();
        assert_eq!((terms.limits.memory, terms.limits.share), (Some(11 << 30), 30));
        let share_id = Some("s".to_owned());
        let device = Prepared { request: "r".into(), pool: "p".into(), device: "gpu-0".into(), share_id };
        assert_eq!(terms.devices, [device.clone(), device]);
    }

    #[test]
    fn a_claim_can_only_take_less_than_its_class_gives() {
        let of = |claim: serde_json::Value| {
            let class = serde_json::json!({ "cap": 50, "priority": 3, "pinnedMemory": "1Gi" });
            let config = serde_json::json!([parameters("FromClass", class), parameters("FromClaim", claim)]);
            terms(&allocated(serde_json::json!([result("1Gi", "1")]), config), "u")
        };
        let named = serde_json::json!({ "apiVersion": "bulkhead.dev/v1alpha1", "kind": "ZoneParameters", "cap": 80 });
        let limits = of(named).unwrap().limits;
        assert_eq!((limits.cap, limits.priority, limits.pinned), (Some(50), 3, Some(1 << 30)));
        assert_eq!(of(serde_json::json!({ "cap": 20 })).unwrap().limits.cap, Some(20));
        assert!(of(serde_json::json!({ "priority": 9 })).unwrap_err().to_string().contains("DeviceClass"));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let fine = serde_json::json!([result("1Gi", "1")]);
        let says = |claim: ResourceClaim| terms(&claim, "u").unwrap_err().to_string();
        assert!(terms(&allocated(fine.clone(), serde_json::json!([])), "v").is_err());
        assert!(says(claim(serde_json::json!({}))).contains("not allocated"));
        let others = serde_json::json!([{ "driver": "x", "pool": "p", "device": "d", "request": "r" }]);
        assert!(says(allocated(others, serde_json::json!([]))).contains("no device of"));
        assert!(
            says(allocated(serde_json::json!([result("much", "1")]), serde_json::json!([]))).contains("quantity")
        );
        let with = |value| says(allocated(fine.clone(), serde_json::json!([parameters("FromClaim", value)])));
        assert!(with(serde_json::json!({ "caps": 5 })).contains("caps"));
        assert!(with(serde_json::json!({ "cap": 500 })).contains("between 1 and 100"));
        assert!(with(serde_json::json!({ "kind": "GpuConfig" })).contains("unknown parameters"));
    }
}
