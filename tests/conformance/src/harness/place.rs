//! A directory for one test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testkit::Directory;

use super::{Binaries, until};

pub struct Place {
    path: Directory,
    binaries: Binaries,
    /// The `conformance` program, which plays the clients.
    player: PathBuf,
}

impl Place {
    /// `player` is the path of the `conformance` program, which only its own package's tests know; `CONFORMANCE_BIN`
    /// overrides it where the tests were carried to another machine.
    ///
    /// # Panics
    /// With one clear line when Bulkhead has not been built.
    pub fn new(player: impl Into<PathBuf>) -> Self {
        Self::of(Binaries::find().unwrap_or_else(|error| panic!("{error}")), player)
    }

    /// The same, with other binaries than those that would be found.
    pub fn of(binaries: Binaries, player: impl Into<PathBuf>) -> Self {
        let path = testkit::directory();
        for dir in ["lib", "run"] {
            std::fs::create_dir_all(path.join(dir)).expect("a directory in /tmp");
        }
        std::os::unix::fs::symlink(&binaries.library, path.join("lib/libcuda.so.1")).expect("a link in /tmp");
        let player = std::env::var_os("CONFORMANCE_BIN").map_or_else(|| player.into(), PathBuf::from);
        Self { path, binaries, player }
    }

    /// The same, with our NVML in its library directory as well.
    ///
    /// # Panics
    /// With one clear line when it has not been built.
    pub fn with_nvml(player: impl Into<PathBuf>) -> Self {
        let place = Self::new(player);
        std::os::unix::fs::symlink(place.binaries.nvml(), place.path.join("lib/libnvidia-ml.so.1"))
            .expect("a link in /tmp");
        place
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the state of proxies goes.
    pub fn state(&self) -> PathBuf {
        self.path.join("state")
    }

    /// `bulkhead`, with nothing of this process's surroundings that could change what it does.
    pub fn bulkhead(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binaries.bulkhead);
        command.args(arguments).stdin(Stdio::null());
        command.env("BULKHEAD_LIB_DIR", self.path.join("lib")).env("XDG_RUNTIME_DIR", self.path.join("run"));
        forget_surroundings(&mut command);
        command
    }

    /// The `conformance` program as a client of a zone.
    pub fn player(&self, arguments: &[&str], socket: &Path) -> Command {
        let mut command = self.program(&self.player, socket);
        command.args(arguments);
        command
    }

    /// Any program as a client of a zone.
    pub fn program(&self, program: impl AsRef<std::ffi::OsStr>, socket: &Path) -> Command {
        let mut command = Command::new(program);
        forget_surroundings(&mut command);
        command.env("LD_LIBRARY_PATH", self.path.join("lib")).env("BULKHEAD_SOCKET", socket);
        command
    }

    pub fn player_path(&self) -> &Path {
        &self.player
    }

    /// What there still is: processes that know of this place, files of proxies, regions that this process holds.
    pub fn left_behind(&self) -> Vec<String> {
        let mut left: Vec<String> =
            self.processes().into_iter().map(|(pid, line)| format!("process {pid}: {line}")).collect();
        let run = std::fs::read_dir(self.path.join("run")).into_iter().flatten().flatten();
        let files = run.map(|entry| entry.path()).chain(files(&self.state()));
        left.extend(files.map(|file| format!("file {}", file.display())));
        let groups = sandbox::cgroup::left_behind(&self.state());
        left.extend(groups.iter().map(|group| format!("control group {}", group.display())));
        left
    }

    /// Processes with this place on their command line, in their environment, or among their open files.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let needle = self.path.to_str().expect("a plain path").as_bytes();
        let mentions = |bytes: &[u8]| bytes.windows(needle.len()).any(|part| part == needle);
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            if pid == std::process::id() || !super::is_alive(pid) {
                continue;
            }
            let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
            let line = read("cmdline");
            if mentions(&line) || mentions(&read("environ")) {
                found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
            }
        }
        found
    }

    /// # Panics
    /// When something stays.
    pub fn nothing_is_left(&self) {
        let mut left = Vec::new();
        until(&format!("nothing is left in {}", self.path.display()), || {
            left = self.left_behind();
            left.is_empty()
        });
    }
}

/// Everything in a directory but directories, which a proxy leaves to the next one.
pub(super) fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let inside = |path: PathBuf| match std::fs::symlink_metadata(&path).is_ok_and(|known| known.is_dir()) {
        true => files(&path),
        false => vec![path],
    };
    entries.flat_map(|entry| inside(entry.path())).collect()
}

fn forget_surroundings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("CUDA_") || name_text.starts_with("BULKHEAD_") || name_text == "NOTIFY_SOCKET" {
            command.env_remove(&name);
        }
    }
    command.env_remove("LD_PRELOAD");
}
