// Graphs: captured and made by hand, launched again and again, updated, inside each other, with host functions.
#include "check.h"

__global__ void add(float *out, const float *a, const float *b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}

__global__ void scale(float *data, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] *= factor;
}

__global__ void sum(const float *in, float *out, int n) {
    __shared__ float part[256];
    float own = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) own += in[i];
    part[threadIdx.x] = own;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) *out = part[0];
}

const int n = 10000, block = 256, grid = (n + block - 1) / block;

static void CUDART_CB count(void *counter) { ++*(int *)counter; }

// Two branches that meet again, replayed with other input each time: the way frameworks use graphs.
static void replay() {
    cudaStream_t main_stream, side;
    cudaEvent_t fork, join;
    OK(cudaStreamCreateWithFlags(&main_stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    float *input, *a, *b, *out, *host_in, *host_out;
    OK(cudaMalloc(&input, n * sizeof(float)));
    OK(cudaMalloc(&a, n * sizeof(float)));
    OK(cudaMallocHost(&host_in, n * sizeof(float)));
    OK(cudaMallocHost(&host_out, sizeof(float)));

    OK(cudaStreamBeginCapture(main_stream, cudaStreamCaptureModeGlobal));
    // A framework's allocator asks for more memory in the middle of a capture.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    OK(cudaMalloc(&b, n * sizeof(float)));
    OK(cudaMalloc(&out, sizeof(float)));
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    cudaStreamCaptureStatus status;
    unsigned long long id = 0;
    OK(cudaStreamGetCaptureInfo(main_stream, &status, &id));
    CHECK(status == cudaStreamCaptureStatusActive && id != 0);
    OK(cudaMemcpyAsync(input, host_in, n * sizeof(float), cudaMemcpyHostToDevice, main_stream));
    OK(cudaEventRecord(fork, main_stream));
    OK(cudaStreamWaitEvent(side, fork, 0));
    OK(cudaMemcpyAsync(b, input, n * sizeof(float), cudaMemcpyDeviceToDevice, side));
    scale<<<grid, block, 0, side>>>(b, 3.0f, n);
    OK(cudaMemsetAsync(a, 0, n * sizeof(float), main_stream));
    add<<<grid, block, 0, main_stream>>>(a, a, input, n);
    OK(cudaEventRecord(join, side));
    OK(cudaStreamWaitEvent(main_stream, join, 0));
    add<<<grid, block, 0, main_stream>>>(a, a, b, n);
    sum<<<1, block, 0, main_stream>>>(a, out, n);
    LAUNCHED();
    OK(cudaMemcpyAsync(host_out, out, sizeof(float), cudaMemcpyDeviceToHost, main_stream));
    cudaGraph_t graph;
    OK(cudaStreamEndCapture(main_stream, &graph));
    size_t nodes = 0;
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == 8);
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphUpload(exec, main_stream));
    for (int round = 1; round <= 20; round++) {
        for (int i = 0; i < n; i++) host_in[i] = (float)(i % 7 == 0 ? round : 0);
        OK(cudaGraphLaunch(exec, main_stream));
        OK(cudaStreamSynchronize(main_stream));
        float wanted = 0;
        for (int i = 0; i < n; i++) wanted += 4 * host_in[i];
        CHECK(*host_out == wanted);
    }
    // Many launches without waiting.
    for (int round = 0; round < 200; round++) OK(cudaGraphLaunch(exec, main_stream));
    OK(cudaStreamSynchronize(main_stream));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaFree(b));
    OK(cudaFree(out));
}

