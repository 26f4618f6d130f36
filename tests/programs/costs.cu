// Does one thing many times, to count what that costs: `costs launches 1000`, `costs pageable 64`, `costs pinned
// 64` (MiB to the device and back), `costs repinned 64` (allocated and freed eight times), `costs nothing 0`.
// runs: by hand
#include "check.h"

__global__ void add(int *sum) { atomicAdd(sum, 1); }

static void copy(char *host, size_t bytes) {
    char *device;
    OK(cudaMalloc(&device, bytes));
    for (size_t i = 0; i < bytes; i += 4096) host[i] = (char)(i >> 12);
    OK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    memset(host, 0, bytes);
    OK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < bytes; i += 4096) CHECK(host[i] == (char)(i >> 12));
    OK(cudaFree(device));
}

int main(int words, char **word) {
    CHECK(words == 3);
    const long count = atol(word[2]);
    int *sum, result = 0;
    OK(cudaMalloc(&sum, sizeof(int)));
    OK(cudaMemset(sum, 0, sizeof(int)));
    // What is done once is done here, whatever follows.
    add<<<1, 1>>>(sum);
    LAUNCHED();
    OK(cudaDeviceSynchronize());
    if (!strcmp(word[1], "launches")) {
        for (long i = 0; i < count; i++) add<<<1, 1>>>(sum);
        LAUNCHED();
        OK(cudaDeviceSynchronize());
        OK(cudaMemcpy(&result, sum, sizeof(int), cudaMemcpyDeviceToHost));
        CHECK(result == count + 1);
    } else if (!strcmp(word[1], "pageable")) {
        std::vector<char> host((size_t)count << 20);
        copy(host.data(), host.size());
    } else if (!strcmp(word[1], "pinned")) {
        char *host;
        OK(cudaMallocHost(&host, (size_t)count << 20));
        copy(host, (size_t)count << 20);
        OK(cudaFreeHost(host));
    } else if (!strcmp(word[1], "repinned")) {
        for (int i = 0; i < 8; i++) {
            char *host;
            OK(cudaMallocHost(&host, (size_t)count << 20));
            OK(cudaFreeHost(host));
        }
    }
    return pass();
}
