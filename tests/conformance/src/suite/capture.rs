//! Stream capture: what becomes a graph, and what spoils that.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::constants::{capture_dependencies, capture_mode, capture_status, node_type, update_result};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::calls::{
    DEFAULT_STREAM, NON_BLOCKING, alloc, answers, code, context, download, event, kernel, launch, ok, pinned, stream,
    upload,
};

super::tests! {
    "capture":
    what_is_captured_runs_when_it_is_launched,
    a_stream_knows_that_it_is_captured,
    side_streams_join_by_events,
    a_side_stream_that_has_joined_may_go,
    work_that_was_not_joined_is_refused,
    an_end_without_a_beginning_is_refused,
    waiting_for_a_captured_stream_spoils_the_capture,
    waiting_for_the_context_spoils_the_capture,
    allocating_spoils_a_global_capture,
    a_relaxed_thread_may_allocate,
    other_threads_may_allocate_beside_a_local_capture,
    another_thread_may_not_end_a_capture,
    the_default_stream_spoils_captures_of_blocking_streams,
    uncaptured_events_cannot_be_waited_for,
    host_functions_run_with_every_launch,
    pinned_memory_is_read_when_the_graph_runs,
    pageable_memory_is_read_when_the_graph_runs,
    pageable_memory_is_written_when_the_graph_runs,
    rectangles_are_captured,
    parameters_are_those_of_the_capture,
    dependencies_can_be_changed,
    a_capture_can_go_into_a_graph,
    what_is_set_in_a_capture_may_be_anywhere,
    graphs_cannot_be_launched_into_a_capture,
    a_thread_has_a_capture_mode,
    other_streams_work_while_one_is_captured,
    captures_come_and_go,
    what_a_graph_leaves_behind_holds_nobody_up,
    #[only_ours = "what becomes of a capture whose stream goes is not said"]
    a_capture_ends_with_its_stream_and_context,
}

const GLOBAL: u32 = capture_mode::GLOBAL;
const RELAXED: u32 = capture_mode::RELAXED;

pub(super) fn begin(gpu: &Driver, stream: CUstream) {
    ok!(gpu, cuStreamBeginCapture_v2(stream, GLOBAL));
}

pub(super) fn end(gpu: &Driver, stream: CUstream) -> CUgraph {
    let mut graph = null_mut();
    ok!(gpu, cuStreamEndCapture(stream, &mut graph));
    assert!(!graph.is_null());
    graph
}

pub(super) fn instantiate(gpu: &Driver, graph: CUgraph) -> CUgraphExec {
    let mut exec = null_mut();
    ok!(gpu, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    assert!(!exec.is_null());
    exec
}

fn status(gpu: &Driver, stream: CUstream) -> u32 {
    let mut status = 9;
    ok!(gpu, cuStreamIsCapturing(stream, &mut status));
    status
}

/// A capture that was spoilt can only be ended, and that fails.
fn is_spoilt(gpu: &Driver, stream: CUstream) {
    assert_eq!(status(gpu, stream), capture_status::INVALIDATED);
    let mut graph = stream;
    answers!(gpu, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &mut graph));
    assert!(graph.is_null());
    assert_eq!(status(gpu, stream), capture_status::NONE);
    // The stream is as good as new.
    ok!(gpu, cuStreamSynchronize(stream));
}

fn what_is_captured_runs_when_it_is_launched(gpu: &Driver) {
    context(gpu);
    let (queue, double) = (stream(gpu, NON_BLOCKING), kernel(gpu, "double"));
    let data = upload(gpu, &[3u32; 100]);
    begin(gpu, queue);
    assert_eq!(launch(gpu, double, 1, 128, queue, &[data, 100]), 0);
    ok!(gpu, cuMemsetD32Async(data, 1, 10, queue));
    assert_eq!(launch(gpu, double, 1, 128, queue, &[data, 100]), 0);
    let graph = end(gpu, queue);
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!(download::<u32>(gpu, data, 100), [3; 100]);
    let mut count = 0;
    ok!(gpu, cuGraphGetNodes(graph, null_mut(), &mut count));
    assert_eq!(count, 3);
    let exec = instantiate(gpu, graph);
    ok!(gpu, cuGraphLaunch(exec, queue));
    ok!(gpu, cuStreamSynchronize(queue));
    let mut wanted = [12; 100];
    wanted[..10].fill(2);
    assert_eq!(download::<u32>(gpu, data, 100), wanted);
    // Neither the graph nor the stream of the capture is needed any more.
    ok!(gpu, cuGraphDestroy(graph));
    ok!(gpu, cuStreamDestroy_v2(queue));
    let other = stream(gpu, 0);
    for _ in 0..5 {
        ok!(gpu, cuGraphLaunch(exec, other));
    }
    ok!(gpu, cuStreamSynchronize(other));
    wanted[10..].fill(12 << 10);
    assert_eq!(download::<u32>(gpu, data, 100), wanted);
    ok!(gpu, cuGraphExecDestroy(exec));
}

