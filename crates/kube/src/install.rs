//! Installs Bulkhead on a host without a package, from a container of the DaemonSet, and removes it again.
//!
//! ```text
//! /opt/bulkhead/<version>/bin/bulkhead
//! /opt/bulkhead/<version>/lib/bulkhead/libcuda.so.1, libnvidia-ml.so.1, nvidia-smi
//! /opt/bulkhead/current                     -> <version>
//! /etc/bulkhead/bulkhead.toml               if one is given
//! /etc/systemd/system/bulkhead.service  (and -broker, -exporter)
//! ```
//!
//! Files are replaced by renaming: processes that run or have mounted the old ones keep them. Installing is idempotent, so a
//! restarted pod of the DaemonSet restarts nothing.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The services, in the order in which they are started.
const UNITS: [(&str, &str); 3] = [
    ("bulkhead.service", include_str!("../../../packaging/bulkhead.service")),
    ("bulkhead-broker.service", include_str!("../../../packaging/bulkhead-broker.service")),
    ("bulkhead-exporter.service", include_str!("../../../packaging/bulkhead-exporter.service")),
];
const UNIT_DIR: &str = "etc/systemd/system";
const WANTS_DIR: &str = "etc/systemd/system/multi-user.target.wants";
/// The programs of those, beside the libraries.
const DAEMONS: [&str; 3] = ["bulkhead-spawner", "bulkhead-broker", "bulkhead-exporter"];
const CONFIG_PATH: &str = "etc/bulkhead/bulkhead.toml";
const HOME: &str = "opt/bulkhead";
/// Units of a package; a host that has one needs no installation.
const PACKAGED: [&str; 2] = ["lib/systemd/system/bulkhead.service", "usr/lib/systemd/system/bulkhead.service"];

#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("cannot use {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot change to the host's root: {0}")]
    Root(io::Error),
    #[error("systemctl {what}: {why}")]
    Service { what: String, why: String },
}

/// What to install.
#[derive(Debug, Clone)]
pub struct Parts {
    pub program: PathBuf,
    pub libraries: PathBuf,
    pub config: Option<PathBuf>,
    pub version: String,
}

/// What has changed, and so what the service needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// The host has a package, and nothing was touched.
    pub packaged: bool,
    pub programs: bool,
    pub unit: bool,
    pub config: bool,
}

pub fn is_packaged(root: &Path) -> bool {
    PACKAGED.iter().any(|path| root.join(path).exists())
}

/// Installs everything.
pub fn place(root: &Path, parts: &Parts) -> Result<Changes, InstallError> {
    if is_packaged(root) {
        return Ok(Changes { packaged: true, ..Changes::default() });
    }
    let home = root.join(HOME).join(&parts.version);
    let (bin, lib) = (home.join("bin"), home.join("lib/bulkhead"));
    for dir in [&bin, &lib] {
        at(dir, std::fs::create_dir_all(dir))?;
    }
    let mut changes = Changes::default();
    changes.programs |= put(&parts.program, &bin.join("bulkhead"), 0o755)?;
    for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        changes.programs |= put(&parts.libraries.join(library), &lib.join(library), 0o644)?;
    }
    for program in DAEMONS.iter().chain(&["nvidia-smi"]) {
        changes.programs |= put(&parts.libraries.join(program), &lib.join(program), 0o755)?;
    }
    changes.programs |= point(&root.join(HOME).join("current"), Path::new(&parts.version))?;
    if let Some(config) = &parts.config {
        let path = root.join(CONFIG_PATH);
        at(&path, path.parent().map_or(Ok(()), std::fs::create_dir_all))?;
        changes.config |= put(config, &path, 0o644)?;
    }
    let (units, wants) = (root.join(UNIT_DIR), root.join(WANTS_DIR));
    at(&wants, std::fs::create_dir_all(&wants))?;
    for (name, unit) in UNITS {
        let unit = unit.replace("/usr/lib/bulkhead/", &format!("/{HOME}/current/lib/bulkhead/"));
        changes.unit |= write(&units.join(name), unit.as_bytes(), 0o644)?;
        changes.unit |= point(&wants.join(name), &Path::new("..").join(name))?;
    }
    forget_others(&root.join(HOME), &parts.version)?;
    Ok(changes)
}

