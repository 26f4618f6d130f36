// Device printf reaches the program's stdout, whole lines and all of them, at a synchronisation: behind what the host printed
// until then, and before what it prints afterwards, although that lies in a buffer.
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
    setvbuf(stdout, nullptr, _IOFBF, 1 << 16);
    printf("before the launch\n");
    greet<<<1, 3>>>(10);
    printf("after the launch\n");
    cudaError_t launched = cudaGetLastError(), done = cudaDeviceSynchronize();
    printf("after waiting\n");
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
    size_t before = text.find("before the launch"), launch = text.find("after the launch"), hello = text.find("hello"),
           last = text.rfind("hello"), waited = text.find("after waiting");
    CHECK(before < launch && launch < hello && hello <= last && last < waited && waited != std::string::npos);
    return pass();
}
