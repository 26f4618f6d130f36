//! The pod's volumes, in memory or on the machine's own disk. The shim fills them over the link; containers mount them.
//!
//! A volume is a directory or a file below [`Volumes::dir`], by its name. Paths within a volume come from the shim, but
//! what lies there may be a container's: no link is followed on the way.

use crate::protocol::{MAX_TERMINATION_MESSAGE, Request, VolumeKind};
use rustix::fs::{Mode, OFlags, RawMode, ResolveFlags};
use rustix::mount::MountFlags;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown, fchown};
use std::path::{Component, Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("volume {0:?} does not exist")]
    Unknown(String),
    #[error("volume {0:?} already exists")]
    Exists(String),
    #[error("{0:?} is not a name in a volume")]
    Name(String),
    #[error("cannot write {0} in volume {1:?}")]
    Write(String, String, #[source] io::Error),
}

pub(crate) struct Volumes {
    dir: PathBuf,
    known: BTreeMap<String, VolumeKind>,
}

impl Volumes {
    pub(crate) fn new(dir: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        Ok(Self { dir, known: BTreeMap::new() })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Carries out a request for volumes.
    pub(crate) fn handle(&mut self, request: Request) -> Result<(), VolumeError> {
        match request {
            Request::Volume { name, kind, mode, uid, gid } => self.create(&name, kind, mode, uid, gid),
            Request::PutDirectory { volume, path, mode, uid, gid } => {
                let at = self.place(&volume, &path)?;
                at.directory(mode, uid, gid).map_err(|error| VolumeError::Write(path, volume, error))
            }
            Request::PutFile { volume, path, mode, uid, gid, append, bytes } => {
                let at = self.place(&volume, &path)?;
                let written = at.file(mode, uid, gid, append, &bytes);
                written.map_err(|error| VolumeError::Write(path, volume, error))
            }
            Request::PutLink { volume, path, target } => {
                let at = self.place(&volume, &path)?;
                at.link(&target).map_err(|error| VolumeError::Write(path, volume, error))
            }
            Request::Remove { volume, path } => {
                let at = self.place(&volume, &path)?;
                at.remove().map_err(|error| VolumeError::Write(path, volume, error))
            }
            _ => Ok(()),
        }
    }

    fn create(&mut self, name: &str, kind: VolumeKind, mode: u32, uid: u32, gid: u32) -> Result<(), VolumeError> {
        single(name)?;
        if self.known.contains_key(name) {
            return Err(VolumeError::Exists(name.to_owned()));
        }
        let place = self.dir.join(name);
        let make = || -> io::Result<()> {
            match kind {
                VolumeKind::Directory => fs::create_dir(&place)?,
                VolumeKind::Memory(bytes) => {
                    fs::create_dir(&place)?;
                    let size = if bytes == 0 { String::new() } else { format!("size={bytes}") };
                    let data = std::ffi::CString::new(size)?;
                    let flags = MountFlags::NOSUID | MountFlags::NODEV;
                    rustix::mount::mount("tmpfs", &place, "tmpfs", flags, data.as_c_str())?;
                }
                VolumeKind::TerminationMessage | VolumeKind::File => drop(File::create_new(&place)?),
            }
            fs::set_permissions(&place, fs::Permissions::from_mode(mode & 0o7777))?;
            chown(&place, Some(uid), Some(gid))
        };
        make().map_err(|error| VolumeError::Write(String::new(), name.to_owned(), error))?;
        self.known.insert(name.to_owned(), kind);
        Ok(())
    }

    fn place(&self, volume: &str, path: &str) -> Result<At, VolumeError> {
        let kind = self.known.get(volume).ok_or_else(|| VolumeError::Unknown(volume.to_owned()))?;
        let wrong = || VolumeError::Name(path.to_owned());
        if *kind == VolumeKind::File && path.is_empty() {
            return At::open(&self.dir, Path::new(volume)).map_err(|error| write_error(path, volume, error));
        }
        let path = Path::new(path);
        if path.as_os_str().is_empty() || !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(wrong());
        }
        At::open(&self.dir.join(volume), path)
            .map_err(|error| write_error(&path.display().to_string(), volume, error))
    }

    /// What a container has written into a file that it was given for that.
    pub(crate) fn termination_message(&self, name: &str) -> Option<Vec<u8>> {
        if self.known.get(name) != Some(&VolumeKind::TerminationMessage) {
            return None;
        }
        let mut file = File::open(self.dir.join(name)).ok()?;
        let length = file.metadata().ok()?.len();
        // The end says most.
        file.seek(SeekFrom::Start(length.saturating_sub(MAX_TERMINATION_MESSAGE as u64))).ok()?;
        let mut bytes = Vec::new();
        file.take(MAX_TERMINATION_MESSAGE as u64).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }
}

fn write_error(path: &str, volume: &str, error: io::Error) -> VolumeError {
    VolumeError::Write(path.to_owned(), volume.to_owned(), error)
}

fn single(name: &str) -> Result<(), VolumeError> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(_)), None) => Ok(()),
        _ => Err(VolumeError::Name(name.to_owned())),
    }
}

/// A name in a directory that is held open.
struct At {
    parent: OwnedFd,
    name: PathBuf,
}

