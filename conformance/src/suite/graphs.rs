//! Graphs made by hand, and what can be done with executable ones.

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::capture::{begin, end, instantiate};
use crate::calls::{
    NON_BLOCKING, alloc, answers, code, context, download, event, kernel, launch, ok, pinned, stream, upload,
};

super::tests! {
    "graphs":
    nodes_run_in_the_order_of_their_edges,
    nodes_and_edges_are_listed,
    kernel_parameters_come_back_and_can_be_changed,
    copies_and_sets_come_back_and_can_be_changed,
    executable_nodes_can_be_changed,
    kernels_can_be_changed_before_each_launch,
    an_executable_graph_takes_over_another_graph,
    an_update_needs_the_same_shape,
    graphs_inside_graphs,
    a_clone_has_nodes_of_its_own,
    host_nodes_run_with_every_launch,
    event_nodes_record_and_wait,
    nodes_can_be_switched_off,
    nodes_can_be_taken_out,
    dependencies_can_be_taken_out,
    circles_are_refused,
    objects_live_as_long_as_their_graphs,
    launches_keep_the_order_of_their_stream,
    pageable_memory_in_a_copy_node,
    nodes_by_the_general_call,
    kernel_nodes_have_attributes,
    a_picture_of_a_graph,
    instantiation_takes_flags_and_a_stream,
    wrong_arguments_of_graphs,
    #[only_ours = "a native driver follows whatever it is given"]
    handles_of_graphs_that_are_gone,
    #[only_ours = "a native driver takes any address for memory of the process"]
    nodes_reach_only_memory_of_the_program,
    a_graph_keeps_its_functions,
    memory_allocated_in_a_capture,
    memory_allocated_by_nodes,
    a_large_graph,
}

fn graph(gpu: &Driver) -> CUgraph {
    let mut graph = null_mut();
    ok!(gpu, cuGraphCreate(&mut graph, 0));
    assert!(!graph.is_null());
    graph
}

/// A kernel with 64-bit parameters, as a node wants it.
struct Call {
    words: Vec<u64>,
    pointers: Vec<*mut c_void>,
    function: CUfunction,
}

impl Call {
    fn new(function: CUfunction, words: &[u64]) -> Call {
        let mut call = Call { words: words.to_vec(), pointers: Vec::new(), function };
        call.pointers = call.words.iter_mut().map(|word| (&raw mut *word).cast()).collect();
        call
    }

    fn params(&mut self) -> CUDA_KERNEL_NODE_PARAMS_v2 {
        CUDA_KERNEL_NODE_PARAMS_v2 {
            function: self.function,
            grid: [1, 1, 1],
            block: [32, 1, 1],
            kernel_params: self.pointers.as_mut_ptr(),
            ..Default::default()
        }
    }
}

/// Adds a node that launches a kernel.
fn add_kernel(
    gpu: &Driver,
    graph: CUgraph,
    after: &[CUgraphNode],
    function: CUfunction,
    words: &[u64],
) -> CUgraphNode {
    let mut node = null_mut();
    let mut call = Call::new(function, words);
    // The parameters are copied: what they were made of may go.
    ok!(gpu, cuGraphAddKernelNode_v2(&mut node, graph, after.as_ptr(), after.len(), &call.params()));
    node
}

fn set(dst: u64, value: u32, width: usize) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS { dst, pitch: 0, value, element_size: 4, width, height: 1 }
}

fn add_set(gpu: &Driver, graph: CUgraph, after: &[CUgraphNode], params: CUDA_MEMSET_NODE_PARAMS) -> CUgraphNode {
    let mut node = null_mut();
    ok!(gpu, cuGraphAddMemsetNode(&mut node, graph, after.as_ptr(), after.len(), &params, current(gpu)));
    node
}

fn current(gpu: &Driver) -> CUcontext {
    let mut context = null_mut();
    ok!(gpu, cuCtxGetCurrent(&mut context));
    context
}

/// A run of bytes between two places of the device, or of pinned memory.
fn line(dst: u64, src: u64, bytes: usize) -> CUDA_MEMCPY3D {
    const UNIFIED: u32 = 4;
    CUDA_MEMCPY3D {
        src_memory_type: UNIFIED,
        src_device: src,
        src_pitch: bytes,
        src_height: 1,
        dst_memory_type: UNIFIED,
        dst_device: dst,
        dst_pitch: bytes,
        dst_height: 1,
        width_in_bytes: bytes,
        height: 1,
        depth: 1,
        ..Default::default()
    }
}

fn add_copy(gpu: &Driver, graph: CUgraph, after: &[CUgraphNode], copy: CUDA_MEMCPY3D) -> CUgraphNode {
    let mut node = null_mut();
    ok!(gpu, cuGraphAddMemcpyNode(&mut node, graph, after.as_ptr(), after.len(), &copy, current(gpu)));
    node
}

fn run(gpu: &Driver, exec: CUgraphExec) {
    let queue = stream(gpu, NON_BLOCKING);
    ok!(gpu, cuGraphLaunch(exec, queue));
    ok!(gpu, cuStreamSynchronize(queue));
}

fn count_nodes(gpu: &Driver, graph: CUgraph) -> usize {
    let mut count = 0;
    ok!(gpu, cuGraphGetNodes(graph, null_mut(), &mut count));
    count
}

