#include <cstdio>
#include <cassert>
__global__ void saxpy(int n, float a, const float*x, float*y){int i=blockIdx.x*blockDim.x+threadIdx.x; if(i<n) y[i]=a*x[i]+y[i];}
__global__ void reduce(const float*x,float*out,int n){ __shared__ float s[256]; int t=threadIdx.x; float v=0; for(int i=blockIdx.x*blockDim.x+t;i<n;i+=gridDim.x*blockDim.x) v+=x[i]; s[t]=v; __syncthreads(); for(int k=128;k>0;k/=2){ if(t<k) s[t]+=s[t+k]; __syncthreads();} if(t==0) atomicAdd(out,s[0]);}
__global__ void matmul(const float*a,const float*b,float*c,int n){ __shared__ float as[16][16],bs[16][16]; int x=blockIdx.x*16+threadIdx.x,y=blockIdx.y*16+threadIdx.y; float s=0; for(int k=0;k<n;k+=16){ as[threadIdx.y][threadIdx.x]=a[y*n+k+threadIdx.x]; bs[threadIdx.y][threadIdx.x]=b[(k+threadIdx.y)*n+x]; __syncthreads(); for(int j=0;j<16;j++) s+=as[threadIdx.y][j]*bs[j][threadIdx.x]; __syncthreads();} c[y*n+x]=s;}
__global__ void hello(int k){ printf("hello %d %s %f %lld\n", k, "str", 1.5*k, 1234567890123LL); assert(k<5); }
__device__ int table[4]={1,2,3,4}; __constant__ float cc[3]={1.f,2.f,3.f};
__device__ __noinline__ int fib(int n){ return n<2?n:fib(n-1)+fib(n-2);}
struct S{int a[5]; double d;};
__global__ void misc(S s,int*o,int n){ int l[16]; for(int i=0;i<n;i++) l[i&15]=i*s.a[i%5]; o[threadIdx.x]=l[threadIdx.x&15]+table[n&3]+(int)cc[n%3]+fib(n)+s.d; }
__global__ void warp(int*o){ int v=threadIdx.x; for(int k=16;k;k/=2) v+=__shfl_down_sync(~0u,v,k); unsigned b=__ballot_sync(~0u,v&1); o[threadIdx.x]=v+b+__activemask(); }
typedef int(*fp)(int); __device__ int f1(int x){return x+1;} __device__ int f2(int x){return x*2;} __device__ fp tab[2]={f1,f2};
__global__ void indirect(int*o,int k){ o[threadIdx.x]=tab[k&1](threadIdx.x); }
__global__ void sw(int*o,int k){ switch(o[threadIdx.x]){case 0:k+=3;break;case 1:k*=7;break;case 2:k^=55;break;case 3:k=k/9;break;case 4:k=o[k];break;case 5:k<<=3;break;case 6:k=__popc(k);break;} o[threadIdx.x]=k;}
__global__ void mathk(float*x,double*d){ int i=threadIdx.x; x[i]=sinf(x[i])+expf(x[i])+powf(x[i],2.5f)+x[i]/3.f+rsqrtf(x[i])+__sinf(x[i]); d[i]=exp(d[i])/sqrt(d[i])+sin(d[i]); }
extern __shared__ int dyn[]; __global__ void atom(int*h,const int*x,unsigned long long*u,double*d,int n){ int t=threadIdx.x; dyn[t]=0; __syncthreads(); if(t<n) atomicAdd(&dyn[x[t]&15],1); __syncthreads(); atomicMax(&h[t&3],dyn[t]); atomicCAS(&h[4],1,t); atomicAdd(u,5ull); atomicAdd(d,1.5); atomicInc((unsigned*)&h[5],7); }
