// Variables of a module: __device__ and __constant__, with initial values, copied to and from by name.
// runtimes: all
// nvcc: --compress-mode=none
#include "check.h"

__device__ int counter = 7;
__device__ float table[4] = {1.5f, 2.5f, 3.5f, 4.5f};
__constant__ int scale = 10;
__constant__ unsigned words[256];
__device__ double zeroed[100];

__global__ void use(int *out) {
    int i = threadIdx.x;
    out[i] = (int)(words[i] & 0xff) * scale + (int)(table[i & 3] * 2) + (zeroed[i % 100] == 0.0 ? 0 : 1 << 20);
    atomicAdd(&counter, 1);
}

int main() {
    unsigned host[256];
    for (int i = 0; i < 256; i++) host[i] = pattern(i);
    OK(cudaMemcpyToSymbol(words, host, sizeof host));
    int *out, back[256], number = 0;
    OK(cudaMalloc(&out, sizeof back));
    use<<<1, 256>>>(out);
    LAUNCHED();
    OK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 256; i++) CHECK(back[i] == (int)(host[i] & 0xff) * 10 + 3 + 2 * (i & 3));
    OK(cudaMemcpyFromSymbol(&number, counter, sizeof number));
    CHECK(number == 7 + 256);

    int three = 3;
    float late = 100.0f;
    OK(cudaMemcpyToSymbol(scale, &three, sizeof three));
    OK(cudaMemcpyToSymbol(table, &late, sizeof late, 2 * sizeof(float)));
    use<<<1, 256>>>(out);
    OK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 256; i++) CHECK(back[i] == (int)(host[i] & 0xff) * 3 + ((i & 3) == 2 ? 200 : 3 + 2 * (i & 3)));

    // The address of a variable is an ordinary device pointer.
    void *address = nullptr;
    size_t size = 0;
    OK(cudaGetSymbolAddress(&address, counter));
    OK(cudaGetSymbolSize(&size, zeroed));
    CHECK(size == sizeof zeroed);
    OK(cudaMemcpy(&number, address, sizeof number, cudaMemcpyDeviceToHost));
    CHECK(number == 7 + 512);
    OK(cudaFree(out));
    return pass();
}
