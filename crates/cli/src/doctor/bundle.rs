//! A support bundle: all that a bug report needs, in one archive that can be read before it is sent.
//!
//! Nothing of a tenant's is in it: no memory, no environment, no command lines. Values that look like secrets are left out
//! of the configuration, and of the state directory the registry of workers, whose tokens let a process join the broker.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::finding::Finding;
use super::scene::Scene;
use crate::exit::{Exit, Failure};
use crate::{admin, helper};

/// The end of a long file says what went wrong last.
const MOST_OF_A_FILE: u64 = 4 << 20;
const TIMEOUT: Duration = Duration::from_secs(20);
/// Parts of the names of keys whose values nobody else is to see.
const SECRETS: [&str; 5] = ["secret", "token", "password", "passwd", "credential"];
const UNITS: [&str; 4] = ["bulkhead", "bulkhead-broker", "bulkhead-exporter", "bulkhead-xen-backend"];

/// What goes into the archive: a name and its contents.
type Part = (&'static str, Vec<u8>);

/// A bundle in the making.
pub(crate) struct Bundle {
    path: PathBuf,
    file: File,
}

impl Bundle {
    /// In a file that must not exist yet, readable for its owner alone.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| failure(path, &error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Gives where it is.
    pub(crate) fn write(self, scene: &Scene, findings: &[Finding]) -> Result<PathBuf, Failure> {
        match archive(self.file, &collect(scene, findings)) {
            Ok(()) => Ok(self.path),
            Err(error) => {
                // Half a bundle helps nobody.
                let _ = std::fs::remove_file(&self.path);
                Err(failure(&self.path, &error))
            }
        }
    }
}

fn failure(path: &Path, error: &io::Error) -> Failure {
    Failure::system(Exit::Failure, &format!("cannot write the support bundle {}", path.display()), error)
}

fn archive(into: impl Write, parts: &[Part]) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(into, Compression::default()));
    for (name, contents) in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o600);
        archive.append_data(&mut header, format!("bulkhead-support/{name}"), contents.as_slice())?;
    }
    archive.into_inner()?.finish()?.flush()
}

fn collect(scene: &Scene, findings: &[Finding]) -> Vec<Part> {
    let state = scene.admin_socket.parent().map(Path::to_owned).unwrap_or_default();
    let mut parts = vec![
        ("versions.txt", versions(scene).into_bytes()),
        ("findings.json", json(&findings)),
        ("config.toml", without_secrets(&text_of(&scene.path(config::DEFAULT_PATH))).into_bytes()),
        ("state-dir.txt", listing(&state).into_bytes()),
        ("logs.txt", said("journalctl", &journal_arguments())),
        ("kernel.txt", kernel_log()),
    ];
    for (name, file) in [
        ("zones.json", "zones.json"),
        ("grants.json", "grants.json"),
        ("quotas.json", "budgets.json"),
        ("totals.json", "figures.json"),
    ] {
        parts.push((name, tail(&state.join("books").join(file))));
    }
    match admin::connect(&scene.admin_socket).and_then(|client| admin::status(&client)) {
        Ok(status) => {
            parts.push(("metrics.txt", exporter::render(&status, false).into_bytes()));
            parts.push(("status.json", json(&status)));
        }
        Err(failure) => parts.push(("status.json", json(&serde_json::json!({ "error": failure.line })))),
    }
    if let Some(trace) = scene.variable(control::env_vars::TRACE_FILE) {
        parts.push(("trace.txt", tail(Path::new(&trace))));
    }
    parts
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap_or_else(|error| error.to_string().into_bytes())
}

fn versions(scene: &Scene) -> String {
    let system = rustix::system::uname();
    let read = |path: &str| scene.read(path).unwrap_or_else(|| "none".to_owned());
    format!(
        "bulkhead {}\n{} {} {}\n\n[NVIDIA's kernel module]\n{}\n\n[/etc/os-release]\n{}\n\n[/proc/meminfo]\n{}\n",
        env!("CARGO_PKG_VERSION"),
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy(),
        system.machine().to_string_lossy(),
        read("/proc/driver/nvidia/version"),
        read("/etc/os-release"),
        read("/proc/meminfo").lines().take(3).collect::<Vec<_>>().join("\n"),
    )
}

