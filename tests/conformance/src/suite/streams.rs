//! Streams, events and host functions: what comes after what.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::constants::{event_flag, wait_value};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::calls::{
    DEFAULT_STREAM, NON_BLOCKING, alloc, answers, code, context, download, event, kernel, launch, ok, pinned, stream,
    upload,
};

super::tests! {
    "streams":
    streams_have_flags_and_priorities,
    a_stream_is_in_order,
    streams_are_independent,
    the_default_stream_waits_for_blocking_streams,
    a_destroyed_stream_finishes_its_work,
    the_threads_own_stream,
    events_order_streams,
    events_tell_the_time,
    events_without_times,
    an_event_before_it_is_recorded,
    a_stream_can_wait_before_the_event_is_recorded_again,
    host_functions_run_in_order,
    stream_callbacks_get_their_stream,
    words_written_and_waited_for,
    what_was_waited_for_is_done,
    many_threads_at_once,
    synchronising_waits_for_everything,
}

/// A stream that is held up until its flag is set.
struct Held {
    flag: &'static AtomicU32,
}

impl Held {
    fn new(gpu: &Driver, stream: CUstream) -> Held {
        Held::on(gpu, kernel(gpu, "spin"), stream, pinned_flag(gpu))
    }

    /// With a kernel and a flag that are there already: making them may wait for all that runs.
    fn on(gpu: &Driver, spin: CUfunction, stream: CUstream, flag: &'static AtomicU32) -> Held {
        assert_eq!(launch(gpu, spin, 1, 1, stream, &[flag.as_ptr() as u64]), 0);
        Held { flag }
    }

    fn release(&self) {
        self.flag.store(1, Ordering::Release);
    }
}

fn pinned_flag(gpu: &Driver) -> &'static AtomicU32 {
    // SAFETY: pinned memory, alive until the process ends.
    unsafe { AtomicU32::from_ptr(pinned(gpu, 1).as_mut_ptr()) }
}

fn streams_have_flags_and_priorities(gpu: &Driver) {
    let current = context(gpu);
    let (mut flags, mut priority, mut least, mut greatest) = (9, 9, 0, 0);
    ok!(gpu, cuStreamGetFlags(stream(gpu, NON_BLOCKING), &mut flags));
    assert_eq!(flags, NON_BLOCKING);
    ok!(gpu, cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
    let mut high = null_mut();
    ok!(gpu, cuStreamCreateWithPriority(&mut high, NON_BLOCKING, greatest));
    ok!(gpu, cuStreamGetPriority(high, &mut priority));
    assert_eq!(priority, greatest);
    // What is out of range is moved into it.
    ok!(gpu, cuStreamCreateWithPriority(&mut high, 0, greatest - 100));
    ok!(gpu, cuStreamGetPriority(high, &mut priority));
    assert_eq!(priority, greatest);
    let (mut owner, mut id, mut other) = (null_mut(), 0, 0);
    ok!(gpu, cuStreamGetCtx(high, &mut owner));
    assert_eq!(owner, current);
    ok!(gpu, cuStreamGetId(high, &mut id));
    ok!(gpu, cuStreamGetId(DEFAULT_STREAM, &mut other));
    assert_ne!(id, other);
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&mut high, 0x100));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuStreamCreate(null_mut(), 0));
}

fn a_stream_is_in_order(gpu: &Driver) {
    context(gpu);
    let (queue, double) = (stream(gpu, NON_BLOCKING), kernel(gpu, "double"));
    let data = upload(gpu, &[1u32; 1000]);
    let held = Held::new(gpu, queue);
    for _ in 0..20 {
        assert_eq!(launch(gpu, double, 4, 256, queue, &[data, 1000]), 0);
    }
    let mut copy = vec![0u32; 1000];
    ok!(gpu, cuMemsetD32Async(data + 4, 5, 1, queue));
    answers!(gpu, CUDA_ERROR_NOT_READY, cuStreamQuery(queue));
    held.release();
    ok!(gpu, cuMemcpyDtoHAsync_v2(copy.as_mut_ptr().cast(), data, 4000, queue));
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!(copy[..3], [1 << 20, 5, 1 << 20]);
}

fn streams_are_independent(gpu: &Driver) {
    context(gpu);
    let (slow, fast, double) = (stream(gpu, NON_BLOCKING), stream(gpu, NON_BLOCKING), kernel(gpu, "double"));
    let data = upload(gpu, &[7u32]);
    let held = Held::new(gpu, slow);
    assert_eq!(launch(gpu, double, 1, 1, fast, &[data, 1]), 0);
    ok!(gpu, cuStreamSynchronize(fast));
    answers!(gpu, CUDA_ERROR_NOT_READY, cuStreamQuery(slow));
    held.release();
    ok!(gpu, cuStreamSynchronize(slow));
    assert_eq!(download::<u32>(gpu, data, 1), [14]);
}

