//! The state directory, made ready by root for a broker that is not.
//!
//! | path | owner, group, mode | why |
//! |---|---|---|
//! | `.` | root, broker, 1771 | the broker makes sockets and a lock here, and cannot replace what is root's |
//! | `zones` | root, broker, 0750 | the spawner makes each zone's directory: container runtimes mount them, and nobody else enters |
//! | `users` | root, broker, 0711 | the same for local users, who may enter; the sockets themselves say who may connect |
//! | `jail` | root, root, 0700 | over it each worker mounts its root, while it is still root itself |
//! | `workers` | root, broker, 0750 | keeps local users from what is in it |
//! | `workers/rejoin` | root, broker, 0771 | bound into jails |
//! | `rejoin` | root, broker, 0771 | bound into the jails of the previous version's workers; only where it is already |
//! | `guests` | root, broker, 0770 | sockets for the Xen backend |
//! | `books` | broker, broker, 0700 | what the next broker must know |
//!
//! What a version before 0.2 left to root is handed over. A fallen broker may have put anything where it can: everything
//! is opened without following links, looked at, and changed by its descriptor.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid};

const ROOT: u32 = 0;
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Makes the directory and what is in it, for a broker that runs as this user.
pub(crate) fn prepare(path: &Path, broker: u32) -> io::Result<()> {
    if !path.is_dir() {
        DirBuilder::new().recursive(true).mode(0o711).create(path)?;
    }
    let path = path.canonicalize()?;
    if let Some(closed) = path.ancestors().skip(1).find(|above| !enters(above, broker)) {
        let (closed, reason) = (closed.display(), "the broker runs as another user than root");
        return Err(io::Error::other(format!(
            "user {broker} cannot enter {closed} ({reason}); use `chmod o+x {closed}`, or name another directory"
        )));
    }
    let state = rustix::fs::openat(CWD, &path, DIRECTORY, Mode::empty())?;
    let known = rustix::fs::fstat(&state)?;
    // Such as /tmp, which is not ours to take.
    if known.st_mode & 0o002 != 0 {
        return Err(io::Error::other("others can write to it; name a directory of its own"));
    }
    own(&state, ROOT, broker, 0o1771)?;
    directory(&state, "jail", ROOT, ROOT, 0o700)?;
    let workers = directory(&state, "workers", ROOT, broker, 0o750)?;
    directory(&workers, "rejoin", ROOT, broker, 0o771)?;
    if names(&state)?.iter().any(|name| name == "rejoin") {
        directory(&state, "rejoin", ROOT, broker, 0o771)?;
    }
    directory(&state, "guests", ROOT, broker, 0o770)?;
    // Only root makes anything in these two.
    for (place, mode, each) in [("zones", 0o750, 0o775), ("users", 0o711, 0o771)] {
        let place = directory(&state, place, ROOT, broker, mode)?;
        for name in names(&place)? {
            directory(&place, &name, ROOT, broker, each)?;
        }
    }
    let books = directory(&state, "books", broker, broker, 0o700)?;
    for name in names(&books)? {
        hand_over(&books, &name, broker)?;
    }
    // As root: the broker cannot ask at the socket of a predecessor that was root.
    control::state_dir::remove_strangers_lock(&path)?;
    for name in ["lock", "owner"] {
        hand_over(&state, name, broker)?;
    }
    Ok(())
}

/// Whether a user with a group of the same number can pass through a directory, as far as its mode tells.
fn enters(directory: &Path, user: u32) -> bool {
    let Ok(known) = rustix::fs::stat(directory) else { return true };
    // Who has set an access control list knows what he does.
    let listed = rustix::fs::getxattr(directory, "system.posix_acl_access", &mut [0; 0]).is_ok();
    let bit = match (known.st_uid == user, known.st_gid == user) {
        (true, _) => 0o100,
        (false, true) => 0o010,
        (false, false) => 0o001,
    };
    listed || known.st_mode & bit != 0
}

/// Makes a directory, or takes one that root or its owner-to-be has made.
fn directory(parent: &OwnedFd, name: &str, user: u32, group: u32, mode: u32) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let directory = rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())?;
    let known = rustix::fs::fstat(&directory)?.st_uid;
    if known != ROOT && known != user {
        return Err(io::Error::other(format!("{name} in it belongs to user {known}")));
    }
    own(&directory, user, group, mode)?;
    Ok(directory)
}

fn own(file: impl AsFd, user: u32, group: u32, mode: u32) -> io::Result<()> {
    let file = file.as_fd();
    rustix::fs::fchown(file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?)
}

