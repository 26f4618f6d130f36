//! The preemptor as a process.
//!
//! The main thread reads requests and answers pings; it makes no call of a driver and closes no file of one, both of which
//! may wait for the driver's locks. Each worker has a thread, which makes its calls, one after the other, and ends with
//! it: it watches the worker's process, and lets go of the driver's file at the latest one call after that has ended.
//!
//! When the broker is gone, every worker is resumed and the process ends.

mod watched;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use control::packet;
use zerocopy::{FromBytes, IntoBytes};

use crate::messages::{Reply, Request, kind};
use crate::rm::KnownDriver;
use watched::Watched;

/// As many workers as are watched at once.
const MAX_WORKERS: usize = control::spawner::SLOTS;

/// Serves the broker at the other end of the socket until it hangs up. `driver`: NVIDIA's, where there is one.
pub fn serve(socket: OwnedFd, driver: Option<KnownDriver>) -> io::Result<()> {
    let socket = Arc::new(socket);
    let mut workers: BTreeMap<u64, Watched> = BTreeMap::new();
    let mut buffer = [0; size_of::<Request>()];
    loop {
        let received = match packet::receive(&*socket, &mut buffer) {
            Ok(received) if received.len == 0 => break,
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                tracing::error!(%error, "lost the connection to the broker");
                break;
            }
        };
        let Ok(request) = Request::read_from_bytes(&buffer[..received.len]) else {
            tracing::error!("malformed request from the broker");
            break;
        };
        workers.retain(|_, worker| !worker.has_ended());
        let file = received.fds.into_iter().next();
        let answer = |result: Result<(), String>| send(&socket, &Reply::new(&request, 0, result));
        match (request.kind, workers.get(&request.worker)) {
            (kind::PING, _) => answer(Ok(())),
            (kind::WATCH, None) if workers.len() < MAX_WORKERS => {
                let process = file.ok_or_else(|| "no process".to_owned());
                let watched = process.and_then(|process| {
                    Watched::start(process, driver, socket.clone()).map_err(|error| error.to_string())
                });
                answer(watched.map(|watched| drop(workers.insert(request.worker, watched))));
            }
            (kind::FORGET, Some(_)) => {
                // Its thread ends by itself.
                workers.remove(&request.worker).into_iter().for_each(|worker| drop(worker.forget()));
                answer(Ok(()));
            }
            (kind::NVIDIA..=kind::RELEASE, Some(worker)) => {
                if !worker.ask(request, file) {
                    answer(Err("too many requests".to_owned()));
                }
            }
            _ => answer(Err("unknown worker or request".to_owned())),
        }
    }
    // All are told before any is waited for: one whose last call does not return keeps nobody else stopped.
    let ending: Vec<_> = workers.into_values().map(Watched::forget).collect();
    for thread in ending {
        let _ = thread.join();
    }
    Ok(())
}

/// Answers the broker. It waits for some answers, and takes them soon; who does not take those does without, as waiting for it
/// would keep a worker's memory. Of others nobody misses one.
fn send(socket: &OwnedFd, reply: &Reply) {
    const PAUSE: Duration = Duration::from_millis(1);
    send_after(socket, reply, || std::thread::sleep(PAUSE));
}

/// The same, with a pause before each further try.
fn send_after(socket: &OwnedFd, reply: &Reply, mut pause: impl FnMut()) {
    const TRIES: u32 = 50;
    if reply.kind == kind::OBJECT && reply.result().is_ok() {
        return;
    }
    let is_waited_for = matches!(reply.kind, kind::STOP | kind::RESUME | kind::PING);
    for _ in 0..if is_waited_for { TRIES } else { 1 } {
        match packet::send_now(socket, reply.as_bytes(), &[]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => pause(),
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests;