impl At {
    fn open(dir: &Path, path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.into();
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let root = rustix::fs::open(dir, flags, Mode::empty())?;
        let parent = match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            None => root,
            Some(parent) => {
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
                rustix::fs::openat2(&root, parent, flags, Mode::empty(), resolve)?
            }
        };
        Ok(Self { parent, name })
    }

    fn directory(&self, mode: u32, uid: u32, gid: u32) -> io::Result<()> {
        match rustix::fs::mkdirat(&self.parent, &self.name, Mode::from_raw_mode(0o700)) {
            Err(rustix::io::Errno::EXIST) => {}
            other => other?,
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.parent, &self.name, flags, Mode::empty())?;
        fchown(&dir, Some(uid), Some(gid))?;
        Ok(rustix::fs::fchmod(&dir, bits(mode))?)
    }

    fn file(&self, mode: u32, uid: u32, gid: u32, append: bool, bytes: &[u8]) -> io::Result<()> {
        let how = if append { OFlags::APPEND } else { OFlags::CREATE | OFlags::TRUNC };
        let flags = how | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.parent, &self.name, flags, Mode::from_raw_mode(0o600))?;
        let mut file = File::from(file);
        file.write_all(bytes)?;
        fchown(&file, Some(uid), Some(gid))?;
        Ok(rustix::fs::fchmod(&file, bits(mode))?)
    }

    /// Under another name first: who looks sees the old one or the new one.
    fn link(&self, target: &str) -> io::Result<()> {
        let mut new = std::ffi::OsString::from("..new-");
        new.push(self.name.as_os_str());
        let _ = rustix::fs::unlinkat(&self.parent, &new, rustix::fs::AtFlags::empty());
        rustix::fs::symlinkat(target, &self.parent, &new)?;
        Ok(rustix::fs::renameat(&self.parent, &new, &self.parent, &self.name)?)
    }

    fn remove(&self) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        // std walks a tree without following links; the directory is named through its descriptor.
        let path = Path::new("/proc/self/fd").join(self.parent.as_raw_fd().to_string()).join(&self.name);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(&path),
            Ok(_) => fs::remove_file(&path),
        }
    }
}

fn bits(mode: u32) -> Mode {
    Mode::from_raw_mode((mode & 0o7777) as RawMode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volumes(name: &str) -> (Volumes, PathBuf) {
        let dir = std::env::temp_dir().join(format!("agent-volumes-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        (Volumes::new(dir.clone()).unwrap(), dir)
    }

    fn me() -> (u32, u32) {
        (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
    }

    fn make(volumes: &mut Volumes, name: &str, kind: VolumeKind) -> Result<(), VolumeError> {
        let (uid, gid) = me();
        volumes.handle(Request::Volume { name: name.into(), kind, mode: 0o755, uid, gid })
    }

    fn put(volumes: &mut Volumes, path: &str, bytes: &[u8], append: bool) -> Result<(), VolumeError> {
        let (uid, gid) = me();
        let (volume, path, bytes) = ("v".into(), path.into(), bytes.to_vec());
        volumes.handle(Request::PutFile { volume, path, mode: 0o640, uid, gid, append, bytes })
    }

    #[test]
    fn files_are_written_and_swapped_as_kubelet_does() {
        let (mut v, dir) = volumes("swap");
        make(&mut v, "v", VolumeKind::Directory).unwrap();
        let (uid, gid) = me();
        for (version, text) in [("..1", b"old"), ("..2", b"new")] {
            v.handle(Request::PutDirectory { volume: "v".into(), path: version.into(), mode: 0o755, uid, gid })
                .unwrap();
            put(&mut v, &format!("{version}/key"), &text[..1], false).unwrap();
            put(&mut v, &format!("{version}/key"), &text[1..], true).unwrap();
            v.handle(Request::PutLink { volume: "v".into(), path: "..data".into(), target: version.into() }).unwrap();
        }
        v.handle(Request::PutLink { volume: "v".into(), path: "key".into(), target: "..data/key".into() }).unwrap();
        v.handle(Request::Remove { volume: "v".into(), path: "..1".into() }).unwrap();
        assert_eq!(fs::read(dir.join("v/key")).unwrap(), b"new");
        assert_eq!(fs::metadata(dir.join("v/..2/key")).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(!dir.join("v/..1").exists());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn no_path_leads_out_of_a_volume() {
        let (mut v, dir) = volumes("out");
        make(&mut v, "v", VolumeKind::Directory).unwrap();
        std::os::unix::fs::symlink("/tmp", dir.join("v/out")).unwrap();
        for path in ["../x", "/etc/x", "a/../../x", "", "out/x"] {
            assert!(put(&mut v, path, b"", false).is_err(), "{path:?}");
        }
        // The link itself is not written through.
        assert!(put(&mut v, "out", b"", false).is_err());
        for name in ["..", "a/b", "", "/"] {
            assert!(matches!(make(&mut v, name, VolumeKind::Directory), Err(VolumeError::Name(_))), "{name:?}");
        }
        assert!(matches!(make(&mut v, "v", VolumeKind::Directory), Err(VolumeError::Exists(_))));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_termination_message_is_its_last_bytes() {
        let (mut v, dir) = volumes("message");
        make(&mut v, "m", VolumeKind::TerminationMessage).unwrap();
        fs::write(dir.join("m"), [vec![1; 100], vec![2; MAX_TERMINATION_MESSAGE]].concat()).unwrap();
        assert_eq!(v.termination_message("m").unwrap(), vec![2; MAX_TERMINATION_MESSAGE]);
        assert_eq!(v.termination_message("none"), None);
        fs::remove_dir_all(dir).unwrap();
    }
}
