//! A tenant's root file system as the image of a disk, made with the host's `mke2fs`.

use super::base::Base;
use anyhow::{Context, Result};
use guest::tenant;
use guest::tree::{Kind, Tree};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use xtask::sh;

/// Room for the base's root file system and what file systems themselves take.
const ROOM: usize = 28 << 20;

/// Makes it in `dir`, of the base's root file system and the programs that guests run.
pub(crate) fn make(base: &Base, programs: &Tree, dir: &Path) -> Result<Vec<u8>> {
    let (root, image) = (dir.join("disk"), dir.join("tenant.ext4"));
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    sh::run(Command::new("cp").arg("-a").arg(base.root()).arg(&root))?;
    spill(programs, &format!("{}/", tenant::ROOT), &root)?;
    let content = programs.iter().map(|(_, node)| match &node.kind {
        Kind::File(content) => content.len(),
        _ => 0,
    });
    let size = format!("{}K", (ROOM + content.sum::<usize>()) >> 10);
    fs::write(root.join("etc/on-disk"), "yes\n")?;
    let mut mke2fs = Command::new("mke2fs");
    // Not on the path of every user.
    mke2fs.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    mke2fs.args(["-q", "-F", "-t", "ext4", "-E", "root_owner=0:0", "-d"]).arg(&root).arg(&image).arg(size);
    sh::run(&mut mke2fs).context("the disk could not be made (mke2fs is in e2fsprogs)")?;
    let bytes = fs::read(&image)?;
    fs::remove_dir_all(&root)?;
    fs::remove_file(&image)?;
    Ok(bytes)
}

/// Writes what is below `prefix` in a tree of ours to a directory.
pub(crate) fn spill(tree: &Tree, prefix: &str, dir: &Path) -> Result<()> {
    for (name, node) in tree.iter() {
        let Some(path) = name.strip_prefix(prefix).map(|name| dir.join(name)) else { continue };
        match &node.kind {
            Kind::Directory => fs::create_dir_all(&path),
            Kind::File(content) => fs::write(&path, content)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(node.mode))),
            Kind::Link(target) => symlink(target, &path),
            // The kernel makes devices.
            Kind::CharDevice(..) | Kind::BlockDevice(..) | Kind::Fifo => Ok(()),
        }
        .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
