// nvcc: -arch=compute_90
// Products of matrices by whole warps.
#include "common.h"
#if __CUDA_ARCH__ >= 700
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;

template <typename T, typename S, int M, int N, int K, typename LA, typename LB>
__device__ void wmma_product(const T *a, const T *b, S *c, int lda, int ldb, int ldc, bool by_columns) {
    wmma::fragment<wmma::matrix_a, M, N, K, T, LA> fa;
    wmma::fragment<wmma::matrix_b, M, N, K, T, LB> fb;
    wmma::fragment<wmma::accumulator, M, N, K, S> fc;
    auto layout = by_columns ? wmma::mem_col_major : wmma::mem_row_major;
    wmma::load_matrix_sync(fa, a, lda);
    wmma::load_matrix_sync(fb, b, ldb);
    wmma::load_matrix_sync(fc, c, ldc, layout);
    for (int i = 0; i < fc.num_elements; i++) fc.x[i] = fc.x[i] + fc.x[i];
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, ldc, layout);
}
// 2 c + a b; leading dimensions are larger than the matrices.
#define WMMA(name, T, S, M, N, K, LA, LB, BY)                                                                          \
    KERNEL name(const T *a, const T *b, S *c, int lda, int ldb, int ldc) {                                             \
        wmma_product<T, S, M, N, K, wmma::LA, wmma::LB>(a, b, c, lda, ldb, ldc, BY);                                   \
    }
WMMA(wmma_f16_f32, half, float, 16, 16, 16, row_major, col_major, false)
WMMA(wmma_f16_f16, half, half, 16, 16, 16, col_major, row_major, true)
WMMA(wmma_f16_32x8, half, float, 32, 8, 16, row_major, row_major, false)
WMMA(wmma_f16_8x32, half, float, 8, 32, 16, col_major, col_major, true)
#if __CUDA_ARCH__ >= 800
WMMA(wmma_bf16, __nv_bfloat16, float, 16, 16, 16, row_major, row_major, false)
#endif
#if __CUDA_ARCH__ >= 720
WMMA(wmma_s8, signed char, int, 16, 16, 16, row_major, col_major, false)
WMMA(wmma_u8_32x8, unsigned char, int, 32, 8, 16, col_major, row_major, true)
#endif
#if __CUDA_ARCH__ >= 800
WMMA(wmma_f64, double, double, 8, 8, 4, row_major, col_major, false)
KERNEL wmma_tf32(const float *a, const float *b, float *c, int lda, int ldb, int ldc) {
    wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> fc;
    wmma::load_matrix_sync(fa, a, lda);
    wmma::load_matrix_sync(fb, b, ldb);
    wmma::load_matrix_sync(fc, c, ldc, wmma::mem_row_major);
    for (int i = 0; i < fa.num_elements; i++) fa.x[i] = wmma::__float_to_tf32(fa.x[i]);
    for (int i = 0; i < fb.num_elements; i++) fb.x[i] = wmma::__float_to_tf32(fb.x[i]);
    for (int i = 0; i < fc.num_elements; i++) fc.x[i] = 2 * fc.x[i];
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, ldc, wmma::mem_row_major);
}
#endif

