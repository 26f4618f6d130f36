//! The state directory of a broker, and who may see which part of it.
//!
//! | path | who | what |
//! |---|---|---|
//! | `lock` | broker | held while a broker lives: there is one for each directory |
//! | `admin.sock` | operator | JSON requests |
//! | `status.sock` | exporter | requests that change nothing |
//! | `zones/<name>/sock` | containers | all that one sees is the directory `<name>`: local users cannot enter `zones` |
//! | `zones/<name>/driver-version` | containers | the CUDA version of the node, for clients that have not connected yet |
//! | `users/<name>/` | local users | the same, of a zone that has a user or group: its socket is for those alone |
//! | `guests/<name>` | Xen backend | the zone's clients that are in guests |
//! | `workers/rejoin/sock` | workers | where they find a new broker; `rejoin` is bound into jails, and nobody else can enter `workers` |
//! | `rejoin/workers.sock` | workers | the same for workers of the previous version, while one of them is missing |
//! | `books/` | broker | what a successor must know; named so since the first version, which a newer one takes over from |
//! | `jail/` | – | an empty directory over which each worker mounts its own root |

use control::lock::try_lock;
use control::state_dir::{remove, remove_files, remove_strangers_lock};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use control::ZoneName;
use control::packet;

const DRIVER_VERSION: &str = "driver-version";
const NEW_DRIVER_VERSION: &str = "driver-version.new";

pub struct StateDir {
    path: PathBuf,
    _lock: File,
}

#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    #[error("another proxy is running in {}", .0.display())]
    Taken(PathBuf),
    #[error("cannot use {} as state directory: {source}", path.display())]
    Unusable { path: PathBuf, source: io::Error },
}

