//! The part of Dom0 and of test guests that comes from Debian's packages, made once and kept in the cache.

use super::disk;
use anyhow::{Context, Result};
use guest::packages::{self, Package, Store};
use guest::tree::Tree;
use guest::{closure, cpio, image, kernel, tenant};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use xtask::paths;

/// What Xen's tools come from, beside what guests are made of.
const LOCK: &str = include_str!("../packages.lock");

/// Programs of Dom0.
const TOOLS: [&str; 8] = [
    "usr/lib/xen-4.17/bin/xl",
    "usr/lib/xen-4.17/bin/xenstored",
    "usr/lib/xen-4.17/bin/xenconsoled",
    "usr/lib/xen-4.17/bin/xenconsole",
    "usr/lib/xen-4.17/bin/xen-init-dom0",
    "usr/lib/xen-4.17/bin/lsevtchn",
    "usr/lib/xen-4.17/bin/libxl-save-helper",
    "usr/bin/xenstore",
];

/// `xenstore` under these names does what they say.
const XENSTORE: [&str; 6] = ["read", "write", "ls", "list", "rm", "chmod"];

pub(crate) const MODULES: [&str; 5] = ["xen-privcmd", "xen-evtchn", "xen-gntdev", "xen-gntalloc", "xenfs"];
/// Those that Dom0 has for guests with disks.
const DISK_MODULES: [&str; 2] = ["loop", "xen-blkback"];

/// Files in the cache.
#[derive(Debug)]
pub(crate) struct Base {
    dir: PathBuf,
}

impl Base {
    /// The hypervisor.
    pub(crate) fn xen(&self) -> PathBuf {
        self.dir.join("xen")
    }

    /// The kernel, for Dom0 and guests, unpacked.
    pub(crate) fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinux")
    }

    pub(crate) fn dom0(&self) -> PathBuf {
        self.dir.join("dom0.cpio")
    }

    /// The same as a tenant's root file system.
    pub(crate) fn tenant(&self) -> PathBuf {
        self.dir.join("tenant.cpio")
    }

    /// The same as a directory, to make a disk of.
    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// A guest with a shell, for tests.
    pub(crate) fn guest(&self) -> PathBuf {
        self.dir.join("guest.cpio")
    }
}

/// The directory of packages.
pub(crate) fn store() -> Store {
    Store::new(paths::cache().join("xen/packages"))
}

/// Makes the base unless it was made from the same packages, by the same code, before.
pub(crate) fn ensure() -> Result<Base> {
    let mut hasher = DefaultHasher::new();
    (LOCK, packages::LOCK, include_str!("base.rs")).hash(&mut hasher);
    let dir = paths::cache().join("xen").join(format!("base-{:016x}", hasher.finish()));
    if !dir.exists() {
        println!("making Xen's Dom0 from Debian's packages in {}", dir.display());
        let half = dir.with_extension(std::process::id().to_string());
        fs::create_dir_all(&half).with_context(|| format!("cannot make {}", half.display()))?;
        make(&half)?;
        // Somebody else may have been as fast.
        if fs::rename(&half, &dir).is_err() {
            fs::remove_dir_all(&half)?;
        }
    }
    Ok(Base { dir })
}

