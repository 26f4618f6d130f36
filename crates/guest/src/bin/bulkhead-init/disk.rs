//! The tenant's root file system on a disk: read-only, with what programs change on top of it in memory.

use crate::{InitError, modules, step};
use guest::image::DISK_MODULES;
use guest::tenant::ROOT;
use rustix::mount::{MountFlags, mount};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How long the disk may take to appear once the module for it is there.
const TIMEOUT: Duration = Duration::from_secs(30);

const DISK: &str = "/disk";
const CHANGES: &str = "/changes";

/// Mounts the disk `/dev/<name>` where the tenant's root file system is looked for.
pub(crate) fn mount_root(name: &str) -> Result<(), InitError> {
    modules::load_all(&DISK_MODULES)?;
    let device = format!("/dev/{name}");
    let disk = open(&device).map_err(|error| InitError::Step(format!("open the disk {device}"), error))?;
    let kind = FileSystem::of(&disk).map_err(|error| InitError::Step(format!("read the disk {device}"), error))?;
    let root = format!("/{ROOT}");
    for dir in [DISK, CHANGES, &root] {
        make(dir)?;
    }
    let read_only = MountFlags::RDONLY | MountFlags::NODEV;
    mount(&*device, DISK, kind.name(), read_only, kind.options()).map_err(step(format!("mount {device}")))?;
    mount("tmpfs", CHANGES, "tmpfs", MountFlags::NODEV, None::<&CStr>).map_err(step("mount a tmpfs for changes"))?;
    let (upper, work) = (format!("{CHANGES}/upper"), format!("{CHANGES}/work"));
    make(&upper)?;
    make(&work)?;
    let options = CString::new(format!("lowerdir={DISK},upperdir={upper},workdir={work}")).unwrap_or_default();
    mount("overlay", root.as_str(), "overlay", MountFlags::NODEV, Some(options.as_c_str()))
        .map_err(step("mount the tenant's root file system"))
}

/// Mounts the disk `/dev/<name>` at `place`, to be written to. It was made for this machine and nobody else reads it.
pub(crate) fn mount_scratch(name: &str, place: &str) -> Result<(), InitError> {
    let device = format!("/dev/{name}");
    open(&device).map_err(|error| InitError::Step(format!("open the disk {device}"), error))?;
    mount(&*device, place, "ext4", MountFlags::NOSUID, c"").map_err(step(format!("mount {device}")))
}

pub(crate) fn make(dir: &str) -> Result<(), InitError> {
    std::fs::create_dir_all(dir).map_err(|error| InitError::Step(format!("make {dir}"), error))
}

/// Waits for it: the kernel finds it a moment after the module is there.
fn open(device: &str) -> io::Result<File> {
    let start = Instant::now();
    loop {
        match File::open(device) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && start.elapsed() < TIMEOUT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

/// What a disk may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileSystem {
    Squashfs,
    Ext4,
}

impl FileSystem {
    fn of(disk: &impl FileExt) -> io::Result<Self> {
        let (mut start, mut magic) = ([0; 4], [0; 2]);
        disk.read_exact_at(&mut start, 0)?;
        disk.read_exact_at(&mut magic, 0x438)?;
        match (&start, magic) {
            (b"hsqs", _) => Ok(Self::Squashfs),
            (_, [0x53, 0xef]) => Ok(Self::Ext4),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no squashfs or ext4 file system")),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Squashfs => "squashfs",
            Self::Ext4 => "ext4",
        }
    }

    /// A journal that was not finished cannot be: the disk is not to be written.
    fn options(self) -> Option<&'static CStr> {
        match self {
            Self::Squashfs => None,
            Self::Ext4 => Some(c"noload"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(start: &[u8], magic: &[u8]) -> io::Result<FileSystem> {
        let directory = testkit::directory();
        let mut bytes = vec![0; 4096];
        bytes[..start.len()].copy_from_slice(start);
        bytes[0x438..0x438 + magic.len()].copy_from_slice(magic);
        FileSystem::of(&File::open(directory.write("disk", bytes))?)
    }

    #[test]
    fn file_systems_are_told_by_their_marks() {
        assert_eq!(file(b"hsqs", b"").unwrap(), FileSystem::Squashfs);
        assert_eq!(file(b"", &[0x53, 0xef]).unwrap(), FileSystem::Ext4);
        assert!(file(b"x", b"y").is_err());
    }
}
