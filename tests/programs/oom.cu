// The zone's limit is what the device seems to have: below it allocations work, above it they fail, and memory that was
// freed can be had again.
// memory: 1GiB
// args: 1073741824
#include "check.h"

int main(int count, char **argument) {
    size_t free_at_first = 0, total = 0, free_now = 0, again = 0;
    OK(cudaMemGetInfo(&free_at_first, &total));
    printf("total %zu MiB, free %zu MiB\n", total >> 20, free_at_first >> 20);
    if (count > 1) CHECK(total == strtoull(argument[1], nullptr, 10));
    CHECK(free_at_first <= total);

    void *block = nullptr;
    EXPECT(cudaErrorMemoryAllocation, cudaMalloc(&block, total + 1));
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    EXPECT(cudaErrorMemoryAllocation, cudaMalloc(&block, free_at_first + (64 << 20)));
    cudaGetLastError();

    // In pieces, until it is full: most of what was free can be had, and not more than was free.
    const size_t piece = free_at_first > (8ull << 30) ? 1ull << 30 : 16 << 20;
    for (int round = 0; round < 2; round++) {
        std::vector<void *> pieces;
        cudaError_t error;
        while ((error = cudaMalloc(&block, piece)) == cudaSuccess) pieces.push_back(block);
        CHECK(error == cudaErrorMemoryAllocation);
        cudaGetLastError();
        size_t had = pieces.size() * piece;
        CHECK(had <= total && had + 4 * piece >= free_at_first);
        OK(cudaMemGetInfo(&free_now, &again));
        CHECK(again == total && free_now < 4 * piece);
        OK(cudaMemset(pieces.back(), 1, piece)); // what was given is really there
        OK(cudaDeviceSynchronize());
        for (void *held : pieces) OK(cudaFree(held));
    }
    OK(cudaMemGetInfo(&free_now, &again));
    CHECK(free_now + piece >= free_at_first);
    return pass();
}
