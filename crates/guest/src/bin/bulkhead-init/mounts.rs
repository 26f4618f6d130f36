//! The file systems that every program expects.

use crate::{InitError, step};
use rustix::mount::{MountFlags, mount};

const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);
const MOUNTS: [(&str, &str, MountFlags); 7] = [
    ("proc", "/proc", PLAIN),
    ("sysfs", "/sys", PLAIN),
    ("devtmpfs", "/dev", MountFlags::NOSUID),
    ("devpts", "/dev/pts", MountFlags::NOSUID.union(MountFlags::NOEXEC)),
    ("tmpfs", "/dev/shm", MountFlags::NOSUID.union(MountFlags::NODEV)),
    ("tmpfs", "/run", MountFlags::NOSUID.union(MountFlags::NODEV)),
    ("tmpfs", "/tmp", MountFlags::NOSUID.union(MountFlags::NODEV)),
];

pub(crate) fn base() -> Result<(), InitError> {
    under("")
}

/// Mounts them all below `root`.
pub(crate) fn under(root: &str) -> Result<(), InitError> {
    for (kind, place, flags) in MOUNTS {
        let place = format!("{root}{place}");
        std::fs::create_dir_all(&place).map_err(|error| InitError::Step(format!("make {place}"), error))?;
        // A terminal needs a master that its owner may open, which is not the default.
        let data = if kind == "devpts" { Some(c"ptmxmode=0666,mode=0620") } else { None };
        mount(kind, place.as_str(), kind, flags, data).map_err(step(format!("mount {place}")))?;
    }
    for (name, target) in [("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        // They may be there already: devtmpfs is one, wherever it is mounted.
        let _ = std::os::unix::fs::symlink(target, format!("{root}/dev/{name}"));
    }
    Ok(())
}
