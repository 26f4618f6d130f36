/* Publishes a buffer under a name, and ends when a consumer is done with it.
 *
 *     cc -I include -I $CUDA/include examples/publish/produce.c -o produce -l:libcuda.so.1
 *     bulkhead run --socket /tmp/demo/admin.sock --zone demo -- ./produce weights
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
    enum { COUNT = 1 << 20 };
    CUcontext context;
    CUdeviceptr memory;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&memory, COUNT * 4));
    OK(cuMemsetD32(memory, 42, COUNT));

    bulkhead_ipc_offer offer = {0};
    OK(cuIpcGetMemHandle((CUipcMemHandle *)offer.memory, memory));
    offer.bytes = COUNT * 4;
    OK(cuCtxSynchronize()); /* waiting clients may read it at once */
    int fd = bulkhead_ipc_publish(name, &offer);
    if (fd < 0) return fprintf(stderr, "cannot publish: %s\n", strerror(-fd)), 1;
    printf("published %s\n", name);
    fflush(stdout);

    int died = bulkhead_ipc_wait_done(fd, 1, 60000);
    if (died) return fprintf(stderr, "%s\n", died < 0 ? strerror(-died) : "the consumer died"), 1;
    bulkhead_ipc_done(fd);

    unsigned first;
    OK(cuMemcpyDtoH(&first, memory, 4));
    OK(cuMemFree(memory));
    printf("the consumer is done, and left %u there\n", first);
    return first == 43 ? 0 : 1;
}
