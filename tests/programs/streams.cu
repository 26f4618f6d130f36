// Streams keep their order, events tie streams together and measure time.
// runtimes: all
#include "check.h"

__global__ void step(int *value, int from) {
    // Counts only when the step before has been done: a kernel out of order leaves the value short.
    if (*value == from) *value = from + 1;
}

__global__ void busy(unsigned *sink, int rounds) {
    unsigned x = threadIdx.x;
    for (int i = 0; i < rounds; i++) x = x * 1664525u + 1013904223u;
    sink[threadIdx.x] = x;
}

int main() {
    const int streams = 6, steps = 50;
    cudaStream_t stream[streams];
    int *counters, result[streams];
    OK(cudaMalloc(&counters, sizeof result));
    OK(cudaMemset(counters, 0, sizeof result));
    for (int s = 0; s < streams; s++) OK(cudaStreamCreateWithFlags(&stream[s], s % 2 ? cudaStreamNonBlocking : cudaStreamDefault));

    // Order within a stream, several streams at once.
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < steps; i++) {
        for (int s = 0; s < streams; s++) step<<<1, 1, 0, stream[s]>>>(counters + s, i);
        LAUNCHED();
    }
    for (int s = 0; s < streams; s++) OK(cudaStreamSynchronize(stream[s]));
    OK(cudaMemcpy(result, counters, sizeof result, cudaMemcpyDeviceToHost));
    for (int s = 0; s < streams; s++) CHECK(result[s] == steps);

    // Order across streams, by events: the steps go round all streams.
    cudaEvent_t passed;
    OK(cudaEventCreateWithFlags(&passed, cudaEventDisableTiming));
    OK(cudaMemset(counters, 0, sizeof result));
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < steps; i++) {
        cudaStream_t s = stream[i % streams];
        if (i > 0) OK(cudaStreamWaitEvent(s, passed, 0));
        step<<<1, 1, 0, s>>>(counters, i);
        OK(cudaEventRecord(passed, s));
    }
    OK(cudaEventSynchronize(passed));
    OK(cudaEventQuery(passed));
    OK(cudaMemcpy(result, counters, sizeof(int), cudaMemcpyDeviceToHost));
    CHECK(result[0] == steps);

    // Times: not negative, and more work takes longer.
    cudaEvent_t start, middle, end;
    unsigned *sink;
    OK(cudaMalloc(&sink, 32 * sizeof(unsigned)));
    OK(cudaEventCreate(&start));
    OK(cudaEventCreate(&middle));
    OK(cudaEventCreate(&end));
    float once = -1, often = -1, whole = -1;
    EXPECT(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&once, start, passed)); // one has no time
    cudaGetLastError();
    busy<<<1, 32, 0, stream[0]>>>(sink, 1); // the first launch pays for loading
    OK(cudaEventRecord(start, stream[0]));
    busy<<<1, 32, 0, stream[0]>>>(sink, 10);
    OK(cudaEventRecord(middle, stream[0]));
    busy<<<1, 32, 0, stream[0]>>>(sink, 3000000);
    OK(cudaEventRecord(end, stream[0]));
    OK(cudaEventSynchronize(end));
    OK(cudaEventElapsedTime(&once, start, middle));
    OK(cudaEventElapsedTime(&often, middle, end));
    OK(cudaEventElapsedTime(&whole, start, end));
    CHECK(once >= 0 && often > 0 && whole >= often);

    // A query answers without waiting; priorities are in their range.
    int least = 0, greatest = 0;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(least >= greatest);
    cudaStream_t urgent;
    OK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
    busy<<<1, 32, 0, urgent>>>(sink, 100000);
    cudaError_t state = cudaStreamQuery(urgent);
    CHECK(state == cudaSuccess || state == cudaErrorNotReady);
    OK(cudaStreamSynchronize(urgent));
    OK(cudaStreamQuery(urgent));
    OK(cudaStreamDestroy(urgent));
    for (cudaEvent_t event : {passed, start, middle, end}) OK(cudaEventDestroy(event));
    for (int s = 0; s < streams; s++) OK(cudaStreamDestroy(stream[s]));
    OK(cudaFree(sink));
    OK(cudaFree(counters));
    return pass();
}