/// Directories of the host that the commands for kubelet write to.
#[derive(Debug, Clone)]
pub struct Traces {
    pub kubelet: PathBuf,
    pub checkpoints: PathBuf,
    pub cdi: PathBuf,
}

/// Whether the DRA driver of this host answers. It has a DaemonSet of its own, which ends when it likes, and would write files
/// after they were removed.
pub fn driver_answers(root: &Path, traces: &Traces) -> bool {
    let registry = below(root, &traces.kubelet).join("plugins_registry");
    std::os::unix::net::UnixStream::connect(registry.join(crate::dra::registry_socket())).is_ok()
}

/// Removes everything that [`place`] and the commands for kubelet have created, but not a package's files.
pub fn clear(root: &Path, traces: &Traces) -> Result<(), InstallError> {
    if !is_packaged(root) {
        let units = UNITS.iter().flat_map(|(name, _)| [UNIT_DIR, WANTS_DIR].map(|place| root.join(place).join(name)));
        for path in units.chain([root.join(CONFIG_PATH)]) {
            at(&path, control::atomic_file::remove(&path))?;
        }
        remove_dir(&root.join(HOME))?;
        // Only if it is empty.
        let _ = std::fs::remove_dir(root.join("etc/bulkhead"));
        // Sockets and state; the directory of a proxy that still runs is left alone.
        control::state_dir::remove(&root.join("run/bulkhead"));
    }
    remove_dir(&below(root, &traces.checkpoints))?;
    let kubelet = below(root, &traces.kubelet);
    remove_dir(&kubelet.join("plugins").join(crate::dra::DRIVER))?;
    // Sockets of a plugin or a driver that was killed.
    remove_begun_with(&kubelet.join("device-plugins"), crate::device_plugin::SOCKETS)?;
    remove_begun_with(&kubelet.join("plugins_registry"), crate::dra::DRIVER)?;
    // `/var/run` is a link to `/run`, which leads elsewhere as long as the root is not the host's.
    for dir in [Path::new("/run/cdi"), &traces.cdi] {
        let dir = below(root, dir);
        remove_begun_with(&dir, &format!("{}-{}-", crate::cdi::VENDOR, crate::cdi::CLASS))?;
        let _ = std::fs::remove_dir(dir);
    }
    Ok(())
}

/// A path of the host, below its root.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn remove_dir(path: &Path) -> Result<(), InstallError> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => at(path, Err(error)),
        _ => Ok(()),
    }
}

/// Removes the files in a directory whose names have this prefix.
fn remove_begun_with(dir: &Path, begin: &str) -> Result<(), InstallError> {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(begin) {
            at(&entry.path(), control::atomic_file::remove(&entry.path()))?;
        }
    }
    Ok(())
}

/// Runs the host's systemctl. Changes this process's root permanently.
pub struct Systemd {
    present: bool,
}

impl Systemd {
    pub fn enter(root: &Path) -> Result<Self, InstallError> {
        let present = root.join("run/systemd/system").exists();
        if present && root != Path::new("/") {
            rustix::process::chroot(root).map_err(|error| InstallError::Root(error.into()))?;
            std::env::set_current_dir("/").map_err(InstallError::Root)?;
        }
        Ok(Self { present })
    }

    pub fn is_there(&self) -> bool {
        self.present
    }

    pub fn ask(&self, arguments: &[&str]) -> Result<(), InstallError> {
        let failed = |why: String| InstallError::Service { what: arguments.join(" "), why };
        let mut command = Command::new("systemctl");
        // Otherwise it detects the chroot and does nothing.
        command.args(arguments).env("SYSTEMD_IGNORE_CHROOT", "1");
        let output = command.output().map_err(|error| failed(error.to_string()))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    }

