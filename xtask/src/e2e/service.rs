//! A process that runs until it is told otherwise, with its output in a file: what systemd is on a real node.

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to end when asked to.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Service {
    pub name: &'static str,
    words: Vec<String>,
    path: String,
    log: PathBuf,
    child: Option<Child>,
}

impl Service {
    pub fn new(name: &'static str, words: Vec<String>, path: &str, logs: &Path) -> Service {
        Service { name, words, path: path.to_owned(), log: logs.join(format!("{name}.log")), child: None }
    }

    pub fn start(&mut self) -> Result<()> {
        let mut log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        writeln!(log, "--- started: {}", self.words.join(" "))?;
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).env("PATH", &self.path).env_remove("KUBECONFIG");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.spawn().with_context(|| format!("cannot start {}", self.name))?);
        Ok(())
    }

    /// An error once it has ended by itself, with the last it said.
    pub fn check(&mut self) -> Result<()> {
        let Some(child) = &mut self.child else { bail!("{} is not running", self.name) };
        match child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended: {status}\n{}", self.name, self.last_words()),
        }
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        signal("TERM", child.id())?;
        let start = Instant::now();
        while child.try_wait()?.is_none() {
            if start.elapsed() > PATIENCE {
                child.kill()?;
                child.wait()?;
                bail!("{} did not end when it was told to", self.name);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Ends it without a word.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.start()
    }

    fn last_words(&self) -> String {
        let tail = || -> Result<String> {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(2000)))?;
            Ok(std::io::read_to_string(file)?)
        };
        let said = tail().unwrap_or_default();
        said.lines().skip(1).map(|line| format!("      {line}\n")).collect()
    }
}

/// `kill`, the program: sending a signal by hand would need unsafe code.
pub fn signal(name: &str, pid: u32) -> Result<()> {
    crate::sh::output(Command::new("kill").arg(format!("-{name}")).arg(pid.to_string())).map(drop)
}