fn nodes_run_in_the_order_of_their_edges(gpu: &Driver) {
    context(gpu);
    let (double, graph) = (kernel(gpu, "double"), graph(gpu));
    let (data, copy) = (upload(gpu, &[0u32; 32]), upload(gpu, &[0u32; 32]));
    // Made in another order than the one that they must run in.
    let copied = add_copy(gpu, graph, &[], line(copy, data, 128));
    let doubled = add_kernel(gpu, graph, &[], double, &[data, 32]);
    let filled = add_set(gpu, graph, &[], set(data, 21, 32));
    ok!(gpu, cuGraphAddDependencies(graph, [filled, doubled].as_ptr(), [doubled, copied].as_ptr(), 2));
    let exec = instantiate(gpu, graph);
    for _ in 0..3 {
        run(gpu, exec);
        assert_eq!(download::<u32>(gpu, copy, 32), [42; 32]);
    }
    ok!(gpu, cuGraphExecDestroy(exec));
    ok!(gpu, cuGraphDestroy(graph));
}

fn nodes_and_edges_are_listed(gpu: &Driver) {
    context(gpu);
    let graph = graph(gpu);
    let data = alloc(gpu, 4096);
    let first = add_set(gpu, graph, &[], set(data, 1, 1));
    let second = add_set(gpu, graph, &[first], set(data, 2, 1));
    let third = add_set(gpu, graph, &[first], set(data + 64, 3, 1));
    let mut empty = null_mut();
    ok!(gpu, cuGraphAddEmptyNode(&mut empty, graph, [second, third].as_ptr(), 2));
    let list = |room: usize| {
        let (mut nodes, mut count) = (vec![empty; room], room);
        ok!(gpu, cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
        (nodes, count)
    };
    let (nodes, count) = list(4);
    assert_eq!(count, 4);
    for node in [first, second, third, empty] {
        assert!(nodes.contains(&node));
    }
    // Room for more is filled with NULL, room for fewer is enough for those.
    let (nodes, count) = list(6);
    assert_eq!((count, nodes[4], nodes[5]), (4, null_mut(), null_mut()));
    assert_eq!(list(2).1, 2);
    let (mut roots, mut count) = ([null_mut(); 2], 2);
    ok!(gpu, cuGraphGetRootNodes(graph, roots.as_mut_ptr(), &mut count));
    assert_eq!((count, roots[0]), (1, first));
    let (mut from, mut to, mut count) = ([null_mut(); 8], [null_mut(); 8], 8);
    ok!(gpu, cuGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut count));
    let mut edges: Vec<_> = from.into_iter().zip(to).take(count).collect();
    edges.sort();
    let mut wanted = vec![(first, second), (first, third), (second, empty), (third, empty)];
    wanted.sort();
    assert_eq!(edges, wanted);
    let (mut around, mut count) = ([null_mut(); 4], 4);
    ok!(gpu, cuGraphNodeGetDependencies(empty, around.as_mut_ptr(), &mut count));
    assert_eq!(count, 2);
    assert!(around.contains(&second) && around.contains(&third));
    count = 4;
    ok!(gpu, cuGraphNodeGetDependentNodes(second, around.as_mut_ptr(), &mut count));
    assert_eq!((count, around[0]), (1, empty));
    ok!(gpu, cuGraphNodeGetDependentNodes(empty, null_mut(), &mut count));
    assert_eq!(count, 0);
    for (node, wanted) in [(first, node_type::MEMSET), (empty, node_type::EMPTY)] {
        let mut kind = 99;
        ok!(gpu, cuGraphNodeGetType(node, &mut kind));
        assert_eq!(kind, wanted);
    }
}

fn kernel_parameters_come_back_and_can_be_changed(gpu: &Driver) {
    context(gpu);
    let (mixed, queue) = (kernel(gpu, "mixed"), stream(gpu, NON_BLOCKING));
    let store = kernel(gpu, "store");
    let out = upload(gpu, &[0u64; 8]);
    // Parameters of several sizes, by way of a capture.
    let (mut a, mut b, mut c, mut d, mut e) = (1u8, 2u32, 3u16, 4u64, out);
    let mut pointers: [*mut c_void; 5] =
        [(&raw mut a).cast(), (&raw mut b).cast(), (&raw mut c).cast(), (&raw mut d).cast(), (&raw mut e).cast()];
    begin(gpu, queue);
    ok!(gpu, cuLaunchKernel(mixed, 2, 1, 1, 3, 1, 1, 0, queue, pointers.as_mut_ptr(), null_mut()));
    let graph = end(gpu, queue);
    let (mut node, mut count) = (null_mut(), 1);
    ok!(gpu, cuGraphGetNodes(graph, &mut node, &mut count));
    let mut params = CUDA_KERNEL_NODE_PARAMS_v2::default();
    ok!(gpu, cuGraphKernelNodeGetParams_v2(node, &mut params));
    assert_eq!((params.grid, params.block), ([2, 1, 1], [3, 1, 1]));
    assert_eq!(params.function, mixed);
    // SAFETY: the kernel has five parameters of these types.
    unsafe {
        let at = |index: usize| *params.kernel_params.add(index);
        assert_eq!((*at(0).cast::<u8>(), *at(1).cast::<u32>(), *at(2).cast::<u16>()), (1, 2, 3));
        assert_eq!((*at(3).cast::<u64>(), *at(4).cast::<u64>()), (4, out));
    }
    // What came back can be given again.
    ok!(gpu, cuGraphKernelNodeSetParams_v2(node, &params));
    let data = upload(gpu, &[0u32]);
    let other = self::graph(gpu);
    let node = add_kernel(gpu, other, &[], store, &[data, 5]);
    let mut changed = Call::new(store, &[data, 6]);
    ok!(gpu, cuGraphKernelNodeSetParams_v2(node, &changed.params()));
    run(gpu, instantiate(gpu, other));
    assert_eq!(download::<u32>(gpu, data, 1), [6]);
    let mut older = CUDA_KERNEL_NODE_PARAMS_v1::default();
    ok!(gpu, cuGraphKernelNodeGetParams(node, &mut older));
    // SAFETY: the kernel has two 64-bit parameters.
    assert_eq!(unsafe { **older.kernel_params.add(1).cast::<*mut u64>() }, 6);
}

