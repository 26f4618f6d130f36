// Exits in the middle of everything: memory, streams and work are left behind, and nothing hangs or crashes.
// runtimes: all
#include "check.h"
#include <thread>

__global__ void busy(unsigned *sink, int rounds) {
    unsigned x = threadIdx.x;
    for (int i = 0; i < rounds; i++) x = x * 1664525u + 1013904223u;
    sink[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

static int leave_a_mess() {
    unsigned *sink;
    void *pinned;
    cudaStream_t stream;
    cudaEvent_t event;
    OK(cudaMalloc(&sink, 4096 * sizeof(unsigned)));
    OK(cudaMallocHost(&pinned, 1 << 20));
    OK(cudaStreamCreate(&stream));
    OK(cudaEventCreate(&event));
    for (int i = 0; i < 20; i++) busy<<<16, 64, 0, stream>>>(sink, 2000);
    LAUNCHED();
    OK(cudaEventRecord(event, stream));
    return 0;
}

int main() {
    // By _exit, by exit with static destructors, from a thread, and by a signal.
    CHECK(in_child([] { return leave_a_mess(); }) == 0);
    CHECK(in_child([] {
              leave_a_mess();
              exit(7);
              return 0;
          }) == 7);
    CHECK(in_child([] {
              std::thread([] {
                  leave_a_mess();
                  exit(8);
              }).join();
              return 0;
          }) == 8);
    CHECK(in_child([] {
              leave_a_mess();
              abort();
              return 0;
          }) == 128 + SIGABRT);
    leave_a_mess();
    return pass(); // and so does this process
}
