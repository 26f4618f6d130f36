//! What an operator can say about a zone.

use std::collections::BTreeMap;

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
/// Fewer processes and threads than one worker needs to start.
pub const MIN_HOST_PROCESSES: u64 = 256;
/// As many as the kernel can number.
pub const MAX_HOST_PROCESSES: u64 = 1 << 22;
/// A limit that an operator has lifted, where none would mean the default.
pub const UNLIMITED: u64 = u64::MAX;
/// Anyone who sees the zone's directory may connect: who sees it is the container runtime's decision.
pub const DEFAULT_MODE: u32 = 0o666;
/// As long as Kubernetes names are.
pub const MAX_LABEL: usize = 253;
/// GPUs, budgets and sharing groups of one zone.
pub const MAX_BINDINGS: usize = 64;

/// What a zone may have: of each GPU that it has, and of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneLimits {
    /// Bytes of each GPU's memory over all of the zone's processes; none: what the GPU has.
    pub memory: Option<u64>,
    /// Weight of each GPU's time against the other zones.
    pub share: u32,
    /// Most of a GPU's time that the zone gets even when nobody else wants it, in percent.
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
    /// Processes and threads of all the zone's workers; none and [`UNLIMITED`] as above.
    #[serde(default)]
    pub host_processes: Option<u64>,
    /// Nodes of graphs and captures that each client has in its worker; none and [`UNLIMITED`] as above.
    #[serde(default)]
    pub graph_nodes: Option<u64>,
    /// Workers that the zone gets whatever others have; none: the default.
    #[serde(default)]
    pub workers: Option<u32>,
    /// Bytes of host memory for GPU memory of suspended clients; none: as much as the node has for it.
    #[serde(default)]
    pub suspend_memory: Option<u64>,
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
            host_processes: None,
            graph_nodes: None,
            workers: None,
            suspend_memory: None,
        }
    }
}

/// What a zone may have of one GPU, where that is not what it may have of the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuOverride {
    /// As in [`ZoneLimits`], none: as on the others; [`UNLIMITED`]: what the GPU has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Weight of this GPU's time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<u32>,
    /// Most of this GPU's time, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap: Option<u32>,
    /// On this GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
}

/// What a zone may have of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLimits {
    /// Bytes; none: what the GPU has.
    pub memory: Option<u64>,
    /// Weight of its time against the other zones.
    pub share: u32,
    /// Most of its time, in percent.
    pub cap: Option<u32>,
    /// Zones of a higher priority come first.
    pub priority: u32,
}

impl Default for GpuLimits {
    fn default() -> Self {
        Self::from(&ZoneLimits::default())
    }
}

