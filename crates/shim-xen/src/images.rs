//! Images as disks: the layers that containerd has unpacked become one ext4 file, which every pod of the image reads.
//!
//! A disk is made by `mke2fs -d`, which writes a file system into a file and mounts nothing. Several layers are seen as one
//! tree through an overlay in a mount namespace of the one command that reads it. What a guest may write to, the host neither
//! mounts nor reads: a pod's disk for changes is made empty, attached, and removed.

use agent::protocol::RootMount;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Of every disk.
const BLOCK: u64 = 4096;
/// Mounts the first argument's layers at the second, and becomes the rest.
const OVER_LAYERS: &str = r#"mount -t overlay -o "ro,lowerdir=$1" overlay "$2" && shift 2 && exec "$@""#;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error("this snapshotter is not supported: the root file system must be an overlay of directories")]
    Snapshotter,
    #[error("the container's snapshot has been written to on the host: {0} is not empty")]
    Written(PathBuf),
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    #[error("cannot write {0}")]
    Write(PathBuf, #[source] io::Error),
    #[error("cannot run {0}")]
    Run(&'static str, #[source] io::Error),
    #[error("cannot make the disk: {0}")]
    Failed(String),
}

/// The directories of an image, the uppermost first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layers(Vec<PathBuf>);

impl Layers {
    /// Those of a root file system as containerd hands it over.
    pub(crate) fn of(mounts: &[RootMount]) -> Result<Self, ImageError> {
        let [mount] = mounts else { return Err(ImageError::Snapshotter) };
        let option = |name: &str| mount.options.iter().find_map(|option| option.strip_prefix(name));
        let layers: Vec<PathBuf> = match mount.kind.as_str() {
            "overlay" => option("lowerdir=").ok_or(ImageError::Snapshotter)?.split(':').map(PathBuf::from).collect(),
            // An image without layers, or one that is only looked at.
            "bind" => vec![PathBuf::from(&mount.source)],
            _ => return Err(ImageError::Snapshotter),
        };
        let plain =
            |path: &PathBuf| path.is_absolute() && path.to_str().is_some_and(|text| !text.contains(['\\', ',']));
        if !layers.iter().all(plain) {
            return Err(ImageError::Snapshotter);
        }
        if let Some(upper) = option("upperdir=").map(PathBuf::from) {
            let mut entries = fs::read_dir(&upper).map_err(|error| ImageError::Read(upper.clone(), error))?;
            if entries.next().is_some() {
                return Err(ImageError::Written(upper));
            }
        }
        Ok(Self(layers))
    }

    /// By what the disk is known: containerd does not change a layer, and never gives its place to another.
    fn key(&self) -> Result<String, ImageError> {
        let mut hash = Sha256::new();
        for layer in &self.0 {
            let meta = fs::metadata(layer).map_err(|error| ImageError::Read(layer.clone(), error))?;
            hash.update(format!("{}\0{}\0{}\0", layer.display(), meta.dev(), meta.ino()));
        }
        Ok(hex::encode(hash.finalize()))
    }

    /// What is in all of them, which is at least what is seen of them.
    fn extent(&self) -> Result<Extent, ImageError> {
        let mut extent = Extent::default();
        for layer in &self.0 {
            extent.add(layer).map_err(|error| ImageError::Read(layer.clone(), error))?;
        }
        Ok(extent)
    }
}

/// How much a disk must hold.
#[derive(Debug, Default, PartialEq, Eq)]
struct Extent {
    blocks: u64,
    files: u64,
}

impl Extent {
    fn add(&mut self, path: &Path) -> io::Result<()> {
        let meta = fs::symlink_metadata(path)?;
        self.files += 1;
        self.blocks += meta.len().div_ceil(BLOCK);
        if meta.is_dir() {
            for entry in fs::read_dir(path)? {
                self.add(&entry?.path())?;
            }
        }
        Ok(())
    }

    /// In blocks: the files, a block each for what they have besides, inodes of 256 bytes, and a little for the rest. What
    /// is not used is a hole in the file.
    fn disk(&self) -> u64 {
        self.blocks + self.files + self.inodes() / 16 + self.blocks / 16 + 4096
    }

    fn inodes(&self) -> u64 {
        self.files + 1024
    }
}

/// The disk of an image, made if it is not there yet.
pub(crate) fn disk(cache: &Path, layers: &Layers) -> Result<PathBuf, ImageError> {
    let key = layers.key()?;
    let disk = cache.join(format!("{key}.ext4"));
    if disk.exists() {
        return Ok(disk);
    }
    // Only what is whole gets its name. Two that make the same make the same.
    let half = cache.join(format!(".{key}.{}", std::process::id()));
    let tree = cache.join(format!(".{key}.{}.layers", std::process::id()));
    fs::create_dir_all(&tree).map_err(|error| ImageError::Write(tree.clone(), error))?;
    let made = make(layers, &half, &tree)
        .and_then(|()| fs::rename(&half, &disk).map_err(|error| ImageError::Write(disk.clone(), error)));
    let _ = fs::remove_dir_all(&tree);
    if made.is_err() {
        let _ = fs::remove_file(&half);
    }
    made.map(|()| disk)
}

fn make(layers: &Layers, disk: &Path, tree: &Path) -> Result<(), ImageError> {
    let extent = layers.extent()?;
    let inodes = extent.inodes().to_string();
    let whole = |from: &Path| format_command(disk, &["-N", &inodes, "-d"], Some(from), extent.disk());
    let (program, arguments) = match &layers.0[..] {
        [only] => ("mke2fs", whole(only)),
        several => {
            // By short names: the kernel takes a page of options, and an image may have more than a hundred layers.
            let mut short = Vec::new();
            for (index, layer) in several.iter().enumerate() {
                let link = tree.join(index.to_string());
                std::os::unix::fs::symlink(layer, &link).map_err(|error| ImageError::Write(link, error))?;
                short.push(index.to_string());
            }
            let seen = tree.join("tree");
            fs::create_dir(&seen).map_err(|error| ImageError::Write(seen.clone(), error))?;
            let shell = ["--mount", "--propagation", "private", "sh", "-c", OVER_LAYERS, "sh"].map(OsString::from);
            let layers = [OsString::from(short.join(":")), seen.clone().into(), "mke2fs".into()];
            ("unshare", shell.into_iter().chain(layers).chain(whole(&seen)).collect())
        }
    };
    run(program, arguments, tree)
}

/// An empty disk that a pod's containers write to, made of holes.
pub(crate) fn scratch(file: &Path, bytes: u64) -> Result<(), ImageError> {
    File::create_new(file).map_err(|error| ImageError::Write(file.to_owned(), error))?;
    run("mke2fs", format_command(file, &["-E", "lazy_itable_init=1,nodiscard"], None, bytes / BLOCK), Path::new("/"))
}

fn format_command(disk: &Path, more: &[&str], from: Option<&Path>, blocks: u64) -> Vec<OsString> {
    // No journal: a disk that is read needs none, and one for changes ends with its pod.
    let fixed = ["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-b", "4096", "-I", "256"];
    let mut arguments: Vec<OsString> = fixed.iter().chain(more).map(OsString::from).collect();
    arguments.extend(from.map(OsString::from));
    arguments.extend([disk.into(), blocks.to_string().into()]);
    arguments
}

fn run(program: &'static str, arguments: Vec<OsString>, dir: &Path) -> Result<(), ImageError> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir).stdin(Stdio::null());
    let output = command.output().map_err(|error| ImageError::Run(program, error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(ImageError::Failed(said.lines().last().unwrap_or("no output").trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlay(options: &[String]) -> RootMount {
        let (kind, options) = ("overlay".to_owned(), options.to_vec());
        RootMount { kind, source: "overlay".into(), target: String::new(), options }
    }

    /// What `debugfs` reads from a disk, without mounting it.
    fn cat(disk: &Path, path: &str) -> String {
        let mut debugfs = Command::new("debugfs");
        let output = debugfs.args(["-R", &format!("cat {path}")]).arg(disk).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn layers_are_those_below_the_containers_own() {
        let dir = testkit::directory();
        fs::create_dir(dir.join("upper")).unwrap();
        let upper = format!("upperdir={}", dir.join("upper").display());
        let mount = overlay(&["workdir=/w".into(), upper, "lowerdir=/l/2:/l/1".into()]);
        assert_eq!(Layers::of(std::slice::from_ref(&mount)).unwrap(), Layers(vec!["/l/2".into(), "/l/1".into()]));
        fs::write(dir.join("upper/x"), "").unwrap();
        assert!(matches!(Layers::of(std::slice::from_ref(&mount)), Err(ImageError::Written(_))));
        for wrong in [
            vec![],
            vec![overlay(&[])],
            vec![overlay(&["lowerdir=l".into()])],
            vec![mount, overlay(&["lowerdir=/a".into()])],
        ] {
            assert!(matches!(Layers::of(&wrong), Err(ImageError::Snapshotter)), "{wrong:?}");
        }
        let block = RootMount { kind: "ext4".into(), source: "/s".into(), target: String::new(), options: vec![] };
        assert!(matches!(Layers::of(&[block]), Err(ImageError::Snapshotter)));
    }

    #[test]
    fn one_layer_becomes_one_disk_which_is_made_once() {
        let dir = testkit::directory();
        dir.write("layer/etc/name", "one\n");
        let layers = Layers(vec![dir.join("layer")]);
        let cache = dir.join("cache");
        let made = disk(&cache, &layers).unwrap();
        assert_eq!(cat(&made, "/etc/name"), "one\n");
        let before = fs::metadata(&made).unwrap().ino();
        assert_eq!(disk(&cache, &layers).unwrap(), made);
        assert_eq!(fs::metadata(&made).unwrap().ino(), before);
        let names: Vec<_> = fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }

    #[test]
    fn several_layers_are_seen_as_one_and_the_host_mounts_nothing() {
        if !rustix::process::geteuid().is_root() {
            return testkit::not_tried("mounting an overlay needs root");
        }
        let dir = testkit::directory();
        dir.write("lower/etc/name", "lower\n");
        dir.write("lower/etc/kept", "kept\n");
        dir.write("upper/etc/name", "upper\n");
        let layers = Layers(vec![dir.join("upper"), dir.join("lower")]);
        let made = match disk(&dir.join("cache"), &layers) {
            Ok(made) => made,
            Err(error) => return testkit::not_tried(&format!("no overlay here: {error}")),
        };
        assert_eq!(cat(&made, "/etc/name"), "upper\n");
        assert_eq!(cat(&made, "/etc/kept"), "kept\n");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(dir.to_str().unwrap()), "{mounts}");
    }

    #[test]
    fn a_disk_for_changes_is_empty_and_takes_no_room() {
        let dir = testkit::directory();
        let file = dir.join("scratch.ext4");
        scratch(&file, 1 << 30).unwrap();
        let meta = fs::metadata(&file).unwrap();
        assert_eq!(meta.len(), 1 << 30);
        assert!(meta.blocks() * 512 < 32 << 20, "{} bytes are taken", meta.blocks() * 512);
        assert!(scratch(&file, 1 << 30).is_err(), "one that exists is not made again");
    }

    #[test]
    fn what_fails_leaves_nothing_behind() {
        let dir = testkit::directory();
        assert!(disk(&dir.join("cache"), &Layers(vec![dir.join("none")])).is_err());
        assert!(fs::read_dir(dir.join("cache")).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
    }
}
