//! A worker's end of its connection to the broker.
//!
//! The worker outlives a broker: when the connection ends, a thread of this link joins the successor through
//! the socket of workers and shows its token. Requests that were under way are asked again. The two sides then settle the
//! account: the broker tells what its accounts say, and the link gives back (or asks for) the difference to what the
//! worker really was granted. So neither a lost grant nor a lost release leaves a trace.
//!
//! Locking: `state` is held for moments only, never while waiting for an answer.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags};
use zerocopy::{FromBytes, IntoBytes};

use super::messages::{self, ToBroker, ToWorker, Token, account, code, to_broker, to_worker};
use super::name::ZoneName;
use super::suspend::Suspension;

mod driver;
mod in_process;
mod sharing;
mod suspend;

pub use in_process::Answers;
pub use sharing::{Imported, NotShared};
pub use suspend::{MoveReport, Order};

use crate::dispatch::WorkerDispatch;
use crate::packet;
use crate::statistics::Writer;

/// How long a request waits for a broker that is away.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const REJOIN_EVERY: Duration = Duration::from_millis(25);
const RESEND_EVERY: Duration = Duration::from_millis(20);

/// A client, as the broker hands it over.
pub struct Assignment {
    /// One end of a `SOCK_SEQPACKET` pair; the client has the other.
    pub client: OwnedFd,
    /// Where the kernel has such descriptors.
    pub client_pidfd: Option<OwnedFd>,
    /// The client is in another domain, and the region is what its socket offers.
    pub brings_region: bool,
    /// Where this worker counts what it does.
    pub statistics: Writer,
    /// Where it learns whose turn it is.
    pub dispatch: Arc<WorkerDispatch>,
    /// In the broker's pid namespace.
    pub client_pid: u32,
    /// Of the client's process.
    pub client_uid: u32,
    /// Of the client's process.
    pub client_gid: u32,
    /// Of the API table that the client was built with, as the client says.
    pub zone: String,
    /// Bytes of the first GPU's memory; none: what the GPU has.
    pub memory_limit: Option<u64>,
    /// What each context costs, on the zone's account.
    pub context_memory: u64,
    /// What is paid already, for the first device's context.
    pub prepaid: u64,
    /// How many nodes its graphs may have.
    pub graph_nodes: u64,
}

/// Why a charge was not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Denied {
    #[error("the zone's memory limit is reached")]
    OverLimit,
    #[error("the broker refused")]
    Refused,
    #[error("no connection to the broker")]
    NoBroker,
}

/// The connection; clones of the handle are the same connection.
#[derive(Clone)]
pub struct BrokerLink {
    shared: Arc<Shared>,
}

struct Shared {
    rejoin: Option<PathBuf>,
    /// This process may send no descriptors: it names them, and the broker takes them.
    names_descriptors: bool,
    state: Mutex<State>,
    changed: Condvar,
    suspension: Suspension,
    /// In place of a broker.
    answers: Option<Answers>,
    /// Called when a broker wants to know of the driver's files and objects.
    announce: OnceLock<driver::Announce>,
    /// Called when a broker says something of suspending.
    orders: OnceLock<suspend::Orders>,
}

struct State {
    socket: Option<Arc<OwnedFd>>,
    token: Token,
    /// The page of statistics, for the next broker.
    statistics: Option<Arc<OwnedFd>>,
    dispatch: Option<Arc<WorkerDispatch>>,
    next_seq: u64,
    /// By number (see [`account`]).
    accounts: Vec<Account>,
    requests: HashMap<u64, Request>,
    /// Counts the brokers: exports are known to the one that they were told.
    epoch: u64,
    /// Imports that are open.
    imports: HashMap<Token, sharing::Import>,
    /// What is allocated must share no page with anything else.
    isolated: bool,
}

#[derive(Clone)]
struct Account {
    /// What was granted and not given back.
    charged: u64,
    /// Releases that did not fit into the socket's buffer.
    unsent_release: u64,
    /// The zone's, as it was last known.
    used: u64,
    limit: u64,
}