fn copies_and_sets_come_back_and_can_be_changed(gpu: &Driver) {
    context(gpu);
    let graph = graph(gpu);
    let (from, to) = (upload(gpu, &[1u32, 2, 3, 4]), upload(gpu, &[0u32; 8]));
    let copied = add_copy(gpu, graph, &[], line(to, from, 8));
    let filled = add_set(gpu, graph, &[], set(to + 16, 7, 2));
    let (mut copy, mut fill) = (CUDA_MEMCPY3D::default(), CUDA_MEMSET_NODE_PARAMS::default());
    ok!(gpu, cuGraphMemcpyNodeGetParams(copied, &mut copy));
    assert_eq!((copy.src_device, copy.dst_device, copy.width_in_bytes), (from, to, 8));
    ok!(gpu, cuGraphMemsetNodeGetParams(filled, &mut fill));
    assert_eq!((fill.dst, fill.value, fill.element_size, fill.width), (to + 16, 7, 4, 2));
    ok!(gpu, cuGraphMemcpyNodeSetParams(copied, &line(to, from + 8, 8)));
    ok!(gpu, cuGraphMemsetNodeSetParams(filled, &set(to + 20, 9, 1)));
    run(gpu, instantiate(gpu, graph));
    assert_eq!(download::<u32>(gpu, to, 8), [3, 4, 0, 0, 0, 9, 0, 0]);
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphMemsetNodeGetParams(copied, &mut fill));
}

fn executable_nodes_can_be_changed(gpu: &Driver) {
    context(gpu);
    let (store, graph) = (kernel(gpu, "store"), graph(gpu));
    let data = upload(gpu, &[0u32; 8]);
    let stored = add_kernel(gpu, graph, &[], store, &[data, 1]);
    let filled = add_set(gpu, graph, &[], set(data + 4, 2, 1));
    let copied = add_copy(gpu, graph, &[stored], line(data + 8, data, 4));
    let exec = instantiate(gpu, graph);
    let mut changed = Call::new(store, &[data, 11]);
    ok!(gpu, cuGraphExecKernelNodeSetParams_v2(exec, stored, &changed.params()));
    ok!(gpu, cuGraphExecMemsetNodeSetParams(exec, filled, &set(data + 4, 12, 1), current(gpu)));
    ok!(gpu, cuGraphExecMemcpyNodeSetParams(exec, copied, &line(data + 12, data, 4), current(gpu)));
    run(gpu, exec);
    assert_eq!(download::<u32>(gpu, data, 4), [11, 12, 0, 11]);
    // The graph itself is as it was.
    run(gpu, instantiate(gpu, graph));
    assert_eq!(download::<u32>(gpu, data, 4), [1, 2, 1, 11]);
}

fn kernels_can_be_changed_before_each_launch(gpu: &Driver) {
    context(gpu);
    let (store, graph) = (kernel(gpu, "store"), graph(gpu));
    let data = upload(gpu, &[0u32; 400]);
    let nodes: Vec<_> = (0..3).map(|_| add_kernel(gpu, graph, &[], store, &[data, 0])).collect();
    let exec = instantiate(gpu, graph);
    // Nobody waits in between: each launch has the parameters that were set before it, and no later ones.
    for round in 0..100u64 {
        for (at, node) in nodes.iter().enumerate() {
            let mut changed = Call::new(store, &[data + round * 16 + at as u64 * 4, round + at as u64]);
            ok!(gpu, cuGraphExecKernelNodeSetParams_v2(exec, *node, &changed.params()));
        }
        ok!(gpu, cuGraphLaunch(exec, null_mut()));
    }
    let mut too_large = Call::new(store, &[data, 0]);
    let params = CUDA_KERNEL_NODE_PARAMS_v2 { block: [2048, 1, 1], ..too_large.params() };
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphExecKernelNodeSetParams_v2(exec, nodes[2], &params));
    let expected: Vec<u32> = (0..100).flat_map(|round| [round, round + 1, round + 2, 0]).collect();
    assert_eq!(download::<u32>(gpu, data, 400), expected);
}

