//! `config[].opaque.parameters` of a claim or a class.

use control::ZoneLimits;
use control::host_defaults::HostDefaults;
use control::zone::{
    MAX_GRAPH_NODES, MAX_HOST_CPU, MAX_HOST_PROCESSES, MAX_PRIORITY, MIN_HOST_MEMORY, MIN_HOST_PROCESSES,
};
use k8s_openapi::api::resource::v1::{DeviceAllocationConfiguration, ResourceClaim};
use serde::Deserialize;

use crate::dra::DRIVER;
use crate::quantity;

/// What they may say.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Text {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    cap: Option<u32>,
    priority: Option<u32>,
    pinned_memory: Option<String>,
    host_memory: Option<String>,
    host_cpu: Option<u32>,
    host_processes: Option<u64>,
    graph_nodes: Option<u64>,
}

/// What they said, and of which requests.
#[derive(Debug)]
pub(super) struct Parameters {
    /// Names of requests, with or without an alternative's; none: of all.
    requests: Vec<String>,
    cap: Option<u32>,
    priority: Option<u32>,
    pinned: Option<u64>,
    host_memory: Option<u64>,
    host_cpu: Option<u32>,
    host_processes: Option<u64>,
    graph_nodes: Option<u64>,
    /// The cluster's operator has said it.
    from_class: bool,
}

/// Those of a claim that are for us, in order.
pub(super) fn read(claim: &ResourceClaim) -> Result<Vec<Parameters>, String> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let configs = devices.into_iter().flat_map(|devices| devices.config.iter().flatten());
    configs.filter_map(|config| Parameters::read(config).transpose()).collect()
}

impl Parameters {
    fn read(config: &DeviceAllocationConfiguration) -> Result<Option<Self>, String> {
        let Some(opaque) = config.opaque.as_ref().filter(|opaque| opaque.driver == DRIVER) else { return Ok(None) };
        let text: Text = serde_json::from_value(opaque.parameters.0.clone())
            .map_err(|error| format!("parameters of {DRIVER}: {error}"))?;
        let version = (text.api_version.as_str(), text.kind.as_str());
        if !matches!(version, ("bulkhead.dev/v1alpha1", "ZoneParameters") | ("", "")) {
            return Err(format!("unknown parameters {} {}", version.0, version.1));
        }
        if text.cap.is_some_and(|cap| !(1..=100).contains(&cap)) {
            return Err("cap must be between 1 and 100".to_owned());
        }
        if text.priority.is_some() && config.source != "FromClass" {
            return Err("priority can only be set by a DeviceClass".to_owned());
        }
        if text.priority.is_some_and(|priority| priority > MAX_PRIORITY) {
            return Err(format!("priority must be between 0 and {MAX_PRIORITY}"));
        }
        let pinned = text.pinned_memory.as_deref().map(quantity::parse).transpose();
        let pinned = pinned.map_err(|error| format!("pinnedMemory: {error}"))?;
        if pinned == Some(0) {
            return Err("pinnedMemory must be greater than 0".to_owned());
        }
        let host_memory = text.host_memory.as_deref().map(quantity::parse).transpose();
        let host_memory = host_memory.map_err(|error| format!("hostMemory: {error}"))?;
        if host_memory.is_some_and(|bytes| bytes < MIN_HOST_MEMORY) {
            return Err(format!("hostMemory must be at least {}Mi", MIN_HOST_MEMORY >> 20));
        }
        if text.host_cpu.is_some_and(|percent| !(1..=MAX_HOST_CPU).contains(&percent)) {
            return Err(format!("hostCpu must be between 1 and {MAX_HOST_CPU} (percent of one CPU)"));
        }
        for (name, said, least, most) in [
            ("hostProcesses", text.host_processes, MIN_HOST_PROCESSES, MAX_HOST_PROCESSES),
            ("graphNodes", text.graph_nodes, 1, MAX_GRAPH_NODES),
        ] {
            if said.is_some_and(|said| !(least..=most).contains(&said)) {
                return Err(format!("{name} must be between {least} and {most}"));
            }
        }
        let requests = config.requests.clone().unwrap_or_default();
        let Text { cap, priority, host_cpu, host_processes, graph_nodes, .. } = text;
        let from_class = config.source == "FromClass";
        Ok(Some(Self {
            requests,
            cap,
            priority,
            pinned,
            host_memory,
            host_cpu,
            host_processes,
            graph_nodes,
            from_class,
        }))
    }

    /// Whether they count for a request. What names a request counts for all of its alternatives.
    pub(super) fn are_for(&self, request: &str) -> bool {
        let whole = request.split('/').next().unwrap_or_default();
        self.requests.is_empty() || self.requests.iter().any(|name| name == request || name == whole)
    }

    /// The cluster's operator creates the class, a tenant the claim: a claim can only lower the limits of its class.
    pub(super) fn apply(&self, limits: &mut ZoneLimits) {
        limits.cap = limits.cap.into_iter().chain(self.cap).min();
        limits.host_cpu = limits.host_cpu.into_iter().chain(self.host_cpu).min();
        // Without a word of the class the node's default holds, which a claim does not raise.
        let default = HostDefaults::default().in_force(&ZoneLimits::default());
        for (limit, said, default) in [
            (&mut limits.pinned, self.pinned, default.pinned),
            (&mut limits.host_memory, self.host_memory, default.host_memory),
            (&mut limits.host_processes, self.host_processes, default.host_processes),
            (&mut limits.graph_nodes, self.graph_nodes, default.graph_nodes),
        ] {
            let most = limit.or(default.filter(|_| !self.from_class));
            *limit = said.map(|said| most.map_or(said, |most| said.min(most))).or(*limit);
        }
        limits.priority = self.priority.unwrap_or(limits.priority);
    }
}
