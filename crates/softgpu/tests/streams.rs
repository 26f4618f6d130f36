//! Order and asynchrony of streams, and events.

#[macro_use]
mod common;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Context, alloc, download, event, pinned, stream};
use cuda_abi::constants::stream_flag;
use cuda_abi::error::*;
use cuda_abi::types::*;

const LEGACY: CUstream = 1 as CUstream;
const PER_THREAD: CUstream = 2 as CUstream;

/// A word that streams wait for.
struct Gate(&'static AtomicU32);

impl Gate {
    fn new() -> Gate {
        // SAFETY: pinned memory that is never freed before its context ends, used as an atomic only.
        Gate(unsafe { AtomicU32::from_ptr(pinned(1).as_mut_ptr()) })
    }

    fn hold(&self, stream: CUstream) {
        ok!(cuStreamWaitValue32_v2(stream, self.0.as_ptr() as u64, 1, 1));
    }

    fn open(&self) {
        self.0.store(1, Ordering::Release);
    }
}

#[test]
fn a_stream_runs_in_order_and_on_its_own() {
    let _context = Context::new();
    let (gate, one, other) = (Gate::new(), stream(stream_flag::NON_BLOCKING), stream(stream_flag::NON_BLOCKING));
    let data = alloc(4);
    gate.hold(one);
    for value in 0..100u32 {
        ok!(cuMemsetD32Async(data, value, 1, one));
    }
    assert_eq!(code!(cuStreamQuery(one)), CUDA_ERROR_NOT_READY);
    ok!(cuStreamSynchronize(other));
    ok!(cuStreamQuery(other));
    gate.open();
    ok!(cuStreamSynchronize(one));
    ok!(cuStreamQuery(one));
    assert_eq!(download::<u32>(data, 1), [99]);
}

#[test]
fn the_default_stream_waits_for_blocking_streams_and_they_for_it() {
    let _context = Context::new();
    let data = alloc(4);
    let (gate, blocking, free) = (Gate::new(), stream(0), stream(stream_flag::NON_BLOCKING));
    gate.hold(blocking);
    ok!(cuMemsetD32Async(data, 1, 1, null_mut()));
    ok!(cuMemsetD32Async(data, 2, 1, stream(0)));
    assert_eq!(code!(cuStreamQuery(LEGACY)), CUDA_ERROR_NOT_READY);
    // Not bound to the default stream: runs at once.
    let other = alloc(4);
    ok!(cuMemsetD32Async(other, 3, 1, free));
    ok!(cuStreamSynchronize(free));
    gate.open();
    ok!(cuStreamSynchronize(null_mut()));
    assert_eq!(download::<u32>(data, 1), [2], "a copy in the default stream comes after both");
}

#[test]
fn work_of_a_blocking_stream_comes_after_the_default_stream() {
    let _context = Context::new();
    let data = alloc(4);
    let (gate, blocking, free) = (Gate::new(), stream(0), stream(stream_flag::NON_BLOCKING));
    gate.hold(null_mut());
    ok!(cuMemsetD32Async(data, 1, 1, blocking));
    ok!(cuMemsetD32Async(data, 2, 1, PER_THREAD));
    assert_eq!(code!(cuStreamQuery(blocking)), CUDA_ERROR_NOT_READY);
    assert_eq!(code!(cuStreamQuery(PER_THREAD)), CUDA_ERROR_NOT_READY);
    ok!(cuStreamSynchronize(free));
    gate.open();
    ok!(cuStreamSynchronize(PER_THREAD));
    ok!(cuCtxSynchronize());
    assert!(matches!(download::<u32>(data, 1)[0], 1 | 2));
}

#[test]
fn events_carry_order_and_time() {
    let _context = Context::new();
    let (gate, one, other) = (Gate::new(), stream(stream_flag::NON_BLOCKING), stream(stream_flag::NON_BLOCKING));
    let (start, end) = (event(0), event(0));
    let mut milliseconds = -1.0;
    assert_eq!(code!(cuEventElapsedTime(&mut milliseconds, start, end)), CUDA_ERROR_INVALID_HANDLE);
    ok!(cuEventQuery(start));
    ok!(cuEventSynchronize(start));
    ok!(cuEventRecord(start, one));
    gate.hold(one);
    ok!(cuEventRecord(end, one));
    ok!(cuStreamWaitEvent(other, end, 0));
    let data = alloc(4);
    ok!(cuMemsetD32Async(data, 5, 1, other));
    ok!(cuEventSynchronize(start));
    assert_eq!(code!(cuEventQuery(end)), CUDA_ERROR_NOT_READY);
    assert_eq!(code!(cuEventElapsedTime(&mut milliseconds, start, end)), CUDA_ERROR_NOT_READY);
    assert_eq!(code!(cuEventElapsedTime_v2(&mut milliseconds, start, end)), CUDA_ERROR_NOT_READY);
    assert_eq!(code!(cuStreamQuery(other)), CUDA_ERROR_NOT_READY);
    gate.open();
    ok!(cuEventSynchronize(end));
    ok!(cuEventElapsedTime_v2(&mut milliseconds, start, end));
    assert!(milliseconds > 0.0);
    ok!(cuStreamSynchronize(other));
    let quiet = event(2);
    ok!(cuEventRecord(quiet, one));
    assert_eq!(code!(cuEventElapsedTime(&mut milliseconds, start, quiet)), CUDA_ERROR_INVALID_HANDLE);
    ok!(cuEventDestroy_v2(quiet));
    assert_eq!(code!(cuEventDestroy_v2(quiet)), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(code!(cuEventQuery(quiet)), CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn an_event_of_another_context_is_no_good_for_recording() {
    let _first = Context::new();
    let foreign = event(0);
    let _second = Context::new();
    let stream = stream(0);
    assert_eq!(code!(cuEventRecord(foreign, stream)), CUDA_ERROR_INVALID_HANDLE);
    ok!(cuStreamWaitEvent(stream, foreign, 0));
}

static SEEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

unsafe extern "C" fn note(user: *mut c_void) {
    SEEN.lock().unwrap().push(user as usize);
}

unsafe extern "C" fn note_status(_: CUstream, status: u32, user: *mut c_void) {
    let mut free = 0;
    let refused = code!(cuMemGetInfo_v2(&mut free, null_mut()));
    assert_eq!(refused, CUDA_ERROR_NOT_PERMITTED);
    SEEN.lock().unwrap().push(user as usize + status as usize);
}

#[test]
fn host_functions_run_in_their_place() {
    let _context = Context::new();
    let (gate, stream) = (Gate::new(), stream(stream_flag::NON_BLOCKING));
    gate.hold(stream);
    for at in 0..10usize {
        if at % 2 == 0 {
            ok!(cuLaunchHostFunc(stream, Some(note), at as *mut c_void));
        } else {
            ok!(cuStreamAddCallback(stream, Some(note_status), at as *mut c_void, 0));
        }
    }
    assert!(SEEN.lock().unwrap().is_empty());
    gate.open();
    ok!(cuStreamSynchronize(stream));
    assert_eq!(*SEEN.lock().unwrap(), (0..10).collect::<Vec<_>>());
    assert_eq!(code!(cuLaunchHostFunc(stream, None, null_mut())), CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    let _context = Context::new();
    let (gate, stream) = (Gate::new(), stream(stream_flag::NON_BLOCKING));
    let data = alloc(4);
    gate.hold(stream);
    ok!(cuMemsetD32Async(data, 8, 1, stream));
    ok!(cuStreamDestroy_v2(stream));
    assert_eq!(code!(cuStreamSynchronize(stream)), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(code!(cuStreamDestroy_v2(stream)), CUDA_ERROR_INVALID_HANDLE);
    gate.open();
    ok!(cuCtxSynchronize());
    assert_eq!(download::<u32>(data, 1), [8]);
}

#[test]
fn pageable_memory_is_free_for_use_when_the_call_returns() {
    let _context = Context::new();
    let (gate, stream) = (Gate::new(), stream(stream_flag::NON_BLOCKING));
    let data = alloc(16);
    gate.hold(stream);
    let mut source = [1u32, 2, 3, 4];
    ok!(cuMemcpyHtoDAsync_v2(data, source.as_ptr().cast(), 16, stream));
    source.fill(0);
    gate.open();
    ok!(cuStreamSynchronize(stream));
    assert_eq!(download::<u32>(data, 4), [1, 2, 3, 4]);
    let mut target = source;
    ok!(cuMemcpyDtoHAsync_v2(target.as_mut_ptr().cast(), data, 16, stream));
    assert_eq!(target, [1, 2, 3, 4]);
}

#[test]
fn streams_tell_what_they_are() {
    let context = Context::new();
    let mut made = null_mut();
    ok!(cuStreamCreateWithPriority(&mut made, stream_flag::NON_BLOCKING, -99));
    let (mut least, mut greatest, mut priority) = (7, 7, 7);
    ok!(cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
    ok!(cuStreamGetPriority(made, &mut priority));
    assert_eq!((least, priority), (0, greatest));
    let (mut flags, mut of, mut id, mut legacy) = (9, null_mut(), 0, 0);
    ok!(cuStreamGetFlags(made, &mut flags));
    ok!(cuStreamGetCtx(made, &mut of));
    ok!(cuStreamGetId(made, &mut id));
    ok!(cuStreamGetId(null_mut(), &mut legacy));
    assert_eq!((flags, of), (stream_flag::NON_BLOCKING, context.0));
    assert_ne!(id, legacy);
    assert_eq!(code!(cuStreamCreate(&mut made, 8)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuStreamQuery(0xdead_beef_usize as CUstream)), CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn values_are_written_in_order() {
    let _context = Context::new();
    let stream = stream(stream_flag::NON_BLOCKING);
    let words = pinned(4);
    let at = words.as_ptr() as u64;
    ok!(cuStreamWriteValue32_v2(stream, at, 5, 0));
    ok!(cuStreamWaitValue32_v2(stream, at, 5, 1));
    ok!(cuStreamWriteValue64_v2(stream, at + 8, 1 << 40, 0));
    ok!(cuStreamWaitValue64_v2(stream, at + 8, 1 << 39, 0));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(words[..], [5, 0, 0, 1 << 8]);
    assert_eq!(code!(cuStreamWriteValue32_v2(stream, at + 2, 5, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuStreamWriteValue32_v2(stream, 0x2345_0000_0000, 5, 0)), CUDA_ERROR_INVALID_VALUE);
    // Any memory of the process is good.
    let own = AtomicU32::new(0);
    ok!(cuStreamWriteValue32_v2(stream, own.as_ptr() as u64, 6, 0));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(own.load(Ordering::Acquire), 6);
}

#[test]
fn a_context_can_end_while_its_streams_wait() {
    let context = Context::new();
    let (gate, stream) = (Gate::new(), stream(stream_flag::NON_BLOCKING));
    gate.hold(stream);
    ok!(cuMemsetD32Async(alloc(4), 8, 1, stream));
    drop(context);
    assert_eq!(code!(cuStreamSynchronize(stream)), CUDA_ERROR_INVALID_HANDLE);
}

/// Random work in random streams of several threads, with events between them: what CUDA orders must be in order.
#[test]
fn what_must_be_in_order_is_so_under_load() {
    let context = Context::new();
    let context_at = context.0 as usize;
    // Only work that is ordered against all other touches the counter, so every step must find what the last one left.
    let counter = alloc(4);
    let steps = 400u32;
    let threads: Vec<_> = (0..3u64)
        .map(|seed| {
            std::thread::spawn(move || {
                ok!(cuCtxSetCurrent(context_at as CUcontext));
                let streams: Vec<usize> = (0..4).map(|at| stream(at % 2) as usize).collect();
                let mut random = testkit::Random::new(seed);
                let noise = alloc(4096);
                for _ in 0..300 {
                    let stream = random.pick(&streams) as CUstream;
                    ok!(cuMemsetD8Async(noise, 1, 4096, stream));
                    if random.chance(25) {
                        ok!(cuMemsetD8_v2(noise, 2, 4096));
                    }
                }
                ok!(cuCtxSynchronize());
            })
        })
        .collect();
    let (blocking, free, passed) = (stream(0), stream(stream_flag::NON_BLOCKING), event(2));
    let found = alloc(steps as usize * 4);
    for step in 0..steps {
        // Each step reads the counter through another way than the step before wrote it.
        let target = match step % 3 {
            0 => blocking,
            1 => null_mut(),
            _ => {
                ok!(cuEventRecord(passed, null_mut()));
                ok!(cuStreamWaitEvent(free, passed, 0));
                free
            }
        };
        ok!(cuMemcpyDtoDAsync_v2(found + u64::from(step) * 4, counter, 4, target));
        ok!(cuMemsetD32Async(counter, step + 1, 1, target));
        if target == free {
            ok!(cuEventRecord(passed, free));
            ok!(cuStreamWaitEvent(blocking, passed, 0));
        }
    }
    ok!(cuCtxSynchronize());
    assert_eq!(download::<u32>(found, steps as usize), (0..steps).collect::<Vec<_>>());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
