//! A support bundle: all that a bug report needs, in one archive that can be read before it is sent.
//!
//! Nothing of a tenant's is in it: no memory, no environment, no command lines. Values that look like secrets are left out
//! of the configuration, and of the state directory the registry of workers, whose tokens let a process join the broker.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::finding::Finding;
use super::redact::without_secrets;
use super::scene::Scene;
use crate::exit::{Exit, Failure};
use crate::{admin, helper};

/// The end of a long file says what went wrong last.
const MOST_OF_A_FILE: u64 = 4 << 20;
const TIMEOUT: Duration = Duration::from_secs(20);
const NAMESPACE: &str = "bulkhead-system";
/// Kubelet's links to the logs of containers, named POD_NAMESPACE_CONTAINER-ID.log.
const CONTAINER_LOGS: &str = "/var/log/containers";
const UNITS: [&str; 4] = ["bulkhead", "bulkhead-broker", "bulkhead-exporter", "bulkhead-xen-backend"];

/// What goes into the archive: a name and its contents.
type Part = (String, Vec<u8>);

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
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    for (name, contents) in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o600);
        // Not every reader takes an empty field for 0.
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(now);
        archive.append_data(&mut header, format!("bulkhead-support/{name}"), contents.as_slice())?;
    }
    archive.into_inner()?.finish()?.flush()
}

fn collect(scene: &Scene, findings: &[Finding]) -> Vec<Part> {
    let state = scene.admin_socket.parent().map(Path::to_owned).unwrap_or_default();
    let status = admin::connect(&scene.admin_socket).and_then(|client| admin::status(&client));
    let broker = status.as_ref().ok().map(|status| status.pid);
    let mut parts: Vec<Part> = Vec::new();
    let mut add = |name: &str, contents: Vec<u8>| parts.push((name.to_owned(), contents));
    add("versions.txt", versions(scene).into_bytes());
    add("findings.json", json(&findings));
    add("config.toml", configuration(scene, broker).into_bytes());
    add("state-dir.txt", listing(&state).into_bytes());
    add("logs.txt", said("journalctl", &journal_arguments()));
    add("kernel.txt", kernel_log());
    for (name, file) in [
        ("zones.json", "zones.json"),
        ("grants.json", "grants.json"),
        ("quotas.json", "budgets.json"),
        ("totals.json", "figures.json"),
    ] {
        add(name, tail(&state.join("books").join(file)));
    }
    match &status {
        Ok(status) => {
            add("metrics.txt", exporter::render(status, false).into_bytes());
            add("status.json", json(status));
        }
        Err(failure) => add("status.json", json(&serde_json::json!({ "error": failure.line }))),
    }
    if let Some(trace) = scene.variable(control::env_vars::TRACE_FILE) {
        add("trace.txt", tail(Path::new(&trace)));
    }
    parts.extend(pod_logs(scene));
    parts
}

/// The configuration of the proxy that runs, or the usual one, without secrets.
fn configuration(scene: &Scene, broker: Option<u32>) -> String {
    let path = broker.and_then(|pid| given_config(scene, pid)).unwrap_or_else(|| config::DEFAULT_PATH.into());
    format!("# {}\n{}", path.display(), without_secrets(&text_of(&scene.path(&path))))
}

/// What the process was told with `--config`.
fn given_config(scene: &Scene, pid: u32) -> Option<PathBuf> {
    let process = scene.path(format!("/proc/{pid}"));
    let line = std::fs::read(process.join("cmdline")).ok()?;
    let mut words = line.split(|byte| *byte == 0).map(|word| PathBuf::from(OsStr::from_bytes(word)));
    let path = words.find_map(|word| match word.as_os_str().as_bytes().strip_prefix(b"--config") {
        Some([]) => Some(None),
        Some([b'=', path @ ..]) => Some(Some(PathBuf::from(OsStr::from_bytes(path)))),
        _ => None,
    })?;
    let path = path.or_else(|| words.next())?;
    // As the process sees it.
    Some(std::fs::read_link(process.join("cwd")).map_or(path.clone(), |directory| directory.join(path)))
}

