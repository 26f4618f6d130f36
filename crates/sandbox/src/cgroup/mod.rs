//! The control groups around workers, which the broker makes: a jail cannot be built from inside alone.
//!
//! ```text
//! <the broker's own group>/bulkhead-<number of the state directory>/    all workers: host memory, processes
//!     lock/             nobody; held while the broker lives
//!     w7/               a worker: device rules, number of processes
//!     zone-team-a/      a zone: host memory, processor time and its weight, processes
//!         w3/           one of its workers
//! ```
//!
//! A worker that waits for a client is in a group of its own from its first instruction on. It is moved into its
//! zone's, before it hears of its client: a move costs the kernel milliseconds, and everybody who wants to fork meanwhile
//! waits.
//!
//! Which hierarchies there are differs from machine to machine: version 2 has everything in one tree, version 1 a tree for
//! each controller, and both may be there at once. A group is made in all trees that give something, under the same
//! name. What no tree gives is a missing [`Part`] of the jail.

mod bpf;
mod devices;
mod group;
mod hierarchy;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub use devices::{Rule, of_policy};
pub use hierarchy::{Controller, Surroundings, Tree, Version};

use crate::jail::{Missing, Part};
use control::ZoneName;
use control::spawner::HostLimits;

/// Threads of a worker and its guard.
pub const MAX_PROCESSES: u64 = 4_096;
/// A group can be removed when its last process is gone, which takes a moment.
const RETRY_AFTER: Duration = Duration::from_millis(20);
const PREFIX: &str = "bulkhead-";

/// The groups of one broker.
#[derive(Default)]
pub struct Cgroups {
    trees: Vec<Tree>,
    /// Why a part is missing.
    reasons: Vec<(Part, String)>,
    /// Held while the groups are in use, so that another broker does not take them for left-overs.
    held: Vec<group::Held>,
    processes: u64,
    /// Groups of workers, by slot, as paths below the trees' roots.
    workers: BTreeMap<usize, PathBuf>,
    /// Limits that hold for zones with a group.
    zones: BTreeMap<ZoneName, HostLimits>,
    /// To be removed as soon as nobody is inside.
    leaving: Vec<PathBuf>,
    next_try: Option<Instant>,
}

impl Cgroups {
    /// Finds the trees of this machine, takes the groups of this state directory in them, removes those of brokers that
    /// are gone, and tries what works.
    pub fn open(state: &Path, surroundings: &Surroundings, devices: &[Rule]) -> Self {
        Self::with_limit(state, surroundings, devices, MAX_PROCESSES)
    }

    pub fn with_limit(state: &Path, surroundings: &Surroundings, devices: &[Rule], processes: u64) -> Self {
        let mut cgroups = Self { processes, ..Self::default() };
        let bases = surroundings.trees();
        if bases.is_empty() {
            cgroups.lacks(Part::Cgroup, "no cgroup file system can be written".to_owned());
        }
        for base in bases {
            group::sweep(&base.root, PREFIX);
            let tree = Tree { root: base.root.join(name(state)), ..base };
            match cgroups.take(tree, devices) {
                Ok(Some(tree)) => cgroups.trees.push(tree),
                Ok(None) => {}
                Err(error) => cgroups.lacks(Part::Cgroup, error.to_string()),
            }
        }
        if !cgroups.trees.is_empty() {
            cgroups.reasons.retain(|(part, _)| *part != Part::Cgroup);
        }
        for (part, controller) in [(Part::DeviceRules, Controller::Devices), (Part::ProcessLimit, Controller::Pids)] {
            // A worker of root's has a user of its own, whose processes its jail counts as well: that limit is enough.
            let held_by_user = part == Part::ProcessLimit && rustix::process::geteuid().is_root();
            if cgroups.has(controller) || held_by_user {
                cgroups.reasons.retain(|(known, _)| *known != part);
            } else {
                cgroups.lacks(part, "no tree has them".to_owned());
            }
        }
        cgroups
    }

    /// Makes the top group of a tree and tries a group below it; none when the tree gives nothing.
    fn take(&mut self, mut tree: Tree, devices: &[Rule]) -> io::Result<Option<Tree>> {
        let held = group::take(&tree.root)?;
        let taken: Vec<Controller> =
            tree.controllers.iter().copied().filter(|controller| !self.has(*controller)).collect();
        tree.controllers = group::enable(&tree, taken);
        let probe = tree.root.join("probe");
        group::make(&probe)?;
        if tree.has(Controller::Devices)
            && let Err(error) = group::allow(tree.version, &probe, devices)
        {
            tree.controllers.retain(|controller| *controller != Controller::Devices);
            self.lacks(Part::DeviceRules, error.to_string());
        }
        if tree.has(Controller::Pids)
            && let Err(error) = group::limit_processes(&probe, Some(self.processes))
        {
            tree.controllers.retain(|controller| *controller != Controller::Pids);
            self.lacks(Part::ProcessLimit, error.to_string());
        }
        let _ = std::fs::remove_dir(&probe);
        if tree.controllers.is_empty() && tree.version == Version::V1 {
            group::give_up(&tree.root);
            return Ok(None);
        }
        self.held.push(held);
        Ok(Some(tree))
    }

