//! Turns a claim into limits for the broker.
//!
//! A claim has requests; a request was given devices, of each so much memory and share; and parameters of the class or of
//! the claim are for all requests or for some ([`parameters`]). All of that is kept apart, as a list of devices with their
//! requests and limits ([`Terms`]). A zone has limits for each GPU, so only requests that got the same GPU are added up, and
//! only the host's limits are one for the whole claim ([`Terms::zone_limits`]).

mod parameters;
pub(super) mod unlisted;

use std::collections::BTreeMap;

use control::zone::{GpuLimits, MAX_SHARE};
use control::{ZoneLimits, ZoneSettings};
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use serde::{Deserialize, Serialize};

use super::DRIVER;
use super::slices::{MEMORY, SHARE};
use crate::quantity;
use parameters::Parameters;

/// A device of a claim, as kubelet is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    pub request: String,
    pub pool: String,
    pub device: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
}

/// A device that a request was given, and its limits there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceTerms {
    pub prepared: Prepared,
    /// Priority, cap and pinned memory are those of the request.
    pub limits: ZoneLimits,
}

/// A request, with the devices that it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestTerms {
    /// With the name of the alternative, if it has some: `request/alternative`.
    pub request: String,
    pub devices: Vec<DeviceTerms>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    pub requests: Vec<RequestTerms>,
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

/// The devices of ours that a claim was given.
fn results<'a>(
    claim: &'a ResourceClaim,
    name: &str,
    uid: &str,
) -> Result<Vec<&'a DeviceRequestAllocationResult>, ClaimError> {
    if claim.metadata.uid.as_deref() != Some(uid) {
        return Err(ClaimError::Another(name.to_owned()));
    }
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let devices = devices.ok_or_else(|| ClaimError::NotAllocated(name.to_owned()))?;
    let ours: Vec<_> = devices.results.iter().flatten().filter(|result| result.driver == DRIVER).collect();
    if ours.is_empty() {
        return Err(ClaimError::NotOurs(name.to_owned()));
    }
    Ok(ours)
}

fn prepared(result: &DeviceRequestAllocationResult) -> Prepared {
    Prepared {
        // A request with alternatives is known to containers by its own name, without that of the alternative.
        request: result.request.split('/').next().unwrap_or_default().to_owned(),
        pool: result.pool.clone(),
        device: result.device.clone(),
        share_id: result.share_id.clone(),
    }
}

/// The devices of a claim, whatever else it says.
pub fn devices(claim: &ResourceClaim, uid: &str) -> Result<Vec<Prepared>, ClaimError> {
    let name = claim.metadata.name.clone().unwrap_or_default();
    Ok(results(claim, &name, uid)?.into_iter().map(prepared).collect())
}

/// Reads a claim that kubelet wants prepared.
pub fn terms(claim: &ResourceClaim, uid: &str) -> Result<Terms, ClaimError> {
    let name = claim.metadata.name.clone().unwrap_or_default();
    let results = results(claim, &name, uid)?;
    let wrong = |what: String| ClaimError::Wrong { claim: name.clone(), what };
    let parameters = parameters::read(claim).map_err(wrong)?;
    let mut requests: Vec<RequestTerms> = Vec::new();
    for result in results {
        let limits = limits(result, &parameters).map_err(wrong)?;
        let device = DeviceTerms { prepared: prepared(result), limits };
        match requests.iter_mut().find(|known| known.request == result.request) {
            Some(known) => known.devices.push(device),
            None => requests.push(RequestTerms { request: result.request.clone(), devices: vec![device] }),
        }
    }
    let terms = Terms { requests };
    // What a zone cannot have is refused before anything is made.
    terms.zone_limits().map_err(wrong)?;
    Ok(terms)
}

/// The limits of one device.
fn limits(result: &DeviceRequestAllocationResult, parameters: &[Parameters]) -> Result<ZoneLimits, String> {
    let consumed = |what: &str| {
        let quantity = result.consumed_capacity.as_ref().and_then(|consumed| consumed.get(what));
        let parsed = quantity.map(|quantity| quantity::parse(&quantity.0)).transpose();
        parsed.map_err(|error| format!("{what} of {}: {error}", result.device))
    };
    let memory = consumed(MEMORY)?;
    if memory == Some(0) {
        return Err(format!("consumed memory of {} is 0", result.device));
    }
    let share = u32::try_from(consumed(SHARE)?.unwrap_or(100)).unwrap_or(MAX_SHARE).clamp(1, MAX_SHARE);
    let mut limits = ZoneLimits { memory, share, ..ZoneLimits::default() };
    for parameters in parameters.iter().filter(|parameters| parameters.are_for(&result.request)) {
        parameters.apply(&mut limits);
    }
    Ok(limits)
}