fn a_stream_knows_that_it_is_captured(gpu: &Driver) {
    context(gpu);
    let (queue, other, double) = (stream(gpu, NON_BLOCKING), stream(gpu, NON_BLOCKING), kernel(gpu, "double"));
    let data = upload(gpu, &[1u32]);
    assert_eq!(status(gpu, queue), capture_status::NONE);
    begin(gpu, queue);
    answers!(gpu, CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture_v2(queue, GLOBAL));
    assert_eq!(status(gpu, queue), capture_status::ACTIVE);
    assert_eq!(status(gpu, other), capture_status::NONE);
    assert_eq!(launch(gpu, double, 1, 1, queue, &[data, 1]), 0);
    let (mut found, mut id, mut graph, mut nodes, mut count) = (9, 0, null_mut(), null(), 9);
    ok!(gpu, cuStreamGetCaptureInfo_v2(queue, &mut found, &mut id, &mut graph, &mut nodes, &mut count));
    assert_eq!((found, count), (capture_status::ACTIVE, 1));
    assert!(id != 0 && !graph.is_null() && !nodes.is_null());
    // SAFETY: one node, as the driver says.
    let node = unsafe { *nodes };
    let mut kind = 9;
    ok!(gpu, cuGraphNodeGetType(node, &mut kind));
    assert_eq!(kind, node_type::KERNEL);
    let (mut again, mut edges) = (0, null());
    ok!(
        gpu,
        cuStreamGetCaptureInfo_v3(queue, &mut found, &mut again, null_mut(), &mut nodes, &mut edges, &mut count)
    );
    assert_eq!((again, count), (id, 1));
    // SAFETY: as above.
    assert_eq!(unsafe { *nodes }, node);
    assert_eq!(end(gpu, queue), graph);
    assert_eq!(status(gpu, queue), capture_status::NONE);
    ok!(gpu, cuStreamGetCaptureInfo_v2(queue, &mut found, &mut id, null_mut(), null_mut(), null_mut()));
    assert_eq!(found, capture_status::NONE);
    // The next capture is another one.
    begin(gpu, queue);
    ok!(gpu, cuStreamGetCaptureInfo_v2(queue, &mut found, &mut again, null_mut(), null_mut(), null_mut()));
    assert_ne!(again, id);
    end(gpu, queue);
}

fn side_streams_join_by_events(gpu: &Driver) {
    context(gpu);
    let (first, second, store) = (stream(gpu, NON_BLOCKING), stream(gpu, NON_BLOCKING), kernel(gpu, "store"));
    let (fork, join) = (event(gpu, 2), event(gpu, 2));
    let data = upload(gpu, &[0u32, 0, 0]);
    begin(gpu, first);
    assert_eq!(launch(gpu, store, 1, 1, first, &[data, 1]), 0);
    ok!(gpu, cuEventRecord(fork, first));
    ok!(gpu, cuStreamWaitEvent(second, fork, 0));
    assert_eq!(status(gpu, second), capture_status::ACTIVE);
    assert_eq!(launch(gpu, store, 1, 1, second, &[data + 4, 2]), 0);
    assert_eq!(launch(gpu, store, 1, 1, first, &[data + 8, 3]), 0);
    ok!(gpu, cuEventRecord(join, second));
    ok!(gpu, cuStreamWaitEvent(first, join, 0));
    let graph = end(gpu, first);
    assert_eq!(status(gpu, second), capture_status::NONE);
    let (mut nodes, mut edges, mut roots) = (0, 0, 0);
    ok!(gpu, cuGraphGetNodes(graph, null_mut(), &mut nodes));
    ok!(gpu, cuGraphGetEdges(graph, null_mut(), null_mut(), &mut edges));
    ok!(gpu, cuGraphGetRootNodes(graph, null_mut(), &mut roots));
    assert_eq!((nodes, edges, roots), (3, 2, 1));
    ok!(gpu, cuGraphLaunch(instantiate(gpu, graph), second));
    ok!(gpu, cuStreamSynchronize(second));
    assert_eq!(download::<u32>(gpu, data, 3), [1, 2, 3]);
}

