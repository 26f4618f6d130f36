//! Temporary directories.

use std::ops::Deref;
use std::path::Path;

/// A directory that goes with this value. A test that panics leaves it, for whoever looks for the reason.
pub struct Directory(Option<tempfile::TempDir>);

/// A new, empty directory. Its path is short, because paths of sockets must be.
///
/// # Panics
/// When there is no room for one.
pub fn directory() -> Directory {
    let made = tempfile::Builder::new().prefix("bulkhead-").tempdir_in("/tmp");
    Directory(Some(made.expect("a directory in /tmp")))
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
        std::fs::create_dir_all(path.join("deep/er")).unwrap();
        drop(one);
        assert!(!path.exists() && other.exists());
    }
}
