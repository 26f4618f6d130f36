/* Waits for a buffer under a name, uses it, and says that it is done.
 *
 *     cc -I include -I $CUDA/include examples/publish/consume.c -o consume -l:libcuda.so.1
 *     bulkhead run --socket /tmp/demo/admin.sock --zone demo -- ./consume weights
 */
#include <cuda.h>
#include <stdio.h>

#include "bulkhead_ipc.h"

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        CUresult code = (call);                                                                                        \
        if (code) return fprintf(stderr, "%s: %d\n", #call, code), 1;                                                  \
    } while (0)

int main(int count, char **words) {
    const char *name = count > 1 ? words[1] : "weights";
    bulkhead_ipc_offer offer;
    int fd = bulkhead_ipc_wait(name, 60000, &offer);
    if (fd < 0) return fprintf(stderr, "nothing came: %s\n", strerror(-fd)), 1;

    CUcontext context;
    CUdeviceptr memory;
    CUipcMemHandle handle;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    memcpy(&handle, offer.memory, sizeof handle);
    OK(cuIpcOpenMemHandle(&memory, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CUdeviceptr buffer = memory + offer.offset;
    unsigned first;
    OK(cuMemcpyDtoH(&first, buffer, 4));
    printf("%llu bytes of zone %s, and %u is the first of them\n", (unsigned long long)offer.bytes, offer.zone, first);

    OK(cuMemsetD32(buffer, first + 1, offer.bytes / 4));
    OK(cuCtxSynchronize());
    OK(cuIpcCloseMemHandle(memory));
    bulkhead_ipc_done(fd);
    return first == 42 ? 0 : 1;
}
