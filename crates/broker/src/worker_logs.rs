//! What workers write to standard error, on its way to the broker's own.
//!
//! A worker that has fallen may write anything, at any rate, and do to the descriptor what it likes. So each worker has a
//! pipe of its own, and a thread here makes events of its lines: cut to a length, without characters that would end a
//! line or move a terminal's cursor, named as the worker's, and only so many of them. The broker's loop has no part in it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::EventfdFlags;
use rustix::event::epoll::{self, EventData, EventFlags};
use tracing::Level;

use crate::throttle::Throttle;

/// Longer lines are cut.
const MAX_LINE: usize = 2048;
/// A panic with all that belongs to it fits.
const BURST: u32 = 200;
const EVERY: Duration = Duration::from_millis(100);
/// Bytes taken from one worker before others are looked at.
const PART: usize = 16 << 10;
/// Parts of what a dead worker has left in its pipe: as much as an ordinary one holds.
const LAST_PARTS: usize = 4;
/// Not the number of any stream.
const BELL: u64 = 0;
/// How long nothing is read after a worker has said too much: what it writes meanwhile waits in its pipe.
const READ_PAUSE: Duration = Duration::from_millis(10);
/// Those who are dead have said all they had to say; somebody else may hold their pipe.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct WorkerLogs {
    shared: Arc<Shared>,
    next: u64,
}

struct Shared {
    epoll: OwnedFd,
    /// Rung when a worker is gone.
    bell: OwnedFd,
    gone: Mutex<Vec<u32>>,
    /// With their workers' numbers; none while the thread reads it.
    streams: Mutex<BTreeMap<u64, (u32, Option<Stream>)>>,
    ended: Condvar,
}

struct Stream {
    pipe: OwnedFd,
    /// A line that is not whole yet.
    line: Vec<u8>,
    throttle: Throttle,
}

impl WorkerLogs {
    pub(crate) fn start() -> io::Result<Self> {
        Self::with_sink(tell)
    }

    fn with_sink(sink: impl Fn(u32, Level, &str, u64) + Send + 'static) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &bell, EventData::new_u64(BELL), EventFlags::IN)?;
        let (gone, streams, ended) = (Mutex::default(), Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { epoll, bell, gone, streams, ended });
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new().name("worker-logs".into()).spawn(move || theirs.read_for_ever(&sink))?;
        Ok(Self { shared, next: 0 })
    }