fn the_default_stream_waits_for_blocking_streams(gpu: &Driver) {
    context(gpu);
    let (blocking, free) = (stream(gpu, 0), stream(gpu, NON_BLOCKING));
    let data = upload(gpu, &[1u32, 1]);
    let held = Held::new(gpu, blocking);
    ok!(gpu, cuMemsetD32Async(data, 2, 1, DEFAULT_STREAM));
    // A blocking stream in turn waits for the default stream; a non-blocking one for nobody.
    let after = stream(gpu, 0);
    ok!(gpu, cuMemsetD32Async(data + 4, 3, 1, after));
    ok!(gpu, cuStreamSynchronize(free));
    answers!(gpu, CUDA_ERROR_NOT_READY, cuStreamQuery(DEFAULT_STREAM));
    answers!(gpu, CUDA_ERROR_NOT_READY, cuStreamQuery(after));
    held.release();
    ok!(gpu, cuStreamSynchronize(after));
    assert_eq!(download::<u32>(gpu, data, 2), [2, 3]);
}

fn a_destroyed_stream_finishes_its_work(gpu: &Driver) {
    context(gpu);
    let (queue, double) = (stream(gpu, NON_BLOCKING), kernel(gpu, "double"));
    let data = upload(gpu, &[3u32]);
    let held = Held::new(gpu, queue);
    assert_eq!(launch(gpu, double, 1, 1, queue, &[data, 1]), 0);
    ok!(gpu, cuStreamDestroy_v2(queue));
    held.release();
    ok!(gpu, cuCtxSynchronize());
    assert_eq!(download::<u32>(gpu, data, 1), [6]);
}

/// The handle 2 names a stream that each thread has of its own.
fn the_threads_own_stream(gpu: &Driver) {
    const LEGACY: CUstream = 1 as CUstream;
    const PER_THREAD: CUstream = 2 as CUstream;
    let shared = context(gpu) as usize;
    let double = kernel(gpu, "double");
    let data = upload(gpu, &[1u32, 1, 1]);
    let function = double as usize;
    let free = stream(gpu, NON_BLOCKING);
    let held = Held::new(gpu, PER_THREAD);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            ok!(gpu, cuCtxSetCurrent(shared as CUcontext));
            assert_eq!(launch(gpu, function as CUfunction, 1, 1, PER_THREAD, &[data, 1]), 0);
            // Not the stream of the first thread, which is held up.
            ok!(gpu, cuStreamSynchronize(PER_THREAD));
        });
        other.join().expect("the other thread's checks hold");
    });
    answers!(gpu, CUDA_ERROR_NOT_READY, cuStreamQuery(PER_THREAD));
    ok!(gpu, cuStreamSynchronize(free));
    held.release();
    ok!(gpu, cuStreamSynchronize(PER_THREAD));
    assert_eq!(launch(gpu, double, 1, 1, LEGACY, &[data + 4, 1]), 0);
    ok!(gpu, cuStreamSynchronize(LEGACY));
    assert_eq!(download::<u32>(gpu, data, 3), [2, 2, 1]);
}

fn events_order_streams(gpu: &Driver) {
    context(gpu);
    let (first, second, double) = (stream(gpu, NON_BLOCKING), stream(gpu, NON_BLOCKING), kernel(gpu, "double"));
    let data = upload(gpu, &[1u32]);
    let done = event(gpu, event_flag::DISABLE_TIMING);
    let held = Held::new(gpu, first);
    ok!(gpu, cuMemsetD32Async(data, 10, 1, first));
    ok!(gpu, cuEventRecord(done, first));
    ok!(gpu, cuStreamWaitEvent(second, done, 0));
    assert_eq!(launch(gpu, double, 1, 1, second, &[data, 1]), 0);
    answers!(gpu, CUDA_ERROR_NOT_READY, cuEventQuery(done));
    answers!(gpu, CUDA_ERROR_NOT_READY, cuStreamQuery(second));
    held.release();
    ok!(gpu, cuStreamSynchronize(second));
    ok!(gpu, cuEventQuery(done));
    assert_eq!(download::<u32>(gpu, data, 1), [20]);
}

