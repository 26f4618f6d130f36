//! A node: its proxy, its directories, and the verbs that run on it.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use testkit::{Logged, Signal};

use crate::kubelet::Kubelet;

/// A runtime that a thread of its own drives, so that servers run while a test waits for something else.
pub fn runtime() -> tokio::runtime::Handle {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    handle
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_bulkhead");

pub fn bulkhead(arguments: &[&str]) -> Command {
    testkit::bulkhead(PROGRAM, arguments)
}

/// What a node with a kubelet has: a proxy, and the plugins beside it.
pub struct Node {
    node: testkit::Node,
    pub kubelet: Kubelet,
}

impl Deref for Node {
    type Target = testkit::Node;

    fn deref(&self) -> &testkit::Node {
        &self.node
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut testkit::Node {
        &mut self.node
    }
}

impl Node {
    /// Starts a proxy and a kubelet.
    pub fn start(config: &str) -> Self {
        Self::start_as_it_is(&soft(config))
    }

    pub fn start_as_it_is(config: &str) -> Self {
        let options = ["--soft-memory", "4GiB", "--soft-devices", "2", "--spare-workers", "0"];
        let mut node = testkit::Node::new(PROGRAM, &options, config);
        std::fs::create_dir(node.directory.join("lib")).unwrap();
        let kubelet = Kubelet::start(&node.directory);
        node.start_proxy();
        Self { node, kubelet }
    }

    /// The GPUs of this node are meant to be computed on the CPU.
    pub fn configure(&self, config: &str) {
        self.write_config(&soft(config));
    }

    pub fn device_plugin(&self) -> Logged {
        Logged::start(self.device_plugin_command())
    }

    /// One that runs in this pod.
    pub fn device_plugin_in(&self, pod: &str) -> Logged {
        let mut command = self.device_plugin_command();
        command.arg("--pod").arg(pod);
        Logged::start(command)
    }

    /// One whose checkpoints are on a file system with room for so many: it has a mount namespace of its own.
    pub fn device_plugin_with_room(&self, checkpoints: usize) -> Logged {
        let plugin = self.device_plugin_command();
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs -o \"size=$1\" full \"$2\" && shift 2 && exec \"$@\"";
        // A page for each.
        let size = (checkpoints * 4096).to_string();
        std::fs::create_dir_all(self.directory.join("checkpoints")).unwrap();
        command.args(["--mount", "sh", "-c", script, "sh", &size]).arg(self.directory.join("checkpoints"));
        command.arg(plugin.get_program()).args(plugin.get_args()).stdin(Stdio::null());
        Logged::start(command)
    }

    fn device_plugin_command(&self) -> Command {
        let mut command = bulkhead(&["device-plugin", "--log-format", "json"]);
        command.arg("--config").arg(self.config()).arg("--state-dir").arg(self.state());
        command.arg("--library-dir").arg(self.directory.join("lib")).arg("--cdi-dir").arg(self.directory.join("cdi"));
        command
            .arg("--kubelet-dir")
            .arg(&self.kubelet.plugins)
            .arg("--pod-resources")
            .arg(&self.kubelet.pod_resources);
        command.arg("--checkpoint-dir").arg(self.directory.join("checkpoints"));
        command
    }

    /// CDI files, by name.
    pub fn cdi(&self) -> Vec<(String, Value)> {
        let entries = std::fs::read_dir(self.directory.join("cdi")).into_iter().flatten().flatten();
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
        count(&self.directory.join("checkpoints"))
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
    }
}
