// Special registers, clocks, printing, fences.
#include "common.h"
#include <cassert>
#include <cstdio>

KERNEL system_places(u32 *out) {
    u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    u32 thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    u32 *o = out + (block * (blockDim.x * blockDim.y * blockDim.z) + thread) * 4;
    o[0] = threadIdx.x | threadIdx.y << 8 | threadIdx.z << 16;
    o[1] = blockIdx.x | blockIdx.y << 8 | blockIdx.z << 16;
    o[2] = blockDim.x | blockDim.y << 8 | blockDim.z << 16;
    o[3] = gridDim.x | gridDim.y << 8 | gridDim.z << 16;
}
KERNEL system_registers(u32 *out) {
    u32 warp, warps, sm, sms;
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
    asm volatile("mov.u32 %0, %%nwarpid;" : "=r"(warps));
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u32 %0, %%nsmid;" : "=r"(sms));
    out[threadIdx.x] = (warp < warps) | (sm < sms) << 1 | (warpSize == 32) << 2;
}
#if __CUDA_ARCH__ >= 700
KERNEL system_clocks(u64 *out) {
    u64 start = clock64(), timer, later;
    u32 low = clock();
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(timer));
    __nanosleep(20000);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(later));
    out[0] = clock64() > start;
    out[1] = later >= timer;
    out[2] = (u32)clock() != low;
    out[3] = timer > 1600000000000000000ull;
}
#endif
KERNEL system_printf(int n, double d, const char *text) {
    printf("thread %d of %u: %s %5.2f %c %lld %x %%\n", threadIdx.x, blockDim.x, "text", d + threadIdx.x, 'z',
           -5000000000ll, n);
    if (threadIdx.x == 1) printf("[%-6d|%06d|%+d|%e|%p]\n", n, n, n, d, (void *)0x1234);
}
KERNEL system_assert(u32 *out, u32 limit) {
    out[threadIdx.x] = 1;
    assert(threadIdx.x < limit);
}
KERNEL system_trap(u32 *out, u32 which) {
    out[threadIdx.x] = 1;
    if (threadIdx.x == which) __trap();
}
// A flag from one block to another, through fences.
KERNEL system_message(u32 *data, volatile u32 *flag, u32 *out) {
    if (blockIdx.x == 0) {
        for (u32 i = threadIdx.x; i < 256; i += blockDim.x) data[i] = i * 3;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) atomicExch((u32 *)flag, 1);
    } else {
        if (threadIdx.x == 0)
            while (*flag == 0) PAUSE(100);
        __syncthreads();
        __threadfence();
        u32 sum = 0;
        for (u32 i = 0; i < 256; i++) sum += ((volatile u32 *)data)[i];
        out[threadIdx.x] = sum;
    }
}
KERNEL system_fences(u32 *out) {
    out[0] = 1;
    __threadfence_block();
    out[1] = 2;
    __threadfence_system();
    asm volatile("fence.sc.gpu;\n\tfence.acq_rel.cta;\n\tmembar.gl;\n\tmembar.sys;\n\tmembar.cta;" ::: "memory");
    out[2] = out[0] + out[1];
}
KERNEL system_null(u32 *out) { *(volatile u32 *)nullptr = out[0]; }
KERNEL system_out_of_bounds(u32 *out, u64 offset) { *(volatile u32 *)((char *)out + offset) = 1; }
KERNEL system_misaligned(u8 *out, u32 by) { *(volatile u32 *)(out + by) = 1; }
__device__ __noinline__ u32 dig(u32 depth, volatile u32 *out) {
    u32 local[64];
    for (u32 i = 0; i < 64; i++) local[i] = out[i & 3] + depth;
    if (depth == 0) return local[out[0] & 63];
    return dig(depth - 1, out) + local[depth & 63];
}
KERNEL system_deep(u32 *out, u32 depth) { out[5] = dig(depth, out); }
KERNEL system_shared_bounds(u32 *out, u32 at) {
    __shared__ volatile u32 tile[16];
    tile[threadIdx.x & 15] = 1;
    out[0] = tile[at];
}
KERNEL system_bad_call(u64 target) { ((void (*)())target)(); }