impl Terms {
    pub fn devices(&self) -> impl Iterator<Item = &DeviceTerms> {
        self.requests.iter().flat_map(|request| &request.devices)
    }

    pub fn prepared(&self) -> Vec<Prepared> {
        self.devices().map(|device| device.prepared.clone()).collect()
    }

    /// What the zone of the whole claim gets: of each device the memory and the share of all requests that were given a part
    /// of it, and the lowest of other limits. A zone has one priority on a GPU, so requests of different priorities cannot
    /// have parts of the same one.
    pub fn zone_limits(&self) -> Result<ClaimLimits, String> {
        let lower = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        let mut host: Option<ZoneLimits> = None;
        let mut gpus: BTreeMap<&str, (GpuLimits, &str)> = BTreeMap::new();
        for RequestTerms { request, devices } in &self.requests {
            for DeviceTerms { limits, prepared } in devices {
                let known = host.get_or_insert(*limits);
                *known = ZoneLimits {
                    pinned: lower(known.pinned, limits.pinned),
                    host_memory: lower(known.host_memory, limits.host_memory),
                    host_processes: lower(known.host_processes, limits.host_processes),
                    graph_nodes: lower(known.graph_nodes, limits.graph_nodes),
                    host_cpu: known.host_cpu.into_iter().chain(limits.host_cpu).min(),
                    ..*known
                };
                let Some((known, first)) = gpus.get_mut(prepared.device.as_str()) else {
                    gpus.insert(&prepared.device, (GpuLimits::from(limits), request));
                    continue;
                };
                if known.priority != limits.priority {
                    return Err(format!(
                        "requests {first} and {request} were given parts of {} and have different priorities ({} and \
                         {}) from their DeviceClasses; use a claim for each",
                        prepared.device, known.priority, limits.priority
                    ));
                }
                *known = GpuLimits {
                    memory: known.memory.into_iter().chain(limits.memory).reduce(u64::saturating_add),
                    share: known.share.saturating_add(limits.share).min(MAX_SHARE),
                    cap: known.cap.into_iter().chain(limits.cap).min(),
                    priority: known.priority,
                };
            }
        }
        let devices = gpus.into_iter().map(|(device, (limits, _))| (device.to_owned(), limits)).collect();
        Ok(ClaimLimits { host: host.unwrap_or_default(), devices })
    }
}

/// What a zone gets of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimLimits {
    /// Its limits of the host.
    pub host: ZoneLimits,
    /// By the device's name.
    pub devices: BTreeMap<String, GpuLimits>,
}

impl ClaimLimits {
    /// As the broker takes them. `numbers`: how it calls the devices.
    pub fn settings(&self, numbers: &BTreeMap<String, u32>) -> ZoneSettings {
        let numbered = self.devices.iter().filter_map(|(device, limits)| Some((*numbers.get(device)?, *limits)));
        ZoneSettings::with_gpus(self.host, &numbered.collect())
    }
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

    fn numbers() -> BTreeMap<String, u32> {
        (0..2).map(|gpu| (format!("gpu-{gpu}"), gpu)).collect()
    }

    /// Of a claim whose GPUs have the same limits.
    fn zone_limits(claim: &ResourceClaim) -> Result<ZoneLimits, ClaimError> {
        let settings = terms(claim, "u")?.zone_limits().unwrap().settings(&numbers());
        assert!(settings.gpu_limits.is_empty());
        Ok(settings.limits)
    }

    fn of_request(request: &str, device: &str) -> serde_json::Value {
        serde_json::json!({ "driver": DRIVER, "pool": "p", "device": device, "request": request,
            "consumedCapacity": { "memory": "1Gi", "share": "10" } })
    }