struct Request {
    account: u32,
    bytes: u64,
    /// What it asks to import, if that is memory.
    import: Option<Token>,
    outcome: Option<Outcome>,
    /// Nobody waits any more; a grant that still comes is given back.
    abandoned: bool,
}

enum Outcome {
    Answered(Box<Answer>),
    /// The broker went away first.
    Lost,
}

/// What the broker answered.
struct Answer {
    message: ToWorker,
    fds: Vec<OwnedFd>,
}

impl BrokerLink {
    /// Over the connection that this process was started with, without a way back to a next broker.
    pub fn from_fd(socket: OwnedFd) -> Self {
        Self::with_rejoin(socket, None, false)
    }

    /// `rejoin` is where a successor of the broker listens; `names_descriptors`: this process may send none.
    pub fn with_rejoin(socket: OwnedFd, rejoin: Option<PathBuf>, names_descriptors: bool) -> Self {
        Self::new(Some(Arc::new(socket)), rejoin, names_descriptors, None)
    }

    fn new(
        socket: Option<Arc<OwnedFd>>,
        rejoin: Option<PathBuf>,
        names_descriptors: bool,
        answers: Option<Answers>,
    ) -> Self {
        let state = State {
            socket,
            token: [0; 16],
            statistics: None,
            dispatch: None,
            next_seq: 1,
            accounts: vec![
                Account { charged: 0, unsent_release: 0, used: 0, limit: messages::UNLIMITED };
                account::COUNT
            ],
            requests: HashMap::new(),
            epoch: 1,
            imports: HashMap::new(),
            isolated: false,
        };
        let (state, changed, suspension) = (Mutex::new(state), Condvar::new(), Suspension::default());
        let (announce, orders) = (OnceLock::new(), OnceLock::new());
        let shared = Shared { rejoin, names_descriptors, state, changed, suspension, answers, announce, orders };
        Self { shared: Arc::new(shared) }
    }

