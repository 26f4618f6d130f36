// Blocks that wait for each other: cooperative launches.
#include "common.h"
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

KERNEL grid_sync(u32 *data, u32 rounds) {
    auto grid = cg::this_grid();
    u32 i = (u32)grid.thread_rank(), n = (u32)grid.size();
    for (u32 r = 0; r < rounds; r++) {
        u32 *from = data + (r & 1) * n, *to = data + (~r & 1) * n;
        to[i] = from[(i + 97) % n] + r;
        grid.sync();
    }
}
KERNEL grid_facts(u32 *out) {
    auto grid = cg::this_grid();
    auto block = cg::this_thread_block();
    u32 *o = out + grid.thread_rank() * 4;
    o[0] = grid.is_valid();
    o[1] = (u32)grid.num_blocks();
    o[2] = (u32)grid.block_rank();
    o[3] = block.thread_rank();
    grid.sync();
}
// Sums in a tree: blocks, then one block.
KERNEL grid_sum(const u32 *in, u32 n, u32 *partial, u32 *out) {
    __shared__ u32 tile[128];
    auto grid = cg::this_grid();
    u32 i = threadIdx.x, sum = 0;
    for (u32 j = (u32)grid.thread_rank(); j < n; j += (u32)grid.size()) sum += in[j];
    tile[i] = sum;
    for (u32 d = 64; d; d /= 2) {
        __syncthreads();
        if (i < d) tile[i] += tile[i + d];
    }
    if (i == 0) partial[blockIdx.x] = tile[0];
    grid.sync();
    if (grid.thread_rank() == 0) {
        u32 total = 0;
        for (u32 b = 0; b < gridDim.x; b++) total += partial[b];
        *out = total;
    }
}
