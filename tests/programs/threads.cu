// Eight host threads, each with a stream and data of its own; and one hand-over from thread to thread.
// runtimes: all
#include "check.h"
#include <atomic>
#include <thread>

__global__ void scale(unsigned *data, int n, unsigned factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] *= factor;
}

static void one_thread(unsigned id) {
    const int n = 20000 + (int)id * 13, rounds = 20;
    std::vector<unsigned> data(n), back(n);
    for (int i = 0; i < n; i++) data[i] = pattern(i, id);
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned factor = 1;
    for (int round = 0; round < rounds; round++) {
        unsigned *device;
        OK(cudaMalloc(&device, n * sizeof(unsigned)));
        OK(cudaMemcpyAsync(device, data.data(), n * sizeof(unsigned), cudaMemcpyHostToDevice, stream));
        factor = 2 * id + 3 + (unsigned)round;
        scale<<<(n + 127) / 128, 128, 0, stream>>>(device, n, factor);
        LAUNCHED();
        OK(cudaMemcpyAsync(back.data(), device, n * sizeof(unsigned), cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        for (int i = 0; i < n; i++) CHECK(back[i] == data[i] * factor);
        OK(cudaFree(device));
    }
    // An error belongs to the thread that made it.
    if (id % 2) CHECK(cudaMalloc((void **)nullptr, 16) == cudaErrorInvalidValue);
    CHECK(cudaGetLastError() == (id % 2 ? cudaErrorInvalidValue : cudaSuccess));
    OK(cudaStreamDestroy(stream));
}

__global__ void step(int *value, int from) {
    if (*value == from) *value = from + 1;
}

// What one thread launched before it let another go comes before what the other launches.
static void hand_over() {
    const int turns = 400;
    int *value, result = 0;
    OK(cudaMalloc(&value, sizeof(int)));
    OK(cudaMemset(value, 0, sizeof(int)));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    std::atomic<int> turn{0};
    auto player = [&](int me) {
        for (int i = me; i < turns; i += 2) {
            while (turn.load(std::memory_order_acquire) != i) std::this_thread::yield();
            step<<<1, 1, 0, stream>>>(value, i);
            turn.store(i + 1, std::memory_order_release);
        }
    };
    std::thread even(player, 0), odd(player, 1);
    even.join();
    odd.join();
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(&result, value, sizeof result, cudaMemcpyDeviceToHost));
    CHECK(result == turns);
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(value));
}

int main() {
    std::vector<std::thread> threads;
    for (unsigned id = 0; id < 8; id++) threads.emplace_back(one_thread, id);
    for (std::thread &thread : threads) thread.join();
    hand_over();
    return pass();
}
