// Host memory that the device reaches: allocated, mapped into kernels, and registered.
// runtimes: all
#include "check.h"
#include <sys/mman.h>

__global__ void triple(const unsigned *in, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * 3;
}

static void run(unsigned *in, unsigned *out, int n) {
    triple<<<(n + 63) / 64, 64>>>(in, out, n);
    LAUNCHED();
    OK(cudaDeviceSynchronize());
}

int main() {
    const int n = 10000;
    unsigned *host, *mapped_in, *mapped_out, *device;

    // As the source and target of copies.
    OK(cudaMallocHost(&host, n * sizeof(unsigned)));
    OK(cudaMalloc(&device, n * sizeof(unsigned)));
    for (int i = 0; i < n; i++) host[i] = pattern(i, 1);
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemcpyAsync(device, host, n * sizeof(unsigned), cudaMemcpyHostToDevice, stream));
    OK(cudaStreamSynchronize(stream));
    memset(host, 0, n * sizeof(unsigned));
    OK(cudaMemcpyAsync(host, device, n * sizeof(unsigned), cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < n; i++) CHECK(host[i] == pattern(i, 1));

    // Read and written by a kernel in place.
    OK(cudaHostAlloc(&mapped_in, n * sizeof(unsigned), cudaHostAllocMapped));
    OK(cudaHostAlloc(&mapped_out, n * sizeof(unsigned), cudaHostAllocMapped | cudaHostAllocPortable));
    for (int i = 0; i < n; i++) mapped_in[i] = pattern(i, 2);
    unsigned *in_there, *out_there;
    OK(cudaHostGetDevicePointer(&in_there, mapped_in, 0));
    OK(cudaHostGetDevicePointer(&out_there, mapped_out, 0));
    run(in_there, out_there, n);
    for (int i = 0; i < n; i++) CHECK(mapped_out[i] == pattern(i, 2) * 3);
    unsigned flags = 0;
    OK(cudaHostGetFlags(&flags, mapped_out));
    CHECK(flags & cudaHostAllocMapped);
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, mapped_in));
    CHECK(attributes.type == cudaMemoryTypeHost && attributes.hostPointer == mapped_in);
    OK(cudaPointerGetAttributes(&attributes, device));
    CHECK(attributes.type == cudaMemoryTypeDevice && attributes.devicePointer == device);

    // The program's own memory, pinned afterwards.
    size_t bytes = 1 << 20;
    unsigned *own = (unsigned *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
    for (int i = 0; i < n; i++) own[i] = pattern(i, 4);
    OK(cudaHostRegister(own, bytes, cudaHostRegisterMapped));
    CHECK(own[n - 1] == pattern(n - 1, 4)); // registering keeps the contents
    EXPECT(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(own, bytes, cudaHostRegisterMapped));
    cudaGetLastError();
    OK(cudaHostGetDevicePointer(&in_there, own, 0));
    run(in_there, out_there, n);
    for (int i = 0; i < n; i++) CHECK(mapped_out[i] == pattern(i, 4) * 3);
    own[0] = 1234; // what is written after registering is seen as well
    run(in_there, out_there, 1);
    CHECK(mapped_out[0] == 1234 * 3);
    OK(cudaHostUnregister(own));
    CHECK(own[1] == pattern(1, 4));
    EXPECT(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(own));
    cudaGetLastError();
    munmap(own, bytes);

    OK(cudaFreeHost(mapped_in));
    OK(cudaFreeHost(mapped_out));
    OK(cudaFreeHost(host));
    OK(cudaFree(device));
    OK(cudaStreamDestroy(stream));
    return pass();
}
