//! What can be done with executable graphs.

use super::*;
use cuda_abi::constants::{instantiate_flag, update_result};

super::super::tests! {
    "graphs":
    executable_nodes_can_be_changed,
    kernels_can_be_changed_before_each_launch,
    a_graph_inside_can_be_changed_also_to_itself,
    an_executable_graph_takes_over_another_graph,
    an_update_needs_the_same_shape,
    nodes_can_be_switched_off,
    launches_keep_the_order_of_their_stream,
    instantiation_takes_flags_and_a_stream,
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

fn a_graph_inside_can_be_changed_also_to_itself(gpu: &Driver) {
    context(gpu);
    let (outer, other) = (graph(gpu), graph(gpu));
    let data = upload(gpu, &[0u32]);
    let child = graph(gpu);
    add_set(gpu, child, &[], set(data, 1, 1));
    add_set(gpu, other, &[], set(data, 2, 1));
    let (mut node, mut own) = (null_mut(), null_mut());
    ok!(gpu, cuGraphAddChildGraphNode(&mut node, outer, null(), 0, child));
    ok!(gpu, cuGraphChildGraphNodeGetGraph(node, &mut own));
    let exec = instantiate(gpu, outer);
    for (inside, value) in [(other, 2), (own, 1)] {
        ok!(gpu, cuGraphExecChildGraphNodeSetParams(exec, node, inside));
        run(gpu, exec);
        assert_eq!(download::<u32>(gpu, data, 1), [value]);
    }
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

fn instantiation_takes_flags_and_a_stream(gpu: &Driver) {
    context(gpu);
    let (graph, queue) = (graph(gpu), stream(gpu, NON_BLOCKING));
    let data = upload(gpu, &[0u32]);
    add_set(gpu, graph, &[], set(data, 3, 1));
    let mut params =
        CUDA_GRAPH_INSTANTIATE_PARAMS { flags: instantiate_flag::UPLOAD, upload_stream: queue, ..Default::default() };
    let (mut exec, mut flags) = (null_mut(), 9);
    ok!(gpu, cuGraphInstantiateWithParams(&mut exec, graph, &mut params));
    assert_eq!(params.result, 0);
    ok!(gpu, cuGraphLaunch(exec, queue));
    ok!(gpu, cuStreamSynchronize(queue));
    assert_eq!(download::<u32>(gpu, data, 1), [3]);
    ok!(gpu, cuGraphInstantiateWithFlags(&mut exec, graph, instantiate_flag::AUTO_FREE_ON_LAUNCH));
    ok!(gpu, cuGraphExecGetFlags(exec, &mut flags));
    assert_eq!(flags, instantiate_flag::AUTO_FREE_ON_LAUNCH);
    let (mut node, mut log) = (queue, [1i8; 16]);
    ok!(gpu, cuGraphInstantiate_v2(&mut exec, graph, &mut node, log.as_mut_ptr().cast(), 16));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&mut exec, graph, 1 << 40));
}
