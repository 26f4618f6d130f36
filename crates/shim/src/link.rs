//! The shim's end of the link to the agent. Everything that comes through it is an attack until it is checked.
//!
//! One thread reads, one writes; both end with the machine. Neither ever waits for anything but the link: what a process
//! prints goes into a queue that its credit bounds, what the agent is told waits in a queue with an upper bound. An agent
//! that says what an honest one does not, that does not read, or that leaves a request unanswered, has its machine ended:
//! then every process has been killed, and containerd learns that.

use agent::protocol::{
    Answer, Decode, Down, Failure, FailureKind, MAX_UP, Request, StreamId, Up, VERSION, WINDOW, frame,
};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// What may wait for an agent that does not read.
const MAX_QUEUE: usize = 16 << 20;
/// How long an agent may take for a request. Mounts and fork are quick; a machine that swaps is not.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a machine may take until its agent answers.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("{}", .0.text)]
    Refused(Failure),
    #[error("the pod's machine is gone")]
    Gone,
    #[error("the pod's machine does not answer")]
    Timeout,
}

impl LinkError {
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Gone | Self::Refused(Failure { kind: FailureKind::NotFound, .. }))
    }
}

/// What happens in the machine without being asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Exited {
        process: u32,
        status: u8,
        out_of_memory: bool,
    },
    TerminationMessage {
        volume: String,
        bytes: Vec<u8>,
    },
    /// The machine has ended, and all in it.
    Gone {
        reason: String,
    },
}

/// Why a machine was ended by its shim.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("frame of {0} bytes")]
    FrameTooLong(usize),
    #[error("invalid message")]
    Decode(#[from] agent::protocol::DecodeError),
    #[error("reply to a request that was not made")]
    Reply,
    #[error("more output than was granted")]
    Output,
    #[error("output without bytes")]
    EmptyOutput,
    #[error("credit for more input than was sent")]
    Credit,
    #[error("agent of version {0}")]
    Version(u32),
    #[error("agent does not read")]
    Queue,
}

#[derive(Clone)]
pub(crate) struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    kill: Box<dyn Fn() + Send + Sync>,
}

struct State {
    events: mpsc::UnboundedSender<Event>,
    queue: VecDeque<Vec<u8>>,
    queued: usize,
    closed: bool,
    ready: Option<oneshot::Sender<()>>,
    next: u32,
    pending: HashMap<u32, oneshot::Sender<Result<Answer, Failure>>>,
    outputs: HashMap<StreamId, OutputPort>,
    inputs: HashMap<u32, InputPort>,
    /// Processes whose end is still to come.
    live: HashSet<u32>,
    /// Files whose content is still to come.
    messages: HashSet<String>,
}

/// What a process prints, on its way to whoever reads it.
struct OutputPort {
    to: mpsc::UnboundedSender<Vec<u8>>,
    /// What the agent may still send.
    granted: u32,
}

/// What a process is to read.
struct InputPort {
    credit: Arc<Semaphore>,
    /// Sent, and not said to have been taken.
    under_way: u32,
}

