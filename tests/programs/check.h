// What every test program shares: a failed check prints one FAIL line and ends the process; the last word is PASS.
#pragma once
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <climits>
#include <csignal>
#include <cstdint>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

[[noreturn]] inline void fail(const char *file, int line, const char *what, const char *why) {
    printf("FAIL %s:%d: %s: %s\n", file, line, what, why);
    fflush(stdout);
    _exit(1); // not exit: a check may fail in a forked child, or beside running threads
}

// The call must return cudaSuccess.
#define OK(call) EXPECT(cudaSuccess, call)

// The call must return this error.
#define EXPECT(error, call)                                                                                            \
    do {                                                                                                               \
        cudaError_t got_ = (call);                                                                                     \
        if (got_ != (error)) fail(__FILE__, __LINE__, #call, cudaGetErrorName(got_));                                  \
    } while (0)

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) fail(__FILE__, __LINE__, #condition, "is not so");                                           \
    } while (0)

// The kernel launch just before must have been accepted.
#define LAUNCHED() OK(cudaGetLastError())

inline int pass() {
    printf("PASS\n");
    fflush(stdout);
    return 0;
}

// Runs `body` in a forked child, and gives its exit status (128 + signal when a signal ended it).
template <typename Body> int in_child(Body body) {
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int code = body();
        fflush(stdout);
        _exit(code);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Values that differ from their neighbours and between seeds, so that a shifted or stale copy is seen.
inline unsigned pattern(size_t index, unsigned seed = 0) { return (unsigned)(index * 2654435761u) ^ (seed * 40503u + 17u); }
