//! What an operator can say about a zone.

use serde::{Deserialize, Serialize};

use crate::mig;
use crate::spawner::SLOTS;

/// The largest weight.
pub const MAX_SHARE: u32 = 10_000;
/// The weight of a zone that is given none.
pub const DEFAULT_SHARE: u32 = 100;
/// The highest priority.
pub const MAX_PRIORITY: u32 = 100;
/// A thousand processors.
pub const MAX_HOST_CPU: u32 = 100_000;
/// A worker of the software GPU, its staging memory included, does not start with less.
pub const MIN_HOST_MEMORY: u64 = 64 << 20;
/// More nodes than a machine could hold.
pub const MAX_GRAPH_NODES: u64 = 1_000_000_000;
/// A limit that an operator has lifted, where none would mean the default.
pub const UNLIMITED: u64 = u64::MAX;
/// Anyone who sees the zone's directory may connect: who sees it is the container runtime's decision.
pub const DEFAULT_MODE: u32 = 0o666;
/// As long as Kubernetes names are.
pub const MAX_LABEL: usize = 253;
/// GPUs, budgets and sharing groups of one zone.
pub const MAX_BINDINGS: usize = 64;

/// What a zone may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneLimits {
    /// Bytes of GPU memory over all of the zone's processes; none: what the GPU has.
    pub memory: Option<u64>,
    /// Weight of GPU time against the other zones.
    pub share: u32,
    /// Most of the GPU's time that the zone gets even when nobody else wants it, in percent.
    #[serde(default)]
    pub cap: Option<u32>,
    /// Zones of a higher priority come first.
    #[serde(default)]
    pub priority: u32,
    /// Bytes of host memory pinned for the GPU, over all of the zone's processes; none: the
    /// [default](crate::host_defaults), and no limit if [`UNLIMITED`].
    #[serde(default)]
    pub pinned: Option<u64>,
    /// Bytes of host memory of all the zone's workers; none and [`UNLIMITED`] as above.
    #[serde(default)]
    pub host_memory: Option<u64>,
    /// Processor time of all the zone's workers, in percent of one processor.
    #[serde(default)]
    pub host_cpu: Option<u32>,
    /// Nodes of graphs and captures that each client has in its worker; none and [`UNLIMITED`] as above.
    #[serde(default)]
    pub graph_nodes: Option<u64>,
    /// Workers that the zone gets whatever others have; none: the default.
    #[serde(default)]
    pub workers: Option<u32>,
}

impl Default for ZoneLimits {
    fn default() -> Self {
        Self {
            memory: None,
            share: DEFAULT_SHARE,
            cap: None,
            priority: 0,
            pinned: None,
            host_memory: None,
            host_cpu: None,
            graph_nodes: None,
            workers: None,
        }
    }
}

/// Who a zone belongs to, for those who read metrics; empty where it is nobody's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// Its pod in Kubernetes.
    pub pod: String,
    /// The namespace of the pod.
    pub namespace: String,
    /// Its container in the pod.
    pub container: String,
}

/// Who may connect to a zone's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// Owner of the socket; none: the broker's user.
    pub uid: Option<u32>,
    /// Group of the socket; none: the broker's group.
    pub gid: Option<u32>,
    /// Permissions of the socket.
    pub mode: u32,
}

impl Access {
    /// Whether local users come to this zone, outside of containers: who they are is the operator's to say.
    pub fn has_users(&self) -> bool {
        self.uid.is_some() || self.gid.is_some()
    }

    /// The permissions of the socket for local users. That everybody may connect is said of containers, which see only what
    /// is mounted into them.
    pub fn mode_for_users(mode: u32) -> u32 {
        mode & 0o770
    }
}

impl Default for Access {
    fn default() -> Self {
        Self { uid: None, gid: None, mode: DEFAULT_MODE }
    }
}

/// What a zone has in common with others: GPUs, budgets, sharing groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ZoneBindings {
    /// The GPUs that its programs see, numbered as in [`crate::mig`]; none: all.
    pub gpus: Vec<u32>,
    /// Budgets that it draws on together with other zones.
    pub budgets: Vec<String>,
    /// Zones that have one of these in common may open each other's memory without a grant.
    #[serde(rename = "circles", alias = "sharing_groups")]
    pub sharing_groups: Vec<String>,
    /// Each container that sees the zone's socket is a zone of its own and draws on this one.
    pub split: bool,
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneSettings {
    /// What it may have.
    pub limits: ZoneLimits,
    /// Who it belongs to.
    #[serde(default)]
    pub labels: Labels,
    /// Who may connect.
    #[serde(default)]
    pub access: Access,
    /// GPUs and other zones.
    /// Stored and sent under its first name, which older versions write and read.
    #[serde(default, rename = "ties", alias = "bindings")]
    pub bindings: ZoneBindings,
}

