//! What a message costs, side by side with a Unix socket between the same two processes in the same run.
//!
//! The far side is another process: the caller's own program, started again so that its `main` calls [`peer`]. It talks
//! to us over a socket on its standard input.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod far_side;
mod report;

pub use far_side::peer;
pub use report::{Latency, Report};

use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use thiserror::Error;

use idm::Gone;
use idm::bootstrap::{self, Attach, BootstrapError};
use idm::lane::{CallError, Lane};
use idm::peer::{PeerWatch, StopWatch};
use idm::region::{Placement, RegionError};
use idm::ring::PostError;
use idm::{Client, PeerGone};

/// Payload of every message that is measured.
pub const PAYLOAD: usize = 64;

#[derive(Debug, Error)]
pub enum BenchError {
    #[error("cannot start the far side")]
    Start(#[source] std::io::Error),
    #[error("cannot bring the two sides together")]
    Bootstrap(#[from] BootstrapError),
    #[error("cannot map the region")]
    Region(#[from] RegionError),
    #[error("socket failed")]
    Socket(#[from] rustix::io::Errno),
    #[error("call failed")]
    Call(#[from] CallError),
    #[error("post failed")]
    Post(#[from] PostError),
    #[error(transparent)]
    Gone(#[from] Gone),
}

pub struct Options {
    /// Round trips to measure, of each kind.
    pub round_trips: usize,
    /// Messages to post.
    pub posts: usize,
    /// How long to watch both sides do nothing.
    pub idle: Duration,
    /// The program, with arguments, that calls [`peer`].
    pub far_side: Command,
}

impl Options {
    pub fn new(far_side: Command) -> Self {
        Self { round_trips: 50_000, posts: 5_000_000, idle: Duration::from_secs(1), far_side }
    }
}

/// What the far side is told to do next.
pub(crate) mod op {
    pub(crate) const PING: u16 = 1;
    pub(crate) const POST: u16 = 2;
    pub(crate) const CPU_TIME: u16 = 3;
}

/// Ends the far side with us.
struct Far(Child);

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures everything once.
pub fn run(mut options: Options) -> Result<Report, BenchError> {
    let (socket, theirs) = bootstrap::pair()?;
    options.far_side.stdin(Stdio::from(theirs));
    let _far = Far(options.far_side.spawn().map_err(BenchError::Start)?);
    // The command holds the other end of the socket, which would hide a hang-up.
    drop(options.far_side);

    let (attach, mut fds) = bootstrap::recv::<Attach>(&socket)?;
    let fd = fds.pop().ok_or(BootstrapError::Invalid)?;
    let client = Client::attach(fd, attach.layout, Placement::Anywhere)?;
    let _watch = watch(&socket, client.gone())?;

    let rounds = options.round_trips;
    let socket_trip = Latency::measure(rounds, || socket_round_trip(&socket))?;
    // An empty message ends the socket's part: the far side goes over to the region.
    rustix::net::send(&socket, &[0], rustix::net::SendFlags::empty())?;

    let mut lane = client.lane()?;
    let call = Latency::measure(rounds, || Ok(lane.call(op::PING, 0, 0, PAYLOAD, |slot| slot.fill(1)).map(drop)?))?;
    let block =
        Latency::measure(rounds, || Ok(lane.block(op::PING, 0, 0, 0, PAYLOAD, |slot| slot.fill(1)).map(drop)?))?;
    let posts_per_second = post(&client, options.posts)?;
    let idle = idle(&client, &mut lane, options.idle)?;
    Ok(Report { socket: socket_trip, call, block, posts_per_second, idle_client: idle.0, idle_server: idle.1 })
}

fn watch(socket: &OwnedFd, gone: &PeerGone) -> Result<StopWatch, BenchError> {
    let socket = socket.try_clone().map_err(BenchError::Start)?;
    let (watch, stop) = PeerWatch::new(socket, None, gone.clone(), || {})?;
    watch.spawn().map_err(BenchError::Start)?;
    Ok(stop)
}

fn socket_round_trip(socket: &OwnedFd) -> Result<(), BenchError> {
    let mut buffer = [1u8; PAYLOAD];
    rustix::net::send(socket, &buffer, rustix::net::SendFlags::NOSIGNAL)?;
    let (got, _) = rustix::net::recv(socket, &mut buffer, rustix::net::RecvFlags::empty())?;
    if got == PAYLOAD { Ok(()) } else { Err(Gone.into()) }
}

/// Messages a second, from the first post until the last is executed.
fn post(client: &Client, posts: usize) -> Result<f64, BenchError> {
    let start = Instant::now();
    for number in 0..posts {
        client.post(op::POST, 0, 0, PAYLOAD, |slot| slot.fill(number as u8))?;
    }
    client.wait_executed(client.position(), None)?;
    Ok(posts as f64 / start.elapsed().as_secs_f64())
}

/// The part of a core that each side uses while both wait for each other.
fn idle(client: &Client, lane: &mut Lane, span: Duration) -> Result<(f64, f64), BenchError> {
    let mut far_cpu = || -> Result<Duration, BenchError> {
        let reply = lane.call(op::CPU_TIME, 0, 0, 0, |_| {})?;
        let nanos = reply.payload.try_into().map_or(0, u64::from_ne_bytes);
        Ok(Duration::from_nanos(nanos))
    };
    let (start, ours, theirs) = (Instant::now(), cpu_time(), far_cpu()?);
    // Nobody posts this position: a wait with nothing to find.
    client.wait_executed(u64::MAX, Some(span))?;
    let (ours, theirs) = (cpu_time() - ours, far_cpu()? - theirs);
    let span = start.elapsed().as_secs_f64();
    Ok((ours.as_secs_f64() / span, theirs.as_secs_f64() / span))
}

pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