// A new capture in each round, taken over by the executable graph of the first.
static void update() {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    float *data, *host;
    OK(cudaMalloc(&data, n * sizeof(float)));
    OK(cudaMallocHost(&host, n * sizeof(float)));
    cudaGraphExec_t exec = nullptr;
    for (int round = 1; round <= 10; round++) {
        cudaGraph_t graph;
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        OK(cudaMemcpyAsync(data, host, n * sizeof(float), cudaMemcpyHostToDevice, stream));
        scale<<<grid, block, 0, stream>>>(data, (float)round, n);
        LAUNCHED();
        OK(cudaMemcpyAsync(host, data, n * sizeof(float), cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamEndCapture(stream, &graph));
        if (!exec) {
            OK(cudaGraphInstantiate(&exec, graph, 0));
        } else {
            cudaGraphExecUpdateResultInfo info;
            OK(cudaGraphExecUpdate(exec, graph, &info));
            CHECK(info.result == cudaGraphExecUpdateSuccess);
        }
        OK(cudaGraphDestroy(graph));
        for (int i = 0; i < n; i++) host[i] = (float)i;
        OK(cudaGraphLaunch(exec, stream));
        OK(cudaStreamSynchronize(stream));
        for (int i = 0; i < n; i++) CHECK(host[i] == (float)i * round);
    }
    OK(cudaGraphExecDestroy(exec));
}

// By hand, with pageable memory at both ends, a graph inside and a host function.
static void by_hand() {
    std::vector<float> input(n, 2.0f);
    float result = 0, factor = 5.0f;
    int calls = 0, count_n = n;
    float *data, *out;
    OK(cudaMalloc(&data, n * sizeof(float)));
    OK(cudaMalloc(&out, sizeof(float)));

    cudaGraph_t inner, graph;
    OK(cudaGraphCreate(&inner, 0));
    cudaGraphNode_t scaled, copied, child, summed, fetched, told;
    void *scale_args[] = {&data, &factor, &count_n};
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)scale;
    kernel.gridDim = dim3(grid);
    kernel.blockDim = dim3(block);
    kernel.kernelParams = scale_args;
    OK(cudaGraphAddKernelNode(&scaled, inner, nullptr, 0, &kernel));

    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemcpyNode1D(&copied, graph, nullptr, 0, data, input.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    OK(cudaGraphAddChildGraphNode(&child, graph, &copied, 1, inner));
    OK(cudaGraphDestroy(inner));
    void *sum_args[] = {&data, &out, &count_n};
    kernel.func = (void *)sum;
    kernel.gridDim = dim3(1);
    kernel.kernelParams = sum_args;
    OK(cudaGraphAddKernelNode(&summed, graph, &child, 1, &kernel));
    OK(cudaGraphAddMemcpyNode1D(&fetched, graph, &summed, 1, &result, out, sizeof(float), cudaMemcpyDeviceToHost));
    cudaHostNodeParams host = {count, &calls};
    OK(cudaGraphAddHostNode(&told, graph, &fetched, 1, &host));

    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    for (int round = 1; round <= 5; round++) {
        input.assign(n, (float)round);
        OK(cudaGraphLaunch(exec, stream));
        OK(cudaStreamSynchronize(stream));
        CHECK(result == 5.0f * round * n);
        CHECK(calls == round);
    }
    // Another kernel argument in the executable graph, and the sum of nothing else.
    int fewer = 100;
    void *fewer_args[] = {&data, &out, &fewer};
    kernel.kernelParams = fewer_args;
    OK(cudaGraphExecKernelNodeSetParams(exec, summed, &kernel));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(result == 5.0f * 5 * 100);
    cudaGraph_t clone;
    OK(cudaGraphClone(&clone, graph));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphInstantiate(&exec, clone, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(result == 5.0f * 5 * n);
    CHECK(calls == 7);
}

// What cannot be captured says so, and the stream is good afterwards.
static void spoilt() {
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream));
    cudaGraph_t graph = nullptr;
    EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    CHECK(graph == nullptr);
    (void)cudaGetLastError();
    OK(cudaStreamSynchronize(stream));
    float *data;
    OK(cudaMalloc(&data, n * sizeof(float)));
    OK(cudaMemsetAsync(data, 0, n * sizeof(float), stream));
    OK(cudaStreamSynchronize(stream));
}

int main() {
    replay();
    update();
    by_hand();
    spoilt();
    OK(cudaDeviceSynchronize());
    return pass();
}
