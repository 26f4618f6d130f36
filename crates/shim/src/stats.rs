//! What a container uses, in the form that containerd's CRI plugin reads.

use agent::protocol::Stats;
use containerd_shim::protos::cgroups::metrics::{CPUStat, CPUUsage, MemoryEntry, MemoryStat, Metrics, PidsStat};
use containerd_shim::protos::protobuf::MessageField;

/// The machine's word, and no more than that: nothing on the host is decided by it but evictions.
pub(crate) fn metrics(stats: &Stats) -> Metrics {
    let usage = MemoryEntry { usage: stats.memory_bytes, limit: stats.memory_limit, ..Default::default() };
    let memory = MemoryStat {
        usage: MessageField::some(usage),
        total_inactive_file: stats.inactive_file_bytes,
        ..Default::default()
    };
    let usage = CPUUsage {
        total: stats.cpu_nanoseconds,
        user: stats.cpu_user_nanoseconds,
        kernel: stats.cpu_kernel_nanoseconds,
        ..Default::default()
    };
    let pids = PidsStat { current: stats.processes, limit: stats.processes_limit, ..Default::default() };
    Metrics {
        memory: MessageField::some(memory),
        cpu: MessageField::some(CPUStat { usage: MessageField::some(usage), ..Default::default() }),
        pids: MessageField::some(pids),
        ..Default::default()
    }
}