// Fragments go to and from memory as they lie in the registers: the test knows the layout.
#define D4(d) "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
KERNEL mma_f16_k16(const u32 *a, const u32 *b, const float *c, float *d) {
    u32 l = threadIdx.x;
    const u32 *x = a + l * 4, *y = b + l * 2;
    const float *z = c + l * 4;
    float r[4];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%10,%11,%12,%13};"
                 : D4(r) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "f"(z[0]), "f"(z[1]),
                   "f"(z[2]), "f"(z[3]));
    for (int i = 0; i < 4; i++) d[l * 4 + i] = r[i];
}
KERNEL mma_f16_k8(const u32 *a, const u32 *b, const float *c, float *d) {
    u32 l = threadIdx.x;
    const float *z = c + l * 4;
    float r[4];
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
                 : D4(r) : "r"(a[l * 2]), "r"(a[l * 2 + 1]), "r"(b[l]), "f"(z[0]), "f"(z[1]), "f"(z[2]), "f"(z[3]));
    for (int i = 0; i < 4; i++) d[l * 4 + i] = r[i];
}
KERNEL mma_f16_f16(const u32 *a, const u32 *b, const u32 *c, u32 *d) {
    u32 l = threadIdx.x;
    const u32 *x = a + l * 4, *y = b + l * 2;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%8,%9};"
                 : "=r"(d[l * 2]), "=r"(d[l * 2 + 1]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]),
                   "r"(y[1]), "r"(c[l * 2]), "r"(c[l * 2 + 1]));
}
KERNEL mma_bf16_k16(const u32 *a, const u32 *b, const float *c, float *d) {
    u32 l = threadIdx.x;
    const u32 *x = a + l * 4, *y = b + l * 2;
    const float *z = c + l * 4;
    float r[4];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%10,%11,%12,%13};"
                 : D4(r) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "f"(z[0]), "f"(z[1]),
                   "f"(z[2]), "f"(z[3]));
    for (int i = 0; i < 4; i++) d[l * 4 + i] = r[i];
}
KERNEL mma_tf32_k8(const u32 *a, const u32 *b, const float *c, float *d) {
    u32 l = threadIdx.x;
    const u32 *x = a + l * 4, *y = b + l * 2;
    const float *z = c + l * 4;
    float r[4];
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%10,%11,%12,%13};"
                 : D4(r) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "f"(z[0]), "f"(z[1]),
                   "f"(z[2]), "f"(z[3]));
    for (int i = 0; i < 4; i++) d[l * 4 + i] = r[i];
}
#define S4(d) "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
KERNEL mma_s8_k32(const u32 *a, const u32 *b, const u32 *c, u32 *d) {
    u32 l = threadIdx.x, r[4];
    const u32 *x = a + l * 4, *y = b + l * 2, *z = c + l * 4;
    asm volatile("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%10,%11,%12,%13};"
                 : S4(r) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(z[0]), "r"(z[1]),
                   "r"(z[2]), "r"(z[3]));
    for (int i = 0; i < 4; i++) d[l * 4 + i] = r[i];
}
KERNEL mma_s8_k16(const u32 *a, const u32 *b, const u32 *c, u32 *d) {
    u32 l = threadIdx.x;
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%4,%5};"
                 : "=r"(d[l * 2]), "=r"(d[l * 2 + 1]) : "r"(a[l]), "r"(b[l]), "r"(c[l * 2]), "r"(c[l * 2 + 1]));
}
KERNEL mma_f64(const double *a, const double *b, const double *c, double *d) {
    u32 l = threadIdx.x;
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%4,%5};"
                 : "=d"(d[l * 2]), "=d"(d[l * 2 + 1]) : "d"(a[l]), "d"(b[l]), "d"(c[l * 2]), "d"(c[l * 2 + 1]));
}
KERNEL matrix_load(const u16 *in, u32 *out) {
    __shared__ __align__(16) u16 tile[32 * 8];
    u32 l = threadIdx.x;
    for (u32 i = l; i < 256; i += 32) tile[i] = in[i];
    __syncwarp();
    u32 at = (u32)__cvta_generic_to_shared(tile + l * 8), *o = out + l * 11;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(o[0]), "=r"(o[1]), "=r"(o[2]), "=r"(o[3]) : "r"(at));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(o[4]), "=r"(o[5]), "=r"(o[6]), "=r"(o[7]) : "r"(at));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(o[8]), "=r"(o[9]) : "r"(at));
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(o[10]) : "r"(at));
}
KERNEL matrix_store(const u32 *in, u16 *out, u32 *moved) {
    __shared__ __align__(16) u16 tile[32 * 8];
    u32 l = threadIdx.x;
    u32 at = (u32)__cvta_generic_to_shared(tile + l * 8);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
                 ::"r"(at), "r"(in[l * 4]), "r"(in[l * 4 + 1]), "r"(in[l * 4 + 2]), "r"(in[l * 4 + 3]) : "memory");
    __syncwarp();
    for (u32 i = l; i < 256; i += 32) out[i] = tile[i];
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(moved[l]) : "r"(in[l * 4]));
}
// A product of 64 × 64 × 64 through shared memory, as libraries do it.
KERNEL matrix_tiled(const half *a, const half *b, float *c) {
    __shared__ half ta[64 * 16], tb[16 * 64];
    u32 warp = threadIdx.x / 32, row = warp / 2 * 32, column = warp % 2 * 32;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][2];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) wmma::fill_fragment(sum[i][j], 0.0f);
    for (u32 k = 0; k < 64; k += 16) {
        for (u32 i = threadIdx.x; i < 64 * 16; i += blockDim.x) {
            ta[i] = a[i / 16 * 64 + k + i % 16];
            tb[i] = b[(k + i / 64) * 64 + i % 64];
        }
        __syncthreads();
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 2; j++) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
                wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
                wmma::load_matrix_sync(fa, ta + (row + i * 16) * 16, 16);
                wmma::load_matrix_sync(fb, tb + column + j * 16, 64);
                wmma::mma_sync(sum[i][j], fa, fb, sum[i][j]);
            }
        __syncthreads();
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            wmma::store_matrix_sync(c + (row + i * 16) * 64 + column + j * 16, sum[i][j], 64, wmma::mem_row_major);
}
#endif