fn make(dir: &Path) -> Result<()> {
    let (store, mut all) = (store(), Tree::default());
    for package in packages::locked(packages::LOCK).chain(packages::locked(LOCK)) {
        store.unpack(&package, &mut all, |path| wanted(&package, path))?;
    }
    let find = |start: &str, end: &str| {
        let named = |(name, _): &(&String, _)| name.starts_with(start) && name.ends_with(end);
        all.iter().find(named).and_then(|(name, _)| all.read(name)).with_context(|| format!("no {start}…{end}"))
    };
    let mut xen = Vec::new();
    flate2::read::GzDecoder::new(&find("boot/xen-", ".gz")?[..]).read_to_end(&mut xen)?;
    fs::write(dir.join("xen"), xen)?;
    fs::write(dir.join("vmlinux"), kernel::uncompressed(find("boot/vmlinuz-", "")?)?)?;

    let mut guest = skeleton();
    let busybox = find("bin/busybox", "")?;
    guest.file("bin/busybox", 0o755, busybox.clone());
    for name in applets(dir, busybox)? {
        guest.link(&format!("bin/{name}"), "busybox");
    }
    for module in MODULES {
        let file = format!("/{module}.ko");
        guest.file(&format!("modules{file}"), 0o644, find("lib/modules/", &file)?.clone());
    }
    closure::add(&all, &mut guest, image::RUNTIME.map(str::to_owned).into())?;
    let mut dom0 = guest.clone();
    for module in DISK_MODULES {
        let file = format!("/{module}.ko");
        dom0.file(&format!("modules{file}"), 0o644, find("lib/modules/", &file)?.clone());
    }
    tools(&all, &mut guest, &["usr/bin/xenstore"])?;
    tools(&all, &mut dom0, &TOOLS)?;
    dom0.file("etc/xen/xl.conf", 0o644, *b"");
    fs::write(dir.join("tenant.cpio"), cpio::bytes(&tenant::placed(&guest, &tenant::Manner::default())))?;
    fs::create_dir(dir.join("root"))?;
    disk::spill(&guest, "", &dir.join("root"))?;
    fs::write(dir.join("guest.cpio"), cpio::bytes(&guest))?;
    fs::write(dir.join("dom0.cpio"), cpio::bytes(&dom0))?;
    Ok(())
}

/// Most of a kernel's package is modules, and nobody needs manuals.
fn wanted(package: &Package, path: &str) -> bool {
    let module = || MODULES.iter().chain(&DISK_MODULES).any(|name| path.ends_with(&format!("/{name}.ko")));
    match package.name().starts_with("linux-image-") {
        true => path.starts_with("boot/vmlinuz-") || module(),
        false => !path.starts_with("usr/share/") && !path.contains("/gconv"),
    }
}

fn skeleton() -> Tree {
    let mut tree = Tree::default();
    for dir in ["dev", "etc", "proc", "root", "run/lock", "sys", "tmp", "var/log", "var/lib/xen", "var/lib/xenstored"]
    {
        tree.dir(dir);
    }
    tree.link("var/run", "../run");
    tree.link("var/lock", "../run/lock");
    tree.file("etc/passwd", 0o644, *b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n");
    tree.file("etc/group", 0o644, *b"root:x:0:\nnogroup:x:65534:\n");
    tree.file("etc/hosts", 0o644, *b"127.0.0.1 localhost\n");
    tree
}

fn tools(all: &Tree, tree: &mut Tree, programs: &[&str]) -> Result<()> {
    for program in programs {
        let content = all.read(program).with_context(|| format!("no {program} in the packages"))?.clone();
        let needs = closure::needed(program, &content)?;
        let name = program.rsplit('/').next().unwrap_or_default();
        tree.file(program, 0o755, content);
        if !program.starts_with("usr/bin/") {
            tree.link(&format!("usr/sbin/{name}"), &format!("/{program}"));
        }
        closure::add(all, tree, needs)?;
    }
    for name in XENSTORE {
        tree.link(&format!("usr/bin/xenstore-{name}"), "xenstore");
    }
    Ok(())
}

/// What busybox can be called by.
fn applets(dir: &Path, busybox: &[u8]) -> Result<Vec<String>> {
    use std::os::unix::fs::PermissionsExt;
    let program = dir.join("busybox");
    fs::write(&program, busybox)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let list = xtask::sh::output(std::process::Command::new(&program).arg("--list"))?;
    fs::remove_file(&program)?;
    Ok(list.lines().filter(|name| *name != "busybox").map(str::to_owned).collect())
}
