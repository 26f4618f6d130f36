//! What graphs are made of.

use super::*;
use cuda_abi::constants::{launch_attribute, node_type};

super::super::tests! {
    "graphs":
    nodes_run_in_the_order_of_their_edges,
    nodes_and_edges_are_listed,
    kernel_parameters_come_back_and_can_be_changed,
    copies_and_sets_come_back_and_can_be_changed,
    host_nodes_run_with_every_launch,
    event_nodes_record_and_wait,
    nodes_can_be_taken_out,
    dependencies_can_be_taken_out,
    cycles_are_refused,
    pageable_memory_in_a_copy_node,
    nodes_by_the_general_call,
    kernel_nodes_have_attributes,
    a_picture_of_a_graph,
    wrong_arguments_of_graphs,
    #[only_ours = "a native driver takes any address for memory of the process"]
    nodes_reach_only_memory_of_the_program,
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

fn cycles_are_refused(gpu: &Driver) {
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
    context(gpu);
    let (nothing, graph) = (kernel(gpu, "nothing"), graph(gpu));
    let (one, two) = (add_kernel(gpu, graph, &[], nothing, &[]), add_kernel(gpu, graph, &[], nothing, &[]));
    let mut value = CUkernelNodeAttrValue::default();
    value.0[..4].copy_from_slice(&(-1i32).to_ne_bytes());
    ok!(gpu, cuGraphKernelNodeSetAttribute(one, launch_attribute::PRIORITY, &value));
    ok!(gpu, cuGraphKernelNodeCopyAttributes(two, one));
    let mut found = CUkernelNodeAttrValue::default();
    ok!(gpu, cuGraphKernelNodeGetAttribute(two, launch_attribute::PRIORITY, &mut found));
    assert_eq!(found.0[..4], (-1i32).to_ne_bytes());
}

fn a_picture_of_a_graph(gpu: &Driver) {
    context(gpu);
    let (store, graph) = (kernel(gpu, "store"), graph(gpu));
    let data = alloc(gpu, 64);
    let first = add_kernel(gpu, graph, &[], store, &[data, 8]);
    add_set(gpu, graph, &[first], set(data, 1, 1));
    let directory = testkit::directory();
    let path = directory.join("graph.dot");
    let name = CString::new(path.to_str().expect("a readable path")).expect("no NUL");
    ok!(gpu, cuGraphDebugDotPrint(graph, name.as_ptr(), 0));
    let text = std::fs::read_to_string(&path).expect("the file is there");
    assert!(text.contains("digraph") && text.contains("->"), "{text}");
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
