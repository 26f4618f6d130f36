// Wrong arguments fail at once and leave nothing behind; a faulting kernel ends the context for good.
// runtimes: all
#include "check.h"

__global__ void set(int *value, int to) { *value = to; }

static void still_well() {
    int *value, back = 0;
    OK(cudaMalloc(&value, sizeof(int)));
    set<<<1, 1>>>(value, 42);
    LAUNCHED();
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&back, value, sizeof back, cudaMemcpyDeviceToHost));
    CHECK(back == 42);
    OK(cudaFree(value));
}

// The call fails with this error, the runtime remembers it once, and all goes on.
#define REFUSED(error, call)                                                                                           \
    do {                                                                                                               \
        call;                                                                                                          \
        CHECK(cudaPeekAtLastError() == (error));                                                                       \
        CHECK(cudaGetLastError() == (error));                                                                          \
        CHECK(cudaGetLastError() == cudaSuccess);                                                                      \
        OK(cudaDeviceSynchronize());                                                                                   \
    } while (0)

static int fault() {
    int *value;
    OK(cudaMalloc(&value, sizeof(int)));
    set<<<1, 1>>>((int *)0x10, 1); // no memory of ours
    cudaError_t error = cudaDeviceSynchronize();
    CHECK(error == cudaErrorIllegalAddress);
    // Sticky: whatever comes next says the same.
    CHECK(cudaDeviceSynchronize() == error);
    CHECK(cudaMalloc(&value, 16) == error);
    CHECK(cudaMemset(value, 0, 4) == error);
    CHECK(cudaGetLastError() == error); // forgets it in the runtime, but not in the context
    CHECK(cudaDeviceSynchronize() == error);
    return 0;
}

int main() {
    // In a child, before this process uses CUDA; the parent is not touched by it.
    CHECK(in_child(fault) == 0);

    int *value, other = 0, runtime = 0;
    OK(cudaMalloc(&value, sizeof(int)));
    OK(cudaRuntimeGetVersion(&runtime)); // the driver says 1 to them all; runtimes before 13 look closer
    cudaError_t bad_shape = runtime >= 13000 ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration;
    REFUSED(bad_shape, (set<<<1, 2048>>>(value, 1)));
    REFUSED(bad_shape, (set<<<0, 1>>>(value, 1)));
    REFUSED(bad_shape, (set<<<1, dim3(1, 1, 65)>>>(value, 1)));
    REFUSED(bad_shape, (set<<<dim3(1, 70000), 1>>>(value, 1)));
    REFUSED(cudaErrorInvalidValue, (set<<<1, 1, 1 << 20>>>(value, 1))); // more shared memory than there is
    still_well();

    void *never;
    REFUSED(cudaErrorMemoryAllocation, cudaMalloc(&never, 1ull << 50));
    still_well();

    REFUSED(cudaErrorInvalidValue, cudaMemcpy(value, nullptr, 4, cudaMemcpyHostToDevice));
    REFUSED(cudaErrorInvalidValue, cudaMemcpy((void *)0x1000, value, 4, cudaMemcpyDeviceToDevice));
    REFUSED(cudaErrorInvalidMemcpyDirection, cudaMemcpy(value, &other, 4, (cudaMemcpyKind)17));
    REFUSED(cudaErrorInvalidValue, cudaMemset(value, 0, 1ull << 40)); // beyond the allocation
    REFUSED(cudaErrorInvalidValue, cudaFree((char *)value + 1));
    REFUSED(cudaErrorInvalidValue, cudaFree(&other));
    REFUSED(cudaErrorInvalidDevice, cudaSetDevice(4711));
    REFUSED(cudaErrorInvalidValue, cudaStreamCreateWithFlags((cudaStream_t *)nullptr, 0));
    still_well();

    OK(cudaFree(value));
    REFUSED(cudaErrorInvalidValue, cudaFree(value)); // twice
    still_well();
    CHECK(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
    CHECK(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
    return pass();
}
