// A fork before CUDA is used gives a child that can use it; after that the child gets an error and the parent goes on.
// runtimes: all
#include "check.h"

__global__ void set(int *value, int to) { *value = to; }

static int use_the_gpu(int number) {
    int *value, back = 0;
    OK(cudaMalloc(&value, sizeof(int)));
    set<<<1, 1>>>(value, number);
    LAUNCHED();
    OK(cudaMemcpy(&back, value, sizeof back, cudaMemcpyDeviceToHost));
    CHECK(back == number);
    OK(cudaFree(value));
    return 0;
}

int main(int count, char **) {
    if (count > 1) return use_the_gpu(5);
    CHECK(in_child([] { return use_the_gpu(1); }) == 0);
    use_the_gpu(2);
    // The child holds a copy of a runtime whose driver did not come along.
    int status = in_child([] {
        int *value = nullptr;
        cudaError_t error = cudaMalloc(&value, sizeof(int));
        return error == cudaSuccess ? 1 : 0;
    });
    CHECK(status == 0);
    use_the_gpu(3);
    // A child that goes on to another program starts from scratch there.
    status = in_child([] {
        execl("/proc/self/exe", "fork", "only-use", (char *)nullptr);
        return 99;
    });
    CHECK(status == 0);
    use_the_gpu(4);
    return pass();
}
