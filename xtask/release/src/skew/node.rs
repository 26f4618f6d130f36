//! A proxy of some version, and clients of some version that go on until they are told to end.

use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use xtask::sh;

/// What does not happen within this does not happen. Far above what any of it takes.
const TIMEOUT: Duration = Duration::from_secs(300);

pub(super) struct Node {
    stage: PathBuf,
    dir: PathBuf,
    proxy: Process,
}

impl Node {
    pub(super) fn start(stage: &Path) -> Result<Node> {
        let dir = std::env::temp_dir().join(format!("bulkhead-skew-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir)?;
        Node::on(stage, dir)
    }

    /// Where another one has been.
    pub(super) fn on(stage: &Path, dir: PathBuf) -> Result<Node> {
        let log = File::options().create(true).append(true).open(dir.join("log"))?;
        let mut command = Command::new(stage.join("bin/bulkhead"));
        command.args(["proxy", "--backend", "soft", "--jail", "best-effort", "--zone", "skew:memory=1GiB"]);
        command.arg("--state-dir").arg(dir.join("state")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let proxy = Process(command.spawn().context("cannot start a proxy")?);
        let mut node = Node { stage: stage.to_path_buf(), dir, proxy };
        wait("the proxy answers", || {
            if let Some(status) = node.proxy.0.try_wait()? {
                bail!("the proxy ended: {status}\n{}", node.log());
            }
            Ok(node.status().is_ok())
        })?;
        Ok(node)
    }

    /// Another version takes over what runs; if it does not, gives where it should have, and why.
    pub(super) fn replaced_by(mut self, stage: &Path) -> Result<Node, (PathBuf, anyhow::Error)> {
        let ended = self.proxy.terminate();
        ended.and_then(|_| Node::on(stage, self.dir.clone())).map_err(|error| (self.dir, error))
    }

    pub(super) fn admin(&self) -> PathBuf {
        self.dir.join("state/admin.sock")
    }

    fn status(&self) -> Result<serde_json::Value> {
        let mut command = Command::new(self.stage.join("bin/bulkhead"));
        let said = sh::output(command.args(["status", "--json", "--socket"]).arg(self.admin()))?;
        Ok(serde_json::from_str(&said)?)
    }

    /// How many clients the zone has.
    pub(super) fn clients(&self) -> Result<u64> {
        let status = self.status()?;
        let zones = status["zones"].as_array().context("the status has no zones")?;
        let zone = zones.iter().find(|zone| zone["name"] == "skew").context("the status has no zone skew")?;
        zone["clients"].as_u64().context("the status does not count clients")
    }

    /// A program with the client library of a version.
    pub(super) fn client(&self, stage: &Path, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", stage.join("lib/bulkhead"));
        command.env("BULKHEAD_SOCKET", self.dir.join("state/zones/skew/sock"));
        command
    }

    pub(super) fn steady(&self, stage: &Path, program: &Path) -> Result<Steady> {
        let number = fs::read_dir(&self.dir)?.count();
        let output = self.dir.join(format!("client-{number}"));
        let file = File::create(&output)?;
        let mut command = self.client(stage, program);
        command.arg("0").stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let process = Process(command.spawn().context("cannot start a client")?);
        Ok(Steady { process, output })
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Gives what it logged.
    pub(super) fn end(mut self) -> Result<String> {
        self.proxy.terminate()?;
        let log = self.log();
        fs::remove_dir_all(&self.dir).context("cannot clean up")?;
        Ok(log)
    }
}

/// A client that works on and on.
pub(super) struct Steady {
    process: Process,
    output: PathBuf,
}

impl Steady {
    fn rounds(&self) -> usize {
        let text = fs::read_to_string(&self.output).unwrap_or_default();
        text.lines().filter(|line| line.starts_with("round ")).count()
    }

    /// It does some more rounds from now on.
    pub(super) fn goes_on(&mut self) -> Result<()> {
        let before = self.rounds();
        wait("the client goes on", || {
            if let Some(status) = self.process.0.try_wait()? {
                bail!("the client ended: {status}\n{}", fs::read_to_string(&self.output).unwrap_or_default());
            }
            Ok(self.rounds() >= before + 3)
        })
    }

    /// It ends when it is told to, and all was well.
    pub(super) fn end(mut self) -> Result<()> {
        let status = self.process.terminate()?;
        let text = fs::read_to_string(&self.output).unwrap_or_default();
        ensure!(status.success() && text.lines().last() == Some("PASS"), "the client ended with {status}\n{text}");
        Ok(())
    }
}

/// Ends with its owner, whatever happens.
struct Process(Child);

impl Process {
    fn terminate(&mut self) -> Result<std::process::ExitStatus> {
        sh::output(Command::new("kill").args(["-TERM", &self.0.id().to_string()]))?;
        self.0.wait().context("cannot wait for a process")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait(what: &str, mut happened: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !happened()? {
        if start.elapsed() > TIMEOUT {
            bail!("timed out: {what}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
