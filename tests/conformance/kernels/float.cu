// Floating-point arithmetic: every rounding, denormals flushed or kept, saturation, minima, comparisons.
#include "common.h"

#define ROUNDINGS2(ins, ty, r)                                                                                         \
    PTX2(ins ".rn" ty, r, o[0], r, a, r, b);                                                                           \
    PTX2(ins ".rz" ty, r, o[1], r, a, r, b);                                                                           \
    PTX2(ins ".rm" ty, r, o[2], r, a, r, b);                                                                           \
    PTX2(ins ".rp" ty, r, o[3], r, a, r, b);
#define ROUNDINGS1(ins, ty, r)                                                                                         \
    PTX1(ins ".rn" ty, r, o[0], r, a);                                                                                 \
    PTX1(ins ".rz" ty, r, o[1], r, a);                                                                                 \
    PTX1(ins ".rm" ty, r, o[2], r, a);                                                                                 \
    PTX1(ins ".rp" ty, r, o[3], r, a);
#define ROUNDINGS3(ins, ty, r)                                                                                         \
    PTX3(ins ".rn" ty, r, o[0], r, a, r, b, r, c);                                                                     \
    PTX3(ins ".rz" ty, r, o[1], r, a, r, b, r, c);                                                                     \
    PTX3(ins ".rm" ty, r, o[2], r, a, r, b, r, c);                                                                     \
    PTX3(ins ".rp" ty, r, o[3], r, a, r, b, r, c);

MAP2(float_add, float, float, float, 4, ROUNDINGS2("add", ".f32", "f"))
MAP2(float_sub, float, float, float, 4, ROUNDINGS2("sub", ".f32", "f"))
MAP2(float_mul, float, float, float, 4, ROUNDINGS2("mul", ".f32", "f"))
MAP2(float_div, float, float, float, 4, ROUNDINGS2("div", ".f32", "f"))
MAP1(float_sqrt, float, float, 4, ROUNDINGS1("sqrt", ".f32", "f"))
MAP1(float_rcp, float, float, 4, ROUNDINGS1("rcp", ".f32", "f"))
MAP3(float_fma, float, float, float, float, 4, ROUNDINGS3("fma", ".f32", "f"))
MAP2(double_add, double, double, double, 4, ROUNDINGS2("add", ".f64", "d"))
MAP2(double_sub, double, double, double, 4, ROUNDINGS2("sub", ".f64", "d"))
MAP2(double_mul, double, double, double, 4, ROUNDINGS2("mul", ".f64", "d"))
MAP2(double_div, double, double, double, 4, ROUNDINGS2("div", ".f64", "d"))
MAP1(double_sqrt, double, double, 4, ROUNDINGS1("sqrt", ".f64", "d"))
MAP1(double_rcp, double, double, 4, ROUNDINGS1("rcp", ".f64", "d"))
MAP3(double_fma, double, double, double, double, 4, ROUNDINGS3("fma", ".f64", "d"))
MAP2(float_flush, float, float, float, 4, PTX2("add.rn.ftz.f32", "f", o[0], "f", a, "f", b);
     PTX2("mul.rn.ftz.f32", "f", o[1], "f", a, "f", b); PTX2("sub.rz.ftz.f32", "f", o[2], "f", a, "f", b);
     PTX2("min.ftz.f32", "f", o[3], "f", a, "f", b);)
MAP2(float_saturate, float, float, float, 3, PTX2("add.sat.f32", "f", o[0], "f", a, "f", b);
     PTX2("mul.sat.f32", "f", o[1], "f", a, "f", b); PTX3("fma.rn.sat.f32", "f", o[2], "f", a, "f", b, "f", a);)
MAP2(float_min_max, float, float, float, 2, PTX2("min.f32", "f", o[0], "f", a, "f", b);
     PTX2("max.f32", "f", o[1], "f", a, "f", b);)
MAP2(double_min_max, double, double, double, 2, PTX2("min.f64", "d", o[0], "d", a, "d", b);
     PTX2("max.f64", "d", o[1], "d", a, "d", b);)
MAP2(float_signs, float, float, float, 4, o[0] = fabsf(a); o[1] = -a; o[2] = copysignf(a, b);
     PTX2("copysign.f32", "f", o[3], "f", a, "f", b);)
MAP1(float_kinds, float, u32, 6,
#define TEST(at, kind)                                                                                                 \
    asm volatile("{.reg .pred p; testp." kind ".f32 p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(o[at]) : "f"(a));
     TEST(0, "finite") TEST(1, "infinite") TEST(2, "number") TEST(3, "notanumber") TEST(4, "normal")
     TEST(5, "subnormal"))
#define COMPARE(at, c, ty, r)                                                                                          \
    asm volatile("{.reg .pred p; setp." c ty " p, %1, %2; selp.u32 %0, 1, 0, p;}" : "=r"(o[at]) : r(a), r(b));
#define COMPARISONS(ty, r)                                                                                             \
    COMPARE(0, "eq", ty, r) COMPARE(1, "ne", ty, r) COMPARE(2, "lt", ty, r) COMPARE(3, "le", ty, r)                    \
    COMPARE(4, "gt", ty, r) COMPARE(5, "ge", ty, r) COMPARE(6, "equ", ty, r) COMPARE(7, "neu", ty, r)                  \
    COMPARE(8, "ltu", ty, r) COMPARE(9, "leu", ty, r) COMPARE(10, "gtu", ty, r) COMPARE(11, "geu", ty, r)              \
    COMPARE(12, "num", ty, r) COMPARE(13, "nan", ty, r)
MAP2(float_compare, float, float, u32, 14, COMPARISONS(".f32", "f"))
MAP2(double_compare, double, double, u32, 14, COMPARISONS(".f64", "d"))
MAP2(float_set, float, float, u32, 4, PTX2("set.lt.u32.f32", "r", o[0], "f", a, "f", b); float f;
     PTX2("set.ge.f32.f32", "f", f, "f", a, "f", b); o[1] = __float_as_uint(f);
     asm volatile("{.reg .pred p, q; setp.gt.f32 p, %1, 0f00000000; setp.lt.and.f32 q|p, %1, %2, p;\n\t"
                  "selp.u32 %0, 1, 0, q; @p add.u32 %0, %0, 2;}" : "=r"(o[2]) : "f"(a), "f"(b));
     asm volatile("slct.u32.f32 %0, 7, 9, %1;" : "=r"(o[3]) : "f"(a));)
MAP2(float_flush_compare, float, float, u32, 2, COMPARE(0, "eq.ftz", ".f32", "f") COMPARE(1, "lt.ftz", ".f32", "f"))
