//! One worker, in a thread of its own.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags};

use crate::messages::{Reply, Request, kind};
use crate::nvidia::Nvidia;
use crate::preemptor::{PreemptError, Preemptor};
use crate::rm::{CONTROL_DEVICE, KnownDriver};
use crate::soft::Soft;

const STACK: usize = 256 << 10;
/// A worker that has fallen may tell of objects without end.
const MAX_WAITING: usize = 1024;
/// More than any driver library has. Without root their descriptors stay here.
const MAX_CLIENTS: usize = 16;

/// A request, and the descriptor that came with it.
struct Ask(Request, Option<OwnedFd>);

/// The thread of a worker, from the main thread.
pub(super) struct Watched {
    commands: SyncSender<Ask>,
    bell: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl Watched {
    pub(super) fn start(process: OwnedFd, driver: Option<KnownDriver>, socket: Arc<OwnedFd>) -> io::Result<Self> {
        let bell = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (commands, taken) = mpsc::sync_channel(MAX_WAITING);
        let worker = Worker { process, driver, clients: Vec::new(), soft: None, is_stopped: false, slice: None };
        let rung = bell.clone();
        let thread = std::thread::Builder::new()
            .name("worker".into())
            .stack_size(STACK)
            .spawn(move || worker.serve(&taken, &rung, &socket))?;
        Ok(Self { commands, bell, thread })
    }

    /// Has the thread do something. False if too much waits already; one that has ended answers nothing: its worker is gone.
    pub(super) fn ask(&self, request: Request, file: Option<OwnedFd>) -> bool {
        let sent = self.commands.try_send(Ask(request, file));
        self.ring();
        !matches!(sent, Err(mpsc::TrySendError::Full(_)))
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Has the thread resume the worker and let go of it; answers the thread, which then ends.
    pub(super) fn forget(self) -> JoinHandle<()> {
        let Self { commands, bell, thread } = self;
        // That nobody can send any more is what the thread sees.
        drop(commands);
        let _ = rustix::io::write(&bell, &1u64.to_ne_bytes());
        thread
    }
}

struct Worker {
    process: OwnedFd,
    driver: Option<KnownDriver>,
    /// By client: of a worker that has several, each came through its own file.
    clients: Vec<(u32, Nvidia)>,
    soft: Option<Soft>,
    is_stopped: bool,
    slice: Option<Duration>,
}

impl Worker {
    fn serve(mut self, commands: &Receiver<Ask>, bell: &OwnedFd, socket: &OwnedFd) {
        loop {
            let mut fds = [PollFd::new(&self.process, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return self.resume_at_last(),
            }
            if !fds[0].revents().is_empty() {
                // What is dropped here is the last that keeps its driver's client alive.
                return;
            }
            let _ = rustix::io::read(bell, &mut [0; 8]);
            // One at a time: the worker may have ended meanwhile.
            match commands.try_recv() {
                Ok(Ask(request, file)) => {
                    let start = Instant::now();
                    let result = self.answer(&request, file);
                    super::send(socket, &Reply::new(&request, start.elapsed().as_micros() as u64, result));
                    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
                }
                Err(mpsc::TryRecvError::Disconnected) => return self.resume_at_last(),
                Err(mpsc::TryRecvError::Empty) => {}
            }
        }
    }

    /// Nobody would let it go on later.
    fn resume_at_last(&mut self) {
        if self.is_stopped
            && let Err(error) = self.each(|one| one.resume())
        {
            tracing::warn!(%error, "cannot resume a worker");
        }
    }

    fn answer(&mut self, request: &Request, file: Option<OwnedFd>) -> Result<(), String> {
        let missing = || "no descriptor".to_owned();
        match request.kind {
            kind::NVIDIA => {
                let driver = self.driver.ok_or("no driver that is known to preempt")?;
                let client = u32::try_from(request.value).map_err(|_| "malformed client")?;
                let file = file.ok_or_else(missing)?;
                // A worker that has fallen may name any of its descriptors.
                let device = rustix::fs::fstat(&file).map_err(|error| error.to_string())?.st_rdev;
                if (rustix::fs::major(device), rustix::fs::minor(device)) != CONTROL_DEVICE {
                    return Err("not a descriptor of /dev/nvidiactl".to_owned());
                }
                if let Some((_, known)) = self.clients.iter_mut().find(|(known, _)| *known == client) {
                    known.lend(file);
                    return Ok(());
                }
                if self.clients.len() >= MAX_CLIENTS {
                    return Err("too many clients".to_owned());
                }
                let mut known = Nvidia::new(driver, file);
                // A client of another process is refused by RM: the descriptor has no right over it.
                let root = crate::rm::Object { client, handle: client, class: 0x41, ..Default::default() };
                known.add(root).map_err(|error| error.to_string())?;
                known.follow(self.is_stopped, self.slice);
                self.clients.push((client, known));
                Ok(())
            }
            kind::SOFT => {
                let mut soft = Soft::new(file.ok_or_else(missing)?).map_err(|error| error.to_string())?;
                let stopped = if self.is_stopped { soft.stop() } else { Ok(()) };
                self.soft = Some(soft);
                stopped.map_err(|error| error.to_string())
            }
            kind::OBJECT => {
                let known = self.clients.iter_mut().find(|(client, _)| *client == request.object.client);
                let (_, known) = known.ok_or("a client of no known descriptor")?;
                known.add(request.object).map_err(|error| error.to_string())
            }
            kind::SLICE => {
                let slice = Duration::from_micros(request.value);
                self.slice = Some(slice);
                self.each(|one| one.set_slice(slice)).map_err(|error| error.to_string())
            }
            kind::STOP => {
                self.is_stopped = true;
                self.each(|one| one.stop()).map_err(|error| {
                    self.resume_at_last();
                    self.is_stopped = false;
                    error.to_string()
                })
            }
            kind::RESUME => {
                self.each(|one| one.resume()).map_err(|error| error.to_string())?;
                self.is_stopped = false;
                Ok(())
            }
            kind::RELEASE => {
                self.clients.iter_mut().for_each(|(_, client)| client.release());
                Ok(())
            }
            _ => Err("unknown request".to_owned()),
        }
    }

    /// Does something to everything that the worker has on GPUs.
    fn each(
        &mut self,
        mut what: impl FnMut(&mut dyn Preemptor) -> Result<(), PreemptError>,
    ) -> Result<(), PreemptError> {
        let clients = self.clients.iter_mut().map(|(_, client)| client as &mut dyn Preemptor);
        let soft = self.soft.iter_mut().map(|soft| soft as &mut dyn Preemptor);
        clients.chain(soft).try_for_each(&mut what)
    }
}
