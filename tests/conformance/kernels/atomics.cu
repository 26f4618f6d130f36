// nvcc: -arch=compute_80
// Atomic operations and reductions, in global and shared memory, in every scope.
#include "common.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Each thread adds to its own set of cells what it found there.
KERNEL atomic_u32(u32 *cells, u32 *seen, const u32 *values) {
    u32 i = INDEX, v = values[i];
    seen[i * 2] = atomicAdd(cells, v);
    atomicSub(cells + 1, v);
    atomicMin(cells + 2, v);
    atomicMax(cells + 3, v);
    atomicAnd(cells + 4, v | 0xffff0000);
    atomicOr(cells + 5, v);
    atomicXor(cells + 6, v);
    seen[i * 2 + 1] = atomicInc(cells + 7, 99);
    atomicDec(cells + 8, 76);
}
KERNEL atomic_s32(s32 *cells, const s32 *values) {
    s32 v = values[INDEX];
    atomicAdd(cells, v);
    atomicMin(cells + 1, v);
    atomicMax(cells + 2, v);
    atomicSub(cells + 3, v);
}
KERNEL atomic_u64(u64 *cells, const u64 *values) {
    typedef unsigned long long ull;
    u64 v = values[INDEX];
    atomicAdd((ull *)cells, v);
    atomicMin((ull *)cells + 1, v);
    atomicMax((ull *)cells + 2, v);
    atomicAnd((ull *)cells + 3, v | 0xff00ff00ff00ff00ull);
    atomicOr((ull *)cells + 4, v);
    atomicXor((ull *)cells + 5, v);
    atomicMin((long long *)cells + 6, (long long)v);
    atomicMax((long long *)cells + 7, (long long)v);
}
#if __CUDA_ARCH__ >= 600
KERNEL atomic_float(float *cells, double *doubles) {
    u32 i = INDEX;
    atomicAdd(cells, (float)i);
    atomicAdd(doubles, i * 0.5);
}
#endif
#if __CUDA_ARCH__ >= 700
KERNEL atomic_half(__half2 *pair, __nv_bfloat162 *bpair, __half *one) {
    atomicAdd(pair, __floats2half2_rn(1.0f, 0.5f));
    atomicAdd(bpair, __floats2bfloat162_rn(1.0f, 2.0f));
    atomicAdd(one, __float2half(0.25f));
}
#endif
// Every value that goes in comes out once.
KERNEL atomic_exchange(u32 *cell, u32 *seen, u64 *wide, u64 *seen_wide) {
    u32 i = INDEX;
    seen[i] = atomicExch(cell, i + 1);
    seen_wide[i] = atomicExch((unsigned long long *)wide, (unsigned long long)(i + 1) << 33);
}
#if __CUDA_ARCH__ >= 700
KERNEL atomic_compare_and_swap(u32 *cells, u16 *narrow, u64 *wide) {
    for (u32 done = 0; !done;) {
        u32 old = *(volatile u32 *)cells;
        done = atomicCAS(cells, old, old * 3 % 65521 + 1) == old;
    }
    for (u32 done = 0; !done;) {
        u16 old = *(volatile u16 *)narrow;
        done = atomicCAS((unsigned short *)narrow, old, (u16)(old + 1)) == old;
    }
    for (u32 done = 0; !done;) {
        u64 old = *(volatile u64 *)wide;
        done = atomicCAS((unsigned long long *)wide, old, old + 0x100000001ull) == old;
    }
}
#endif
#if __CUDA_ARCH__ >= 600
KERNEL atomic_scopes(u32 *cells) {
    atomicAdd_block(cells + 1 + blockIdx.x, 1);
    atomicAdd_system(cells, 1);
    atomicMax_system(cells + 33, INDEX);
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 2;" ::"l"(cells + 34));
    asm volatile("atom.acq_rel.sys.global.or.b32 %0, [%1], %2;" : "=r"(cells[64 + INDEX]) : "l"(cells + 35), "r"(1 << (INDEX & 31)));
}
#endif
KERNEL atomic_reductions(u32 *cells, float *floats, u64 *wide) {
    u32 i = INDEX;
    asm volatile("red.global.add.u32 [%0], %1;" ::"l"(cells), "r"(i));
    asm volatile("red.global.min.s32 [%0], %1;" ::"l"(cells + 1), "r"(-(s32)i));
    asm volatile("red.global.max.u32 [%0], %1;" ::"l"(cells + 2), "r"(i));
    asm volatile("red.global.and.b32 [%0], %1;" ::"l"(cells + 3), "r"(~i));
    asm volatile("red.global.or.b32 [%0], %1;" ::"l"(cells + 4), "r"(i));
    asm volatile("red.global.xor.b32 [%0], %1;" ::"l"(cells + 5), "r"(i));
    asm volatile("red.global.inc.u32 [%0], 10;" ::"l"(cells + 6));
    asm volatile("red.global.dec.u32 [%0], 10;" ::"l"(cells + 7));
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(floats), "f"((float)i));
    asm volatile("red.global.add.u64 [%0], %1;" ::"l"(wide), "l"((u64)i << 20));
}
KERNEL atomic_shared(u32 *out) {
    __shared__ u32 cells[4];
    __shared__ float sum;
    __shared__ unsigned long long wide;
    u32 i = threadIdx.x;
    if (i < 4) cells[i] = i == 1 ? ~0u : 0;
    if (i == 0) sum = 0, wide = 0;
    __syncthreads();
    atomicAdd(&cells[0], i);
    atomicMin(&cells[1], i + 5);
    atomicMax(&cells[2], i);
    atomicCAS(&cells[3], i, i + 1);
    atomicAdd(&sum, 0.5f);
    atomicAdd(&wide, 1ull << 32);
    __syncthreads();
    if (i == 0) {
        u32 *o = out + blockIdx.x * 6;
        for (int j = 0; j < 3; j++) o[j] = cells[j];
        o[3] = cells[3] >= 1;
        o[4] = (u32)sum;
        o[5] = (u32)(wide >> 32);
    }
}
KERNEL atomic_histogram(const u8 *data, u32 n, u32 *bins) {
    __shared__ u32 own[256];
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x) own[i] = 0;
    __syncthreads();
    for (u32 i = INDEX; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[data[i]], 1);
    __syncthreads();
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], own[i]);
}
// The last block to come adds up what all have left.
KERNEL atomic_last_block(const u32 *data, u32 *partial, u32 *ticket, u32 *out) {
    __shared__ u32 last;
    if (threadIdx.x == 0) {
        u32 sum = 0;
        for (u32 i = 0; i < 64; i++) sum += data[blockIdx.x * 64 + i];
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd(ticket, 1) == gridDim.x - 1;
        if (last) {
            u32 total = 0;
            for (u32 i = 0; i < gridDim.x; i++) total += ((volatile u32 *)partial)[i];
            *out = total;
        }
    }
}
// A lock that one thread of each block takes.
KERNEL atomic_lock(u32 *lock, u32 *counter) {
    if (threadIdx.x == 0) {
        for (int round = 0; round < 10; round++) {
            while (atomicCAS(lock, 0, 1) != 0) PAUSE(50);
            __threadfence();
            *(volatile u32 *)counter = *(volatile u32 *)counter + 1;
            __threadfence();
            atomicExch(lock, 0);
        }
    }
}
