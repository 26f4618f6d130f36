// nvcc: -arch=compute_80
// What the lanes of a warp do together.
#include "common.h"
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
#define ALL 0xffffffffu

KERNEL warp_shuffles(const u32 *in, u32 *out) {
    u32 i = threadIdx.x, v = in[i], *o = out + i * 10;
    o[0] = __shfl_sync(ALL, v, i * 7);
    o[1] = __shfl_up_sync(ALL, v, 3);
    o[2] = __shfl_down_sync(ALL, v, 5);
    o[3] = __shfl_xor_sync(ALL, v, 17);
    o[4] = __shfl_sync(ALL, v, 2, 8);
    o[5] = __shfl_up_sync(ALL, v, 1, 16);
    o[6] = __shfl_down_sync(ALL, v, 2, 4);
    o[7] = __shfl_xor_sync(ALL, v, 6, 8);
    o[8] = __shfl_xor_sync(ALL, v, 9, 8);
    o[9] = __shfl_sync(ALL, v, (int)i + 40);
}
KERNEL warp_shuffle_predicates(u32 *out) {
    u32 i = threadIdx.x, v;
    asm volatile("{.reg .pred p; shfl.sync.up.b32 %0|p, %1, 4, 0, -1; @!p add.u32 %0, %0, 1000;}" : "=r"(v) : "r"(i));
    out[i * 3] = v;
    asm volatile("{.reg .pred p; shfl.sync.down.b32 %0|p, %1, 4, 31, -1; @!p add.u32 %0, %0, 1000;}" : "=r"(v) : "r"(i));
    out[i * 3 + 1] = v;
    asm volatile("{.reg .pred p; shfl.sync.idx.b32 %0|p, %1, 9, 0x1807, -1; @!p add.u32 %0, %0, 1000;}" : "=r"(v) : "r"(i));
    out[i * 3 + 2] = v;
}
KERNEL warp_shuffle_wide(const u64 *in, u64 *out, const double *din, double *dout) {
    u32 i = threadIdx.x;
    out[i] = __shfl_xor_sync(ALL, (unsigned long long)in[i], 1);
    dout[i] = __shfl_down_sync(ALL, din[i], 16);
}
// Only some of the lanes.
KERNEL warp_shuffle_part(u32 *out) {
    u32 i = threadIdx.x;
    out[i] = 0;
    if (i & 1) out[i] = __shfl_sync(0xaaaaaaaa, i * 10, 31);
    if (i >= 8 && i < 24) out[i] += __shfl_xor_sync(0x00ffff00, i, 4);
}
KERNEL warp_votes(const u32 *in, u32 *out) {
    u32 i = threadIdx.x, v = in[i], *o = out + i * 5;
    o[0] = __all_sync(ALL, v > 3);
    o[1] = __any_sync(ALL, v > 1000);
    o[2] = __ballot_sync(ALL, v & 1);
    o[3] = __uni_sync(ALL, v & 1);
    o[4] = i < 16 ? __ballot_sync(0xffff, v & 2) : __ballot_sync(0xffff0000, v & 4);
}
#if __CUDA_ARCH__ >= 700
KERNEL warp_match(const u32 *in, u32 *out) {
    u32 i = threadIdx.x;
    int same, same_wide;
    out[i * 6] = __match_any_sync(ALL, in[i]);
    out[i * 6 + 1] = __match_any_sync(ALL, (unsigned long long)in[i] << 31 | 5);
    out[i * 6 + 2] = __match_all_sync(ALL, in[i], &same);
    out[i * 6 + 3] = same;
    out[i * 6 + 4] = __match_all_sync(ALL, 7ull << 40, &same_wide);
    out[i * 6 + 5] = same_wide;
}
#endif
#if __CUDA_ARCH__ >= 800
KERNEL warp_redux(const u32 *in, u32 *out) {
    u32 i = threadIdx.x, v = in[i], *o = out + i * 8;
    o[0] = __reduce_add_sync(ALL, v);
    o[1] = __reduce_min_sync(ALL, v);
    o[2] = __reduce_max_sync(ALL, v);
    o[3] = __reduce_min_sync(ALL, (int)v);
    o[4] = __reduce_max_sync(ALL, (int)v);
    o[5] = __reduce_and_sync(ALL, v | 0xf0);
    o[6] = __reduce_or_sync(ALL, v & 0xff);
    o[7] = __reduce_xor_sync(ALL, v);
}
#endif
// Where lanes part, each side sees at most itself; where they meet again, all.
KERNEL warp_active(u32 *out) {
    u32 i = threadIdx.x;
    u32 mask;
    if (i < 10)
        mask = __activemask();
    else
        mask = __activemask() | 0;
    __syncwarp();
    u32 whole = __ballot_sync(ALL, 1);
    out[i * 2] = mask;
    out[i * 2 + 1] = whole;
}
// Lanes hand values on through shared memory; only __syncwarp orders them.
KERNEL warp_sync(u32 *out) {
    __shared__ volatile u32 cell[64];
    u32 i = threadIdx.x, warp = i / 32 * 32;
    cell[i] = i;
    for (int step = 0; step < 20; step++) {
        __syncwarp();
        u32 next = cell[warp + (i + 1) % 32];
        __syncwarp();
        cell[i] = next + step;
    }
    __syncwarp();
    out[i] = cell[i];
}
// One half of the warp waits for what the other half does.
KERNEL warp_producer(u32 *out) {
    __shared__ volatile u32 flag, data;
    if (threadIdx.x == 0) flag = 0, data = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        data = 77;
        __threadfence_block();
        flag = 1;
    } else {
        while (!flag) {
        }
        __threadfence_block();
    }
    __syncwarp();
    out[threadIdx.x] = data;
}
KERNEL warp_sum(const float *in, float *out) {
    float v = in[INDEX];
    for (int d = 16; d; d /= 2) v += __shfl_down_sync(ALL, v, d);
    if (threadIdx.x % 32 == 0) out[INDEX / 32] = v;
}
KERNEL warp_scan(const u32 *in, u32 *out) {
    u32 v = in[INDEX];
    u32 lane = threadIdx.x % 32;
    for (u32 d = 1; d < 32; d *= 2) {
        u32 up = __shfl_up_sync(ALL, v, d);
        if (lane >= d) v += up;
    }
    out[INDEX] = v;
}
#if __CUDA_ARCH__ >= 800
KERNEL warp_short(u32 *out) {
    // The block ends in the middle of its last warp.
    u32 i = threadIdx.x;
    u32 mask = i < 32 ? ALL : (1u << (blockDim.x - 32)) - 1;
    u32 sum = i;
    for (int d = 16; d; d /= 2) {
        u32 other = __shfl_xor_sync(mask, sum, d);
        sum = max(sum, other);
    }
    out[i] = i < 32 ? sum : __reduce_add_sync(mask, 1);
}
#endif
KERNEL warp_divergent_loops(const u32 *in, u32 *out) {
    u32 i = threadIdx.x, sum = 0;
    for (u32 j = 0; j < in[i]; j++) sum += j * j;
    __syncwarp();
    out[i] = sum + __popc(__ballot_sync(ALL, sum & 1));
}
KERNEL warp_tiles(const u32 *in, u32 *out) {
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    auto four = cg::tiled_partition<4>(tile);
    u32 i = block.thread_rank(), v = in[i], *o = out + i * 6;
    o[0] = cg::reduce(tile, v, cg::plus<u32>());
    o[1] = tile.shfl(v, 3) + tile.meta_group_rank();
    o[2] = four.ballot(v & 1);
    o[3] = cg::inclusive_scan(tile, v);
    o[4] = four.shfl_xor(v, 1) + four.size();
    o[5] = tile.any(v > 40) + 2 * tile.all(v > 2) + 4 * tile.thread_rank();
}
// The lanes that took the branch, as a group.
KERNEL warp_coalesced(u32 *counter, u32 *out) {
    u32 i = INDEX;
    out[i] = 0;
    if (i % 3 == 1) {
        auto active = cg::coalesced_threads();
        u32 base = 0;
        if (active.thread_rank() == 0) base = atomicAdd(counter, active.size());
        out[i] = active.shfl(base, 0) + active.thread_rank() + 1;
    }
}
#if __CUDA_ARCH__ >= 700
KERNEL warp_labelled(u32 *out) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    auto group = cg::labeled_partition(warp, threadIdx.x % 5);
    out[threadIdx.x] = group.size() * 100 + group.thread_rank();
}
#endif
KERNEL warp_lane_masks(u32 *out) {
    u32 *o = out + threadIdx.x * 7;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(o[0]));
    asm volatile("mov.u32 %0, %%lanemask_eq;" : "=r"(o[1]));
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(o[2]));
    asm volatile("mov.u32 %0, %%lanemask_le;" : "=r"(o[3]));
    asm volatile("mov.u32 %0, %%lanemask_gt;" : "=r"(o[4]));
    asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(o[5]));
    asm volatile("mov.u32 %0, WARP_SZ;" : "=r"(o[6]));
}
