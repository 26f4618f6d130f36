//! Too much of everything: messages, streams, descriptors, threads, processes; too little reading; leaving halfway.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use cuda_abi::plan;
use cuda_abi::wire::ops::{
    Alloc, ContextRetain, CopySync, EventCreate, FreeAsync, HostMap, MemInfo, Start, Synchronize,
};
use cuda_abi::wire::{self, List, Operation, Typed, to_vec};
use idm::bootstrap::{self, Attach, Handover, Hello, Inquiry, Welcome, WelcomeStatus};
use idm::region::Placement;
use rustix::fs::SealFlags;

use super::session::{Back, Session, greet, op_of, socket_path, words};
use super::{Dice, Tally};
use crate::calls::KERNELS;

const PAGE: u64 = 4096;
const PATIENCE: Duration = Duration::from_secs(60);

/// Posts without a pause, and never waits for anything.
pub(super) fn flood(dice: &mut Dice, count: u64) -> Tally {
    let mut tally = Tally { sessions: 1, ..Tally::default() };
    let mut session = Session::start();
    let block = session.alloc(1 << 20);
    for _ in 0..count {
        let fine = match dice.below(3) {
            0 => session.write(block, &[7; 64]),
            1 => session.post(op_of("cuMemsetD8Async"), 1, &words(&[block, 7, 4096, 0])),
            // Refused, each of them: nobody remembers them all.
            _ => session.tell(&FreeAsync { address: dice.roll(), stream: Typed::NONE }),
        };
        if !fine {
            break;
        }
        tally.messages += 1;
    }
    tally.ended = u64::from(session.is_over());
    // Gone with everything still in the ring.
    tally
}

/// As many streams as there are; then events.
pub(super) fn streams(_: &mut Dice, count: u64) -> Tally {
    let mut tally = Tally { sessions: 1, ..Tally::default() };
    let mut session = Session::start();
    let event = to_vec(&EventCreate { flags: 2 });
    for (op, payload) in [(op_of("cuStreamCreate"), words(&[1])), (EventCreate::CODE, event)] {
        for _ in 0..count {
            tally.messages += 1;
            match session.call(op, 1, &payload) {
                Back::Answer { status: 0, .. } => tally.answered += 1,
                // There are no more.
                Back::Answer { .. } => break,
                Back::Nothing => tally.stuck += 1,
                Back::Ended => {
                    tally.ended += 1;
                    return tally;
                }
            }
        }
    }
    tally
}

/// Asks on every lane and takes no answer; asks the broker and does not listen.
pub(super) fn slow(dice: &mut Dice, count: u64) -> Tally {
    let mut tally = Tally::default();
    let mut open: Vec<OwnedFd> = Vec::new();
    for _ in 0..count {
        let mut session = Session::start();
        tally.sessions += 1;
        let block = session.alloc(1 << 20);
        let mut lanes: Vec<_> = std::iter::from_fn(|| session.client.lane().ok()).take(300).collect();
        for lane in &mut lanes {
            let payload =
                to_vec(&CopySync { destination: block, source: block + 4096, bytes: 4096, stream: Typed::NONE });
            let fill = |slot: &mut [u8]| slot.copy_from_slice(&payload);
            let after = session.client.position();
            let asked = match dice.below(2) {
                0 => lane.begin_call(CopySync::CODE, 0, 1, payload.len(), fill).is_ok(),
                _ => lane.begin_block(CopySync::CODE, 0, 1, after, payload.len(), fill).is_ok(),
            };
            tally.messages += u64::from(asked);
        }
        // Nobody has taken an answer; others of the session still get theirs.
        session.ask(&MemInfo {}, |_| ());
        tally.answered += 1;
        std::mem::forget(lanes);
        // At the broker's own door.
        for _ in 0..20 {
            if let Ok(socket) = bootstrap::connect(&socket_path()) {
                let _ = bootstrap::send(&socket, &Inquiry::default(), &[]);
                open.push(socket);
            }
        }
    }
    tally
}

/// Leaves after every single step of the way to a worker and into it.
pub(super) fn steps(_: &mut Dice, rounds: u64) -> Tally {
    let mut tally = Tally::default();
    for round in 0..rounds {
        for last in 0..STEPS {
            leave_after(last, round % 2 == 0);
            tally.sessions += 1;
        }
    }
    tally
}

const STEPS: usize = 14;

