//! The state directory, made ready by root for a broker that is not.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Uid};

/// Makes the directory, and gives it to the broker's user. What an earlier version left to root is handed over, too: the
/// broker finds zones, grants and workers in it.
pub fn prepare(path: &Path, uid: u32) -> io::Result<()> {
    if !path.is_dir() {
        DirBuilder::new().recursive(true).mode(0o711).create(path)?;
    }
    give(path, uid)?;
    for name in ["zones", "rejoin", "guests", "books"] {
        let directory = path.join(name);
        // A link is refused: what we give away as root must be what was meant.
        match std::fs::symlink_metadata(&directory) {
            Ok(known) if known.is_dir() => give(&directory, uid)?,
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        }
    }
    // Only the broker has ever written here.
    for entry in std::fs::read_dir(path.join("books")).into_iter().flatten().flatten() {
        if entry.file_type()?.is_file() {
            give(&entry.path(), uid)?;
        }
    }
    // A tenant may have put anything into a zone's directory; the directory itself is the broker's.
    for entry in std::fs::read_dir(path.join("zones")).into_iter().flatten().flatten() {
        if entry.file_type()?.is_dir() {
            give(&entry.path(), uid)?;
        }
    }
    let lock = path.join("lock");
    if std::fs::symlink_metadata(&lock).is_ok_and(|known| known.is_file() && known.nlink() == 1) {
        give(&lock, uid)?;
    }
    // Over this one each worker mounts its root, while it is still root itself.
    let jail = path.join("jail");
    if std::fs::symlink_metadata(&jail).is_err() {
        DirBuilder::new().mode(0o700).create(&jail)?;
    }
    std::fs::set_permissions(&jail, Permissions::from_mode(0o700))
}

fn give(path: &Path, uid: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    Ok(rustix::fs::chownat(CWD, path, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
}
