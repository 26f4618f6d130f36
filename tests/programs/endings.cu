// The driver is called when a thread, or the whole process, is already ending: by destructors of thread-specific data and
// by static destructors, as libraries do.
// runtimes: all
#include "check.h"
#include <pthread.h>
#include <thread>

static pthread_key_t key;

static void use() {
    void *memory = nullptr;
    OK(cudaMalloc(&memory, 16));
    OK(cudaMemset(memory, 1, 16));
    OK(cudaFree(memory));
}

// Comes back a few times, so that it also runs after the driver's own thread-specific data has gone.
static void at_thread_end(void *round) {
    use();
    if ((intptr_t)round < 3) pthread_setspecific(key, (void *)((intptr_t)round + 1));
}

struct AtExit {
    ~AtExit() {
        void *memory = nullptr;
        cudaError_t error = cudaMalloc(&memory, 16);
        // The runtime may have shut down before; what must not happen is a crash.
        if (error != cudaSuccess && error != cudaErrorCudartUnloading) fail(__FILE__, __LINE__, "at exit", cudaGetErrorName(error));
    }
};

static AtExit at_exit;

int main() {
    CHECK(pthread_key_create(&key, at_thread_end) == 0);
    OK(cudaFree(nullptr));
    for (int i = 0; i < 4; i++) {
        std::thread([] {
            pthread_setspecific(key, (void *)1);
            use();
        }).join();
    }
    return pass();
}