fn a_side_stream_that_has_joined_may_go(gpu: &Driver) {
    context(gpu);
    let (first, second) = (stream(gpu, NON_BLOCKING), stream(gpu, NON_BLOCKING));
    let (fork, join) = (event(gpu, 2), event(gpu, 2));
    let data = upload(gpu, &[0u32, 0]);
    begin(gpu, first);
    ok!(gpu, cuEventRecord(fork, first));
    ok!(gpu, cuStreamWaitEvent(second, fork, 0));
    ok!(gpu, cuMemsetD32Async(data, 7, 1, second));
    ok!(gpu, cuEventRecord(join, second));
    ok!(gpu, cuStreamWaitEvent(first, join, 0));
    ok!(gpu, cuStreamDestroy_v2(second));
    ok!(gpu, cuEventDestroy_v2(fork));
    ok!(gpu, cuEventDestroy_v2(join));
    ok!(gpu, cuMemsetD32Async(data + 4, 8, 1, first));
    let graph = end(gpu, first);
    ok!(gpu, cuGraphLaunch(instantiate(gpu, graph), first));
    ok!(gpu, cuStreamSynchronize(first));
    assert_eq!(download::<u32>(gpu, data, 2), [7, 8]);
}

fn work_that_was_not_joined_is_refused(gpu: &Driver) {
    context(gpu);
    let (first, second, fork) = (stream(gpu, NON_BLOCKING), stream(gpu, NON_BLOCKING), event(gpu, 2));
    let data = upload(gpu, &[0u32]);
    begin(gpu, first);
    ok!(gpu, cuEventRecord(fork, first));
    ok!(gpu, cuStreamWaitEvent(second, fork, 0));
    ok!(gpu, cuMemsetD32Async(data, 1, 1, second));
    let mut graph = null_mut();
    answers!(gpu, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(first, &mut graph));
    assert!(graph.is_null());
    for queue in [first, second] {
        assert_eq!(status(gpu, queue), capture_status::NONE);
        ok!(gpu, cuStreamSynchronize(queue));
    }
}

fn an_end_without_a_beginning_is_refused(gpu: &Driver) {
    context(gpu);
    let mut graph = null_mut();
    answers!(gpu, CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream(gpu, NON_BLOCKING), &mut graph));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuStreamBeginCapture_v2(stream(gpu, NON_BLOCKING), 77));
}

fn waiting_for_a_captured_stream_spoils_the_capture(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    begin(gpu, queue);
    answers!(gpu, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(queue));
    is_spoilt(gpu, queue);
}

fn waiting_for_the_context_spoils_the_capture(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    begin(gpu, queue);
    answers!(gpu, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
    is_spoilt(gpu, queue);
    ok!(gpu, cuCtxSynchronize());
}

fn allocating_spoils_a_global_capture(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    begin(gpu, queue);
    let mut address = 0;
    answers!(gpu, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc_v2(&mut address, 100));
    is_spoilt(gpu, queue);
    alloc(gpu, 100);
}

fn a_relaxed_thread_may_allocate(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    begin(gpu, queue);
    let mut mode = RELAXED;
    ok!(gpu, cuThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, GLOBAL);
    let data = alloc(gpu, 4 << 20);
    let _small = alloc(gpu, 100);
    ok!(gpu, cuThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, RELAXED);
    ok!(gpu, cuMemsetD32Async(data, 7, 3, queue));
    let exec = instantiate(gpu, end(gpu, queue));
    ok!(gpu, cuGraphLaunch(exec, queue));
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!(download::<u32>(gpu, data, 3), [7; 3]);
}

fn other_threads_may_allocate_beside_a_local_capture(gpu: &Driver) {
    let current = context(gpu) as usize;
    let queue = stream(gpu, NON_BLOCKING);
    ok!(gpu, cuStreamBeginCapture_v2(queue, capture_mode::THREAD_LOCAL));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ok!(gpu, cuCtxSetCurrent(current as CUcontext));
            alloc(gpu, 100);
        });
    });
    assert_eq!(status(gpu, queue), capture_status::ACTIVE);
    let mut address = 0;
    answers!(gpu, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc_v2(&mut address, 100));
    is_spoilt(gpu, queue);
}

