//! A container's file tree: its mounts, its devices, and what is hidden or read-only in it.
//!
//! All of it happens in a mount namespace of the container's own, before its program runs. The image is the tenant's, and
//! so are the links in it: every destination is looked up below the new root, never through it ([`inside`]).

use super::SetupError;
use crate::oci::{Device, Mount, Spec, VOLUME};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, mount_remount, unmount};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

/// Links that are followed on the way to one destination.
const MAX_LINKS: u32 = 40;

/// Devices that every container has.
const DEVICES: [(&str, u32, u32); 6] = [
    ("/dev/null", 1, 3),
    ("/dev/zero", 1, 5),
    ("/dev/full", 1, 7),
    ("/dev/random", 1, 8),
    ("/dev/urandom", 1, 9),
    ("/dev/tty", 5, 0),
];
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "dev/fd"),
    ("/proc/self/fd/0", "dev/stdin"),
    ("/proc/self/fd/1", "dev/stdout"),
    ("/proc/self/fd/2", "dev/stderr"),
    ("pts/ptmx", "dev/ptmx"),
];

/// Makes the container's tree at `root` and enters it. `volumes` is where the machine keeps its volumes.
pub(super) fn enter(spec: &Spec, root: &Path, volumes: &Path) -> Result<(), SetupError> {
    let step = |what: &'static str| move |error: rustix::io::Errno| SetupError::Step(what, error.into());
    let propagation = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", propagation).map_err(step("make mounts private"))?;
    rustix::mount::mount_bind_recursive(root, root).map_err(step("bind the root file system"))?;
    for entry in &spec.mounts {
        one(entry, root, volumes)?;
    }
    devices(&spec.linux.devices, root)?;
    // To the new root, with the old one over it, which then goes.
    rustix::process::chdir(root).map_err(step("enter the root file system"))?;
    rustix::process::pivot_root(".", ".").map_err(step("change the root file system"))?;
    unmount(".", UnmountFlags::DETACH).map_err(step("leave the old root file system"))?;
    rustix::process::chdir("/").map_err(step("enter the root file system"))
}

/// What is done inside of the tree, when `/proc` is the container's.
pub(super) fn restrict(spec: &Spec) -> Result<(), SetupError> {
    for (name, value) in &spec.linux.sysctl {
        let file = format!("/proc/sys/{}", name.replace('.', "/"));
        if name.contains("..") {
            return Err(SetupError::Sysctl(name.clone(), io::ErrorKind::InvalidInput.into()));
        }
        fs::write(file, value).map_err(|error| SetupError::Sysctl(name.clone(), error))?;
    }
    for path in &spec.linux.readonly_paths {
        read_only(path)?;
    }
    for path in &spec.linux.masked_paths {
        mask(path)?;
    }
    if spec.root.readonly {
        let flags = MountFlags::BIND | MountFlags::RDONLY | kept_flags(Path::new("/"));
        mount_remount("/", flags, "").map_err(|error| SetupError::Step("make the root read-only", error.into()))?;
    }
    Ok(())
}

fn read_only(path: &str) -> Result<(), SetupError> {
    let failed = |error: rustix::io::Errno| SetupError::Mount(path.to_owned(), error.into());
    match rustix::mount::mount_bind_recursive(path, path) {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(()),
        other => other.map_err(failed)?,
    }
    let flags = MountFlags::BIND | MountFlags::RDONLY | kept_flags(Path::new(path));
    mount_remount(path, flags, "").map_err(failed)
}

fn mask(path: &str) -> Result<(), SetupError> {
    let failed = |error: rustix::io::Errno| SetupError::Mount(path.to_owned(), error.into());
    match fs::metadata(path) {
        Err(_) => Ok(()),
        Ok(meta) if meta.is_dir() => mount("tmpfs", path, "tmpfs", MountFlags::RDONLY, c"").map_err(failed),
        Ok(_) => rustix::mount::mount_bind("/dev/null", path).map_err(failed),
    }
}

