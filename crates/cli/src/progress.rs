//! Says on a terminal what a command is busy with, when that takes longer than a moment.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Before this nobody wonders.
const QUIET: Duration = Duration::from_secs(2);
const REFRESH: Duration = Duration::from_secs(1);

/// The line disappears with this.
pub(crate) struct Progress(Option<(Sender<()>, JoinHandle<()>)>);

impl Progress {
    /// `what`: such as "building the image".
    pub(crate) fn of(what: &'static str) -> Self {
        if !io::stderr().is_terminal() {
            return Self(None);
        }
        let (done, ended) = channel();
        let thread = std::thread::spawn(move || show(what, QUIET, REFRESH, &mut io::stderr(), &ended));
        Self(Some((done, thread)))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((done, thread)) = self.0.take() {
            drop(done);
            let _ = thread.join();
        }
    }
}

/// Rewrites one line until the other end is dropped; then clears it. A terminal that cannot be written to is left alone.
fn show(what: &str, quiet: Duration, refresh: Duration, out: &mut impl Write, ended: &Receiver<()>) {
    let start = Instant::now();
    let mut pause = quiet;
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        pause = refresh;
        let _ = write!(out, "\rbulkhead: {what} ({} s)\x1b[K", start.elapsed().as_secs()).and_then(|()| out.flush());
    }
    if pause == refresh {
        let _ = write!(out, "\r\x1b[K").and_then(|()| out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends the command once so many lines were shown.
    struct Screen {
        text: Vec<u8>,
        lines: u32,
        done: Option<Sender<()>>,
    }

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.text.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            self.lines += 1;
            if self.lines == 3 {
                self.done = None;
            }
            Ok(())
        }
    }

    #[test]
    fn a_long_command_says_what_it_does_and_leaves_nothing_behind() {
        let (done, ended) = channel();
        let mut screen = Screen { text: Vec::new(), lines: 0, done: Some(done) };
        show("building", Duration::ZERO, Duration::from_millis(1), &mut screen, &ended);
        let text = String::from_utf8(screen.text).unwrap();
        assert_eq!(text.matches("bulkhead: building (0 s)").count(), 3, "{text:?}");
        assert!(text.ends_with("\r\x1b[K"), "{text:?}");
    }

    #[test]
    fn a_short_one_says_nothing() {
        let (done, ended) = channel();
        drop(done);
        let mut screen = Screen { text: Vec::new(), lines: 0, done: None };
        show("building", Duration::from_secs(3600), REFRESH, &mut screen, &ended);
        assert!(screen.text.is_empty());
    }
}
