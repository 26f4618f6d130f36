// What sharing costs: opening another process's memory, and copying from it, beside copying from memory of one's own. One
// line for each row, in microseconds or GB/s. bench/gpu/run.py compares it with the native driver; here it only has to come
// through. The other process is this program once more.
// args: 10
#include "check.h"
#include <algorithm>
#include <chrono>

using Clock = std::chrono::steady_clock;

constexpr size_t MIB = 1 << 20;
// A block that shares its pages with others, one mapping, and many.
constexpr size_t SIZES[] = {64 * 1024, 2 * MIB, 256 * MIB};
constexpr int KINDS = sizeof SIZES / sizeof *SIZES;

struct Offer {
    cudaIpcMemHandle_t handles[KINDS];
};

template <class Call> static double micros(Call call) {
    auto start = Clock::now();
    call();
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

static double median(std::vector<double> times) {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
}

static void row(const char *what, size_t bytes, const char *unit, double value) {
    char size[32];
    snprintf(size, sizeof size, bytes < MIB ? "%zu KiB" : "%zu MiB", bytes < MIB ? bytes / 1024 : bytes / MIB);
    printf("%s %s %s\t%.3f\n", what, size, unit, value);
}

static void put(int fd, const void *data, size_t size) { CHECK(write(fd, data, size) == (ssize_t)size); }
static void get(int fd, void *data, size_t size) { CHECK(read(fd, data, size) == (ssize_t)size); }

// Offers memory, and keeps it until the other is done.
static int offer(int in, int out) {
    Offer offer;
    for (int i = 0; i < KINDS; i++) {
        char *memory;
        OK(cudaMalloc(&memory, SIZES[i]));
        OK(cudaMemset(memory, i + 1, SIZES[i]));
        OK(cudaIpcGetMemHandle(&offer.handles[i], memory));
    }
    OK(cudaDeviceSynchronize());
    put(out, &offer, sizeof offer);
    char done;
    get(in, &done, 1);
    return 0;
}

// GB/s of a copy on the device, of which `rounds` go in one batch.
static double copy_rate(char *to, const char *from, size_t bytes, int rounds) {
    std::vector<double> times;
    for (int i = 0; i < 5; i++) {
        times.push_back(micros([&] {
            for (int n = 0; n < rounds; n++) OK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, 0));
            OK(cudaStreamSynchronize(0));
        }));
    }
    return bytes * rounds / median(times) / 1e3;
}

static void measure(const cudaIpcMemHandle_t &handle, int kind, int rounds) {
    size_t bytes = SIZES[kind];
    std::vector<double> opens, closes;
    // Programs have memory of their own as well. In one that has none, the driver makes a page table for each opening.
    char *memory, *own;
    OK(cudaMalloc(&own, MIB));
    for (int i = 0; i < rounds + 2; i++) {
        double open = micros([&] { OK(cudaIpcOpenMemHandle((void **)&memory, handle, cudaIpcMemLazyEnablePeerAccess)); });
        char first = 0;
        OK(cudaMemcpy(&first, memory + bytes - 1, 1, cudaMemcpyDeviceToHost));
        CHECK(first == kind + 1);
        double close = micros([&] { OK(cudaIpcCloseMemHandle(memory)); });
        if (i >= 2) { // the first ones warm up
            opens.push_back(open);
            closes.push_back(close);
        }
    }
    OK(cudaFree(own));
    row("open", bytes, "us", median(opens));
    row("close", bytes, "us", median(closes));
}

static void measure_copies(const cudaIpcMemHandle_t &handle, int kind, int rounds) {
    size_t bytes = SIZES[kind];
    char *imported, *local, *target;
    OK(cudaIpcOpenMemHandle((void **)&imported, handle, cudaIpcMemLazyEnablePeerAccess));
    OK(cudaMalloc(&local, bytes));
    OK(cudaMalloc(&target, bytes));
    OK(cudaMemset(local, 1, bytes));
    copy_rate(target, local, bytes, rounds);
    // In turn, so that neither has the warmer GPU.
    std::vector<double> theirs, ours;
    for (int i = 0; i < 3; i++) {
        theirs.push_back(copy_rate(target, imported, bytes, rounds));
        ours.push_back(copy_rate(target, local, bytes, rounds));
    }
    row("copy from imported memory", bytes, "GB/s", median(theirs));
    row("copy from local memory", bytes, "GB/s", median(ours));
    row("imported beside local", bytes, "ratio", median(theirs) / median(ours));
    OK(cudaFree(local));
    OK(cudaFree(target));
    OK(cudaIpcCloseMemHandle(imported));
}

int main(int count, char **words) {
    if (count == 4) return offer(atoi(words[2]), atoi(words[3]));
    const int scale = count > 1 ? atoi(words[1]) : 1000;
    int there[2], back[2];
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    // Before CUDA is used: a child of a process that uses it has no use for the copy.
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char in[16], out[16];
        snprintf(in, sizeof in, "%d", there[0]);
        snprintf(out, sizeof out, "%d", back[1]);
        close(there[1]);
        close(back[0]);
        execl("/proc/self/exe", words[0], "offer", in, out, nullptr);
        _exit(127);
    }
    close(there[0]);
    close(back[1]);
    Offer offer;
    get(back[0], &offer, sizeof offer);
    for (int kind = 0; kind < KINDS; kind++) measure(offer.handles[kind], kind, std::max(3, scale / 5));
    // Little copies on the software GPU, which copies with the CPU.
    int large = scale >= 1000 ? KINDS - 1 : KINDS - 2;
    measure_copies(offer.handles[large], large, std::max(1, scale / 50));
    char done = 1;
    put(there[1], &done, 1);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return pass();
}
