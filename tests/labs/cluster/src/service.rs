//! A process that runs until it is told otherwise, with its output in a file: what systemd is on a real node. One that
//! ends by itself is started again.

use anyhow::{Context, Result, bail, ensure};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use xtask::sh;

/// An API server lets those who watch go on for up to a minute.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How long one that ended by itself stays down, and how often it may do so.
const PAUSE: Duration = Duration::from_millis(500);
const MOST_ENDS: u32 = 20;

pub(crate) struct Service {
    pub name: &'static str,
    state: Arc<Mutex<State>>,
}

struct State {
    words: Vec<String>,
    path: String,
    log: PathBuf,
    /// None while it is not to run.
    child: Option<Child>,
    /// How often it ended by itself.
    ends: u32,
}

impl Service {
    /// Starts it.
    pub(crate) fn start_new(name: &'static str, words: Vec<String>, path: &str, logs: &Path) -> Result<Service> {
        let log = logs.join(format!("{name}.log"));
        let state = State { words, path: path.to_owned(), log, child: None, ends: 0 };
        let service = Service { name, state: Arc::new(Mutex::new(state)) };
        service.start()?;
        let state = Arc::downgrade(&service.state);
        std::thread::spawn(move || {
            while let Some(state) = state.upgrade() {
                let ended = lock(&state).watch();
                drop(state);
                std::thread::sleep(if ended { PAUSE } else { Duration::from_millis(50) });
            }
        });
        Ok(service)
    }

    pub(crate) fn start(&self) -> Result<()> {
        let mut state = lock(&self.state);
        state.spawn().with_context(|| format!("cannot start {}", self.name))
    }

    /// An error when it does not stay up, with the last it said.
    pub(crate) fn check(&self) -> Result<()> {
        let state = lock(&self.state);
        ensure!(state.ends < MOST_ENDS, "{} ends again and again\n{}", self.name, state.last_words());
        Ok(())
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn stop(&self) -> Result<()> {
        let Some(mut child) = lock(&self.state).child.take() else { return Ok(()) };
        sh::output(Command::new("kill").arg("-TERM").arg(child.id().to_string()))?;
        let start = Instant::now();
        while child.try_wait()?.is_none() {
            if start.elapsed() > TIMEOUT {
                child.kill()?;
                child.wait()?;
                bail!("{} did not end when it was told to", self.name);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Ends it without a word.
    pub(crate) fn kill(&self) -> Result<()> {
        if let Some(mut child) = lock(&self.state).child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    pub(crate) fn restart(&self) -> Result<()> {
        self.stop()?;
        self.start()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("nobody panics with it")
}

impl State {
    fn spawn(&mut self) -> Result<()> {
        let mut log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        writeln!(log, "--- started: {}", self.words.join(" "))?;
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).env("PATH", &self.path).env_remove("KUBECONFIG");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.spawn()?);
        Ok(())
    }

    /// Starts it again if it has ended by itself a moment ago, which is what the answer says.
    fn watch(&mut self) -> bool {
        let Some(child) = &mut self.child else { return false };
        if self.ends >= MOST_ENDS || !matches!(child.try_wait(), Ok(Some(_))) {
            return false;
        }
        self.ends += 1;
        // A failure leaves the ended child in place, and is tried again.
        let _ = self.spawn();
        true
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
