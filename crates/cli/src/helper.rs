//! Runs this program again for anything that loads a driver, so that a hang or a crash of the driver does no harm.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The output of a helper process, and how it ended.
pub(crate) struct Output {
    pub output: String,
    pub errors: String,
    /// None if it was killed after the timeout.
    pub status: Option<std::process::ExitStatus>,
}

impl Output {
    /// Why it failed, in one line; none if it did not.
    pub(crate) fn failure(&self) -> Option<String> {
        let last = self.errors.lines().last().unwrap_or_default().trim_start_matches("bulkhead: ").to_owned();
        match self.status {
            None => Some("timed out".to_owned()),
            Some(status) if status.success() => None,
            Some(status) if last.is_empty() => Some(format!("failed with {status}")),
            Some(_) => Some(last),
        }
    }
}

/// `bulkhead`, even if the file that it was started from is gone.
pub(crate) fn own() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("bulkhead");
    command
}

pub(crate) fn run(mut command: Command, timeout: Duration) -> std::io::Result<Output> {
    // A group of its own, so that what it has started can be ended with it.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let (output, errors) = (read(child.stdout.take()), read(child.stderr.take()));
    let start = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if start.elapsed() < timeout => std::thread::sleep(Duration::from_millis(5)),
            None => {
                if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
                    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                }
                let _ = child.wait();
                break None;
            }
        }
    };
    let text = |reader: std::thread::JoinHandle<String>| reader.join().unwrap_or_default();
    Ok(Output { output: text(output), errors: text(errors), status })
}

fn read(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Output {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn a_helpers_output_and_why_it_fails() {
        let fine = shell("echo yes; echo much >&2");
        assert_eq!((fine.output.as_str(), fine.failure()), ("yes\n", None));
        assert_eq!(shell("echo bulkhead: why >&2; exit 3").failure().as_deref(), Some("why"));
        assert!(shell("exit 3").failure().is_some_and(|why| why.contains('3')));
    }

    #[test]
    fn one_that_hangs_is_killed_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & wait"]);
        let said = run(command, Duration::from_millis(100)).unwrap();
        assert_eq!(said.failure().as_deref(), Some("timed out"));
    }
}
