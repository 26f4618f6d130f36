//! A connection to a worker, as libvgpu makes it, but without its manners.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cuda_abi::table::Carry;
use cuda_abi::wire::ops::{
    Alloc, ContextRetain, CopyInline, CopyToStaging, GetFunction, ImagePart, Launch, ModuleLoad, Start, Synchronize,
    Upload,
};
use cuda_abi::wire::{self, Array, Block, List, ModuleHandle, Op, Operation, Raw, Text, Typed, to_vec};
use idm::bootstrap::{self, Attach, BootstrapError, Handover, Hello, Welcome, WelcomeStatus};
use idm::lane::{CallError, Lane};
use idm::peer::{PeerWatch, StopWatch};
use idm::region::{Layout, Placement};

use super::raw_ring::RawRing;

/// Starting a worker takes far less.
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for any answer that will come. What an attack asks may rightly never be answered.
const ANSWER: Duration = Duration::from_millis(250);

pub(super) struct Session {
    pub client: idm::Client,
    pub lane: Lane,
    pub layout: Layout,
    pub socket: OwnedFd,
    _watch: StopWatch,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Back {
    Answer {
        status: i32,
        payload: Vec<u8>,
    },
    /// The worker is there, but does not answer.
    Nothing,
    /// The worker has ended us.
    Ended,
}

pub(super) fn socket_path() -> PathBuf {
    std::env::var_os("BULKHEAD_SOCKET").expect("BULKHEAD_SOCKET names the zone").into()
}

/// Says hello and gets the socket to a worker.
pub(super) fn greet() -> Result<OwnedFd, BootstrapError> {
    greet_at(&socket_path())
}

fn greet_at(path: &Path) -> Result<OwnedFd, BootstrapError> {
    let broker = bootstrap::connect(path)?;
    bootstrap::send(&broker, &Hello::new(wire::fingerprint(), 0), &[])?;
    let (welcome, mut fds) = bootstrap::recv_within::<Welcome>(&broker, PATIENCE)?;
    match welcome.status() {
        Some(WelcomeStatus::Ok) => Ok(fds.remove(0)),
        _ => Err(BootstrapError::Invalid),
    }
}

impl Session {
    /// Connected, with the region mapped, but nothing said yet.
    pub(super) fn attach() -> Session {
        Self::attach_at(&socket_path())
    }

    fn attach_at(path: &Path) -> Session {
        let socket = greet_at(path).expect("the broker gives us a worker");
        let (attach, mut fds) =
            bootstrap::recv_within::<Attach>(&socket, PATIENCE).expect("the worker sends a region");
        let client =
            idm::Client::attach(fds.remove(0), attach.layout, Placement::Anywhere).expect("the region can be mapped");
        let duplicate = socket.try_clone().expect("a descriptor");
        let (watch, stop) = PeerWatch::new(duplicate, None, client.gone().clone(), || {}).expect("a watch");
        watch.spawn().expect("a thread");
        let lane = client.lane().expect("a lane");
        Session { client, lane, layout: attach.layout, socket, _watch: stop }
    }

    /// Started as libvgpu does, with the device's primary context, whose tag is 1.
    pub(super) fn start() -> Session {
        Self::start_at(&socket_path())
    }

    /// The same in another zone, whose socket is known.
    pub(super) fn start_at(path: &Path) -> Session {
        let mut session = Session::attach_at(path);
        let nowhere = std::fs::File::options().write(true).open("/dev/null").expect("/dev/null");
        bootstrap::send(&session.socket, &Handover::default(), &[nowhere.as_fd()]).expect("the worker listens");
        for (op, payload) in [
            (Op::Start, to_vec(&Start { variables: List::new(&[]) })),
            (Op::ContextRetain, to_vec(&ContextRetain { device: 0 })),
        ] {
            assert!(matches!(session.call_patiently(op as u16, 0, &payload), Back::Answer { status: 0, .. }));
        }
        session
    }

    pub(super) fn is_over(&self) -> bool {
        self.client.gone().is_set()
    }

    /// Through the ring.
    pub(super) fn call(&mut self, op: u16, tag: u32, payload: &[u8]) -> Back {
        match self.lane.begin_call(op, 0, tag, payload.len(), |slot| slot.copy_from_slice(payload)) {
            Ok(_) => self.hear(),
            Err(_) => Back::Ended,
        }
    }

    /// Through the lane.
    pub(super) fn block(&mut self, op: u16, tag: u32, payload: &[u8]) -> Back {
        let after = self.client.position();
        match self.lane.begin_block(op, 0, tag, after, payload.len(), |slot| slot.copy_from_slice(payload)) {
            Ok(()) => self.hear(),
            // Longer than a lane takes: not a message at all.
            Err(CallError::TooLong { .. }) => Back::Nothing,
            Err(_) => Back::Ended,
        }
    }

    fn hear(&mut self) -> Back {
        match self.lane.finish(Some(ANSWER)) {
            Ok(reply) => Back::Answer { status: reply.status, payload: reply.payload.to_vec() },
            Err(CallError::Timeout) if !self.client.gone().is_set() => Back::Nothing,
            Err(_) => Back::Ended,
        }
    }

    pub(super) fn post(&self, op: u16, tag: u32, payload: &[u8]) -> bool {
        self.client.post(op, 0, tag, payload.len(), |slot| slot.copy_from_slice(payload)).is_ok()
    }

    /// A call that is answered, however busy the machine is.
    fn call_patiently(&mut self, op: u16, tag: u32, payload: &[u8]) -> Back {
        let asked = self.lane.begin_call(op, 0, tag, payload.len(), |slot| slot.copy_from_slice(payload));
        match asked.and_then(|_| self.lane.finish(Some(PATIENCE))) {
            Ok(reply) => Back::Answer { status: reply.status, payload: reply.payload.to_vec() },
            Err(_) => Back::Ended,
        }
    }

