// Device printf reaches the program's stdout, whole lines and all of them, at a synchronisation.
#include "check.h"
#include <string>

__global__ void greet(int base) { printf("hello %d %s %.2f %c\n", base + (int)threadIdx.x, "device", 0.25 * threadIdx.x, 'a' + threadIdx.x); }

int main() {
    // stdout goes to a file for a while, to see what arrives there.
    char path[] = "/tmp/bulkhead-printf-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0);
    fflush(stdout);
    int terminal = dup(1);
    dup2(file, 1);
    greet<<<1, 3>>>(10);
    cudaError_t launched = cudaGetLastError(), done = cudaDeviceSynchronize();
    fflush(stdout);
    dup2(terminal, 1);
    OK(launched);
    OK(done);
    std::string text(4096, 0);
    ssize_t length = pread(file, &text[0], text.size(), 0);
    unlink(path);
    CHECK(length > 0);
    text.resize(length);
    for (int i = 0; i < 3; i++) {
        char line[64];
        snprintf(line, sizeof line, "hello %d device %.2f %c\n", 10 + i, 0.25 * i, 'a' + i);
        CHECK(text.find(line) != std::string::npos);
    }
    return pass();
}
