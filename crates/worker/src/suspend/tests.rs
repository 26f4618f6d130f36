//! One worker on the software GPU, whose driver a process has only once: so all of it is one test, in a process of its own.

use std::sync::atomic::{AtomicI64, Ordering};

use cuda_abi::types::*;

use super::*;
use crate::Gpus;
use crate::ops::start::warm_up;
use control::BrokerLink;
use control::backend::Backend;
use control::messages::{ToWorker, shared, to_broker, to_worker};
use idm::region::Placement;

const MEMORY: u64 = 128 << 20;
const MIB: u64 = 1 << 20;
/// The primary context of the only device.
const CONTEXT: u32 = 1;
const TIMEOUT: Duration = Duration::from_secs(60);

/// A worker, and how much of its account it has.
fn worker() -> (Arc<Worker>, Arc<AtomicI64>) {
    let charged = Arc::new(AtomicI64::new(0));
    let account = charged.clone();
    let link = BrokerLink::in_process(Box::new(move |message| {
        match message.kind {
            to_broker::CHARGE => _ = account.fetch_add(message.value as i64, Ordering::Relaxed),
            to_broker::RELEASE => _ = account.fetch_sub(message.value as i64, Ordering::Relaxed),
            _ => {}
        }
        let mut reply = ToWorker::new(to_worker::REPLY);
        if message.kind == to_broker::NEED_ROOM {
            reply.code = control::messages::code::REFUSED;
        }
        (reply, Vec::new())
    }));
    let backend = Backend::Soft { devices: 1, memory: MEMORY, instances: 0, only: Vec::new() };
    let driver = Arc::new(backend::load(&backend).unwrap());
    let region = control::region::make().unwrap();
    let server = idm::Server::attach(region, control::region::layout(), Placement::Anywhere).unwrap();
    let gpus = Arc::new(Gpus::new(&backend, Vec::new()));
    let worker = Arc::new(Worker::new(driver, gpus, Arc::new(link), &server));
    // The region stays: the worker knows where it is.
    std::mem::forget(server);
    warm_up(&worker);
    worker.started.store(true, Ordering::Release);
    (worker, charged)
}

fn free_bytes(worker: &Worker) -> u64 {
    let (mut free, mut total) = (0, 0);
    // SAFETY: outputs are locals.
    assert_eq!(unsafe { (worker.driver.cuMemGetInfo_v2)(&mut free, &mut total) }, CUDA_SUCCESS);
    free as u64
}

fn pattern(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 7) as u8).collect()
}

fn write(worker: &Worker, address: u64, bytes: &[u8]) {
    // SAFETY: the memory is as long as the bytes.
    let code = unsafe { (worker.driver.cuMemcpyHtoD_v2)(address, bytes.as_ptr().cast(), bytes.len()) };
    assert_eq!(code, CUDA_SUCCESS);
}

fn read(worker: &Worker, address: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    // SAFETY: as above.
    let code = unsafe { (worker.driver.cuMemcpyDtoH_v2)(bytes.as_mut_ptr().cast(), address, bytes.len()) };
    assert_eq!(code, CUDA_SUCCESS);
    bytes
}

/// Memory that somebody else takes meanwhile.
fn occupy(worker: &Worker, bytes: u64) -> u64 {
    let properties = CUmemAllocationProp {
        kind: 1,
        location: CUmemLocation { kind: 1, id: 0 },
        requested_handle_types: 1,
        ..Default::default()
    };
    let mut handle = 0;
    // SAFETY: the struct and the output are locals.
    let code = unsafe { (worker.driver.cuMemCreate)(&mut handle, bytes as usize, &properties, 0) };
    assert_eq!(code, CUDA_SUCCESS);
    handle
}

#[test]
fn memory_goes_and_comes_back_to_the_bit_at_the_same_addresses() {
    const ALONE: &str = "WORKER_TEST_ALONE";
    const NAME: &str = "suspend::tests::memory_goes_and_comes_back_to_the_bit_at_the_same_addresses";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", NAME, "--nocapture"]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    there_and_back();
}

