// Conditional nodes: kernels decide while a graph runs what of it runs, and how often.
// kernels: call the device runtime
#include "check.h"

__global__ void decide(cudaGraphConditionalHandle handle, const unsigned *value) {
    cudaGraphSetConditional(handle, *value);
}

__global__ void add(int *to, int what) { *to += what; }

// Counts down to zero, and goes on until then.
__global__ void countdown(cudaGraphConditionalHandle handle, int *left) {
    *left -= 1;
    cudaGraphSetConditional(handle, *left > 0);
}

static cudaGraphNode_t add_kernel(cudaGraph_t graph, const cudaGraphNode_t *after, void *function, void **arguments) {
    cudaKernelNodeParams params = {};
    params.func = function;
    params.gridDim = params.blockDim = dim3(1);
    params.kernelParams = arguments;
    cudaGraphNode_t node;
    OK(cudaGraphAddKernelNode(&node, graph, after, after != nullptr, &params));
    return node;
}

static cudaGraphNode_t add_value(cudaGraph_t graph, const cudaGraphNode_t *after, int *to, int what) {
    void *arguments[] = {&to, &what};
    return add_kernel(graph, after, (void *)add, arguments);
}

// Adds a conditional node; the graphs inside are for the caller to fill.
static cudaGraph_t *add_conditional(cudaGraph_t graph, const cudaGraphNode_t *after, cudaGraphConditionalHandle handle,
                                    cudaGraphConditionalNodeType type, unsigned size) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = size;
    cudaGraphNode_t node;
    OK(cudaGraphAddNode(&node, graph, after, nullptr, after != nullptr, &params));
    cudaGraphNodeType kind;
    OK(cudaGraphNodeGetType(node, &kind));
    CHECK(kind == cudaGraphNodeTypeConditional);
    return params.conditional.phGraph_out;
}

static cudaGraphExec_t instantiate(cudaGraph_t graph) {
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

static void launch(cudaGraphExec_t exec) {
    OK(cudaGraphLaunch(exec, 0));
    OK(cudaStreamSynchronize(0));
}

// One of several graphs, or none, as a number says that lies in memory.
static void branches(cudaGraphConditionalNodeType type, unsigned size) {
    unsigned *value;
    int *sum;
    OK(cudaMallocManaged(&value, sizeof *value));
    OK(cudaMallocManaged(&sum, sizeof *sum));
    cudaGraph_t graph;
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle handle;
    OK(cudaGraphConditionalHandleCreate(&handle, graph));
    void *arguments[] = {&handle, &value};
    cudaGraphNode_t decided = add_kernel(graph, nullptr, (void *)decide, arguments);
    cudaGraph_t *bodies = add_conditional(graph, &decided, handle, type, size);
    for (unsigned i = 0; i < size; i++) {
        cudaGraphNode_t first = add_value(bodies[i], nullptr, sum, 1 << i);
        add_value(bodies[i], &first, sum, 1 << i);
    }
    cudaGraphExec_t exec = instantiate(graph);
    OK(cudaGraphDestroy(graph)); // the executable one does not need it
    for (unsigned now = 0; now < size + 2; now++) {
        *value = now, *sum = 0;
        launch(exec);
        bool is_if = type == cudaGraphCondTypeIf;
        unsigned branch = is_if ? now == 0 : now;
        CHECK(*sum == (branch < size ? 2 << branch : 0));
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaFree(value));
    OK(cudaFree(sum));
}

// A loop that begins by itself, with a condition inside of it.
static void loop() {
    int *left, *sum;
    OK(cudaMallocManaged(&left, sizeof *left));
    OK(cudaMallocManaged(&sum, sizeof *sum));
    cudaGraph_t graph;
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle again, more;
    OK(cudaGraphConditionalHandleCreate(&again, graph, 1, cudaGraphCondAssignDefault));
    cudaGraph_t body = *add_conditional(graph, nullptr, again, cudaGraphCondTypeWhile, 1);
    OK(cudaGraphConditionalHandleCreate(&more, body, 0, cudaGraphCondAssignDefault));
    void *arguments[] = {&again, &left};
    cudaGraphNode_t counted = add_kernel(body, nullptr, (void *)countdown, arguments);
    unsigned *value = (unsigned *)left;
    void *asked[] = {&more, &value};
    cudaGraphNode_t decided = add_kernel(body, &counted, (void *)decide, asked);
    cudaGraph_t inside = *add_conditional(body, &decided, more, cudaGraphCondTypeIf, 1);
    add_value(inside, nullptr, sum, 10);
    cudaGraphExec_t exec = instantiate(graph);
    for (int rounds = 1; rounds < 5; rounds++) {
        *left = rounds, *sum = 0;
        launch(exec);
        CHECK(*left == 0 && *sum == 10 * (rounds - 1));
    }
    // Its numbers are one for all who run it: there is one of it.
    cudaGraph_t copy, outside;
    cudaGraphNode_t child;
    OK(cudaGraphCreate(&outside, 0));
    CHECK(cudaGraphClone(&copy, graph) != cudaSuccess);
    CHECK(cudaGraphAddChildGraphNode(&child, outside, nullptr, 0, graph) != cudaSuccess);
    CHECK(cudaGetLastError() != cudaSuccess); // and it is forgotten
    OK(cudaGraphDestroy(outside));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(left));
    OK(cudaFree(sum));
}

// The graph inside is captured from a stream.
static void captured() {
    int *left;
    OK(cudaMallocManaged(&left, sizeof *left));
    cudaGraph_t graph;
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle again;
    OK(cudaGraphConditionalHandleCreate(&again, graph, 1, cudaGraphCondAssignDefault));
    cudaGraph_t body = *add_conditional(graph, nullptr, again, cudaGraphCondTypeWhile, 1);
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed));
    countdown<<<1, 1, 0, stream>>>(again, left);
    LAUNCHED();
    cudaGraph_t same;
    OK(cudaStreamEndCapture(stream, &same));
    cudaGraphExec_t exec = instantiate(graph);
    *left = 100;
    launch(exec);
    CHECK(*left == 0);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(left));
}

// What is no conditional node.
static void refused() {
    cudaGraph_t graph;
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle handle;
    OK(cudaGraphConditionalHandleCreate(&handle, graph));
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = cudaGraphCondTypeWhile;
    params.conditional.size = 2;
    cudaGraphNode_t node;
    EXPECT(cudaErrorInvalidValue, cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
    // A handle that no node has.
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess);
    // A handle for two nodes.
    params.conditional.size = 1;
    OK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
    CHECK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params) != cudaSuccess);
    OK(cudaGraphDestroy(graph));
}

int main() {
    branches(cudaGraphCondTypeIf, 1);
    branches(cudaGraphCondTypeIf, 2);
    branches(cudaGraphCondTypeSwitch, 3);
    loop();
    captured();
    refused();
    return pass();
}
