//! The format of CDI files (Container Device Interface).

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    pub cdi_version: String,
    /// vendor/class
    pub kind: String,
    #[serde(default, skip_serializing_if = "Annotations::is_empty")]
    pub annotations: Annotations,
    pub devices: Vec<Device>,
    /// For every container that gets any of the devices.
    #[serde(default, skip_serializing_if = "Edits::is_empty")]
    pub container_edits: Edits,
}

pub type Annotations = std::collections::BTreeMap<String, String>;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    pub name: String,
    #[serde(default, skip_serializing_if = "Annotations::is_empty")]
    pub annotations: Annotations,
    pub container_edits: Edits,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Edits {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Fields of newer versions: read, kept, never made by us.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "additionalGids")]
    pub additional_gids: Vec<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net_devices: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "type")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    pub hook_name: String,
    pub path: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    pub host_path: String,
    pub container_path: String,
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "type")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// Versions of the interface, oldest first. A runtime refuses those it does not know.
pub const VERSIONS: [&str; 9] = ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "1.0.0", "1.1.0"];

impl Edits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn version(&self) -> &'static str {
        if self.net_devices.is_some() {
            "1.1.0"
        } else if self.intel_rdt.is_some() || !self.additional_gids.is_empty() {
            "0.7.0"
        } else if self.device_nodes.iter().any(|node| node.host_path.is_some()) {
            "0.5.0"
        } else if self.mounts.iter().any(|mount| mount.kind.is_some()) {
            "0.4.0"
        } else {
            "0.3.0"
        }
    }
}

impl Spec {
    /// The lowest version that has all that is used, so that old runtimes take the file as well.
    pub fn lowest_version(&self) -> &'static str {
        let annotated = |annotations: &Annotations| if annotations.is_empty() { "0.3.0" } else { "0.6.0" };
        let named = |name: &str| if name.starts_with(|c: char| c.is_ascii_digit()) { "0.5.0" } else { "0.3.0" };
        let class = self.kind.split_once('/').map_or("", |(_, class)| class);
        let kind = if class.contains('.') { "0.6.0" } else { "0.3.0" };
        let devices = self.devices.iter().flat_map(|device| {
            [device.container_edits.version(), annotated(&device.annotations), named(&device.name)]
        });
        let all = devices.chain([self.container_edits.version(), annotated(&self.annotations), kind]);
        all.max_by_key(|version| rank(version)).unwrap_or("0.3.0")
    }

    pub fn with_lowest_version(mut self) -> Self {
        self.cdi_version = self.lowest_version().to_owned();
        self
    }
}

/// The place of a version among all; none for one that nobody knows.
pub fn rank(version: &str) -> Option<usize> {
    VERSIONS.iter().position(|known| *known == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(edits: Edits) -> Spec {
        let device = Device { name: "a".into(), container_edits: edits, ..Device::default() };
        Spec { kind: "bulkhead.dev/zone".into(), devices: vec![device], ..Spec::default() }
    }

    #[test]
    fn the_version_is_the_lowest_that_has_the_fields() {
        let mount = Mount { host_path: "/a".into(), container_path: "/b".into(), ..Mount::default() };
        let edits = Edits { env: vec!["A=1".into()], mounts: vec![mount.clone()], ..Edits::default() };
        assert_eq!(spec(edits.clone()).lowest_version(), "0.3.0");
        let typed = Mount { kind: Some("bind".into()), ..mount };
        assert_eq!(spec(Edits { mounts: vec![typed], ..edits.clone() }).lowest_version(), "0.4.0");
        let node = DeviceNode { path: "/dev/x".into(), host_path: Some("/h/x".into()), ..DeviceNode::default() };
        assert_eq!(spec(Edits { device_nodes: vec![node], ..edits.clone() }).lowest_version(), "0.5.0");
        assert_eq!(spec(Edits { additional_gids: vec![4], ..edits.clone() }).lowest_version(), "0.7.0");
        let mut numbered = spec(edits);
        numbered.devices[0].name = "0".into();
        assert_eq!(numbered.lowest_version(), "0.5.0");
    }
}
