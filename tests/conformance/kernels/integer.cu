// Integer arithmetic of all widths.
#include "common.h"

MAP2(int_add_sub_mul_u32, u32, u32, u32, 3, o[0] = a + b; o[1] = a - b; o[2] = a * b;)
MAP2(int_add_sub_mul_u64, u64, u64, u64, 3, o[0] = a + b; o[1] = a - b; o[2] = a * b;)
MAP2(int_add_sub_mul_u16, u16, u16, u16, 3, PTX2("add.u16", "h", o[0], "h", a, "h", b);
     PTX2("sub.u16", "h", o[1], "h", a, "h", b); PTX2("mul.lo.u16", "h", o[2], "h", a, "h", b);)
MAP2(int_bytes, s8, u8, s32, 6, o[0] = (s8)(a + b); o[1] = (u8)(a - b); o[2] = (s8)(a * b); o[3] = (s8)(a << (b & 7));
     o[4] = (s8)(a >> (b & 7)); o[5] = b ? a % b : a;)
MAP2(int_mul_hi_32, u32, u32, u32, 2, PTX2("mul.hi.u32", "r", o[0], "r", a, "r", b);
     PTX2("mul.hi.s32", "r", o[1], "r", a, "r", b);)
MAP2(int_mul_hi_64, u64, u64, u64, 2, PTX2("mul.hi.u64", "l", o[0], "l", a, "l", b);
     PTX2("mul.hi.s64", "l", o[1], "l", a, "l", b);)
MAP2(int_mul_hi_16, u16, u16, u16, 2, PTX2("mul.hi.u16", "h", o[0], "h", a, "h", b);
     PTX2("mul.hi.s16", "h", o[1], "h", a, "h", b);)
MAP2(int_mul_wide, u32, u32, u64, 4, PTX2("mul.wide.u32", "l", o[0], "r", a, "r", b);
     PTX2("mul.wide.s32", "l", o[1], "r", a, "r", b); u32 w; u16 x = a; u16 y = b;
     PTX2("mul.wide.u16", "r", w, "h", x, "h", y); o[2] = w; PTX2("mul.wide.s16", "r", w, "h", x, "h", y); o[3] = w;)
MAP2(int_mul24, u32, u32, u32, 4, PTX2("mul24.lo.u32", "r", o[0], "r", a, "r", b);
     PTX2("mul24.lo.s32", "r", o[1], "r", a, "r", b); PTX2("mul24.hi.u32", "r", o[2], "r", a, "r", b);
     PTX2("mul24.hi.s32", "r", o[3], "r", a, "r", b);)
MAP3(int_mad, u32, u32, u32, u32, 4, PTX3("mad.lo.s32", "r", o[0], "r", a, "r", b, "r", c);
     PTX3("mad.hi.s32", "r", o[1], "r", a, "r", b, "r", c); PTX3("mad.hi.u32", "r", o[2], "r", a, "r", b, "r", c);
     PTX3("mad24.lo.s32", "r", o[3], "r", a, "r", b, "r", c);)
MAP3(int_mad_wide, u32, u32, u64, u64, 2, PTX3("mad.wide.u32", "l", o[0], "r", a, "r", b, "l", c);
     PTX3("mad.wide.s32", "l", o[1], "r", a, "r", b, "l", c);)
MAP3(int_mad_64, u64, u64, u64, u64, 3, PTX3("mad.lo.u64", "l", o[0], "l", a, "l", b, "l", c);
     PTX3("mad.hi.u64", "l", o[1], "l", a, "l", b, "l", c); PTX3("mad.hi.s64", "l", o[2], "l", a, "l", b, "l", c);)
MAP3(int_mad_hi_sat, s32, s32, s32, s32, 1, PTX3("mad.hi.sat.s32", "r", o[0], "r", a, "r", b, "r", c);)
MAP2(int_div_rem_s32, s32, s32, s32, 2, o[0] = a / b; o[1] = a % b;)
MAP2(int_div_rem_u32, u32, u32, u32, 2, o[0] = a / b; o[1] = a % b;)
MAP2(int_div_rem_s64, s64, s64, s64, 2, o[0] = a / b; o[1] = a % b;)
MAP2(int_div_rem_u64, u64, u64, u64, 2, o[0] = a / b; o[1] = a % b;)
MAP2(int_div_rem_16, s16, s16, s16, 4, PTX2("div.s16", "h", o[0], "h", a, "h", b);
     PTX2("rem.s16", "h", o[1], "h", a, "h", b); PTX2("div.u16", "h", o[2], "h", a, "h", b);
     PTX2("rem.u16", "h", o[3], "h", a, "h", b);)
MAP2(int_saturate, s32, s32, s32, 2, PTX2("add.sat.s32", "r", o[0], "r", a, "r", b);
     PTX2("sub.sat.s32", "r", o[1], "r", a, "r", b);)
MAP2(int_min_max_32, u32, u32, u32, 4, o[0] = min((s32)a, (s32)b); o[1] = max((s32)a, (s32)b); o[2] = min(a, b);
     o[3] = max(a, b);)
