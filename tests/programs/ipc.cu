// Two processes share device memory and an event: the classic producer and consumer, which is this program once more.
// What they tell each other goes through pipes.
#include "check.h"

// What the producer hands over.
struct Offer {
    cudaIpcMemHandle_t memory, small;
    cudaIpcEventHandle_t event;
};

constexpr int COUNT = 1 << 20, SMALL = 1000;

__global__ void fill(int *data, int count, int from) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) data[i] = from + i;
}

// Fills slowly, so that a reader that does not wait sees it half done.
__global__ void fill_slowly(int *data, int count, int from) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) data[i] = from + i;
}

static void put(int fd, const void *data, size_t size) { CHECK(write(fd, data, size) == (ssize_t)size); }
static void get(int fd, void *data, size_t size) { CHECK(read(fd, data, size) == (ssize_t)size); }

// Says a step, and waits for the other to say the same.
static void step(int in, int out, char what) {
    char heard = 0;
    put(out, &what, 1);
    get(in, &heard, 1);
    CHECK(heard == what);
}

static void check(const int *data, int count, int from) {
    std::vector<int> back(count);
    OK(cudaMemcpy(back.data(), data, count * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i++) CHECK(back[i] == from + i);
}

static int consumer(int in, int out) {
    Offer offer;
    get(in, &offer, sizeof offer);
    int *memory, *small, *again, *mine;
    cudaEvent_t event;
    OK(cudaIpcOpenMemHandle((void **)&memory, offer.memory, cudaIpcMemLazyEnablePeerAccess));
    OK(cudaIpcOpenMemHandle((void **)&small, offer.small, cudaIpcMemLazyEnablePeerAccess));
    OK(cudaIpcOpenEventHandle(&event, offer.event));
    check(memory, COUNT, 1);
    check(small, SMALL, 2);
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, memory));
    CHECK(attributes.type == cudaMemoryTypeDevice);
    step(in, out, 'a');
    // The producer fills it once more and records the event; the stream waits, this process does not.
    step(in, out, 'b');
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMalloc(&mine, COUNT * sizeof(int)));
    OK(cudaStreamWaitEvent(stream, event, 0));
    OK(cudaMemcpyAsync(mine, memory, COUNT * sizeof(int), cudaMemcpyDeviceToDevice, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaEventQuery(event));
    check(mine, COUNT, 3);
    // The other way round: this process writes, and records the other's event.
    fill_slowly<<<1, 128, 0, stream>>>(memory, COUNT, 4);
    LAUNCHED();
    OK(cudaEventRecord(event, stream));
    step(in, out, 'c');
    step(in, out, 'd');
    OK(cudaIpcCloseMemHandle(memory));
    OK(cudaIpcOpenMemHandle((void **)&again, offer.memory, cudaIpcMemLazyEnablePeerAccess));
    check(again, COUNT, 4);
    OK(cudaIpcCloseMemHandle(again));
    OK(cudaIpcCloseMemHandle(small));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(mine));
    step(in, out, 'e');
    return 0;
}

int main(int count, char **words) {
    if (count == 3) return consumer(atoi(words[1]), atoi(words[2]));
    int there[2], back[2];
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    // Before CUDA is used: a child of a process that uses it has no use for the copy.
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char in[16], out[16];
        snprintf(in, sizeof in, "%d", there[0]);
        snprintf(out, sizeof out, "%d", back[1]);
        close(there[1]);
        close(back[0]);
        execl("/proc/self/exe", words[0], in, out, nullptr);
        _exit(127);
    }
    close(there[0]);
    close(back[1]);
    int in = back[0], out = there[1];

    int *memory, *small;
    cudaEvent_t event;
    Offer offer;
    OK(cudaMalloc(&memory, COUNT * sizeof(int)));
    OK(cudaMalloc(&small, SMALL * sizeof(int)));
    EXPECT(cudaErrorInvalidValue, cudaEventCreateWithFlags(&event, cudaEventInterprocess));
    EXPECT(cudaErrorInvalidValue, cudaGetLastError());
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    fill<<<COUNT / 256, 256>>>(memory, COUNT, 1);
    fill<<<(SMALL + 255) / 256, 256>>>(small, SMALL, 2);
    LAUNCHED();
    OK(cudaDeviceSynchronize());
    OK(cudaIpcGetMemHandle(&offer.memory, memory));
    OK(cudaIpcGetMemHandle(&offer.small, small));
    OK(cudaIpcGetEventHandle(&offer.event, event));
    put(out, &offer, sizeof offer);
    step(in, out, 'a');
    fill_slowly<<<1, 128>>>(memory, COUNT, 3);
    LAUNCHED();
    OK(cudaEventRecord(event, 0));
    step(in, out, 'b');
    step(in, out, 'c');
    OK(cudaEventSynchronize(event));
    check(memory, COUNT, 4);
    step(in, out, 'd');
    step(in, out, 'e');
    OK(cudaEventDestroy(event));
    OK(cudaFree(memory));
    OK(cudaFree(small));
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return pass();
}
