//! One worker: its process, its phase, and what it holds of its zone's accounts.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use crate::ledger::{Account, Accounts};
use crate::reactor::Reactor;
use control::closing::Foreign;
use control::dispatch::DispatchPage;
use control::messages::{ToWorker, Token, account};
use control::packet;
use control::process;
use control::spawner::Child;
use control::statistics::Reader;
use control::{WorkerStats, ZoneName};

/// How long a worker may take to follow its client.
pub(super) const FOLLOW_TIMEOUT: Duration = Duration::from_millis(400);
/// How often a worker may join the same broker: each time costs a pipe for its log.
pub(super) const JOINS: u32 = 4;

pub(crate) struct Worker {
    pub slot: usize,
    pub pid: u32,
    pub(super) child: Child,
    /// Its jailed process is known, of which descriptors are taken.
    pub(super) inside: bool,
    /// What it shares with the client that it will get.
    pub(super) region: Option<OwnedFd>,
    /// None after the predecessor's death, until the worker has joined us.
    pub(super) socket: Option<Foreign>,
    pub(super) token: Token,
    pub kind: Kind,
    pub(super) phase: Phase,
    /// It may have something of other zones' open, by a broker before us.
    pub borrowed_before: bool,
    /// How often it may still join us: once if it is a predecessor's, and a few times should it lose a message.
    pub(super) joins_left: u32,
    /// It looks for us where the previous version listened.
    pub(super) is_of_previous_version: bool,
    /// When it will be killed if it is then still there.
    pub(super) kill_at: Option<Instant>,
    /// Where it counts what it does; none until it has a client, or has joined us.
    pub(super) page: Option<Reader>,
    /// Where it tells what it does on each GPU, as long as it has the page above.
    pub(super) dispatch: Option<DispatchPage>,
    /// What it has counted, as far as we have looked.
    stats: WorkerStats,
}

/// Which clients a worker is for.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    /// Its driver starts when the client is there, not before.
    pub fresh: bool,
    /// The GPUs that it sees; none: all of the node's.
    pub gpus: Vec<u32>,
}

pub(super) enum Phase {
    Starting,
    Ready,
    Serving(Service),
    /// Killed; it keeps its slot, and with it its user id, until it is really gone.
    Dying(Option<Service>),
}

pub(super) struct Service {
    pub zone: ZoneName,
    /// There may be another zone of that name by now.
    pub zone_id: u64,
    pub client_pid: u32,
    /// The numbers of its GPUs, by its index of them.
    pub gpus: Vec<u32>,
    pub accounts: Accounts,
    /// Held so that the broker hears of the client's end even if the worker does not follow it.
    pub client: Option<OwnedFd>,
    /// The client is gone, and the worker has to follow it.
    pub left: bool,
}

impl Service {
    /// Stops listening for the client's end. The worker has the same open file, and may have given it to somebody: closing
    /// ours would end nothing.
    pub(super) fn forget_client(&mut self, reactor: &Reactor) {
        if let Some(client) = self.client.take() {
            reactor.forget(client);
        }
    }
}

impl Worker {
    pub(super) fn new(slot: usize, child: Child, token: Token, phase: Phase) -> Self {
        Self {
            slot,
            pid: child.pid(),
            child,
            inside: false,
            region: None,
            socket: None,
            token,
            kind: Kind::default(),
            phase,
            borrowed_before: false,
            joins_left: JOINS,
            is_of_previous_version: false,
            kill_at: None,
            page: None,
            dispatch: None,
            stats: WorkerStats::default(),
        }
    }

    pub(crate) fn zone(&self) -> Option<&ZoneName> {
        self.service().map(|service| &service.zone)
    }

    pub(crate) fn client_pid(&self) -> u32 {
        self.service().map_or(0, |service| service.client_pid)
    }

    /// What it holds of its zone's accounts of all GPUs, with what the driver takes for it.
    pub(crate) fn charged(&self) -> u64 {
        self.service().map_or(0, |service| service.accounts.total())
    }

    /// The same of one GPU.
    pub(crate) fn charged_on(&self, gpu: u32) -> u64 {
        self.account(gpu).map_or(0, Account::total)
    }

    /// Its part of its zone's account of a GPU.
    pub(crate) fn account(&self, gpu: u32) -> Option<&Account> {
        self.service()?.accounts.gpus.get(&gpu)
    }

    /// The numbers of its GPUs, by its index of them.
    pub(crate) fn gpus(&self) -> &[u32] {
        self.service().map_or(&[], |service| &service.gpus)
    }

    /// The number of the GPU whose memory an account of its messages is.
    pub(crate) fn gpu_of_account(&self, account: u32) -> Option<u32> {
        self.gpus().get(account::gpu(account)?).copied()
    }

    /// The account that its messages have for a GPU.
    pub(crate) fn account_number(&self, gpu: u32) -> Option<u32> {
        let index = self.gpus().iter().position(|known| *known == gpu)?;
        u32::try_from(index).ok().map(account::of_gpu)
    }

