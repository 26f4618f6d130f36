//! A proxy on the software GPU, with a configuration file, in a directory of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::{Directory, Logged, directory, signal};

/// A command of the `bulkhead` at `program`, with nothing of this process's surroundings that could change what it does.
pub fn bulkhead(program: impl AsRef<Path>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program.as_ref());
    command.args(arguments).stdin(Stdio::null());
    for name in ["BULKHEAD_LOG", "BULKHEAD_LOG_FORMAT", "BULKHEAD_LIB_DIR", "NOTIFY_SOCKET"] {
        command.env_remove(name);
    }
    command
}

pub struct Node {
    program: PathBuf,
    options: Vec<String>,
    /// Before the directory, so that it ends first.
    pub proxy: Option<Logged>,
    pub directory: Directory,
}

impl Node {
    /// A node whose proxy is still to be started: `program` is the `bulkhead` that runs here, `options` are more of
    /// `bulkhead proxy`.
    pub fn new(program: &str, options: &[&str], config: &str) -> Self {
        let options = options.iter().map(ToString::to_string).collect();
        let node = Self { program: program.into(), options, proxy: None, directory: directory() };
        node.write_config(config);
        node
    }

    /// One that serves.
    pub fn start(program: &str, options: &[&str], config: &str) -> Self {
        let mut node = Self::new(program, options, config);
        node.start_proxy();
        node
    }

    /// Gives an option that its proxy is started with another value, from the next start on.
    ///
    /// # Panics
    /// When there is no such option.
    pub fn set_option(&mut self, name: &str, value: &str) {
        let at = self.options.iter().position(|option| option == name).expect("an option of this name");
        value.clone_into(&mut self.options[at + 1]);
    }

    /// Starts its proxy, and waits until that serves.
    pub fn start_proxy(&mut self) {
        let mut command = self.bulkhead(&["proxy", "--backend", "soft", "--jail", "best-effort"]);
        command.args(["--log-format", "json"]).args(&self.options);
        command.arg("--config").arg(self.config()).arg("--state-dir").arg(self.state());
        let proxy = Logged::start(command);
        proxy.logged("serving");
        self.proxy = Some(proxy);
    }

    /// # Panics
    /// When it was never started.
    pub fn proxy(&self) -> &Logged {
        self.proxy.as_ref().expect("a proxy was started")
    }

    pub fn bulkhead(&self, arguments: &[&str]) -> Command {
        bulkhead(&self.program, arguments)
    }

    pub fn config(&self) -> PathBuf {
        self.directory.join("b.toml")
    }

    pub fn write_config(&self, text: &str) {
        std::fs::write(self.config(), text).expect("the configuration can be written");
    }

    /// Has the proxy read its configuration again.
    pub fn reload(&self) {
        signal(self.proxy().child.id(), Signal::HUP);
    }

    pub fn state(&self) -> PathBuf {
        self.directory.join("s")
    }

    pub fn socket(&self, zone: &str) -> PathBuf {
        self.state().join("zones").join(zone).join("sock")
    }

    /// Runs a verb that asks this node's broker.
    ///
    /// # Panics
    /// When it does not start.
    pub fn admin(&self, arguments: &[&str]) -> Output {
        let socket = self.state().join("admin.sock");
        self.bulkhead(arguments).arg("--socket").arg(socket).output().expect("bulkhead starts")
    }

    /// The answer of such a verb as JSON.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.admin(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The broker's zones.
    pub fn zones(&self) -> Vec<Value> {
        self.json(&["zones", "list"]).as_array().expect("a list").clone()
    }

    pub fn zone(&self, name: &str) -> Option<Value> {
        self.zones().into_iter().find(|zone| zone["name"] == name)
    }
}
