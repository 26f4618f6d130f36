//! Root file systems of containers: mounted where the agent keeps them, and taken away again.

use crate::container::inside;
use crate::protocol::Root;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a disk may take to appear. Nothing else happens in the machine meanwhile.
const APPEAR_TIMEOUT: Duration = Duration::from_secs(10);

/// Mounts a root file system at `place`, which is an empty directory.
pub(super) fn mount_root(root: &Root, place: &Path) -> io::Result<()> {
    match root {
        Root::Disk { device, kind, read_only } => {
            let flags = if *read_only { MountFlags::RDONLY } else { MountFlags::empty() };
            Ok(rustix::mount::mount(&appeared(device)?, place, kind.as_str(), flags, c"")?)
        }
        Root::Layered { device, kind } => layered(&appeared(device)?, kind, place),
        Root::Mounts(mounts) => mounts.iter().try_for_each(|mount| {
            let target = inside(place, &mount.target)?;
            fs::create_dir_all(&target)?;
            let (mut flags, mut data) = (MountFlags::empty(), Vec::new());
            for option in &mount.options {
                match option.as_str() {
                    "ro" => flags |= MountFlags::RDONLY,
                    "bind" => flags |= MountFlags::BIND,
                    "rbind" => flags |= MountFlags::BIND | MountFlags::REC,
                    "rw" => {}
                    other => data.push(other),
                }
            }
            if mount.kind == "bind" || flags.contains(MountFlags::BIND) {
                rustix::mount::mount_bind_recursive(&*mount.source, &target)?;
                if flags.contains(MountFlags::RDONLY) {
                    rustix::mount::mount_remount(&target, MountFlags::BIND | MountFlags::RDONLY, "")?;
                }
                return Ok(());
            }
            let data = CString::new(data.join(","))?;
            Ok(rustix::mount::mount(&*mount.source, &target, &*mount.kind, flags, data.as_c_str())?)
        }),
    }
}

/// Takes all of that back; what the container has changed is gone.
pub(super) fn unmount_root(place: &Path) {
    let Beside { image, changes } = Beside::of(place);
    for mounted in [place, &image] {
        while rustix::mount::unmount(mounted, UnmountFlags::DETACH).is_ok() {}
        let _ = fs::remove_dir(mounted);
    }
    let _ = fs::remove_dir_all(changes);
}

/// What a root file system in layers has beside it.
struct Beside {
    image: PathBuf,
    changes: PathBuf,
}

impl Beside {
    fn of(place: &Path) -> Self {
        Self { image: place.with_extension("image"), changes: place.with_extension("changes") }
    }
}

/// The disk, and over it what the container changes.
fn layered(device: &Path, kind: &str, place: &Path) -> io::Result<()> {
    let Beside { image, changes } = Beside::of(place);
    let (upper, work) = (changes.join("upper"), changes.join("work"));
    for dir in [&image, &upper, &work] {
        fs::create_dir_all(dir)?;
    }
    rustix::mount::mount(device, &image, kind, MountFlags::RDONLY, c"")?;
    // The root directory of a container is its image's, in owner and mode.
    let meta = fs::metadata(&image)?;
    fs::set_permissions(&upper, meta.permissions())?;
    chown(&upper, Some(meta.uid()), Some(meta.gid()))?;
    let data = overlay_options(&image, &upper, &work)?;
    Ok(rustix::mount::mount("overlay", place, "overlay", MountFlags::empty(), data.as_c_str())?)
}

fn overlay_options(image: &Path, upper: &Path, work: &Path) -> io::Result<CString> {
    let (image, upper, work) = (image.display(), upper.display(), work.display());
    Ok(CString::new(format!("lowerdir={image},upperdir={upper},workdir={work}"))?)
}

/// A block device by its name. One that was attached while the machine runs takes a moment.
fn appeared(name: &str) -> io::Result<PathBuf> {
    let device = Path::new("/dev").join(Path::new(name).file_name().ok_or(io::ErrorKind::InvalidInput)?);
    let start = Instant::now();
    while !device.exists() {
        if start.elapsed() > APPEAR_TIMEOUT {
            let text = format!("disk {} did not appear", device.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_lie_beside_the_root_and_go_with_it() {
        let dir = testkit::directory();
        let place = dir.join("root-7");
        let Beside { image, changes } = Beside::of(&place);
        assert_eq!((image.clone(), changes.clone()), (dir.join("root-7.image"), dir.join("root-7.changes")));
        for made in [&place, &image, &changes.join("upper/etc")] {
            fs::create_dir_all(made).unwrap();
        }
        unmount_root(&place);
        assert!(![place, image, changes].iter().any(|path| path.exists()));
    }

    #[test]
    fn overlays_name_their_layers() {
        let options = overlay_options(Path::new("/i"), Path::new("/c/upper"), Path::new("/c/work")).unwrap();
        assert_eq!(options.as_c_str(), c"lowerdir=/i,upperdir=/c/upper,workdir=/c/work");
    }
}
