//! Every key of the configuration file, once: what is read, what is suggested for a misspelt one, and the reference in
//! `docs/operations.md` all come from here.

use control::zone::{MAX_HOST_CPU, MAX_PRIORITY, MAX_SHARE};

/// Where a key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    Proxy,
    Http,
    Log,
    Defaults,
    Zone,
    Kubernetes,
    Profile,
    Quota,
}

impl Table {
    pub const ALL: [Self; 8] = [
        Self::Proxy,
        Self::Http,
        Self::Log,
        Self::Defaults,
        Self::Zone,
        Self::Kubernetes,
        Self::Profile,
        Self::Quota,
    ];

    /// As it is written in the file.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Proxy => "[proxy]",
            Self::Http => "[http]",
            Self::Log => "[log]",
            Self::Defaults => "[defaults]",
            Self::Zone => "[zones.NAME]",
            Self::Kubernetes => "[kubernetes]",
            Self::Profile => "[profiles.NAME]",
            Self::Quota => "[quotas.NAMESPACE]",
        }
    }

    /// What it is about, for the reference.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Proxy => "The proxy itself.",
            Self::Http => "Metrics, health and the status page.",
            Self::Log => "What is logged on stderr.",
            Self::Defaults => "What zones of this file have that do not say otherwise.",
            Self::Zone => "A zone; NAME is the name. One table for each.",
            Self::Kubernetes => {
                "What the node offers to Kubernetes. Read by `bulkhead device-plugin` and `bulkhead dra`."
            }
            Self::Profile => "A part of a GPU that pods can ask for, as a resource. One table for each.",
            Self::Quota => "What all pods of a namespace may have together, on this node. One table for each.",
        }
    }

    /// The keys that may stand in it.
    pub fn keys(self) -> impl Iterator<Item = &'static Key> {
        KEYS.iter().filter(move |key| {
            key.table == self || (self == Self::Defaults && key.table == Self::Zone && !key.of_one_zone)
        })
    }
}

/// What a value must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Path,
    /// Text of at most so many characters.
    Label,
    /// A memory size: a text like `"2GiB"`, or bytes.
    Size,
    /// A memory size, or 0.
    SizeOrNone,
    /// A memory size, or `"unlimited"`.
    Limit,
    /// A whole number in a range.
    Number(u64, u64),
    /// A percentage up to this, or `"unlimited"`.
    Percent(u64),
    /// A list of GPU numbers.
    Gpus,
    /// Digits of a mode, as text.
    Mode,
    /// Address and port, or `"off"`.
    Address,
    Flag,
    /// A list of names of zones.
    Zones,
    /// A list of names that machines have.
    Hosts,
    /// A name of a resource, as pods ask for it.
    Resource,
    /// The same, or `"off"`.
    ResourceOrNone,
    OneOf(&'static [&'static str]),
}

impl Kind {
    /// In words, for messages and the reference.
    pub fn describe(self) -> String {
        match self {
            Self::Path => "a path".to_owned(),
            Self::Label => "a text".to_owned(),
            Self::Size => "a size like \"2GiB\"".to_owned(),
            Self::SizeOrNone => "a size like \"512MiB\", or 0".to_owned(),
            Self::Limit => "a size like \"2GiB\", or \"unlimited\"".to_owned(),
            Self::Number(least, most) => format!("a number from {least} to {most}"),
            Self::Percent(most) => format!("a number from 1 to {most}, or \"unlimited\""),
            Self::Gpus => "a list of GPU numbers like [0, 1]".to_owned(),
            Self::Mode => "a mode like \"0660\"".to_owned(),
            Self::Address => "an address like \"127.0.0.1:9470\", or \"off\"".to_owned(),
            Self::Flag => "true or false".to_owned(),
            Self::Zones => "a list of zones like [\"a\", \"b\"]".to_owned(),
            Self::Hosts => "a list of names like [\"node1.example\"]".to_owned(),
            Self::Resource => "a name like \"bulkhead.dev/gpu\"".to_owned(),
            Self::ResourceOrNone => "a name like \"bulkhead.dev/gpu\", or \"off\"".to_owned(),
            Self::OneOf(names) => {
                let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
                quoted.join(", ")
            }
        }
    }
}

