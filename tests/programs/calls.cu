// What single calls cost the program: one line for each, in microseconds or GB/s. bench/gpu/run.py compares it with the
// native driver; here it only has to come through.
// args: 50
#include "check.h"
#include <chrono>
#include <cstring>

using Clock = std::chrono::steady_clock;

__global__ void nothing() {}

/// Microseconds that one of `count` calls takes.
template <class Call> static double each(int count, Call call) {
    auto start = Clock::now();
    for (int i = 0; i < count; i++) call();
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / count;
}

static void row(const char *name, double value) { printf("%s\t%.3f\n", name, value); }

static void copies(const char *kind, char *host, size_t bytes, int rounds) {
    char *device, name[64];
    OK(cudaMalloc(&device, bytes));
    OK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    double there = each(rounds, [&] { OK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice)); OK(cudaDeviceSynchronize()); });
    double back = each(rounds, [&] { OK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost)); });
    snprintf(name, sizeof name, "%s copy to the device GB/s", kind);
    row(name, bytes / there / 1e3);
    snprintf(name, sizeof name, "%s copy from the device GB/s", kind);
    row(name, bytes / back / 1e3);
    OK(cudaFree(device));
}

int main(int argc, char **argv) {
    // The argument says how long it may take: 1000 is for a GPU.
    const int scale = argc > 1 ? atoi(argv[1]) : 1000;
    const size_t bytes = (size_t)scale * 512 * 1024;
    nothing<<<1, 1>>>();
    OK(cudaDeviceSynchronize());
    row("launch, burst of 500 us", each(500, [] { nothing<<<1, 1>>>(); }));
    OK(cudaDeviceSynchronize());
    double issue = 0;
    double through = each(1, [&] {
        issue = each(20 * scale, [] { nothing<<<1, 1>>>(); });
        OK(cudaDeviceSynchronize());
    });
    row("launch, many: issue us", issue);
    row("launch, many: throughput us", through / (20 * scale));
    row("launch and synchronize us", each(2 * scale, [] { nothing<<<1, 1>>>(); OK(cudaDeviceSynchronize()); }));
    row("allocate and free 1 MiB us", each(scale, [] { void *p; OK(cudaMalloc(&p, 1 << 20)); OK(cudaFree(p)); }));
    int value = 1, *there;
    OK(cudaMalloc(&there, sizeof value));
    row("copy 4 bytes to the device us", each(2 * scale, [&] { OK(cudaMemcpy(there, &value, 4, cudaMemcpyHostToDevice)); }));
    OK(cudaDeviceSynchronize());
    row("copy 4 bytes from the device us", each(2 * scale, [&] { OK(cudaMemcpy(&value, there, 4, cudaMemcpyDeviceToHost)); }));
    std::vector<char> pageable(bytes, 1);
    copies("pageable", pageable.data(), bytes, 3);
    char *pinned;
    OK(cudaMallocHost(&pinned, bytes));
    memset(pinned, 1, bytes);
    copies("pinned", pinned, bytes, 3);
    return pass();
}
