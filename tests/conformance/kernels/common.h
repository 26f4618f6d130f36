// What the kernels of the conformance suite share. A kernel computes, for each thread, K results from its inputs; the
// test that launches it knows what they must be.
#pragma once
#include <cstdint>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;

#define KERNEL extern "C" __global__ void
#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)

#define MAP1(name, A, R, K, ...)                                                                                       \
    KERNEL name(const A *pa, R *out, int n) {                                                                          \
        int i = INDEX;                                                                                                 \
        if (i >= n) return;                                                                                            \
        A a = pa[i];                                                                                                   \
        R *o = out + (size_t)i * K;                                                                                    \
        __VA_ARGS__                                                                                                    \
    }

#define MAP2(name, A, B, R, K, ...)                                                                                    \
    KERNEL name(const A *pa, const B *pb, R *out, int n) {                                                             \
        int i = INDEX;                                                                                                 \
        if (i >= n) return;                                                                                            \
        A a = pa[i];                                                                                                   \
        B b = pb[i];                                                                                                   \
        R *o = out + (size_t)i * K;                                                                                    \
        __VA_ARGS__                                                                                                    \
    }

#define MAP3(name, A, B, C, R, K, ...)                                                                                 \
    KERNEL name(const A *pa, const B *pb, const C *pc, R *out, int n) {                                                \
        int i = INDEX;                                                                                                 \
        if (i >= n) return;                                                                                            \
        A a = pa[i];                                                                                                   \
        B b = pb[i];                                                                                                   \
        C c = pc[i];                                                                                                   \
        R *o = out + (size_t)i * K;                                                                                    \
        __VA_ARGS__                                                                                                    \
    }

// One instruction, by the letters of its operands' registers (h 16, r 32, l 64, f and d floats).
#define PTX1(ins, rd, d, ra, a) asm volatile(ins " %0, %1;" : "=" rd(d) : ra(a))
#define PTX2(ins, rd, d, ra, a, rb, b) asm volatile(ins " %0, %1, %2;" : "=" rd(d) : ra(a), rb(b))
#define PTX3(ins, rd, d, ra, a, rb, b, rc, c) asm volatile(ins " %0, %1, %2, %3;" : "=" rd(d) : ra(a), rb(b), rc(c))

// Sleeps where there is something to sleep with. Kernels for newer GPUs are within #if __CUDA_ARCH__ >= …
#if __CUDA_ARCH__ >= 700
#define PAUSE(nanoseconds) __nanosleep(nanoseconds)
#else
#define PAUSE(nanoseconds)
#endif
