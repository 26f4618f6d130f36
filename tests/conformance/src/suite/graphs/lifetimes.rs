//! How long graphs, and what they are made of, live; and large ones.

use super::*;
use cuda_abi::constants::{node_type, retain_flag, user_object_flag};

super::super::tests! {
    "graphs":
    graphs_inside_graphs,
    a_clone_has_nodes_of_its_own,
    objects_live_as_long_as_their_graphs,
    #[only_ours = "a native driver follows whatever it is given"]
    handles_of_graphs_that_are_gone,
    a_graph_keeps_its_functions,
    memory_allocated_in_a_capture,
    memory_allocated_by_nodes,
    a_large_graph,
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

fn objects_live_as_long_as_their_graphs(gpu: &Driver) {
    static GONE: AtomicU32 = AtomicU32::new(0);
    context(gpu);
    let graph = graph(gpu);
    let mut empty = null_mut();
    ok!(gpu, cuGraphAddEmptyNode(&mut empty, graph, null(), 0));
    let (mut object, counter) = (null_mut(), (&raw const GONE).cast_mut().cast());
    ok!(gpu, cuUserObjectCreate(&mut object, counter, Some(count), 1, user_object_flag::NO_DESTRUCTOR_SYNC));
    ok!(gpu, cuUserObjectRetain(object, 2));
    ok!(gpu, cuUserObjectRelease(object, 2));
    ok!(gpu, cuGraphRetainUserObject(graph, object, 1, retain_flag::MOVE));
    let exec = instantiate(gpu, graph);
    ok!(gpu, cuGraphDestroy(graph));
    run(gpu, exec);
    assert_eq!(GONE.load(Ordering::SeqCst), 0);
    ok!(gpu, cuGraphExecDestroy(exec));
    // Another thread may do it, any time now.
    while GONE.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    answers!(
        gpu,
        CUDA_ERROR_INVALID_VALUE,
        cuUserObjectCreate(&mut object, counter, None, 1, user_object_flag::NO_DESTRUCTOR_SYNC)
    );
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
