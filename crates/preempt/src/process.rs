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
        let answer = |result: Result<(), String>| {
            // Who does not take its answers does without.
            let _ = packet::send_now(&*socket, Reply::new(&request, 0, result).as_bytes(), &[]);
        };
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
                workers.remove(&request.worker).into_iter().for_each(|worker| worker.forget());
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
    for worker in workers.into_values() {
        worker.finish();
    }
    Ok(())
}

#[cfg(test)]
mod tests;
