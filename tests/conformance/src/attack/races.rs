//! Several lanes at once that make, use and end the same things.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cuda_abi::wire::ops::{
    Alloc, ContextCreate, ContextDestroy, CopySync, EventCreate, Free, FreeAsync, FreeUnused, GetFunction,
    GetFunctionAttribute, HostMap, HostUnmap, ModuleLoad, SynchronizeStream, Upload,
};
use cuda_abi::wire::{Operation, Text, Typed, to_vec};
use idm::lane::{CallError, Lane};

use super::session::{Session, launch, op_of, words};
use super::{Dice, Tally};
use crate::calls::KERNELS;

const THREADS: u64 = 6;
const PER_THREAD: u64 = 600;

/// Handles and addresses that any thread was given.
struct Loot {
    streams: Mutex<Vec<u64>>,
    events: Mutex<Vec<u64>>,
    modules: Mutex<Vec<u64>>,
    functions: Mutex<Vec<u64>>,
    blocks: Mutex<Vec<u64>>,
    contexts: Mutex<Vec<u64>>,
}

fn any(dice: &mut Dice, list: &Mutex<Vec<u64>>) -> u64 {
    let list = list.lock().expect("no thread panics with it");
    // The newest are the most likely to be there still.
    let from = list.len().saturating_sub(4);
    if list.is_empty() { 0 } else { dice.pick(&list[from..]) }
}

/// Pinned memory that comes and goes while copies use it.
pub(super) fn pinned(dice: &mut Dice, rounds: u64) -> Tally {
    const LEN: u64 = 1 << 20;
    let mut tally = Tally { sessions: 1, ..Tally::default() };
    let mut session = Session::start();
    let block = session.alloc(LEN);
    let file = super::descriptors::memfd(LEN, rustix::fs::SealFlags::SHRINK);
    let base = cuda_abi::plan::HOST_BASE;
    let over = std::sync::atomic::AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    let mut lanes: Vec<(Lane, Dice)> =
        (0..3).map(|_| (session.client.lane().expect("a lane"), Dice::new(dice.roll()))).collect();
    std::thread::scope(|scope| {
        let (over, answered, client) = (&over, &answered, &session.client);
        for (lane, dice) in &mut lanes {
            scope.spawn(move || {
                while !over.load(Ordering::Acquire) {
                    let (to, from) = if dice.below(2) == 0 { (base, block) } else { (block, base) };
                    let bytes = dice.pick(&[8, 4096, LEN]);
                    let copy = CopySync { destination: to, source: from, bytes, stream: Typed::NONE };
                    if ask(client, lane, CopySync::CODE, &to_vec(&copy), false).is_err() {
                        return;
                    }
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut lane = client.lane().expect("a lane");
        for _ in 0..rounds {
            let sent = idm::bootstrap::send(
                &session.socket,
                &idm::bootstrap::Handover::default(),
                &[std::os::fd::AsFd::as_fd(&file)],
            );
            let map = to_vec(&HostMap { address: base, bytes: LEN });
            let unmap = to_vec(&HostUnmap { address: base, bytes: LEN });
            let mapped = sent.is_ok() && ask(client, &mut lane, HostMap::CODE, &map, true).is_ok();
            if !mapped || ask(client, &mut lane, HostUnmap::CODE, &unmap, true).is_err() {
                break;
            }
            tally.messages += 2;
        }
        over.store(true, Ordering::Release);
    });
    tally.answered = answered.into_inner();
    tally.ended = u64::from(session.is_over());
    tally
}

pub(super) fn attack(dice: &mut Dice, sessions: u64) -> Tally {
    let mut tally = Tally::default();
    for _ in 0..sessions {
        let mut session = Session::start();
        tally.sessions += 1;
        let load = ModuleLoad { image: Upload::new(KERNELS.len() as u64) };
        let module = session.must_load(&load, KERNELS.as_bytes(), |reply| reply.module.0);
        let loot = Loot {
            streams: Mutex::default(),
            events: Mutex::default(),
            modules: Mutex::new(vec![module]),
            functions: Mutex::default(),
            blocks: Mutex::default(),
            contexts: Mutex::default(),
        };
        let (answered, silent) = (AtomicU64::new(0), AtomicU64::new(0));
        let ops = Ops::find();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let mut dice = Dice::new(dice.roll());
                let mut lane = session.client.lane().expect("a lane");
                let (loot, ops, answered, silent, client) = (&loot, &ops, &answered, &silent, &session.client);
                scope.spawn(move || {
                    for _ in 0..PER_THREAD {
                        let (op, payload, into) = ops.choose(&mut dice, loot);
                        match ask(client, &mut lane, op, &payload, dice.below(3) == 0) {
                            Ok(word) => {
                                answered.fetch_add(1, Ordering::Relaxed);
                                if let (Some(word), Some(list)) = (word, into) {
                                    list.lock().expect("no thread panics with it").push(word);
                                }
                            }
                            Err(CallError::Timeout) => {
                                silent.fetch_add(1, Ordering::Relaxed);
                                return;
                            }
                            Err(_) => return,
                        }
                    }
                });
            }
        });
        tally.messages += THREADS * PER_THREAD;
        tally.answered += answered.into_inner();
        tally.stuck += silent.into_inner();
        tally.ended += u64::from(session.is_over());
    }
    // Ended by its first messages, it would have raced with nobody.
    assert!(tally.answered * 4 > tally.messages, "hardly anything was answered: {tally}");
    tally
}

/// Asks through the ring or the lane; the first word of a good answer.
fn ask(client: &idm::Client, lane: &mut Lane, op: u16, payload: &[u8], ring: bool) -> Result<Option<u64>, CallError> {
    let fill = |slot: &mut [u8]| slot.copy_from_slice(payload);
    if ring {
        lane.begin_call(op, 0, 1, payload.len(), fill)?;
    } else {
        lane.begin_block(op, 0, 1, client.position(), payload.len(), fill)?;
    }
    let reply = lane.finish(Some(Duration::from_secs(20)))?;
    let word = reply.payload.first_chunk::<8>().map(|word| u64::from_le_bytes(*word));
    Ok(word.filter(|_| reply.status == 0))
}

/// An opcode, its message, and where the first word of the answer goes.
type Choice<'a> = (u16, Vec<u8>, Option<&'a Mutex<Vec<u64>>>);