    /// A pipe: what is written to the second end is said by the worker that the first is added for.
    pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&read, true)?;
        Ok((read, write))
    }

    pub(crate) fn add(&mut self, worker: u32, pipe: OwnedFd) {
        self.next += 1;
        let mut streams = self.shared.lock();
        // Under the lock, so that the thread finds it when the first event comes.
        if epoll::add(&self.shared.epoll, &pipe, EventData::new_u64(self.next), EventFlags::IN).is_ok() {
            let stream = Stream { pipe, line: Vec::new(), throttle: Throttle::new(BURST, EVERY) };
            streams.insert(self.next, (worker, Some(stream)));
        }
    }

    /// A worker is gone. It may have left its end of the pipe to its client, to whom nobody listens.
    pub(crate) fn end(&self, worker: u32) {
        self.shared.gone.lock().push(worker);
        // It cannot be full: the thread takes all at once.
        let _ = rustix::io::write(&self.shared.bell, &1u64.to_ne_bytes());
    }

    /// Waits until all is said of those who are not alive any more.
    pub(crate) fn finish(&self, alive: &BTreeSet<u32>) {
        let end = Instant::now() + FINISH_TIMEOUT;
        let mut streams = self.shared.lock();
        while streams.values().any(|(worker, _)| !alive.contains(worker)) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.shared.ended.wait_for(&mut streams, left);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (u32, Option<Stream>)>> {
        self.streams.lock()
    }

    fn read_for_ever(&self, sink: &impl Fn(u32, Level, &str, u64)) {
        let mut buffer = vec![0; PART];
        loop {
            let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
            let count = epoll::wait(&self.epoll, &mut events, None).unwrap_or(0);
            let mut too_much = false;
            for event in &events[..count] {
                let id = event.data.u64();
                if id == BELL {
                    self.bury(&mut buffer, sink);
                    continue;
                }
                // Nobody waits for the lock while something is said, which may take as long as the reader of our logs likes.
                let taken = self.lock().get_mut(&id).and_then(|(worker, stream)| Some((*worker, stream.take()?)));
                let Some((worker, mut stream)) = taken else { continue };
                let open = stream.read(&mut buffer, |level, text, held_back| sink(worker, level, text, held_back));
                too_much |= stream.throttle.is_exhausted(Instant::now());
                let mut streams = self.lock();
                if open {
                    streams.insert(id, (worker, Some(stream)));
                } else {
                    streams.remove(&id);
                    self.ended.notify_all();
                }
            }
            if too_much {
                std::thread::sleep(READ_PAUSE);
            }
        }
    }

    /// Says the last words of those who are gone, and forgets them.
    fn bury(&self, buffer: &mut [u8], sink: &impl Fn(u32, Level, &str, u64)) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let gone = std::mem::take(&mut *self.gone.lock());
        let of_dead = |(id, (worker, _)): (&u64, &(u32, Option<Stream>))| gone.contains(worker).then_some(*id);
        let ids: Vec<u64> = self.lock().iter().filter_map(of_dead).collect();
        for id in ids {
            let taken = self.lock().get_mut(&id).and_then(|(worker, stream)| Some((*worker, stream.take()?)));
            if let Some((worker, mut stream)) = taken {
                let mut say = |level, text: &str, held_back| sink(worker, level, text, held_back);
                for _ in 0..LAST_PARTS {
                    if !stream.read(buffer, &mut say) {
                        break;
                    }
                }
                stream.end_line(&mut say);
            }
            self.lock().remove(&id);
        }
        self.ended.notify_all();
    }
}

impl Stream {
    /// Takes what is there; false when nothing more will come.
    fn read(&mut self, buffer: &mut [u8], mut say: impl FnMut(Level, &str, u64)) -> bool {
        let count = match rustix::io::read(&self.pipe, &mut *buffer) {
            Ok(count) => count,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return true,
            Err(_) => 0,
        };
        for byte in &buffer[..count] {
            match byte {
                b'\n' => self.end_line(&mut say),
                byte if self.line.len() < MAX_LINE => self.line.push(*byte),
                _ => {}
            }
        }
        if count == 0 {
            self.end_line(&mut say);
        }
        count > 0
    }

    fn end_line(&mut self, say: &mut impl FnMut(Level, &str, u64)) {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty()
            && let Some(held_back) = self.throttle.pass(Instant::now())
        {
            let text = printable(&String::from_utf8_lossy(&line));
            let (level, text) = without_head(&text);
            say(level, text, held_back);
        }
    }
}

/// Everything that is not plain text, escaped.
fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => safe.push(c),
            '\t' => safe.push(' '),
            _ => safe.extend(c.escape_debug()),
        }
    }
    safe
}

/// Workers write time and level before each line; our own lines have them, too. Whatever else writes there, a driver or a
/// panic, is worth a warning.
fn without_head(line: &str) -> (Level, &str) {
    let head = || {
        let (time, rest) = line.split_once(' ')?;
        let (level, text) = rest.trim_start().split_once(' ')?;
        let is_time = time.ends_with('Z') && time.starts_with(|c: char| c.is_ascii_digit());
        Some((level.parse().ok().filter(|_| is_time)?, text))
    };
    head().unwrap_or((Level::WARN, line))
}

