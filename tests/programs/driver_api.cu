// The driver API by itself: context, PTX text as a module, globals, launches. Linked with libcuda.
#include "check.h"
#include <cuda.h>

#define DRIVER(call) EXPECT_DRIVER(CUDA_SUCCESS, call)
#define EXPECT_DRIVER(error, call)                                                                                     \
    do {                                                                                                               \
        CUresult got_ = (call);                                                                                        \
        const char *name_ = "?";                                                                                       \
        if (got_ != (error)) {                                                                                         \
            cuGetErrorName(got_, &name_);                                                                              \
            fail(__FILE__, __LINE__, #call, name_);                                                                    \
        }                                                                                                              \
    } while (0)

static const char *ptx = R"(
.version 7.0
.target sm_52
.address_size 64

.global .align 4 .u32 offset = 5;

.visible .entry shift(.param .u64 data, .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p bra DONE;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.u32 %r6, [%rd4];
    ld.global.u32 %r7, [offset];
    add.s32 %r6, %r6, %r7;
    st.global.u32 [%rd4], %r6;
DONE:
    ret;
}
)";

int main() {
    CUdevice device;
    CUcontext context, current = nullptr;
    int version = 0, count = 0, major = 0;
    char name[128] = "";
    size_t total = 0;
    EXPECT_DRIVER(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGet(&device, 0));
    DRIVER(cuInit(0));
    DRIVER(cuDriverGetVersion(&version));
    CHECK(version >= 11080);
    DRIVER(cuDeviceGetCount(&count));
    CHECK(count >= 1);
    EXPECT_DRIVER(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, count));
    DRIVER(cuDeviceGet(&device, 0));
    DRIVER(cuDeviceGetName(name, sizeof name, device));
    DRIVER(cuDeviceTotalMem(&total, device));
    DRIVER(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    CHECK(name[0] != 0 && total > 0 && major >= 5);
    DRIVER(cuDevicePrimaryCtxRetain(&context, device));
    DRIVER(cuCtxGetCurrent(&current));
    CHECK(current == nullptr); // retaining does not make it current
    DRIVER(cuCtxPushCurrent(context));
    DRIVER(cuCtxGetCurrent(&current));
    CHECK(current == context);

    CUmodule module;
    CUfunction shift, missing;
    CUdeviceptr offset, data;
    size_t size = 0;
    int threads = 0;
    DRIVER(cuModuleLoadData(&module, ptx));
    EXPECT_DRIVER(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&missing, module, "no_such_kernel"));
    DRIVER(cuModuleGetFunction(&shift, module, "shift"));
    DRIVER(cuModuleGetGlobal(&offset, &size, module, "offset"));
    CHECK(size == 4);
    DRIVER(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, shift));
    CHECK(threads >= 256);
    CUmodule broken;
    EXPECT_DRIVER(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&broken, ".version 7.0\n.target sm_52\nthis is no PTX"));

    unsigned n = 1000;
    std::vector<unsigned> host(n);
    for (unsigned i = 0; i < n; i++) host[i] = i * 3;
    DRIVER(cuMemAlloc(&data, n * 4));
    DRIVER(cuMemcpyHtoD(data, host.data(), n * 4));
    void *arguments[] = {&data, &n};
    DRIVER(cuLaunchKernel(shift, 8, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr)); // adds 5
    unsigned more = 100;
    DRIVER(cuMemcpyHtoD(offset, &more, 4));
    CUstream stream;
    DRIVER(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    DRIVER(cuLaunchKernel(shift, 8, 1, 1, 128, 1, 1, 0, stream, arguments, nullptr)); // adds 100
    DRIVER(cuStreamSynchronize(stream));
    DRIVER(cuMemcpyDtoH(host.data(), data, n * 4));
    for (unsigned i = 0; i < n; i++) CHECK(host[i] == i * 3 + 105);

    CUdeviceptr base = 0;
    DRIVER(cuMemGetAddressRange(&base, &size, data + 44));
    CHECK(base == data && size == n * 4);
    DRIVER(cuMemFree(data));
    DRIVER(cuStreamDestroy(stream));
    DRIVER(cuModuleUnload(module));
    DRIVER(cuCtxPopCurrent(&current));
    DRIVER(cuDevicePrimaryCtxRelease(device));
    return pass();
}
