// Textures and surfaces, by objects.
#include "common.h"

#define AT(kind, expression)                                                                                           \
    KERNEL kind(cudaTextureObject_t texture, const float4 *places, float *out, int n) {                                \
        int i = INDEX;                                                                                                 \
        if (i >= n) return;                                                                                            \
        float4 p = places[i];                                                                                          \
        out[i] = expression;                                                                                           \
    }
AT(texture_1d, tex1D<float>(texture, p.x))
AT(texture_2d, tex2D<float>(texture, p.x, p.y))
AT(texture_3d, tex3D<float>(texture, p.x, p.y, p.z))
AT(texture_layered_1d, tex1DLayered<float>(texture, p.x, (int)p.w))
AT(texture_layered_2d, tex2DLayered<float>(texture, p.x, p.y, (int)p.w))
AT(texture_level, tex2DLod<float>(texture, p.x, p.y, p.z))
AT(texture_cube, texCubemap<float>(texture, p.x, p.y, p.z))
AT(texture_fetch, tex1Dfetch<float>(texture, (int)p.x))
KERNEL texture_2d_v4(cudaTextureObject_t texture, const float4 *places, float4 *out, int n) {
    int i = INDEX;
    if (i < n) out[i] = tex2D<float4>(texture, places[i].x, places[i].y);
}
KERNEL texture_2d_bytes(cudaTextureObject_t texture, const float4 *places, uchar4 *out, int n) {
    int i = INDEX;
    if (i < n) out[i] = tex2D<uchar4>(texture, places[i].x, places[i].y);
}
KERNEL texture_2d_shorts(cudaTextureObject_t texture, const float4 *places, short2 *out, int n) {
    int i = INDEX;
    if (i < n) out[i] = tex2D<short2>(texture, places[i].x, places[i].y);
}
KERNEL texture_gather(cudaTextureObject_t texture, const float4 *places, float4 *out, int n) {
    int i = INDEX;
    if (i < n) out[i] = tex2Dgather<float4>(texture, places[i].x, places[i].y, 1);
}
KERNEL surface_2d(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    u32 value;
    surf2Dread(&value, from, x * 4, y);
    surf2Dwrite(value * 3 + 1, to, (width - 1 - x) * 4, height - 1 - y);
}
KERNEL surface_widths(cudaSurfaceObject_t surface, u32 *out) {
    int i = threadIdx.x;
    surf2Dwrite((unsigned char)(i * 7), surface, i, 0);
    surf2Dwrite((unsigned short)(i * 777), surface, i * 2, 1);
    surf2Dwrite(make_uint2(i, i * 3), surface, i * 8, 2);
    surf2Dwrite(make_uint4(i, i + 1, i + 2, i + 3), surface, i * 16, 3);
    __syncthreads();
    out[i * 4] = surf2Dread<unsigned char>(surface, i, 0);
    out[i * 4 + 1] = surf2Dread<unsigned short>(surface, i * 2, 1);
    uint2 two = surf2Dread<uint2>(surface, i * 8, 2);
    uint4 four = surf2Dread<uint4>(surface, i * 16, 3);
    out[i * 4 + 2] = two.x + two.y;
    out[i * 4 + 3] = four.x + four.y + four.z + four.w;
}
KERNEL surface_beside(cudaSurfaceObject_t surface, u32 *out, int width, int height) {
    int i = threadIdx.x;
    u32 a, b;
    surf2Dread(&a, surface, (i - 4) * 4, i - 2, cudaBoundaryModeZero);
    surf2Dread(&b, surface, (i - 4) * 4, i - 2, cudaBoundaryModeClamp);
    out[i * 2] = a;
    out[i * 2 + 1] = b;
}
KERNEL surface_3d(cudaSurfaceObject_t surface, int side) {
    int x = threadIdx.x, y = threadIdx.y, z = blockIdx.x;
    surf3Dwrite((float)(x + 10 * y + 100 * z), surface, x * 4, y, z);
}
KERNEL surface_layered(cudaSurfaceObject_t surface, int layers) {
    int x = threadIdx.x, y = threadIdx.y;
    for (int l = 0; l < layers; l++) surf2DLayeredwrite((float)(x * y + l), surface, x * 4, y, l);
}
