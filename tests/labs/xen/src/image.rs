//! The image that guests boot, made by the staged `bulkhead`, as a user makes it.

use super::base;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::{paths, sh};

/// What kernel and root file system may have together.
const MAX_BYTES: usize = 50_000_000;
const FILES: [&str; 3] = ["vmlinuz", "initrd.img", "SHA256SUMS"];

/// The image for this test: nothing in it is compressed, for unpacking is slow where it is emulated.
pub(crate) fn plain() -> Result<PathBuf> {
    let dir = paths::target().join("xen/image");
    build(&dir, &["--plain"], &[])?;
    Ok(dir)
}

/// Made twice, at two times and places and by users with other habits, it is the same; and it is small.
pub(crate) fn check() -> Result<()> {
    let dirs = ["image-a", "image-b"].map(|name| paths::target().join("xen").join(name));
    build(&dirs[0], &[], &[("TZ", "UTC"), ("LC_ALL", "C")])?;
    // Times of files count in seconds.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    build(&dirs[1], &[], &[("TZ", "Asia/Tokyo"), ("LC_ALL", "C.UTF-8")])?;
    let mut total = 0;
    for name in FILES {
        let [one, other] = dirs.each_ref().map(|dir| read(&dir.join(name)));
        let one = one?;
        ensure!(one == other?, "{name} is not the same when it is made again");
        total += one.len();
    }
    ensure!(total <= MAX_BYTES, "the image has {total} bytes");
    dirs.iter().try_for_each(fs::remove_dir_all)?;
    println!("the image: {:.1} MB, twice the same", total as f64 / 1e6);
    Ok(())
}

fn build(dir: &Path, options: &[&str], variables: &[(&str, &str)]) -> Result<()> {
    let mut command = Command::new(paths::stage().join("bin/bulkhead"));
    command.args(["image", "build"]).args(options).envs(variables.iter().copied());
    command.arg("--packages").arg(base::store().dir).arg("--output").arg(dir);
    sh::output(&mut command).map(drop)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}
