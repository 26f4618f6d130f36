//! The ends of a process's streams that containerd has: named pipes, or a file for its output.
//!
//! Pipes are opened for reading and writing where they are written, so that opening them does not wait and a reader that goes
//! does not end the process. A writer of ours stays at the pipe that is read, until containerd says that input has
//! ended: that writers leave says nothing.

use crate::link::Link;
use agent::protocol::{CHUNK, StreamId, StreamKind, WINDOW};
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

/// Credit is given in pieces of this size: a frame for each chunk would be many.
const GRANT: u32 = WINDOW / 4;

/// Names of a process's streams, as containerd gave them; empty for one that it does not want.
#[derive(Debug, Clone, Default)]
pub(crate) struct Paths {
    pub stdin: String,
    pub stdout: String,
    pub stderr: String,
}

/// What carries a process's streams.
#[derive(Default)]
pub(crate) struct Streams {
    outputs: Vec<JoinHandle<()>>,
    /// Held until input is said to have ended.
    stdin_writer: Option<File>,
    input: Option<JoinHandle<()>>,
}

enum Sink {
    Pipe(pipe::Sender),
    File(File),
    Nowhere,
}

impl Sink {
    fn open(path: &str) -> io::Result<Self> {
        if path.is_empty() {
            return Ok(Self::Nowhere);
        }
        match path.split_once("://") {
            None | Some(("fifo", _)) => {
                let path = path.trim_start_matches("fifo://");
                Ok(Self::Pipe(pipe::OpenOptions::new().read_write(true).open_sender(path)?))
            }
            Some(("file", path)) => Ok(Self::File(File::options().create(true).append(true).open(path)?)),
            Some((scheme, _)) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, format!("output to {scheme}:// is not supported")))
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Pipe(pipe) => pipe.write_all(bytes).await,
            Self::File(file) => file.write_all(bytes),
            Self::Nowhere => Ok(()),
        }
    }
}

impl Streams {
    /// Opens the outputs of a process that is about to be made.
    pub(crate) fn open(link: &Link, process: u32, paths: &Paths, terminal: bool) -> io::Result<Self> {
        let mut streams = Self::default();
        let kinds = [(StreamKind::Stdout, &paths.stdout), (StreamKind::Stderr, &paths.stderr)];
        // A terminal has one output.
        for (kind, path) in kinds.into_iter().take(if terminal { 1 } else { 2 }) {
            let mut sink = Sink::open(path)?;
            let stream = StreamId { process, kind };
            let mut chunks = link.open_output(stream);
            let link = link.clone();
            streams.outputs.push(tokio::spawn(async move {
                let mut passed_on = 0;
                while let Some(chunk) = chunks.recv().await {
                    if sink.write(&chunk).await.is_err() {
                        // Nobody can read it any more; the process goes on.
                        sink = Sink::Nowhere;
                    }
                    passed_on += u32::try_from(chunk.len()).unwrap_or(0);
                    if passed_on >= GRANT {
                        link.grant(stream, passed_on);
                        passed_on = 0;
                    }
                }
            }));
        }
        Ok(streams)
    }

    /// Begins to carry input to a process that runs.
    pub(crate) fn feed(&mut self, link: &Link, process: u32, paths: &Paths) -> io::Result<()> {
        if paths.stdin.is_empty() {
            link.end_input(process);
            return Ok(());
        }
        let mut from = pipe::OpenOptions::new().open_receiver(&paths.stdin)?;
        self.stdin_writer = Some(File::options().write(true).open(&paths.stdin)?);
        let credit = link.open_input(process);
        let link = link.clone();
        self.input = Some(tokio::spawn(async move {
            let mut buffer = vec![0; CHUNK];
            while let Ok(most) = take_credit(&credit).await {
                match from.read(&mut buffer[..most]).await {
                    Ok(0) | Err(_) => break,
                    Ok(count) => {
                        credit.add_permits(most - count);
                        link.input(process, buffer[..count].to_vec());
                    }
                }
            }
            link.end_input(process);
        }));
        Ok(())
    }

    /// There will be no more input than what is in the pipe.
    pub(crate) fn close_input(&mut self) {
        self.stdin_writer = None;
    }

    /// Takes out what is still being carried.
    pub(crate) fn take_outputs(&mut self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut self.outputs)
    }

    /// Ends input: the process has ended.
    pub(crate) fn stop_input(&mut self) {
        self.stdin_writer = None;
        if let Some(input) = self.input.take() {
            input.abort();
        }
    }
}

/// Takes as much credit as there is, up to a chunk; waits for some.
async fn take_credit(credit: &Arc<Semaphore>) -> Result<usize, tokio::sync::AcquireError> {
    credit.acquire().await?.forget();
    let more = credit.available_permits().min(CHUNK - 1);
    match credit.try_acquire_many(u32::try_from(more).unwrap_or(0)) {
        Ok(permits) => {
            permits.forget();
            Ok(1 + more)
        }
        Err(_) => Ok(1),
    }
}

use tokio::sync::Semaphore;