/// Flags of the mount that a path is on, which a remount would drop otherwise, and may not in a user namespace.
fn kept_flags(path: &Path) -> MountFlags {
    use rustix::fs::StatVfsMountFlags as Vfs;
    let Ok(found) = rustix::fs::statvfs(path) else { return MountFlags::empty() };
    let pairs = [
        (Vfs::NOSUID, MountFlags::NOSUID),
        (Vfs::NODEV, MountFlags::NODEV),
        (Vfs::NOEXEC, MountFlags::NOEXEC),
        (Vfs::NOATIME, MountFlags::NOATIME),
        (Vfs::RELATIME, MountFlags::RELATIME),
    ];
    pairs.into_iter().filter(|(vfs, _)| found.f_flag.contains(*vfs)).map(|(_, flag)| flag).collect()
}

/// Options of a mount, sorted by what they mean to the kernel.
#[derive(Debug, PartialEq)]
struct Options {
    flags: MountFlags,
    propagation: Option<MountPropagationFlags>,
    /// Read-only with all that is mounted below.
    recursive_read_only: bool,
    data: Vec<String>,
}

impl Options {
    fn parse(options: &[String]) -> Self {
        let (flags, data) = (MountFlags::empty(), Vec::new());
        let mut parsed = Self { flags, propagation: None, recursive_read_only: false, data };
        for option in options {
            let flag = match option.as_str() {
                "defaults" | "rw" | "suid" | "dev" | "exec" | "atime" | "async" => continue,
                "ro" => MountFlags::RDONLY,
                "nosuid" => MountFlags::NOSUID,
                "nodev" => MountFlags::NODEV,
                "noexec" => MountFlags::NOEXEC,
                "noatime" => MountFlags::NOATIME,
                "nodiratime" => MountFlags::NODIRATIME,
                "relatime" => MountFlags::RELATIME,
                "strictatime" => MountFlags::STRICTATIME,
                "sync" => MountFlags::SYNCHRONOUS,
                "bind" => MountFlags::BIND,
                "rbind" => MountFlags::BIND | MountFlags::REC,
                "rro" => {
                    parsed.recursive_read_only = true;
                    MountFlags::RDONLY
                }
                other => {
                    match propagation(other) {
                        Some(kind) => parsed.propagation = Some(kind),
                        None => parsed.data.push(other.to_owned()),
                    }
                    continue;
                }
            };
            parsed.flags |= flag;
        }
        parsed
    }
}

fn propagation(option: &str) -> Option<MountPropagationFlags> {
    use MountPropagationFlags as P;
    Some(match option {
        "private" => P::PRIVATE,
        "rprivate" => P::PRIVATE | P::REC,
        "slave" => P::DOWNSTREAM,
        "rslave" => P::DOWNSTREAM | P::REC,
        "shared" => P::SHARED,
        "rshared" => P::SHARED | P::REC,
        "unbindable" => P::UNBINDABLE,
        "runbindable" => P::UNBINDABLE | P::REC,
        _ => return None,
    })
}

fn one(entry: &Mount, root: &Path, volumes: &Path) -> Result<(), SetupError> {
    let failed = |error: io::Error| SetupError::Mount(entry.destination.clone(), error);
    let options = Options::parse(&entry.options);
    let place = inside(root, &entry.destination).map_err(failed)?;
    if entry.kind == VOLUME || entry.kind == "bind" || options.flags.contains(MountFlags::BIND) {
        if entry.kind == VOLUME {
            // What lies in a volume may be another container's: no link leads from it into another volume.
            let held = in_volume(volumes, &entry.source).map_err(failed)?;
            let source = Path::new("/proc/self/fd").join(held.as_raw_fd().to_string());
            return bind(&source, &place, &options).map_err(failed);
        }
        return bind(Path::new(&entry.source), &place, &options).map_err(failed);
    }
    fs::create_dir_all(&place).map_err(failed)?;
    if entry.kind == "cgroup" {
        return cgroup(&place, options.flags).map_err(failed);
    }
    let data = std::ffi::CString::new(options.data.join(",")).map_err(|error| failed(error.into()))?;
    // A read-only tmpfs, like /dev of some, is filled first.
    let late = entry.kind == "tmpfs" && options.flags.contains(MountFlags::RDONLY);
    let flags = if late { options.flags - MountFlags::RDONLY } else { options.flags };
    mount(entry.source.as_str(), &place, entry.kind.as_str(), flags, data.as_c_str())
        .map_err(|error| failed(error.into()))?;
    if late {
        mount_remount(&place, options.flags | MountFlags::BIND, "").map_err(|error| failed(error.into()))?;
    }
    Ok(())
}

