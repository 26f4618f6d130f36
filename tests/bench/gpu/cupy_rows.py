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
fused = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = x * y + tanh(x)", "fused")
other = cupy.full_like(large, 2)

ROWS = [
    ("sum of 1024", 5000, small.sum),
    ("maximum of 1024", 5000, small.max),
    ("position of the maximum of 4 Mi", 3000, large.argmax),
    ("sum over rows", 3000, lambda: large.sum(axis=1)),
    ("mean over columns", 3000, lambda: large.mean(axis=0)),
    ("running sum of 4 Mi", 2000, lambda: cupy.cumsum(large)),
    ("sum to the host", 3000, lambda: float(small.sum())),
    ("x * y + 1 of 1024", 5000, lambda: small * small + 1),
    ("x * y + 1 of 4 Mi", 3000, lambda: large * other + 1),
    ("elementwise kernel of 4 Mi", 5000, lambda: fused(large, other)),
    ("in place of 1024", 10000, lambda: small.__imul__(1)),
    ("sort of 4 Mi", 300, lambda: cupy.sort(large.ravel())),
]

for name, count, work in ROWS:
    print(f"CuPy {name} it/s\t{rate(count, work):.1f}", flush=True)