fn there_and_back() {
    let (worker, charged) = worker();
    let _context = worker.enter(CONTEXT).unwrap();
    let memory = &worker.memory;
    let empty = free_bytes(&worker);

    // Blocks of all sizes, some of them freed again.
    let sizes = [100, 512, 70_000, MIB, MIB + 1, 3 * MIB, 2 * MIB, 9 * MIB, 256, 700_000];
    let mut blocks: Vec<(u64, Vec<u8>)> =
        sizes.iter().map(|len| (memory.allocate(0, CONTEXT, *len).unwrap(), pattern(*len, *len))).collect();
    for at in [5, 1] {
        let (address, _) = blocks.remove(at);
        memory.free(address, CONTEXT, || Ok(())).unwrap();
    }
    blocks.iter().for_each(|(address, bytes)| write(&worker, *address, bytes));

    // Physical memory of the client's: mapped twice, once a part of it, and more that is mapped nowhere.
    let properties = CUmemAllocationProp {
        kind: 1,
        location: CUmemLocation { kind: 1, id: 0 },
        requested_handle_types: 1,
        ..Default::default()
    };
    let physical = memory.create(4 * MIB, &properties, 0).unwrap();
    let whole = memory.reserve(4 * MIB, 0, 0).unwrap();
    let part = memory.reserve(2 * MIB, 0, 0).unwrap();
    memory.map(whole, 4 * MIB, 0, physical, 0).unwrap();
    memory.map(part, 2 * MIB, 2 * MIB, physical, 0).unwrap();
    let access = CUmemAccessDesc { location: properties.location, flags: 3 };
    for (address, len) in [(whole, 4 * MIB), (part, 2 * MIB)] {
        // SAFETY: mapped above; the struct is a local.
        assert_eq!(unsafe { (worker.driver.cuMemSetAccess)(address, len as usize, &access, 1) }, CUDA_SUCCESS);
    }
    let clients = pattern(7, 4 * MIB);
    write(&worker, whole, &clients);
    // The client gives its handle up: mappings keep it.
    let unnamed = memory.create(2 * MIB, &properties, 0).unwrap();
    let kept = memory.reserve(2 * MIB, 0, 0).unwrap();
    memory.map(kept, 2 * MIB, 0, unnamed, 0).unwrap();
    memory.release(unnamed).unwrap();

    // What others may open stays where it is.
    let exported = memory.allocate(0, CONTEXT, 6 * MIB).unwrap();
    let theirs = pattern(9, 6 * MIB);
    write(&worker, exported, &theirs);
    memory.export(exported, 6 * MIB, shared::MEMORY).unwrap();

    // A move that is given up before anything was taken away.
    let before = free_bytes(&worker);
    let relocation = memory.begin_leaving(1).unwrap();
    assert_eq!(relocation.bytes(), memory.movable());
    memory.stay(&relocation);
    assert_eq!((free_bytes(&worker), memory.away()), (before, None));

    let held = charged.load(Ordering::Relaxed);
    let mut suspender = Suspender::new(worker.clone());
    for round in 0..3 {
        let before = free_bytes(&worker);
        suspender.quiesce(TIMEOUT).unwrap();
        assert!(worker.link.try_enter_driver().is_none(), "threads are kept out");
        let movable = memory.movable();
        let out = suspender.out();
        assert_eq!((out.outcome, out.bytes, memory.away()), (moved::DONE, movable, Some(movable)));
        assert_eq!(free_bytes(&worker), before + movable, "the GPU has all of it");
        assert_eq!(suspender.out().bytes, movable, "twice is once");
        assert_eq!(read(&worker, exported, 6 * MIB), theirs, "others have it open");

        // Somebody takes what is needed: nothing is half back, and all of it comes when there is room.
        let room = (before + movable - 4 * MIB) & !(2 * MIB - 1);
        let other = occupy(&worker, room);
        let left = free_bytes(&worker);
        assert_eq!(suspender.back().outcome, moved::NO_ROOM);
        assert_eq!((free_bytes(&worker), memory.away()), (left, Some(movable)));
        // SAFETY: made above.
        unsafe { (worker.driver.cuMemRelease)(other) };
        let back = suspender.back();
        assert_eq!((back.outcome, back.bytes, memory.away()), (moved::DONE, movable, None), "round {round}");
        suspender.resume();
        assert!(worker.link.try_enter_driver().is_some() && suspender.store.is_none());
        assert_eq!(free_bytes(&worker), before, "as much as before");
        for (address, bytes) in &blocks {
            assert!(read(&worker, *address, bytes.len() as u64) == *bytes, "a block of {} bytes", bytes.len());
        }
        assert!(read(&worker, whole, 4 * MIB) == clients);
        assert!(read(&worker, part, 2 * MIB) == clients[2 * MIB as usize..]);
        assert_eq!(charged.load(Ordering::Relaxed), held, "it is the zone's all the time");
    }

    // Everything can be given back as if it had never been away.
    memory.unmap_client(part, 2 * MIB).unwrap();
    memory.unmap_client(whole, 4 * MIB).unwrap();
    assert!(memory.release(physical).unwrap());
    memory.unmap_client(kept, 2 * MIB).unwrap();
    blocks.iter().for_each(|(address, _)| memory.free(*address, CONTEXT, || Ok(())).unwrap());
    memory.free(exported, CONTEXT, || Ok(())).unwrap();
    memory.retire(CONTEXT);
    worker.link.zone_usage(0);
    assert_eq!(charged.load(Ordering::Relaxed), 4 * MIB as i64, "one chunk stays for the next small block");
    assert_eq!(free_bytes(&worker), empty - 4 * MIB, "no handle of ours keeps anything");

    // A broker that has the client go on while its memory is away gets it back first.
    let last = memory.allocate(0, CONTEXT, 3 * MIB).unwrap();
    write(&worker, last, &pattern(3, 3 * MIB));
    suspender.quiesce(TIMEOUT).unwrap();
    assert_eq!(suspender.out().outcome, moved::DONE);
    suspender.resume();
    assert!(read(&worker, last, 3 * MIB) == pattern(3, 3 * MIB));
    // And one that is new finds a client that runs, unless its memory is away.
    suspender.itself = true;
    suspender.quiesce(TIMEOUT).unwrap();
    suspender.rejoined();
    assert!(worker.link.try_enter_driver().is_some());
}
