// The program's own memory, registered: one memory for host and device, private again afterwards, never a child's.
// runtimes: all
#include "check.h"
#include <dirent.h>
#include <fstream>
#include <string>
#include <sys/mman.h>

static const size_t page = 4096;

__global__ void add_one(unsigned *values, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) values[i] += 1;
}

static void run(unsigned *values, int n) {
    add_one<<<(n + 63) / 64, 64>>>(values, n);
    LAUNCHED();
    OK(cudaDeviceSynchronize());
}

static unsigned *pages(size_t bytes) {
    void *mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED);
    return (unsigned *)mapped;
}

// How the kernel describes the memory at an address, such as "rw-p".
static std::string access_of(void *address) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        unsigned long start, end;
        char access[5];
        CHECK(sscanf(line.c_str(), "%lx-%lx %4s", &start, &end, access) == 3);
        if (start <= (unsigned long)address && (unsigned long)address < end) return access;
    }
    return "none";
}

static size_t lines_of_maps() {
    std::ifstream maps("/proc/self/maps");
    size_t count = 0;
    for (std::string line; std::getline(maps, line);) count++;
    return count;
}

static size_t open_files() {
    size_t count = 0;
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir);
    while (readdir(dir)) count++;
    closedir(dir);
    return count;
}

static void host_and_device_share() {
    const int n = 5000;
    const size_t bytes = 8 * page;
    unsigned *host = pages(bytes), *there;
    for (int i = 0; i < n; i++) host[i] = pattern(i, 1);
    OK(cudaHostRegister(host, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable));
    for (int i = 0; i < n; i++) CHECK(host[i] == pattern(i, 1));
    OK(cudaHostGetDevicePointer(&there, host, 0));
    run(there, n);
    for (int i = 0; i < n; i++) CHECK(host[i] == pattern(i, 1) + 1);
    for (int i = 0; i < n; i++) host[i] = pattern(i, 2);
    run(there, n);
    for (int i = 0; i < n; i++) CHECK(host[i] == pattern(i, 2) + 1);

    unsigned *inside;
    OK(cudaHostGetDevicePointer(&inside, host + 100, 0));
    CHECK(inside == there + 100);
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, host + 100));
    CHECK(attributes.type == cudaMemoryTypeHost);
    CHECK(attributes.hostPointer == host + 100 && attributes.devicePointer == inside);
    OK(cudaPointerGetAttributes(&attributes, inside));
    CHECK(attributes.type == cudaMemoryTypeHost && attributes.hostPointer == host + 100);
    unsigned flags;
    OK(cudaHostGetFlags(&flags, host));
    CHECK(flags & cudaHostRegisterMapped);

    // Copies by either name, both ways, small and large, set and in two dimensions.
    unsigned *device;
    cudaStream_t stream;
    OK(cudaMalloc(&device, bytes));
    OK(cudaStreamCreate(&stream));
    for (int count : {16, n}) {
        for (unsigned *name : {host, there}) {
            for (int i = 0; i < n; i++) host[i] = pattern(i, count);
            OK(cudaMemcpyAsync(device, name, count * 4, cudaMemcpyDefault, stream));
            OK(cudaStreamSynchronize(stream));
            memset(host, 0, bytes);
            OK(cudaMemcpyAsync(name, device, count * 4, cudaMemcpyDefault, stream));
            OK(cudaStreamSynchronize(stream));
            for (int i = 0; i < count; i++) CHECK(host[i] == pattern(i, count));
            CHECK(host[count] == 0);
            memset(host, 0, bytes);
            OK(cudaMemcpy(name + 8, device, count * 4 - 32, cudaMemcpyDefault));
            CHECK(host[8] == pattern(0, count) && host[7] == 0);
        }
    }
    OK(cudaMemcpy2D(host, 1024, device, 64, 64, 4, cudaMemcpyDeviceToHost));
    for (int row = 0; row < 4; row++) CHECK(host[row * 256] == pattern(row * 16, n));
    OK(cudaMemset(there, 0x5a, page));
    OK(cudaDeviceSynchronize());
    CHECK(host[0] == 0x5a5a5a5a && host[1023] == 0x5a5a5a5a);
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(device));

    host[3] = 33;
    OK(cudaHostUnregister(host));
    CHECK(host[3] == 33 && host[0] == 0x5a5a5a5a);
    CHECK(access_of(host) == "rw-p");
    EXPECT(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(host));
    munmap(host, bytes);
}

