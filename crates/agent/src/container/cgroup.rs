//! A container's cgroup, in version 1 (a tree for each controller) or version 2 (one tree for all).
//!
//! Which trees there are is read from the machine's mounts. A container gets a group of the same path in each tree that
//! counts or limits something; in version 2 controllers are switched on along the way down to it.

use crate::oci::Resources;
use crate::protocol::Stats;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Controllers of version 1 that a container has a group in.
const CONTROLLERS: [&str; 6] = ["memory", "cpu", "cpuacct", "pids", "freezer", "devices"];
/// Controllers of version 2 that are switched on.
const ENABLED: [&str; 4] = ["memory", "cpu", "pids", "cpuset"];
/// What version 1 says for "no limit".
const NO_LIMIT: u64 = i64::MAX as u64 & !0xfff;
/// A group can be removed a moment after its last process has ended.
const REMOVE_TRIES: u32 = 50;

/// Where the trees are mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Trees {
    /// Controller and mount point.
    v1: Vec<(String, PathBuf)>,
    v2: Option<PathBuf>,
}

impl Trees {
    /// From a table of mounts as `/proc/self/mounts` has it. Where version 1 has the memory, it has everything.
    pub(crate) fn parse(mounts: &str) -> Self {
        let mut trees = Self::default();
        for line in mounts.lines() {
            let mut fields = line.split(' ');
            let (Some(place), Some(kind), Some(options)) = (fields.nth(1), fields.next(), fields.next()) else {
                continue;
            };
            match kind {
                "cgroup2" => trees.v2 = Some(place.into()),
                "cgroup" => {
                    let named = options.split(',').filter(|option| CONTROLLERS.contains(option));
                    trees.v1.extend(named.map(|controller| (controller.to_owned(), place.into())));
                }
                _ => {}
            }
        }
        if trees.v1.iter().any(|(controller, _)| controller == "memory") {
            trees.v2 = None;
        } else {
            trees.v1.clear();
        }
        trees
    }

    pub(crate) fn find() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/mounts").unwrap_or_default())
    }
}

/// The groups of one container.
#[derive(Debug, Clone)]
pub(crate) struct Cgroup {
    trees: Trees,
    path: PathBuf,
}

impl Cgroup {
    /// Makes the groups. `path` is what the specification calls `cgroupsPath`; what leads upwards in it is left out.
    pub(crate) fn create(trees: &Trees, path: &str) -> io::Result<Self> {
        let parts = Path::new(path).components().filter_map(|part| match part {
            std::path::Component::Normal(name) => Some(name),
            _ => None,
        });
        let cgroup = Self { trees: trees.clone(), path: parts.collect() };
        for dir in cgroup.dirs() {
            fs::create_dir_all(&dir)?;
        }
        if let Some(root) = &cgroup.trees.v2 {
            let mut at = root.clone();
            for part in cgroup.path.parent().into_iter().flat_map(Path::components) {
                switch_on(&at);
                at.push(part);
            }
            switch_on(&at);
        }
        Ok(cgroup)
    }

    fn dirs(&self) -> Vec<PathBuf> {
        let mut roots: Vec<&PathBuf> = self.trees.v1.iter().map(|(_, root)| root).chain(&self.trees.v2).collect();
        roots.dedup();
        roots.into_iter().map(|root| root.join(&self.path)).collect()
    }

    /// The group that has this controller.
    fn dir(&self, controller: &str) -> Option<PathBuf> {
        let v1 = self.trees.v1.iter().find(|(name, _)| name == controller).map(|(_, root)| root);
        v1.or(self.trees.v2.as_ref()).map(|root| root.join(&self.path))
    }

    fn is_v2(&self) -> bool {
        self.trees.v2.is_some()
    }

    /// Moves the process that calls this into the groups.
    pub(crate) fn join(&self) -> io::Result<()> {
        self.dirs().into_iter().try_for_each(|dir| fs::write(dir.join("cgroup.procs"), "0"))
    }