/// Holds a volume, or a file or directory in one.
fn in_volume(volumes: &Path, path: &str) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, ResolveFlags};
    let root = rustix::fs::open(volumes, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(rustix::fs::openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

fn bind(source: &Path, place: &Path, options: &Options) -> io::Result<()> {
    let meta = fs::metadata(source)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", source.display())))?;
    if meta.is_dir() {
        fs::create_dir_all(place)?;
    } else {
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        if fs::symlink_metadata(place).is_err() {
            fs::OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o644)
                .custom_flags(libc::O_NOFOLLOW)
                .open(place)?;
        }
    }
    match options.flags.contains(MountFlags::REC) {
        true => rustix::mount::mount_bind_recursive(source, place)?,
        false => rustix::mount::mount_bind(source, place)?,
    }
    let rest = options.flags - MountFlags::BIND - MountFlags::REC;
    if !rest.is_empty() {
        mount_remount(place, MountFlags::BIND | rest | kept_flags(place), "")?;
    }
    if options.recursive_read_only {
        recursive_read_only(place)?;
    }
    if let Some(propagation) = options.propagation {
        mount_change(place, propagation)?;
    }
    Ok(())
}

/// Sets the read-only attribute of a mount and of all below it.
fn recursive_read_only(place: &Path) -> io::Result<()> {
    #[repr(C)]
    struct MountAttributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    const MOUNT_ATTR_RDONLY: u64 = 1;
    let path = std::ffi::CString::new(place.as_os_str().as_encoded_bytes())?;
    let attributes = MountAttributes { set: MOUNT_ATTR_RDONLY, clear: 0, propagation: 0, user_namespace: 0 };
    // SAFETY: the kernel reads a path that ends in zero and as many bytes of attributes as it is told.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The container's own groups, read-only if so asked. In version 1 each tree is bound; in version 2 there is one.
fn cgroup(place: &Path, flags: MountFlags) -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let of_kind = |kind: &str| {
        let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let found = fields.filter(|fields| fields.get(2) == Some(&kind));
        found.map(|fields| (fields[1].to_owned(), fields[3].to_owned())).collect::<Vec<_>>()
    };
    let v1 = of_kind("cgroup");
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if v1.is_empty() {
        return Ok(mount("cgroup", place, "cgroup2", flags | plain, c"")?);
    }
    mount("tmpfs", place, "tmpfs", plain, c"mode=755")?;
    for (_, options) in v1 {
        let known = |option: &&str| !["rw", "ro", "relatime", "nosuid", "nodev", "noexec"].contains(option);
        let controllers: Vec<&str> = options.split(',').filter(known).collect();
        let name = controllers.join(",");
        let dir = place.join(name.trim_start_matches("name="));
        fs::create_dir_all(&dir)?;
        let data = std::ffi::CString::new(name)?;
        // A tree that cannot be mounted again is not shown.
        let _ = mount("cgroup", &dir, "cgroup", flags | plain, data.as_c_str());
    }
    if flags.contains(MountFlags::RDONLY) {
        mount_remount(place, MountFlags::BIND | MountFlags::RDONLY | plain, "")?;
    }
    Ok(())
}

fn devices(more: &[Device], root: &Path) -> Result<(), SetupError> {
    let failed = |path: &str| {
        let path = path.to_owned();
        move |error: io::Error| SetupError::Device(path, error)
    };
    for (path, major, minor) in DEVICES {
        let device = Device {
            path: path.to_owned(),
            kind: "c".to_owned(),
            major,
            minor,
            file_mode: Some(0o666),
            ..Device::default()
        };
        node(&device, root).map_err(failed(path))?;
    }
    for device in more {
        node(device, root).map_err(failed(&device.path))?;
    }
    for (target, name) in LINKS {
        let place = inside(root, name).map_err(failed(name))?;
        let _ = symlink(target, place);
    }
    Ok(())
}

fn node(device: &Device, root: &Path) -> io::Result<()> {
    let place = inside(root, &device.path)?;
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent)?;
    }
    let kind = match device.kind.as_str() {
        "b" => FileType::BlockDevice,
        "p" => FileType::Fifo,
        _ => FileType::CharacterDevice,
    };
    let mode = Mode::from_raw_mode(device.file_mode.unwrap_or(0o666) & 0o777);
    match mknodat(CWD, &place, kind, mode, makedev(device.major, device.minor)) {
        Err(rustix::io::Errno::EXIST) => return Ok(()),
        other => other?,
    }
    // What the mask of this process took away.
    fs::set_permissions(&place, fs::Permissions::from_mode(mode.as_raw_mode()))?;
    std::os::unix::fs::lchown(&place, Some(device.uid), Some(device.gid))
}

