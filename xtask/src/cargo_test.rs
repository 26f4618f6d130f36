//! `cargo test`, with its tests counted.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use xtask::report::Counts;

/// What was written before cargo ended has been read when nothing has come for so long.
const QUIET: Duration = Duration::from_secs(1);

/// Runs cargo and shows what it prints, except for the lines of tests that passed.
pub(crate) fn run(cargo: &mut Command) -> Result<Counts> {
    let not_tried = std::env::temp_dir().join(format!("bulkhead-not-tried-{}", std::process::id()));
    cargo.env(testkit::NOT_TRIED, &not_tried);
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let lines = lines(child.stdout.take().context("cargo has no stdout")?);
    let mut counts = Counts::default();
    loop {
        match lines.recv_timeout(QUIET) {
            Ok(line) if count(&line, &mut counts) => {}
            Ok(line) => println!("{line}"),
            Err(RecvTimeoutError::Disconnected) => break,
            // A process that a failed test has left behind holds the pipe open, maybe for ever.
            Err(RecvTimeoutError::Timeout) if child.try_wait()?.is_some() => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    let status = child.wait()?;
    // Some find out only when they run that they cannot be tried here.
    let found = std::fs::read_to_string(&not_tried).unwrap_or_default();
    let _ = std::fs::remove_file(&not_tried);
    counts.skipped.extend(found.lines().map(str::to_owned));
    if !status.success() && counts.failed == 0 {
        bail!("cargo test did not get through: {status}");
    }
    if counts.passed + counts.failed == 0 {
        bail!("no test ran");
    }
    Ok(counts)
}

/// The lines of a stream, as they come.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            // A test may print what is not UTF-8; it only matters that it is shown.
            let line = line.unwrap_or_else(|_| "(a line that is not text)".to_string());
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Takes a line of libtest's into account; true when it need not be shown.
fn count(line: &str, counts: &mut Counts) -> bool {
    if let Some(result) = line.strip_prefix("test result: ") {
        let number = |what: &str| -> usize {
            let before = result.split(what).next().unwrap_or_default();
            before.rsplit([' ', '.']).find_map(|word| word.parse().ok()).unwrap_or(0)
        };
        counts.passed += number(" passed");
        counts.failed += number(" failed");
        return true;
    }
    if let Some(test) = line.strip_prefix("test ") {
        if let Some((name, why)) = test.split_once(" ... ignored") {
            let why = why.trim_start_matches(", ");
            counts.skipped.push(format!("{name}: {}", if why.is_empty() { "no reason given" } else { why }));
            return true;
        }
        return test.ends_with(" ... ok");
    }
    line.is_empty() || (line.starts_with("running ") && line.ends_with("tests"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_the_output_open_is_not_waited_for() {
        let mut shell = Command::new("sh");
        let directory = testkit::directory();
        let pid = directory.join("pid");
        let script = "sleep 1000 & echo $! >$0; echo 'test result: ok. 3 passed; 0 failed; 0 ignored'";
        shell.args(["-c", script]).arg(&pid);
        assert_eq!(run(&mut shell).unwrap().passed, 3);
        testkit::signal(std::fs::read_to_string(pid).unwrap().trim().parse().unwrap(), testkit::Signal::KILL);
    }

    #[test]
    fn results_and_reasons_are_counted() {
        let mut counts = Counts::default();
        assert!(count("test a::b ... ok", &mut counts));
        assert!(!count("test a::c ... FAILED", &mut counts));
        assert!(count("test a::d ... ignored, needs a GPU", &mut counts));
        assert!(count(
            "test result: FAILED. 12 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out",
            &mut counts
        ));
        assert!(count("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out", &mut counts));
        assert_eq!((counts.passed, counts.failed), (15, 1));
        assert_eq!(counts.skipped, ["a::d: needs a GPU"]);
    }
}
