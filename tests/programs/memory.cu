// Device memory: allocation patterns, sets and copies in one, two and three dimensions.
// runtimes: all
#include "check.h"

static void allocations() {
    // Many sizes at once, freed in another order, each keeping its own contents.
    std::vector<unsigned char *> blocks;
    std::vector<size_t> sizes;
    for (size_t i = 0; i < 200; i++) sizes.push_back(1 + (i * i * 37) % 100000);
    for (size_t i = 0; i < sizes.size(); i++) {
        unsigned char *block;
        OK(cudaMalloc(&block, sizes[i]));
        CHECK((uintptr_t)block % 256 == 0);
        OK(cudaMemset(block, (int)(i & 0xff), sizes[i]));
        blocks.push_back(block);
    }
    for (size_t k = 0; k < sizes.size(); k++) {
        size_t i = (k * 73) % sizes.size();
        std::vector<unsigned char> back(sizes[i]);
        OK(cudaMemcpy(back.data(), blocks[i], sizes[i], cudaMemcpyDeviceToHost));
        for (unsigned char byte : back) CHECK(byte == (i & 0xff));
        OK(cudaFree(blocks[i]));
    }
    OK(cudaFree(nullptr));
    void *none = (void *)1;
    OK(cudaMalloc(&none, 0));
    OK(cudaFree(none));
}

static void linear_copies() {
    const size_t n = 300007;
    std::vector<unsigned> in(n), out(n);
    for (size_t i = 0; i < n; i++) in[i] = pattern(i);
    unsigned *a, *b;
    OK(cudaMalloc(&a, n * 4));
    OK(cudaMalloc(&b, n * 4));
    OK(cudaMemcpy(a, in.data(), n * 4, cudaMemcpyDefault));
    OK(cudaMemcpy(b, a, n * 4, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy(out.data(), b, n * 4, cudaMemcpyDefault));
    CHECK(in == out);
    // Offsets and odd lengths, within allocations.
    OK(cudaMemcpy((char *)a + 5, (char *)b + 11, 1001, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy(out.data(), (char *)a + 5, 1001, cudaMemcpyDeviceToHost));
    CHECK(memcmp(out.data(), (char *)in.data() + 11, 1001) == 0);
    // Asynchronously, in order: the host buffer may be reused once the stream is done.
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemsetAsync(a, 0xff, n * 4, stream));
    OK(cudaMemcpyAsync(a + 100, in.data(), 400, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(b, a, n * 4, cudaMemcpyDeviceToDevice, stream));
    OK(cudaMemcpyAsync(out.data(), b, n * 4, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < n; i++) CHECK(out[i] == (i >= 100 && i < 200 ? in[i - 100] : 0xffffffffu));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(a));
    OK(cudaFree(b));
}

static void flat_copies() {
    const size_t width = 300, height = 40;
    std::vector<unsigned char> in(width * height), out(width * height, 0);
    for (size_t i = 0; i < in.size(); i++) in[i] = (unsigned char)pattern(i);
    unsigned char *pitched;
    size_t pitch = 0;
    OK(cudaMallocPitch(&pitched, &pitch, width, height));
    CHECK(pitch >= width && pitch % 32 == 0);
    OK(cudaMemset2D(pitched, pitch, 0x5a, width, height));
    OK(cudaMemcpy2D(pitched + 3 * pitch + 7, pitch, in.data(), width, 100, 20, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(out.data(), width, pitched, pitch, width, height, cudaMemcpyDeviceToHost));
    for (size_t y = 0; y < height; y++) {
        for (size_t x = 0; x < width; x++) {
            bool inside = y >= 3 && y < 23 && x >= 7 && x < 107;
            CHECK(out[y * width + x] == (inside ? in[(y - 3) * width + (x - 7)] : 0x5a));
        }
    }
    OK(cudaFree(pitched));
}

static void deep_copies() {
    const size_t w = 64, h = 10, d = 5;
    std::vector<unsigned char> in(w * h * d), out(w * h * d, 0);
    for (size_t i = 0; i < in.size(); i++) in[i] = (unsigned char)pattern(i, 3);
    cudaPitchedPtr box;
    cudaExtent extent = make_cudaExtent(w, h, d);
    OK(cudaMalloc3D(&box, extent));
    OK(cudaMemset3D(box, 0x77, extent));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(in.data(), w, w, h);
    copy.dstPtr = box;
    copy.extent = make_cudaExtent(w, h, d - 1); // the last plane keeps what was set
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
    copy.srcPtr = box;
    copy.dstPtr = make_cudaPitchedPtr(out.data(), w, w, h);
    copy.extent = extent;
    copy.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&copy));
    for (size_t i = 0; i < in.size(); i++) CHECK(out[i] == (i < w * h * (d - 1) ? in[i] : 0x77));
    OK(cudaFree(box.ptr));
}

int main() {
    allocations();
    linear_copies();
    flat_copies();
    deep_copies();
    return pass();
}