    /// Sets what `resources` has.
    pub(crate) fn limit(&self, resources: &Resources) -> io::Result<()> {
        if let (Some(memory), Some(dir)) = (&resources.memory, self.dir("memory")) {
            self.limit_memory(&dir, memory)?;
        }
        if let (Some(cpu), Some(dir)) = (&resources.cpu, self.dir("cpu")) {
            self.limit_cpu(&dir, cpu)?;
        }
        if let (Some(pids), Some(dir)) = (&resources.pids, self.dir("pids"))
            && pids.limit != 0
        {
            let limit = if pids.limit < 0 { "max".to_owned() } else { pids.limit.to_string() };
            write(&dir.join("pids.max"), &limit)?;
        }
        if self.is_v2() {
            let dir = self.dir("memory").unwrap_or_default();
            for (name, value) in &resources.unified {
                // A file of the group, and no other.
                if name.contains('/') || name.starts_with("cgroup.") {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("unified setting {name}")));
                }
                write(&dir.join(name), value)?;
            }
        }
        Ok(())
    }

    fn limit_memory(&self, dir: &Path, memory: &crate::oci::Memory) -> io::Result<()> {
        let text = |limit: i64| if limit < 0 { "max".to_owned() } else { limit.to_string() };
        if self.is_v2() {
            if let Some(limit) = memory.limit {
                write(&dir.join("memory.max"), &text(limit))?;
                // What the specification calls swap is memory and swap together.
                let swap =
                    memory.swap.map_or(0, |both| if both < 0 { -1 } else { both.saturating_sub(limit).max(0) });
                let file = dir.join("memory.swap.max");
                if file.exists() {
                    write(&file, &text(swap))?;
                }
            }
            if let Some(low) = memory.reservation {
                write(&dir.join("memory.low"), &text(low))?;
            }
            return Ok(());
        }
        let (plain, both) = (dir.join("memory.limit_in_bytes"), dir.join("memory.memsw.limit_in_bytes"));
        if let Some(limit) = memory.limit {
            let swap = memory.swap.unwrap_or(limit);
            // Memory alone must never be above both: which is first depends on the direction.
            if both.exists() && write(&plain, &limit.to_string()).is_ok() {
                write(&both, &swap.to_string())?;
            } else {
                if both.exists() {
                    write(&both, &swap.to_string())?;
                }
                write(&plain, &limit.to_string())?;
            }
        }
        if let Some(soft) = memory.reservation {
            write(&dir.join("memory.soft_limit_in_bytes"), &soft.to_string())?;
        }
        Ok(())
    }

    fn limit_cpu(&self, dir: &Path, cpu: &crate::oci::Cpu) -> io::Result<()> {
        let period = cpu.period.filter(|period| *period != 0);
        if self.is_v2() {
            if let Some(shares) = cpu.shares.filter(|shares| *shares != 0) {
                write(&dir.join("cpu.weight"), &weight(shares).to_string())?;
            }
            if cpu.quota.is_some() || period.is_some() {
                let quota = cpu.quota.filter(|quota| *quota > 0).map_or("max".to_owned(), |quota| quota.to_string());
                write(&dir.join("cpu.max"), &format!("{quota} {}", period.unwrap_or(100_000)))?;
            }
            return Ok(());
        }
        if let Some(shares) = cpu.shares.filter(|shares| *shares != 0) {
            write(&dir.join("cpu.shares"), &shares.to_string())?;
        }
        if let Some(period) = period {
            write(&dir.join("cpu.cfs_period_us"), &period.to_string())?;
        }
        if let Some(quota) = cpu.quota.filter(|quota| *quota != 0) {
            write(&dir.join("cpu.cfs_quota_us"), &quota.to_string())?;
        }
        Ok(())
    }

    /// Which devices the container may use, in version 1; in version 2 the machine's own boundary stands alone.
    pub(crate) fn allow_devices(&self, resources: &Resources) -> io::Result<()> {
        let Some((_, root)) = self.trees.v1.iter().find(|(name, _)| name == "devices") else { return Ok(()) };
        let dir = root.join(&self.path);
        for rule in &resources.devices {
            let kind = if rule.kind.is_empty() { "a" } else { &rule.kind };
            let number = |number: Option<i64>| {
                number.filter(|number| *number >= 0).map_or("*".to_owned(), |number| number.to_string())
            };
            let text = format!("{kind} {}:{} {}", number(rule.major), number(rule.minor), rule.access);
            write(&dir.join(if rule.allow { "devices.allow" } else { "devices.deny" }), &text)?;
        }
        if !resources.devices.is_empty() {
            for rule in ALWAYS_ALLOWED {
                write(&dir.join("devices.allow"), rule)?;
            }
        }
        Ok(())
    }

    pub(crate) fn freeze(&self, frozen: bool) -> io::Result<()> {
        let (controller, file, value) = match (self.is_v2(), frozen) {
            (true, _) => ("memory", "cgroup.freeze", if frozen { "1" } else { "0" }),
            (false, _) => ("freezer", "freezer.state", if frozen { "FROZEN" } else { "THAWED" }),
        };
        match self.dir(controller) {
            Some(dir) => write(&dir.join(file), value),
            None => Err(io::Error::new(io::ErrorKind::Unsupported, "the machine has no freezer")),
        }
    }

    /// All processes in the group, as the reader's namespace numbers them.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let dir = self.dir("pids").or_else(|| self.dirs().pop());
        let text = dir.and_then(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok()).unwrap_or_default();
        // 0 is a process that this namespace does not show.
        text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect()
    }

    /// How often the kernel ended a process of this group for want of memory.
    pub(crate) fn out_of_memory_kills(&self) -> u64 {
        let file = if self.is_v2() { "memory.events" } else { "memory.oom_control" };
        self.field("memory", file, "oom_kill").unwrap_or(0)
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = if self.is_v2() { self.stats_v2() } else { self.stats_v1() };
        stats.processes = self.number("pids", "pids.current").unwrap_or(0);
        stats.processes_limit = self.number("pids", "pids.max").unwrap_or(0);
        stats
    }

    fn stats_v1(&self) -> Stats {
        /// In version 1 the kernel counts these in hundredths of a second.
        const TICK: u64 = 10_000_000;
        let limit = self.number("memory", "memory.limit_in_bytes").unwrap_or(0);
        Stats {
            memory_bytes: self.number("memory", "memory.usage_in_bytes").unwrap_or(0),
            memory_limit: if limit >= NO_LIMIT { 0 } else { limit },
            inactive_file_bytes: self.field("memory", "memory.stat", "total_inactive_file").unwrap_or(0),
            cpu_nanoseconds: self.number("cpuacct", "cpuacct.usage").unwrap_or(0),
            cpu_user_nanoseconds: self.field("cpuacct", "cpuacct.stat", "user").unwrap_or(0) * TICK,
            cpu_kernel_nanoseconds: self.field("cpuacct", "cpuacct.stat", "system").unwrap_or(0) * TICK,
            ..Stats::default()
        }
    }

    fn stats_v2(&self) -> Stats {
        let cpu = |field: &str| self.field("cpu", "cpu.stat", field).unwrap_or(0) * 1000;
        Stats {
            memory_bytes: self.number("memory", "memory.current").unwrap_or(0),
            memory_limit: self.number("memory", "memory.max").unwrap_or(0),
            inactive_file_bytes: self.field("memory", "memory.stat", "inactive_file").unwrap_or(0),
            cpu_nanoseconds: cpu("usage_usec"),
            cpu_user_nanoseconds: cpu("user_usec"),
            cpu_kernel_nanoseconds: cpu("system_usec"),
            ..Stats::default()
        }
    }

    fn number(&self, controller: &str, file: &str) -> Option<u64> {
        fs::read_to_string(self.dir(controller)?.join(file)).ok()?.trim().parse().ok()
    }

    fn field(&self, controller: &str, file: &str, field: &str) -> Option<u64> {
        let text = fs::read_to_string(self.dir(controller)?.join(file)).ok()?;
        text.lines().find_map(|line| line.split_once(' ').filter(|(name, _)| *name == field)?.1.parse().ok())
    }

    /// Removes the groups, once their processes are gone.
    pub(crate) fn remove(&self) {
        for dir in self.dirs() {
            for _ in 0..REMOVE_TRIES {
                match fs::remove_dir(&dir) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                        std::thread::sleep(std::time::Duration::from_millis(2));
                    }
                    _ => break,
                }
            }
        }
    }
}

