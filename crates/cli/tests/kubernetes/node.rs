//! A node: its proxy, its directories, and the verbs that run on it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::kubelet::Kubelet;

pub fn until(what: &str, mut true_yet: impl FnMut() -> bool) {
    let start = Instant::now();
    while !true_yet() {
        assert!(start.elapsed() < Duration::from_secs(120), "never came true: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A runtime that a thread of its own drives, so that servers run while a test waits for something else.
pub fn runtime() -> tokio::runtime::Handle {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    handle
}

pub fn bulkhead(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bulkhead"));
    command.args(arguments).stdin(Stdio::null());
    for name in ["BULKHEAD_LOG", "BULKHEAD_LOG_FORMAT", "NOTIFY_SOCKET", "BULKHEAD_LIB_DIR"] {
        command.env_remove(name);
    }
    command
}

/// A process whose log is JSON.
pub struct Logged {
    pub child: Child,
    log: Arc<Mutex<Vec<Value>>>,
}

impl Logged {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (lines, said) = (BufReader::new(child.stderr.take().unwrap()).lines(), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_else(|_| serde_json::json!({ "event": line }));
                said.lock().unwrap().push(line);
            }
        });
        Self { child, log }
    }

    /// Waits for an event, and answers the last of its kind.
    pub fn logged(&self, event: &str) -> Value {
        let find = || self.log.lock().unwrap().iter().rev().find(|line| line["event"] == event).cloned();
        let start = Instant::now();
        while find().is_none() {
            let said = self.log.lock().unwrap();
            assert!(start.elapsed() < Duration::from_secs(120), "never said: {event}; but {said:#?}");
            drop(said);
            std::thread::sleep(Duration::from_millis(20));
        }
        find().unwrap()
    }

    pub fn count(&self, event: &str) -> usize {
        self.log.lock().unwrap().iter().filter(|line| line["event"] == event).count()
    }

    pub fn kill(&mut self, signal: Signal) {
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), signal);
        let _ = self.child.wait();
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Node {
    pub dir: PathBuf,
    pub proxy: Option<Logged>,
    pub kubelet: Kubelet,
}

impl Node {
    /// Starts a proxy and a kubelet.
    pub fn start(name: &str, config: &str) -> Self {
        Self::start_as_it_is(name, &soft(config))
    }

    pub fn start_as_it_is(name: &str, config: &str) -> Self {
        let dir = PathBuf::from(format!("/tmp/bulkhead-k8s-{}-{name}", std::process::id()));
        std::fs::create_dir_all(dir.join("lib")).unwrap();
        let kubelet = Kubelet::start(&dir);
        let mut node = Self { dir, proxy: None, kubelet };
        node.configure_as_it_is(config);
        node.start_proxy();
        node
    }

    /// The GPUs of this node are meant to be computed on the CPU.
    pub fn configure(&self, config: &str) {
        self.configure_as_it_is(&soft(config));
    }

    pub fn configure_as_it_is(&self, config: &str) {
        std::fs::write(self.config(), config).unwrap();
    }

    pub fn config(&self) -> PathBuf {
        self.dir.join("b.toml")
    }

    pub fn state(&self) -> PathBuf {
        self.dir.join("s")
    }

    pub fn start_proxy(&mut self) {
        let mut command = bulkhead(&["proxy", "--backend", "soft", "--soft-memory", "4GiB", "--soft-devices", "2"]);
        command.args(["--jail", "best-effort", "--log-format", "json", "--spare-workers", "0"]);
        command.arg("--config").arg(self.config()).arg("--state-dir").arg(self.state());
        let proxy = Logged::start(command);
        proxy.logged("serving");
        self.proxy = Some(proxy);
    }

    pub fn device_plugin(&self) -> Logged {
        Logged::start(self.device_plugin_command())
    }

    /// One whose checkpoints are on a file system with room for so many: it has a mount namespace of its own.
    pub fn device_plugin_with_room(&self, checkpoints: usize) -> Logged {
        let plugin = self.device_plugin_command();
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs -o \"size=$1\" full \"$2\" && shift 2 && exec \"$@\"";
        // A page for each.
        let size = (checkpoints * 4096).to_string();
        std::fs::create_dir_all(self.dir.join("checkpoints")).unwrap();
        command.args(["--mount", "sh", "-c", script, "sh", &size]).arg(self.dir.join("checkpoints"));
        command.arg(plugin.get_program()).args(plugin.get_args()).stdin(Stdio::null());
        Logged::start(command)
    }

    fn device_plugin_command(&self) -> Command {
        let mut command = bulkhead(&["device-plugin", "--log-format", "json"]);
        command.arg("--config").arg(self.config()).arg("--state-dir").arg(self.state());
        command.arg("--library-dir").arg(self.dir.join("lib")).arg("--cdi-dir").arg(self.dir.join("cdi"));
        command
            .arg("--kubelet-dir")
            .arg(&self.kubelet.plugins)
            .arg("--pod-resources")
            .arg(&self.kubelet.pod_resources);
        command.arg("--checkpoint-dir").arg(self.dir.join("checkpoints"));
        command
    }

    pub fn admin(&self, arguments: &[&str]) -> Output {
        bulkhead(arguments).arg("--socket").arg(self.state().join("admin.sock")).output().unwrap()
    }

    /// The broker's zones.
    pub fn zones(&self) -> Vec<Value> {
        let output = self.admin(&["zones", "list", "--json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn zone(&self, name: &str) -> Option<Value> {
        self.zones().into_iter().find(|zone| zone["name"] == name)
    }

    /// CDI files, by name.
    pub fn cdi(&self) -> Vec<(String, Value)> {
        let entries = std::fs::read_dir(self.dir.join("cdi")).into_iter().flatten().flatten();
        let read = |path: PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap())
        };
        // What is about to be put in place has another ending.
        entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
            .map(read)
            .collect()
    }

    pub fn checkpoints(&self) -> usize {
        count(&self.dir.join("checkpoints"))
    }
}

fn soft(config: &str) -> String {
    format!("{config}\n[proxy]\nbackend = \"soft\"\n")
}

pub fn count(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "json")).count()
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kubelet.stop();
        if let Some(proxy) = &mut self.proxy {
            proxy.kill(Signal::TERM);
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
