//! Looking for what another zone has, or had: foreign handles, planted secrets in memory that comes back, tokens and
//! sockets of others. The other zone's socket is in `BULKHEAD_VICTIM`.

use std::path::PathBuf;

use control::messages::{ToBroker, to_broker};
use cuda_abi::plan;
use cuda_abi::wire::decode;
use cuda_abi::wire::ops::{
    Alloc, Allocated, CloseImport, EventCreate, EventImport, Export, Free, HostMap, Import, ModuleLoad,
    PhysicalImport, Upload,
};
use zerocopy::IntoBytes;

use super::raw_ring::RawRing;
use super::session::{Back, Session, launch, module_of, op_of, socket_path, words};
use super::{Dice, Tally};
use crate::calls::KERNELS;

const MIB: u64 = 1 << 20;
/// How much a copy takes of the staging area at a time.
const CHUNK: u64 = MIB;
/// `hunt(u64 base, u64 words, u64 secret, u64 found)`: each thread looks at every n-th word, and counts at `found`.
const HUNT: &str = "\
.version 8.0
.target sm_75
.address_size 64
.visible .entry hunt(.param .u64 base, .param .u64 count, .param .u64 secret, .param .u64 found)
{
    .reg .pred %p<3>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<10>;
    ld.param.u64 %rd1, [base];
    ld.param.u64 %rd2, [count];
    ld.param.u64 %rd3, [secret];
    ld.param.u64 %rd4, [found];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %rd5, %r4;
LOOP:
    setp.ge.u64 %p1, %rd5, %rd2;
    @%p1 bra DONE;
    shl.b64 %rd6, %rd5, 3;
    add.u64 %rd7, %rd1, %rd6;
    ld.global.u64 %rd8, [%rd7];
    setp.ne.u64 %p2, %rd8, %rd3;
    @%p2 bra NEXT;
    atom.global.add.u64 %rd9, [%rd4], 1;
NEXT:
    mov.u32 %r5, 4096;
    cvt.u64.u32 %rd9, %r5;
    add.u64 %rd5, %rd5, %rd9;
    bra LOOP;
DONE:
    ret;
}
";
const THREADS: u32 = 4096;

fn victim() -> PathBuf {
    std::env::var_os("BULKHEAD_VICTIM").expect("BULKHEAD_VICTIM names the other zone").into()
}

/// A secret in all that a client can write: device memory of all sizes, pinned memory, staging memory, the ring, an image.
struct Planted {
    session: Session,
    /// Kept until the victim is gone.
    _pinned: std::os::fd::OwnedFd,
    blocks: Vec<u64>,
    pinned: u64,
}

fn plant(secret: u64) -> Planted {
    let mut session = Session::start_at(&victim());
    let line = secret.to_le_bytes().repeat(CHUNK as usize / 8);
    let ring = RawRing::map(session.client.region().fd().expect("a memfd"), &session.layout, 0);
    ring.write(ring.len - line.len(), &line);
    let mut blocks = Vec::new();
    for size in [64 << 10, 256 << 10, CHUNK, 4 * MIB, 16 * MIB] {
        let block = session.alloc(size);
        for at in (0..size).step_by(64 << 10) {
            session.write(block + at, &line[..64 << 10]);
        }
        blocks.push(block);
    }
    let pinned = super::descriptors::memfd(4 * MIB, rustix::fs::SealFlags::SHRINK);
    rustix::io::pwrite(&pinned, &line, 0).expect("its pages");
    let base = plan::HOST_BASE;
    let sent = idm::bootstrap::send(
        &session.socket,
        &idm::bootstrap::Handover::default(),
        &[std::os::fd::AsFd::as_fd(&pinned)],
    );
    sent.expect("the worker listens");
    session.ask(&HostMap { address: base, bytes: 4 * MIB }, |()| ());
    let image = format!("{KERNELS}\n.visible .global .align 8 .u64 hidden[2] = {{{secret}, {secret}}};\n");
    assert!(matches!(session.load(image.as_bytes()), Back::Answer { status: 0, .. }));
    assert_eq!(session.settle(), 0);
    Planted { session, _pinned: pinned, blocks, pinned: base }
}