fn events_tell_the_time(gpu: &Driver) {
    context(gpu);
    let (start, end) = (event(gpu, 0), event(gpu, 0));
    let queue = stream(gpu, NON_BLOCKING);
    let mut time = -1.0;
    ok!(gpu, cuEventRecord(start, queue));
    let held = Held::new(gpu, queue);
    ok!(gpu, cuEventRecord(end, queue));
    ok!(gpu, cuEventSynchronize(start));
    answers!(gpu, CUDA_ERROR_NOT_READY, cuEventElapsedTime(&mut time, start, end));
    std::thread::sleep(std::time::Duration::from_millis(20));
    held.release();
    ok!(gpu, cuEventSynchronize(end));
    ok!(gpu, cuEventElapsedTime(&mut time, start, end));
    assert!(time >= 19.0, "{time} ms");
    ok!(gpu, cuEventElapsedTime(&mut time, start, start));
    assert_eq!(time, 0.0);
}

fn events_without_times(gpu: &Driver) {
    context(gpu);
    let (plain, timed) = (event(gpu, event_flag::DISABLE_TIMING), event(gpu, 0));
    ok!(gpu, cuEventRecord(plain, DEFAULT_STREAM));
    ok!(gpu, cuEventRecord(timed, DEFAULT_STREAM));
    ok!(gpu, cuCtxSynchronize());
    answers!(gpu, CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&mut 0.0, timed, plain));
    let never = event(gpu, 0);
    answers!(gpu, CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&mut 0.0, timed, never));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuEventCreate(&mut null_mut(), 0x100));
}

fn an_event_before_it_is_recorded(gpu: &Driver) {
    context(gpu);
    let fresh = event(gpu, 0);
    ok!(gpu, cuEventQuery(fresh));
    ok!(gpu, cuEventSynchronize(fresh));
    ok!(gpu, cuStreamWaitEvent(DEFAULT_STREAM, fresh, 0));
    ok!(gpu, cuStreamSynchronize(DEFAULT_STREAM));
    ok!(gpu, cuEventDestroy_v2(fresh));
}

/// A wait is for the record that was made last before it.
fn a_stream_can_wait_before_the_event_is_recorded_again(gpu: &Driver) {
    context(gpu);
    let (first, second) = (stream(gpu, NON_BLOCKING), stream(gpu, NON_BLOCKING));
    let done = event(gpu, event_flag::DISABLE_TIMING);
    ok!(gpu, cuEventRecord(done, first));
    ok!(gpu, cuStreamWaitEvent(second, done, 0));
    let held = Held::new(gpu, first);
    ok!(gpu, cuEventRecord(done, first));
    ok!(gpu, cuStreamSynchronize(second));
    answers!(gpu, CUDA_ERROR_NOT_READY, cuEventQuery(done));
    // Destroying it now is allowed; it goes when the stream has passed it.
    ok!(gpu, cuEventDestroy_v2(done));
    held.release();
    ok!(gpu, cuStreamSynchronize(first));
}

unsafe extern "C" fn count(user: *mut c_void) {
    // SAFETY: the test passes a counter that outlives the stream's work.
    unsafe { &*user.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

unsafe extern "C" fn copy_first_word(user: *mut c_void) {
    // SAFETY: the test passes two words.
    let words = unsafe { &*user.cast::<[AtomicU32; 2]>() };
    words[1].store(words[0].load(Ordering::SeqCst), Ordering::SeqCst);
}

fn host_functions_run_in_order(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let words = pinned(gpu, 2);
    // SAFETY: pinned memory, alive until the process ends.
    let shared = unsafe { &*words.as_mut_ptr().cast::<[AtomicU32; 2]>() };
    let pointer = words.as_ptr() as u64;
    ok!(gpu, cuMemsetD32Async(pointer, 17, 1, queue));
    ok!(gpu, cuLaunchHostFunc(queue, Some(copy_first_word), words.as_mut_ptr().cast()));
    ok!(gpu, cuMemsetD32Async(pointer, 18, 1, queue));
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!((shared[0].load(Ordering::SeqCst), shared[1].load(Ordering::SeqCst)), (18, 17));
    let calls = AtomicU32::new(0);
    for _ in 0..200 {
        ok!(gpu, cuLaunchHostFunc(queue, Some(count), (&raw const calls).cast_mut().cast()));
    }
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!(calls.load(Ordering::SeqCst), 200);
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuLaunchHostFunc(queue, None, null_mut()));
}

struct Called {
    stream: AtomicU32,
    status: AtomicU32,
    expected: CUstream,
}

unsafe extern "C" fn note(stream: CUstream, status: CUresult, user: *mut c_void) {
    // SAFETY: the test passes a `Called` that outlives the stream's work.
    let called = unsafe { &*user.cast::<Called>() };
    called.stream.store(u32::from(stream == called.expected), Ordering::SeqCst);
    called.status.store(status, Ordering::SeqCst);
}

fn stream_callbacks_get_their_stream(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let called = Called { stream: AtomicU32::new(7), status: AtomicU32::new(7), expected: queue };
    ok!(gpu, cuStreamAddCallback(queue, Some(note), (&raw const called).cast_mut().cast(), 0));
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!((called.stream.load(Ordering::SeqCst), called.status.load(Ordering::SeqCst)), (1, 0));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuStreamAddCallback(queue, None, null_mut(), 0));
}