fn tell(worker: u32, level: Level, text: &str, held_back: u64) {
    if held_back > 0 {
        tracing::warn!(worker, lines = held_back, "worker log lines dropped");
    }
    match level {
        Level::ERROR => tracing::error!(worker, %text, "worker log"),
        Level::WARN => tracing::warn!(worker, %text, "worker log"),
        Level::INFO => tracing::info!(worker, %text, "worker log"),
        Level::DEBUG => tracing::debug!(worker, %text, "worker log"),
        Level::TRACE => tracing::trace!(worker, %text, "worker log"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc;

    use super::*;

    type Said = (u32, Level, String, u64);

    fn logs() -> (WorkerLogs, mpsc::Receiver<Said>) {
        let (sender, said) = mpsc::channel();
        let sink = move |worker, level, text: &str, held_back| {
            let _ = sender.send((worker, level, text.to_owned(), held_back));
        };
        (WorkerLogs::with_sink(sink).unwrap(), said)
    }

    fn worker(logs: &mut WorkerLogs, number: u32) -> std::fs::File {
        let (ours, theirs) = WorkerLogs::pipe().unwrap();
        logs.add(number, ours);
        theirs.into()
    }

    #[test]
    fn lines_are_named_and_keep_their_level() {
        let (mut logs, said) = logs();
        let (mut first, mut second) = (worker(&mut logs, 1), worker(&mut logs, 2));
        first.write_all(b"2026-11-15T13:00:00.123456Z  INFO it says reason=\"why\"\nthread panicked").unwrap();
        assert_eq!(said.recv().unwrap(), (1, Level::INFO, "it says reason=\"why\"".into(), 0));
        second.write_all(b"INFO without a time\n").unwrap();
        assert_eq!(said.recv().unwrap(), (2, Level::WARN, "INFO without a time".into(), 0));
        drop(first);
        assert_eq!(said.recv().unwrap(), (1, Level::WARN, "thread panicked".into(), 0), "the last line needs no end");
        logs.finish(&BTreeSet::from([2]));
        assert_eq!(logs.shared.lock().len(), 1);
    }

    #[test]
    fn nothing_that_is_said_looks_like_another_line_or_moves_a_cursor() {
        let (mut logs, said) = logs();
        let mut fallen = worker(&mut logs, 7);
        fallen.write_all(b"a\rb\x1b[2J\x07\xff\xe2\x80\xae\x00c\n").unwrap();
        let (_, _, text, _) = said.recv().unwrap();
        assert_eq!(text, "a\\rb\\u{1b}[2J\\u{7}\u{fffd}\\u{202e}\\0c");
        fallen.write_all(&vec![b'x'; 3 * MAX_LINE]).unwrap();
        fallen.write_all(b"\nshort\n").unwrap();
        assert_eq!(said.recv().unwrap().2.len(), MAX_LINE);
        assert_eq!(said.recv().unwrap().2, "short");
    }

    #[test]
    fn who_says_too_much_is_not_heard_and_others_are() {
        let (mut logs, said) = logs();
        let (mut fallen, mut honest) = (worker(&mut logs, 1), worker(&mut logs, 2));
        let lines = 50_000;
        let flood = std::thread::spawn(move || {
            for _ in 0..lines {
                fallen.write_all(b"again and again\n").unwrap();
            }
        });
        honest.write_all(b"once\n").unwrap();
        flood.join().unwrap();
        drop(honest);
        logs.finish(&BTreeSet::new());
        drop(logs);
        let said: Vec<Said> = said.try_iter().collect();
        assert_eq!(said.iter().filter(|(worker, ..)| *worker == 2).count(), 1);
        assert!(said.len() < lines / 2, "{} lines", said.len());
    }

    #[test]
    fn who_holds_the_pipe_of_the_dead_is_not_heard() {
        let (mut logs, said) = logs();
        let mut fallen = worker(&mut logs, 7);
        let mut heir = fallen.try_clone().unwrap();
        fallen.write_all(b"last words").unwrap();
        drop(fallen);
        logs.end(7);
        assert_eq!(said.recv().unwrap(), (7, Level::WARN, "last words".into(), 0));
        logs.finish(&BTreeSet::new());
        assert_eq!(logs.shared.lock().len(), 0);
        let broken = heir.write_all(b"more").unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn what_a_worker_does_to_its_end_is_not_seen_at_ours() {
        let (ours, theirs) = WorkerLogs::pipe().unwrap();
        rustix::io::ioctl_fionbio(&theirs, true).unwrap();
        while rustix::io::write(&theirs, &[0; 4096]).is_ok() {}
        rustix::io::ioctl_fionbio(&theirs, false).unwrap();
        assert!(rustix::fs::fcntl_getfl(&ours).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
    }
}