    /// Tells which parts of the jail are missing, as bits of [`crate::jail::Missing`], and the driver's version.
    pub fn report_ready(&self, missing: u32, driver_version: u32) -> io::Result<()> {
        let mut message = ToBroker::new(to_broker::JAILED);
        message.value = u64::from(missing);
        message.version = driver_version;
        match &self.shared.lock().socket {
            Some(socket) => {
                if self.shared.names_descriptors {
                    // For the broker to try whether it can take one: nobody else has this.
                    message.bring(Some(socket.as_fd()), true);
                }
                packet::send(socket, message.as_bytes(), &[])
            }
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The memory that this worker will share with its client. The broker sends it first of all.
    pub fn take_region(&self) -> io::Result<OwnedFd> {
        let socket = self.shared.lock().socket.clone().ok_or(io::ErrorKind::NotConnected)?;
        let mut buffer = [0; size_of::<ToWorker>()];
        let received = packet::receive(&socket, &mut buffer)?;
        match (ToWorker::read_from_bytes(&buffer[..received.len]), received.fds.into_iter().next()) {
            (Ok(message), Some(region)) if message.kind == to_worker::REGION => Ok(region),
            _ if received.len == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Tells the broker that this worker can take a client, and waits for one. A broker that goes away before it sent
    /// one will not be waited for: its successor starts workers of its own.
    pub fn wait_for_assignment(&self) -> io::Result<Assignment> {
        let socket = self.shared.lock().socket.clone().ok_or(io::ErrorKind::NotConnected)?;
        packet::send(&socket, ToBroker::new(to_broker::READY).as_bytes(), &[])?;
        loop {
            let mut buffer = [0; size_of::<ToWorker>()];
            let received = packet::receive(&socket, &mut buffer)?;
            if received.len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Ok(message) = ToWorker::read_from_bytes(&buffer[..received.len]) else { continue };
            if message.kind != to_worker::ASSIGN {
                self.shared.asked(message.kind);
                continue;
            }
            let mut fds = received.fds.into_iter();
            let (Some(client), Some(zone)) = (fds.next(), ZoneName::from_field(&message.zone)) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let statistics = fds.next();
            let writer = Writer::new(statistics.as_ref());
            let dispatch = Arc::new(WorkerDispatch::new(statistics.as_ref(), fds.next()));
            {
                let mut state = self.shared.lock();
                state.statistics = statistics.map(Arc::new);
                state.dispatch = Some(dispatch.clone());
                state.token = message.token;
                let first = &mut state.accounts[account::DEVICE as usize];
                (first.used, first.limit, first.charged) = (message.used, message.limit, message.charged);
                state.isolated = message.details.flags & messages::shared_flags::ISOLATE != 0;
            }
            let shared = Arc::clone(&self.shared);
            std::thread::Builder::new().name("broker-link".into()).spawn(move || shared.listen())?;
            return Ok(Assignment {
                client,
                client_pidfd: fds.next(),
                brings_region: message.details.flags & messages::shared_flags::BRINGS_REGION != 0,
                statistics: writer,
                dispatch,
                client_pid: message.client_pid,
                client_uid: message.client_uid,
                client_gid: message.client_gid,
                zone: zone.into(),
                memory_limit: (message.limit != messages::UNLIMITED).then_some(message.limit),
                context_memory: message.context_memory,
                prepaid: message.charged,
                graph_nodes: message.value,
            });
        }
    }

    /// Asks the zone's ledger for `bytes` of a GPU, by its index; they count until they are released or the worker ends.
    pub fn charge(&self, gpu: u32, bytes: u64) -> Result<(), Denied> {
        self.charge_to(account::of_gpu(gpu), bytes)
    }

    /// Asks for host memory that is pinned, which has a limit of its own.
    pub fn pin(&self, bytes: u64) -> Result<(), Denied> {
        self.charge_to(account::PINNED, bytes)
    }

    fn charge_to(&self, account: u32, bytes: u64) -> Result<(), Denied> {
        let mut message = ToBroker::new(to_broker::CHARGE);
        (message.account, message.value) = (account, bytes);
        match self.shared.request(message, None).map(|answer| answer.message.code) {
            Some(code::GRANTED) => Ok(()),
            Some(code::OVER_LIMIT) => Err(Denied::OverLimit),
            Some(_) => Err(Denied::Refused),
            None => Err(Denied::NoBroker),
        }
    }

    /// Gives back what was charged. Never waits.
    pub fn release(&self, gpu: u32, bytes: u64) {
        let mut state = self.shared.lock();
        let account = account::of_gpu(gpu);
        let bytes = state.give_back(account, bytes);
        if let Some(account) = state.account_mut(account) {
            account.used = account.used.saturating_sub(bytes);
        }
    }

    /// Gives back what was pinned. Never waits.
    pub fn unpin(&self, bytes: u64) {
        self.shared.lock().give_back(account::PINNED, bytes);
    }

    /// The zone's account of a GPU: bytes used by all its workers, and its limit. Without a broker, as it was last known.
    pub fn zone_usage(&self, gpu: u32) -> (u64, Option<u64>) {
        let mut message = ToBroker::new(to_broker::USAGE);
        message.account = account::of_gpu(gpu);
        let account = message.account;
        self.shared.request(message, None);
        let mut state = self.shared.lock();
        let known = state.account_mut(account).map(|account| (account.used, account.limit));
        let (used, limit) = known.unwrap_or((0, messages::UNLIMITED));
        (used, (limit != messages::UNLIMITED).then_some(limit))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under the lock can leave the state half changed, so a panic elsewhere is no reason to stop.
        self.state.lock()
    }

    /// Asks until there is an answer or the timeout is over.
    fn request(&self, mut message: ToBroker, fd: Option<BorrowedFd<'_>>) -> Option<Box<Answer>> {
        let fd = message.bring(fd, self.names_descriptors);
        let (account, bytes) = match message.kind {
            to_broker::CHARGE => (message.account, message.value),
            _ => (account::DEVICE, 0),
        };
        let import = sharing::memory_asked_for(&message);
        if let Some(answers) = &self.answers {
            let request = Request { account, bytes, import, outcome: None, abandoned: false };
            return self.lock().ask(answers, message, request);
        }
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut state = self.lock();
        loop {
            let seq = state.next_seq;
            message.seq = seq;
            // Releases go first: what was given back before may be what makes this fit.
            state.flush_releases();
            let sent =
                !state.owes() && state.socket.as_ref().is_some_and(|socket| send_now(socket, &message, fd).is_ok());
            if !sent {
                let left = deadline.checked_duration_since(Instant::now())?;
                state = self.wait(state, left.min(RESEND_EVERY));
                continue;
            }
            let (asked, spin) = (Instant::now(), spin());
            state.next_seq += 1;
            state.requests.insert(seq, Request { account, bytes, import, outcome: None, abandoned: false });
            let outcome = loop {
                match state.requests.get_mut(&seq).map(|request| request.outcome.take()) {
                    Some(Some(outcome)) => {
                        state.requests.remove(&seq);
                        break outcome;
                    }
                    None => break Outcome::Lost,
                    Some(None) => {}
                }
                if asked.elapsed() < spin {
                    // The thread that waits takes the answer itself: nobody has to be woken for it.
                    if state.take_answer() {
                        self.changed.notify_all();
                        continue;
                    }
                    drop(state);
                    std::hint::spin_loop();
                    state = self.lock();
                    continue;
                }
                let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                    if let Some(request) = state.requests.get_mut(&seq) {
                        request.abandoned = true;
                    }
                    return None;
                };
                state = self.wait(state, left);
            };
            if let Outcome::Answered(answer) = outcome {
                return Some(answer);
            }
        }
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_for(&mut state, time);
        state
    }

    /// The life of the link's thread: answers of this broker, then the next broker.
    fn listen(&self) {
        loop {
            let socket = self.lock().socket.clone();
            if let Some(socket) = socket {
                self.take_answers(&socket);
            }
            {
                let mut state = self.lock();
                state.socket = None;
                if let Some(dispatch) = &state.dispatch {
                    dispatch.release();
                }
                state.requests.retain(|_, request| !request.abandoned);
                for request in state.requests.values_mut().filter(|request| request.outcome.is_none()) {
                    request.outcome = Some(Outcome::Lost);
                }
            }
            self.changed.notify_all();
            let Some(path) = &self.rejoin else { return };
            let (token, statistics) = {
                let state = self.lock();
                (state.token, state.statistics.clone())
            };
            let joined = loop {
                match join(path, &token, statistics.as_deref(), self.names_descriptors) {
                    Ok(joined) => break joined,
                    Err(_) => std::thread::sleep(REJOIN_EVERY),
                }
            };
            let mut state = self.lock();
            if let Some(dispatch) = &state.dispatch {
                dispatch.set_bell(joined.bell);
            }
            state.settle(joined.socket, &joined.adopted, &joined.further);
            drop(state);
            if self.suspension.is_suspended() {
                // Its memory is still elsewhere, which the new broker cannot know.
                self.order(Order::Rejoined);
            }
            self.changed.notify_all();
        }
    }

    /// Takes answers off the socket until it ends.
    fn take_answers(&self, socket: &Arc<OwnedFd>) {
        loop {
            let unsent = self.lock().owes();
            let time = unsent.then_some(rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 });
            let mut fds = [PollFd::new(&**socket, PollFlags::IN)];
            match rustix::event::poll(&mut fds, time.as_ref()) {
                Ok(0) => {
                    self.lock().flush_releases();
                    continue;
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            // Taken and done under one lock, here and in `take_answer`: else two threads could change their order.
            let mut state = self.lock();
            let mut buffer = [0; size_of::<ToWorker>()];
            let message = match packet::receive_now(socket, &mut buffer) {
                Ok(received) if received.len == 0 => return,
                Ok(received) => match ToWorker::read_from_bytes(&buffer[..received.len]) {
                    Ok(message) => state.take(message, received.fds),
                    Err(_) => None,
                },
                // Somebody who waited for it has taken it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => return,
            };
            drop(state);
            match message.as_ref().map(|message| message.kind) {
                Some(to_worker::SUSPEND | to_worker::MOVE | to_worker::RESUME) => {
                    if let Some(order) = message.as_ref().and_then(Order::of) {
                        self.order(order);
                    }
                }
                Some(kind) => self.asked(kind),
                None => {}
            }
            self.changed.notify_all();
        }
    }
}

/// How long an answer is spun for. A broker that has a processor answers sooner than a sleep and two wake-ups take; where
/// there are few processors, it may need this one.
fn spin() -> Duration {
    const PLENTY: usize = 4;
    static SPIN: OnceLock<Duration> = OnceLock::new();
    *SPIN.get_or_init(|| match std::thread::available_parallelism().map_or(1, |count| count.get()) {
        PLENTY.. => Duration::from_micros(100),
        _ => Duration::ZERO,
    })
}

impl State {
    /// Does what a message says, unless it is one that may take time: that is given back, for the link's thread.
    fn take(&mut self, message: ToWorker, fds: Vec<OwnedFd>) -> Option<ToWorker> {
        match message.kind {
            to_worker::REPLY => self.take_reply(message, fds),
            to_worker::PAYS => self.take_over(&message),
            to_worker::ISOLATE => self.isolated = true,
            _ => return Some(message),
        }
        None
    }

    /// Takes the next message off the socket, if there is one that takes no time; true if it did.
    fn take_answer(&mut self) -> bool {
        let Some(socket) = self.socket.clone() else { return false };
        let mut buffer = [0; size_of::<ToWorker>()];
        // First a look, without taking it.
        let peek = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        let quick =
            |message: &ToWorker| matches!(message.kind, to_worker::REPLY | to_worker::PAYS | to_worker::ISOLATE);
        let seen = rustix::net::recv(&socket, &mut buffer, peek).is_ok_and(|(count, _)| {
            buffer
                .get(..count)
                .and_then(|bytes| ToWorker::read_from_bytes(bytes).ok())
                .is_some_and(|seen| quick(&seen))
        });
        if !seen {
            return false;
        }
        match packet::receive_now(&socket, &mut buffer) {
            Ok(received) => match ToWorker::read_from_bytes(&buffer[..received.len]) {
                Ok(message) => self.take(message, received.fds).is_none(),
                Err(_) => false,
            },
            Err(_) => {
                // It is lost; the link's thread sees the end of the connection, and starts again.
                let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
                false
            }
        }
    }

    fn account_mut(&mut self, number: u32) -> Option<&mut Account> {
        self.accounts.get_mut(number as usize)
    }

    fn take_reply(&mut self, message: ToWorker, fds: Vec<OwnedFd>) {
        if let Some(account) = self.account_mut(message.account) {
            (account.used, account.limit) = (message.used, message.limit);
        }
        let Some(request) = self.requests.get_mut(&message.seq) else { return };
        let (number, bytes, abandoned) = (request.account, request.bytes, request.abandoned);
        let import = request.import;
        request.outcome = Some(Outcome::Answered(Box::new(Answer { message, fds })));
        if let Some(token) = import.filter(|_| message.code == code::GRANTED) {
            self.note_import(token, message.account, message.value, abandoned);
        }
        if let Some(account) = self.account_mut(number).filter(|_| message.code == code::GRANTED) {
            if abandoned {
                account.unsent_release += bytes;
            } else {
                account.charged += bytes;
            }
        }
        if abandoned {
            self.requests.remove(&message.seq);
            self.flush_releases();
        }
    }

    fn owes(&self) -> bool {
        self.accounts.iter().any(|account| account.unsent_release > 0)
    }

    /// Gives back at most what is held, and says how much that is.
    fn give_back(&mut self, account: u32, bytes: u64) -> u64 {
        let Some(account) = self.account_mut(account) else { return 0 };
        let bytes = bytes.min(account.charged);
        account.charged -= bytes;
        account.unsent_release += bytes;
        self.flush_releases();
        bytes
    }

    fn flush_releases(&mut self) {
        for (number, account) in (0..).zip(&mut self.accounts).filter(|(_, account)| account.unsent_release > 0) {
            let mut message = ToBroker::new(to_broker::RELEASE);
            (message.account, message.value) = (number, account.unsent_release);
            match &self.socket {
                Some(socket) if send_now(socket, &message, None).is_ok() => account.unsent_release = 0,
                // Without a broker there is nothing to send: the next one is told the difference when it adopts us.
                _ => {}
            }
        }
    }

    /// Brings the new broker's accounts to what this worker holds.
    fn settle(&mut self, socket: OwnedFd, adopted: &ToWorker, further: &[(u32, u64)]) {
        if let Some(first) = self.account_mut(account::DEVICE) {
            (first.used, first.limit) = (adopted.used, adopted.limit);
        }
        let socket = Arc::new(socket);
        let told = [(account::DEVICE, adopted.charged), (account::PINNED, adopted.pinned)];
        for (number, known) in told.iter().chain(further) {
            let Some(account) = self.account_mut(*number) else { continue };
            account.unsent_release = known.saturating_sub(account.charged);
            let lacking = account.charged.saturating_sub(*known);
            if lacking > 0 {
                let mut message = ToBroker::new(to_broker::CHARGE);
                (message.account, message.value) = (*number, lacking);
                let _ = send_now(&socket, &message, None);
            }
        }
        self.socket = Some(socket);
        self.epoch += 1;
        self.flush_releases();
    }
}

fn send_now(socket: &OwnedFd, message: &ToBroker, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    // Never wait under the lock: a broker that does not read must not hold up a release.
    packet::send_now(socket, message.as_bytes(), fd.as_slice())
}

/// A new broker that has taken us over.
struct Joined {
    socket: OwnedFd,
    adopted: ToWorker,
    /// Further accounts and what is charged to them.
    further: Vec<(u32, u64)>,
    /// Of its scheduler.
    bell: Option<OwnedFd>,
}

/// Shows the token to a broker and waits until it has taken us over.
fn join(path: &std::path::Path, token: &Token, page: Option<&OwnedFd>, names: bool) -> io::Result<Joined> {
    let socket = packet::connect(path)?;
    let mut message = ToBroker::new(to_broker::REJOIN);
    message.token = *token;
    let page = message.bring(page.map(AsFd::as_fd), names);
    packet::send(&socket, message.as_bytes(), page.as_slice())?;
    let mut further = Vec::new();
    let time = rustix::event::Timespec::try_from(ANSWER_TIMEOUT).ok();
    for _ in 0..=account::GPUS {
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        if rustix::event::poll(&mut fds, time.as_ref())? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut buffer = [0; size_of::<ToWorker>()];
        let received = packet::receive(socket.as_fd(), &mut buffer)?;
        let adopted = ToWorker::read_from_bytes(&buffer[..received.len]).map_err(|_| io::ErrorKind::InvalidData)?;
        match adopted.kind {
            to_worker::ACCOUNT => further.push((adopted.account, adopted.charged)),
            to_worker::ADOPTED => {
                let mut fds = received.fds.into_iter();
                let bell = fds.next();
                if let Some(log) = fds.next() {
                    // Nobody reads what we write to the last broker's. Where it cannot be replaced, nothing is heard of us.
                    let _ = rustix::stdio::dup2_stderr(log);
                }
                return Ok(Joined { socket, adopted, further, bell });
            }
            _ => break,
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}