    /// Restarts the service for a new program or unit, which ends no client, and reloads it for a new configuration.
    pub fn apply(&self, changes: Changes) -> Result<(), InstallError> {
        if changes.unit {
            self.ask(&["daemon-reload"])?;
        }
        if changes.programs || changes.unit {
            self.ask(&["restart", "bulkhead.service", "bulkhead-broker.service", "bulkhead-exporter.service"])
        } else if changes.config {
            self.ask(&["reload-or-restart", "bulkhead.service"])?;
            self.ask(&["restart", "bulkhead-exporter.service"])
        } else {
            self.ask(&["start", "bulkhead.service", "bulkhead-broker.service", "bulkhead-exporter.service"])
        }
    }
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, InstallError> {
    result.map_err(|source| InstallError::File { path: path.to_owned(), source })
}

/// Copies a file; false if it already has this content.
fn put(from: &Path, to: &Path, mode: u32) -> Result<bool, InstallError> {
    let bytes = at(from, std::fs::read(from))?;
    write(to, &bytes, mode)
}

fn write(to: &Path, bytes: &[u8], mode: u32) -> Result<bool, InstallError> {
    if std::fs::read(to).is_ok_and(|there| there == bytes) {
        return Ok(false);
    }
    at(to, control::atomic_file::write_with_mode(to, bytes, mode))?;
    Ok(true)
}

/// Sets a symbolic link; false if it already points there.
fn point(link: &Path, to: &Path) -> Result<bool, InstallError> {
    if std::fs::read_link(link).is_ok_and(|there| there == to) {
        return Ok(false);
    }
    let new = link.with_extension("new");
    at(&new, control::atomic_file::remove(&new))?;
    at(&new, symlink(to, &new))?;
    at(link, std::fs::rename(&new, link))?;
    Ok(true)
}

/// Removes other versions: processes that still run them have them open.
fn forget_others(home: &Path, version: &str) -> Result<(), InstallError> {
    for entry in at(home, std::fs::read_dir(home))?.flatten() {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_dir && entry.file_name() != version {
            at(&entry.path(), std::fs::remove_dir_all(entry.path()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    struct Host(testkit::Directory);

    impl Host {
        fn new() -> Self {
            let path = testkit::directory();
            for dir in ["image", "host"] {
                fs::create_dir_all(path.join(dir)).unwrap();
            }
            for file in ["bulkhead", "libcuda.so.1", "libnvidia-ml.so.1", "nvidia-smi"].iter().chain(&DAEMONS) {
                fs::write(path.join("image").join(file), file).unwrap();
            }
            fs::write(path.join("image/b.toml"), "[proxy]\n").unwrap();
            Self(path)
        }

        fn root(&self) -> PathBuf {
            self.0.join("host")
        }

        fn parts(&self, version: &str) -> Parts {
            let image = self.0.join("image");
            Parts {
                program: image.join("bulkhead"),
                libraries: image.clone(),
                config: Some(image.join("b.toml")),
                version: version.into(),
            }
        }
    }

    fn traces() -> Traces {
        Traces {
            kubelet: "/var/lib/kubelet".into(),
            checkpoints: "/var/lib/bulkhead".into(),
            cdi: "/var/run/cdi".into(),
        }
    }

    fn files(root: &Path) -> usize {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        entries.map(|entry| if entry.file_type().unwrap().is_dir() { files(&entry.path()) } else { 1 }).sum()
    }

    #[test]
    fn what_is_installed_twice_changes_nothing() {
        let host = Host::new();
        let all = Changes { packaged: false, programs: true, unit: true, config: true };
        assert_eq!(place(&host.root(), &host.parts("1")).unwrap(), all);
        assert_eq!(place(&host.root(), &host.parts("1")).unwrap(), Changes::default());
        let program = host.root().join("opt/bulkhead/current/bin/bulkhead");
        assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o755);
        for ((name, _), daemon) in UNITS.iter().zip(DAEMONS) {
            let unit = fs::read_to_string(host.root().join(UNIT_DIR).join(name)).unwrap();
            assert!(unit.contains(&format!("ExecStart=/opt/bulkhead/current/lib/bulkhead/{daemon} ")), "{unit}");
            assert!(!unit.contains("/usr/lib/bulkhead"));
        }
    }

    #[test]
    fn an_upgrade_leaves_old_files_to_those_who_have_them_open() {
        let host = Host::new();
        place(&host.root(), &host.parts("1")).unwrap();
        let old = fs::File::open(host.root().join("opt/bulkhead/current/lib/bulkhead/libcuda.so.1")).unwrap();
        fs::write(host.0.join("image/libcuda.so.1"), "new").unwrap();
        let changes = place(&host.root(), &host.parts("2")).unwrap();
        assert_eq!(changes, Changes { programs: true, ..Changes::default() });
        assert!(!host.root().join("opt/bulkhead/1").exists());
        let new = fs::read_to_string(host.root().join("opt/bulkhead/current/lib/bulkhead/libcuda.so.1")).unwrap();
        let before = io::read_to_string(old).unwrap();
        assert_eq!((new.as_str(), before.as_str()), ("new", "libcuda.so.1"));
    }

    #[test]
    fn removing_leaves_nothing_but_what_is_others() {
        let host = Host::new();
        let root = host.root();
        place(&root, &host.parts("1")).unwrap();
        fs::create_dir_all(root.join("var/lib/bulkhead/dra")).unwrap();
        fs::create_dir_all(root.join("run/cdi")).unwrap();
        fs::write(root.join("run/cdi/bulkhead.dev-zone-a.json"), "{}").unwrap();
        fs::write(root.join("run/cdi/nvidia.yaml"), "").unwrap();
        for dir in ["device-plugins", "plugins_registry", "plugins/gpu.bulkhead.dev", "plugins/gpu.nvidia.com"] {
            fs::create_dir_all(root.join("var/lib/kubelet").join(dir)).unwrap();
        }
        for file in [
            "device-plugins/bulkhead-a.sock",
            "device-plugins/nvidia.sock",
            "plugins_registry/gpu.bulkhead.dev@reg.sock",
        ] {
            fs::write(root.join("var/lib/kubelet").join(file), "").unwrap();
        }
        clear(&root, &traces()).unwrap();
        assert_eq!(files(&root), 2, "NVIDIA's files stay");
        assert!(!root.join("var/lib/bulkhead").exists());
        assert!(!root.join("var/lib/kubelet/plugins/gpu.bulkhead.dev").exists());
        assert!(root.join("var/lib/kubelet/plugins/gpu.nvidia.com").exists());
        clear(&root, &traces()).unwrap();
    }

    #[test]
    fn a_host_with_a_package_is_left_alone() {
        let host = Host::new();
        let root = host.root();
        fs::create_dir_all(root.join("lib/systemd/system")).unwrap();
        fs::write(root.join(PACKAGED[0]), "").unwrap();
        assert!(place(&root, &host.parts("1")).unwrap().packaged);
        clear(&root, &traces()).unwrap();
        assert_eq!(files(&root), 1);
    }

    #[test]
    fn a_driver_answers_as_long_as_it_serves() {
        let root = testkit::directory();
        let traces = Traces { kubelet: "/var/lib/kubelet".into(), checkpoints: "/c".into(), cdi: "/d".into() };
        assert!(!driver_answers(&root, &traces));
        fs::create_dir_all(root.join("var/lib/kubelet/plugins_registry")).unwrap();
        let path = root.join("var/lib/kubelet/plugins_registry/gpu.bulkhead.dev@reg.sock");
        let served = std::os::unix::net::UnixListener::bind(path).unwrap();
        assert!(driver_answers(&root, &traces));
        drop(served);
        assert!(!driver_answers(&root, &traces), "what a killed driver left is no driver");
    }
}