/// Does the first steps of an honest client, and then nothing: all its descriptors are closed at once, or only its
/// mapping stays for a while.
fn leave_after(last: usize, keep_mapping: bool) -> Option<()> {
    let reached = |step: usize| (step <= last).then_some(());
    let broker = bootstrap::connect(&socket_path()).ok()?;
    reached(1)?;
    bootstrap::send(&broker, &Hello::new(wire::fingerprint(), 0), &[]).ok()?;
    reached(2)?;
    let (welcome, mut fds) = bootstrap::recv_within::<Welcome>(&broker, PATIENCE).ok()?;
    assert_eq!(welcome.status(), Some(WelcomeStatus::Ok));
    let socket = fds.remove(0);
    reached(3)?;
    drop(broker);
    let (attach, mut fds) = bootstrap::recv_within::<Attach>(&socket, PATIENCE).ok()?;
    reached(4)?;
    let client = idm::Client::attach(fds.remove(0), attach.layout, Placement::Anywhere).ok()?;
    reached(5)?;
    let mut lane = client.lane().ok()?;
    let nowhere = std::fs::File::options().write(true).open("/dev/null").ok()?;
    bootstrap::send(&socket, &Handover::default(), &[nowhere.as_fd()]).ok()?;
    reached(6)?;
    let mut ask = |op: u16, payload: Vec<u8>, wait: bool| -> Option<()> {
        lane.begin_call(op, 0, 1, payload.len(), |slot| slot.copy_from_slice(&payload)).ok()?;
        if wait {
            lane.finish(Some(PATIENCE)).ok()?;
        }
        Some(())
    };
    // Each is left once without the answer, and once after it.
    let calls = [
        (Start::CODE, to_vec(&Start { variables: List::new(&[]) })),
        (ContextRetain::CODE, to_vec(&ContextRetain { device: 0 })),
        (Alloc::CODE, to_vec(&Alloc { bytes: 8 << 20, ahead: 0 })),
        (op_of("cuStreamCreate"), words(&[1])),
    ];
    for (number, (op, payload)) in calls.into_iter().enumerate() {
        let step = 7 + 2 * number;
        reached(step)?;
        ask(op, payload, step < last)?;
    }
    if keep_mapping {
        drop(socket);
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(())
}

/// Descriptors that nobody asked for, mappings without end, and every lane blocked.
pub(super) fn exhaust(_: &mut Dice, count: u64) -> Tally {
    let mut tally = Tally::default();
    let small = super::descriptors::memfd(PAGE, SealFlags::SHRINK);
    // The worker reads its socket only as far as it must.
    let session = Session::start();
    rustix::io::ioctl_fionbio(&session.socket, true).expect("a socket");
    for _ in 0..count {
        if bootstrap::send(&session.socket, &Handover::default(), &[small.as_fd()]).is_err() {
            break;
        }
        tally.messages += 1;
    }
    tally.sessions += 1;
    drop(session);
    // Pinned memory, a page at a time.
    let mut session = Session::start();
    tally.sessions += 1;
    for number in 0..count {
        let address = plan::HOST_BASE + number * 2 * PAGE;
        if bootstrap::send(&session.socket, &Handover::default(), &[small.as_fd()]).is_err() {
            break;
        }
        tally.messages += 1;
        match session.try_ask(&HostMap { address, bytes: PAGE }) {
            Back::Answer { status: 0, .. } => tally.answered += 1,
            Back::Answer { .. } => break,
            Back::Nothing => tally.stuck += 1,
            Back::Ended => {
                tally.ended += 1;
                break;
            }
        }
    }
    // A thread of the worker for each lane.
    let session = Session::start();
    tally.sessions += 1;
    session.upload(KERNELS.as_bytes());
    let mut lanes: Vec<_> = std::iter::from_fn(|| session.client.lane().ok()).take(1000).collect();
    for lane in &mut lanes {
        let (after, payload) = (session.client.position(), to_vec(&Synchronize { context: None }));
        let fill = |slot: &mut [u8]| slot.copy_from_slice(&payload);
        if lane.begin_block(Synchronize::CODE, 0, 1, after, payload.len(), fill).is_ok() {
            tally.messages += 1;
        }
    }
    for lane in &mut lanes {
        tally.answered += u64::from(lane.finish(Some(PATIENCE)).is_ok());
    }
    tally
}

/// More processes than a zone may have, all at once, and killed all at once.
pub(super) fn forks(_: &mut Dice, count: u64) -> Tally {
    let own = std::env::current_exe().expect("this program");
    let mut tally = Tally::default();
    let mut children: Vec<_> = (0..count)
        .filter_map(|_| {
            let mut command = Command::new(&own);
            command.args(["attack", "one", "hold", "1", "1"]).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.stderr(Stdio::null()).spawn().ok()
        })
        .collect();
    for child in &mut children {
        let mut line = String::new();
        let output = child.stdout.take().expect("piped");
        let _ = std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line);
        tally.sessions += 1;
        match line.trim() {
            "in" => tally.answered += 1,
            _ => tally.ended += 1,
        }
    }
    for mut child in children {
        let _ = child.kill();
        let _ = child.wait();
    }
    assert!(tally.answered > 0, "nobody was let in at all");
    tally
}

/// One of them: goes in, says so, and stays.
pub(super) fn hold() -> ! {
    let socket = greet();
    println!("{}", if socket.is_ok() { "in" } else { "out" });
    let _ = std::io::Write::flush(&mut std::io::stdout());
    loop {
        std::thread::park();
    }
}