    fn parameters_for(source: &str, requests: &[&str], value: serde_json::Value) -> serde_json::Value {
        let mut config = parameters(source, value);
        config["requests"] = serde_json::json!(requests);
        config
    }

    #[test]
    fn what_was_consumed_is_what_is_enforced() {
        let claim = allocated(serde_json::json!([result("10Gi", "25"), result("1Gi", "5")]), serde_json::json!([]));
        let terms = terms(&claim, "u").unwrap();
        let limits = terms.zone_limits().unwrap().settings(&numbers()).limits;
        assert_eq!((limits.memory, limits.share), (Some(11 << 30), 30), "they are of one GPU");
        let share_id = Some("s".to_owned());
        let device = Prepared { request: "r".into(), pool: "p".into(), device: "gpu-0".into(), share_id };
        assert_eq!(terms.prepared(), [device.clone(), device]);
        let each: Vec<_> = terms.devices().map(|device| (device.limits.memory, device.limits.share)).collect();
        assert_eq!(each, [(Some(10 << 30), 25), (Some(1 << 30), 5)]);
        assert_eq!(terms.requests.len(), 1, "they are of one request");
    }

    #[test]
    fn a_claim_can_only_take_less_than_its_class_gives() {
        let of = |claim: serde_json::Value| {
            let class = serde_json::json!({ "cap": 50, "priority": 3, "pinnedMemory": "1Gi" });
            let config = serde_json::json!([parameters("FromClass", class), parameters("FromClaim", claim)]);
            zone_limits(&allocated(serde_json::json!([result("1Gi", "1")]), config))
        };
        let named = serde_json::json!({ "apiVersion": "bulkhead.dev/v1alpha1", "kind": "ZoneParameters", "cap": 80 });
        let limits = of(named).unwrap();
        assert_eq!((limits.cap, limits.priority, limits.pinned), (Some(50), 3, Some(1 << 30)));
        assert_eq!(of(serde_json::json!({ "cap": 20 })).unwrap().cap, Some(20));
        assert!(of(serde_json::json!({ "priority": 9 })).unwrap_err().to_string().contains("DeviceClass"));
    }