/// Devices that every container has, and the pseudo-terminals.
const ALWAYS_ALLOWED: [&str; 9] = [
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:1 rwm",
    "c 5:2 rwm",
    "c 136:* rwm",
];

/// Switches controllers on for the children of a group; those that it does not have stay off.
fn switch_on(dir: &Path) {
    for controller in ENABLED {
        let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// Shares of version 1 (2 to 262144) as a weight of version 2 (1 to 10000), as Kubernetes converts them.
fn weight(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9_999 / 262_142
}

fn write(file: &Path, value: &str) -> io::Result<()> {
    fs::write(file, value).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_found_in_the_table_of_mounts() {
        let v1 = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu,cpuacct 0 0\n\
            cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
            cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0\n\
            cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let trees = Trees::parse(v1);
        let names: Vec<&str> = trees.v1.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((names, trees.v2), (vec!["cpu", "cpuacct", "memory"], None));
        let v2 = Trees::parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
        assert_eq!(v2, Trees { v1: vec![], v2: Some("/sys/fs/cgroup".into()) });
    }

    #[test]
    fn groups_stay_below_the_root() {
        let dir = std::env::temp_dir().join(format!("agent-cgroup-{}", std::process::id()));
        let trees = Trees { v1: vec![], v2: Some(dir.clone()) };
        let cgroup = Cgroup::create(&trees, "/../../kubepods/../pod/c").unwrap();
        assert_eq!(cgroup.dirs(), [dir.join("kubepods/pod/c")]);
        assert!(dir.join("kubepods/pod/c").is_dir());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn shares_become_weights() {
        assert_eq!([weight(0), weight(2), weight(1024), weight(262_144)], [1, 1, 39, 10_000]);
    }
}
