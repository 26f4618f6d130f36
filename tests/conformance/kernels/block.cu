// What the threads of a block do together.
#include "common.h"

KERNEL block_reverse(u32 *data) {
    __shared__ u32 tile[256];
    u32 i = threadIdx.x, *own = data + blockIdx.x * 256;
    tile[i] = own[i];
    __syncthreads();
    own[i] = tile[255 - i];
}
KERNEL block_votes(const u32 *in, u32 *out) {
    u32 v = in[INDEX], *o = out + INDEX * 3;
    o[0] = __syncthreads_count(v & 1);
    o[1] = __syncthreads_and(v > 2);
    o[2] = __syncthreads_or(v > 250);
}
KERNEL block_sum(const u32 *in, u32 *out) {
    __shared__ u32 tile[256];
    u32 i = threadIdx.x;
    tile[i] = in[INDEX];
    for (u32 d = 128; d; d /= 2) {
        __syncthreads();
        if (i < d) tile[i] += tile[i + d];
    }
    if (i == 0) out[blockIdx.x] = tile[0];
}
KERNEL block_scan(const u32 *in, u32 *out) {
    __shared__ u32 tile[2][128];
    u32 i = threadIdx.x, now = 0;
    tile[0][i] = in[INDEX];
    __syncthreads();
    for (u32 d = 1; d < 128; d *= 2) {
        tile[!now][i] = tile[now][i] + (i >= d ? tile[now][i - d] : 0);
        now = !now;
        __syncthreads();
    }
    out[INDEX] = tile[now][i];
}
KERNEL block_sort(u32 *data) {
    __shared__ u32 tile[512];
    u32 i = threadIdx.x;
    tile[i] = data[i];
    for (u32 k = 2; k <= 512; k *= 2)
        for (u32 j = k / 2; j; j /= 2) {
            __syncthreads();
            u32 other = i ^ j;
            if (other > i && (tile[i] > tile[other]) == ((i & k) == 0)) {
                u32 t = tile[i];
                tile[i] = tile[other];
                tile[other] = t;
            }
        }
    __syncthreads();
    data[i] = tile[i];
}
KERNEL block_transpose(const float *in, float *out, u32 n) {
    __shared__ float tile[16][17];
    u32 x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x < n && y < n) tile[threadIdx.y][threadIdx.x] = in[y * n + x];
    __syncthreads();
    x = blockIdx.y * 16 + threadIdx.x;
    y = blockIdx.x * 16 + threadIdx.y;
    if (x < n && y < n) out[y * n + x] = tile[threadIdx.x][threadIdx.y];
}
KERNEL block_matmul(const float *a, const float *b, float *c, u32 n) {
    __shared__ float ta[16][16], tb[16][16];
    u32 x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    float sum = 0;
    for (u32 k = 0; k < n; k += 16) {
        ta[y][x] = a[row * n + k + x];
        tb[y][x] = b[(k + y) * n + column];
        __syncthreads();
        for (u32 j = 0; j < 16; j++) sum += ta[y][j] * tb[j][x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
// One warp fills, the others use: two barriers by name.
KERNEL block_named_barriers(u32 *out) {
    __shared__ u32 buffer[32];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, sum = 0;
    for (u32 round = 0; round < 8; round++) {
        if (warp == 0) {
            if (round) asm volatile("bar.sync 2, 128;" ::: "memory");
            buffer[lane] = round * 100 + lane;
            asm volatile("bar.arrive 1, 128;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 128;" ::: "memory");
            sum += buffer[(lane + warp) % 32];
            if (round < 7) asm volatile("bar.arrive 2, 128;" ::: "memory");
        }
    }
    out[threadIdx.x] = sum;
}
// Halves of the block that wait only for themselves.
KERNEL block_half_barriers(u32 *out) {
    __shared__ u32 tile[128];
    u32 i = threadIdx.x, half = i / 64;
    for (u32 round = 0; round <= half * 5; round++) {
        tile[i] = i + round;
        asm volatile("bar.sync %0, 64;" ::"r"(half + 3) : "memory");
        out[i] = tile[half * 64 + (i + 1) % 64];
        asm volatile("bar.sync %0, 64;" ::"r"(half + 3) : "memory");
    }
}
KERNEL block_barrier_reduce(u32 *out) {
    u32 i = threadIdx.x, count, all;
    asm volatile("{.reg .pred p; setp.gt.u32 p, %1, 9; bar.red.popc.u32 %0, 5, 64, p;}" : "=r"(count) : "r"(i));
    asm volatile("{.reg .pred p, q; setp.lt.u32 p, %1, 64; bar.red.and.pred q, 6, p; selp.u32 %0, 1, 0, q;}"
                 : "=r"(all) : "r"(i));
    out[i] = count * 2 + all;
}
// Threads that have left are not waited for.
KERNEL block_early_exit(u32 *out) {
    __shared__ u32 tile[128];
    u32 i = threadIdx.x;
    tile[i] = 0;
    __syncthreads();
    if (i >= 96) return;
    tile[i] = i;
    __syncthreads();
    out[i] = tile[95 - i];
}
KERNEL block_life(const u8 *in, u8 *out, u32 rounds) {
    __shared__ u8 world[2][32][32];
    u32 x = threadIdx.x, y = threadIdx.y, now = 0;
    world[0][y][x] = in[y * 32 + x];
    for (u32 r = 0; r < rounds; r++) {
        __syncthreads();
        u32 near = 0;
        for (int dy = -1; dy <= 1; dy++)
            for (int dx = -1; dx <= 1; dx++)
                if (dx || dy) near += world[now][(y + dy) & 31][(x + dx) & 31];
        world[!now][y][x] = near == 3 || (near == 2 && world[now][y][x]);
        now = !now;
    }
    out[y * 32 + x] = world[now][y][x];
}
