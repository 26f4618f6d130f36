// Shifts, logic and bit fields.
#include "common.h"

MAP2(bit_shift_32, u32, u32, u32, 3, PTX2("shl.b32", "r", o[0], "r", a, "r", b);
     PTX2("shr.u32", "r", o[1], "r", a, "r", b); PTX2("shr.s32", "r", o[2], "r", a, "r", b);)
MAP2(bit_shift_64, u64, u32, u64, 3, PTX2("shl.b64", "l", o[0], "l", a, "r", b);
     PTX2("shr.u64", "l", o[1], "l", a, "r", b); PTX2("shr.s64", "l", o[2], "l", a, "r", b);)
MAP2(bit_shift_16, u16, u32, u16, 3, PTX2("shl.b16", "h", o[0], "h", a, "r", b);
     PTX2("shr.u16", "h", o[1], "h", a, "r", b); PTX2("shr.s16", "h", o[2], "h", a, "r", b);)
MAP3(bit_funnel, u32, u32, u32, u32, 4, PTX3("shf.l.wrap.b32", "r", o[0], "r", a, "r", b, "r", c);
     PTX3("shf.r.wrap.b32", "r", o[1], "r", a, "r", b, "r", c);
     PTX3("shf.l.clamp.b32", "r", o[2], "r", a, "r", b, "r", c);
     PTX3("shf.r.clamp.b32", "r", o[3], "r", a, "r", b, "r", c);)
MAP3(bit_logic, u32, u32, u32, u32, 6, o[0] = a & b | c; o[1] = (a ^ b) & ~c; o[2] = ~(a | b | c);
     asm volatile("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(o[3]) : "r"(a), "r"(b), "r"(c));
     asm volatile("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(o[4]) : "r"(a), "r"(b), "r"(c));
     asm volatile("lop3.b32 %0, %1, %2, %3, 0x1B;" : "=r"(o[5]) : "r"(a), "r"(b), "r"(c));)
MAP2(bit_logic_64, u64, u64, u64, 4, o[0] = a & b; o[1] = a | b; o[2] = a ^ b; o[3] = ~a;)
MAP1(bit_count, u64, u32, 9, o[0] = __popc((u32)a); o[1] = __popcll(a); o[2] = __clz((u32)a); o[3] = __clzll(a);
     o[4] = __brev((u32)a); o[5] = (u32)(__brevll(a) >> 32); o[6] = (u32)__brevll(a); o[7] = __ffs((u32)a);
     o[8] = __ffsll(a);)
MAP1(bit_find, u64, u32, 6, u32 x = (u32)a; PTX1("bfind.u32", "r", o[0], "r", x); PTX1("bfind.s32", "r", o[1], "r", x);
     PTX1("bfind.shiftamt.u32", "r", o[2], "r", x); PTX1("bfind.u64", "r", o[3], "l", a);
     PTX1("bfind.s64", "r", o[4], "l", a); PTX1("bfind.shiftamt.s64", "r", o[5], "l", a);)
MAP3(bit_extract, u64, u32, u32, u64, 4, u32 x = (u32)a; u32 r; PTX3("bfe.u32", "r", r, "r", x, "r", b, "r", c);
     o[0] = r; PTX3("bfe.s32", "r", r, "r", x, "r", b, "r", c); o[1] = r;
     PTX3("bfe.u64", "l", o[2], "l", a, "r", b, "r", c); PTX3("bfe.s64", "l", o[3], "l", a, "r", b, "r", c);)
MAP3(bit_insert, u64, u32, u32, u64, 2, u32 r; u32 x = (u32)a; u32 y = (u32)(a >> 32);
     asm volatile("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(x), "r"(y), "r"(b), "r"(c)); o[0] = r; u64 z = ~a * 3;
     asm volatile("bfi.b64 %0, %1, %2, %3, %4;" : "=l"(o[1]) : "l"(a), "l"(z), "r"(b), "r"(c));)
MAP3(bit_permute, u32, u32, u32, u32, 7, PTX3("prmt.b32", "r", o[0], "r", a, "r", b, "r", c);
     PTX3("prmt.b32.f4e", "r", o[1], "r", a, "r", b, "r", c); PTX3("prmt.b32.b4e", "r", o[2], "r", a, "r", b, "r", c);
     PTX3("prmt.b32.rc8", "r", o[3], "r", a, "r", b, "r", c); PTX3("prmt.b32.ecl", "r", o[4], "r", a, "r", b, "r", c);
     PTX3("prmt.b32.ecr", "r", o[5], "r", a, "r", b, "r", c); PTX3("prmt.b32.rc16", "r", o[6], "r", a, "r", b, "r", c);)
MAP3(bit_find_nth, u32, u32, s32, u32, 1, o[0] = __fns(a, b & 31, c);)
MAP2(bit_mask_and_extend, u32, u32, u32, 4, PTX2("bmsk.clamp.b32", "r", o[0], "r", a, "r", b);
     PTX2("bmsk.wrap.b32", "r", o[1], "r", a, "r", b); PTX2("szext.clamp.s32", "r", o[2], "r", a, "r", b);
     PTX2("szext.wrap.u32", "r", o[3], "r", a, "r", b);)
// The intrinsics for bytes and half-words in a register.
MAP2(bit_bytes_at_once, u32, u32, u32, 12, o[0] = __vadd4(a, b); o[1] = __vsub2(a, b); o[2] = __vavgu4(a, b);
     o[3] = __vmaxs4(a, b); o[4] = __vminu2(a, b); o[5] = __vcmpeq4(a, b); o[6] = __vabsdiffu4(a, b);
     o[7] = __vaddss4(a, b); o[8] = __vsubus2(a, b); o[9] = __vsetgtu4(a, b); o[10] = __vsadu4(a, b);
     o[11] = __vneg2(a);)
MAP3(bit_video, u32, u32, u32, u32, 7,
     asm volatile("vadd.s32.u32.s32.sat %0, %1, %2;" : "=r"(o[0]) : "r"(a), "r"(b));
     asm volatile("vsub.s32.s32.u32 %0, %1.b1, %2.h1;" : "=r"(o[1]) : "r"(a), "r"(b));
     asm volatile("vabsdiff.u32.s32.s32.add %0, %1.h0, %2.b3, %3;" : "=r"(o[2]) : "r"(a), "r"(b), "r"(c));
     asm volatile("vmin.s32.s32.s32.max %0, %1, %2, %3;" : "=r"(o[3]) : "r"(a), "r"(b), "r"(c));
     asm volatile("vshl.u32.u32.u32.wrap %0, %1, %2;" : "=r"(o[4]) : "r"(a), "r"(b));
     asm volatile("vmad.s32.s32.s32 %0, %1.b0, %2.h0, %3;" : "=r"(o[5]) : "r"(a), "r"(b), "r"(c));
     asm volatile("vset.s32.u32.lt %0, %1, %2;" : "=r"(o[6]) : "r"(a), "r"(b));)
