// Branches, loops, calls of all kinds, local memory.
#include "common.h"

MAP1(control_switch, u32, u32, 1, switch (a % 11) {
    case 0: o[0] = a * 3; break;
    case 1: o[0] = a ^ 0x55; break;
    case 2: o[0] = a + 100;
    case 3: o[0] = a / 3; break;
    case 4: o[0] = ~a; break;
    case 5: o[0] = a << 4; break;
    case 6: o[0] = a >> 4; break;
    case 7: o[0] = a - 7; break;
    case 9: o[0] = 9; break;
    default: o[0] = 1000;
})
// A table of targets, as old compilers made of a switch.
MAP1(control_branch_table, u32, u32, 1,
     asm volatile("{\n\t.reg .u32 i;\n\trem.u32 i, %1, 4;\n\tts: .branchtargets T0, T1, T2, T3;\n\tbrx.idx i, ts;\n\t"
                  "T0: mov.u32 %0, 10; bra.uni TE;\n\tT1: add.u32 %0, %1, 1; bra.uni TE;\n\t"
                  "T2: shl.b32 %0, %1, 2; bra.uni TE;\n\tT3: not.b32 %0, %1;\n\tTE:\n\t}" : "=r"(o[0]) : "r"(a));)
MAP1(control_loops, u32, u32, 3, u32 steps = 0; u32 x = a | 1; while (x != 1 && steps < 500) {
    x = x & 1 ? 3 * x + 1 : x / 2;
    steps++;
} o[0] = steps; u32 sum = 0; for (u32 i = 0; i < a % 37; i++) {
    if (i % 5 == 2) continue;
    for (u32 j = 0; j < i; j++) {
        if (j > 20) break;
        sum += i * j;
    }
} o[1] = sum; u32 g = a; u32 h = 36; do {
    u32 t = g % h;
    g = h;
    h = t;
} while (h); o[2] = g;)
MAP2(control_predicates, s32, s32, s32, 4, o[0] = a < b ? a : b; o[1] = (a > 0 && b > 0) || (a ^ b) < 0;
     o[2] = a == b ? 1 : a < b ? 2 : 3;
     asm volatile("{.reg .pred p, q;\n\tsetp.lt.s32 p, %1, %2;\n\tsetp.ne.or.s32 q, %1, 0, !p;\n\tmov.s32 %0, 5;\n\t"
                  "@p add.s32 %0, %0, 1;\n\t@!q mul.lo.s32 %0, %0, 10;\n\tnot.pred p, p;\n\txor.pred q, p, q;\n\t"
                  "@q sub.s32 %0, %0, 3;}" : "=r"(o[3]) : "r"(a), "r"(b));)
// Two entries into one loop.
MAP1(control_irreducible, u32, u32, 1, u32 x = a & 255; u32 turns = 0; if (a & 1) goto middle;
     top: x += 3; turns++;
     middle: x = x * 5 % 257; if (turns < 20 && x != 7) goto top; o[0] = x * 100 + turns;)

