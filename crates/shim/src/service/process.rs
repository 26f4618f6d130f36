//! What the shim knows of a process: a container's first one, or one that was added by exec.

use crate::stdio::{Paths, Streams};
use containerd_shim::protos::protobuf::MessageField;
use containerd_shim::protos::protobuf::well_known_types::timestamp::Timestamp;
use containerd_shim::util::timestamp;
use tokio::sync::watch;

/// A container and, for one of its other processes, the name of that.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub container: String,
    pub exec: String,
}

impl Key {
    pub(super) fn new(container: &str, exec: &str) -> Self {
        Self { container: container.to_owned(), exec: exec.to_owned() }
    }

    pub(super) fn is_exec(&self) -> bool {
        !self.exec.is_empty()
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_exec() { write!(f, "{}/{}", self.container, self.exec) } else { f.write_str(&self.container) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Created,
    /// The agent is at it. An end that comes meanwhile waits until the start has been told.
    Starting,
    Running,
    Paused,
    Stopped,
}

pub(super) struct Process {
    /// What the agent calls it.
    pub number: u32,
    /// What containerd is told: no process of the host has such a number, except for the machine's own.
    pub pid: u32,
    pub state: State,
    pub bundle: String,
    pub terminal: bool,
    pub paths: Paths,
    pub streams: Streams,
    /// An end that came before the start was told.
    pub early_end: Option<End>,
    /// Kept by who waits for it, also when the process has been deleted meanwhile.
    ended: watch::Sender<Option<Exit>>,
}

/// What containerd is told of an end.
#[derive(Debug, Clone, Default)]
pub(super) struct Exit {
    pub status: u32,
    pub at: MessageField<Timestamp>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub status: u32,
    pub out_of_memory: bool,
}

impl Process {
    pub(super) fn new(number: u32, pid: u32, bundle: &str, terminal: bool, paths: Paths) -> Self {
        Self {
            number,
            pid,
            state: State::Created,
            bundle: bundle.to_owned(),
            terminal,
            paths,
            streams: Streams::default(),
            early_end: None,
            ended: watch::Sender::new(None),
        }
    }

    /// Notes the end; false if it was known.
    pub(super) fn end(&mut self, status: u32) -> bool {
        if self.state == State::Stopped {
            return false;
        }
        self.state = State::Stopped;
        self.streams.stop_input();
        let at = timestamp().map(MessageField::some).unwrap_or_default();
        self.ended.send_replace(Some(Exit { status, at }));
        true
    }

    /// How it ended; zeros while it has not.
    pub(super) fn exit(&self) -> Exit {
        self.ended.borrow().clone().unwrap_or_default()
    }

    /// Has its end once it comes.
    pub(super) fn watch_end(&self) -> watch::Receiver<Option<Exit>> {
        self.ended.subscribe()
    }
}