fn an_executable_graph_takes_over_another_graph(gpu: &Driver) {
    context(gpu);
    let store = kernel(gpu, "store");
    let data = upload(gpu, &[0u32, 0]);
    let make = |value: u64| {
        let graph = graph(gpu);
        let first = add_kernel(gpu, graph, &[], store, &[data, value]);
        add_kernel(gpu, graph, &[first], store, &[data + 4, value + 1]);
        graph
    };
    let exec = instantiate(gpu, make(1));
    let (mut node, mut result) = (null_mut(), 9);
    for value in [10, 20] {
        let graph = make(value);
        ok!(gpu, cuGraphExecUpdate(exec, graph, &mut node, &mut result));
        assert_eq!(result, update_result::SUCCESS);
        ok!(gpu, cuGraphDestroy(graph));
        run(gpu, exec);
        assert_eq!(download::<u32>(gpu, data, 2), [value as u32, value as u32 + 1]);
    }
}

fn an_update_needs_the_same_shape(gpu: &Driver) {
    context(gpu);
    let data = upload(gpu, &[0u32; 4]);
    let (one, two) = (graph(gpu), graph(gpu));
    add_set(gpu, one, &[], set(data, 1, 1));
    let first = add_set(gpu, two, &[], set(data, 2, 1));
    add_set(gpu, two, &[first], set(data + 4, 2, 1));
    let exec = instantiate(gpu, one);
    let mut info = CUgraphExecUpdateResultInfo::default();
    answers!(gpu, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, two, &mut info));
    assert_eq!(info.result, update_result::TOPOLOGY_CHANGED);
    let other = graph(gpu);
    let mut empty = null_mut();
    ok!(gpu, cuGraphAddEmptyNode(&mut empty, other, null(), 0));
    answers!(gpu, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, other, &mut info));
    assert_eq!(info.result, update_result::NODE_TYPE_CHANGED);
    assert_eq!(info.error_node, empty);
    // It still does what it did.
    run(gpu, exec);
    assert_eq!(download::<u32>(gpu, data, 2), [1, 0]);
}

fn graphs_inside_graphs(gpu: &Driver) {
    context(gpu);
    let double = kernel(gpu, "double");
    let data = upload(gpu, &[1u32; 32]);
    let inner = graph(gpu);
    let first = add_kernel(gpu, inner, &[], double, &[data, 32]);
    add_kernel(gpu, inner, &[first], double, &[data, 32]);
    let outer = graph(gpu);
    let (mut one, mut two, mut inside, mut kind) = (null_mut(), null_mut(), null_mut(), 0);
    ok!(gpu, cuGraphAddChildGraphNode(&mut one, outer, null(), 0, inner));
    ok!(gpu, cuGraphAddChildGraphNode(&mut two, outer, &one, 1, inner));
    // The node has a copy: what becomes of the graph does not matter.
    ok!(gpu, cuGraphDestroy(inner));
    ok!(gpu, cuGraphNodeGetType(one, &mut kind));
    assert_eq!(kind, node_type::GRAPH);
    ok!(gpu, cuGraphChildGraphNodeGetGraph(one, &mut inside));
    assert_eq!((count_nodes(gpu, inside), count_nodes(gpu, outer)), (2, 2));
    let exec = instantiate(gpu, outer);
    run(gpu, exec);
    assert_eq!(download::<u32>(gpu, data, 32), [16; 32]);
    ok!(gpu, cuGraphDestroy(outer));
    run(gpu, exec);
    assert_eq!(download::<u32>(gpu, data, 32), [256; 32]);
}

fn a_clone_has_nodes_of_its_own(gpu: &Driver) {
    context(gpu);
    let data = upload(gpu, &[0u32]);
    let original = graph(gpu);
    let node = add_set(gpu, original, &[], set(data, 1, 1));
    let (mut clone, mut twin) = (null_mut(), null_mut());
    ok!(gpu, cuGraphClone(&mut clone, original));
    ok!(gpu, cuGraphNodeFindInClone(&mut twin, node, clone));
    assert!(twin != node && !twin.is_null());
    ok!(gpu, cuGraphMemsetNodeSetParams(twin, &set(data, 2, 1)));
    ok!(gpu, cuGraphDestroyNode(node));
    ok!(gpu, cuGraphDestroy(original));
    run(gpu, instantiate(gpu, clone));
    assert_eq!(download::<u32>(gpu, data, 1), [2]);
}

unsafe extern "C" fn count(counter: *mut c_void) {
    // SAFETY: the test passes a counter that lives on.
    unsafe { &*counter.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

fn host_nodes_run_with_every_launch(gpu: &Driver) {
    static CALLS: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];
    let counter = |at: usize| (&raw const CALLS[at]).cast_mut().cast::<c_void>();
    context(gpu);
    let graph = graph(gpu);
    let mut node = null_mut();
    let mut host = CUDA_HOST_NODE_PARAMS { function: Some(count), user: counter(0) };
    ok!(gpu, cuGraphAddHostNode(&mut node, graph, null(), 0, &host));
    let mut found = CUDA_HOST_NODE_PARAMS::default();
    ok!(gpu, cuGraphHostNodeGetParams(node, &mut found));
    assert_eq!(found.user, counter(0));
    let exec = instantiate(gpu, graph);
    run(gpu, exec);
    run(gpu, exec);
    host.user = counter(1);
    ok!(gpu, cuGraphExecHostNodeSetParams(exec, node, &host));
    run(gpu, exec);
    assert_eq!(CALLS.each_ref().map(|calls| calls.load(Ordering::SeqCst)), [2, 1]);
    ok!(gpu, cuGraphHostNodeSetParams(node, &host));
    ok!(gpu, cuGraphDestroy(graph));
    run(gpu, exec);
    assert_eq!(CALLS.each_ref().map(|calls| calls.load(Ordering::SeqCst)), [2, 2]);
    host.function = None;
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphAddHostNode(&mut node, self::graph(gpu), null(), 0, &host));
}

