// Memory: variables and their initial values, spaces, widths of access, the heap.
#include "common.h"

__constant__ u32 constants[8] = {1, 2, 4, 8, 16, 32, 64, 128};
__constant__ double constant_double = 2.5;
__constant__ u8 constant_bytes[5] = "\x01\x80\xff\x07";
__constant__ u32 settable[16];
__device__ u32 numbers[4] = {10, 20, 30};
__device__ u64 zeros[4];
__device__ float pi = 3.25f;
__device__ u32 *to_numbers = numbers + 2;
__device__ const char *words[3] = {"zero", "one", "twenty"};
struct Node {
    u32 value;
    const Node *next;
};
__device__ const Node tail = {3, nullptr};
__device__ const Node body = {2, &tail};
__device__ Node head = {1, &body};
__device__ u16 shorts[3][2] = {{1, 2}, {3, 4}, {5, 0xffff}};

KERNEL memory_constants(u32 *out) {
    u32 i = threadIdx.x;
    out[i] = constants[i % 8] + (u32)(constant_double * 2) + constant_bytes[i % 5] + settable[i % 16];
}
KERNEL memory_initial_values(u64 *out) {
    out[0] = numbers[0] + numbers[1] * 1000 + numbers[2] * 1000000 + numbers[3];
    out[1] = zeros[0] | zeros[3];
    out[2] = (u64)(pi * 100);
    out[3] = to_numbers[0];
    u64 letters = 0;
    for (int i = 0; i < 3; i++)
        for (const char *c = words[i]; *c; c++) letters = letters * 31 + *c;
    out[4] = letters;
    u64 sum = 0;
    for (const Node *n = &head; n; n = n->next) sum = sum * 10 + n->value;
    out[5] = sum;
    out[6] = shorts[2][1] * 100000ull + shorts[1][0];
}
KERNEL memory_variables_last(u32 add) {
    numbers[3] += add;
    zeros[1] += threadIdx.x;
}
#define COPY(name, T) MAP1(name, T, T, 1, o[0] = a;)
COPY(memory_copy_u8, uchar1)
COPY(memory_copy_v2_u8, uchar2)
COPY(memory_copy_v4_u8, uchar4)
COPY(memory_copy_v2_u16, ushort2)
COPY(memory_copy_v4_u16, ushort4)
COPY(memory_copy_v2_u32, uint2)
COPY(memory_copy_v4_u32, uint4)
COPY(memory_copy_v2_u64, ulonglong2)
COPY(memory_copy_v4_f32, float4)
COPY(memory_copy_v2_f64, double2)
MAP1(memory_swizzle, uint4, u32, 4, o[0] = a.w; o[1] = a.z + a.x; o[2] = a.y; o[3] = a.x;)
// Loads and stores with every hint about caches.
KERNEL memory_hints(const u32 *in, u32 *out) {
    u32 i = threadIdx.x, r = 0, v;
    asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(v) : "l"(in + i)); r += v;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(in + i)); r += v;
    asm volatile("ld.global.cs.u32 %0, [%1];" : "=r"(v) : "l"(in + i)); r += v;
    asm volatile("ld.global.cv.u32 %0, [%1];" : "=r"(v) : "l"(in + i)); r += v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(in + i)); r += v;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(in + i)); r += v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(in + i)); r += v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(in + i)); r += v;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(in + i));
    asm volatile("st.global.wb.u32 [%0], %1;" ::"l"(out + i), "r"(r));
    asm volatile("st.global.cg.u32 [%0], %1;" ::"l"(out + i + 32), "r"(r + 1));
    asm volatile("st.global.wt.u32 [%0], %1;" ::"l"(out + i + 64), "r"(r + 2));
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(out + i + 96), "r"(r + 3));
    asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(out + i + 128), "r"(r + 4));
}
// Narrow loads into wide registers.
KERNEL memory_extend(const u8 *in, s64 *out) {
    u32 i = threadIdx.x;
    out[i * 4] = ((const s8 *)in)[i];
    out[i * 4 + 1] = in[i];
    out[i * 4 + 2] = *(const s16 *)(in + i * 2);
    s64 wide;
    asm volatile("ld.global.s32 %0, [%1];" : "=l"(wide) : "l"(in + i * 4));
    out[i * 4 + 3] = wide;
}
KERNEL memory_static_shared(const u32 *in, u32 *out) {
    __shared__ u32 tile[64];
    __shared__ u8 bytes[64];
    u32 i = threadIdx.x;
    tile[i] = in[i];
    bytes[63 - i] = (u8)in[i];
    __syncthreads();
    out[i] = tile[63 - i] * 256 + bytes[i];
}
extern __shared__ u64 dynamic[];
KERNEL memory_dynamic_shared(u64 *out, u32 count) {
    __shared__ u32 before[3];
    u32 i = threadIdx.x;
    if (i < 3) before[i] = 7;
    for (u32 j = i; j < count; j += blockDim.x) dynamic[j] = j * j;
    __syncthreads();
    u32 size, total;
    asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size));
    asm volatile("mov.u32 %0, %%total_smem_size;" : "=r"(total));
    u64 sum = 0;
    for (u32 j = 0; j < count; j++) sum += dynamic[j];
    out[i] = sum + before[0];
    if (i == 0) out[blockDim.x] = size, out[blockDim.x + 1] = total >= size + 12;
}
__device__ __noinline__ u32 sum_of(const u32 *p, int count) {
    u32 sum = 0;
    for (int i = 0; i < count; i++) sum = sum * 3 + p[i];
    return sum;
}
// One function, pointers to every space.
KERNEL memory_generic(const u32 *in, u32 *out) {
    __shared__ u32 shared[8];
    u32 local[8];
    u32 i = threadIdx.x;
    for (int j = 0; j < 8; j++) local[(j * 3) % 8] = in[j] + i;
    if (i < 8) shared[i] = in[i] * 2;
    __syncthreads();
    out[i * 4] = sum_of(in, 8);
    out[i * 4 + 1] = sum_of(shared, 8);
    out[i * 4 + 2] = sum_of(local, 8);
    out[i * 4 + 3] = sum_of(constants, 8);
}
KERNEL memory_which_space(u32 *global, u32 *out) {
    __shared__ u32 shared;
    u32 local[4];
    local[threadIdx.x & 3] = 1;
    const void *pointers[4] = {global, &shared, local, &constants[0]};
    for (int i = 0; i < 4; i++) {
        const void *p = pointers[(i + threadIdx.x) % 4 == i ? i : i];
        out[i] = __isGlobal(p) | __isShared(p) << 1 | __isLocal(p) << 2;
    }
    shared = 5;
    u32 offset = (u32)__cvta_generic_to_shared(&shared);
    u32 back;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(back) : "r"(offset));
    out[4] = back;
    out[5] = *(u32 *)__cvta_shared_to_generic(offset);
}
struct __align__(4) Packed {
    u8 kind;
    u16 size : 12, flags : 4;
    s32 value : 20;
    s32 rest : 12;
};
MAP1(memory_bit_fields, u64, s64, 4, Packed p; p.kind = (u8)a; p.size = a >> 8; p.flags = a >> 20; p.value = a >> 24;
     p.rest = a >> 44; volatile Packed q = *(Packed *)&p; o[0] = q.kind; o[1] = q.size | q.flags << 16; o[2] = q.value;
     o[3] = q.rest;)
// The heap of the device.
KERNEL memory_heap(u32 *out) {
    u32 i = threadIdx.x;
    u32 *block = (u32 *)malloc(sizeof(u32) * (i + 1));
    if (!block) {
        out[i] = 0;
        return;
    }
    for (u32 j = 0; j <= i; j++) block[j] = j + i;
    __syncthreads();
    u32 sum = 0;
    for (u32 j = 0; j <= i; j++) sum += block[j];
    free(block);
    out[i] = sum;
}
KERNEL memory_new(u32 *out, u32 rounds) {
    u32 sum = 0;
    for (u32 r = 0; r < rounds; r++) {
        u64 *p = new u64[100];
        p[99] = r;
        sum += (u32)p[99];
        delete[] p;
    }
    out[INDEX] = sum;
}
KERNEL memory_copies(u8 *data) {
    u8 local[64];
    u32 i = threadIdx.x;
    memcpy(local, data + i * 64, 64);
    for (int j = 47; j >= 8; j--) local[j] = local[j - 8];
    memset(local + 56, (int)i, 8);
    memcpy(data + i * 64, local, 64);
}