pub struct Key {
    pub table: Table,
    pub name: &'static str,
    pub kind: Kind,
    /// What holds without it, in words.
    pub default: &'static str,
    pub meaning: &'static str,
    /// Does a reload (SIGHUP) change it, or only a restart?
    pub live: bool,
    /// It makes no sense as a default for all zones.
    of_one_zone: bool,
}

const fn key(
    table: Table,
    name: &'static str,
    kind: Kind,
    default: &'static str,
    meaning: &'static str,
    live: bool,
) -> Key {
    Key { table, name, kind, default, meaning, live, of_one_zone: false }
}

const fn label(name: &'static str, meaning: &'static str) -> Key {
    Key { table: Table::Zone, name, kind: Kind::Label, default: "empty", meaning, live: true, of_one_zone: true }
}

const fn grant(name: &'static str, meaning: &'static str) -> Key {
    Key { table: Table::Zone, name, kind: Kind::Zones, default: "none", meaning, live: true, of_one_zone: true }
}

const ID: Kind = Kind::Number(0, u32::MAX as u64 - 1);

/// In the order in which the reference tells of them.
pub const KEYS: &[Key] = &[
    key(
        Table::Proxy,
        "state_dir",
        Kind::Path,
        "/run/bulkhead",
        "Folder for sockets and what the next proxy must know.",
        false,
    ),
    key(
        Table::Proxy,
        "backend",
        Kind::OneOf(&["auto", "nvidia", "soft"]),
        "\"auto\"",
        "The driver that workers call: NVIDIA's, or a GPU computed on the CPU.",
        false,
    ),
    key(
        Table::Proxy,
        "driver_library",
        Kind::Path,
        "searched",
        "NVIDIA's libcuda.so.1, where it is not in a usual place.",
        false,
    ),
    key(Table::Proxy, "gpus", Kind::Gpus, "all", "The NVIDIA GPUs that workers get.", false),
    key(Table::Proxy, "soft_devices", Kind::Number(1, 16), "1", "How many GPUs the software backend shows.", false),
    key(Table::Proxy, "soft_memory", Kind::Size, "4GiB", "How much memory each of them has.", false),
    key(
        Table::Proxy,
        "soft_mig",
        Kind::Number(0, 7),
        "0",
        "How many MIG instances each of them is cut into, each with its part of the memory; 0: it stays whole.",
        false,
    ),
    key(Table::Proxy, "spare_workers", Kind::Number(0, 64), "1", "Workers kept ready for the next clients.", true),
    key(
        Table::Proxy,
        "max_clients",
        Kind::Number(1, 1000),
        "128",
        "Processes that one zone may have at a time.",
        true,
    ),
    key(
        Table::Proxy,
        "jail",
        Kind::OneOf(&["require", "best-effort", "off"]),
        "\"require\" for root, else \"best-effort\"",
        "What to do where the machine does not allow the whole jail.",
        false,
    ),
    key(
        Table::Proxy,
        "worker_uids",
        Kind::Number(1000, 0x7000_0000),
        "805306368",
        "First of 1024 user ids that workers get, one each, when the proxy is root.",
        false,
    ),
    key(
        Table::Proxy,
        "allow_hmm",
        Kind::Flag,
        "false",
        "NVIDIA only: lets tenants use GPUs whose kernels reach the pageable memory of their process (HMM). Such a kernel can \
         take its worker over. Without this they are refused where the whole jail is required.",
        false,
    ),
    key(
        Table::Proxy,
        "context_memory",
        Kind::SizeOrNone,
        "0 on the software GPU, else 523MiB",
        "What each context is charged with: the memory that the driver takes for it.",
        false,
    ),
    key(
        Table::Proxy,
        "overdraft",
        Kind::SizeOrNone,
        "1GiB",
        "NVIDIA only: a program that uses so much more GPU memory than was granted to it, while its zone is over its \
         limit, is ended. What it uses is asked of NVML from outside, once a second.",
        false,
    ),
    key(
        Table::Proxy,
        "suspend_idle",
        Kind::Number(0, 86_400),
        "0",
        "Seconds after which the GPU memory of a program that asks for nothing is moved to host memory, until it goes \
         on. So zones may have more memory together than the GPU has. 0: never.",
        false,
    ),
    key(
        Table::Proxy,
        "watchdog",
        Kind::Number(0, 86_400),
        "60",
        "Seconds that work may run on after its zone's turn while other zones wait; then its program is ended. 0: for \
         ever.",
        false,
    ),
    key(
        Table::Http,
        "listen",
        Kind::Address,
        "off",
        "Where metrics and the status page are served. They name zones, pods and processes, and need no password: keep them to this machine or to a network you trust.",
        false,
    ),
    key(
        Table::Http,
        "names",
        Kind::Hosts,
        "none",
        "Names by which it may be asked for, besides `localhost`, the machine's own name and any IP address. Others are refused: a web page could use a name of its own to have a browser read what is served here.",
        false,
    ),
    key(
        Table::Http,
        "dcgm_names",
        Kind::Flag,
        "false",
        "Also serve what zones use under the names of NVIDIA's DCGM exporter. Leave it off where that exporter runs as well, or sums count twice.",
        false,
    ),
    key(
        Table::Log,
        "format",
        Kind::OneOf(&["text", "json"]),
        "\"text\"",
        "Lines for people, or one JSON object in each line.",
        false,
    ),
    key(
        Table::Log,
        "level",
        Kind::OneOf(&["error", "warn", "info", "debug", "trace"]),
        "\"info\"",
        "How much is logged; `BULKHEAD_LOG` goes before it.",
        false,
    ),
    key(Table::Zone, "memory", Kind::Limit, "unlimited", "GPU memory of all processes of the zone together.", true),
    key(
        Table::Zone,
        "pinned_memory",
        Kind::Limit,
        "unlimited",
        "Host memory that the zone's processes may pin for the GPU.",
        true,
    ),
    key(
        Table::Zone,
        "share",
        Kind::Number(1, MAX_SHARE as u64),
        "100",
        "Weight of the zone's GPU time against other zones.",
        true,
    ),
    key(
        Table::Zone,
        "cap",
        Kind::Percent(100),
        "unlimited",
        "Most of the GPU's time that the zone gets even when nobody else wants it, in percent.",
        true,
    ),
    key(
        Table::Zone,
        "priority",
        Kind::Number(0, MAX_PRIORITY as u64),
        "0",
        "Zones of a higher priority come first.",
        true,
    ),
    key(
        Table::Zone,
        "host_memory",
        Kind::Limit,
        "unlimited",
        "Host memory of all workers of the zone together, by their control group. A program whose worker would need more \
         is ended. At least 64MiB; on the software GPU, what programs allocate there is part of it.",
        true,
    ),
    key(
        Table::Zone,
        "host_cpu",
        Kind::Percent(MAX_HOST_CPU as u64),
        "unlimited",
        "Processor time of all workers of the zone together, in percent of one processor: 150 is one and a half.",
        true,
    ),
    key(Table::Zone, "uid", ID, "the proxy's", "Owner of the zone's socket.", true),
    key(Table::Zone, "gid", ID, "the proxy's", "Group of the zone's socket.", true),
    key(
        Table::Zone,
        "mode",
        Kind::Mode,
        "\"0666\"",
        "Mode of the zone's socket: who can write to it can run programs in the zone.",
        true,
    ),
    grant(
        "readable_by",
        "Zones whose programs may open memory and events that those of this zone export, to read them.",
    ),
    grant("writable_by", "The same, to read and write."),
    label("pod", "Label of the zone's metrics: the pod that it belongs to."),
    label("namespace", "Label of the zone's metrics: the namespace of the pod."),
    label("container", "Label of the zone's metrics: the container in the pod."),
    key(
        Table::Kubernetes,
        "whole_gpus",
        Kind::ResourceOrNone,
        "off",
        "The resource by which pods ask for whole GPUs: those that neither a profile nor `claims` has.",
        true,
    ),
    key(
        Table::Kubernetes,
        "claims",
        Kind::Gpus,
        "those that nothing else has",
        "The GPUs that claims get parts of. A GPU is handed out in one way only: by profiles, by claims, or whole.",
        true,
    ),
    key(
        Table::Kubernetes,
        "placement",
        Kind::OneOf(&["pack", "spread"]),
        "\"pack\"",
        "Which GPU the next part is taken of: one that is in use already, or the one that is used least.",
        true,
    ),
    key(
        Table::Kubernetes,
        "injection",
        Kind::OneOf(&["cdi", "mounts"]),
        "\"cdi\"",
        "How a container gets our libraries and its zone: by CDI, or, where the runtime or kubelet is too old for that, \
         by plain mounts.",
        true,
    ),
    key(
        Table::Kubernetes,
        "reserve",
        Kind::SizeOrNone,
        "0 on the software GPU, else 2GiB",
        "Memory of each GPU that is not handed out in parts: the driver's own, and what spare workers take.",
        true,
    ),
    key(
        Table::Kubernetes,
        "time_slicing",
        Kind::Path,
        "none",
        "A configuration file of NVIDIA's device plugin: what stands under `sharing.timeSlicing` becomes profiles.",
        true,
    ),
    key(
        Table::Kubernetes,
        "time_slicing_memory",
        Kind::OneOf(&["equal", "unlimited"]),
        "\"equal\"",
        "Memory of each replica of that file: an equal part, or, as with NVIDIA's plugin, no limit.",
        true,
    ),
    key(
        Table::Kubernetes,
        "sharing",
        Kind::OneOf(&["claim", "namespace"]),
        "\"claim\"",
        "Which pods may open each other's memory by CUDA IPC without a GpuShareGrant: those of one claim, or all of one \
         namespace.",
        true,
    ),
    key(
        Table::Profile,
        "resource",
        Kind::Resource,
        "\"bulkhead.dev/NAME\"",
        "The resource by which pods ask for it.",
        true,
    ),
    key(Table::Profile, "memory", Kind::Limit, "unlimited", "GPU memory of each part.", true),
    key(
        Table::Profile,
        "pinned_memory",
        Kind::Limit,
        "unlimited",
        "Host memory that each may pin for the GPU.",
        true,
    ),
    key(
        Table::Profile,
        "share",
        Kind::Number(1, MAX_SHARE as u64),
        "100",
        "Weight of its GPU time against other zones.",
        true,
    ),
    key(
        Table::Profile,
        "cap",
        Kind::Percent(100),
        "unlimited",
        "Most of the GPU's time that it gets even when nobody else wants it, in percent.",
        true,
    ),
    key(
        Table::Profile,
        "priority",
        Kind::Number(0, MAX_PRIORITY as u64),
        "0",
        "Zones of a higher priority come first.",
        true,
    ),
    key(Table::Profile, "per_gpu", Kind::Number(1, 128), "as many as fit", "How many parts each GPU has.", true),
    key(
        Table::Profile,
        "gpus",
        Kind::Gpus,
        "all",
        "The GPUs that have such parts, as `bulkhead topology` counts them; of a GPU in MIG mode each slice counts, in \
         its place.",
        true,
    ),
    key(
        Table::Profile,
        "mig",
        Kind::Label,
        "any GPU",
        "Only MIG slices of this size have such parts, like \"1g.18gb\".",
        true,
    ),
    key(
        Table::Quota,
        "memory",
        Kind::Limit,
        "unlimited",
        "GPU memory that the programs of the namespace use together, whatever their pods were given.",
        true,
    ),
];

/// The reference for operators, in Markdown.
pub fn reference() -> String {
    let mut text = String::new();
    for table in Table::ALL {
        text += &format!("### `{}`\n\n{}\n\n", table.heading(), table.meaning());
        if table == Table::Defaults {
            let names: Vec<String> = table.keys().map(|key| format!("`{}`", key.name)).collect();
            text += &format!("Takes {} of `[zones.NAME]`.\n\n", names.join(", "));
            continue;
        }
        text += "| key | value | default | meaning |\n|---|---|---|---|\n";
        for key in table.keys() {
            let restart = if key.live { "" } else { " (restart)" };
            text += &format!(
                "| `{}` | {} | {} | {}{restart} |\n",
                key.name,
                key.kind.describe(),
                key.default,
                key.meaning
            );
        }
        text += "\n";
    }
    text
}
