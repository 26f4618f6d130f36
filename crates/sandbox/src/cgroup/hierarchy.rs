//! Which trees of groups this machine has, and where in them we are.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// systemd puts us there (`DelegateSubgroup=`), beside the groups that we make: in version 2 a group with processes cannot
/// hand controllers on to others. The second is what units of version 0.1 say.
const OWN_SUBGROUPS: [&str; 2] = ["spawner", "broker"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    /// In version 2 this is a program, and not one of the controllers by name.
    Devices,
    Pids,
    Memory,
    Cpu,
}

impl Controller {
    const ALL: [Self; 4] = [Self::Devices, Self::Pids, Self::Memory, Self::Cpu];

    pub fn name(self) -> &'static str {
        match self {
            Self::Devices => "devices",
            Self::Pids => "pids",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
        }
    }
}

/// A tree, and what it can be used for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The group below which ours are.
    pub root: PathBuf,
    pub version: Version,
    pub controllers: Vec<Controller>,
}

impl Tree {
    pub fn has(&self, controller: Controller) -> bool {
        self.controllers.contains(&controller)
    }
}

/// What the kernel says of mounts and of our own place.
pub struct Surroundings {
    mounts: String,
    own: String,
    /// Whether to look for a tree that is not mounted.
    mount_own: bool,
}

impl Surroundings {
    pub fn read() -> Self {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        Self { mounts: read("mountinfo"), own: read("cgroup"), mount_own: true }
    }

    /// As if only some of the mounts were there.
    #[must_use]
    pub fn only(mut self, version: Version) -> Self {
        let kind = match version {
            Version::V1 => " - cgroup ",
            Version::V2 => " - cgroup2 ",
        };
        self.mounts =
            self.mounts.lines().filter(|line| line.contains(kind)).map(|line| format!("{line}\n")).collect();
        self.mount_own = false;
        self
    }

    /// The trees in which we can make groups: version 2 first.
    pub fn trees(&self) -> Vec<Tree> {
        let mut trees: Vec<Tree> = self.mounts.lines().filter_map(|line| self.tree(line)).collect();
        trees.retain(|tree| rustix::fs::access(&tree.root, rustix::fs::Access::WRITE_OK).is_ok());
        trees.sort_by_key(|tree| tree.version == Version::V1);
        // The same tree may be mounted more than once.
        let mut seen: Vec<(Version, Vec<Controller>)> = Vec::new();
        trees.retain(|tree| {
            let key = (tree.version, tree.controllers.clone());
            let new = !seen.contains(&key);
            seen.push(key);
            new
        });
        if trees.is_empty() && self.mount_own {
            trees.extend(unmounted(&self.own));
        }
        trees
    }

    /// A line of mountinfo: `36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices`.
    fn tree(&self, line: &str) -> Option<Tree> {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, at) = (unescape(place.next()?), unescape(place.next()?));
        let mut kind = kind.split(' ');
        let (kind, options) = (kind.next()?, kind.nth(1)?);
        let named = |name: &&Controller| options.split(',').any(|option| option == name.name());
        let (version, own) = match kind {
            "cgroup2" => (Version::V2, self.own("")?),
            "cgroup" => (Version::V1, self.own(Controller::ALL.iter().find(named)?.name())?),
            _ => return None,
        };
        let below = Path::new(own).strip_prefix(&root).or_else(|_| Path::new(own).strip_prefix("/")).ok()?;
        let root = Path::new(&at).join(below);
        Some(match version {
            Version::V2 => second(root),
            Version::V1 => {
                Tree { root, version, controllers: Controller::ALL.iter().filter(named).copied().collect() }
            }
        })
    }

    /// Our place in the tree with this controller; of version 2, without one. A line is `5:devices:/some/where`.
    fn own(&self, controller: &str) -> Option<&str> {
        self.own.lines().find_map(|line| {
            let (names, path) = line.split_once(':')?.1.split_once(':')?;
            names.split(',').any(|name| name == controller).then_some(path)
        })
    }
}

/// A tree of version 2, with what its file says that it has.
fn second(own: PathBuf) -> Tree {
    let root = match own.parent() {
        Some(parent) if OWN_SUBGROUPS.iter().any(|name| own.ends_with(name)) => parent.to_owned(),
        _ => own,
    };
    let text = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    let given = |controller: &&Controller| {
        **controller == Controller::Devices || text.split_whitespace().any(|name| name == controller.name())
    };
    let controllers = Controller::ALL.iter().filter(given).copied().collect();
    Tree { root, version: Version::V2, controllers }
}

/// Where nothing is mounted, or what is cannot be written (as in a container), root may still mount the tree, for
/// itself alone: it is attached nowhere.
fn unmounted(own: &str) -> Option<Tree> {
    static MOUNT: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let mount = MOUNT.get_or_init(|| {
        use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
        let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
        fsconfig_create(&context).ok()?;
        let attributes =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).ok()
    });
    let mount = std::os::fd::AsRawFd::as_raw_fd(mount.as_ref()?);
    let below = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let tree = second(PathBuf::from(format!("/proc/self/fd/{mount}")).join(below));
    rustix::fs::access(&tree.root, rustix::fs::Access::WRITE_OK).is_ok().then_some(tree)
}

/// Blanks and the like are written as `\040` in mountinfo.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(code) => plain.extend([char::from(code)].into_iter().chain(part[3..].chars())),
            None => plain.extend(['\\'].into_iter().chain(part.chars())),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots(mounts: &str, own: &str) -> Vec<(PathBuf, Version, Vec<Controller>)> {
        let here = Surroundings { mounts: mounts.to_owned(), own: own.to_owned(), mount_own: false };
        let trees = mounts.lines().filter_map(|line| here.tree(line));
        trees.map(|tree| (tree.root, tree.version, tree.controllers)).collect()
    }

    #[test]
    fn trees_are_found_where_we_are_in_them() {
        let mounts = "36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices\n\
                      37 31 0:34 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      38 31 0:35 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                      41 31 0:38 / /no/such\\040place rw,relatime - cgroup2 cgroup2 rw\n\
                      42 31 0:39 / /proc rw - proc proc rw\nnonsense\n";
        let own = "5:devices:/a/b\n2:cpu,cpuacct:/\n1:name=systemd:/x\n0::/system.slice/bulkhead.service/broker\n";
        let found = roots(mounts, own);
        assert_eq!(found[0], ("/sys/fs/cgroup/devices/a/b".into(), Version::V1, vec![Controller::Devices]));
        assert_eq!(found[1], ("/sys/fs/cgroup/cpu,cpuacct/".into(), Version::V1, vec![Controller::Cpu]));
        // Beside the group that the service manager has put us in.
        let unit = "/no/such place/system.slice/bulkhead.service";
        assert_eq!(found[2], (unit.into(), Version::V2, vec![Controller::Devices]));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn a_container_sees_its_part_of_the_tree() {
        let mounts = "41 31 0:38 /docker/abc /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
        let found = roots(mounts, "4:pids:/docker/abc/sub\n");
        assert_eq!(found[0].0, Path::new("/sys/fs/cgroup/pids/sub"));
    }
}
