"""Rows of the benchmark that need CuPy: one line each, name and value, tab between."""

import time

import cupy


def rate(count, work):
    """Calls a second, after a warm-up."""
    for _ in range(20):
        work()
    cupy.cuda.Device().synchronize()
    begin = time.time()
    for _ in range(count):
        work()
    cupy.cuda.Device().synchronize()
    return count / (time.time() - begin)


small, large = cupy.ones(1 << 10, cupy.float32), cupy.ones((1 << 12, 1 << 10), cupy.float32)
print(f"CuPy sum of 1024 it/s\t{rate(5000, small.sum):.1f}", flush=True)
print(f"CuPy sum over rows it/s\t{rate(3000, lambda: large.sum(axis=1)):.1f}", flush=True)
print(f"CuPy sum to the host it/s\t{rate(3000, lambda: float(small.sum())):.1f}", flush=True)
