//! What takes longer than two seconds is said on a terminal, in one line that changes and goes away again.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const QUIET: Duration = Duration::from_secs(2);
const REFRESH: Duration = Duration::from_millis(500);

/// Something that takes a while; the line goes when this does.
pub struct Progress {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

struct Shared {
    what: String,
    /// How many parts of it there are, if there are parts.
    parts: usize,
    done: AtomicUsize,
    /// Directories whose contents grow while it lasts.
    growing: Vec<PathBuf>,
    ended: Mutex<bool>,
    wake: Condvar,
    shown: AtomicBool,
}

impl Progress {
    pub fn start(what: &str) -> Progress {
        Progress::new(what, 0, Vec::new())
    }

    /// Of several parts, each of which calls [`Progress::part_done`].
    pub fn of_parts(what: &str, parts: usize) -> Progress {
        Progress::new(what, parts, Vec::new())
    }

    /// Of several parts that are downloaded into these directories.
    pub fn of_downloads(what: &str, parts: usize, into: Vec<PathBuf>) -> Progress {
        Progress::new(what, parts, into)
    }

    fn new(what: &str, parts: usize, growing: Vec<PathBuf>) -> Progress {
        let shared = Arc::new(Shared {
            what: what.to_owned(),
            parts,
            done: AtomicUsize::new(0),
            growing,
            ended: Mutex::new(false),
            wake: Condvar::new(),
            shown: AtomicBool::new(false),
        });
        // Files and pipes get no lines that change.
        let writer = std::io::stderr().is_terminal().then(|| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.show())
        });
        Progress { shared, writer }
    }

    pub fn part_done(&self) {
        self.shared.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Prints a line that stays, in place of the one that changes.
    pub fn say(&self, line: &str) {
        self.shared.clear();
        println!("{line}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        *self.shared.ended.lock().expect("no panic holds it") = true;
        self.shared.wake.notify_all();
        if let Some(writer) = self.writer.take() {
            // It panics only where the terminal is gone.
            let _ = writer.join();
        }
    }
}

impl Shared {
    fn show(&self) {
        let start = Instant::now();
        let before: u64 = self.growing.iter().map(|dir| size(dir)).sum();
        let mut ended = self.ended.lock().expect("no panic holds it");
        let mut wait = QUIET;
        while !*ended {
            (ended, _) = self.wake.wait_timeout(ended, wait).expect("no panic holds it");
            wait = REFRESH;
            if !*ended && start.elapsed() >= QUIET {
                let bytes = self.growing.iter().map(|dir| size(dir)).sum::<u64>().saturating_sub(before);
                let line = self.line(start.elapsed(), bytes);
                let mut terminal = std::io::stderr();
                let _ = write!(terminal, "\r\x1b[K{line}").and_then(|()| terminal.flush());
                self.shown.store(true, Ordering::Relaxed);
            }
        }
        drop(ended);
        self.clear();
    }

    fn clear(&self) {
        if self.shown.swap(false, Ordering::Relaxed) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    /// Such as `fetching compilers: 3 of 5, 124.5 MB, 12 s`.
    fn line(&self, elapsed: Duration, bytes: u64) -> String {
        let mut facts = Vec::new();
        if self.parts > 0 {
            facts.push(format!("{} of {}", self.done.load(Ordering::Relaxed), self.parts));
        }
        if !self.growing.is_empty() {
            facts.push(format!("{:.1} MB", bytes as f64 / 1e6));
        }
        facts.push(format!("{} s", elapsed.as_secs()));
        format!("{}: {}", self.what, facts.join(", "))
    }
}

/// Bytes of all files below a directory, of which some may come and go meanwhile.
fn size(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => size(&entry.path()),
        Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |data| data.len()),
        _ => 0,
    };
    entries.map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is() {
        let progress = Progress::of_downloads("fetching compilers", 5, vec![PathBuf::from("/nowhere")]);
        progress.part_done();
        let line = progress.shared.line(Duration::from_secs(12), 124_500_000);
        assert_eq!(line, "fetching compilers: 1 of 5, 124.5 MB, 12 s");
        assert_eq!(Progress::start("building").shared.line(QUIET, 0), "building: 2 s");
    }

    #[test]
    fn what_grows_is_measured_with_all_that_is_below() {
        let dir = std::env::temp_dir().join(format!("xtask-progress-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("a/b")).unwrap();
        std::fs::write(dir.join("a/b/file"), [0; 1000]).unwrap();
        std::fs::write(dir.join("file"), [0; 24]).unwrap();
        assert_eq!(size(&dir), 1024);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