    #[test]
    fn a_claim_limits_the_host_and_lifts_no_default() {
        let of = |class: serde_json::Value, claim: serde_json::Value| {
            let config = serde_json::json!([parameters("FromClass", class), parameters("FromClaim", claim)]);
            zone_limits(&allocated(serde_json::json!([result("1Gi", "1")]), config))
        };
        let said = serde_json::json!({ "hostMemory": "512Mi", "hostCpu": 150, "pinnedMemory": "64Mi" });
        let limits = of(serde_json::json!({}), said.clone()).unwrap();
        assert_eq!(
            (limits.host_memory, limits.host_cpu, limits.pinned),
            (Some(512 << 20), Some(150), Some(64 << 20))
        );
        // The node's default is what a class without a word gives.
        let much = serde_json::json!({ "hostMemory": "4000Ti", "hostCpu": 9999, "pinnedMemory": "4000Ti" });
        let default = control::host_defaults::HostDefaults::default().in_force(&ZoneLimits::default());
        let limits = of(serde_json::json!({}), much.clone()).unwrap();
        assert_eq!((limits.host_memory, limits.pinned), (default.host_memory, default.pinned));
        let limits = of(much.clone(), said).unwrap();
        assert_eq!((limits.host_memory, limits.host_cpu), (Some(512 << 20), Some(150)));
        assert_eq!(of(much, serde_json::json!({})).unwrap().host_memory, Some(4000 << 40), "a class may give more");
        let refused = |claim| of(serde_json::json!({}), claim).unwrap_err().to_string();
        assert!(refused(serde_json::json!({ "hostMemory": "1Mi" })).contains("at least 64Mi"));
        assert!(refused(serde_json::json!({ "hostCpu": 0 })).contains("hostCpu must be between"));
        assert!(refused(serde_json::json!({ "hostMemory": "much" })).contains("hostMemory"));
        let said = serde_json::json!({ "hostProcesses": 300, "graphNodes": 7 });
        let limits = of(serde_json::json!({}), said.clone()).unwrap();
        assert_eq!((limits.host_processes, limits.graph_nodes), (Some(300), Some(7)));
        let much = serde_json::json!({ "hostProcesses": 4_000_000, "graphNodes": 900_000_000 });
        let limits = of(serde_json::json!({}), much.clone()).unwrap();
        assert_eq!((limits.host_processes, limits.graph_nodes), (default.host_processes, default.graph_nodes));
        let limits = of(much.clone(), said).unwrap();
        assert_eq!((limits.host_processes, limits.graph_nodes), (Some(300), Some(7)));
        let limits = of(much, serde_json::json!({})).unwrap();
        assert_eq!((limits.host_processes, limits.graph_nodes), (Some(4_000_000), Some(900_000_000)));
        assert!(refused(serde_json::json!({ "hostProcesses": 5 })).contains("hostProcesses must be between 256"));
        assert!(refused(serde_json::json!({ "graphNodes": 0 })).contains("graphNodes must be between 1"));
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

    #[test]
    fn parameters_are_for_the_requests_of_their_class() {
        let results = serde_json::json!([of_request("a", "gpu-0"), of_request("b/small", "gpu-1")]);
        let class = serde_json::json!({ "cap": 50, "pinnedMemory": "1Gi" });
        let config = serde_json::json!([
            parameters_for("FromClass", &["b/small"], class),
            parameters_for("FromClaim", &["b"], serde_json::json!({ "cap": 40 })),
            parameters_for("FromClaim", &["b/large"], serde_json::json!({ "cap": 1 })),
            parameters_for("FromClaim", &[], serde_json::json!({ "cap": 90 })),
        ]);
        let terms = terms(&allocated(results, config), "u").unwrap();
        let each: Vec<_> = terms.devices().map(|device| (device.limits.cap, device.limits.pinned)).collect();
        assert_eq!(each, [(Some(90), None), (Some(40), Some(1 << 30))]);
        let settings = terms.zone_limits().unwrap().settings(&numbers());
        assert_eq!(settings.limits.pinned, Some(1 << 30));
        let on = |gpu| (settings.on_gpu(gpu).cap, settings.on_gpu(gpu).memory);
        assert_eq!((on(0), on(1)), ((Some(90), Some(1 << 30)), (Some(40), Some(1 << 30))));
    }

    /// 10Gi of one GPU and 10Gi of another are never 20Gi of one.
    #[test]
    fn what_was_given_of_one_gpu_is_not_spent_on_another() {
        let mut results = [result("10Gi", "25"), result("4Gi", "50"), result("1Gi", "5")];
        results[1]["device"] = serde_json::json!("gpu-1");
        let claim = allocated(serde_json::json!(results), serde_json::json!([]));
        let settings = terms(&claim, "u").unwrap().zone_limits().unwrap().settings(&numbers());
        let on = |gpu| (settings.on_gpu(gpu).memory, settings.on_gpu(gpu).share);
        assert_eq!((on(0), on(1)), ((Some(11 << 30), 30), (Some(4 << 30), 50)));
    }

    #[test]
    fn a_class_gives_its_priority_to_its_own_requests_only() {
        let results = serde_json::json!([of_request("batch", "gpu-0"), of_request("urgent", "gpu-0")]);
        let urgent = |requests: &[&str]| parameters_for("FromClass", requests, serde_json::json!({ "priority": 3 }));
        let says = |config: serde_json::Value| zone_limits(&allocated(results.clone(), config));
        let refused = says(serde_json::json!([urgent(&["urgent"])])).unwrap_err().to_string();
        assert!(refused.contains("parts of gpu-0 and have different priorities (0 and 3)"), "{refused}");
        let apart = serde_json::json!([of_request("batch", "gpu-0"), of_request("urgent", "gpu-1")]);
        let apart = terms(&allocated(apart, serde_json::json!([urgent(&["urgent"])])), "u").unwrap();
        let apart = apart.zone_limits().unwrap().settings(&numbers());
        assert_eq!((apart.on_gpu(0).priority, apart.on_gpu(1).priority), (0, 3));
        let both = serde_json::json!([urgent(&["urgent"]), urgent(&["batch"])]);
        assert_eq!(says(both).unwrap().priority, 3);
        assert_eq!(says(serde_json::json!([urgent(&[])])).unwrap().priority, 3);
        assert_eq!(says(serde_json::json!([urgent(&["of-another-driver"])])).unwrap().priority, 0);
    }
}