fn another_thread_may_not_end_a_capture(gpu: &Driver) {
    let current = context(gpu) as usize;
    let queue = stream(gpu, NON_BLOCKING);
    let elsewhere = |wanted: CUresult| {
        let queue = queue as usize;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                ok!(gpu, cuCtxSetCurrent(current as CUcontext));
                let mut graph = null_mut();
                answers!(gpu, wanted, cuStreamEndCapture(queue as CUstream, &mut graph));
            });
        });
    };
    begin(gpu, queue);
    elsewhere(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    let mut graph = null_mut();
    // Whether the attempt spoilt the capture is the driver's business.
    code!(gpu, cuStreamEndCapture(queue, &mut graph));
    ok!(gpu, cuStreamBeginCapture_v2(queue, RELAXED));
    elsewhere(CUDA_SUCCESS);
}

fn the_default_stream_spoils_captures_of_blocking_streams(gpu: &Driver) {
    context(gpu);
    let (blocking, free) = (stream(gpu, 0), stream(gpu, NON_BLOCKING));
    let data = upload(gpu, &[0u32]);
    begin(gpu, blocking);
    answers!(gpu, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemsetD32Async(data, 1, 1, DEFAULT_STREAM));
    is_spoilt(gpu, blocking);
    begin(gpu, free);
    ok!(gpu, cuMemsetD32Async(data, 1, 1, DEFAULT_STREAM));
    end(gpu, free);
    ok!(gpu, cuCtxSynchronize());
    assert_eq!(download::<u32>(gpu, data, 1), [1]);
}

fn uncaptured_events_cannot_be_waited_for(gpu: &Driver) {
    context(gpu);
    let (queue, other, outside) = (stream(gpu, NON_BLOCKING), stream(gpu, NON_BLOCKING), event(gpu, 2));
    ok!(gpu, cuEventRecord(outside, other));
    begin(gpu, queue);
    answers!(gpu, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(queue, outside, 0));
    is_spoilt(gpu, queue);
}