__device__ __noinline__ u32 fibonacci(u32 n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__device__ __noinline__ u32 ackermann(u32 m, u32 n) {
    return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}
__device__ u32 is_odd(u32 n);
__device__ __noinline__ u32 is_even(u32 n) { return n == 0 ? 1 : is_odd(n - 1); }
__device__ __noinline__ u32 is_odd(u32 n) { return n == 0 ? 0 : is_even(n - 1); }
MAP1(control_recursion, u32, u32, 3, o[0] = fibonacci(a % 16); o[1] = ackermann(2, a % 5); o[2] = is_even(a % 50);)
// Each level keeps an array of its own.
__device__ __noinline__ u32 nest(u32 depth, u32 seed) {
    u32 kept[8];
    for (u32 i = 0; i < 8; i++) kept[i] = seed * 31 + i * depth;
    u32 below = depth ? nest(depth - 1, kept[seed & 7]) : 1;
    return kept[below & 7] + below * 7;
}
MAP1(control_recursion_with_arrays, u32, u32, 1, o[0] = nest(a % 20, a);)

typedef u32 (*Operation)(u32, u32);
__device__ __noinline__ u32 plus(u32 a, u32 b) { return a + b; }
__device__ __noinline__ u32 minus(u32 a, u32 b) { return a - b; }
__device__ __noinline__ u32 times(u32 a, u32 b) { return a * b; }
__device__ __noinline__ u32 either(u32 a, u32 b) { return a ^ b; }
__device__ Operation operations[4] = {plus, minus, times, either};
__constant__ Operation constant_operations[2] = {times, minus};
MAP2(control_function_pointers, u32, u32, u32, 3, o[0] = operations[a & 3](a, b);
     o[1] = constant_operations[b & 1](a, b); Operation f = a & 8 ? plus : either; o[2] = f(a, b);)

struct Shape {
    __device__ virtual u32 area() const = 0;
    __device__ virtual ~Shape() {}
};
struct Square : Shape {
    u32 side;
    __device__ Square(u32 s) : side(s) {}
    __device__ u32 area() const override { return side * side; }
};
struct Oblong : Shape {
    u32 width, height;
    __device__ Oblong(u32 w, u32 h) : width(w), height(h) {}
    __device__ u32 area() const override { return width * height; }
};
__device__ __noinline__ u32 ask(const Shape *shape) { return shape->area(); }
MAP2(control_virtual, u32, u32, u32, 2, Square square(a & 0xff); Oblong oblong(a & 0xff, b & 0xff);
     const Shape *shapes[2] = {&square, &oblong}; o[0] = ask(shapes[b & 1]); o[1] = ask(shapes[a & 1]);)

struct Big {
    u64 words[12];
    float tail;
    u8 last;
};
__device__ __noinline__ Big turn(Big in, u32 by) {
    Big out;
    for (u32 i = 0; i < 12; i++) out.words[i] = in.words[(i + by) % 12];
    out.tail = in.tail + by;
    out.last = in.last + 1;
    return out;
}
KERNEL control_structs(Big given, u64 *out) {
    u32 i = threadIdx.x;
    Big turned = turn(turn(given, i), 1);
    out[i * 3] = turned.words[0];
    out[i * 3 + 1] = (u64)turned.tail;
    out[i * 3 + 2] = turned.last;
}
// Arrays in local memory with an index that only the run knows.
MAP1(control_local_arrays, u32, u32, 2, u32 table[64]; u8 bytes[40];
     for (u32 i = 0; i < 64; i++) table[i] = i * a + (a >> 7); for (u32 i = 0; i < 40; i++) bytes[i] = (u8)(a >> i % 24);
     for (u32 i = 0; i < 63; i++) if (table[i] % 7 < table[i + 1] % 7) {
         u32 t = table[i];
         table[i] = table[(i * a) % 64];
         table[(i * a) % 64] = t;
     } u32 sum = 0; for (u32 i = 0; i < 64; i++) sum = sum * 33 + table[(i * 17 + a) % 64]; u32 total = 0;
     for (u32 i = 0; i < 40; i++) total = total * 3 + bytes[(i * 7 + a) % 40]; o[0] = sum; o[1] = total;)
// Sorts in local memory, through a pointer that might be to anywhere.
__device__ __noinline__ void sort(u32 *data, int count) {
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0 && data[j - 1] > data[j]; j--) {
            u32 t = data[j];
            data[j] = data[j - 1];
            data[j - 1] = t;
        }
}
MAP1(control_sort, u32, u32, 16, u32 data[16]; u32 x = a; for (int j = 0; j < 16; j++) {
    x = x * 1664525 + 1013904223;
    data[j] = x >> 16;
} sort(data, 16); for (int j = 0; j < 16; j++) o[j] = data[j];)
template <typename F> __device__ u32 fold(F f, u32 n) {
    u32 r = 1;
    for (u32 i = 0; i < n; i++) r = f(r, i);
    return r;
}
MAP2(control_lambdas, u32, u32, u32, 1, auto mix = [=](u32 r, u32 i) { return r * 31 + (a ^ i) + b; };
     o[0] = fold(mix, a % 13) + fold([](u32 r, u32 i) { return r + i; }, b % 9);)
// Threads leave in the middle, some from inside of a function.
__device__ __noinline__ void leave_if(u32 odd) {
    if (odd) asm volatile("exit;");
}
KERNEL control_exit(u32 *out) {
    u32 i = threadIdx.x;
    out[i] = 1;
    if (i % 3 == 0) return;
    leave_if(i & 1);
    out[i] = 2;
}
