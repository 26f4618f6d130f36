// Memory that is allocated and freed in stream order.
// runtimes: all
#include "check.h"

__global__ void fill(unsigned *data, int n, unsigned seed) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = i ^ seed;
}

int main() {
    int supported = 0;
    OK(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0));
    CHECK(supported == 1);
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const int n = 50000;
    std::vector<unsigned> back(n);
    for (unsigned round = 0; round < 30; round++) {
        unsigned *a, *b;
        OK(cudaMallocAsync(&a, n * sizeof(unsigned), stream));
        OK(cudaMallocAsync(&b, n * sizeof(unsigned), stream));
        CHECK(a != b);
        fill<<<(n + 255) / 256, 256, 0, stream>>>(a, n, round);
        LAUNCHED();
        OK(cudaMemcpyAsync(b, a, n * sizeof(unsigned), cudaMemcpyDeviceToDevice, stream));
        OK(cudaFreeAsync(a, stream));
        OK(cudaMemcpyAsync(back.data(), b, n * sizeof(unsigned), cudaMemcpyDeviceToHost, stream));
        OK(cudaFreeAsync(b, stream));
        OK(cudaStreamSynchronize(stream));
        for (unsigned i = 0; i < n; i++) CHECK(back[i] == (i ^ round));
    }
    cudaMemPool_t pool;
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolTrimTo(pool, 0));
    OK(cudaStreamDestroy(stream));
    return pass();
}
