//! The tenant's own root file system, where there is one: an archive behind the image, or a disk.

use crate::{InitError, mounts, step};
use guest::image::LIBRARY_DIR;
use guest::tenant::{COMMAND, ENVIRONMENT, ROOT, WORKING_DIR};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// What the tenant's image says about how it wants to be run.
#[derive(Debug, Default)]
pub(crate) struct Tenant {
    pub environment: Vec<OsString>,
    pub dir: Option<OsString>,
    pub command: Vec<OsString>,
}

/// Directories in which the loaders of different systems look without being told.
const LIBRARY_DIRS: [&str; 3] = ["usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib"];
const LIBRARIES: [&str; 2] = ["libcuda.so", "libnvidia-ml.so"];

/// Makes the tenant's root file system the root of this process, with our libraries in it.
pub(crate) fn enter() -> Result<Tenant, InitError> {
    let root = format!("/{ROOT}");
    if !Path::new(&root).is_dir() {
        return Ok(Tenant::default());
    }
    let words = |file: &str| words(fs::read(format!("/{file}")).unwrap_or_default());
    let tenant = Tenant { environment: words(ENVIRONMENT), dir: words(WORKING_DIR).pop(), command: words(COMMAND) };
    mounts::under(&root)?;
    libraries(&root)?;
    rustix::process::chroot(root.as_str()).map_err(step("enter the tenant's root file system"))?;
    rustix::process::chdir("/").map_err(step("enter the tenant's root file system"))?;
    Ok(tenant)
}

/// Copies our libraries to where the tenant's loader finds them. Directories that are links in the tenant's tree lead to
/// another one of the list, or out of the tree, and are left alone.
fn libraries(root: &str) -> Result<(), InitError> {
    for dir in LIBRARY_DIRS {
        let there = format!("{root}/{dir}");
        if !fs::symlink_metadata(&there).is_ok_and(|meta| meta.is_dir()) {
            continue;
        }
        for name in LIBRARIES {
            let (ours, theirs) = (format!("/{LIBRARY_DIR}/{name}.1"), format!("{there}/{name}.1"));
            // A link in its place would lead elsewhere.
            let _ = fs::remove_file(&theirs);
            fs::copy(&ours, &theirs).map_err(|error| InitError::Step(format!("copy {ours}"), error))?;
            let short = format!("{there}/{name}");
            let _ = fs::remove_file(&short);
            let _ = std::os::unix::fs::symlink(format!("{name}.1"), short);
        }
    }
    Ok(())
}

/// Each ended by a zero.
fn words(bytes: Vec<u8>) -> Vec<OsString> {
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| OsString::from_vec(word.to_vec())).collect()
}