/// Finds a secret in everything that a new client is given. `count` victims, one after the other.
pub(super) fn residue(dice: &mut Dice, count: u64) -> Tally {
    let mut tally = Tally::default();
    for _ in 0..count {
        let secret = dice.roll() | 1 << 63 | 1;
        drop(plant(secret));
        tally.sessions += 1;
        let mut session = Session::start();
        tally.sessions += 1;
        // The region: ring, lanes, staging memory.
        let ring = RawRing::map(session.client.region().fd().expect("a memfd"), &session.layout, 0);
        assert!(!ring.contains(&secret.to_le_bytes()), "the region holds another's secret");
        let Back::Answer { status: 0, payload } = session.load(HUNT.as_bytes()) else { panic!("the hunter loads") };
        let hunt = session.function(module_of(&payload), b"hunt");
        let found = session.alloc(4096);
        session.write(found, &words(&[0]));
        // All the memory that the zone gives, in pieces of all sizes.
        let mut pieces = Vec::new();
        for size in [64 << 20, 16 * MIB, 4 * MIB, MIB, 256 << 10, 64 << 10] {
            while pieces.len() < 200 {
                match session.try_ask(&Alloc { bytes: size, ahead: 0 }) {
                    Back::Answer { status: 0, payload } => {
                        let Allocated { address, .. } = decode(&payload).expect("the reply of this request");
                        pieces.push((address, size));
                    }
                    _ => break,
                }
            }
        }
        assert!(!pieces.is_empty(), "there is memory to look at");
        for (address, size) in pieces {
            let parameters = words(&[address, size / 8, secret, found]);
            session.tell(&launch(hunt, 0, THREADS / 256, 256, &parameters));
            tally.messages += 1;
        }
        let hits = session.read_word(found);
        assert_eq!(hits, 0, "memory that came back holds another's secret, {hits} times");
        // The hunter finds what there is to find: its own counter, when that is the secret.
        session.write(found, &words(&[0, secret]));
        session.tell(&launch(hunt, 0, 1, 256, &words(&[found + 8, 1, secret, found])));
        assert_eq!(session.read_word(found), 1, "the hunter is blind");
        tally.answered += 1;
    }
    tally
}

/// Kernels that read where another zone's live secret might be: at its own addresses, and all over the address space.
/// A read that leads nowhere ends the session's context, so each has its own.
pub(super) fn scan(dice: &mut Dice, count: u64) -> Tally {
    let mut tally = Tally::default();
    let secret = dice.roll() | 1 << 63 | 1;
    let planted = plant(secret);
    for number in 0..count {
        let mut session = Session::start();
        tally.sessions += 1;
        let Back::Answer { status: 0, payload } = session.load(HUNT.as_bytes()) else { panic!("the hunter loads") };
        let hunt = session.function(module_of(&payload), b"hunt");
        let found = session.alloc(4096);
        session.write(found, &words(&[0]));
        assert_eq!(session.settle(), 0);
        let address = match number % 6 {
            0 => dice.pick(&planted.blocks),
            1 => planted.pinned,
            2 => plan::DEVICE_BASE + (dice.roll() % plan::DEVICE_SIZE),
            3 => 0x5555_5555_4000 + (dice.roll() % (1 << 36)),
            4 => 0x7f00_0000_0000 + (dice.roll() % (1 << 40)),
            _ => dice.boundary(),
        } & !7;
        session.tell(&launch(hunt, 0, 1, 256, &words(&[address, 64 << 10, secret, found])));
        tally.messages += 1;
        // If it has read something, that is its own.
        if session.settle() == 0 {
            let hits = session.read_word(found);
            assert_eq!(hits, 0, "a kernel found another zone's secret at {address:#x}");
        }
        tally.answered += 1;
    }
    let mut planted = planted;
    let still = planted.session.read_word(planted.blocks[0]);
    assert_eq!(still, secret, "the victim's memory was changed");
    tally
}