fn made<'a, R: Operation>(request: &R, into: Option<&'a Mutex<Vec<u64>>>) -> Choice<'a> {
    (R::CODE, to_vec(request), into)
}

struct Ops {
    stream_create: u16,
    stream_destroy: u16,
    event_destroy: u16,
    event_record: u16,
    event_sync: u16,
    wait_event: u16,
    unload: u16,
    set: u16,
}

impl Ops {
    fn find() -> Ops {
        Ops {
            stream_create: op_of("cuStreamCreate"),
            stream_destroy: op_of("cuStreamDestroy_v2"),
            event_destroy: op_of("cuEventDestroy_v2"),
            event_record: op_of("cuEventRecord"),
            event_sync: op_of("cuEventSynchronize"),
            wait_event: op_of("cuStreamWaitEvent"),
            unload: op_of("cuModuleUnload"),
            set: op_of("cuMemsetD8Async"),
        }
    }

    fn choose<'a>(&self, dice: &mut Dice, loot: &'a Loot) -> Choice<'a> {
        let (stream, event) = (any(dice, &loot.streams), any(dice, &loot.events));
        let (module, function) = (any(dice, &loot.modules), any(dice, &loot.functions));
        let (block, context) = (any(dice, &loot.blocks), any(dice, &loot.contexts));
        let name = Text(dice.pick(&[&b"double"[..], b"sum", b"bump"]));
        let on_stream = Typed(stream);
        match dice.below(24) {
            0 | 1 => (self.stream_create, words(&[1]), Some(&loot.streams)),
            2 => (self.stream_destroy, words(&[stream]), None),
            3 => made(&SynchronizeStream { stream: on_stream }, None),
            4 | 5 => made(&EventCreate { flags: 2 }, Some(&loot.events)),
            6 => (self.event_destroy, words(&[event]), None),
            7 | 8 => (self.event_record, words(&[event, stream]), None),
            9 => (self.event_sync, words(&[event]), None),
            10 => (self.wait_event, words(&[stream, event, 0]), None),
            11 => (self.unload, words(&[module]), None),
            12 | 13 => made(&GetFunction { module: Typed(module), name }, Some(&loot.functions)),
            14 => made(&GetFunctionAttribute { function: Typed(function), attribute: 0, device: None }, None),
            15 | 16 => made(
                &Alloc { bytes: dice.pick(&[100, 5000, 3 << 20]), ahead: dice.pick(&[0, 3]) },
                Some(&loot.blocks),
            ),
            17 if dice.below(2) == 0 => made(&FreeUnused { address: block }, None),
            17 => made(&Free { address: block }, None),
            18 => made(&FreeAsync { address: block, stream: on_stream }, None),
            19 => (self.set, words(&[block, 7, 100, stream]), None),
            20 => made(&CopySync { destination: block, source: block + 50, bytes: 40, stream: on_stream }, None),
            // A context takes a GPU a good part of a second: with many of them the others would wait, and race with nobody.
            21 if dice.below(8) == 0 => made(&ContextCreate { flags: 0, device: 0 }, Some(&loot.contexts)),
            22 if dice.below(8) == 0 => made(&ContextDestroy { context: Typed(context) }, None),
            _ => made(&launch(function, stream, 1, 32, &words(&[block, 8])), None),
        }
    }
}
