//! The cache file of `bulkhead run` for compiled kernels of the software GPU.
//!
//! It belongs to the user whose programs fill it, who could write to it anyway; it is not used if anybody else could write
//! to it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use control::env_vars;
use rustix::fs::OFlags;

/// Named after the version of its format.
const FILE: &str = "soft-kernels-1";

/// The file, in a directory that exists; none if the user has disabled it or has no such directory.
pub(crate) fn path() -> Option<PathBuf> {
    let dir = match std::env::var_os(env_vars::SOFT_CACHE) {
        Some(named) if named.is_empty() => return None,
        Some(named) => std::path::absolute(named).ok()?,
        None => usual()?,
    };
    DirBuilder::new().recursive(true).mode(0o700).create(&dir).ok()?;
    Some(dir.join(FILE))
}

fn usual() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("bulkhead"))
}

/// Opens the file, if nobody but its owner, who is us, can have written to it.
pub(crate) fn open(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path).ok()?;
    let data = file.metadata().ok()?;
    let ours = data.is_file() && data.uid() == rustix::process::geteuid().as_raw() && data.mode() & 0o022 == 0;
    ours.then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_file_that_others_can_write_is_refused() {
        let directory = testkit::directory();
        let path = directory.join(FILE);
        assert!(open(&path).is_some());
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let link = directory.join("link");
        symlink(&path, &link).unwrap();
        assert!(open(&link).is_none(), "a link may lead anywhere");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        assert!(open(&path).is_none());
        assert!(open(&directory).is_none());
    }
}
