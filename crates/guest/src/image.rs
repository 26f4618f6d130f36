//! The image: a kernel, and a root file system with our libraries in it.

use crate::closure::{self, ClosureError};
use crate::packages::{self, Package, PackageError, Store};
use crate::tree::{Kind, Node, Tree};
use crate::{cpio, elf, kernel};
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Names of the files of an image.
pub const KERNEL: &str = "vmlinuz";
pub const ROOT: &str = "initrd.img";
/// What is in the image and where it came from, in the format of `sha256sum`.
pub const SUMS: &str = "SHA256SUMS";

/// Where the kernel's modules are in a guest, in the order in which they are loaded.
pub const MODULES_DIR: &str = "modules";
pub const MODULES: [&str; 5] = ["xen-evtchn", "xen-gntalloc", "xen-gntdev", "xen-privcmd", "xenfs"];
/// Those that are loaded for a disk: checksums, ext4 with what it needs, and what lies over it.
pub const DISK_MODULES: [&str; 8] =
    ["crc32c_generic", "crc16", "mbcache", "jbd2", "ext4", "squashfs", "overlay", "xen-blkfront"];
/// The one that is loaded for a pod's network.
pub const NETWORK_MODULES: [&str; 1] = ["xen-netfront"];

/// Where programs in a guest find our libraries without being told.
pub const LIBRARY_DIR: &str = "usr/lib/x86_64-linux-gnu";

/// What every C or C++ program wants, and the loader.
pub const RUNTIME: [&str; 9] = [
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libutil.so.1",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "/lib64/ld-linux-x86-64.so.2",
];

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Package(#[from] PackageError),
    #[error(transparent)]
    Closure(#[from] ClosureError),
    #[error(transparent)]
    Kernel(#[from] kernel::KernelError),
    #[error("{0} not found in the packages")]
    Missing(String),
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    #[error("cannot write {0}")]
    Write(PathBuf, #[source] io::Error),
}

/// What an image is made of.
#[derive(Debug)]
pub struct Parts<'a> {
    pub store: Store,
    pub lock: &'a str,
    /// Our `bulkhead-init`.
    pub init: PathBuf,
    /// Our libraries, to be found by their file names.
    pub libraries: Vec<PathBuf>,
    /// Unpacks the kernel and leaves the root file system as it is, for machines that are slow at it.
    pub plain: bool,
}

/// An image in memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    pub kernel: Vec<u8>,
    pub root: Vec<u8>,
    pub sums: String,
}

impl Image {
    pub fn size(&self) -> usize {
        self.kernel.len() + self.root.len()
    }

    /// Writes the files. Each gets its name when it is complete, the sums last.
    pub fn write(&self, dir: &Path) -> Result<(), ImageError> {
        fs::create_dir_all(dir).map_err(|error| ImageError::Write(dir.to_owned(), error))?;
        for (name, bytes) in [(KERNEL, &self.kernel[..]), (ROOT, &self.root), (SUMS, self.sums.as_bytes())] {
            let file = dir.join(name);
            let half = dir.join(format!(".{name}.new"));
            fs::write(&half, bytes)
                .and_then(|()| fs::rename(&half, &file))
                .map_err(|error| ImageError::Write(file, error))?;
        }
        Ok(())
    }
}

/// Makes an image. The same parts make the same bytes.
pub fn build(parts: &Parts) -> Result<Image, ImageError> {
    let mut all = Tree::default();
    for package in packages::locked(parts.lock) {
        parts.store.unpack(&package, &mut all, |path| wanted(&package, path))?;
    }
    let bz_image = find(&all, "boot/vmlinuz-", "")?;
    let kernel = if parts.plain { kernel::uncompressed(bz_image)? } else { bz_image.to_vec() };
    let archive = cpio::bytes(&root(parts, &all)?);
    let root = if parts.plain { archive } else { gzip(&archive) };

    let mut sums = String::new();
    for (name, bytes) in [(KERNEL, &kernel), (ROOT, &root)] {
        sums += &format!("{}  {name}\n", hex::encode(Sha256::digest(bytes)));
    }
    for package in packages::locked(parts.lock) {
        sums += &format!("# {}  {}\n", package.sha256, package.pool);
    }
    Ok(Image { kernel, root, sums })
}

fn root(parts: &Parts, all: &Tree) -> Result<Tree, ImageError> {
    let mut tree = skeleton();
    for module in MODULES.iter().chain(&DISK_MODULES).chain(&NETWORK_MODULES) {
        let file = format!("/{module}.ko");
        tree.file(&format!("{MODULES_DIR}{file}"), 0o644, find(all, "lib/modules/", &file)?.clone());
    }
    let mut needed: Vec<String> = RUNTIME.map(str::to_owned).into();
    let mut add = |tree: &mut Tree, path: String, file: &Path| {
        let content = fs::read(file).map_err(|error| ImageError::Read(file.to_owned(), error))?;
        needed.extend(closure::needed(&file.to_string_lossy(), &content)?);
        tree.file(&path, 0o755, elf::loaded_part(&content));
        Ok::<(), ImageError>(())
    };
    add(&mut tree, "init".to_owned(), &parts.init)?;
    for library in &parts.libraries {
        let name = library.file_name().unwrap_or_default().to_string_lossy();
        add(&mut tree, format!("{LIBRARY_DIR}/{name}"), library)?;
        if let Some(short) = name.strip_suffix(".1") {
            tree.link(&format!("{LIBRARY_DIR}/{short}"), &name);
        }
    }
    closure::add(all, &mut tree, needed)?;
    Ok(tree)
}

/// Directories and files that programs take for granted.
fn skeleton() -> Tree {
    let mut tree = Tree::default();
    for dir in ["dev", "etc", "proc", "root", "run", "sys", "var/log"] {
        tree.dir(dir);
    }
    tree.put("tmp", Node::new(Kind::Directory, 0o1777));
    tree.link("var/run", "../run");
    // Before devtmpfs is there, for what the first process has to say.
    tree.put("dev/console", Node::new(Kind::CharDevice(5, 1), 0o600));
    tree.file("etc/passwd", 0o644, *b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n");
    tree.file("etc/group", 0o644, *b"root:x:0:\nnogroup:x:65534:\n");
    tree.file("etc/hosts", 0o644, *b"127.0.0.1 localhost\n::1 localhost\n");
    tree.file("etc/nsswitch.conf", 0o644, *b"passwd: files\ngroup: files\nhosts: files\n");
    tree
}

/// Most of a kernel's package is modules, and of the others only libraries matter.
fn wanted(package: &Package, path: &str) -> bool {
    match package.name().starts_with("linux-image-") {
        true => {
            let mut modules = MODULES.iter().chain(&DISK_MODULES).chain(&NETWORK_MODULES);
            path.starts_with("boot/vmlinuz-") || modules.any(|name| path.ends_with(&format!("/{name}.ko")))
        }
        false => path.contains(".so") && !path.contains("/gconv"),
    }
}

fn find<'a>(tree: &'a Tree, start: &str, end: &str) -> Result<&'a std::sync::Arc<[u8]>, ImageError> {
    let named = |(name, _): &(&String, _)| name.starts_with(start) && name.ends_with(end);
    let found = tree.iter().find(named).and_then(|(name, _)| tree.read(name));
    found.ok_or_else(|| ImageError::Missing(format!("{start}…{end}")))
}

/// Without a time and a name, which would differ.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    let done = out.write_all(bytes).and_then(|()| out.finish());
    done.expect("memory takes what is written to it")
}