MAP2(int_min_max_64, u64, u64, u64, 4, PTX2("min.s64", "l", o[0], "l", a, "l", b);
     PTX2("max.s64", "l", o[1], "l", a, "l", b); PTX2("min.u64", "l", o[2], "l", a, "l", b);
     PTX2("max.u64", "l", o[3], "l", a, "l", b);)
MAP2(int_min_max_16, u16, u16, u16, 4, PTX2("min.s16", "h", o[0], "h", a, "h", b);
     PTX2("max.s16", "h", o[1], "h", a, "h", b); PTX2("min.u16", "h", o[2], "h", a, "h", b);
     PTX2("max.u16", "h", o[3], "h", a, "h", b);)
MAP1(int_abs_neg, s64, s64, 6, s32 x = (s32)a; s32 r; PTX1("abs.s32", "r", r, "r", x); o[0] = r;
     PTX1("neg.s32", "r", r, "r", x); o[1] = r; PTX1("abs.s64", "l", o[2], "l", a); PTX1("neg.s64", "l", o[3], "l", a);
     s16 h = (s16)a; s16 q; PTX1("abs.s16", "h", q, "h", h); o[4] = q; PTX1("cnot.b32", "r", r, "r", x); o[5] = r;)
MAP3(int_sad, u32, u32, u32, u32, 2, PTX3("sad.u32", "r", o[0], "r", a, "r", b, "r", c);
     PTX3("sad.s32", "r", o[1], "r", a, "r", b, "r", c);)
MAP3(int_dot_products, u32, u32, u32, u32, 8, PTX3("dp4a.u32.u32", "r", o[0], "r", a, "r", b, "r", c);
     PTX3("dp4a.s32.s32", "r", o[1], "r", a, "r", b, "r", c); PTX3("dp4a.u32.s32", "r", o[2], "r", a, "r", b, "r", c);
     PTX3("dp4a.s32.u32", "r", o[3], "r", a, "r", b, "r", c); PTX3("dp2a.lo.s32.s32", "r", o[4], "r", a, "r", b, "r", c);
     PTX3("dp2a.hi.s32.s32", "r", o[5], "r", a, "r", b, "r", c);
     PTX3("dp2a.lo.u32.u32", "r", o[6], "r", a, "r", b, "r", c);
     PTX3("dp2a.hi.u32.s32", "r", o[7], "r", a, "r", b, "r", c);)

// 128 bits through the carry flag, and what comes out of the top.
MAP2(int_carry_add, u64, u64, u64, 3, u64 lo; u64 hi; u64 top;
     asm volatile("add.cc.u64 %0, %3, %4;\n\taddc.cc.u64 %1, %4, %3;\n\taddc.u64 %2, 0, 0;"
                  : "=&l"(lo), "=&l"(hi), "=l"(top) : "l"(a), "l"(b));
     o[0] = lo; o[1] = hi; o[2] = top;)
MAP2(int_carry_sub, u32, u32, u32, 3, u32 lo; u32 hi; u32 top;
     asm volatile("sub.cc.u32 %0, %3, %4;\n\tsubc.cc.u32 %1, %4, %3;\n\tsubc.u32 %2, 0, 0;"
                  : "=&r"(lo), "=&r"(hi), "=r"(top) : "r"(a), "r"(b));
     o[0] = lo; o[1] = hi; o[2] = top;)
MAP2(int_carry_mad, u64, u64, u32, 4,
     asm volatile("{\n\t.reg .u32 a0, a1, b0, b1;\n\tmov.b64 {a0, a1}, %4;\n\tmov.b64 {b0, b1}, %5;\n\t"
                  "mul.lo.u32 %0, a0, b0;\n\tmul.hi.u32 %1, a0, b0;\n\t"
                  "mad.lo.cc.u32 %1, a0, b1, %1;\n\tmadc.hi.u32 %2, a0, b1, 0;\n\t"
                  "mad.lo.cc.u32 %1, a1, b0, %1;\n\tmadc.hi.cc.u32 %2, a1, b0, %2;\n\taddc.u32 %3, 0, 0;\n\t"
                  "mad.lo.cc.u32 %2, a1, b1, %2;\n\tmadc.hi.u32 %3, a1, b1, %3;\n\t}"
                  : "=&r"(o[0]), "=&r"(o[1]), "=&r"(o[2]), "=&r"(o[3]) : "l"(a), "l"(b));)
MAP2(int_128, u64, u64, u64, 8, unsigned __int128 x = (unsigned __int128)a << 37 | b;
     unsigned __int128 y = (unsigned __int128)b * b + 1; unsigned __int128 p = x * y; unsigned __int128 q = x / y;
     unsigned __int128 r = x % y; __int128 d = (__int128)x / -(__int128)(b | 1); o[0] = (u64)p; o[1] = (u64)(p >> 64);
     o[2] = (u64)q; o[3] = (u64)(q >> 64); o[4] = (u64)r; o[5] = (u64)(r >> 64); o[6] = (u64)d; o[7] = (u64)(d >> 64);)
