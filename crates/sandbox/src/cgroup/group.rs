//! What is done with one group: a directory whose files are the kernel's.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Controller, Rule, Tree, Version, bpf};
use control::lock::try_lock;
use control::process;

/// Processes may appear in a group while it is emptied; nobody forks for ever.
const ROUNDS: usize = 100;
/// Nobody waits longer for one who forks as fast as it is moved.
const MOVE_TIME: Duration = Duration::from_millis(500);
/// The period over which processor time is counted.
const PERIOD_US: u64 = 100_000;
/// Version 1 has no word for "no limit".
const V1_UNLIMITED: &str = "-1";

pub(super) fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

/// A group below a broker's top group, with nobody in it: who lives holds its lock. Everybody can open the other groups, and
/// so lock them; this one is made for its owner alone.
pub(super) const LOCK: &str = "lock";

/// What keeps a broker's groups from being taken for left-overs.
pub(super) struct Held {
    _lock: File,
    /// Where versions before 0.2 look. Anybody else may have it: it keeps out nobody.
    _top: Option<File>,
}

/// Makes a broker's top group and holds it. Another broker's sweep may remove it in between, so it is looked at again
/// when it is locked.
pub(super) fn take(path: &Path) -> io::Result<Held> {
    let place = path.join(LOCK);
    for _ in 0..ROUNDS {
        let lock = match make(path).and_then(|()| make_private(&place)).and_then(|()| File::open(&place)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        if !try_lock(&lock)? {
            // The predecessor is on its way out: it holds the state directory no longer, or we would not be here.
            std::thread::sleep(std::time::Duration::from_millis(10));
            continue;
        }
        if fs::metadata(&place).is_ok_and(|now| lock.metadata().is_ok_and(|held| held.ino() == now.ino())) {
            let top = File::open(path).ok().filter(|top| matches!(try_lock(top), Ok(true)));
            return Ok(Held { _lock: lock, _top: top });
        }
    }
    Err(io::Error::other(format!("{} is held by another process", path.display())))
}

fn make_private(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

/// Removes a broker's top group, if nothing else is in it.
pub(super) fn give_up(path: &Path) {
    let _ = fs::remove_dir(path.join(LOCK));
    let _ = fs::remove_dir(path);
}

/// Removes the groups of brokers that are gone, with nobody left inside.
pub(super) fn sweep(base: &Path, prefix: &str) {
    for child in children(base) {
        let path = base.join(&child);
        let ours = child.to_str().is_some_and(|name| name.starts_with(prefix));
        // Earlier versions have none, and hold the top group itself.
        let held = [path.join(LOCK), path.clone()].into_iter().find_map(|place| File::open(place).ok());
        let Some(lock) = held else { continue };
        if !ours || !matches!(try_lock(&lock), Ok(true)) || anyone_below(&path) {
            continue;
        }
        remove_below(&path);
    }
}

fn anyone_below(path: &Path) -> bool {
    has_processes(path) || children(path).iter().any(|child| anyone_below(&path.join(child)))
}

fn remove_below(path: &Path) {
    for child in children(path) {
        remove_below(&path.join(child));
    }
    let _ = fs::remove_dir(path);
}

/// Groups right below, by name.
pub(super) fn children(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.map(|entry| PathBuf::from(entry.file_name())).collect()
}

/// In version 2, hands controllers on to the groups below the top one. Those that the kernel refuses are left out: it
/// does so where processes are in a group that would hand them on.
pub(super) fn enable(tree: &Tree, wanted: Vec<Controller>) -> Vec<Controller> {
    if tree.version == Version::V1 {
        return wanted;
    }
    let groups: Vec<&Path> = tree.root.parent().into_iter().chain([tree.root.as_path()]).collect();
    let given = |controller: &Controller| {
        *controller == Controller::Devices || groups.iter().all(|group| hand_on(group, *controller).is_ok())
    };
    wanted.into_iter().filter(given).collect()
}

/// The same for a zone's group, which hands on what its top group has.
pub(super) fn enable_below(tree: &Tree, group: &Path) -> io::Result<()> {
    let wanted = tree.controllers.iter().filter(|controller| **controller != Controller::Devices);
    match tree.version {
        Version::V1 => Ok(()),
        Version::V2 => wanted.copied().try_for_each(|controller| hand_on(group, controller)),
    }
}

fn hand_on(group: &Path, controller: Controller) -> io::Result<()> {
    let file = group.join("cgroup.subtree_control");
    if fs::read_to_string(&file)?.split_whitespace().any(|name| name == controller.name()) {
        return Ok(());
    }
    fs::write(file, format!("+{}", controller.name()))
}

/// Denies all devices but these.
pub(super) fn allow(version: Version, group: &Path, rules: &[Rule]) -> io::Result<()> {
    match version {
        Version::V2 => bpf::attach(File::open(group)?.as_fd(), rules),
        Version::V1 => {
            fs::write(group.join("devices.deny"), "a")?;
            // One at a time: a write is one rule.
            rules.iter().try_for_each(|rule| fs::write(group.join("devices.allow"), rule.text()))
        }
    }
}

/// Of a group and all below it.
pub(super) fn limit_processes(group: &Path, most: Option<u64>) -> io::Result<()> {
    fs::write(group.join("pids.max"), most.map_or("max".to_owned(), |most| most.to_string()))
}

pub(super) fn limit_memory(version: Version, group: &Path, most: Option<u64>) -> io::Result<()> {
    let text = |unlimited: &str| most.map_or(unlimited.to_owned(), |most| most.to_string());
    match version {
        Version::V1 => fs::write(group.join("memory.limit_in_bytes"), text(V1_UNLIMITED)),
        Version::V2 => fs::write(group.join("memory.max"), text("max")),
    }
}

/// What was on a GPU, and is in host memory while its client is suspended, must not get to a disk in clear.
pub(super) fn forbid_swap(version: Version, group: &Path) -> io::Result<()> {
    match version {
        Version::V1 => fs::write(group.join("memory.swappiness"), "0"),
        Version::V2 => fs::write(group.join("memory.swap.max"), "0"),
    }
}

/// `percent` of one processor.
pub(super) fn limit_cpu(version: Version, group: &Path, percent: Option<u32>) -> io::Result<()> {
    let quota = percent.map(|percent| (u64::from(percent) * PERIOD_US / 100).to_string());
    match version {
        Version::V1 => {
            fs::write(group.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
            fs::write(group.join("cpu.cfs_quota_us"), quota.as_deref().unwrap_or(V1_UNLIMITED))
        }
        Version::V2 => fs::write(group.join("cpu.max"), format!("{} {PERIOD_US}", quota.as_deref().unwrap_or("max"))),
    }
}

/// All zones weigh the same where they compete for processors, however many workers they have. Written even though it is the
/// kernel's default: a group may be one that somebody has changed.
pub(super) fn weigh_cpu(version: Version, group: &Path) -> io::Result<()> {
    match version {
        Version::V1 => fs::write(group.join("cpu.shares"), "1024"),
        Version::V2 => fs::write(group.join("cpu.weight"), "100"),
    }
}

/// A worker and its guard are one when memory runs out.
pub(super) fn die_together(group: &Path) {
    // Where the kernel does not know it, the guard follows its worker.
    let _ = fs::write(group.join("memory.oom.group"), "1");
}

pub(super) fn has_processes(group: &Path) -> bool {
    !members(group).is_empty()
}

fn members(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Moves everybody. Those who fork meanwhile leave children behind, who are moved in the next round; where the kernel can,
/// they are kept from it. `TimedOut` if there is no end to it.
pub(super) fn move_all(from: &Path, to: &Path) -> io::Result<()> {
    // Version 1 has no such file. Who is moved goes on in the new group.
    let freeze = from.join("cgroup.freeze");
    let frozen = freeze.exists() && fs::write(&freeze, "1").is_ok();
    let moved = move_members(from, &to.join("cgroup.procs"));
    if frozen {
        let _ = fs::write(&freeze, "0");
    }
    moved
}

fn move_members(from: &Path, door: &Path) -> io::Result<()> {
    let end = Instant::now() + MOVE_TIME;
    for _ in 0..ROUNDS {
        let members = members(from);
        if members.is_empty() {
            return Ok(());
        }
        for pid in members {
            if Instant::now() > end {
                return Err(endless());
            }
            match fs::write(door, pid.to_string()) {
                // It has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                result => result?,
            }
        }
    }
    Err(endless())
}

fn endless() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it forks faster than it can be moved")
}

/// Ends who is inside and removes the group; false when it must be tried again.
pub(super) fn end(version: Version, group: &Path) -> bool {
    match fs::remove_dir(group) {
        Ok(()) => return true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return true,
        Err(_) => {}
    }
    if version == Version::V1 || fs::write(group.join("cgroup.kill"), "1").is_err() {
        members(group).into_iter().for_each(|pid| kill_inside(pid, group));
    }
    fs::remove_dir(group).is_ok()
}

/// Kills a process if it is in the group: its number may be another's by now.
fn kill_inside(pid: u32, group: &Path) {
    let Ok(process) = process::open(pid) else { return };
    // The descriptor came first: if the number is still in the group, it is of that process.
    if members(group).contains(&pid) {
        process::kill(&process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plain directories will do: the kernel's can be opened and locked by everybody as well.
    #[test]
    fn a_stranger_who_locks_the_groups_keeps_nobody_out() {
        use std::os::unix::fs::PermissionsExt;
        let directory = testkit::directory();
        let top = directory.join("bulkhead-1");
        fs::create_dir(&top).unwrap();
        let stranger = File::open(&top).unwrap();
        assert!(try_lock(&stranger).unwrap());
        let held = take(&top).unwrap();
        assert_eq!(fs::metadata(top.join(LOCK)).unwrap().permissions().mode() & 0o777, 0o700, "nobody else opens it");
        assert!(take(&top).is_err(), "there is one broker");
        drop(stranger);
        sweep(&directory, "bulkhead-");
        assert!(top.exists(), "whose broker lives is no left-over");
        drop(held);
        let stranger = File::open(&top).unwrap();
        assert!(try_lock(&stranger).unwrap());
        sweep(&directory, "bulkhead-");
        assert!(!top.exists(), "a stranger keeps no left-overs");
    }

    /// A broker of an earlier version, which holds the top group.
    #[test]
    fn groups_of_an_earlier_version_are_left_alone_while_it_lives() {
        let directory = testkit::directory();
        let top = directory.join("bulkhead-1");
        fs::create_dir(&top).unwrap();
        let earlier = File::open(&top).unwrap();
        assert!(try_lock(&earlier).unwrap());
        sweep(&directory, "bulkhead-");
        assert!(top.exists());
        drop(earlier);
        sweep(&directory, "bulkhead-");
        assert!(!top.exists());
    }

    #[test]
    fn a_group_that_never_empties_is_given_up() {
        let directory = testkit::directory();
        let (from, to) = (directory.join("from"), directory.join("to"));
        for group in [&from, &to] {
            fs::create_dir_all(group).unwrap();
            fs::write(group.join("cgroup.freeze"), "0").unwrap();
        }
        // Plain files: a process that is moved stays listed, as if each left a child.
        fs::write(from.join("cgroup.procs"), "1\n2\n".repeat(2048)).unwrap();
        assert_eq!(move_all(&from, &to).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(fs::read_to_string(from.join("cgroup.freeze")).unwrap(), "0", "nobody stays frozen");
        fs::write(from.join("cgroup.procs"), "").unwrap();
        assert!(move_all(&from, &to).is_ok());
    }
}