fn event_nodes_record_and_wait(gpu: &Driver) {
    context(gpu);
    let graph = graph(gpu);
    let (begun, done) = (event(gpu, 0), event(gpu, 0));
    let data = upload(gpu, &[0u32]);
    let (mut first, mut last, mut waits, mut found) = (null_mut(), null_mut(), null_mut(), null_mut());
    ok!(gpu, cuGraphAddEventRecordNode(&mut first, graph, null(), 0, begun));
    ok!(gpu, cuGraphAddEventWaitNode(&mut waits, graph, &first, 1, begun));
    let filled = add_set(gpu, graph, &[waits], set(data, 4, 1));
    ok!(gpu, cuGraphAddEventRecordNode(&mut last, graph, &filled, 1, begun));
    ok!(gpu, cuGraphEventRecordNodeSetEvent(last, done));
    ok!(gpu, cuGraphEventRecordNodeGetEvent(last, &mut found));
    assert_eq!(found, done);
    ok!(gpu, cuGraphEventWaitNodeGetEvent(waits, &mut found));
    assert_eq!(found, begun);
    let (exec, queue) = (instantiate(gpu, graph), stream(gpu, NON_BLOCKING));
    ok!(gpu, cuGraphLaunch(exec, queue));
    ok!(gpu, cuStreamSynchronize(queue));
    ok!(gpu, cuEventQuery(done));
    let mut milliseconds = -1.0;
    ok!(gpu, cuEventElapsedTime(&mut milliseconds, begun, done));
    assert!(milliseconds >= 0.0);
    assert_eq!(download::<u32>(gpu, data, 1), [4]);
}

fn nodes_can_be_switched_off(gpu: &Driver) {
    context(gpu);
    let graph = graph(gpu);
    let data = upload(gpu, &[0u32, 0]);
    let first = add_set(gpu, graph, &[], set(data, 1, 1));
    add_set(gpu, graph, &[first], set(data + 4, 2, 1));
    let exec = instantiate(gpu, graph);
    let mut enabled = 9;
    ok!(gpu, cuGraphNodeGetEnabled(exec, first, &mut enabled));
    assert_eq!(enabled, 1);
    ok!(gpu, cuGraphNodeSetEnabled(exec, first, 0));
    ok!(gpu, cuGraphNodeGetEnabled(exec, first, &mut enabled));
    assert_eq!(enabled, 0);
    run(gpu, exec);
    assert_eq!(download::<u32>(gpu, data, 2), [0, 2]);
    ok!(gpu, cuGraphNodeSetEnabled(exec, first, 1));
    run(gpu, exec);
    assert_eq!(download::<u32>(gpu, data, 2), [1, 2]);
}

fn nodes_can_be_taken_out(gpu: &Driver) {
    context(gpu);
    let graph = graph(gpu);
    let data = upload(gpu, &[0u32, 0]);
    let first = add_set(gpu, graph, &[], set(data, 1, 1));
    let second = add_set(gpu, graph, &[first], set(data + 4, 2, 1));
    ok!(gpu, cuGraphDestroyNode(first));
    let (mut nodes, mut count) = ([null_mut(); 2], 2);
    ok!(gpu, cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    assert_eq!((count, nodes[0]), (1, second));
    ok!(gpu, cuGraphNodeGetDependencies(second, null_mut(), &mut count));
    assert_eq!(count, 0);
    run(gpu, instantiate(gpu, graph));
    assert_eq!(download::<u32>(gpu, data, 2), [0, 2]);
}

fn dependencies_can_be_taken_out(gpu: &Driver) {
    context(gpu);
    let graph = graph(gpu);
    let data = alloc(gpu, 64);
    let first = add_set(gpu, graph, &[], set(data, 1, 1));
    let second = add_set(gpu, graph, &[first], set(data + 4, 2, 1));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &first, &second, 1));
    ok!(gpu, cuGraphRemoveDependencies(graph, &first, &second, 1));
    let mut count = 9;
    ok!(gpu, cuGraphGetEdges(graph, null_mut(), null_mut(), &mut count));
    assert_eq!(count, 0);
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(graph, &first, &second, 1));
    ok!(gpu, cuGraphAddDependencies(graph, &second, &first, 1));
}

