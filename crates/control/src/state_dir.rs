//! The names of what a broker keeps in its state directory.

use std::fs;
use std::path::Path;

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
