//! Other processes: signals to them, and what they log.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::until;

/// Sends a signal to a process that the caller has started, or knows to be a worker of its own proxy.
///
/// # Panics
/// When there is no such process.
pub fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    rustix::process::kill_process(pid, signal).expect("the process is there");
}

pub fn is_alive(pid: u32) -> bool {
    // A zombie is dead: only its parent has not looked yet.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
}

/// A process that logs JSON on its standard error; it ends with this value.
pub struct Logged {
    pub child: Child,
    log: Arc<Mutex<Vec<Value>>>,
}

impl Logged {
    /// # Panics
    /// When it does not start.
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let log = Arc::new(Mutex::new(Vec::new()));
        let (lines, said) = (BufReader::new(child.stderr.take().expect("piped")).lines(), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // A line that is not JSON fails the test that waits for an event.
                let line = serde_json::from_str(&line).unwrap_or_else(|_| serde_json::json!({ "nonsense": line }));
                said.lock().expect("nobody panics with it").push(line);
            }
        });
        Self { child, log }
    }

    fn log(&self) -> Vec<Value> {
        self.log.lock().expect("nobody panics with it").clone()
    }

    /// Waits for an event, and answers the last of its kind.
    ///
    /// # Panics
    /// When it never comes, or the process says something that is no JSON.
    #[track_caller]
    pub fn logged(&self, event: &str) -> Value {
        let mut found = None;
        until(event, || {
            let log = self.log();
            assert!(log.iter().all(|line| line.get("nonsense").is_none()), "{log:#?}");
            found = log.into_iter().rev().find(|line| line["event"] == event);
            found.is_some()
        });
        found.expect("until it is found")
    }

    pub fn count(&self, event: &str) -> usize {
        self.log().iter().filter(|line| line["event"] == event).count()
    }

    /// Sends a signal that ends it, and waits for that.
    pub fn kill(&mut self, signal: Signal) {
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), signal);
        let _ = self.child.wait();
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- what {} logged ---\n{:#?}", self.child.id(), self.log());
        }
    }
}
