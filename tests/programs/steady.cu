// Works on and on: each round computes on memory that it keeps and on memory that it allocates each time, and checks both.
// `steady 0` goes on until it is told to end (SIGTERM).
// args: 20
#include "check.h"

constexpr int COUNT = 1 << 16;

__global__ void add(int *data, int count, int what) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) data[i] += what;
}

static volatile sig_atomic_t ending = 0;

static void check(const int *data, int expected) {
    std::vector<int> back(COUNT);
    OK(cudaMemcpy(back.data(), data, COUNT * sizeof(int), cudaMemcpyDeviceToHost));
    for (int value : back) CHECK(value == expected);
}

int main(int count, char **words) {
    long rounds = count > 1 ? atol(words[1]) : 0;
    signal(SIGTERM, [](int) { ending = 1; });
    int *kept, *fresh, sum = 0;
    OK(cudaMalloc(&kept, COUNT * sizeof(int)));
    OK(cudaMemset(kept, 0, COUNT * sizeof(int)));
    for (int round = 1; !ending && (rounds == 0 || round <= rounds); round++) {
        add<<<COUNT / 256, 256>>>(kept, COUNT, round);
        LAUNCHED();
        sum = (int)((unsigned)sum + (unsigned)round);
        check(kept, sum);
        // More than a chunk, so that the ledger is asked each time.
        OK(cudaMalloc(&fresh, 8 << 20));
        OK(cudaMemset(fresh, 0, COUNT * sizeof(int)));
        add<<<COUNT / 256, 256>>>(fresh, COUNT, 7);
        LAUNCHED();
        check(fresh, 7);
        OK(cudaFree(fresh));
        printf("round %d\n", round);
        fflush(stdout);
        if (rounds == 0) usleep(50000);
    }
    OK(cudaFree(kept));
    return pass();
}