    /// A call of the table's that must work, and the words of its answer.
    pub(super) fn call_function(&mut self, symbol: &str, arguments: &[u64]) -> Vec<u64> {
        match self.call_patiently(op_of(symbol), 1, &words(arguments)) {
            Back::Answer { status: 0, payload } => payload
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
                .collect(),
            other => panic!("{symbol} answered {other:?}"),
        }
    }

    /// A request that must work, and what is wanted of its reply.
    pub(super) fn ask<R: Operation, T>(&mut self, request: &R, read: impl FnOnce(R::Reply<'_>) -> T) -> T {
        match self.call_patiently(R::CODE, 1, &to_vec(request)) {
            Back::Answer { status: 0, payload } => read(wire::decode(&payload).expect("the reply of this request")),
            other => panic!("{} answered {other:?}", R::OP.name()),
        }
    }

    /// A request that may fail.
    pub(super) fn try_ask<R: Operation>(&mut self, request: &R) -> Back {
        self.call(R::CODE, 1, &to_vec(request))
    }

    /// A request that nobody answers.
    pub(super) fn tell<R: Operation>(&self, request: &R) -> bool {
        self.post(R::CODE, 1, &to_vec(request))
    }

    pub(super) fn alloc(&mut self, bytes: u64) -> u64 {
        self.ask(&Alloc { bytes, ahead: 0 }, |reply| reply.address)
    }

    /// Writes to device memory.
    pub(super) fn write(&self, destination: u64, bytes: &[u8]) -> bool {
        self.tell(&CopyInline { destination, stream: Typed::NONE, bytes: Raw(bytes) })
    }

    pub(super) fn function(&mut self, module: ModuleHandle, name: &[u8]) -> u64 {
        self.ask(&GetFunction { module, name: Text(name) }, |reply| reply.handle.0)
    }

    /// Waits for all work, however long it takes.
    pub(super) fn settle(&mut self) -> i32 {
        let payload = to_vec(&Synchronize { context: None });
        let fill = |slot: &mut [u8]| slot.copy_from_slice(&payload);
        let asked = self.lane.begin_call(Synchronize::CODE, 0, 1, payload.len(), fill);
        asked.expect("the worker is there");
        self.lane.finish(Some(PATIENCE)).expect("the work ends").status
    }

    /// A word of device memory, by way of the staging area.
    pub(super) fn read_word(&mut self, address: u64) -> u64 {
        self.tell(&CopyToStaging { source: address, offset: 0, bytes: 8, stream: Typed::NONE, done: None });
        assert_eq!(self.settle(), 0, "a copy failed");
        let region = RawRing::map(self.client.region().fd().expect("a memfd"), &self.layout, 0);
        region.read_word(region.len - self.layout.bulk_bytes as usize)
    }

    /// Loads an image that the zone has room for: at the latest when the worker before this one is gone.
    pub(super) fn must_load<R: Operation>(
        &mut self,
        request: &R,
        image: &[u8],
        read: impl FnOnce(R::Reply<'_>) -> u64,
    ) -> u64 {
        const OUT_OF_MEMORY: i32 = 2;
        for _ in 0..1000 {
            self.upload(image);
            match self.call_patiently(R::CODE, 1, &to_vec(request)) {
                Back::Answer { status: OUT_OF_MEMORY, .. } => {
                    std::thread::sleep(std::time::Duration::from_millis(10))
                }
                Back::Answer { status: 0, payload } => {
                    return read(wire::decode(&payload).expect("the reply of this request"));
                }
                other => panic!("{} answered {other:?}", R::OP.name()),
            }
        }
        panic!("the zone has no room for an image")
    }

    /// Loads PTX text as a module.
    pub(super) fn load(&mut self, image: &[u8]) -> Back {
        self.upload(image);
        self.try_ask(&ModuleLoad { image: Upload::new(image.len() as u64) })
    }

    pub(super) fn upload(&self, image: &[u8]) {
        for part in image.chunks(256 << 10) {
            self.tell(&ImagePart { lane: self.lane.index(), part: Raw(part) });
        }
    }
}

pub(super) fn name_of(op: u16) -> String {
    match Op::from_code(op) {
        Some(op) => op.name().to_owned(),
        None => cuda_abi::table::functions().get(usize::from(op)).map_or("?".to_owned(), |f| f.symbol.clone()),
    }
}

/// The opcode of a function of the table.
pub(super) fn op_of(symbol: &str) -> u16 {
    let functions = cuda_abi::table::functions();
    let at = functions.iter().position(|function| function.symbol == symbol).expect("the table has it");
    // A message that no worker knows would end the attack before it has begun.
    assert!(matches!(functions[at].carry, Carry::Post | Carry::Call | Carry::Block), "{symbol} is not sent as it is");
    at as u16
}

/// Words as bytes: the arguments of a function of the table, or of a kernel.
pub(super) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A launch as a client would have it: without shared memory and attributes.
pub(super) fn launch(function: u64, stream: u64, grid: u32, block: u32, parameters: &[u8]) -> Launch<'_> {
    Launch {
        function: Typed(function),
        stream: Typed(stream),
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        shared_bytes: 0,
        is_cooperative: false,
        attributes: Array::new(&[]),
        parameters: Block::Bytes(parameters),
    }
}

/// The module that a [`Session::load`] answered with.
pub(super) fn module_of(reply: &[u8]) -> ModuleHandle {
    let wire::ops::ModuleLoaded { module } = wire::decode(reply).expect("the reply of a load");
    module
}
