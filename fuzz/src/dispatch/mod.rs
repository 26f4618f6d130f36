//! Hostile messages, straight into a worker's dispatch: taken off the ring, decoded, checked, executed and answered in
//! this process, by a driver that looks at what reaches it ([`crate::witness`]).
//!
//! After each message the device memory that the driver was asked for is on the worker's account.

mod client;
mod generator;
mod ledger;
mod pools;
mod random;
mod shapes;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use control::BrokerLink;
use idm::region::{Layout, Placement};
use worker::InProcess;

use crate::witness::{self, State};
use client::Client;
use generator::Generator;
pub use ledger::Ledger;
pub use random::{Bytes, Random, Xorshift};

/// What each context costs.
const CONTEXT_MEMORY: u64 = 1 << 20;
/// How many nodes the graphs of a session may have.
const GRAPH_NODES: u64 = 4096;

/// What became of messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub succeeded: u64,
    /// With an error of CUDA's.
    pub failed: u64,
    /// A real worker would have ended the client.
    pub ended: u64,
}

impl Tally {
    pub fn total(&self) -> u64 {
        self.succeeded + self.failed + self.ended
    }
}

/// A worker, its client and their account.
pub struct Session {
    worker: InProcess,
    client: Client,
    generator: Generator,
    ledger: Arc<Ledger>,
    pub tally: Tally,
}

impl Drop for Session {
    /// A real worker ends its process and tidies up nothing: what this one says from here on is not looked at.
    fn drop(&mut self) {
        State::begin(0);
    }
}

/// A message as it is sent.
struct Message {
    op: u16,
    tag: u32,
    /// Posted, so that nobody waits for its answer.
    posted: bool,
    payload: Vec<u8>,
}

impl Session {
    /// A worker that has been greeted, has a context and one of most things.
    pub fn new(seed: u64) -> Session {
        State::begin(seed);
        let layout = Layout { lanes: 4, ..Layout::default() };
        let server = idm::Server::create(layout, Placement::Anywhere).expect("a region");
        let memory = server.fd().expect("a memfd").try_clone_to_owned().expect("a descriptor");
        let region = idm::Client::attach(memory, layout, Placement::Anywhere).expect("the region");
        let (near, far): (OwnedFd, OwnedFd) = idm::bootstrap::pair().expect("sockets");
        let ledger = Arc::new(Ledger::new(seed));
        let link = BrokerLink::in_process(ledger.answers());
        let worker = InProcess::new(witness::driver(), link, server, near, CONTEXT_MEMORY, GRAPH_NODES);
        let mut session = Session {
            worker: worker.expect("a worker"),
            client: Client::new(region, far),
            generator: Generator::new(),
            ledger,
            tally: Tally::default(),
        };
        let failing = seed & 4 != 0;
        State::look().set_failing(None);
        session.client.send_output();
        for message in session.generator.prologue() {
            session.serve(&message, &mut Xorshift::new(seed));
        }
        State::look().set_failing(failing.then_some(24));
        session
    }

    /// Sends one message more, and looks at what came of it.
    pub fn step(&mut self, random: &mut dyn Random) {
        let mut message = self.generator.next(random);
        // Each by itself: a call more or less of the driver, as time will have it, must not change all that follows.
        State::look().set_random(random.word());
        self.client.prepare(&mut message);
        self.serve(&message, random);
    }

    fn serve(&mut self, message: &Message, random: &mut dyn Random) {
        let sent = self.client.send(message);
        if !sent {
            return;
        }
        let result = self.worker.serve_next();
        match &result {
            Ok(Some(0)) => self.tally.succeeded += 1,
            Ok(Some(_)) => self.tally.failed += 1,
            Ok(None) => panic!("a message that was sent is not there"),
            Err(_) => self.tally.ended += 1,
        }
        let reply = self.client.answer(message).unwrap_or_default();
        self.generator.learn(message, result == Ok(Some(0)), reply, random);
        let bytes = State::look().bytes();
        let charged = self.ledger.charged();
        assert!(bytes <= charged, "the driver has {bytes} bytes for this worker, and {charged} are on its account");
    }
}
