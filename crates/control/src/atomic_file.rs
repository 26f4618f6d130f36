//! Atomic file writes that survive a power failure.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Writes a temporary file, syncs it, and renames it.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    place(path, bytes, 0o644, true)
}

/// The same without a sync, for files that are recreated after a reboot.
pub fn write_volatile(path: &Path, bytes: &[u8]) -> io::Result<()> {
    place(path, bytes, 0o644, false)
}

/// As [`write()`], with these permissions.
pub fn write_with_mode(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    place(path, bytes, mode, true)
}

fn place(path: &Path, bytes: &[u8], mode: u32, lasting: bool) -> io::Result<()> {
    // No reader looks for files with the extension `.new`.
    let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
    let new = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        if lasting { file.sync_data() } else { Ok(()) }
    });
    let placed = written.and_then(|()| fs::rename(&new, path));
    if placed.is_err() {
        let _ = fs::remove_file(&new);
    }
    placed
}

/// Removes a file; one that does not exist is fine.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_put_in_place_leaves_nothing() {
        let directory = testkit::directory();
        fs::create_dir(directory.join("taken")).unwrap();
        write(&directory.join("a.json"), b"1").unwrap();
        write(&directory.join("a.json"), b"22").unwrap();
        assert_eq!(fs::read(directory.join("a.json")).unwrap(), b"22");
        // A directory stands where the file should go.
        assert!(write(&directory.join("taken"), b"x").is_err());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
        remove(&directory.join("a.json")).unwrap();
        remove(&directory.join("a.json")).unwrap();
    }
}
