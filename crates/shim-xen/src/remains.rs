//! What a pod leaves on the host, and how it goes: with the shim, with containerd's `delete`, or with the watchdog.
//!
//! All three do the same and may do it at the same time: each step is one that may have been done.

use crate::config::Config;
use crate::identity::Identity;
use guest::domain::{self, DomainError};
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use xen::admission::{self, DOMAINS};
use xen::store::{Store, StoreError};

/// The first argument of the watchdog.
pub(crate) const WATCHDOG: &str = "watchdog";
/// What is known of the pods that run.
const STATE: &str = "/run/bulkhead/pods";
/// How often the watchdog tries, and how long it waits in between.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub(crate) enum RemainsError {
    #[error(transparent)]
    Domain(#[from] DomainError),
    #[error("cannot take the domain's admission back")]
    Store(#[from] StoreError),
    #[error("cannot remove {0}")]
    Remove(PathBuf, #[source] io::Error),
}

/// The directories of a pod.
pub(crate) struct Places {
    /// What is gone after a boot.
    pub state: PathBuf,
    /// Its disk.
    pub disks: PathBuf,
}

impl Places {
    pub(crate) fn of(identity: &Identity, config: &Config) -> Self {
        Self {
            state: Path::new(STATE).join(&identity.name),
            disks: config.directory.join("pods").join(&identity.name),
        }
    }

    /// Makes both, for root alone.
    pub(crate) fn create(&self) -> io::Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        for dir in [&self.state, &self.disks] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        Ok(())
    }

    fn remove(&self) -> Result<(), RemainsError> {
        for dir in [&self.disks, &self.state] {
            match fs::remove_dir_all(dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(RemainsError::Remove(dir.clone(), error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn exist(&self) -> bool {
        self.state.exists() || self.disks.exists()
    }

    /// Says that there may be a domain from now on. Beside the disk: what is below `/run` others may remove.
    pub(crate) fn expect_domain(&self) -> io::Result<()> {
        fs::write(self.marker(), "")
    }

    fn marker(&self) -> PathBuf {
        self.disks.join("domain")
    }
}

/// Ends the pod's domain and removes what belongs to it; what is not there is fine. The domain goes first: what it uses
/// is not pulled away from under it.
pub(crate) fn remove(identity: &Identity, config: &Config) -> Result<(), RemainsError> {
    let places = Places::of(identity, config);
    // A container that is no sandbox never had any, and costs no question to the toolstack.
    if !places.exist() {
        return Ok(());
    }
    // Where none was made, nobody is asked: there may be no Xen at all.
    if places.marker().exists() {
        end_domain(identity)?;
    }
    places.remove()
}

fn end_domain(identity: &Identity) -> Result<(), RemainsError> {
    domain::destroy(&identity.name, &identity.uuid)?;
    let mut store = Store::open()?;
    let vm = format!("/vm/{}", identity.uuid);
    for id in admission::admitted(&mut store)? {
        if store.read_text(&format!("{DOMAINS}/{id}/vm"))?.is_some_and(|found| found.eq_ignore_ascii_case(&vm)) {
            admission::dismiss(&mut store, id)?;
        }
    }
    Ok(())
}

/// A process that removes everything once this one has ended, however that came about: it waits for the end of a pipe
/// that nobody else holds.
pub(crate) fn start_watchdog(namespace: &str, id: &str) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    // A group of its own: what is sent to the shim's is not meant for it.
    command.args([WATCHDOG, namespace, id]).current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// Is that process.
pub(crate) fn watch(namespace: &str, id: &str) -> ExitCode {
    let _ = io::stdin().read_to_end(&mut Vec::new());
    let identity = Identity::of(namespace, id);
    for _ in 0..TRIES {
        let config = Config::load().unwrap_or_default();
        if remove(&identity, &config).is_ok() {
            return ExitCode::SUCCESS;
        }
        std::thread::sleep(PAUSE);
    }
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> Config {
        Config { directory: dir.to_owned(), ..Config::default() }
    }

    #[test]
    fn a_container_that_is_no_sandbox_has_nothing_to_remove() {
        // No Xen here: it would fail, were anybody asked.
        let dir = testkit::directory();
        remove(&Identity::of("k8s.io", "no-such-sandbox"), &config(&dir)).unwrap();
    }

    #[test]
    fn a_boot_that_came_to_no_domain_is_removed_without_xen() {
        let dir = testkit::directory();
        let (identity, config) = (Identity::of("test", &dir.display().to_string()), config(&dir));
        let places = Places { state: dir.join("run"), ..Places::of(&identity, &config) };
        places.create().unwrap();
        fs::write(places.disks.join("scratch.ext4"), "x").unwrap();
        remove(&identity, &config).unwrap();
        assert!(!places.disks.exists());
        if Path::new("/proc/xen/capabilities").exists() {
            return;
        }
        // With a domain, its end comes first; here there is nobody to ask, so everything stays for the next try.
        places.create().unwrap();
        places.expect_domain().unwrap();
        assert!(remove(&identity, &config).is_err());
        assert!(places.disks.exists());
    }

    #[test]
    fn directories_go_and_may_be_gone() {
        let dir = testkit::directory();
        let places = Places { state: dir.join("run/a"), disks: dir.join("pods/a") };
        places.create().unwrap();
        fs::write(places.disks.join("scratch.ext4"), "x").unwrap();
        assert!(places.exist());
        places.remove().unwrap();
        assert!(!places.exist());
        places.remove().unwrap();
    }

    #[test]
    fn each_pod_has_its_own_directories() {
        let config = config(Path::new("/srv"));
        let (one, other) = (Identity::of("n", "a"), Identity::of("n", "b"));
        assert_ne!(Places::of(&one, &config).disks, Places::of(&other, &config).disks);
        assert!(Places::of(&one, &config).disks.starts_with("/srv/pods/"));
    }
}
