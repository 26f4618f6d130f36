// Small blocks up to the brim: a program that has allocated and freed in loops can still have all that its zone may have, and
// all of it comes back.
// memory: 256MiB
#include "check.h"

static size_t left() {
    size_t now = 0, total = 0;
    OK(cudaMemGetInfo(&now, &total));
    return now;
}

int main() {
    const size_t mebi = 1 << 20;
    void *block;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 40; i++) {
            OK(cudaMalloc(&block, 1000 << i % 3));
            OK(cudaFree(block));
        }
        size_t before = left();
        std::vector<void *> held;
        // All but some mebibytes at once, then in smaller and smaller pieces.
        size_t had = 0, made = 0;
        for (size_t bytes = before > 32 * mebi ? before - 32 * mebi : before; bytes >= 512;) {
            cudaError_t error = cudaMalloc(&block, bytes);
            if (error == cudaSuccess) {
                held.push_back(block);
                had += bytes;
                if (++made % 64 == 0 && bytes < 128 << 10) {
                    // What a program frees on the way can be had again.
                    OK(cudaFree(held.back()));
                    held.pop_back();
                    had -= bytes;
                }
            } else {
                CHECK(error == cudaErrorMemoryAllocation);
                cudaGetLastError();
                bytes /= 2;
            }
        }
        // Of the units that memory is mapped in, some may be missing.
        CHECK(had + 16 * mebi >= before && left() < 16 * mebi);
        for (void *each : held) OK(cudaFree(each));
        CHECK(left() + 16 * mebi >= before);
    }
    return pass();
}
