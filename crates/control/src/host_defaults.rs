//! What a zone may have of the host where nobody says otherwise. A tenant that can make its worker grow would otherwise take
//! the machine's memory from everybody.

use crate::zone::ZoneLimits;

/// What the driver library, a context and the staging memory of a few clients take on an NVIDIA GPU, and room beside it.
pub const LEAST_MEMORY: u64 = 2 << 30;
/// Processes and threads of a few workers, each of which may have half of them.
pub const LEAST_PROCESSES: u64 = 8_192;
/// Nodes of graphs and captures that one client may have in its worker: some hundred bytes each.
pub const GRAPH_NODES: u64 = 1_000_000;

/// The machine, as far as defaults depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostDefaults {
    /// Bytes of memory that the machine has.
    pub machine: u64,
    /// Bytes of GPU memory that may lie in the workers' host memory: of software GPUs, or of clients that are suspended.
    pub gpu_memory: u64,
    /// Processes and threads that the kernel lets the machine have.
    pub processes: u64,
}

impl Default for HostDefaults {
    fn default() -> Self {
        Self { machine: machine_memory(), gpu_memory: 0, processes: machine_processes() }
    }
}

impl HostDefaults {
    /// Host memory of all workers of a node together.
    pub fn node_memory(self) -> u64 {
        (self.machine / 4).saturating_mul(3)
    }

    /// Processes and threads of all workers of a node together.
    pub fn node_processes(self) -> u64 {
        (self.processes / 4).saturating_mul(3).max(LEAST_PROCESSES)
    }

    /// Processes and threads of a zone's workers.
    fn zone_processes(self) -> u64 {
        (self.processes / 4).max(LEAST_PROCESSES)
    }

    /// Host memory of a zone's workers, or pinned for its clients.
    fn zone_memory(self) -> u64 {
        (self.machine / 4).max(LEAST_MEMORY)
    }

    /// A zone's limits as they are in force: defaults where it has none of its own, nothing where there is no limit.
    pub fn in_force(self, limits: &ZoneLimits) -> ZoneLimits {
        let or_default = |limit: Option<u64>, default: u64| match limit {
            None => Some(default),
            Some(u64::MAX) => None,
            own => own,
        };
        let base = self.zone_memory();
        // GPU memory that lies in host memory is limited by its own limit, and must fit beside the rest.
        let on_host = self.gpu_memory.min(limits.memory.unwrap_or(u64::MAX));
        let workers = base.saturating_add(on_host).min(self.node_memory()).max(base);
        ZoneLimits {
            host_memory: or_default(limits.host_memory, workers),
            pinned: or_default(limits.pinned, base),
            host_processes: or_default(limits.host_processes, self.zone_processes()),
            graph_nodes: or_default(limits.graph_nodes, GRAPH_NODES),
            ..*limits
        }
    }
}

/// Bytes of memory that this machine has.
pub fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit.max(1)))
}

/// Processes and threads that this machine's kernel allows: as many as it can number, and has memory for.
pub fn machine_processes() -> u64 {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    [read("pid_max"), read("threads-max")].into_iter().flatten().min().unwrap_or(32_768)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zone::UNLIMITED;

    const GIB: u64 = 1 << 30;

    fn on(machine: u64, gpu_memory: u64, limits: ZoneLimits) -> (Option<u64>, Option<u64>, Option<u64>) {
        let limits = HostDefaults { machine, gpu_memory, processes: 0 }.in_force(&limits);
        (limits.host_memory, limits.pinned, limits.graph_nodes)
    }

    #[test]
    fn what_nobody_limits_is_limited() {
        let none = ZoneLimits::default();
        assert_eq!(on(64 * GIB, 0, none), (Some(16 * GIB), Some(16 * GIB), Some(GRAPH_NODES)));
        assert_eq!(on(GIB, 0, none).0, Some(LEAST_MEMORY), "less is too little for one worker");
        assert_eq!(HostDefaults { machine: 64 * GIB, gpu_memory: 0, processes: 0 }.node_memory(), 48 * GIB);
        let here = HostDefaults::default();
        assert!(here.machine > 64 << 20 && here.in_force(&none).host_memory.is_some());
    }

    #[test]
    fn processes_are_limited_for_a_zone_and_for_all() {
        let of = |processes, own| {
            let defaults = HostDefaults { machine: 64 * GIB, gpu_memory: 0, processes };
            let limits = ZoneLimits { host_processes: own, ..ZoneLimits::default() };
            (defaults.in_force(&limits).host_processes, defaults.node_processes())
        };
        assert_eq!(of(1 << 18, None), (Some(1 << 16), 3 << 16), "a zone has no more than a third of what all have");
        assert_eq!(of(100, None), (Some(LEAST_PROCESSES), LEAST_PROCESSES));
        assert_eq!((of(100, Some(300)).0, of(100, Some(UNLIMITED)).0), (Some(300), None));
        assert!(machine_processes() > 100);
    }

    #[test]
    fn an_operator_has_the_last_word() {
        let own =
            ZoneLimits { host_memory: Some(5 * GIB), pinned: Some(1), graph_nodes: Some(7), ..Default::default() };
        assert_eq!(on(64 * GIB, 0, own), (Some(5 * GIB), Some(1), Some(7)));
        let free = ZoneLimits {
            host_memory: Some(UNLIMITED),
            pinned: Some(UNLIMITED),
            graph_nodes: Some(UNLIMITED),
            ..Default::default()
        };
        assert_eq!(on(64 * GIB, 0, free), (None, None, None));
    }

    #[test]
    fn gpu_memory_on_the_host_fits_beside_the_rest() {
        let limited = ZoneLimits { memory: Some(3 * GIB), ..Default::default() };
        assert_eq!(on(64 * GIB, 8 * GIB, limited).0, Some(19 * GIB));
        assert_eq!(on(64 * GIB, 8 * GIB, ZoneLimits::default()).0, Some(24 * GIB));
        assert_eq!(on(64 * GIB, u64::MAX, ZoneLimits::default()).0, Some(48 * GIB), "no more than the node's");
        assert_eq!(on(64 * GIB, u64::MAX, limited).1, Some(16 * GIB), "it is not pinned");
    }
}
