// nvcc: -arch=compute_80
// Copies that are waited for later, barriers in memory.
#include "common.h"
#if __CUDA_ARCH__ >= 700
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
namespace cg = cooperative_groups;

KERNEL async_copies(const u32 *in, u32 *out) {
    __shared__ __align__(16) u32 tile[4 * 64];
    u32 i = threadIdx.x;
    u32 at = (u32)__cvta_generic_to_shared(tile);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + i * 16), "l"(in + i * 4) : "memory");
    asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    out[i] = tile[(i * 7) % 256];
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at + i * 4), "l"(in + 63 - i) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(at + 256 + i * 8), "l"(in + i * 2) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    out[64 + i] = tile[i] + tile[64 + i * 2 + 1];
}
// Fewer bytes than asked for: the rest is zero.
KERNEL async_zero_fill(const u32 *in, u32 *out) {
    __shared__ __align__(16) u32 tile[4 * 32];
    u32 i = threadIdx.x, bytes = i % 5 * 4;
    for (int j = 0; j < 4; j++) tile[i * 4 + j] = 0xdeadbeef;
    u32 at = (u32)__cvta_generic_to_shared(tile + i * 4);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(in + i * 4), "r"(bytes) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    for (int j = 0; j < 4; j++) out[i * 4 + j] = tile[i * 4 + j];
}
KERNEL async_pipeline(const float *in, float *out, u32 rounds) {
    __shared__ float tile[2][128];
    auto block = cg::this_thread_block();
    u32 i = threadIdx.x;
    float sum = 0;
    for (u32 r = 0; r < rounds; r++) {
        cg::memcpy_async(block, tile[r & 1], in + r * 128, sizeof(float) * 128);
        cg::wait(block);
        sum += tile[r & 1][127 - i] * (r + 1);
    }
    out[i] = sum;
}
// Two stages, filled ahead of their use.
KERNEL async_stages(const u32 *in, u32 *out, u32 rounds) {
    __shared__ u32 tile[2][64];
    u32 i = threadIdx.x, sum = 0;
    cuda::pipeline<cuda::thread_scope_thread> pipe = cuda::make_pipeline();
    pipe.producer_acquire();
    cuda::memcpy_async(&tile[0][i], in + i, sizeof(u32), pipe);
    pipe.producer_commit();
    for (u32 r = 0; r < rounds; r++) {
        if (r + 1 < rounds) {
            pipe.producer_acquire();
            cuda::memcpy_async(&tile[(r + 1) & 1][i], in + (r + 1) * 64 + i, sizeof(u32), pipe);
            pipe.producer_commit();
            cuda::pipeline_consumer_wait_prior<1>(pipe);
        } else {
            cuda::pipeline_consumer_wait_prior<0>(pipe);
        }
        __syncthreads();
        sum = sum * 3 + tile[r & 1][63 - i];
        __syncthreads();
        pipe.consumer_release();
    }
    out[i] = sum;
}
KERNEL async_barrier(u32 *out) {
    typedef cuda::barrier<cuda::thread_scope_block> Barrier;
    __shared__ Barrier barrier;
    __shared__ u32 cell[96];
    u32 i = threadIdx.x;
    if (i == 0) init(&barrier, blockDim.x);
    __syncthreads();
    cell[i] = i;
    for (u32 round = 0; round < 10; round++) {
        auto token = barrier.arrive();
        barrier.wait(std::move(token));
        u32 next = cell[(i + 1) % 96];
        barrier.arrive_and_wait();
        cell[i] = next + round;
    }
    __syncthreads();
    out[i] = cell[i];
}
// One warp arrives and goes on, the others wait by the parity of the phase.
KERNEL async_barrier_raw(u32 *out) {
    __shared__ u64 barrier;
    __shared__ volatile u32 data[32];
    u32 i = threadIdx.x, at = (u32)__cvta_generic_to_shared(&barrier);
    if (i == 0) asm volatile("mbarrier.init.shared.b64 [%0], 32;" ::"r"(at) : "memory");
    __syncthreads();
    if (i < 32) {
        data[i] = i * 11;
        u64 state;
        asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at) : "memory");
        out[i] = 0;
    } else {
        u32 done = 0;
        while (!done)
            asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
                         : "=r"(done) : "r"(at) : "memory");
        out[i] = data[(i * 5) % 32];
    }
}
#endif
