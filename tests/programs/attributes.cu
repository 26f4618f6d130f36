// What a program asks about the device, its kernels and their occupancy; the answers must fit together.
#include "check.h"

__global__ void __launch_bounds__(128) small(int *out) {
    __shared__ int held[64];
    held[threadIdx.x & 63] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = held[(threadIdx.x + 1) & 63];
}

__global__ void dynamic(int *out) {
    extern __shared__ int held[];
    held[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
}

int main() {
    int device = -1, driver = 0, runtime = 0, value = 0;
    OK(cudaGetDevice(&device));
    CHECK(device == 0);
    OK(cudaDriverGetVersion(&driver));
    OK(cudaRuntimeGetVersion(&runtime));
    CHECK(driver / 1000 >= runtime / 1000);

    cudaDeviceProp properties;
    OK(cudaGetDeviceProperties(&properties, 0));
    CHECK(properties.name[0] != 0 && properties.major >= 5);
    CHECK(properties.warpSize == 32 && properties.maxThreadsPerBlock >= 512);
    CHECK(properties.multiProcessorCount >= 1 && properties.totalGlobalMem > 0);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    CHECK(value == properties.multiProcessorCount);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrUnifiedAddressing, 0));
    CHECK(value == 1);
    EXPECT(cudaErrorInvalidValue, cudaDeviceGetAttribute(&value, (cudaDeviceAttr)99999, 0));
    cudaGetLastError();
    size_t free = 0, total = 0;
    OK(cudaMemGetInfo(&free, &total));
    CHECK(free > 0 && free <= total && total == properties.totalGlobalMem);

    cudaFuncAttributes attributes;
    OK(cudaFuncGetAttributes(&attributes, small));
    CHECK(attributes.sharedSizeBytes == 64 * sizeof(int));
    CHECK(attributes.maxThreadsPerBlock == 128);
    CHECK(attributes.numRegs > 0 && attributes.ptxVersion >= 75);
    EXPECT(cudaErrorInvalidResourceHandle, cudaFuncGetAttributes(&attributes, (const void *)main));
    cudaGetLastError();

    // Occupancy: something fits, more shared memory does not let more blocks in.
    int blocks = 0, fewer = 0, grid = 0, block = 0;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, dynamic, 128, 0));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fewer, dynamic, 128, 40 * 1024));
    CHECK(blocks >= 1 && fewer >= 1 && fewer <= blocks);
    OK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, small));
    CHECK(grid >= 1 && block >= 32 && block <= 128);

    // The launch bound is enforced; the optional shared memory must be asked for, and then works.
    int *out, back[1024];
    OK(cudaMalloc(&out, sizeof back));
    small<<<1, 256>>>(out);
    CHECK(cudaGetLastError() != cudaSuccess);
    small<<<1, 64>>>(out);
    LAUNCHED();
    OK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++) CHECK(back[i] == (i + 1) % 64);
    int optin = (int)properties.sharedMemPerBlockOptin;
    CHECK(optin >= (int)properties.sharedMemPerBlock);
    OK(cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, optin));
    dynamic<<<1, 256, optin>>>(out);
    LAUNCHED();
    OK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 256; i++) CHECK(back[i] == 255 - i);
    EXPECT(cudaErrorInvalidValue, cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, optin + 1));
    cudaGetLastError();
    OK(cudaFree(out));
    return pass();
}