fn circles_are_refused(gpu: &Driver) {
    context(gpu);
    let graph = graph(gpu);
    let (mut first, mut second) = (null_mut(), null_mut());
    ok!(gpu, cuGraphAddEmptyNode(&mut first, graph, null(), 0));
    ok!(gpu, cuGraphAddEmptyNode(&mut second, graph, &first, 1));
    // Sooner or later.
    let added = code!(gpu, cuGraphAddDependencies(graph, &second, &first, 1));
    let mut exec = null_mut();
    let made = code!(gpu, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    assert!(added != CUDA_SUCCESS || made != CUDA_SUCCESS);
}

fn objects_live_as_long_as_their_graphs(gpu: &Driver) {
    const NO_DESTRUCTOR_SYNC: u32 = 1;
    const MOVE: u32 = 1;
    static GONE: AtomicU32 = AtomicU32::new(0);
    context(gpu);
    let graph = graph(gpu);
    let mut empty = null_mut();
    ok!(gpu, cuGraphAddEmptyNode(&mut empty, graph, null(), 0));
    let (mut object, counter) = (null_mut(), (&raw const GONE).cast_mut().cast());
    ok!(gpu, cuUserObjectCreate(&mut object, counter, Some(count), 1, NO_DESTRUCTOR_SYNC));
    ok!(gpu, cuUserObjectRetain(object, 2));
    ok!(gpu, cuUserObjectRelease(object, 2));
    ok!(gpu, cuGraphRetainUserObject(graph, object, 1, MOVE));
    let exec = instantiate(gpu, graph);
    ok!(gpu, cuGraphDestroy(graph));
    run(gpu, exec);
    assert_eq!(GONE.load(Ordering::SeqCst), 0);
    ok!(gpu, cuGraphExecDestroy(exec));
    // Another thread may do it, any time now.
    while GONE.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&mut object, counter, None, 1, NO_DESTRUCTOR_SYNC));
}

fn launches_keep_the_order_of_their_stream(gpu: &Driver) {
    context(gpu);
    let (double, queue, graph) = (kernel(gpu, "double"), stream(gpu, NON_BLOCKING), graph(gpu));
    let data = upload(gpu, &[1u32]);
    add_kernel(gpu, graph, &[], double, &[data, 1]);
    let exec = instantiate(gpu, graph);
    ok!(gpu, cuGraphUpload(exec, queue));
    let output = pinned(gpu, 40);
    for (round, place) in output.iter_mut().enumerate() {
        if round % 20 == 0 {
            ok!(gpu, cuMemsetD32Async(data, 1, 1, queue));
        }
        ok!(gpu, cuGraphLaunch(exec, queue));
        ok!(gpu, cuMemcpyDtoHAsync_v2((&raw mut *place).cast(), data, 4, queue));
    }
    ok!(gpu, cuStreamSynchronize(queue));
    for (round, value) in output.iter().enumerate() {
        assert_eq!(*value, 2 << (round % 20));
    }
}

fn pageable_memory_in_a_copy_node(gpu: &Driver) {
    context(gpu);
    let (graph, double) = (graph(gpu), kernel(gpu, "double"));
    let mut memory = [vec![1u32; 3000], vec![0u32; 3000]];
    let [input, output] = memory.each_mut().map(|memory| memory.as_mut_ptr());
    let data = alloc(gpu, 12_000);
    let upload = add_copy(gpu, graph, &[], line(data, input as u64, 12_000));
    let mut params = Call::new(double, &[data, 3000]);
    let mut doubled = null_mut();
    let wide = CUDA_KERNEL_NODE_PARAMS_v2 { grid: [100, 1, 1], ..params.params() };
    ok!(gpu, cuGraphAddKernelNode_v2(&mut doubled, graph, &upload, 1, &wide));
    add_copy(gpu, graph, &[doubled], line(output as u64, data, 12_000));
    let exec = instantiate(gpu, graph);
    ok!(gpu, cuGraphDestroy(graph));
    for value in [3, 4] {
        // SAFETY: memory of the two vectors, which nobody else uses.
        unsafe { std::slice::from_raw_parts_mut(input, 3000) }.fill(value);
        run(gpu, exec);
        // SAFETY: as above.
        assert!(unsafe { std::slice::from_raw_parts(output, 3000) }.iter().all(|word| *word == 2 * value));
    }
    drop(memory);
}

fn nodes_by_the_general_call(gpu: &Driver) {
    context(gpu);
    let (store, graph) = (kernel(gpu, "store"), graph(gpu));
    let data = upload(gpu, &[0u32, 0]);
    let mut all = CUgraphNodeParams { kind: node_type::KERNEL, ..Default::default() };
    let mut call = Call::new(store, &[data, 8]);
    // SAFETY: the value is large enough for every kind's parameters.
    unsafe { all.value.as_mut_ptr().cast::<CUDA_KERNEL_NODE_PARAMS_v2>().write(call.params()) };
    let (mut stored, mut filled) = (null_mut(), null_mut());
    ok!(gpu, cuGraphAddNode_v2(&mut stored, graph, null(), null(), 0, &mut all));
    let mut fill = CUgraphNodeParams { kind: node_type::MEMSET, ..Default::default() };
    let params = CUDA_MEMSET_NODE_PARAMS_v2 { set: set(data + 4, 9, 1), ctx: null_mut() };
    // SAFETY: as above.
    unsafe { fill.value.as_mut_ptr().cast::<CUDA_MEMSET_NODE_PARAMS_v2>().write(params) };
    ok!(gpu, cuGraphAddNode_v2(&mut filled, graph, &stored, null(), 1, &mut fill));
    let exec = instantiate(gpu, graph);
    run(gpu, exec);
    assert_eq!(download::<u32>(gpu, data, 2), [8, 9]);
    let mut call = Call::new(store, &[data, 80]);
    // SAFETY: as above.
    unsafe { all.value.as_mut_ptr().cast::<CUDA_KERNEL_NODE_PARAMS_v2>().write(call.params()) };
    ok!(gpu, cuGraphExecNodeSetParams(exec, stored, &mut all));
    run(gpu, exec);
    assert_eq!(download::<u32>(gpu, data, 2), [80, 9]);
    ok!(gpu, cuGraphNodeSetParams(stored, &mut all));
}