unsafe extern "C" fn count(counter: *mut c_void) {
    // SAFETY: the test passes a counter that lives on.
    unsafe { &*counter.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

fn host_functions_run_with_every_launch(gpu: &Driver) {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    begin(gpu, queue);
    let counter = (&raw const CALLS).cast_mut().cast();
    ok!(gpu, cuLaunchHostFunc(queue, Some(count), counter));
    ok!(gpu, cuLaunchHostFunc(queue, Some(count), counter));
    let exec = instantiate(gpu, end(gpu, queue));
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!(CALLS.load(Ordering::SeqCst), 0);
    for launches in 1..=4 {
        ok!(gpu, cuGraphLaunch(exec, queue));
        ok!(gpu, cuStreamSynchronize(queue));
        assert_eq!(CALLS.load(Ordering::SeqCst), 2 * launches);
    }
    // And outside of a graph, once.
    ok!(gpu, cuLaunchHostFunc(queue, Some(count), counter));
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!(CALLS.load(Ordering::SeqCst), 9);
}

fn pinned_memory_is_read_when_the_graph_runs(gpu: &Driver) {
    context(gpu);
    let (queue, double) = (stream(gpu, NON_BLOCKING), kernel(gpu, "double"));
    let (input, output) = (pinned(gpu, 1000), pinned(gpu, 1000));
    let data = alloc(gpu, 4000);
    input.fill(1);
    begin(gpu, queue);
    ok!(gpu, cuMemcpyHtoDAsync_v2(data, input.as_ptr().cast(), 4000, queue));
    assert_eq!(launch(gpu, double, 4, 256, queue, &[data, 1000]), 0);
    ok!(gpu, cuMemcpyDtoHAsync_v2(output.as_mut_ptr().cast(), data, 4000, queue));
    let exec = instantiate(gpu, end(gpu, queue));
    for value in [5, 6, 7] {
        input.fill(value);
        ok!(gpu, cuGraphLaunch(exec, queue));
        ok!(gpu, cuStreamSynchronize(queue));
        assert!(output.iter().all(|word| *word == 2 * value), "{value}: {}", output[0]);
    }
}

fn pageable_memory_is_read_when_the_graph_runs(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    for len in [16usize, 300_000] {
        let data = alloc(gpu, len * 4);
        let mut input = vec![1u32; len];
        begin(gpu, queue);
        ok!(gpu, cuMemcpyHtoDAsync_v2(data, input.as_ptr().cast(), len * 4, queue));
        let exec = instantiate(gpu, end(gpu, queue));
        for value in [2, 3] {
            input.fill(value);
            std::hint::black_box(&mut input);
            ok!(gpu, cuGraphLaunch(exec, queue));
            ok!(gpu, cuStreamSynchronize(queue));
            assert_eq!(download::<u32>(gpu, data, len), input);
        }
        ok!(gpu, cuGraphExecDestroy(exec));
    }
}

fn pageable_memory_is_written_when_the_graph_runs(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let data = alloc(gpu, 4000);
    let mut output = vec![0u32; 1000];
    let pointer = output.as_mut_ptr();
    begin(gpu, queue);
    ok!(gpu, cuMemcpyDtoHAsync_v2(pointer.cast(), data, 4000, queue));
    let exec = instantiate(gpu, end(gpu, queue));
    for value in [4, 5] {
        ok!(gpu, cuMemsetD32Async(data, value, 1000, queue));
        ok!(gpu, cuGraphLaunch(exec, queue));
        ok!(gpu, cuStreamSynchronize(queue));
        // SAFETY: the vector's own memory.
        let seen = unsafe { std::slice::from_raw_parts(pointer, 1000) };
        assert!(seen.iter().all(|word| *word == value));
    }
}

fn rectangles_are_captured(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let (from, to) = (upload(gpu, &(0..64u32).collect::<Vec<_>>()), upload(gpu, &[0u32; 64]));
    let copy = CUDA_MEMCPY2D {
        src_memory_type: 2,
        src_device: from,
        src_pitch: 32,
        dst_memory_type: 2,
        dst_device: to,
        dst_pitch: 64,
        width_in_bytes: 16,
        height: 3,
        ..Default::default()
    };
    begin(gpu, queue);
    ok!(gpu, cuMemcpy2DAsync_v2(&copy, queue));
    ok!(gpu, cuMemsetD2D32Async(to + 192, 8, 5, 1, 2, queue));
    let exec = instantiate(gpu, end(gpu, queue));
    ok!(gpu, cuGraphLaunch(exec, queue));
    ok!(gpu, cuStreamSynchronize(queue));
    let got = download::<u32>(gpu, to, 64);
    for row in 0..3 {
        assert_eq!(
            got[row * 16..row * 16 + 5],
            [row as u32 * 8, row as u32 * 8 + 1, row as u32 * 8 + 2, row as u32 * 8 + 3, 0]
        );
    }
    assert_eq!(got[48..52], [5, 0, 5, 0]);
}

fn parameters_are_those_of_the_capture(gpu: &Driver) {
    context(gpu);
    let (queue, store) = (stream(gpu, NON_BLOCKING), kernel(gpu, "store"));
    let data = upload(gpu, &[0u32, 0]);
    let mut words = [data, 11];
    let mut pointers: Vec<*mut c_void> = words.iter_mut().map(|word| (&raw mut *word).cast()).collect();
    begin(gpu, queue);
    ok!(gpu, cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, queue, pointers.as_mut_ptr(), null_mut()));
    words[0] = data + 4;
    words[1] = 22;
    std::hint::black_box(&mut words);
    let exec = instantiate(gpu, end(gpu, queue));
    ok!(gpu, cuGraphLaunch(exec, queue));
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!(download::<u32>(gpu, data, 2), [11, 0]);
}

fn dependencies_can_be_changed(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let data = upload(gpu, &[0u32, 0]);
    begin(gpu, queue);
    ok!(gpu, cuMemsetD32Async(data, 1, 1, queue));
    ok!(gpu, cuStreamUpdateCaptureDependencies(queue, null_mut(), 0, capture_dependencies::SET));
    ok!(gpu, cuMemsetD32Async(data + 4, 2, 1, queue));
    // What the stream let go of must be joined again.
    let (mut found, mut graph) = (0, null_mut());
    ok!(gpu, cuStreamGetCaptureInfo_v2(queue, &mut found, null_mut(), &mut graph, null_mut(), null_mut()));
    let (mut nodes, mut count) = ([null_mut(); 2], 2);
    ok!(gpu, cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    assert_eq!(count, 2);
    ok!(gpu, cuStreamUpdateCaptureDependencies(queue, nodes.as_mut_ptr(), 2, capture_dependencies::SET));
    let graph = end(gpu, queue);
    let mut roots = 0;
    ok!(gpu, cuGraphGetRootNodes(graph, null_mut(), &mut roots));
    assert_eq!(roots, 2);
    ok!(gpu, cuGraphLaunch(instantiate(gpu, graph), queue));
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!(download::<u32>(gpu, data, 2), [1, 2]);
}

fn a_capture_can_go_into_a_graph(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let data = upload(gpu, &[0u32]);
    let (mut graph, mut empty) = (null_mut(), null_mut());
    ok!(gpu, cuGraphCreate(&mut graph, 0));
    ok!(gpu, cuGraphAddEmptyNode(&mut empty, graph, null(), 0));
    ok!(gpu, cuStreamBeginCaptureToGraph(queue, graph, &empty, null(), 1, GLOBAL));
    ok!(gpu, cuMemsetD32Async(data, 9, 1, queue));
    assert_eq!(end(gpu, queue), graph);
    let (mut nodes, mut edges) = (0, 0);
    ok!(gpu, cuGraphGetNodes(graph, null_mut(), &mut nodes));
    ok!(gpu, cuGraphGetEdges(graph, null_mut(), null_mut(), &mut edges));
    assert_eq!((nodes, edges), (2, 1));
    ok!(gpu, cuGraphLaunch(instantiate(gpu, graph), queue));
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!(download::<u32>(gpu, data, 1), [9]);
    // Who has named the graph need not be told which it is.
    ok!(gpu, cuStreamBeginCaptureToGraph(queue, graph, &empty, null(), 1, GLOBAL));
    ok!(gpu, cuMemsetD32Async(data, 8, 1, queue));
    ok!(gpu, cuStreamEndCapture(queue, null_mut()));
    ok!(gpu, cuGraphGetNodes(graph, null_mut(), &mut nodes));
    assert_eq!(nodes, 3);
    ok!(gpu, cuGraphDestroy(graph));
}

/// cuDNN captures with addresses that it made up, to see what it would launch.
fn what_is_set_in_a_capture_may_be_anywhere(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let nowhere = 0x10_0000;
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemsetD8Async(nowhere, 1, 64, queue));
    begin(gpu, queue);
    ok!(gpu, cuMemsetD8Async(nowhere, 1, 64, queue));
    ok!(gpu, cuMemsetD32Async(nowhere, 1, 64, queue));
    let graph = end(gpu, queue);
    let mut nodes = 0;
    ok!(gpu, cuGraphGetNodes(graph, null_mut(), &mut nodes));
    assert_eq!(nodes, 2);
    // It need be there only when the graph is made ready.
    let mut exec = null_mut();
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
}

fn graphs_cannot_be_launched_into_a_capture(gpu: &Driver) {
    context(gpu);
    let (queue, double) = (stream(gpu, NON_BLOCKING), kernel(gpu, "double"));
    let data = upload(gpu, &[1u32]);
    begin(gpu, queue);
    assert_eq!(launch(gpu, double, 1, 1, queue, &[data, 1]), 0);
    let inner = instantiate(gpu, end(gpu, queue));
    begin(gpu, queue);
    answers!(gpu, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuGraphLaunch(inner, queue));
}

fn a_thread_has_a_capture_mode(gpu: &Driver) {
    context(gpu);
    let mut mode = capture_mode::THREAD_LOCAL;
    ok!(gpu, cuThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, GLOBAL);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut mode = RELAXED;
            ok!(gpu, cuThreadExchangeStreamCaptureMode(&mut mode));
            assert_eq!(mode, GLOBAL);
        });
    });
    mode = GLOBAL;
    ok!(gpu, cuThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, capture_mode::THREAD_LOCAL);
    // No number is refused.
    mode = 77;
    ok!(gpu, cuThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, GLOBAL);
}

