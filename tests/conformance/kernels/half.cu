// nvcc: -arch=compute_80
// Half precision and bfloat16, single and in pairs.
#include "common.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define BITS(x) __half_as_ushort(x)
#define HALF(x) __ushort_as_half(x)
#define BBITS(x) __bfloat16_as_ushort(x)
#define BF(x) __ushort_as_bfloat16(x)

#if __CUDA_ARCH__ >= 530
MAP2(half_arithmetic, u16, u16, u16, 4, o[0] = BITS(__hadd(HALF(a), HALF(b))); o[1] = BITS(__hsub(HALF(a), HALF(b)));
     o[2] = BITS(__hmul(HALF(a), HALF(b))); o[3] = BITS(__hdiv(HALF(a), HALF(b)));)
#endif
#if __CUDA_ARCH__ >= 800
MAP3(half_fma, u16, u16, u16, u16, 3, o[0] = BITS(__hfma(HALF(a), HALF(b), HALF(c)));
     o[1] = BITS(__hfma_sat(HALF(a), HALF(b), HALF(c))); o[2] = BITS(__hfma_relu(HALF(a), HALF(b), HALF(c)));)
#endif
#if __CUDA_ARCH__ >= 530
MAP2(half_saturate, u16, u16, u16, 3, o[0] = BITS(__hadd_sat(HALF(a), HALF(b)));
     o[1] = BITS(__hmul_sat(HALF(a), HALF(b))); o[2] = BITS(__hsub_sat(HALF(a), HALF(b)));)
#endif
#if __CUDA_ARCH__ >= 800
MAP2(half_min_max, u16, u16, u16, 4, o[0] = BITS(__hmin(HALF(a), HALF(b))); o[1] = BITS(__hmax(HALF(a), HALF(b)));
     o[2] = BITS(__hmin_nan(HALF(a), HALF(b))); o[3] = BITS(__hmax_nan(HALF(a), HALF(b)));)
#endif
#if __CUDA_ARCH__ >= 530
MAP2(half_compare, u16, u16, u32, 8, o[0] = __heq(HALF(a), HALF(b)); o[1] = __hlt(HALF(a), HALF(b));
     o[2] = __hge(HALF(a), HALF(b)); o[3] = __hltu(HALF(a), HALF(b)); o[4] = __hneu(HALF(a), HALF(b));
     o[5] = __hisnan(HALF(a)); o[6] = __hgt(HALF(a), HALF(b)); o[7] = __hequ(HALF(a), HALF(b));)
MAP2(half_pairs, u32, u32, u32, 6, __half2 x = *(__half2 *)&a; __half2 y = *(__half2 *)&b; __half2 r;
     r = __hadd2(x, y); o[0] = *(u32 *)&r; r = __hmul2(x, y); o[1] = *(u32 *)&r; r = __hfma2(x, y, x);
     o[2] = *(u32 *)&r; r = __hmax2(x, y); o[3] = *(u32 *)&r; r = __hneg2(x); o[4] = *(u32 *)&r; r = __habs2(y);
     o[5] = *(u32 *)&r;)
MAP2(half_pair_compare, u32, u32, u32, 4, __half2 x = *(__half2 *)&a; __half2 y = *(__half2 *)&b; __half2 r;
     r = __heq2(x, y); o[0] = *(u32 *)&r; o[1] = __hlt2_mask(x, y); o[2] = __hbge2(x, y); o[3] = __hbneu2(x, y);)
#endif
#if __CUDA_ARCH__ >= 800
MAP1(half_functions, u16, u16, 6, PTX1("ex2.approx.f16", "h", o[0], "h", a); PTX1("tanh.approx.f16", "h", o[1], "h", a);
     o[2] = BITS(hsqrt(HALF(a))); o[3] = BITS(hrcp(HALF(a))); o[4] = BITS(hfloor(HALF(a))); o[5] = BITS(hrint(HALF(a)));)
#endif
MAP1(half_to_others, u16, u32, 6, o[0] = __float_as_uint(__half2float(HALF(a))); o[1] = __half2int_rz(HALF(a));
     o[2] = __half2int_rn(HALF(a)); o[3] = __half2uint_ru(HALF(a)); o[4] = (u16)__half2short_rd(HALF(a));
     o[5] = (u32)__half2ll_rn(HALF(a));)
MAP1(half_from_float, float, u16, 4, o[0] = BITS(__float2half_rn(a)); o[1] = BITS(__float2half_rz(a));
     o[2] = BITS(__float2half_rd(a)); o[3] = BITS(__float2half_ru(a));)
MAP1(half_from_double, double, u16, 2, o[0] = BITS(__double2half(a)); o[1] = BBITS(__double2bfloat16(a));)
MAP1(half_from_int, s32, u16, 5, o[0] = BITS(__int2half_rn(a)); o[1] = BITS(__int2half_rz(a));
     o[2] = BITS(__uint2half_ru((u32)a)); o[3] = BITS(__short2half_rn((s16)a)); o[4] = BBITS(__int2bfloat16_rn(a));)
MAP1(bfloat_from_float, float, u16, 4, o[0] = BBITS(__float2bfloat16_rn(a)); o[1] = BBITS(__float2bfloat16_rz(a));
     o[2] = BBITS(__float2bfloat16_rd(a)); o[3] = BBITS(__float2bfloat16_ru(a));)
#if __CUDA_ARCH__ >= 800
MAP2(half_pairs_from_floats, float, float, u32, 3, __half2 h = __floats2half2_rn(a, b); o[0] = *(u32 *)&h;
     __nv_bfloat162 l = __floats2bfloat162_rn(a, b); o[1] = *(u32 *)&l;
     asm volatile("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(o[2]) : "f"(b), "f"(a));)
#endif
MAP2(bfloat_arithmetic, u16, u16, u16, 4, o[0] = BBITS(__hadd(BF(a), BF(b))); o[1] = BBITS(__hsub(BF(a), BF(b)));
     o[2] = BBITS(__hmul(BF(a), BF(b))); o[3] = BBITS(__hdiv(BF(a), BF(b)));)
#if __CUDA_ARCH__ >= 800
MAP3(bfloat_fma, u16, u16, u16, u16, 2, o[0] = BBITS(__hfma(BF(a), BF(b), BF(c)));
     o[1] = BBITS(__hfma_relu(BF(a), BF(b), BF(c)));)
MAP2(bfloat_min_max, u16, u16, u16, 4, o[0] = BBITS(__hmin(BF(a), BF(b))); o[1] = BBITS(__hmax(BF(a), BF(b)));
     o[2] = BBITS(__hmin_nan(BF(a), BF(b))); o[3] = BBITS(__hmax_nan(BF(a), BF(b)));)
MAP2(bfloat_pairs, u32, u32, u32, 4, __nv_bfloat162 x = *(__nv_bfloat162 *)&a; __nv_bfloat162 y = *(__nv_bfloat162 *)&b;
     __nv_bfloat162 r; r = __hadd2(x, y); o[0] = *(u32 *)&r; r = __hmul2(x, y); o[1] = *(u32 *)&r; r = __hfma2(x, y, y);
     o[2] = *(u32 *)&r; r = __hneg2(x); o[3] = *(u32 *)&r;)
#endif