impl From<ZoneLimits> for ZoneSettings {
    fn from(limits: ZoneLimits) -> Self {
        Self { limits, ..Self::default() }
    }
}

/// What becomes of a setting that may also be absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change<T> {
    /// It stays.
    #[default]
    Keep,
    /// There is none from now on.
    Clear,
    /// It has this value from now on.
    Set(T),
}

impl<T> Change<T> {
    fn apply(self, setting: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Clear => *setting = None,
            Self::Set(value) => *setting = Some(value),
        }
    }
}

impl Change<u64> {
    /// The same where no limit would mean the default: none from now on is one that was lifted.
    fn apply_over_default(self, setting: &mut Option<u64>) {
        match self {
            Self::Clear => *setting = Some(UNLIMITED),
            other => other.apply(setting),
        }
    }
}

/// What is to be different from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ZoneChange {
    /// Limit of GPU memory.
    pub memory: Change<u64>,
    /// Limit of pinned memory.
    pub pinned: Change<u64>,
    /// Limit of GPU time.
    pub cap: Change<u32>,
    /// Limit of its workers' host memory.
    pub host_memory: Change<u64>,
    /// Limit of its workers' processor time.
    pub host_cpu: Change<u32>,
    /// Limit of graph nodes of each client.
    pub graph_nodes: Change<u64>,
    /// Workers that the zone gets whatever others have; without any, the default.
    pub workers: Change<u32>,
    /// None: it stays.
    pub share: Option<u32>,
    /// None: it stays.
    pub priority: Option<u32>,
    /// None: it stays.
    pub pod: Option<String>,
    /// None: it stays.
    pub namespace: Option<String>,
    /// None: it stays.
    pub container: Option<String>,
    /// None: they stay.
    pub budgets: Option<Vec<String>>,
    /// None: they stay.
    #[serde(rename = "circles", alias = "sharing_groups")]
    pub sharing_groups: Option<Vec<String>>,
}

impl ZoneChange {
    /// Changes settings; whether they are valid is another question.
    pub fn apply(self, settings: &mut ZoneSettings) {
        let ZoneSettings { limits, labels, bindings, .. } = settings;
        for (known, new) in
            [(&mut bindings.budgets, self.budgets), (&mut bindings.sharing_groups, self.sharing_groups)]
        {
            if let Some(new) = new {
                *known = new;
            }
        }
        self.memory.apply(&mut limits.memory);
        self.pinned.apply_over_default(&mut limits.pinned);
        self.cap.apply(&mut limits.cap);
        self.host_memory.apply_over_default(&mut limits.host_memory);
        self.host_cpu.apply(&mut limits.host_cpu);
        self.graph_nodes.apply_over_default(&mut limits.graph_nodes);
        self.workers.apply(&mut limits.workers);
        limits.share = self.share.unwrap_or(limits.share);
        limits.priority = self.priority.unwrap_or(limits.priority);
        let texts = [
            (&mut labels.pod, self.pod),
            (&mut labels.namespace, self.namespace),
            (&mut labels.container, self.container),
        ];
        for (label, text) in texts {
            if let Some(text) = text {
                *label = text;
            }
        }
    }
}

/// Why settings are not valid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum BadSettings {
    #[error("a share is a number from 1 to {MAX_SHARE}")]
    Share,
    #[error("a cap is a percentage from 1 to 100")]
    Cap,
    #[error("a priority is a number from 0 to {MAX_PRIORITY}")]
    Priority,
    #[error("a memory limit must be more than 0")]
    Memory,
    #[error("a limit of host memory must be at least {}MiB", MIN_HOST_MEMORY >> 20)]
    HostMemory,
    #[error("a limit of graph nodes must be more than 0")]
    GraphNodes,
    #[error("guaranteed workers are a number from 0 to {SLOTS}")]
    Workers,
    #[error("processor time is a percentage from 1 to {MAX_HOST_CPU}")]
    HostCpu,
    #[error("a socket mode is between 0 and 0777")]
    Mode,
    #[error("a label has at most {MAX_LABEL} characters, none of them a control character")]
    Label,
    #[error("a zone has at most {MAX_BINDINGS} GPUs, budgets and sharing groups each")]
    Bindings,
}

