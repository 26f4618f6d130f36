// Two source files, linked on the device's side too (-rdc=true): without machine code for the GPU at hand, the driver links
// the PTX of both when the program starts.
// runtimes: all
// with: parts/separate.cu
#include "check.h"

extern __device__ int scale;
extern __constant__ int offset;
extern __device__ int step(int value);
typedef int (*Function)(int);
extern __device__ Function chosen;

static __device__ int own = 1; // each file has its own
__global__ void steps(int *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = step(i) * scale + offset + chosen(i) + own;
}

__global__ void elsewhere(int *out);

int main() {
    const int count = 1000;
    int *out, back[count];
    OK(cudaMalloc(&out, sizeof back));
    steps<<<4, 256>>>(out, count);
    LAUNCHED();
    OK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i++) CHECK(back[i] == (i + 5) * 3 + 7 + i * i + 1);

    elsewhere<<<1, 1>>>(out);
    LAUNCHED();
    OK(cudaMemcpy(back, out, sizeof *out, cudaMemcpyDeviceToHost));
    CHECK(back[0] == 3 + 100);
    return pass();
}