fn other_streams_work_while_one_is_captured(gpu: &Driver) {
    context(gpu);
    let (queue, other, double) = (stream(gpu, NON_BLOCKING), stream(gpu, NON_BLOCKING), kernel(gpu, "double"));
    let (data, beside) = (upload(gpu, &[1u32]), upload(gpu, &[1u32; 100_000]));
    begin(gpu, queue);
    assert_eq!(launch(gpu, double, 1, 1, queue, &[data, 1]), 0);
    for _ in 0..3 {
        assert_eq!(launch(gpu, double, 400, 256, other, &[beside, 100_000]), 0);
    }
    let mut seen = vec![0u32; 100_000];
    ok!(gpu, cuMemcpyDtoHAsync_v2(seen.as_mut_ptr().cast(), beside, 400_000, other));
    ok!(gpu, cuMemcpyHtoDAsync_v2(beside, [5u32; 4].as_ptr().cast(), 16, other));
    let exec = instantiate(gpu, end(gpu, queue));
    ok!(gpu, cuStreamSynchronize(other));
    assert!(seen.iter().all(|word| *word == 8));
    assert_eq!(download::<u32>(gpu, beside, 5), [5, 5, 5, 5, 8]);
    assert_eq!(download::<u32>(gpu, data, 1), [1]);
    ok!(gpu, cuGraphLaunch(exec, queue));
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!(download::<u32>(gpu, data, 1), [2]);
}

