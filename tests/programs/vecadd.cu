// Vector addition through the runtime API: the first thing everybody runs.
// runtimes: all
#include "check.h"

__global__ void add(const float *a, const float *b, float *sum, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] = a[i] + b[i];
}

static void add_vectors(int n) {
    std::vector<float> a(n), b(n), sum(n, -1.0f);
    for (int i = 0; i < n; i++) {
        a[i] = 0.5f * i;
        b[i] = 3.0f - i;
    }
    size_t bytes = n * sizeof(float);
    float *da, *db, *dsum;
    OK(cudaMalloc(&da, bytes));
    OK(cudaMalloc(&db, bytes));
    OK(cudaMalloc(&dsum, bytes));
    OK(cudaMemcpy(da, a.data(), bytes, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice));
    add<<<(n + 255) / 256, 256>>>(da, db, dsum, n);
    LAUNCHED();
    OK(cudaMemcpy(sum.data(), dsum, bytes, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) CHECK(sum[i] == a[i] + b[i]);
    OK(cudaFree(da));
    OK(cudaFree(db));
    OK(cudaFree(dsum));
}

int main() {
    int devices = 0;
    OK(cudaGetDeviceCount(&devices));
    CHECK(devices >= 1);
    for (int n : {1, 255, 256, 1000, 1 << 20}) add_vectors(n);
    OK(cudaDeviceSynchronize());
    return pass();
}
