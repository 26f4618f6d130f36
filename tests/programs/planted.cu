// Mistakes that a GPU hides, one for each argument, for the sanitizer of the software GPU. Natively all of them pass.
// nvcc: -lineinfo
// runs: by hand
#include <cstdio>
#include <cstring>

#include "check.h"

const int N = 128;

__global__ void reverse(int *out, const int *in, bool wait)
{
    __shared__ int tile[N];
    tile[threadIdx.x] = in[threadIdx.x];
    if (wait)
        __syncthreads();
    out[threadIdx.x] = tile[N - 1 - threadIdx.x];
}

__global__ void neighbours(int *data, bool same)
{
    int own = blockIdx.x * blockDim.x + threadIdx.x;
    data[own] = own;
    int other = same ? own : (own + blockDim.x) % N;
    data[N + own] = data[other];
}

__global__ void sum(int *total, const int *in)
{
    atomicAdd(total, in[threadIdx.x]);
}

__global__ void early(int *out, int n)
{
    if (threadIdx.x >= n)
        return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "nothing";
    auto is = [&](const char *name) { return strcmp(what, name) == 0; };
    int *data, *in;
    OK(cudaMalloc(&data, 2 * N * sizeof(int)));
    OK(cudaMalloc(&in, N * sizeof(int)));
    int host[N];
    for (int i = 0; i < N; i++)
        host[i] = i;
    OK(cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice));

    reverse<<<1, N>>>(data, in, !is("race"));
    neighbours<<<4, N / 4>>>(data, !is("global-race"));
    OK(cudaGetLastError());
    int *total;
    OK(cudaMalloc(&total, sizeof(int)));
    if (!is("init"))
        OK(cudaMemset(total, 0, sizeof(int)));
    sum<<<1, N>>>(total, in);
    early<<<1, N>>>(data, is("sync") ? N - 3 : N);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost));
    OK(cudaFree(data));
    OK(cudaFree(total));
    if (is("double-free"))
        cudaFree(total);
    if (!is("leak"))
        OK(cudaFree(in));
    return pass();
}