    pub(crate) fn pinned(&self) -> u64 {
        self.service().map_or(0, |service| service.accounts.pinned.total())
    }

    /// What it uses that it never asked for.
    pub(crate) fn beyond(&self) -> u64 {
        let accounts = self.service().into_iter().flat_map(|service| service.accounts.gpus.values());
        accounts.fold(0, |sum: u64, account| sum.saturating_add(account.beyond()))
    }

    /// Its parts of its zone's accounts, while it serves.
    pub(crate) fn accounts_mut(&mut self) -> Option<(&ZoneName, &mut Accounts)> {
        match &mut self.phase {
            Phase::Serving(service) => Some((&service.zone, &mut service.accounts)),
            _ => None,
        }
    }

    pub(crate) fn has_socket(&self) -> bool {
        self.socket.is_some()
    }

    /// Takes a descriptor that it names. It is as foreign as one that it would have sent.
    pub(crate) fn take_descriptor(&self, number: i32) -> io::Result<Foreign> {
        let socket = self.socket.as_ref().filter(|_| self.inside).ok_or(io::ErrorKind::NotConnected)?;
        Ok(socket.lane().take(self.child.take_descriptor(number)?))
    }

    /// What it shares with the client that it will get; none once it has one.
    pub(crate) fn region(&self) -> Option<&OwnedFd> {
        self.region.as_ref()
    }

    /// Sends it a message, unless it does not take it.
    pub(crate) fn tell(&self, message: &ToWorker, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        packet::send(socket, message.as_bytes(), fds)
    }

    pub(crate) fn is_spare(&self) -> bool {
        matches!(self.phase, Phase::Starting | Phase::Ready)
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready)
    }

    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serving(_))
    }

    pub(crate) fn is_dying(&self) -> bool {
        matches!(self.phase, Phase::Dying(_))
    }

    /// The process that was started: it, or what guards it.
    pub(crate) fn child(&self) -> &Child {
        &self.child
    }

    /// What it has done so far.
    pub(crate) fn count(&mut self) -> WorkerStats {
        if let Some(page) = &self.page {
            self.stats.advance(&page.read());
        }
        self.stats
    }

    /// Nanoseconds in which it kept each GPU busy, by number, where it measures that.
    pub(crate) fn gpu_times(&mut self) -> Vec<(u32, u64)> {
        let Some(all) = self.count().gpu_time_ns else { return Vec::new() };
        let Some(page) = self.dispatch.as_ref().filter(|page| page.gpus() > 1) else {
            // One of an earlier version does not tell GPUs apart.
            return self.gpus().first().map(|gpu| (*gpu, all)).into_iter().collect();
        };
        let time = |index: usize| u64::try_from(page.gpu(index).busy().as_nanos()).unwrap_or(u64::MAX);
        self.gpus().iter().enumerate().map(|(index, gpu)| (*gpu, time(index))).collect()
    }

    pub(super) fn service(&self) -> Option<&Service> {
        match &self.phase {
            Phase::Serving(service) | Phase::Dying(Some(service)) => Some(service),
            _ => None,
        }
    }

    /// Its driver has started, and it can have a client.
    pub(super) fn became_ready(&mut self) {
        (self.phase, self.kill_at) = (Phase::Ready, None);
    }

    /// Its client is gone: it has to follow soon.
    pub(super) fn client_left(&mut self, reactor: &Reactor, now: Instant) {
        let serves = self.is_serving();
        let (Phase::Serving(service) | Phase::Dying(Some(service))) = &mut self.phase else { return };
        service.forget_client(reactor);
        service.left = true;
        if serves {
            self.kill_at = Some(now + FOLLOW_TIMEOUT);
        }
    }

    /// It has hung up, and is about to exit; if it does not, it has nothing to live for.
    pub(super) fn hung_up(&mut self, now: Instant) {
        self.socket = None;
        self.kill_at = Some(now + FOLLOW_TIMEOUT);
    }

    /// Kills the client that it serves.
    pub(crate) fn kill_client(&self) {
        if let Some(client) = self.service().and_then(|service| service.client.as_ref())
            && !self.child.kill_client()
        {
            // One of an earlier broker's; nothing comes of it where we lack the right.
            process::kill(client);
        }
    }

    /// Whether it may join us, and has not.
    pub(super) fn is_missing(&self) -> bool {
        self.socket.is_none() && self.joins_left > 0 && self.is_serving()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill();
        self.kill_at = None;
        self.phase = match std::mem::replace(&mut self.phase, Phase::Dying(None)) {
            Phase::Serving(service) => Phase::Dying(Some(service)),
            Phase::Dying(service) => Phase::Dying(service),
            Phase::Starting | Phase::Ready => Phase::Dying(None),
        };
    }
}