/// `path` below `root`, with links of the tenant's followed within it.
pub(crate) fn inside(root: &Path, path: &str) -> io::Result<PathBuf> {
    let mut left: Vec<PathBuf> = vec![PathBuf::from(path)];
    let mut at: Vec<std::ffi::OsString> = Vec::new();
    let mut links = 0;
    while let Some(part) = left.pop() {
        let mut components = part.components();
        let Some(first) = components.next() else { continue };
        let rest = components.as_path().to_owned();
        left.push(rest);
        match first {
            Component::RootDir => at.clear(),
            Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => drop(at.pop()),
            Component::Normal(name) => {
                let here: PathBuf = root.join(at.iter().collect::<PathBuf>()).join(name);
                match fs::read_link(&here) {
                    Ok(target) => {
                        links += 1;
                        if links > MAX_LINKS {
                            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many links"));
                        }
                        left.push(target);
                    }
                    Err(_) => at.push(name.to_owned()),
                }
            }
        }
    }
    Ok(root.join(at.iter().collect::<PathBuf>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_image_lead_nowhere_else() {
        let root = std::env::temp_dir().join(format!("agent-inside-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("a")).unwrap();
        symlink("/etc", root.join("a/absolute")).unwrap();
        symlink("../../../../etc", root.join("a/relative")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let at = |path: &str| inside(&root, path).map(|found| found.strip_prefix(&root).unwrap().to_owned());
        assert_eq!(at("/a/absolute/passwd").unwrap(), Path::new("etc/passwd"));
        assert_eq!(at("/a/relative/passwd").unwrap(), Path::new("etc/passwd"));
        assert_eq!(at("/../../x/./y/../z").unwrap(), Path::new("x/z"));
        assert_eq!(at("a/new/dir").unwrap(), Path::new("a/new/dir"));
        assert!(at("loop").is_err());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn links_in_a_volume_lead_into_no_other() {
        let dir = testkit::directory();
        dir.write("v1/sub/file", "1");
        dir.write("v2/secret", "2");
        std::os::unix::fs::symlink("../v2", dir.join("v1/link")).unwrap();
        for there in ["v1", "v1/sub", "v1/sub/file"] {
            assert!(in_volume(&dir, there).is_ok(), "{there}");
        }
        for not in ["v1/link", "v1/link/secret", "../x", "/v1", "v1/none"] {
            assert!(in_volume(&dir, not).is_err(), "{not}");
        }
    }

    #[test]
    fn options_are_flags_propagation_or_data() {
        let words = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let parsed = Options::parse(&words("rbind,rprivate,ro,nosuid,mode=755,size=65536k"));
        assert_eq!(parsed.flags, MountFlags::BIND | MountFlags::REC | MountFlags::RDONLY | MountFlags::NOSUID);
        assert_eq!(parsed.propagation, Some(MountPropagationFlags::PRIVATE | MountPropagationFlags::REC));
        assert_eq!(parsed.data, ["mode=755", "size=65536k"]);
    }
}