    fn lacks(&mut self, part: Part, reason: String) {
        if !self.reasons.iter().any(|(known, _)| *known == part) {
            self.reasons.push((part, reason));
        }
    }

    pub fn has(&self, controller: Controller) -> bool {
        self.trees.iter().any(|tree| tree.has(controller))
    }

    pub fn missing(&self) -> Missing {
        self.reasons.iter().fold(Missing::default(), |missing, (part, _)| missing.with(*part))
    }

    pub fn reasons(&self) -> &[(Part, String)] {
        &self.reasons
    }

    /// Limits the host memory of all workers together.
    pub fn limit_all(&self, memory: Option<u64>) -> io::Result<()> {
        match self.trees.iter().find(|tree| tree.has(Controller::Memory)) {
            Some(tree) => {
                // A kernel that does not account for swap has no such file; then the memory is locked, as far as it may be.
                let _ = group::forbid_swap(tree.version, &tree.root);
                group::limit_memory(tree.version, &tree.root, memory)
            }
            None if memory.is_some() => Err(io::Error::other("no cgroup controller for memory")),
            None => Ok(()),
        }
    }

    /// Limits the processes and threads of all workers together.
    pub fn limit_all_processes(&self, most: Option<u64>) -> io::Result<()> {
        match self.trees.iter().find(|tree| tree.has(Controller::Pids)) {
            Some(tree) => group::limit_processes(&tree.root, most),
            None if most.is_some() => Err(io::Error::other("no cgroup controller for processes")),
            None => Ok(()),
        }
    }

