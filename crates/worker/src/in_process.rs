//! A worker without a process, jail or threads of its own: it takes a message off the ring and executes it where it is
//! called. So hostile messages can be tried by the million, and whoever drives it sees what each of them led to.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Once};

use cuda_abi::driver::Driver;
use cuda_abi::error::CUresult;
use idm::ring::Consumer;
use parking_lot::Mutex;

use super::serve::{Session, Unservable};
use super::state::Client;
use super::stats::Counters;
use super::{Gpus, Worker, WorkerError, memory};
use control::BrokerLink;
use control::backend::Backend;
use control::statistics::Writer;

/// A worker that is called instead of running.
pub struct InProcess {
    session: Session,
    consumer: Consumer,
    buffer: Vec<u8>,
}

/// Why a real worker would have ended its client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Ended(pub String);

impl InProcess {
    /// Serves the region's client by means of a driver. `socket` is the worker's end of the pair through which the client
    /// sends descriptors; each context costs `context_memory` on the account behind `link`, and graphs may have
    /// `graph_nodes` nodes.
    pub fn new(
        driver: Driver,
        link: BrokerLink,
        mut server: idm::Server,
        socket: OwnedFd,
        context_memory: u64,
        graph_nodes: u64,
    ) -> Result<Self, WorkerError> {
        static RESERVED: Once = Once::new();
        let mut reserved = Ok(());
        // Of all the workers of a process one has client memory at a time.
        RESERVED.call_once(|| reserved = memory::reserve_host_range().map_err(WorkerError::HostRange));
        reserved?;
        // By the driver's numbers: what it shows is all there is.
        let gpus = Gpus::new(&Backend::Nvidia { library: PathBuf::new(), devices: Vec::new() }, Vec::new());
        let worker = Arc::new(Worker::new(Arc::new(driver), Arc::new(gpus), Arc::new(link), &server));
        worker.graphs.budget.set_limit(graph_nodes);
        worker.meet(Client {
            guest: None,
            socket,
            counters: Counters::new(Writer::new(None)),
            context_memory,
            prepaid: 0.into(),
        });
        let consumer = server.take_consumer().unwrap_or_else(|| unreachable!("a new server has it"));
        let replies = server.replies();
        let buffer = vec![0; replies.max_payload()];
        Ok(Self { session: Session { worker, replies, server: Arc::new(Mutex::new(server)) }, consumer, buffer })
    }

    /// Takes the next message off the ring, executes it and replies to it; answers with its result. None: the ring is empty.
    pub fn serve_next(&mut self) -> Result<Option<CUresult>, Ended> {
        let record = self.consumer.try_next().map_err(|error| Ended(error.to_string()))?;
        let Some(record) = record else { return Ok(None) };
        let header = record.header;
        let answered =
            self.session.answer(header.op, header.tag, header.lane, header.seq, record.payload, &mut self.buffer);
        answered.map(Some).map_err(|Unservable(why)| Ended(why))
    }
}