impl Link {
    /// Takes over the two directions of a link. `kill` ends the machine.
    pub(crate) fn new(
        from: Box<dyn Read + Send>,
        to: Box<dyn Write + Send>,
        kill: impl Fn() + Send + Sync + 'static,
    ) -> (Self, Ready, mpsc::UnboundedReceiver<Event>) {
        let (events, receiver) = mpsc::unbounded_channel();
        let (ready, is_ready) = oneshot::channel();
        let state = State {
            events,
            queue: VecDeque::new(),
            queued: 0,
            closed: false,
            ready: Some(ready),
            next: 0,
            pending: HashMap::new(),
            outputs: HashMap::new(),
            inputs: HashMap::new(),
            live: HashSet::new(),
            messages: HashSet::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Condvar::new(), kill: Box::new(kill) });
        let link = Self { shared };
        let (reader, writer) = (link.clone(), link.clone());
        std::thread::spawn(move || reader.read(from));
        std::thread::spawn(move || writer.write(to));
        (link.clone(), Ready { link, is_ready }, receiver)
    }

    fn read(&self, mut from: Box<dyn Read + Send>) {
        let reason = loop {
            match read_frame(&mut from) {
                Ok(Some(body)) => {
                    let body = body.and_then(|body| Ok(Up::decode(&body)?));
                    if let Err(violation) = body.and_then(|message| self.take(message)) {
                        break format!("the agent violated the protocol: {violation}");
                    }
                }
                Ok(None) => break "the machine ended".to_owned(),
                Err(error) => break format!("cannot read from the machine: {error}"),
            }
        };
        self.close(&reason);
    }

    fn write(&self, mut to: Box<dyn Write + Send>) {
        loop {
            let frame = {
                let mut state = self.shared.state.lock();
                loop {
                    if state.closed {
                        return;
                    }
                    if let Some(frame) = state.queue.pop_front() {
                        state.queued -= frame.len();
                        break frame;
                    }
                    self.shared.wake.wait(&mut state);
                }
            };
            if let Err(error) = to.write_all(&frame) {
                return self.close(&format!("cannot write to the machine: {error}"));
            }
        }
    }

    /// Ends the machine and everything that waits for it. Only the first reason counts. The machine is ended on a thread
    /// of its own, which may take seconds; that it is gone is said afterwards.
    pub(crate) fn close(&self, reason: &str) {
        {
            let mut state = self.shared.state.lock();
            if state.closed {
                return;
            }
            state.closed = true;
            state.pending.clear();
            state.outputs.clear();
            state.inputs.drain().for_each(|(_, port)| port.credit.close());
            state.ready = None;
            self.shared.wake.notify_all();
        }
        let (shared, reason) = (self.shared.clone(), reason.to_owned());
        std::thread::spawn(move || {
            (shared.kill)();
            let _ = shared.state.lock().events.send(Event::Gone { reason });
        });
    }

    fn take(&self, message: Up) -> Result<(), Violation> {
        let mut state = self.shared.state.lock();
        match message {
            Up::Ready { version } if version != VERSION => return Err(Violation::Version(version)),
            Up::Ready { .. } => drop(state.ready.take().map(|ready| ready.send(()))),
            Up::Reply { number, result } => {
                let waiting = state.pending.remove(&number).ok_or(Violation::Reply)?;
                let _ = waiting.send(result.map_err(printable));
            }
            Up::Output { bytes, .. } if bytes.is_empty() => return Err(Violation::EmptyOutput),
            Up::Output { stream, bytes } => {
                // One that has been deleted meanwhile has nobody to read it.
                let Some(port) = state.outputs.get_mut(&stream) else { return Ok(()) };
                let length = u32::try_from(bytes.len()).map_err(|_| Violation::Output)?;
                port.granted = port.granted.checked_sub(length).ok_or(Violation::Output)?;
                let _ = port.to.send(bytes);
            }
            Up::OutputEnd { stream } => drop(state.outputs.remove(&stream)),
            Up::Credit { process, bytes } => {
                let Some(port) = state.inputs.get_mut(&process) else { return Ok(()) };
                port.under_way = port.under_way.checked_sub(bytes).ok_or(Violation::Credit)?;
                port.credit.add_permits(bytes as usize);
            }
            Up::Exited { process, status, out_of_memory } => {
                if state.live.remove(&process) {
                    let _ = state.events.send(Event::Exited { process, status, out_of_memory });
                }
            }
            Up::TerminationMessage { volume, bytes } => {
                if state.messages.remove(&volume) {
                    let _ = state.events.send(Event::TerminationMessage { volume, bytes });
                }
            }
        }
        Ok(())
    }

    fn push(&self, state: &mut State, message: &Down) -> Result<(), Violation> {
        let frame = frame(&message.encode());
        state.queued += frame.len();
        state.queue.push_back(frame);
        self.shared.wake.notify_all();
        if state.queued > MAX_QUEUE { Err(Violation::Queue) } else { Ok(()) }
    }

    fn send(&self, message: &Down) {
        let mut state = self.shared.state.lock();
        if state.closed {
            return;
        }
        let pushed = self.push(&mut state, message);
        drop(state);
        if let Err(violation) = pushed {
            self.close(&violation.to_string());
        }
    }

    /// Asks the agent, and waits for the answer.
    pub(crate) async fn ask(&self, request: Request) -> Result<Answer, LinkError> {
        self.ask_within(ANSWER_TIMEOUT, request).await
    }

    async fn ask_within(&self, timeout: Duration, request: Request) -> Result<Answer, LinkError> {
        let (sender, answer) = oneshot::channel();
        {
            let mut state = self.shared.state.lock();
            if state.closed {
                return Err(LinkError::Gone);
            }
            state.next = state.next.wrapping_add(1);
            let number = state.next;
            state.pending.insert(number, sender);
            let pushed = self.push(&mut state, &Down::Request { number, request });
            drop(state);
            if let Err(violation) = pushed {
                self.close(&violation.to_string());
            }
        }
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(answer)) => answer.map_err(LinkError::Refused),
            Ok(Err(_)) => Err(LinkError::Gone),
            Err(_) => {
                self.close("the agent left a request unanswered");
                Err(LinkError::Timeout)
            }
        }
    }

    /// From now on the end of this process is waited for.
    pub(crate) fn expect_exit(&self, process: u32) {
        self.shared.state.lock().live.insert(process);
    }

    pub(crate) fn expect_message(&self, volume: &str) {
        self.shared.state.lock().messages.insert(volume.to_owned());
    }

    /// Where what a process prints comes out.
    pub(crate) fn open_output(&self, stream: StreamId) -> mpsc::UnboundedReceiver<Vec<u8>> {
        let (to, receiver) = mpsc::unbounded_channel();
        let mut state = self.shared.state.lock();
        if !state.closed {
            state.outputs.insert(stream, OutputPort { to, granted: WINDOW });
        }
        receiver
    }

    /// So much of it has been passed on.
    pub(crate) fn grant(&self, stream: StreamId, bytes: u32) {
        {
            let mut state = self.shared.state.lock();
            let Some(port) = state.outputs.get_mut(&stream) else { return };
            port.granted = port.granted.saturating_add(bytes);
        }
        self.send(&Down::Credit { stream, bytes });
    }

    pub(crate) fn open_input(&self, process: u32) -> Arc<Semaphore> {
        let credit = Arc::new(Semaphore::new(WINDOW as usize));
        let port = InputPort { credit: credit.clone(), under_way: 0 };
        let mut state = self.shared.state.lock();
        if state.closed {
            credit.close();
        } else {
            state.inputs.insert(process, port);
        }
        credit
    }

    /// Sends input, for which the caller has taken credit.
    pub(crate) fn input(&self, process: u32, bytes: Vec<u8>) {
        {
            let mut state = self.shared.state.lock();
            let Some(port) = state.inputs.get_mut(&process) else { return };
            port.under_way = port.under_way.saturating_add(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        }
        self.send(&Down::Input { process, bytes });
    }

    pub(crate) fn end_input(&self, process: u32) {
        self.send(&Down::InputEnd { process });
    }

    /// Forgets the streams of a process.
    pub(crate) fn forget(&self, process: u32) {
        let mut state = self.shared.state.lock();
        state.outputs.retain(|stream, _| stream.process != process);
        if let Some(port) = state.inputs.remove(&process) {
            port.credit.close();
        }
        state.live.remove(&process);
    }
}

/// A machine that was started and whose agent has not said anything yet.
pub(crate) struct Ready {
    link: Link,
    is_ready: oneshot::Receiver<()>,
}

impl Ready {
    pub(crate) async fn wait(self) -> Result<(), LinkError> {
        match tokio::time::timeout(READY_TIMEOUT, self.is_ready).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(LinkError::Gone),
            Err(_) => {
                self.link.close("the machine did not start in time");
                Err(LinkError::Timeout)
            }
        }
    }
}

/// The text ends up in logs and events: one line, and nothing that a terminal obeys.
fn printable(failure: Failure) -> Failure {
    let text = failure.text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    Failure { text, ..failure }
}

/// A body, or what is wrong with it; none at the end.
fn read_frame(from: &mut dyn Read) -> std::io::Result<Option<Result<Vec<u8>, Violation>>> {
    let mut head = [0; 4];
    match from.read_exact(&mut head) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(head) as usize;
    if length > MAX_UP {
        return Ok(Some(Err(Violation::FrameTooLong(length))));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok(Some(Ok(body)))
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
