// 512 MiB there and back, from pageable and from pinned memory, with every word checked.
// memory: 2GiB
#include "check.h"
#include <chrono>

static double since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

static unsigned long long checksum(const unsigned long long *words, size_t n) {
    unsigned long long sum = 0;
    for (size_t i = 0; i < n; i++) sum = (sum << 7 | sum >> 57) ^ words[i];
    return sum;
}

static void there_and_back(const char *name, unsigned long long *host, unsigned long long *device, size_t bytes) {
    size_t n = bytes / 8;
    for (size_t i = 0; i < n; i++) host[i] = i * 0x9e3779b97f4a7c15ull;
    unsigned long long before = checksum(host, n);
    auto start = std::chrono::steady_clock::now();
    OK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    double there = since(start);
    memset(host, 0, bytes);
    start = std::chrono::steady_clock::now();
    OK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
    double back = since(start);
    CHECK(checksum(host, n) == before);
    printf("%-8s %6.2f GB/s to the device, %6.2f GB/s back\n", name, bytes / there / 1e9, bytes / back / 1e9);
}

int main() {
    const size_t bytes = 512ull << 20;
    unsigned long long *device, *pinned;
    OK(cudaMalloc(&device, bytes));
    unsigned long long *pageable = (unsigned long long *)malloc(bytes);
    CHECK(pageable != nullptr);
    there_and_back("pageable", pageable, device, bytes);
    free(pageable);
    OK(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault));
    OK(cudaMemset(device, 0xee, bytes));
    there_and_back("pinned", pinned, device, bytes);
    OK(cudaFreeHost(pinned));
    OK(cudaFree(device));
    return pass();
}
