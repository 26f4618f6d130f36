// nvcc: -arch=compute_80
// Conversions between numbers.
#include "common.h"

MAP1(convert_float_to_int, float, u64, 12, u32 r; PTX1("cvt.rni.s32.f32", "r", r, "f", a); o[0] = r;
     PTX1("cvt.rzi.s32.f32", "r", r, "f", a); o[1] = r; PTX1("cvt.rmi.s32.f32", "r", r, "f", a); o[2] = r;
     PTX1("cvt.rpi.s32.f32", "r", r, "f", a); o[3] = r; PTX1("cvt.rni.u32.f32", "r", r, "f", a); o[4] = r;
     PTX1("cvt.rpi.u32.f32", "r", r, "f", a); o[5] = r; PTX1("cvt.rzi.s64.f32", "l", o[6], "f", a);
     PTX1("cvt.rmi.u64.f32", "l", o[7], "f", a); u16 h; PTX1("cvt.rni.s16.f32", "h", h, "f", a); o[8] = h;
     PTX1("cvt.rzi.u16.f32", "h", h, "f", a); o[9] = h; PTX1("cvt.rni.s8.f32", "r", r, "f", a); o[10] = (u8)r;
     PTX1("cvt.rzi.u8.f32", "r", r, "f", a); o[11] = (u8)r;)
MAP1(convert_double_to_int, double, u64, 8, u32 r; PTX1("cvt.rni.s32.f64", "r", r, "d", a); o[0] = r;
     PTX1("cvt.rzi.u32.f64", "r", r, "d", a); o[1] = r; PTX1("cvt.rmi.s32.f64", "r", r, "d", a); o[2] = r;
     PTX1("cvt.rpi.u32.f64", "r", r, "d", a); o[3] = r; PTX1("cvt.rni.s64.f64", "l", o[4], "d", a);
     PTX1("cvt.rzi.u64.f64", "l", o[5], "d", a); PTX1("cvt.rmi.s64.f64", "l", o[6], "d", a);
     PTX1("cvt.rpi.u64.f64", "l", o[7], "d", a);)
MAP1(convert_int_to_float, u64, float, 10, u32 x = (u32)a; PTX1("cvt.rn.f32.s32", "f", o[0], "r", x);
     PTX1("cvt.rz.f32.s32", "f", o[1], "r", x); PTX1("cvt.rm.f32.u32", "f", o[2], "r", x);
     PTX1("cvt.rp.f32.u32", "f", o[3], "r", x); PTX1("cvt.rn.f32.s64", "f", o[4], "l", a);
     PTX1("cvt.rz.f32.u64", "f", o[5], "l", a); PTX1("cvt.rm.f32.s64", "f", o[6], "l", a);
     PTX1("cvt.rp.f32.u64", "f", o[7], "l", a); u16 h = (u16)a; PTX1("cvt.rn.f32.s16", "f", o[8], "h", h);
     PTX1("cvt.rn.f32.u8", "f", o[9], "r", x);)
MAP1(convert_int_to_double, u64, double, 6, u32 x = (u32)a; PTX1("cvt.rn.f64.s32", "d", o[0], "r", x);
     PTX1("cvt.rn.f64.u32", "d", o[1], "r", x); PTX1("cvt.rn.f64.s64", "d", o[2], "l", a);
     PTX1("cvt.rz.f64.u64", "d", o[3], "l", a); PTX1("cvt.rm.f64.s64", "d", o[4], "l", a);
     PTX1("cvt.rp.f64.u64", "d", o[5], "l", a);)
MAP1(convert_double_to_float, double, float, 6, PTX1("cvt.rn.f32.f64", "f", o[0], "d", a);
     PTX1("cvt.rz.f32.f64", "f", o[1], "d", a); PTX1("cvt.rm.f32.f64", "f", o[2], "d", a);
     PTX1("cvt.rp.f32.f64", "f", o[3], "d", a); PTX1("cvt.rn.ftz.f32.f64", "f", o[4], "d", a);
     PTX1("cvt.rn.sat.f32.f64", "f", o[5], "d", a);)
MAP1(convert_float_to_double, float, double, 1, o[0] = a;)
MAP1(convert_round_to_integral, float, float, 5, PTX1("cvt.rni.f32.f32", "f", o[0], "f", a);
     PTX1("cvt.rzi.f32.f32", "f", o[1], "f", a); PTX1("cvt.rmi.f32.f32", "f", o[2], "f", a);
     PTX1("cvt.rpi.f32.f32", "f", o[3], "f", a); PTX1("cvt.sat.f32.f32", "f", o[4], "f", a);)
MAP1(convert_int_widths, u64, u64, 8, u32 x = (u32)a; u32 r; PTX1("cvt.s64.s32", "l", o[0], "r", x);
     PTX1("cvt.u64.u32", "l", o[1], "r", x); PTX1("cvt.s32.s8", "r", r, "r", x); o[2] = r;
     PTX1("cvt.u32.u8", "r", r, "r", x); o[3] = r; u16 h; PTX1("cvt.s16.s8", "h", h, "r", x); o[4] = h;
     PTX1("cvt.u32.u64", "r", r, "l", a); o[5] = r; h = (u16)a; PTX1("cvt.s32.s16", "r", r, "h", h); o[6] = r;
     PTX1("cvt.s64.s16", "l", o[7], "h", h);)
MAP1(convert_int_saturate, u64, u64, 10, u32 x = (u32)a; u32 r; u16 h; PTX1("cvt.sat.s8.s32", "r", r, "r", x);
     o[0] = (u8)r; PTX1("cvt.sat.u8.s32", "r", r, "r", x); o[1] = (u8)r; PTX1("cvt.sat.u8.u32", "r", r, "r", x);
     o[2] = (u8)r; PTX1("cvt.sat.s16.s32", "h", h, "r", x); o[3] = h; PTX1("cvt.sat.u16.s32", "h", h, "r", x); o[4] = h;
     PTX1("cvt.sat.s32.s64", "r", r, "l", a); o[5] = r; PTX1("cvt.sat.u32.s64", "r", r, "l", a); o[6] = r;
     PTX1("cvt.sat.s32.u32", "r", r, "r", x); o[7] = r; PTX1("cvt.sat.u32.s32", "r", r, "r", x); o[8] = r;
     PTX1("cvt.sat.u64.s64", "l", o[9], "l", a);)
MAP2(convert_pack, s32, s32, u32, 3, asm volatile("cvt.pack.sat.s16.s32 %0, %1, %2;" : "=r"(o[0]) : "r"(a), "r"(b));
     asm volatile("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(o[1]) : "r"(a), "r"(b), "r"(a));
     asm volatile("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(o[2]) : "r"(a), "r"(b), "r"(b));)
MAP1(convert_tf32, float, u32, 1, PTX1("cvt.rna.tf32.f32", "r", o[0], "f", a);)
