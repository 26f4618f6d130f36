//! Every key of the configuration file, once: what is read, what is suggested for a misspelt one, and the reference in
//! `docs/operations.md` all come from here.

use control::driver_filter::DriverFilter;
use control::spawner::SLOTS;
use control::zone::{MAX_GRAPH_NODES, MAX_HOST_CPU, MAX_HOST_PROCESSES, MAX_PRIORITY, MAX_SHARE};

/// Where a key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    Proxy,
    Http,
    Log,
    Defaults,
    Zone,
    ZoneGpu,
    Kubernetes,
    Profile,
    Quota,
}

impl Table {
    pub const ALL: [Self; 9] = [
        Self::Proxy,
        Self::Http,
        Self::Log,
        Self::Defaults,
        Self::Zone,
        Self::ZoneGpu,
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
            Self::ZoneGpu => "[zones.NAME.gpu.N]",
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
            Self::Log => "Logging to stderr.",
            Self::Defaults => "Defaults for the zones in this file.",
            Self::Zone => {
                "A zone called NAME; one table per zone. Its limits of GPU memory and GPU time apply to each GPU it has."
            }
            Self::ZoneGpu => {
                "What zone NAME has on GPU N (the number of its device node), where that differs from its other GPUs."
            }
            Self::Kubernetes => {
                "What the node offers to Kubernetes. Read by `bulkhead device-plugin` and `bulkhead dra`."
            }
            Self::Profile => "A fraction of a GPU that pods can request as a resource; one table per profile.",
            Self::Quota => "Limits of all pods of a namespace together, on this node; one table per namespace.",
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
    /// A duration of at most so many seconds: a text like `"1h"`, or seconds.
    Seconds(u64),
    /// A number from 1 to this, such as a percentage, or `"unlimited"`.
    CountLimit(u64),
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
            Self::Label => "a string".to_owned(),
            Self::Size => "a size such as \"2GiB\"".to_owned(),
            Self::SizeOrNone => "a size such as \"512MiB\", or 0".to_owned(),
            Self::Limit => "a size such as \"2GiB\", or \"unlimited\"".to_owned(),
            Self::Number(least, most) => format!("a number from {least} to {most}"),
            Self::Seconds(most) => {
                format!("a duration such as \"30s\" or \"5m\", or a number of seconds up to {most}")
            }
            Self::CountLimit(most) => format!("a number from 1 to {most}, or \"unlimited\""),
            Self::Gpus => "a list of GPU numbers such as [0, 1]".to_owned(),
            Self::Mode => "a mode such as \"0660\"".to_owned(),
            Self::Address => "an address such as \"127.0.0.1:9470\", or \"off\"".to_owned(),
            Self::Flag => "true or false".to_owned(),
            Self::Zones => "a list of zones such as [\"a\", \"b\"]".to_owned(),
            Self::Hosts => "a list of names such as [\"node1.example\"]".to_owned(),
            Self::Resource => "a name such as \"bulkhead.dev/gpu\"".to_owned(),
            Self::ResourceOrNone => "a name such as \"bulkhead.dev/gpu\", or \"off\"".to_owned(),
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
    key(Table::Proxy, "state_dir", Kind::Path, "/run/bulkhead", "Directory for sockets and state.", false),
    key(
        Table::Proxy,
        "backend",
        Kind::OneOf(&["auto", "nvidia", "soft"]),
        "\"auto\"",
        "Driver that workers use: NVIDIA's, or the software GPU.",
        false,
    ),
    key(
        Table::Proxy,
        "driver_library",
        Kind::Path,
        "searched",
        "Path of NVIDIA's libcuda.so.1, if it is not in a standard directory.",
        false,
    ),
    key(Table::Proxy, "gpus", Kind::Gpus, "all", "NVIDIA GPUs that workers use.", false),
    key(Table::Proxy, "soft_devices", Kind::Number(1, 16), "1", "Number of GPUs of the software backend.", false),
    key(Table::Proxy, "soft_memory", Kind::Size, "4GiB", "Memory of each software GPU.", false),
    key(
        Table::Proxy,
        "soft_mig",
        Kind::Number(0, 7),
        "0",
        "Number of MIG instances on each software GPU, which divide its memory; 0 disables MIG.",
        false,
    ),
    key(
        Table::Proxy,
        "spare_workers",
        Kind::Number(0, 64),
        "1",
        "Number of idle workers kept ready for new clients.",
        true,
    ),
    key(Table::Proxy, "max_clients", Kind::Number(1, 1000), "128", "Maximum number of clients per zone.", true),
    key(
        Table::Proxy,
        "jail",
        Kind::OneOf(&["require", "best-effort", "off"]),
        "\"require\" for root, else \"best-effort\"",
        "What to do if part of the jail is unavailable on this machine.",
        false,
    ),
    key(
        Table::Proxy,
        "worker_uids",
        Kind::Number(1000, 0x7000_0000),
        "805306368",
        "First of 1028 user IDs if the proxy runs as root: one for each worker, then meter, broker, exporter and preemptor.",
        false,
    ),
    key(
        Table::Proxy,
        "driver_filter",
        Kind::OneOf(&DriverFilter::NAMES),
        "\"off\"",
        "NVIDIA only: what stands between a worker that may be compromised and the kernel driver. `refuse`: requests that no \
         driver library makes are refused. `supervise` (experimental): also, a process beside each worker makes its calls, if \
         their arguments are allowed. Part of the jail.",
        false,
    ),
    key(
        Table::Proxy,
        "allow_hmm",
        Kind::Flag,
        "false",
        "NVIDIA only: allow GPUs whose kernels can access pageable host memory (HMM). Such a kernel can compromise its \
         worker. Otherwise these GPUs are refused if the jail is required.",
        false,
    ),
    key(
        Table::Proxy,
        "context_memory",
        Kind::SizeOrNone,
        "0 on the software GPU, else 523MiB",
        "Memory charged to the zone for each CUDA context: what the driver allocates for it.",
        false,
    ),
    key(
        Table::Proxy,
        "overdraft",
        Kind::SizeOrNone,
        "1GiB",
        "NVIDIA only: GPU memory that the clients of a zone together may use beyond what they were granted, while the zone \
         exceeds its limit. Those that took most are ended until the rest fits. Usage is read from NVML once a second.",
        false,
    ),
    key(
        Table::Proxy,
        "host_memory",
        Kind::Limit,
        "three quarters of the machine's",
        "Host memory of all workers of the node together, enforced by their cgroup.",
        false,
    ),
    key(
        Table::Proxy,
        "host_processes",
        Kind::CountLimit(MAX_HOST_PROCESSES),
        "three quarters of what the kernel allows the machine",
        "Processes and threads of all workers of the node together, enforced by their cgroup (`pids.max`).",
        false,
    ),
    key(
        Table::Proxy,
        "suspend_idle",
        Kind::Seconds(86_400),
        "0",
        "Time after which the GPU memory of an idle client is moved to host memory, until it continues. This lets zones \
         use more memory together than the GPU has. 0 disables.",
        false,
    ),
    key(
        Table::Proxy,
        "suspend_memory",
        Kind::SizeOrNone,
        "half of the machine's",
        "Host memory for the GPU memory of suspended clients, of all zones together. A client that does not fit is not \
         suspended. With 0 nobody is.",
        false,
    ),
    key(
        Table::Proxy,
        "suspend_context",
        Kind::Flag,
        "false",
        "NVIDIA only: suspend clients by the driver's checkpoint, which moves the CUDA context and all memory. It takes ten \
         times as long, and clients that share memory are not suspended. `suspend_memory` does not apply.",
        false,
    ),
    key(
        Table::Proxy,
        "suspend_on_demand",
        Kind::Flag,
        "false",
        "Suspend idle clients when another client allocates memory that its zone may have and the GPU does not have. \
         Otherwise that allocation fails.",
        false,
    ),
    key(
        Table::Proxy,
        "resume_timeout",
        Kind::Seconds(86_400),
        "600",
        "Time that a suspended client waits for GPU memory to continue, before it is ended.",
        false,
    ),
    key(
        Table::Proxy,
        "watchdog",
        Kind::Seconds(86_400),
        "60",
        "Time after which work that does not end is ended with its client while other zones wait: GPU time where work \
         can be preempted, else time since its zone's turn. 0 disables.",
        false,
    ),
    key(
        Table::Http,
        "listen",
        Kind::Address,
        "off",
        "Address of metrics and the status page. They show zones, pods and processes without authentication: keep them on this machine or a trusted network.",
        false,
    ),
    key(
        Table::Http,
        "names",
        Kind::Hosts,
        "none",
        "Host names to accept besides `localhost`, the machine's own name and any IP address. Others are refused, to prevent DNS rebinding.",
        false,
    ),
    key(
        Table::Http,
        "dcgm_names",
        Kind::Flag,
        "false",
        "Also serve zone usage under the metric names of NVIDIA's DCGM exporter. Leave it off if that exporter runs, too, or sums count twice.",
        false,
    ),
    key(
        Table::Log,
        "format",
        Kind::OneOf(&["text", "json"]),
        "\"text\"",
        "Human-readable text, or one JSON object per line.",
        false,
    ),
    key(
        Table::Log,
        "level",
        Kind::OneOf(&["error", "warn", "info", "debug", "trace"]),
        "\"info\"",
        "Log level; `BULKHEAD_LOG` overrides it.",
        false,
    ),
    key(
        Table::Zone,
        "memory",
        Kind::Limit,
        "unlimited",
        "GPU memory of all clients of the zone together, on each GPU.",
        true,
    ),
    key(
        Table::Zone,
        "pinned_memory",
        Kind::Limit,
        "a quarter of the machine's memory, at least 2GiB",
        "Pinned host memory of all clients of the zone together.",
        true,
    ),
    key(
        Table::Zone,
        "share",
        Kind::Number(1, MAX_SHARE as u64),
        "100",
        "Weight of the zone's time on each GPU relative to other zones.",
        true,
    ),
    key(
        Table::Zone,
        "cap",
        Kind::CountLimit(100),
        "unlimited",
        "Maximum share of each GPU's time in percent, even if the GPU is idle otherwise.",
        true,
    ),
    key(
        Table::Zone,
        "priority",
        Kind::Number(0, MAX_PRIORITY as u64),
        "0",
        "Scheduling priority; zones with a higher one run first.",
        true,
    ),
    Key {
        of_one_zone: true,
        ..key(
            Table::Zone,
            "gpus",
            Kind::Gpus,
            "all",
            "GPUs that the zone has, by the numbers of their device nodes.",
            true,
        )
    },
    key(
        Table::ZoneGpu,
        "memory",
        Kind::Limit,
        "the zone's",
        "GPU memory of all clients of the zone on this GPU.",
        true,
    ),
    key(
        Table::ZoneGpu,
        "share",
        Kind::Number(1, MAX_SHARE as u64),
        "the zone's",
        "Weight of the zone's time on this GPU.",
        true,
    ),
    key(
        Table::ZoneGpu,
        "cap",
        Kind::CountLimit(100),
        "the zone's",
        "Maximum share of this GPU's time in percent.",
        true,
    ),
    key(
        Table::ZoneGpu,
        "priority",
        Kind::Number(0, MAX_PRIORITY as u64),
        "the zone's",
        "Scheduling priority on this GPU.",
        true,
    ),
    key(
        Table::Zone,
        "host_memory",
        Kind::Limit,
        "a quarter of the machine's memory, at least 2GiB",
        "Host memory of all workers of the zone together, enforced by their cgroup. A client whose worker exceeds it is \
         ended. At least 64MiB. On the software GPU and with `suspend_idle` this includes the clients' GPU memory, and so \
         does the default.",
        true,
    ),
    key(
        Table::Zone,
        "suspend_memory",
        Kind::SizeOrNone,
        "the node's",
        "Host memory for the GPU memory of the zone's suspended clients. With 0 they are never suspended. It is part of \
         `host_memory`.",
        true,
    ),
    key(
        Table::Zone,
        "host_cpu",
        Kind::CountLimit(MAX_HOST_CPU as u64),
        "unlimited",
        "CPU time of all workers of the zone together, in percent of one CPU: 150 is one and a half CPUs. Where CPUs are \
         busy, all zones have the same part of them, however many workers they have.",
        true,
    ),
    key(
        Table::Zone,
        "host_processes",
        Kind::CountLimit(MAX_HOST_PROCESSES),
        "a quarter of what the kernel allows the machine, at least 8192",
        "Processes and threads of all workers of the zone together, enforced by their cgroup (`pids.max`). At least 256; a \
         worker has at most 4096.",
        true,
    ),
    key(
        Table::Zone,
        "graph_nodes",
        Kind::CountLimit(MAX_GRAPH_NODES),
        "1000000",
        "Nodes of CUDA graphs and stream captures that each client may have. More is refused with \
         CUDA_ERROR_OUT_OF_MEMORY. Clients that run already keep the limit they started with.",
        true,
    ),
    key(
        Table::Zone,
        "workers",
        Kind::Number(0, SLOTS as u64),
        "4",
        "Clients that the zone can have whatever other zones do. A node has 1024 workers; an eighth \
         of them is kept for zones that come later, and those that no zone is guaranteed are first come, first served.",
        true,
    ),
    key(
        Table::Zone,
        "uid",
        ID,
        "the proxy's",
        "Local user that may enter the zone, at `STATE_DIR/users/ZONE/sock`; owner of the zone's sockets.",
        true,
    ),
    key(
        Table::Zone,
        "gid",
        ID,
        "the proxy's",
        "Local group that may enter the zone, in the same way; group of the zone's sockets.",
        true,
    ),
    key(
        Table::Zone,
        "mode",
        Kind::Mode,
        "\"0666\"",
        "Mode of the zone's socket: users who can write to it, inside a container that has it, can run programs in the zone. The socket for local users is for `uid` and `gid` alone.",
        true,
    ),
    grant("readable_by", "Zones whose clients may open and read memory and events that clients of this zone export."),
    grant("writable_by", "Zones that may read and write them."),
    label("pod", "Pod label of the zone's metrics."),
    label("namespace", "Namespace label of the zone's metrics."),
    label("container", "Container label of the zone's metrics."),
    key(
        Table::Kubernetes,
        "whole_gpus",
        Kind::ResourceOrNone,
        "off",
        "Resource name for whole GPUs: those that no profile uses and `claims` does not list.",
        true,
    ),
    key(
        Table::Kubernetes,
        "claims",
        Kind::Gpus,
        "those not offered otherwise",
        "GPUs for claims. A GPU is offered in one way only: by profiles, for claims, or whole.",
        true,
    ),
    key(
        Table::Kubernetes,
        "placement",
        Kind::OneOf(&["pack", "spread"]),
        "\"pack\"",
        "Which GPU to allocate from next: one that is already in use, or the least used one.",
        true,
    ),
    key(
        Table::Kubernetes,
        "injection",
        Kind::OneOf(&["cdi", "mounts"]),
        "\"cdi\"",
        "How to inject the client libraries and the zone into a container: by CDI, or by plain mounts if the runtime or \
         kubelet does not support CDI.",
        true,
    ),
    key(
        Table::Kubernetes,
        "reserve",
        Kind::SizeOrNone,
        "0 on the software GPU, else 2GiB",
        "Memory of each GPU that profiles and claims do not get, for the driver and for idle workers.",
        true,
    ),
    key(
        Table::Kubernetes,
        "time_slicing",
        Kind::Path,
        "none",
        "Configuration file of NVIDIA's device plugin, whose `sharing.timeSlicing` entries become profiles.",
        true,
    ),
    key(
        Table::Kubernetes,
        "time_slicing_memory",
        Kind::OneOf(&["equal", "unlimited"]),
        "\"equal\"",
        "Memory of each replica in that file: an equal fraction, or no limit, as with NVIDIA's plugin.",
        true,
    ),
    key(
        Table::Kubernetes,
        "sharing",
        Kind::OneOf(&["claim", "namespace"]),
        "\"claim\"",
        "Which pods may open each other's memory through CUDA IPC without a GpuShareGrant: those of one claim, or all of \
         one namespace.",
        true,
    ),
    key(
        Table::Profile,
        "resource",
        Kind::Resource,
        "\"bulkhead.dev/NAME\"",
        "Resource name that pods request.",
        true,
    ),
    key(Table::Profile, "memory", Kind::Limit, "unlimited", "GPU memory of each device.", true),
    key(
        Table::Profile,
        "pinned_memory",
        Kind::Limit,
        "a quarter of the machine's memory, at least 2GiB",
        "Pinned host memory of each device.",
        true,
    ),
    key(
        Table::Profile,
        "host_memory",
        Kind::Limit,
        "a quarter of the machine's memory, at least 2GiB",
        "Host memory of the workers of each device.",
        true,
    ),
    key(
        Table::Profile,
        "host_cpu",
        Kind::CountLimit(MAX_HOST_CPU as u64),
        "unlimited",
        "CPU time of the workers of each device, in percent of one CPU.",
        true,
    ),
    key(
        Table::Profile,
        "host_processes",
        Kind::CountLimit(MAX_HOST_PROCESSES),
        "a quarter of what the kernel allows the machine, at least 8192",
        "Processes and threads of the workers of each device.",
        true,
    ),
    key(
        Table::Profile,
        "share",
        Kind::Number(1, MAX_SHARE as u64),
        "100",
        "Weight of its GPU time relative to other zones.",
        true,
    ),
    key(
        Table::Profile,
        "cap",
        Kind::CountLimit(100),
        "unlimited",
        "Maximum share of GPU time in percent, even if the GPU is idle otherwise.",
        true,
    ),
    key(
        Table::Profile,
        "priority",
        Kind::Number(0, MAX_PRIORITY as u64),
        "0",
        "Scheduling priority; zones with a higher one run first.",
        true,
    ),
    key(Table::Profile, "per_gpu", Kind::Number(1, 128), "as many as fit", "Number of devices per GPU.", true),
    key(
        Table::Profile,
        "gpus",
        Kind::Gpus,
        "all",
        "GPUs to offer this profile on, numbered as in `bulkhead topology`; each MIG instance has a number of its own, in \
         its place.",
        true,
    ),
    key(
        Table::Profile,
        "mig",
        Kind::Label,
        "any GPU",
        "Offer this profile only on MIG instances of this size, such as \"1g.18gb\".",
        true,
    ),
    key(
        Table::Quota,
        "memory",
        Kind::Limit,
        "unlimited",
        "GPU memory of all clients of the namespace together, on each GPU, whatever their pods requested.",
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
            text += &format!("Accepts {} of `[zones.NAME]`.\n\n", names.join(", "));
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