impl ZoneSettings {
    /// Settings are checked here before they count.
    pub fn check(&self) -> Result<(), BadSettings> {
        let Self { limits, labels, access, bindings } = self;
        let label = |text: &String| text.len() <= MAX_LABEL && !text.chars().any(char::is_control);
        let rules = [
            ((1..=MAX_SHARE).contains(&limits.share), BadSettings::Share),
            (limits.cap.is_none_or(|cap| (1..=100).contains(&cap)), BadSettings::Cap),
            (limits.priority <= MAX_PRIORITY, BadSettings::Priority),
            (limits.memory != Some(0) && limits.pinned != Some(0), BadSettings::Memory),
            (limits.host_memory.is_none_or(|bytes| bytes >= MIN_HOST_MEMORY), BadSettings::HostMemory),
            (limits.graph_nodes != Some(0), BadSettings::GraphNodes),
            (limits.workers.is_none_or(|count| count as usize <= SLOTS), BadSettings::Workers),
            (limits.host_cpu.is_none_or(|percent| (1..=MAX_HOST_CPU).contains(&percent)), BadSettings::HostCpu),
            (access.mode <= 0o777, BadSettings::Mode),
            ([&labels.pod, &labels.namespace, &labels.container].into_iter().all(label), BadSettings::Label),
            (bindings.budgets.iter().chain(&bindings.sharing_groups).all(label), BadSettings::Label),
            (
                [bindings.gpus.len(), bindings.budgets.len(), bindings.sharing_groups.len()]
                    .into_iter()
                    .all(|count| count <= MAX_BINDINGS)
                    && bindings.gpus.iter().all(|gpu| *gpu < mig::END),
                BadSettings::Bindings,
            ),
        ];
        rules.into_iter().find(|(kept, _)| !kept).map_or(Ok(()), |(_, broken)| Err(broken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_touches_what_it_names() {
        let mut settings = ZoneSettings::from(ZoneLimits { memory: Some(5), cap: Some(9), ..ZoneLimits::default() });
        let change = ZoneChange { memory: Change::Set(7), cap: Change::Clear, share: Some(3), ..Default::default() };
        change.apply(&mut settings);
        assert_eq!(settings.limits, ZoneLimits { memory: Some(7), share: 3, ..ZoneLimits::default() });
        let text = serde_json::to_string(&ZoneChange { pod: Some("p".into()), ..Default::default() }).unwrap();
        let change: ZoneChange = serde_json::from_str(&text).unwrap();
        change.apply(&mut settings);
        assert_eq!((settings.labels.pod.as_str(), settings.limits.memory), ("p", Some(7)));
    }

    #[test]
    fn a_limit_with_a_default_is_lifted_by_name() {
        let mut settings = ZoneSettings::default();
        let change = ZoneChange { host_memory: Change::Clear, memory: Change::Clear, ..Default::default() };
        change.apply(&mut settings);
        assert_eq!((settings.limits.host_memory, settings.limits.memory), (Some(UNLIMITED), None));
        assert_eq!((settings.limits.pinned, settings.check()), (None, Ok(())), "the others keep their defaults");
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let with = |change: fn(&mut ZoneSettings)| {
            let mut settings = ZoneSettings::default();
            change(&mut settings);
            settings.check()
        };
        assert_eq!(with(|_| {}), Ok(()));
        assert_eq!(with(|s| s.limits.share = 0), Err(BadSettings::Share));
        assert_eq!(with(|s| s.limits.cap = Some(101)), Err(BadSettings::Cap));
        assert_eq!(with(|s| s.limits.priority = 101), Err(BadSettings::Priority));
        assert_eq!(with(|s| s.limits.memory = Some(0)), Err(BadSettings::Memory));
        assert_eq!(with(|s| s.limits.host_memory = Some(1)), Err(BadSettings::HostMemory));
        assert_eq!(with(|s| s.limits.host_cpu = Some(0)), Err(BadSettings::HostCpu));
        assert_eq!(with(|s| s.limits.graph_nodes = Some(0)), Err(BadSettings::GraphNodes));
        assert_eq!(with(|s| s.access.mode = 0o4777), Err(BadSettings::Mode));
        assert_eq!(with(|s| s.labels.pod = "a\nb".into()), Err(BadSettings::Label));
    }

    #[test]
    fn settings_of_an_older_version_are_read() {
        let old: ZoneSettings = serde_json::from_str(r#"{"limits":{"memory":5,"share":2}}"#).unwrap();
        assert_eq!(old.limits, ZoneLimits { memory: Some(5), share: 2, ..ZoneLimits::default() });
        assert_eq!(old.access, Access::default());
        let bound = r#"{"limits":{"memory":5,"share":2},"ties":{"gpus":[1],"circles":["namespace.a"]}}"#;
        let bound: ZoneSettings = serde_json::from_str(bound).unwrap();
        assert_eq!((bound.bindings.gpus, bound.bindings.sharing_groups), (vec![1], vec!["namespace.a".to_owned()]));
    }
}