/// The configuration as it is, but for the values of keys that are named like secrets.
fn without_secrets(text: &str) -> String {
    let keep = |line: &str| {
        let key = line.split('=').next().unwrap_or_default().to_ascii_lowercase();
        match line.contains('=') && SECRETS.iter().any(|secret| key.contains(secret)) {
            true => format!("{}= \"(removed)\"\n", &line[..key.len()]),
            false => format!("{line}\n"),
        }
    };
    text.lines().map(keep).collect()
}

/// Modes, owners and sizes of everything in the state directory.
fn listing(dir: &Path) -> String {
    let mut lines = Vec::new();
    let mut open: Vec<PathBuf> = vec![dir.to_owned()];
    while let Some(path) = open.pop() {
        let Ok(meta) = path.symlink_metadata() else { continue };
        lines.push(format!("{:06o} {}:{} {} {}", meta.mode(), meta.uid(), meta.gid(), meta.len(), path.display()));
        if meta.is_dir() {
            open.extend(std::fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    lines.sort_by(|a, b| a.rsplit(' ').next().cmp(&b.rsplit(' ').next()));
    lines.join("\n") + "\n"
}

fn journal_arguments() -> Vec<&'static str> {
    let units = UNITS.iter().flat_map(|unit| ["--unit", unit]);
    ["--no-pager", "--output=short-iso-precise", "--lines=20000"].into_iter().chain(units).collect()
}

/// What the kernel says of GPUs, and of processes that it ended for their memory.
fn kernel_log() -> Vec<u8> {
    let all = String::from_utf8_lossy(&said("dmesg", &[])).into_owned();
    let ours =
        |line: &&str| ["NVRM", "nvidia", "Xid", "oom", "Killed process", "bulkhead"].iter().any(|w| line.contains(w));
    all.lines().filter(ours).map(|line| format!("{line}\n")).collect::<String>().into_bytes()
}

/// What a program of the system prints, or why there is nothing.
fn said(program: &str, arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    match helper::run(command, TIMEOUT) {
        Ok(said) => said.output.into_bytes(),
        Err(error) => format!("{program}: {error}\n").into_bytes(),
    }
}

fn text_of(path: &Path) -> String {
    String::from_utf8_lossy(&tail(path)).into_owned()
}

/// The end of a file, or why there is none.
fn tail(path: &Path) -> Vec<u8> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(MOST_OF_A_FILE)))?;
        let mut contents = Vec::new();
        file.take(MOST_OF_A_FILE).read_to_end(&mut contents)?;
        Ok(contents)
    };
    read().unwrap_or_else(|error| format!("# {}: {error}\n", path.display()).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_stay_at_home() {
        let text = "[http]\nlisten = \"127.0.0.1:1\"\n  api_token= \"abc\"\nPassword = 'x'\n";
        let shown = without_secrets(text);
        assert_eq!(shown, "[http]\nlisten = \"127.0.0.1:1\"\n  api_token= \"(removed)\"\nPassword = \"(removed)\"\n");
    }

    #[test]
    fn a_bundle_holds_what_a_report_needs_and_no_tokens() {
        let directory = testkit::directory();
        let books = directory.join("run/bulkhead/books");
        std::fs::create_dir_all(&books).unwrap();
        std::fs::write(books.join("zones.json"), "[\"team-a\"]").unwrap();
        std::fs::write(books.join("workers"), "a token of a worker").unwrap();
        let scene = Scene::fake(&directory, &[]);
        let path = directory.join("bundle.tar.gz");
        Bundle::create(&path).unwrap().write(&scene, &[Finding::ok("driver", "all is well")]).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert!(Bundle::create(&path).is_err(), "nothing is written over");
        let mut found = std::collections::BTreeMap::new();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(&path).unwrap()));
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().file_name().unwrap().to_string_lossy().into_owned();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            found.insert(name, text);
        }
        assert!(found["versions.txt"].contains(env!("CARGO_PKG_VERSION")));
        assert!(found["findings.json"].contains("all is well"));
        assert_eq!(found["zones.json"], "[\"team-a\"]");
        assert!(found["state-dir.txt"].contains("books/workers"), "{}", found["state-dir.txt"]);
        assert!(found["status.json"].contains("error"));
        assert!(found.values().all(|text| !text.contains("a token of a worker")));
    }
}
