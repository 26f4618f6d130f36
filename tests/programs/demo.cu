// What `cargo xtask demo` runs in two zones at once: each sees a GPU with its own memory, gets right results from it,
// and runs out of memory at its own limit only. The argument is the limit in MiB; it holds memory until stdin ends, so
// that both zones hold theirs at the same time.
// runs: by hand
#include "check.h"

__global__ void add(const float *a, const float *b, float *sum, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] = a[i] + b[i];
}

__global__ void total_of(const float *in, int n, double *total) {
    __shared__ double partial[256];
    double mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) mine += in[i];
    partial[threadIdx.x] = mine;
    __syncthreads();
    for (int width = blockDim.x / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) partial[threadIdx.x] += partial[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(total, partial[0]);
}

int main(int count, char **argument) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    cudaDeviceProp device;
    size_t free = 0, total = 0;
    OK(cudaGetDeviceProperties(&device, 0));
    OK(cudaMemGetInfo(&free, &total));
    printf("device            %s\n", device.name);
    printf("memory I see      %zu MiB\n", total >> 20);
    if (count > 1) CHECK(total >> 20 == strtoull(argument[1], nullptr, 10));

    const int n = 1 << 20;
    std::vector<float> a(n), b(n), sum(n);
    double expected = 0, result = 0, *dtotal;
    for (int i = 0; i < n; i++) {
        a[i] = i % 100;
        b[i] = 1;
        expected += a[i] + b[i];
    }
    float *da, *db, *dsum;
    OK(cudaMalloc(&da, n * sizeof(float)));
    OK(cudaMalloc(&db, n * sizeof(float)));
    OK(cudaMalloc(&dsum, n * sizeof(float)));
    OK(cudaMalloc(&dtotal, sizeof(double)));
    OK(cudaMemcpy(da, a.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(db, b.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    OK(cudaMemset(dtotal, 0, sizeof(double)));
    add<<<(n + 255) / 256, 256>>>(da, db, dsum, n);
    total_of<<<64, 256>>>(dsum, n, dtotal);
    LAUNCHED();
    OK(cudaMemcpy(sum.data(), dsum, n * sizeof(float), cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&result, dtotal, sizeof result, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) CHECK(sum[i] == a[i] + b[i]);
    printf("vector addition   %d sums, all right\n", n);
    printf("reduction         %.0f, expected %.0f\n", result, expected);
    CHECK(result == expected);

    void *block = nullptr;
    size_t held = 0;
    while (cudaMalloc(&block, 32 << 20) == cudaSuccess) held += 32 << 20;
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(held < total);
    if (count > 1) CHECK(held + (96 << 20) >= total);
    printf("memory I can get  %zu MiB, then: %s\n", held >> 20, cudaGetErrorString(cudaErrorMemoryAllocation));
    while (getchar() != EOF) {
    }
    return pass();
}