fn kernel_nodes_have_attributes(gpu: &Driver) {
    const PRIORITY: u32 = 8;
    context(gpu);
    let (nothing, graph) = (kernel(gpu, "nothing"), graph(gpu));
    let (one, two) = (add_kernel(gpu, graph, &[], nothing, &[]), add_kernel(gpu, graph, &[], nothing, &[]));
    let mut value = CUkernelNodeAttrValue::default();
    value.0[..4].copy_from_slice(&(-1i32).to_ne_bytes());
    ok!(gpu, cuGraphKernelNodeSetAttribute(one, PRIORITY, &value));
    ok!(gpu, cuGraphKernelNodeCopyAttributes(two, one));
    let mut found = CUkernelNodeAttrValue::default();
    ok!(gpu, cuGraphKernelNodeGetAttribute(two, PRIORITY, &mut found));
    assert_eq!(found.0[..4], (-1i32).to_ne_bytes());
}

fn a_picture_of_a_graph(gpu: &Driver) {
    context(gpu);
    let (store, graph) = (kernel(gpu, "store"), graph(gpu));
    let data = alloc(gpu, 64);
    let first = add_kernel(gpu, graph, &[], store, &[data, 8]);
    add_set(gpu, graph, &[first], set(data, 1, 1));
    let path = std::env::temp_dir().join(format!("conformance-{}.dot", std::process::id()));
    let name = CString::new(path.to_str().expect("a readable path")).expect("no NUL");
    ok!(gpu, cuGraphDebugDotPrint(graph, name.as_ptr(), 0));
    let text = std::fs::read_to_string(&path).expect("the file is there");
    std::fs::remove_file(&path).expect("the file is ours");
    assert!(text.contains("digraph") && text.contains("->"), "{text}");
}

fn instantiation_takes_flags_and_a_stream(gpu: &Driver) {
    const UPLOAD: u64 = 2;
    const AUTO_FREE: u64 = 1;
    context(gpu);
    let (graph, queue) = (graph(gpu), stream(gpu, NON_BLOCKING));
    let data = upload(gpu, &[0u32]);
    add_set(gpu, graph, &[], set(data, 3, 1));
    let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS { flags: UPLOAD, upload_stream: queue, ..Default::default() };
    let (mut exec, mut flags) = (null_mut(), 9);
    ok!(gpu, cuGraphInstantiateWithParams(&mut exec, graph, &mut params));
    assert_eq!(params.result, 0);
    ok!(gpu, cuGraphLaunch(exec, queue));
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!(download::<u32>(gpu, data, 1), [3]);
    ok!(gpu, cuGraphInstantiateWithFlags(&mut exec, graph, AUTO_FREE));
    ok!(gpu, cuGraphExecGetFlags(exec, &mut flags));
    assert_eq!(flags, AUTO_FREE);
    let (mut node, mut log) = (queue, [1i8; 16]);
    ok!(gpu, cuGraphInstantiate_v2(&mut exec, graph, &mut node, log.as_mut_ptr().cast(), 16));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&mut exec, graph, 1 << 40));
}

fn wrong_arguments_of_graphs(gpu: &Driver) {
    context(gpu);
    let (mut graph, mut count) = (null_mut(), 0);
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphCreate(null_mut(), 0));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphCreate(&mut graph, 1));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(null_mut()));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphGetNodes(null_mut(), null_mut(), &mut count));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(null_mut(), null_mut()));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphExecDestroy(null_mut()));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&mut graph, null_mut(), 0));
    let graph = self::graph(gpu);
    let mut node = null_mut();
    let mut call = Call::new(kernel(gpu, "nothing"), &[]);
    let mut params = call.params();
    params.block = [4096, 1, 1];
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode_v2(&mut node, graph, null(), 0, &params));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(null_mut(), graph, null(), 0));
    assert_eq!(count_nodes(gpu, graph), 0);
}

fn handles_of_graphs_that_are_gone(gpu: &Driver) {
    context(gpu);
    let data = alloc(gpu, 64);
    let (inner, outer) = (graph(gpu), graph(gpu));
    add_set(gpu, inner, &[], set(data, 1, 1));
    let (mut child, mut inside, mut leaf, mut count, mut kind) = (null_mut(), null_mut(), null_mut(), 1, 0);
    ok!(gpu, cuGraphAddChildGraphNode(&mut child, outer, null(), 0, inner));
    ok!(gpu, cuGraphChildGraphNodeGetGraph(child, &mut inside));
    ok!(gpu, cuGraphGetNodes(inside, &mut leaf, &mut count));
    // A graph that a node owns is not the program's to destroy.
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(inside));
    let exec = instantiate(gpu, outer);
    ok!(gpu, cuGraphDestroy(outer));
    for node in [child, leaf] {
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetType(node, &mut kind));
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode(node));
    }
    for graph in [outer, inside] {
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphGetNodes(graph, null_mut(), &mut count));
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(graph));
    }
    ok!(gpu, cuGraphExecDestroy(exec));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, null_mut()));
    // A node of one graph is none of another.
    let (one, other) = (graph(gpu), graph(gpu));
    let node = add_set(gpu, one, &[], set(data, 1, 1));
    let mut made = null_mut();
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&mut made, other, &node, 1));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphAddChildGraphNode(&mut made, one, null(), 0, one));
}

