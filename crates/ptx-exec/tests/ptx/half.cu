#include <cuda_fp16.h>
#include <cuda_bf16.h>
__global__ void halfk(__half*h,__half2*h2,__nv_bfloat16*b,float*f){ int i=threadIdx.x; h[i]=__hadd(__hmul(h[i],h[i]),__float2half(1.0f)); h2[i]=__hfma2(h2[i],h2[i],h2[i]); b[i]=__hadd(b[i],__float2bfloat16(f[i])); f[i]=__half2float(h[i])+__bfloat162float(b[i])+__low2float(h2[i]); if(__hgt(h[i],__float2half(3.f))) f[i]+=1; atomicAdd(&h2[0],h2[i]); h[i]=hexp(h[i])+hsqrt(h[i]); h2[i]=__hmax2(h2[i],__float2half2_rn(0.f)); b[i]=__hmax(b[i],__float2bfloat16(2.f)); }