    /// Whether limits can be kept here; else, what is lacking for it.
    pub fn can_limit(&self, limits: HostLimits) -> Result<(), &'static str> {
        match limits {
            HostLimits { memory: Some(_), .. } if !self.has(Controller::Memory) => Err("host memory"),
            HostLimits { processes: Some(_), .. } if !self.has(Controller::Pids) => Err("processes"),
            HostLimits { cpu: Some(_), .. } if !self.has(Controller::Cpu) => Err("processor time"),
            _ => Ok(()),
        }
    }

    /// Is a slot free of groups?
    pub fn is_free(&self, slot: usize) -> bool {
        let name = leaf(slot);
        !self.workers.contains_key(&slot) && !self.leaving.iter().any(|path| path.file_name() == Some(name.as_ref()))
    }

    /// Makes a group for a worker, and has the command begin in it.
    pub fn confine(&mut self, command: &mut Command, slot: usize, devices: &[Rule]) -> io::Result<()> {
        if self.trees.is_empty() {
            return Ok(());
        }
        let path = PathBuf::from(leaf(slot));
        let doors = self.make(&path, devices)?;
        self.workers.insert(slot, path);
        let enter = move || doors.iter().try_for_each(|mut door| door.write_all(b"0"));
        // SAFETY: between fork and exec the closure writes to open files and allocates nothing.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }

    /// Moves a worker into its zone's group, if that has one. All its processes are moved before it has a client, so
    /// none of them can fork away.
    pub fn admit(&mut self, slot: usize, zone: &ZoneName, devices: &[Rule]) -> io::Result<()> {
        let Some(old) = self.workers.get(&slot).filter(|_| self.zones.contains_key(zone)).cloned() else {
            return Ok(());
        };
        let path = Path::new(&group_of(zone)).join(leaf(slot));
        if old == path {
            return Ok(());
        }
        self.make(&path, devices)?;
        for tree in &self.trees {
            group::move_all(&tree.root.join(&old), &tree.root.join(&path))?;
        }
        self.workers.insert(slot, path);
        self.remove(old);
        Ok(())
    }

    /// What the last broker left of a worker that is ours now; it may have had it in another group.
    pub fn adopt(&mut self, slot: usize, zone: Option<&ZoneName>) {
        let inner = zone.map(|zone| Path::new(&group_of(zone)).join(leaf(slot)));
        let others = self.trees.iter().flat_map(|tree| group::children(&tree.root));
        let others: Vec<PathBuf> = others.map(|group| group.join(leaf(slot))).collect();
        for path in inner.into_iter().chain([PathBuf::from(leaf(slot))]).chain(others) {
            if self.trees.iter().any(|tree| group::has_processes(&tree.root.join(&path))) {
                self.workers.insert(slot, path);
                return;
            }
        }
    }

    /// Whether a process is in one of these groups.
    pub fn contains(&self, pid: u32) -> bool {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).map(Path::new);
        let top =
            |path: &Path| self.trees.iter().any(|tree| path.iter().any(|part| tree.root.file_name() == Some(part)));
        paths.into_iter().any(top)
    }

    /// Ends and removes what the last broker left and nobody has adopted.
    pub fn sweep(&mut self) {
        let mut found: Vec<PathBuf> = Vec::new();
        for tree in &self.trees {
            let below = group::children(&tree.root).into_iter();
            let below: Vec<PathBuf> = below.filter(|child| child != Path::new(group::LOCK)).collect();
            let inner = below
                .iter()
                .flat_map(|child| group::children(&tree.root.join(child)).into_iter().map(|leaf| child.join(leaf)));
            // What lies inside goes first.
            found.extend(inner.collect::<Vec<_>>());
            found.extend(below);
        }
        let known = |path: &PathBuf| {
            self.workers.values().any(|worker| worker.starts_with(path))
                || self.zones.keys().any(|zone| Path::new(&group_of(zone)) == path)
        };
        found.retain(|path| !known(path));
        found.into_iter().for_each(|path| self.remove(path));
    }

    /// A worker is gone. Whatever it has left in its group goes, too.
    pub fn leave(&mut self, slot: usize) {
        if let Some(path) = self.workers.remove(&slot) {
            self.remove(path);
        }
    }

    /// Makes a zone's limits count; true when its workers must be moved into a group that is new.
    pub fn set_zone(&mut self, zone: &ZoneName, limits: HostLimits) -> io::Result<bool> {
        let known = self.zones.get(zone).copied();
        if self.trees.is_empty() || known == Some(limits) {
            return Ok(false);
        }
        let name = group_of(zone);
        self.leaving.retain(|path| *path != Path::new(&name));
        for tree in &self.trees {
            let path = tree.root.join(&name);
            group::make(&path)?;
            if tree.has(Controller::Memory) {
                group::limit_memory(tree.version, &path, limits.memory)?;
            }
            if tree.has(Controller::Cpu) {
                group::limit_cpu(tree.version, &path, limits.cpu)?;
                group::weigh_cpu(tree.version, &path)?;
            }
            if tree.has(Controller::Pids) {
                group::limit_processes(&path, limits.processes)?;
            }
            group::enable_below(tree, &path)?;
        }
        self.zones.insert(zone.clone(), limits);
        Ok(known.is_none())
    }

    /// How many zones have a group.
    pub fn zones(&self) -> usize {
        self.zones.len()
    }

    pub fn remove_zone(&mut self, zone: &ZoneName) {
        if self.zones.remove(zone).is_some() {
            self.remove(group_of(zone).into());
        }
    }

    fn make(&self, path: &Path, devices: &[Rule]) -> io::Result<Vec<File>> {
        let mut doors = Vec::new();
        for tree in &self.trees {
            let group = tree.root.join(path);
            group::make(&group)?;
            if tree.has(Controller::Devices) {
                group::allow(tree.version, &group, devices)?;
            }
            if tree.has(Controller::Pids) {
                group::limit_processes(&group, Some(self.processes))?;
            }
            if tree.has(Controller::Memory) && tree.version == Version::V2 {
                group::die_together(&group);
            }
            doors.push(File::options().write(true).open(group.join("cgroup.procs"))?);
        }
        Ok(doors)
    }

    fn remove(&mut self, path: PathBuf) {
        if !self.leaving.contains(&path) {
            self.leaving.push(path);
        }
        self.tidy(Instant::now());
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.next_try
    }

    /// Ends who is still inside of groups that must go, and removes those that are empty.
    pub fn tidy(&mut self, now: Instant) {
        let trees = &self.trees;
        self.leaving.retain(|path| {
            let gone = |tree: &Tree| group::end(tree.version, &tree.root.join(path));
            // All of them are tried: none waits for another.
            trees.iter().filter(|tree| !gone(tree)).count() > 0
        });
        self.next_try = (!self.leaving.is_empty()).then_some(now + RETRY_AFTER);
    }

    /// Removes all that is empty: the broker ends, and with `everything` nothing of it is to stay.
    pub fn retire(&mut self, everything: bool) {
        let deadline = Instant::now() + Duration::from_secs(2);
        for zone in self.zones.keys().cloned().collect::<Vec<_>>() {
            if everything {
                self.remove_zone(&zone);
            }
        }
        while !self.leaving.is_empty() && Instant::now() < deadline {
            self.tidy(Instant::now());
            std::thread::sleep(Duration::from_millis(2));
        }
        if everything {
            for tree in &self.trees {
                group::give_up(&tree.root);
            }
        }
    }

    /// Where the groups are, for those who look.
    pub fn trees(&self) -> &[Tree] {
        &self.trees
    }
}

fn leaf(slot: usize) -> String {
    format!("w{slot}")
}

fn group_of(zone: &ZoneName) -> String {
    format!("zone-{}", zone.as_str())
}

/// The name of a broker's top group, from the directory that it lives in: its successor finds it again, and another broker
/// has another. FNV-1a; two directories of one machine that collide would be a wonder, and the lock keeps them apart.
pub fn name(state: &Path) -> String {
    let state = state.canonicalize().unwrap_or_else(|_| state.to_owned());
    let hash =
        state.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    format!("{PREFIX}{hash:016x}")
}

/// Groups of the broker of this directory that exist, in whatever tree: for tests, which want none to be left.
pub fn left_behind(state: &Path) -> Vec<PathBuf> {
    let name = name(state);
    let trees = Surroundings::read().trees();
    trees.iter().map(|tree| tree.root.join(&name)).filter(|path| path.exists()).collect()
}