fn nodes_reach_only_memory_of_the_program(gpu: &Driver) {
    context(gpu);
    let graph = graph(gpu);
    let data = alloc(gpu, 2 << 20);
    let mut node = null_mut();
    for (dst, words) in [(data + (1 << 40), 1), (data, 1 << 30), (64, 1), (u64::MAX - 3, 1)] {
        answers!(
            gpu,
            CUDA_ERROR_INVALID_VALUE,
            cuGraphAddMemsetNode(&mut node, graph, null(), 0, &set(dst, 1, words), null_mut())
        );
    }
    let far = line(data, data + (1 << 40), 64);
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphAddMemcpyNode(&mut node, graph, null(), 0, &far, null_mut()));
    assert_eq!(count_nodes(gpu, graph), 0);
}

fn a_graph_keeps_its_functions(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let module = crate::calls::module(gpu, crate::calls::KERNELS);
    let store = crate::calls::function(gpu, module, "store");
    let data = upload(gpu, &[0u32]);
    begin(gpu, queue);
    assert_eq!(launch(gpu, store, 1, 1, queue, &[data, 3]), 0);
    let exec = instantiate(gpu, end(gpu, queue));
    ok!(gpu, cuGraphLaunch(exec, queue));
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!(download::<u32>(gpu, data, 1), [3]);
    ok!(gpu, cuGraphExecDestroy(exec));
    ok!(gpu, cuModuleUnload(module));
}

fn memory_allocated_in_a_capture(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let result = upload(gpu, &[0u32; 1000]);
    begin(gpu, queue);
    let mut scratch = 0;
    ok!(gpu, cuMemAllocAsync(&mut scratch, 4000, queue));
    ok!(gpu, cuMemsetD32Async(scratch, 77, 1000, queue));
    ok!(gpu, cuMemcpyDtoDAsync_v2(result, scratch, 4000, queue));
    ok!(gpu, cuMemFreeAsync(scratch, queue));
    let graph = end(gpu, queue);
    let exec = instantiate(gpu, graph);
    ok!(gpu, cuGraphDestroy(graph));
    for _ in 0..2 {
        ok!(gpu, cuMemsetD32Async(result, 0, 1000, queue));
        ok!(gpu, cuGraphLaunch(exec, queue));
        ok!(gpu, cuStreamSynchronize(queue));
        assert_eq!(download::<u32>(gpu, result, 1000), [77; 1000]);
    }
    ok!(gpu, cuGraphExecDestroy(exec));
    ok!(gpu, cuCtxSynchronize());
}

fn memory_allocated_by_nodes(gpu: &Driver) {
    context(gpu);
    let graph = graph(gpu);
    let result = upload(gpu, &[0u32; 10]);
    let mut params = CUDA_MEM_ALLOC_NODE_PARAMS { bytes: 40, ..Default::default() };
    (params.pool.alloc_type, params.pool.location.kind) = (1, 1);
    let (mut taken, mut freed, mut kind, mut address) = (null_mut(), null_mut(), 0, 0);
    ok!(gpu, cuGraphAddMemAllocNode(&mut taken, graph, null(), 0, &mut params));
    assert_ne!(params.dptr, 0);
    let filled = add_set(gpu, graph, &[taken], set(params.dptr, 5, 10));
    let copied = add_copy(gpu, graph, &[filled], line(result, params.dptr, 40));
    ok!(gpu, cuGraphAddMemFreeNode(&mut freed, graph, &copied, 1, params.dptr));
    ok!(gpu, cuGraphNodeGetType(taken, &mut kind));
    assert_eq!(kind, node_type::MEM_ALLOC);
    ok!(gpu, cuGraphMemFreeNodeGetParams(freed, &mut address));
    assert_eq!(address, params.dptr);
    let mut found = CUDA_MEM_ALLOC_NODE_PARAMS::default();
    ok!(gpu, cuGraphMemAllocNodeGetParams(taken, &mut found));
    assert_eq!((found.dptr, found.bytes), (params.dptr, 40));
    run(gpu, instantiate(gpu, graph));
    assert_eq!(download::<u32>(gpu, result, 10), [5; 10]);
}

fn a_large_graph(gpu: &Driver) {
    const NODES: usize = 10_000;
    context(gpu);
    let graph = graph(gpu);
    let data = alloc(gpu, NODES * 4);
    let mut last: Vec<CUgraphNode> = Vec::new();
    for at in 0..NODES {
        let node = add_set(gpu, graph, &last, set(data + 4 * at as u64, at as u32, 1));
        last = vec![node];
    }
    let (mut nodes, mut count) = (vec![null_mut(); NODES], NODES);
    ok!(gpu, cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    assert_eq!(count, NODES);
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), NODES);
    run(gpu, instantiate(gpu, graph));
    assert_eq!(download::<u32>(gpu, data, NODES), (0..NODES as u32).collect::<Vec<_>>());
    ok!(gpu, cuGraphDestroy(graph));
}