impl From<&ZoneLimits> for GpuLimits {
    fn from(limits: &ZoneLimits) -> Self {
        Self { memory: limits.memory, share: limits.share, cap: limits.cap, priority: limits.priority }
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
    /// GPUs of which it may have something else, by number.
    #[serde(default, with = "listed", skip_serializing_if = "BTreeMap::is_empty")]
    pub gpu_limits: BTreeMap<u32, GpuOverride>,
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

/// A list in place of a map, whose numbers would be texts in JSON, and stay so where settings are a part of something else.
mod listed {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::GpuOverride;

    #[derive(Serialize, Deserialize)]
    struct Entry {
        gpu: u32,
        #[serde(flatten)]
        limits: GpuOverride,
    }

    pub(super) fn serialize<S: Serializer>(map: &BTreeMap<u32, GpuOverride>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(map.iter().map(|(gpu, limits)| Entry { gpu: *gpu, limits: *limits }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<u32, GpuOverride>, D::Error> {
        let entries = Vec::<Entry>::deserialize(from)?;
        Ok(entries.into_iter().map(|entry| (entry.gpu, entry.limits)).collect())
    }
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

impl<T: Copy> Change<T> {
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
    /// The GPU on which memory, share, cap and priority are to be different; none: on each that the zone has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
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
    /// Limit of its workers' processes and threads.
    pub host_processes: Change<u64>,
    /// Limit of graph nodes of each client.
    pub graph_nodes: Change<u64>,
    /// Workers that the zone gets whatever others have; without any, the default.
    pub workers: Change<u32>,
    /// Limit of host memory for suspended clients; without any, the node's.
    pub suspend_memory: Change<u64>,
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
        self.apply_gpu_limits(settings);
        let ZoneSettings { limits, labels, bindings, .. } = settings;
        for (known, new) in
            [(&mut bindings.budgets, self.budgets), (&mut bindings.sharing_groups, self.sharing_groups)]
        {
            if let Some(new) = new {
                *known = new;
            }
        }
        self.pinned.apply_over_default(&mut limits.pinned);
        self.host_memory.apply_over_default(&mut limits.host_memory);
        self.host_cpu.apply(&mut limits.host_cpu);
        self.host_processes.apply_over_default(&mut limits.host_processes);
        self.graph_nodes.apply_over_default(&mut limits.graph_nodes);
        self.workers.apply(&mut limits.workers);
        self.suspend_memory.apply(&mut limits.suspend_memory);
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

impl ZoneChange {
    /// What is said of no GPU in particular is said of all.
    fn apply_gpu_limits(&self, settings: &mut ZoneSettings) {
        let ZoneSettings { limits, gpu_limits, .. } = settings;
        if let Some(gpu) = self.gpu {
            let own = gpu_limits.entry(gpu).or_default();
            self.memory.apply_over_default(&mut own.memory);
            let cap = if self.cap == Change::Clear { Change::Set(100) } else { self.cap };
            cap.apply(&mut own.cap);
            own.share = self.share.or(own.share);
            own.priority = self.priority.or(own.priority);
        } else {
            self.memory.apply(&mut limits.memory);
            self.cap.apply(&mut limits.cap);
            limits.share = self.share.unwrap_or(limits.share);
            limits.priority = self.priority.unwrap_or(limits.priority);
            for own in gpu_limits.values_mut() {
                own.memory = own.memory.filter(|_| self.memory == Change::Keep);
                own.cap = own.cap.filter(|_| self.cap == Change::Keep);
                own.share = own.share.filter(|_| self.share.is_none());
                own.priority = own.priority.filter(|_| self.priority.is_none());
            }
        }
        gpu_limits.retain(|_, own| *own != GpuOverride::default());
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
    #[error("a limit of processes must be at least {MIN_HOST_PROCESSES}")]
    HostProcesses,
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
    #[error("a limit is set for GPU {0}, which the zone does not have")]
    OtherGpu(u32),
}

impl GpuOverride {
    /// What makes something of what holds for the others.
    fn from_base(wanted: GpuLimits, base: GpuLimits) -> Self {
        Self {
            memory: (wanted.memory != base.memory).then(|| wanted.memory.unwrap_or(UNLIMITED)),
            share: (wanted.share != base.share).then_some(wanted.share),
            cap: (wanted.cap != base.cap).then(|| wanted.cap.unwrap_or(100)),
            priority: (wanted.priority != base.priority).then_some(wanted.priority),
        }
    }
}

impl ZoneSettings {
    /// Of a zone that has these limits on these GPUs, and of the host what `host` says.
    pub fn with_gpus(host: ZoneLimits, gpus: &BTreeMap<u32, GpuLimits>) -> Self {
        let base = gpus.values().next().copied().unwrap_or_default();
        let GpuLimits { memory, share, cap, priority } = base;
        let differ = gpus.iter().filter(|(_, limits)| **limits != base);
        let gpu_limits = differ.map(|(gpu, limits)| (*gpu, GpuOverride::from_base(*limits, base))).collect();
        Self { limits: ZoneLimits { memory, share, cap, priority, ..host }, gpu_limits, ..Self::default() }
    }

    /// What it may have of a GPU. What is said of a GPU that is cut is said of each of its MIG instances.
    pub fn on_gpu(&self, gpu: u32) -> GpuLimits {
        let all = GpuLimits::from(&self.limits);
        let of_whole = || self.gpu_limits.get(&mig::Instance::of(gpu)?.gpu);
        let own = self.gpu_limits.get(&gpu).or_else(of_whole).copied().unwrap_or_default();
        GpuLimits {
            memory: own.memory.or(all.memory).filter(|bytes| *bytes != UNLIMITED),
            share: own.share.unwrap_or(all.share),
            // All of a GPU's time is no cap.
            cap: own.cap.or(all.cap).filter(|cap| *cap < 100),
            priority: own.priority.unwrap_or(all.priority),
        }
    }

    /// Settings are checked here before they count.
    pub fn check(&self) -> Result<(), BadSettings> {
        let Self { limits, gpu_limits, labels, access, bindings } = self;
        for (gpu, own) in gpu_limits {
            let has = bindings.gpus.is_empty() || bindings.gpus.contains(gpu);
            let rules = [
                (has && *gpu < mig::END && gpu_limits.len() <= MAX_BINDINGS, BadSettings::OtherGpu(*gpu)),
                (own.memory != Some(0), BadSettings::Memory),
                (own.share.is_none_or(|share| (1..=MAX_SHARE).contains(&share)), BadSettings::Share),
                (own.cap.is_none_or(|cap| (1..=100).contains(&cap)), BadSettings::Cap),
                (own.priority.is_none_or(|priority| priority <= MAX_PRIORITY), BadSettings::Priority),
            ];
            if let Some((_, broken)) = rules.into_iter().find(|(kept, _)| !kept) {
                return Err(broken);
            }
        }
        let label = |text: &String| text.len() <= MAX_LABEL && !text.chars().any(char::is_control);
        let rules = [
            ((1..=MAX_SHARE).contains(&limits.share), BadSettings::Share),
            (limits.cap.is_none_or(|cap| (1..=100).contains(&cap)), BadSettings::Cap),
            (limits.priority <= MAX_PRIORITY, BadSettings::Priority),
            (limits.memory != Some(0) && limits.pinned != Some(0), BadSettings::Memory),
            (limits.host_memory.is_none_or(|bytes| bytes >= MIN_HOST_MEMORY), BadSettings::HostMemory),
            (limits.host_processes.is_none_or(|count| count >= MIN_HOST_PROCESSES), BadSettings::HostProcesses),
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
    fn a_limit_is_that_of_each_gpu_until_one_has_its_own() {
        let mut settings = ZoneSettings::from(ZoneLimits { memory: Some(10), share: 50, ..ZoneLimits::default() });
        ZoneChange { gpu: Some(1), memory: Change::Set(3), priority: Some(9), ..Default::default() }
            .apply(&mut settings);
        let all = GpuLimits { memory: Some(10), share: 50, cap: None, priority: 0 };
        assert_eq!(settings.on_gpu(0), all);
        assert_eq!(settings.on_gpu(1), GpuLimits { memory: Some(3), priority: 9, ..all });
        let text = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<ZoneSettings>(&text).unwrap(), settings);
        // Also where they are a part of something.
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Entry {
            #[serde(flatten)]
            settings: ZoneSettings,
        }
        let entry = Entry { settings: settings.clone() };
        let text = serde_json::to_string(&entry).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
        // What is said of all is said of this one as well.
        ZoneChange { memory: Change::Set(20), ..Default::default() }.apply(&mut settings);
        assert_eq!(settings.on_gpu(1), GpuLimits { memory: Some(20), priority: 9, ..all });
        ZoneChange { priority: Some(0), ..Default::default() }.apply(&mut settings);
        assert!(settings.gpu_limits.is_empty());
    }

    #[test]
    fn gpus_that_differ_are_told_apart() {
        let first = GpuLimits { memory: Some(10), share: 50, cap: Some(5), priority: 2 };
        let second = GpuLimits { memory: None, share: 7, cap: None, priority: 0 };
        let host = ZoneLimits { pinned: Some(9), ..ZoneLimits::default() };
        let settings = ZoneSettings::with_gpus(host, &BTreeMap::from([(1, first), (4, second), (5, first)]));
        assert_eq!((settings.on_gpu(1), settings.on_gpu(5), settings.limits.pinned), (first, first, Some(9)));
        assert_eq!(settings.on_gpu(4), second);
        assert_eq!((settings.gpu_limits.len(), settings.check()), (1, Ok(())));
    }

    /// The zone names a GPU, which is cut into instances afterwards.
    #[test]
    fn a_limit_of_a_gpu_that_is_cut_is_that_of_its_instances() {
        let instance = |gpu_instance| mig::Instance { gpu: 1, gpu_instance, compute_instance: 0 }.number().unwrap();
        let mut settings = ZoneSettings::from(ZoneLimits { memory: Some(10), ..ZoneLimits::default() });
        settings.gpu_limits.insert(1, GpuOverride { memory: Some(3), ..GpuOverride::default() });
        assert_eq!((settings.on_gpu(instance(2)).memory, settings.on_gpu(0).memory), (Some(3), Some(10)));
        settings.gpu_limits.insert(instance(2), GpuOverride { memory: Some(2), ..GpuOverride::default() });
        assert_eq!((settings.on_gpu(instance(2)).memory, settings.on_gpu(instance(3)).memory), (Some(2), Some(3)));
    }

    #[test]
    fn a_limit_of_a_gpu_that_the_zone_does_not_have_is_refused() {
        let mut settings = ZoneSettings::default();
        settings.gpu_limits.insert(3, GpuOverride { share: Some(5), ..GpuOverride::default() });
        assert_eq!(settings.check(), Ok(()), "it has all");
        settings.bindings.gpus = vec![0, 1];
        assert_eq!(settings.check(), Err(BadSettings::OtherGpu(3)));
        settings.bindings.gpus.push(3);
        assert_eq!(settings.check(), Ok(()));
        settings.gpu_limits.insert(0, GpuOverride { share: Some(0), ..GpuOverride::default() });
        assert_eq!(settings.check(), Err(BadSettings::Share));
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
        assert_eq!(with(|s| s.limits.host_processes = Some(255)), Err(BadSettings::HostProcesses));
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