fn captures_come_and_go(gpu: &Driver) {
    context(gpu);
    let (queue, store) = (stream(gpu, NON_BLOCKING), kernel(gpu, "store"));
    let data = upload(gpu, &[0u32]);
    let mut exec: Option<CUgraphExec> = None;
    for round in 0..50u64 {
        begin(gpu, queue);
        assert_eq!(launch(gpu, store, 1, 1, queue, &[data, round]), 0);
        let graph = end(gpu, queue);
        let ready = *exec.get_or_insert_with(|| instantiate(gpu, graph));
        let mut info = CUgraphExecUpdateResultInfo::default();
        ok!(gpu, cuGraphExecUpdate_v2(ready, graph, &mut info));
        assert_eq!(info.result, update_result::SUCCESS);
        ok!(gpu, cuGraphDestroy(graph));
        ok!(gpu, cuGraphLaunch(ready, queue));
        ok!(gpu, cuStreamSynchronize(queue));
        assert_eq!(download::<u32>(gpu, data, 1), [round as u32]);
    }
}

fn a_capture_ends_with_its_stream_and_context(gpu: &Driver) {
    let first = context(gpu);
    let (queue, data) = (stream(gpu, NON_BLOCKING), alloc(gpu, 64));
    begin(gpu, queue);
    ok!(gpu, cuMemsetD32Async(data, 1, 1, queue));
    ok!(gpu, cuStreamDestroy_v2(queue));
    // Nothing is captured any more, so nothing is forbidden.
    alloc(gpu, 64);
    ok!(gpu, cuCtxSynchronize());
    begin(gpu, stream(gpu, NON_BLOCKING));
    ok!(gpu, cuCtxDestroy_v2(first));
    context(gpu);
    let (queue, data) = (stream(gpu, NON_BLOCKING), alloc(gpu, 64));
    begin(gpu, queue);
    ok!(gpu, cuMemsetD32Async(data, 5, 1, queue));
    let exec = instantiate(gpu, end(gpu, queue));
    ok!(gpu, cuGraphLaunch(exec, queue));
    ok!(gpu, cuCtxSynchronize());
    assert_eq!(download::<u32>(gpu, data, 1), [5]);
}

/// Each round ends a graph with pageable copies and memory of its own while the next one waits for a host function.
fn what_a_graph_leaves_behind_holds_nobody_up(gpu: &Driver) {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    const ROUNDS: u32 = 40;
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let data = alloc(gpu, 1 << 20);
    let input = vec![7u32; 200_000];
    for round in 0..ROUNDS {
        let len = if round % 2 == 0 { 64 << 10 } else { 700 << 10 };
        begin(gpu, queue);
        ok!(gpu, cuMemcpyHtoDAsync_v2(data, input.as_ptr().cast(), len, queue));
        ok!(gpu, cuLaunchHostFunc(queue, Some(count), (&raw const CALLS).cast_mut().cast()));
        let graph = end(gpu, queue);
        let exec = instantiate(gpu, graph);
        ok!(gpu, cuGraphLaunch(exec, queue));
        if round % 5 == 0 {
            ok!(gpu, cuStreamSynchronize(queue));
        }
        ok!(gpu, cuGraphExecDestroy(exec));
        ok!(gpu, cuGraphDestroy(graph));
    }
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!(CALLS.load(Ordering::SeqCst), ROUNDS);
    assert_eq!(download::<u32>(gpu, data, 100), [7; 100]);
}
