//! The process at the other end of the measurement.

use std::os::fd::{AsFd, OwnedFd};

use crate::{BenchError, PAYLOAD, cpu_time, op};
use idm::Server;
use idm::bootstrap::{self, Attach};
use idm::lane::{Dispatcher, Replies};
use idm::peer::PeerWatch;
use idm::region::{Layout, Placement};
use idm::ring::{ConsumeError, NO_LANE};

/// Serves the measurement on the socket at standard input; ends when it hangs up.
pub fn peer() -> Result<(), BenchError> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(BenchError::Start)?;
    let mut server = Server::create(Layout::default(), Placement::Anywhere)?;
    bootstrap::send(&socket, &Attach::new(*server.layout(), [0; 16]), server.fd().as_slice())?;
    echo(&socket)?;

    let replies = server.replies();
    if let Some(dispatcher) = server.take_dispatcher() {
        let replies = replies.clone();
        std::thread::spawn(move || serve_lanes(dispatcher, &replies));
    }
    // The client is gone when the socket is: nothing here is worth finishing.
    let (watch, _stop) = PeerWatch::new(socket, None, server.gone().clone(), || std::process::exit(0))?;
    watch.spawn().map_err(BenchError::Start)?;
    let Some(mut consumer) = server.take_consumer() else { return Ok(()) };
    loop {
        let record = match consumer.next() {
            Ok(record) => record,
            Err(ConsumeError::Gone(_)) => return Ok(()),
            Err(ConsumeError::Violation(violation)) => unreachable!("our own client: {violation}"),
        };
        let header = record.header;
        if header.lane != NO_LANE {
            let cpu = (cpu_time().as_nanos() as u64).to_ne_bytes();
            let payload = if header.op == op::CPU_TIME { &cpu } else { record.payload };
            let _ = replies.send(header.lane, header.seq, 0, payload);
        }
    }
}

/// Sends messages back until one is not as long as a measured one.
fn echo(socket: &OwnedFd) -> Result<(), BenchError> {
    let mut buffer = [0u8; PAYLOAD];
    loop {
        let (got, _) = rustix::net::recv(socket, &mut buffer, rustix::net::RecvFlags::empty())?;
        if got != PAYLOAD {
            return Ok(());
        }
        rustix::net::send(socket, &buffer, rustix::net::SendFlags::NOSIGNAL)?;
    }
}

fn serve_lanes(mut dispatcher: Dispatcher, replies: &Replies) {
    while let Ok(mut lane) = dispatcher.next() {
        let replies = replies.clone();
        std::thread::spawn(move || {
            while let Ok(request) = lane.next() {
                let _ = replies.send(request.header.lane, request.header.seq, 0, request.payload);
            }
        });
    }
}
