// Two programs that have nothing in common but a directory share device memory: `share producer DIR` and
// `share consumer DIR`, in containers, pods or terminals of their own. Without words it is both, as two processes.
// The consumer only reads; told `write` it also writes, and the producer expects that it does when it is told the same.
// A number after that is for how many seconds the consumer tries again where it is not permitted yet.
#include "check.h"

#include <fcntl.h>
#include <string>
#include <sys/stat.h>

// Beyond 1 MiB, so that it has pages of its own wherever it was allocated.
constexpr int COUNT = 1 << 20;

__global__ void fill(int *data, int count, int from) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) data[i] = from + i;
}

static std::string dir;

// A file appears whole or not at all.
static void put(const char *name, const void *data, size_t size) {
    std::string path = dir + "/" + name, hidden = path + ".new";
    int file = open(hidden.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    CHECK(file >= 0 && write(file, data, size) == (ssize_t)size && close(file) == 0);
    CHECK(rename(hidden.c_str(), path.c_str()) == 0);
}

static void get(const char *name, void *data, size_t size) {
    std::string path = dir + "/" + name;
    int file = -1;
    // Far longer than a node takes to start a pod.
    for (int tries = 0; tries < 60000 && file < 0; tries++) {
        file = open(path.c_str(), O_RDONLY);
        if (file < 0) usleep(5000);
    }
    CHECK(file >= 0 && read(file, data, size) == (ssize_t)size && close(file) == 0);
}

static void check(const int *data, int from) {
    std::vector<int> back(COUNT);
    OK(cudaMemcpy(back.data(), data, COUNT * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++) CHECK(back[i] == from + i);
    printf("first values: %d %d %d %d\n", back[0], back[1], back[2], back[3]);
}

static int producer(bool written) {
    int *data;
    cudaIpcMemHandle_t handle;
    char done;
    OK(cudaMalloc(&data, COUNT * sizeof(int)));
    fill<<<COUNT / 256, 256>>>(data, COUNT, 42);
    LAUNCHED();
    OK(cudaDeviceSynchronize());
    OK(cudaIpcGetMemHandle(&handle, data));
    put("handle", &handle, sizeof handle);
    printf("producer: offered\n");
    fflush(stdout);
    get("done", &done, 1);
    check(data, written ? 1042 : 42);
    OK(cudaFree(data));
    return pass();
}

static int consumer(bool writes, int tries) {
    int *data;
    cudaIpcMemHandle_t handle;
    get("handle", &handle, sizeof handle);
    cudaError_t error;
    while ((error = cudaIpcOpenMemHandle((void **)&data, handle, cudaIpcMemLazyEnablePeerAccess)) ==
               cudaErrorNotPermitted &&
           tries-- > 0) {
        cudaGetLastError();
        sleep(1);
    }
    if (error != cudaSuccess) fail(__FILE__, __LINE__, "cudaIpcOpenMemHandle", cudaGetErrorName(error));
    printf("consumer: opened\n");
    check(data, 42);
    if (writes) {
        fill<<<COUNT / 256, 256>>>(data, COUNT, 1042);
        LAUNCHED();
        OK(cudaDeviceSynchronize());
    }
    OK(cudaIpcCloseMemHandle(data));
    put("done", "d", 1);
    return pass();
}

static int both(const char *self) {
    char place[] = "/tmp/share-XXXXXX";
    CHECK(mkdtemp(place) != nullptr);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", self, "consumer", place, "write", nullptr);
        _exit(127);
    }
    dir = place;
    int failed = producer(true), status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (const char *name : {"handle", "done"}) unlink((dir + "/" + name).c_str());
    rmdir(place);
    return failed;
}

int main(int count, char **words) {
    if (count < 3) return both(words[0]);
    dir = words[2];
    bool write = count > 3 && strcmp(words[3], "write") == 0;
    int tries = count > 4 ? atoi(words[4]) : 0;
    return strcmp(words[1], "producer") == 0 ? producer(write) : consumer(write, tries);
}