// A block in the midst of others: the GPU may reach it or not, but copies work.
static void part_of_a_page() {
    const int n = 3000;
    char *block = (char *)malloc(n * 4 + 100);
    unsigned *host = (unsigned *)(block + 52), *there = nullptr, *device;
    OK(cudaMalloc(&device, n * 4));
    for (int i = 0; i < n; i++) host[i] = pattern(i, 3);
    OK(cudaHostRegister(host, n * 4, cudaHostRegisterMapped));
    cudaError_t reached = cudaHostGetDevicePointer(&there, host, 0);
    CHECK(reached == cudaSuccess || reached == cudaErrorNotSupported);
    cudaGetLastError();
    if (reached == cudaSuccess) {
        run(there, 1);
        CHECK(host[0] == pattern(0, 3) + 1);
        host[0] -= 1;
    }
    OK(cudaMemcpyAsync(device, host, n * 4, cudaMemcpyHostToDevice));
    run(device, n);
    OK(cudaMemcpyAsync(host, device, n * 4, cudaMemcpyDeviceToHost));
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < n; i++) CHECK(host[i] == pattern(i, 3) + 1);
    OK(cudaHostUnregister(host));
    OK(cudaFree(device));
    free(block);
}

static void children_have_their_own() {
    const size_t bytes = 4 * page;
    unsigned *host = pages(bytes), *there;
    host[0] = 1;
    host[1024] = 2;
    OK(cudaHostRegister(host, bytes, cudaHostRegisterMapped));
    OK(cudaHostGetDevicePointer(&there, host, 0));
    int to_child[2], to_parent[2];
    CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char word;
        CHECK(read(to_child[0], &word, 1) == 1); // the parent has written by now
        CHECK(host[0] == 1 && host[1024] == 2);
        host[0] = 100;
        CHECK(host[0] == 100);
        // As has a child's child.
        CHECK(in_child([&] { return host[0] == 100 && (host[0] = 7) ? 0 : 1; }) == 0);
        CHECK(host[0] == 100);
        CHECK(write(to_parent[1], "w", 1) == 1);
        _exit(0);
    }
    host[0] = 10;
    run(there + 1024, 1);
    CHECK(write(to_child[1], "w", 1) == 1);
    char word;
    CHECK(read(to_parent[0], &word, 1) == 1);
    CHECK(host[0] == 10 && host[1024] == 3);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    run(there, 1); // the parent's memory is the device's still
    CHECK(host[0] == 11);
    OK(cudaHostUnregister(host));
    host[0] = 12;
    CHECK(in_child([&] { return host[0] == 12 && (host[0] = 13) ? 0 : 1; }) == 0);
    CHECK(host[0] == 12);
    munmap(host, bytes);
    for (int end : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) close(end);
}

static void mistakes_are_told() {
    const size_t bytes = 4 * page;
    unsigned *host = pages(bytes), *allocated;
    char *bytewise = (char *)host;
    OK(cudaHostRegister(host, bytes, cudaHostRegisterMapped));
    EXPECT(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(host, bytes, cudaHostRegisterMapped));
    EXPECT(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(bytewise + page, page, cudaHostRegisterMapped));
    EXPECT(cudaErrorInvalidValue, cudaHostUnregister(bytewise + page));
    OK(cudaHostUnregister(host));
    EXPECT(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(host));
    OK(cudaMallocHost(&allocated, bytes));
    EXPECT(cudaErrorInvalidValue, cudaHostUnregister(allocated));
    OK(cudaFreeHost(allocated));
    munmap(bytewise + 2 * page, page);
    EXPECT(cudaErrorInvalidValue, cudaHostRegister(host, bytes, cudaHostRegisterMapped));
    cudaGetLastError();
    munmap(host, bytes);
}

static void rounds_leave_nothing() {
    const size_t bytes = 1 << 20;
    unsigned *host = pages(bytes), *there;
    size_t files = 0, lines = 0;
    for (unsigned round = 0; round < 200; round++) {
        host[5] = round;
        OK(cudaHostRegister(host, bytes, cudaHostRegisterMapped));
        OK(cudaHostGetDevicePointer(&there, host, 0));
        if (round % 20 == 0) {
            run(there + 5, 1);
            CHECK(host[5] == round + 1);
        }
        OK(cudaHostUnregister(host));
        if (round == 20) {
            files = open_files();
            lines = lines_of_maps();
        }
    }
    CHECK(open_files() <= files + 2);
    CHECK(lines_of_maps() <= lines + 10);
    munmap(host, bytes);

    // Many at once, given up in another order.
    std::vector<unsigned *> all;
    for (unsigned i = 0; i < 50; i++) {
        all.push_back(pages(2 * page));
        all[i][0] = i;
        OK(cudaHostRegister(all[i], 2 * page, cudaHostRegisterMapped));
    }
    for (unsigned step = 0; step < 50; step++) {
        unsigned i = step * 7 % 50;
        OK(cudaHostGetDevicePointer(&there, all[i], 0));
        run(there, 1);
        CHECK(all[i][0] == i + 1);
        OK(cudaHostUnregister(all[i]));
        munmap(all[i], 2 * page);
    }
}

int main() {
    host_and_device_share();
    part_of_a_page();
    children_have_their_own();
    mistakes_are_told();
    rounds_leave_nothing();
    return pass();
}
