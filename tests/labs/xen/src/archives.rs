//! What Dom0 boots from: the base, and behind it what this run tries.

use super::Options;
use super::base::Base;
use super::image;
use super::payload::Payload;
use anyhow::{Context, Result};
use guest::tree::Tree;
use guest::{cpio, elf};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use xtask::paths;

const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// What a run brings along.
pub(crate) struct Given {
    /// Files for Dom0 and test guests.
    pub with: Vec<PathBuf>,
    /// What guests run, in the tenant's root file system.
    pub payload: Payload,
    /// A disk with that root file system.
    pub disk: Option<Vec<u8>>,
}

/// Writes the archive of Dom0.
pub(crate) fn write(archive: &Path, base: &Base, options: &Options, given: &Given) -> Result<()> {
    let mut tree = Tree::default();
    let script = |name: &str| {
        let path = paths::root().join("tests/labs/xen/dom0").join(name);
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    tree.file("init", 0o755, script("dom0-init.sh")?);
    tree.file("test/lib.sh", 0o644, script("lib.sh")?);
    let scenarios = paths::root().join("tests/labs/xen/scenarios");
    for entry in fs::read_dir(&scenarios).with_context(|| format!("cannot read {}", scenarios.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        tree.file(&format!("test/scenarios/{name}"), 0o644, fs::read(scenarios.join(&name))?);
    }
    tree.file("boot/guest.cpio", 0o644, fs::read(base.guest())?);
    tree.file("etc/xen/scripts/block", 0o755, script("block.sh")?);
    let tenant = [fs::read(base.tenant())?, cpio::bytes(&given.payload.programs)].concat();
    tree.file("boot/tenant.cpio", 0o644, tenant);
    tree.file("boot/conformance.cpio", 0o644, cpio::bytes(&given.payload.conformance));
    if let Some(disk) = &given.disk {
        tree.file("boot/tenant.ext4", 0o644, &disk[..]);
    }
    tree.link("boot/vmlinux", "image/vmlinuz");
    installed(&mut tree)?;

    let mut guest = Tree::default();
    guest.file("init", 0o755, script("guest-init.sh")?);
    if let (Some(dom0), Some(in_guest)) = (&options.dom0, &options.guest) {
        program(&mut tree, "test/dom0-command", dom0, None)?;
        program(&mut tree, "test/guest-command", in_guest, Some(&mut guest))?;
        let types = options.kind.as_deref().unwrap_or("pv pvh");
        tree.file("test/pair-types", 0o644, types.as_bytes());
    }
    for file in &given.with {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        for tree in [&mut tree, &mut guest] {
            add(tree, &format!("test/{name}"), file)?;
        }
    }
    tree.file("test/guest-extra.cpio", 0o644, cpio::bytes(&guest));

    let mut out =
        BufWriter::new(File::create(archive).with_context(|| format!("cannot write {}", archive.display()))?);
    out.write_all(&fs::read(base.dom0())?)?;
    cpio::write(&tree, &mut out)?;
    out.flush()?;
    Ok(())
}

/// Bulkhead as it was staged, and the image that it makes of itself.
fn installed(tree: &mut Tree) -> Result<()> {
    let lib = paths::stage().join("lib/bulkhead");
    let small = |file: &Path| -> Result<Vec<u8>> {
        let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(elf::loaded_part(&content))
    };
    tree.file("opt/bulkhead/bin/bulkhead", 0o755, small(&paths::stage().join("bin/bulkhead"))?);
    for name in LIBRARIES {
        tree.file(&format!("opt/bulkhead/lib/bulkhead/{name}"), 0o755, small(&lib.join(name))?);
    }
    let image = image::plain()?;
    for name in ["vmlinuz", "initrd.img"] {
        tree.file(&format!("boot/image/{name}"), 0o644, fs::read(image.join(name))?);
    }
    Ok(())
}

/// Puts the program of a command among the files, in Dom0 or in the guest, and the command that runs it there in Dom0.
fn program(dom0: &mut Tree, place: &str, command: &str, guest: Option<&mut Tree>) -> Result<()> {
    let (file, arguments) = command.split_once(' ').unwrap_or((command, ""));
    let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
    let there = format!("test/{name}");
    dom0.file(place, 0o644, format!("/{there} {arguments}").trim_end().as_bytes());
    add(guest.unwrap_or(dom0), &there, Path::new(file))
}

fn add(tree: &mut Tree, there: &str, file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(file).with_context(|| format!("no {}", file.display()))?.permissions().mode();
    tree.file(there, mode & 0o7777, fs::read(file)?);
    Ok(())
}