/// Handles of another session, and of an own one that has ended.
pub(super) fn foreign(_: &mut Dice, count: u64) -> Tally {
    let mut tally = Tally::default();
    let (event_destroy, stream_destroy, unload) =
        (op_of("cuEventDestroy_v2"), op_of("cuStreamDestroy_v2"), op_of("cuModuleUnload"));
    for number in 0..count {
        let mut other = if number % 2 == 0 { Session::start_at(&victim()) } else { Session::start() };
        // Beyond the first few, so that no handle of a session with nothing in it is the same word.
        let mut handles = Vec::new();
        for _ in 0..20 {
            handles.push((event_destroy, other.ask(&EventCreate { flags: 0 }, |reply| reply.event.0)));
            handles.push((stream_destroy, other.call_function("cuStreamCreate", &[1])[0]));
        }
        other.upload(KERNELS.as_bytes());
        let module = other.ask(&ModuleLoad { image: Upload::new(KERNELS.len() as u64) }, |reply| reply.module.0);
        handles.push((unload, module));
        let block = other.alloc(3 * MIB);
        let mut session = Session::start();
        tally.sessions += 2;
        for (op, handle) in handles {
            tally.messages += 1;
            match session.call(op, 1, &words(&[handle])) {
                Back::Answer { status, .. } => {
                    assert_ne!(status, 0, "a foreign handle {handle:#x} was taken");
                    tally.answered += 1;
                }
                Back::Ended => {
                    tally.ended += 1;
                    session = Session::start();
                }
                Back::Nothing => tally.stuck += 1,
            }
        }
        for which in 0..2 {
            let back = match which {
                0 => session.try_ask(&Free { address: block }),
                _ => session.try_ask(&CloseImport { address: block }),
            };
            match back {
                Back::Answer { status, .. } => assert_ne!(status, 0, "another's memory was freed"),
                _ => session = Session::start(),
            }
        }
        // The owner has all of it still.
        other.ask(&Free { address: block }, |()| ());
        other.call_function("cuModuleUnload", &[module]);
    }
    tally
}

/// Tokens of another zone, right and altered; guesses; and other doors than the zone's own.
pub(super) fn tokens(dice: &mut Dice, count: u64) -> Tally {
    let mut tally = Tally { sessions: 2, ..Tally::default() };
    let mut other = Session::start_at(&victim());
    let block = other.alloc(4 * MIB);
    let token = other.ask(&Export { address: block, bytes: 4 * MIB, is_pooled: false }, |reply| reply.token);
    let mut session = Session::start();
    for number in 0..count {
        let token = match number % 4 {
            // The very token: there is no grant.
            0 => token,
            1 => [token[0] ^ 1 << dice.below(64), token[1]],
            2 => [token[0], token[1] ^ 1 << dice.below(64)],
            _ => [dice.roll(), dice.roll()],
        };
        tally.messages += 1;
        let back = match dice.below(3) {
            0 => session.try_ask(&Import { token, is_pooled: false }),
            1 => session.try_ask(&PhysicalImport { token }),
            _ => session.try_ask(&EventImport { token }),
        };
        match back {
            Back::Answer { status, .. } => {
                assert_ne!(status, 0, "a token that is not ours opened something");
                tally.answered += 1;
            }
            Back::Nothing => tally.stuck += 1,
            Back::Ended => {
                tally.ended += 1;
                tally.sessions += 1;
                session = Session::start();
            }
        }
    }
    // A container sees no other directory than its zone's. If it did: the door of workers wants a token of 128 bits.
    let dir = socket_path();
    let beside: Vec<String> = std::fs::read_dir(dir.parent().expect("a directory"))
        .expect("the zone's directory")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    assert!(beside.iter().all(|name| ["sock", "driver-version"].contains(&name.as_str())), "{beside:?}");
    if let Some(state) = dir.ancestors().nth(3) {
        for _ in 0..count {
            let Ok(socket) = control::packet::connect(&state.join("workers/rejoin/sock")) else { break };
            let mut guess = ToBroker::new(dice.pick(&[to_broker::REJOIN, to_broker::REJOIN, to_broker::EXPORT, 99]));
            guess.token.copy_from_slice(&dice.bytes(16));
            let bytes = guess.as_bytes();
            let len = if dice.below(4) == 0 { dice.below(bytes.len()) } else { bytes.len() };
            let _ = control::packet::send(&socket, &bytes[..len], &[]);
            tally.messages += 1;
        }
    }
    other.ask(&Free { address: block }, |()| ());
    tally
}
