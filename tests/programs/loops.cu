// Loops as libraries write them: small allocations around every step, many streams, attributes before every launch, kernels
// that run for the first time. One line for each, in microseconds. bench/gpu/run.py compares it with the native driver; here it
// only has to come through, with the right results.
// args: 4
#include "check.h"
#include <chrono>
#include <utility>

using Clock = std::chrono::steady_clock;

/// A kernel for each number, so that there are kernels which were never launched.
template <int Number> __global__ void add(int *value) { atomicAdd(value, Number); }

__global__ void fill(unsigned char *bytes, int count, const unsigned char *with) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) bytes[at] += *with;
}

/// Microseconds that one of `count` calls takes.
template <class Call> static double each(int count, Call call) {
    auto start = Clock::now();
    for (int i = 0; i < count; i++) call(i);
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / count;
}

static void row(const char *name, double value) { printf("%s\t%.3f\n", name, value); }

/// Allocate, copy a byte, launch, synchronize, copy back, free: a step of Thrust or CUB.
static void steps(int count) {
    double time = each(count, [](int i) {
        const int bytes = 256;
        unsigned char *data, *with, one = 1 + i % 7, back[2];
        OK(cudaMalloc(&data, bytes));
        OK(cudaMalloc(&with, 1));
        OK(cudaMemcpy(with, &one, 1, cudaMemcpyHostToDevice));
        fill<<<1, bytes>>>(data, bytes, with);
        OK(cudaDeviceSynchronize());
        OK(cudaMemcpy(back, data + bytes - 2, 2, cudaMemcpyDeviceToHost));
        // New memory reads as zero, however often it was used before.
        CHECK(back[0] == one && back[1] == one);
        OK(cudaFree(with));
        OK(cudaFree(data));
    });
    row("allocate, copy, launch, synchronize, free us", time);
}

/// Many small blocks at once, of several sizes, freed in another order.
static void blocks(int count) {
    std::vector<void *> all(count);
    double time = each(4, [&](int) {
        for (int i = 0; i < count; i++) OK(cudaMalloc(&all[i], 64 << i % 8));
        for (int i = 0; i < count; i += 2) OK(cudaFree(all[i]));
        for (int i = 1; i < count; i += 2) OK(cudaFree(all[i]));
    });
    row("small allocations us", time / count);
}

static void streams(int count) {
    const int many = 16;
    cudaStream_t all[many];
    int *values;
    OK(cudaMalloc(&values, many * sizeof(int)));
    OK(cudaMemset(values, 0, many * sizeof(int)));
    for (auto &stream : all) OK(cudaStreamCreate(&stream));
    double time = each(count, [&](int) {
        for (int i = 0; i < many; i++) add<1><<<1, 1, 0, all[i]>>>(values + i);
        for (auto stream : all) OK(cudaStreamSynchronize(stream));
    });
    row("launch on sixteen streams and wait for each us", time);
    int back[many];
    OK(cudaMemcpy(back, values, sizeof back, cudaMemcpyDeviceToHost));
    for (int value : back) CHECK(value == count);
    for (auto stream : all) OK(cudaStreamDestroy(stream));
    OK(cudaFree(values));
}

/// Libraries ask for attributes and occupancy, and set a limit, before each launch.
static void attributes(int count) {
    int *value, blocks = 0;
    OK(cudaMalloc(&value, sizeof(int)));
    double time = each(count, [&](int) {
        cudaFuncAttributes of;
        OK(cudaFuncGetAttributes(&of, add<2>));
        OK(cudaFuncSetAttribute(add<2>, cudaFuncAttributeMaxDynamicSharedMemorySize, 16 << 10));
        OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add<2>, 128, 0));
        size_t stack;
        OK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
        add<2><<<1, 1, 1024>>>(value);
        CHECK(of.maxThreadsPerBlock >= 128 && blocks > 0);
    });
    row("attributes, occupancy, limit and launch us", time);
    OK(cudaDeviceSynchronize());
    OK(cudaFree(value));
}

template <int... Numbers> static void first(std::integer_sequence<int, Numbers...>) {
    int *value, back, sum = 0;
    OK(cudaMalloc(&value, sizeof(int)));
    OK(cudaMemset(value, 0, sizeof(int)));
    OK(cudaDeviceSynchronize());
    auto start = Clock::now();
    ((add<1000 + Numbers><<<1, 1>>>(value), sum += 1000 + Numbers), ...);
    OK(cudaDeviceSynchronize());
    row("first launch of a kernel us",
        std::chrono::duration<double, std::micro>(Clock::now() - start).count() / sizeof...(Numbers));
    OK(cudaMemcpy(&back, value, sizeof back, cudaMemcpyDeviceToHost));
    CHECK(back == sum);
    OK(cudaFree(value));
}

int main(int argc, char **argv) {
    // The argument says how long it may take: 1000 is for a GPU.
    const int scale = argc > 1 ? atoi(argv[1]) : 1000;
    first(std::make_integer_sequence<int, 32>());
    steps(4 * scale);
    blocks(64);
    streams(scale);
    attributes(4 * scale);
    return pass();
}
