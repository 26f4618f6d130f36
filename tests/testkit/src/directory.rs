//! Temporary directories.

use std::fs::Permissions;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory that goes with this value. A test that panics leaves it, so that the reason can be found.
pub struct Directory(Option<tempfile::TempDir>);

/// A new, empty directory. Its path is short, because paths of sockets must be. Other users may look in: the broker and the
/// workers of root's proxy are some.
///
/// # Panics
/// When there is no room for one.
pub fn directory() -> Directory {
    let mode = Permissions::from_mode(0o755);
    let made = tempfile::Builder::new().prefix("bulkhead-").permissions(mode).tempdir_in("/tmp");
    Directory(Some(made.expect("a directory in /tmp")))
}

impl Directory {
    /// Writes a file, and makes the directories on the way to it. A path may be written as if this were the root.
    ///
    /// # Panics
    /// When it cannot be written.
    #[track_caller]
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = path.as_ref();
        let path = self.join(path.strip_prefix("/").unwrap_or(path));
        let parent = path.parent().expect("a path in here");
        std::fs::create_dir_all(parent).expect("directories can be made");
        std::fs::write(&path, content).expect("a file can be written");
        path
    }

    /// Compiles C to a shared library of this name, in here.
    ///
    /// # Panics
    /// When there is no C compiler, or it does not like the source.
    #[track_caller]
    pub fn shared_library(&self, name: &str, source: &str) -> PathBuf {
        let input = self.write(format!("{name}.c"), source);
        let output = self.join(name);
        let mut cc = Command::new("cc");
        let status = cc.args(["-shared", "-fPIC", "-w", "-o"]).arg(&output).arg(input).status();
        assert!(status.expect("a C compiler").success(), "{name} does not compile");
        output
    }
}

impl Deref for Directory {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.as_ref().expect("there until it is dropped").path()
    }
}

impl AsRef<Path> for Directory {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(directory) = self.0.take()
        {
            eprintln!("left behind: {}", directory.keep().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_differ_are_empty_and_go() {
        let (one, other) = (directory(), directory());
        assert_ne!(&*one, &*other);
        assert_eq!(std::fs::read_dir(&one).unwrap().count(), 0);
        let path = one.to_path_buf();
        one.write("/deep/er/file", "text");
        assert_eq!(std::fs::read_to_string(path.join("deep/er/file")).unwrap(), "text");
        drop(one);
        assert!(!path.exists() && other.exists());
    }
}