fn words_written_and_waited_for(gpu: &Driver) {
    context(gpu);
    let (first, second) = (stream(gpu, NON_BLOCKING), stream(gpu, NON_BLOCKING));
    let word = alloc(gpu, 16);
    ok!(gpu, cuMemsetD32_v2(word, 0, 4));
    ok!(gpu, cuStreamSynchronize(DEFAULT_STREAM));
    ok!(gpu, cuStreamWaitValue32_v2(second, word, 5, wait_value::GEQ));
    ok!(gpu, cuStreamWriteValue64_v2(second, word + 8, 99, 0));
    answers!(gpu, CUDA_ERROR_NOT_READY, cuStreamQuery(second));
    ok!(gpu, cuStreamWriteValue32_v2(first, word, 6, 0));
    ok!(gpu, cuStreamSynchronize(second));
    ok!(gpu, cuStreamWaitValue64_v2(first, word + 8, 99, wait_value::EQ));
    ok!(gpu, cuStreamSynchronize(first));
    assert_eq!(download::<u32>(gpu, word, 4), [6, 0, 99, 0]);
}

/// Whoever has waited does not hear afterwards that the stream is at work still.
fn what_was_waited_for_is_done(gpu: &Driver) {
    context(gpu);
    let (queue, done, nothing) = (stream(gpu, NON_BLOCKING), event(gpu, 0), kernel(gpu, "nothing"));
    for _ in 0..500 {
        assert_eq!(launch(gpu, nothing, 1, 1, queue, &[]), 0);
        ok!(gpu, cuStreamSynchronize(queue));
        ok!(gpu, cuStreamQuery(queue));
        assert_eq!(launch(gpu, nothing, 1, 1, queue, &[]), 0);
        ok!(gpu, cuEventRecord(done, queue));
        ok!(gpu, cuEventSynchronize(done));
        ok!(gpu, cuStreamQuery(queue));
    }
    // As one that looks again and again does.
    for _ in 0..500 {
        assert_eq!(launch(gpu, nothing, 1, 1, queue, &[]), 0);
        ok!(gpu, cuEventRecord(done, queue));
        while code!(gpu, cuEventQuery(done)) == CUDA_ERROR_NOT_READY {
            std::thread::yield_now();
        }
        ok!(gpu, cuStreamQuery(queue));
    }
}

fn many_threads_at_once(gpu: &Driver) {
    let shared = context(gpu) as usize;
    let function = kernel(gpu, "double") as usize;
    std::thread::scope(|scope| {
        for seed in 0..8u32 {
            scope.spawn(move || {
                ok!(gpu, cuCtxSetCurrent(shared as CUcontext));
                let queue = stream(gpu, NON_BLOCKING);
                for round in 0..15u32 {
                    let count = 1000 + 517 * (seed as usize + round as usize);
                    let values: Vec<u32> = (0..count as u32).map(|value| value ^ seed).collect();
                    let data = alloc(gpu, count * 4);
                    ok!(gpu, cuMemcpyHtoDAsync_v2(data, values.as_ptr().cast(), count * 4, queue));
                    let grid = count.div_ceil(128) as u32;
                    assert_eq!(launch(gpu, function as CUfunction, grid, 128, queue, &[data, count as u64]), 0);
                    let mut back = vec![0u32; count];
                    ok!(gpu, cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), data, count * 4, queue));
                    ok!(gpu, cuStreamSynchronize(queue));
                    assert!(back.iter().zip(&values).all(|(result, value)| *result == value * 2));
                    ok!(gpu, cuMemFree_v2(data));
                }
                ok!(gpu, cuStreamDestroy_v2(queue));
            });
        }
    });
}

fn synchronising_waits_for_everything(gpu: &Driver) {
    context(gpu);
    let streams = [stream(gpu, NON_BLOCKING), stream(gpu, NON_BLOCKING)];
    let (first, second) = (pinned_flag(gpu), pinned_flag(gpu));
    let spin = kernel(gpu, "spin");
    let helds = [Held::on(gpu, spin, streams[0], first), Held::on(gpu, spin, streams[1], second)];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            helds.iter().for_each(Held::release);
        });
        ok!(gpu, cuCtxSynchronize());
    });
    for stream in streams {
        assert_eq!(code!(gpu, cuStreamQuery(stream)), 0);
    }
}