/// Gives a file that root wrote to the broker; everything else is left alone.
fn hand_over(parent: &OwnedFd, name: &str, broker: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let known = rustix::fs::fstat(&file)?;
    let regular = FileType::from_raw_mode(known.st_mode) == FileType::RegularFile;
    if regular && known.st_uid == ROOT && known.st_nlink == 1 {
        let (user, group) = (Uid::from_raw(broker), Gid::from_raw(broker));
        rustix::fs::chownat(&file, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

fn names(directory: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    const BROKER: u32 = 0x3000_0401;

    fn look(path: &Path) -> (u32, u32, u32) {
        let known = std::fs::symlink_metadata(path).unwrap();
        (known.uid(), known.gid(), known.mode() & 0o7777)
    }

    #[test]
    fn what_an_earlier_version_left_is_handed_over() {
        if !testkit::is_root() {
            return;
        }
        let directory = testkit::directory();
        let state = directory.join("state");
        for name in ["zones/a", "books", "rejoin", "jail"] {
            std::fs::create_dir_all(state.join(name)).unwrap();
        }
        std::fs::set_permissions(state.join("zones"), std::fs::Permissions::from_mode(0o751)).unwrap();
        std::fs::write(state.join("books/zones.json"), "[]").unwrap();
        std::fs::write(state.join("lock"), "").unwrap();
        prepare(&state, BROKER).unwrap();
        prepare(&state, BROKER).unwrap();
        assert_eq!(look(&state), (0, BROKER, 0o1771));
        assert_eq!(look(&state.join("zones")), (0, BROKER, 0o750));
        assert_eq!(look(&state.join("zones/a")), (0, BROKER, 0o775));
        assert_eq!(look(&state.join("users")), (0, BROKER, 0o711));
        assert_eq!(look(&state.join("workers")), (0, BROKER, 0o750));
        assert_eq!(look(&state.join("workers/rejoin")), (0, BROKER, 0o771));
        assert_eq!(look(&state.join("rejoin")), (0, BROKER, 0o771), "workers of that version look there");
        assert_eq!(look(&state.join("jail")), (0, 0, 0o700));
        assert_eq!(look(&state.join("books")), (BROKER, BROKER, 0o700));
        assert_eq!(look(&state.join("books/zones.json")).0, BROKER);
        assert_eq!(look(&state.join("lock")).0, BROKER);
    }

    #[test]
    fn a_lock_that_a_stranger_holds_is_removed() {
        if !testkit::is_root() {
            return;
        }
        let directory = testkit::directory();
        let (state, lock) = (directory.join("state"), directory.join("state/lock"));
        std::fs::create_dir(&state).unwrap();
        std::fs::write(&lock, "").unwrap();
        std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o644)).unwrap();
        let stranger = std::fs::File::open(&lock).unwrap();
        assert!(control::lock::try_lock(&stranger).unwrap());
        // A predecessor that was root and lives.
        let earlier = control::packet::listen(&state.join("admin.sock"), 0o600, 1).unwrap();
        prepare(&state, BROKER).unwrap();
        assert!(lock.exists());
        drop(earlier);
        prepare(&state, BROKER).unwrap();
        assert!(!lock.exists());
    }

    #[test]
    fn nothing_is_given_away_through_links() {
        if !testkit::is_root() {
            return;
        }
        let directory = testkit::directory();
        let (state, victim) = (directory.join("state"), directory.join("victim"));
        std::fs::create_dir_all(victim.join("inside")).unwrap();
        std::fs::write(victim.join("secret"), "").unwrap();
        prepare(&state, BROKER).unwrap();
        symlink(victim.join("secret"), state.join("books/zones.json")).unwrap();
        std::fs::hard_link(victim.join("secret"), state.join("books/linked")).unwrap();
        prepare(&state, BROKER).unwrap();
        assert_eq!(look(&victim.join("secret")).0, 0);
        for name in ["books", "jail", "workers", "guests", "zones", "users"] {
            std::fs::rename(state.join(name), state.join("aside")).unwrap();
            symlink(&victim, state.join(name)).unwrap();
            assert!(prepare(&state, BROKER).is_err(), "{name}");
            std::fs::remove_file(state.join(name)).unwrap();
            std::fs::rename(state.join("aside"), state.join(name)).unwrap();
        }
        assert_eq!((look(&victim).0, look(&victim.join("inside")).0), (0, 0));
        prepare(&state, BROKER).unwrap();
    }

    #[test]
    fn a_place_that_the_broker_cannot_reach_is_named() {
        if !testkit::is_root() {
            return;
        }
        let directory = testkit::directory();
        let home = directory.join("home");
        std::fs::create_dir(&home).unwrap();
        std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o700)).unwrap();
        let error = prepare(&home.join("state"), BROKER).unwrap_err().to_string();
        assert!(error.contains(&format!("cannot enter {}", home.display())) && error.contains("chmod"), "{error}");
        std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o711)).unwrap();
        prepare(&home.join("state"), BROKER).unwrap();
    }

    #[test]
    fn a_directory_that_others_write_to_is_not_taken() {
        if testkit::is_root() {
            assert!(prepare(&std::env::temp_dir(), BROKER).is_err());
        }
    }
}
