// Shared memory, barriers, warp shuffles and atomics: reductions that only come out right when all of them work.
// runtimes: all
// nvcc: --compress-mode=speed
#include "check.h"

__global__ void sum_by_tree(const int *in, int n, unsigned long long *total) {
    __shared__ int partial[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    partial[threadIdx.x] = i < n ? in[i] : 0;
    __syncthreads();
    for (int width = blockDim.x / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) partial[threadIdx.x] += partial[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(total, (unsigned long long)partial[0]);
}

__global__ void max_in_dynamic_shared(const int *in, int n, int *result) {
    extern __shared__ int seen[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    seen[threadIdx.x] = i < n ? in[i] : INT_MIN;
    __syncthreads();
    if (threadIdx.x != 0) return;
    int best = INT_MIN;
    for (int t = 0; t < blockDim.x; t++) best = max(best, seen[t]);
    atomicMax(result, best);
}

__global__ void sum_by_shuffle(const int *in, int n, int *total) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int value = i < n ? in[i] : 0;
    for (int lane = 16; lane > 0; lane /= 2) value += __shfl_down_sync(0xffffffff, value, lane);
    if (threadIdx.x % 32 == 0) atomicAdd(total, value);
}

__global__ void histogram(const int *in, int n, int *bins, int *order) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[in[i] & 15], 1);
    // Every thread takes a ticket once: compare-and-swap, exchange and increment must not lose any.
    int expected = *(volatile int *)order;
    while (true) {
        int found = atomicCAS(order, expected, expected + 1);
        if (found == expected) break;
        expected = found;
    }
}

int main() {
    const int n = 100003; // a prime, so that no block is full by accident
    std::vector<int> in(n);
    long long sum = 0;
    int best = INT_MIN, bins[16] = {};
    for (int i = 0; i < n; i++) {
        in[i] = (int)(pattern(i) % 1000);
        sum += in[i];
        best = in[i] > best ? in[i] : best;
        bins[in[i] & 15]++;
    }
    int *din, *dresult, blocks = (n + 255) / 256;
    unsigned long long *dtotal, total = 0;
    OK(cudaMalloc(&din, n * sizeof(int)));
    OK(cudaMalloc(&dresult, 64 * sizeof(int)));
    OK(cudaMalloc(&dtotal, sizeof total));
    OK(cudaMemcpy(din, in.data(), n * sizeof(int), cudaMemcpyHostToDevice));
    OK(cudaMemset(dtotal, 0, sizeof total));
    OK(cudaMemset(dresult, 0, 64 * sizeof(int)));
    sum_by_tree<<<blocks, 256>>>(din, n, dtotal);
    LAUNCHED();
    max_in_dynamic_shared<<<blocks, 256, 256 * sizeof(int)>>>(din, n, dresult);
    LAUNCHED();
    sum_by_shuffle<<<blocks, 256>>>(din, n, dresult + 1);
    LAUNCHED();
    histogram<<<20, 128>>>(din, n, dresult + 16, dresult + 2);
    LAUNCHED();
    int result[64];
    OK(cudaMemcpy(&total, dtotal, sizeof total, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(result, dresult, sizeof result, cudaMemcpyDeviceToHost));
    CHECK(total == (unsigned long long)sum);
    CHECK(result[0] == best);
    CHECK(result[1] == (int)sum);
    CHECK(result[2] == 20 * 128);
    for (int bin = 0; bin < 16; bin++) CHECK(result[16 + bin] == bins[bin]);
    OK(cudaFree(din));
    OK(cudaFree(dresult));
    OK(cudaFree(dtotal));
    return pass();
}