/// What device plugin, DRA driver and installer have said: from kubelet's files on a node, elsewhere from the API server. No
/// pod of a tenant is in this namespace.
fn pod_logs(scene: &Scene) -> Vec<Part> {
    let ours = |name: &String| name.split('_').nth(1) == Some(NAMESPACE);
    let files: Vec<String> = scene.names(CONTAINER_LOGS).into_iter().filter(ours).collect();
    if !files.is_empty() {
        let one = |name: &String| (format!("pods/{name}"), tail(&scene.path(CONTAINER_LOGS).join(name)));
        return files.iter().map(one).collect();
    }
    let selector = "app.kubernetes.io/name in (bulkhead, bulkhead-dra)";
    let arguments =
        ["--request-timeout=10s", "logs", "-n", NAMESPACE, "-l", selector, "--all-containers", "--prefix"];
    let there = scene.is_this_machine() && which("kubectl");
    there
        .then(|| ("pods/kubectl.txt".to_owned(), said("kubectl", &[&arguments[..], &["--tail=5000"]].concat())))
        .into_iter()
        .collect()
}

fn which(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
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
    let ours = |line: &&str| ours(line) || line.starts_with("dmesg: ");
    all.lines().filter(ours).map(|line| format!("{line}\n")).collect::<String>().into_bytes()
}

/// What a program of the system prints, or why there is nothing.
fn said(program: &str, arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    match helper::run(command, TIMEOUT) {
        Ok(said) => {
            let why = said.failure().map(|why| format!("{program}: {why}\n")).unwrap_or_default();
            (said.output + &why).into_bytes()
        }
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
    fn a_bundle_holds_what_a_report_needs_and_no_tokens() {
        let directory = testkit::directory();
        let books = directory.join("run/bulkhead/books");
        std::fs::create_dir_all(&books).unwrap();
        std::fs::write(books.join("zones.json"), "[\"team-a\"]").unwrap();
        std::fs::write(books.join("workers"), "a token of a worker").unwrap();
        let logs = directory.join("var/log/containers");
        std::fs::create_dir_all(&logs).unwrap();
        std::fs::write(logs.join("bulkhead-dra-x_bulkhead-system_dra-1.log"), "claim refused").unwrap();
        std::fs::write(logs.join("bulkhead-dra-x_team-a_dra-1.log"), "a tenant's words").unwrap();
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
        assert_eq!(found["bulkhead-dra-x_bulkhead-system_dra-1.log"], "claim refused");
        assert!(
            found.values().all(|text| !text.contains("a token of a worker") && !text.contains("a tenant's words"))
        );
    }

    #[test]
    fn the_configuration_is_that_of_the_proxy_that_runs() {
        let directory = testkit::directory();
        let process = directory.join("proc/7");
        std::fs::create_dir_all(&process).unwrap();
        std::os::unix::fs::symlink("/srv", process.join("cwd")).unwrap();
        let scene = Scene::fake(&directory, &[]);
        let given = |words: &str| {
            std::fs::write(process.join("cmdline"), words).unwrap();
            given_config(&scene, 7)
        };
        assert_eq!(given("bulkhead\0proxy\0--config\0/etc/x.toml\0"), Some("/etc/x.toml".into()));
        assert_eq!(given("bulkhead\0proxy\0--config=x.toml\0"), Some("/srv/x.toml".into()));
        assert_eq!(given("bulkhead\0proxy\0--config-other\0x\0"), None);
        assert_eq!(given("bulkhead\0proxy\0"), None);
        assert!(configuration(&scene, None).starts_with("# /etc/bulkhead/bulkhead.toml\n"));
    }

    #[test]
    fn a_program_that_fails_leaves_its_reason() {
        let text = String::from_utf8(said("sh", &["-c", "echo some; echo no permission >&2; exit 1"])).unwrap();
        assert_eq!(text, "some\nsh: no permission\n");
        assert!(String::from_utf8(said("/no/such/program", &[])).unwrap().starts_with("/no/such/program: "));
    }
}
