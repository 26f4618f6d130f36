// The functions that the hardware approximates, and the mathematical library on top of them.
#include "common.h"

MAP1(approx_ex2, float, float, 2, PTX1("ex2.approx.f32", "f", o[0], "f", a);
     PTX1("ex2.approx.ftz.f32", "f", o[1], "f", a);)
MAP1(approx_lg2, float, float, 2, PTX1("lg2.approx.f32", "f", o[0], "f", a);
     PTX1("lg2.approx.ftz.f32", "f", o[1], "f", a);)
MAP1(approx_sin_cos, float, float, 2, PTX1("sin.approx.f32", "f", o[0], "f", a);
     PTX1("cos.approx.f32", "f", o[1], "f", a);)
MAP1(approx_rcp, float, float, 1, PTX1("rcp.approx.ftz.f32", "f", o[0], "f", a);)
MAP1(approx_sqrt, float, float, 2, PTX1("sqrt.approx.f32", "f", o[0], "f", a);
     PTX1("rsqrt.approx.f32", "f", o[1], "f", a);)
MAP1(approx_rsqrt_double, double, double, 1, PTX1("rsqrt.approx.f64", "d", o[0], "d", a);)
MAP1(approx_tanh, float, float, 1, PTX1("tanh.approx.f32", "f", o[0], "f", a);)
MAP2(approx_div, float, float, float, 2, PTX2("div.approx.f32", "f", o[0], "f", a, "f", b);
     PTX2("div.full.f32", "f", o[1], "f", a, "f", b);)

MAP1(math_float, float, float, 16, o[0] = expf(a); o[1] = logf(fabsf(a)); o[2] = sinf(a); o[3] = cosf(a); o[4] = tanf(a);
     o[5] = atanf(a); o[6] = tanhf(a); o[7] = cbrtf(a); o[8] = erff(a); o[9] = log1pf(fabsf(a)); o[10] = expm1f(a);
     o[11] = floorf(a); o[12] = ceilf(a); o[13] = truncf(a); o[14] = rintf(a); o[15] = roundf(a);)
MAP1(math_double, double, double, 16, o[0] = exp(a); o[1] = log(fabs(a)); o[2] = sin(a); o[3] = cos(a); o[4] = tan(a);
     o[5] = atan(a); o[6] = tanh(a); o[7] = cbrt(a); o[8] = erf(a); o[9] = log1p(fabs(a)); o[10] = expm1(a);
     o[11] = floor(a); o[12] = ceil(a); o[13] = trunc(a); o[14] = rint(a); o[15] = round(a);)
MAP2(math_pairs, double, double, double, 8, o[0] = pow(fabs(a), b); o[1] = fmod(a, b); o[2] = atan2(a, b);
     o[3] = hypot(a, b); o[4] = remainder(a, b); o[5] = fdim(a, b); o[6] = nextafter(a, b);
     o[7] = powf((float)fabs(a), (float)b);)
MAP1(math_parts, double, double, 5, int e; o[0] = frexp(a, &e); o[1] = e; double whole; o[2] = modf(a, &whole);
     o[3] = whole; o[4] = ldexp(o[0], e);)
MAP1(math_huge_angles, float, float, 2, o[0] = sinf(a); o[1] = cosf(a);)