impl StateDir {
    /// Creates or takes over the directory, and holds it until dropped. A `private` one is for its owner alone.
    pub fn open(path: &Path, private: bool) -> Result<Self, StateDirError> {
        let unusable = |source| StateDirError::Unusable { path: path.to_owned(), source };
        let prepare = || -> io::Result<PathBuf> {
            // A directory that exists already keeps its mode: it may be one that others use, too.
            if !path.is_dir() {
                make(path, if private { 0o700 } else { 0o711 })?;
            }
            path.canonicalize()
        };
        let path = prepare().map_err(unusable)?;
        // A broker that was killed while it started a worker holds the lock until that worker's exec: a moment.
        let mut lock = try_take(&path.join("lock")).map_err(unusable)?;
        for _ in 0..20 {
            if lock.is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
            lock = try_take(&path.join("lock")).map_err(unusable)?;
        }
        if lock.is_none() && remove_strangers_lock(&path).map_err(unusable)? {
            lock = try_take(&path.join("lock")).map_err(unusable)?;
        }
        let Some(lock) = lock else { return Err(StateDirError::Taken(path)) };
        let subdirectories = || -> io::Result<()> {
            make(&path.join("zones"), 0o700)?;
            make(&path.join("users"), 0o711)?;
            make(&path.join("workers"), 0o700)?;
            make(&path.join("workers/rejoin"), 0o711)?;
            make(&path.join("guests"), 0o700)?;
            make(&path.join("books"), 0o700)?;
            make(&path.join("jail"), 0o700)
        };
        subdirectories().map_err(unusable)?;
        Ok(Self { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn admin_socket(&self) -> PathBuf {
        self.path.join("admin.sock")
    }

    pub fn status_socket(&self) -> PathBuf {
        self.path.join("status.sock")
    }

    pub fn workers_socket(&self) -> PathBuf {
        self.path.join("workers/rejoin/sock")
    }

    /// Where workers of the previous version look for a new broker.
    pub fn previous_workers_socket(&self) -> PathBuf {
        self.path.join("rejoin/workers.sock")
    }

    pub fn jail_root(&self) -> PathBuf {
        self.path.join("jail")
    }

    pub fn workers(&self) -> PathBuf {
        self.path.join("books/workers")
    }

    pub fn zones(&self) -> PathBuf {
        self.path.join("books/zones.json")
    }

    pub fn grants(&self) -> PathBuf {
        self.path.join("books/grants.json")
    }

    pub fn budgets(&self) -> PathBuf {
        self.path.join("books/budgets.json")
    }

    pub fn totals(&self) -> PathBuf {
        self.path.join("books/figures.json")
    }

    pub fn zone(&self, name: &ZoneName) -> PathBuf {
        self.path.join("zones").join(name.as_str())
    }

    pub fn zone_socket(&self, name: &ZoneName) -> PathBuf {
        self.zone(name).join("sock")
    }

    fn user_directory(&self, name: &ZoneName) -> PathBuf {
        self.path.join("users").join(name.as_str())
    }

    /// Where clients of a zone come from that are in no container.
    pub fn user_socket(&self, name: &ZoneName) -> PathBuf {
        self.user_directory(name).join("sock")
    }

    /// Where clients of a zone come from that are in guests.
    pub fn guest_socket(&self, name: &ZoneName) -> PathBuf {
        self.path.join("guests").join(name.as_str())
    }

    /// Leaves the driver's version beside the zone's sockets: clients ask for it before they connect.
    pub fn write_driver_version(&self, name: &ZoneName, version: u32) -> io::Result<()> {
        write_driver_version(&self.zone(name), version)?;
        let users = self.user_directory(name);
        if users.is_dir() { write_driver_version(&users, version) } else { Ok(()) }
    }

    /// The zones that have a directory here.
    pub fn zone_names(&self) -> Vec<ZoneName> {
        let entries = fs::read_dir(self.path.join("zones")).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Removes the sockets, which nobody answers any more.
    pub fn retire(&self) {
        let _ = fs::remove_file(self.admin_socket());
        let _ = fs::remove_file(self.status_socket());
        let _ = fs::remove_file(self.workers_socket());
        let _ = fs::remove_file(self.previous_workers_socket());
    }

    /// Removes everything.
    pub fn remove(&self) {
        remove(&self.path);
    }

    /// Removes everything that is in here, but for the directories of zones that come again: containers that have one
    /// mounted would not see another one of the same name.
    pub fn clear(&self) {
        for zone in fs::read_dir(self.path.join("zones")).into_iter().flatten().flatten() {
            for directory in [zone.path(), self.path.join("users").join(zone.file_name())] {
                for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                    let _ = packet::clear(&entry.path());
                }
            }
        }
        remove_files(&self.path);
    }
}

fn write_driver_version(path: &Path, version: u32) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags};
    // A tenant may be able to write here: nothing that lies here is followed, or written to.
    let (file, new) = (path.join(DRIVER_VERSION), path.join(NEW_DRIVER_VERSION));
    packet::clear(&new)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    let written = rustix::fs::openat(&directory, NEW_DRIVER_VERSION, flags, mode)?;
    rustix::fs::fchmod(&written, mode)?;
    File::from(written).write_all(format!("{version}\n").as_bytes())?;
    if fs::symlink_metadata(&file).is_ok_and(|known| known.is_dir()) {
        packet::clear(&file)?;
    }
    Ok(rustix::fs::renameat(&directory, NEW_DRIVER_VERSION, &directory, DRIVER_VERSION)?)
}

/// The lock of a directory, if nobody has it.
fn try_take(path: &Path) -> io::Result<Option<File>> {
    let lock = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    // A broker that ends removes the file, and what was opened before that locks nothing any more.
    let is_there = || {
        let place = |known: fs::Metadata| (known.dev(), known.ino());
        Ok::<_, io::Error>(fs::symlink_metadata(path).map(place).ok() == Some(place(lock.metadata()?)))
    };
    if !try_lock(&lock)? || !is_there()? {
        return Ok(None);
    }
    if lock.metadata()?.mode() & 0o077 == 0 {
        return Ok(Some(lock));
    }
    // The first versions let everybody read it, so anybody may have it open, and could lock it before our successor does.
    // Who waits for the old file finds another one in its place.
    let new = path.with_extension("new");
    packet::clear(&new)?;
    let private = File::options().read(true).write(true).create_new(true).mode(0o600).open(&new)?;
    let taken = try_lock(&private)?;
    fs::rename(&new, path)?;
    Ok(taken.then_some(private))
}

fn make(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Links are refused: what we write as root must stay where it was meant to be.
            if !fs::symlink_metadata(path)?.is_dir() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
        }
        Err(error) => return Err(error),
    }
    // The mode must not depend on the umask, nor on who made the directory. One we do not own stays as it is.
    match fs::set_permissions(path, fs::Permissions::from_mode(mode)) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_broker_and_can_be_taken_over() {
        let directory = testkit::directory();
        let path = directory.join("s");
        let first = StateDir::open(&path, true).unwrap();
        assert!(matches!(StateDir::open(&path, true), Err(StateDirError::Taken(_))));
        drop(first);
        let second = StateDir::open(&path, true).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        second.remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_lock_whose_file_is_gone_is_none() {
        let directory = testkit::directory();
        let path = directory.join("s");
        let first = StateDir::open(&path, true).unwrap();
        // Opened while the first one was there; when that goes, it takes the file along.
        let early = File::open(path.join("lock")).unwrap();
        first.clear();
        drop(first);
        assert!(try_lock(&early).unwrap());
        let second = StateDir::open(&path, true).unwrap();
        assert!(matches!(StateDir::open(&path, true), Err(StateDirError::Taken(_))));
        second.remove();
    }

    #[test]
    fn a_lock_that_others_could_open_is_replaced() {
        let directory = testkit::directory();
        let path = directory.join("s");
        StateDir::open(&path, true).unwrap().retire();
        let lock = path.join("lock");
        fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).unwrap();
        // By another user, before the upgrade.
        let early = File::open(&lock).unwrap();
        let first = StateDir::open(&path, true).unwrap();
        assert_eq!(fs::metadata(&lock).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(StateDir::open(&path, true), Err(StateDirError::Taken(_))));
        drop(first);
        assert!(try_lock(&early).unwrap());
        let second = StateDir::open(&path, true).unwrap();
        second.remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_stranger_who_holds_the_old_lock_keeps_no_broker_out() {
        let directory = testkit::directory();
        let path = directory.join("s");
        StateDir::open(&path, true).unwrap().retire();
        let lock = path.join("lock");
        fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).unwrap();
        let holder = File::open(&lock).unwrap();
        assert!(try_lock(&holder).unwrap());
        // A broker of that version, which lives.
        let earlier = packet::listen(&path.join("admin.sock"), 0o600, 1).unwrap();
        assert!(matches!(StateDir::open(&path, true), Err(StateDirError::Taken(_))), "its broker is there");
        // It was killed, and a stranger has the lock.
        drop(earlier);
        let state = StateDir::open(&path, true).unwrap();
        assert_eq!(fs::metadata(&lock).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(StateDir::open(&path, true), Err(StateDirError::Taken(_))), "a private lock is a broker's");
        state.remove();
    }

    #[test]
    fn nobody_else_can_enter_zones_and_workers() {
        let directory = testkit::directory();
        let path = directory.join("s");
        fs::create_dir_all(path.join("zones")).unwrap();
        // As an earlier version left it.
        fs::set_permissions(path.join("zones"), fs::Permissions::from_mode(0o711)).unwrap();
        let _state = StateDir::open(&path, false).unwrap();
        let mode = |name: &str| fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(["zones", "workers", "workers/rejoin", "users"].map(mode), [0o700, 0o700, 0o711, 0o711]);
    }

    #[test]
    fn directories_of_zones_stay_and_are_empty() {
        let directory = testkit::directory();
        let path = directory.join("s");
        let state = StateDir::open(&path, true).unwrap();
        let zones: [ZoneName; 2] = ["stays", "goes"].map(|name| name.parse().unwrap());
        zones.iter().for_each(|zone| fs::create_dir(state.zone(zone)).unwrap());
        let mut names = state.zone_names();
        names.sort();
        assert_eq!(names, [zones[1].clone(), zones[0].clone()]);
        let victim = directory.join("victim");
        fs::create_dir_all(victim.join("inside")).unwrap();
        for name in ["link", "zones/stays/link"] {
            std::os::unix::fs::symlink(&victim, path.join(name)).unwrap();
        }
        fs::write(state.zone_socket(&zones[0]), "").unwrap();
        state.clear();
        assert_eq!(fs::read_dir(state.zone(&zones[0])).unwrap().count(), 0);
        assert!(state.zone(&zones[1]).exists() && !path.join("books").exists() && !path.join("lock").exists());
        assert!(path.join("link").exists() && victim.join("inside").exists());
    }

    #[test]
    fn what_a_tenant_leaves_in_its_directory_is_not_followed() {
        let directory = testkit::directory();
        let path = directory.join("s");
        let state = StateDir::open(&path, true).unwrap();
        let zone: ZoneName = "a".parse().unwrap();
        fs::create_dir(state.zone(&zone)).unwrap();
        let victim = path.join("victim");
        fs::write(&victim, "as it was").unwrap();
        let file = state.zone(&zone).join(DRIVER_VERSION);
        for name in [DRIVER_VERSION, NEW_DRIVER_VERSION] {
            let link = state.zone(&zone).join(name);
            packet::clear(&link).unwrap();
            std::os::unix::fs::symlink(&victim, &link).unwrap();
            state.write_driver_version(&zone, 13_000).unwrap();
            packet::clear(&link).unwrap();
            fs::create_dir_all(link.join("inside")).unwrap();
            state.write_driver_version(&zone, 13_000).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), "13000\n");
            assert!(fs::symlink_metadata(&file).unwrap().is_file());
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "as it was");
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let directory = testkit::directory();
        let path = directory.join("s");
        fs::write(&path, "").unwrap();
        assert!(matches!(StateDir::open(&path, true), Err(StateDirError::Unusable { .. })));
    }
}
