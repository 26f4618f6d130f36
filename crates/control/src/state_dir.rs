//! The names of what a broker keeps in its state directory.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use crate::lock::try_lock;
use crate::packet;

/// A broker that ends removes its sockets first, and gives the lock back a moment later.
const LAST_MOMENTS: u32 = 20;

/// Removes what a broker keeps in a directory, and the directory if nothing else is in it. Never follows links, and touches
/// only names of our own, so that a wrongly given directory loses nothing.
pub fn remove(path: &Path) {
    for directory in ["zones", "users"] {
        let _ = fs::remove_dir_all(path.join(directory));
    }
    remove_files(path);
    let _ = fs::remove_dir(path);
}

/// Removes what a broker keeps in a directory, but for its zones.
pub fn remove_files(path: &Path) {
    for directory in ["workers", "rejoin", "guests", "books", "jail"] {
        let _ = fs::remove_dir_all(path.join(directory));
    }
    for file in ["admin.sock", "status.sock", "owner", "lock", "lock.new"] {
        let _ = fs::remove_file(path.join(file));
    }
}

/// Removes a lock that is not a broker's: the first versions let everybody open the file, and so hold it. A broker of theirs
/// has an admin socket, which nobody else can put there. True if the lock is gone; a private one is always a broker's.
pub fn remove_strangers_lock(directory: &Path) -> io::Result<bool> {
    let path = directory.join("lock");
    for _ in 0..LAST_MOMENTS {
        let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
        let lock = match File::options().read(true).custom_flags(flags.cast_signed()).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            opened => opened?,
        };
        let is_public = lock.metadata()?.mode() & 0o077 != 0;
        if !is_public || try_lock(&lock)? || packet::is_served(&directory.join("admin.sock"))? {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    fs::remove_file(&path)?;
    Ok(true)
}
