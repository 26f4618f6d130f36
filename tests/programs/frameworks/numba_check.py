"""What a program does with Numba's CUDA target, compared with the same in Python."""

import math

import numba
import numpy as np
from harness import check, finish
from numba import cuda, float32, int32
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32


@cuda.jit
def increment(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] += 1


@check("kernel on arrays of the host")
def _():
    a = np.arange(1000, dtype=np.float32)
    increment[4, 256](a)
    return np.array_equal(a, np.arange(1000) + 1)


@check("shared memory")
def _():
    size = 16

    @cuda.jit
    def multiply(a, b, c):
        sa = cuda.shared.array((size, size), float32)
        sb = cuda.shared.array((size, size), float32)
        x, y = cuda.grid(2)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        total = float32(0.0)
        for i in range(a.shape[1] // size):
            sa[tx, ty] = a[x, ty + i * size]
            sb[tx, ty] = b[tx + i * size, y]
            cuda.syncthreads()
            for j in range(size):
                total += sa[tx, j] * sb[j, ty]
            cuda.syncthreads()
        c[x, y] = total

    a = np.random.default_rng(0).random((64, 64)).astype(np.float32)
    c = np.zeros_like(a)
    multiply[(4, 4), (16, 16)](a, a, c)
    return np.allclose(c, a @ a, rtol=1e-4)


@check("mathematics")
def _():
    @cuda.jit
    def compute(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = math.sin(x[i]) + math.exp(x[i]) * math.sqrt(x[i]) + math.pow(x[i], 1.5) + math.erf(x[i])

    x = np.linspace(0.1, 5, 100)
    y = np.zeros_like(x)
    compute[1, 128](x, y)
    return np.allclose(y, [math.sin(v) + math.exp(v) * math.sqrt(v) + v**1.5 + math.erf(v) for v in x])


@check("atomics")
def _():
    @cuda.jit
    def count(x, counts, floats):
        i = cuda.grid(1)
        if i < x.size:
            cuda.atomic.add(counts, x[i], 1)
            cuda.atomic.max(floats, 0, float32(x[i]))
            cuda.atomic.add(floats, 1, float32(0.5))

    x = np.random.default_rng(0).integers(0, 16, 1000).astype(np.int32)
    counts, floats = np.zeros(16, np.int32), np.zeros(2, np.float32)
    count[4, 256](x, counts, floats)
    return np.array_equal(counts, np.bincount(x, minlength=16)) and floats[0] == x.max() and floats[1] == 500


@check("device functions, local and constant arrays")
def _():
    constants = np.arange(8, dtype=np.float64)

    @cuda.jit(device=True)
    def fibonacci(n):
        a, b = 0, 1
        for _ in range(n):
            a, b = b, a + b
        return a

    @cuda.jit
    def kernel(out):
        c = cuda.const.array_like(constants)
        cells = cuda.local.array(8, float32)
        i = cuda.grid(1)
        for j in range(8):
            cells[j] = c[j] * i
        total = 0.0
        for j in range(8):
            total += cells[(j + i) % 8]
        out[i] = total + fibonacci(i % 20)

    out = np.zeros(64)
    kernel[2, 32](out)
    return np.allclose(out, [28 * i + fibonacci.py_func(i % 20) for i in range(64)])


@check("warp functions")
def _():
    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        v = i
        for d in (16, 8, 4, 2, 1):
            v += cuda.shfl_down_sync(0xFFFFFFFF, v, d)
        even = cuda.ballot_sync(0xFFFFFFFF, i % 2 == 0)
        if cuda.laneid == 0:
            out[i // 32, 0] = v
            out[i // 32, 1] = even

    out = np.zeros((4, 2), np.int64)
    kernel[1, 128](out)
    return out.tolist() == [[sum(range(32 * k, 32 * k + 32)), 0x55555555] for k in range(4)]


@check("reduce")
def _():
    x = np.arange(5000, dtype=np.float64)
    return cuda.reduce(lambda a, b: a + b)(x) == x.sum()


@check("vectorize")
def _():
    def product(a, b):
        return a * b + 1

    function = numba.vectorize(["float32(float32, float32)"], target="cuda")(product)
    x = np.arange(100, dtype=np.float32)
    return np.allclose(function(x, x), x * x + 1)


@check("print")
def _():
    @cuda.jit
    def kernel():
        print("hello from", cuda.threadIdx.x)

    kernel[1, 2]()
    cuda.synchronize()


@check("streams and events")
def _():
    stream = cuda.stream()
    d = cuda.to_device(np.zeros(100), stream=stream)
    for _ in range(3):
        increment[1, 128, stream](d)
    out = d.copy_to_host(stream=stream)
    stream.synchronize()
    event = cuda.event()
    event.record()
    event.synchronize()
    return (out == 3).all()


@check("cooperative grid")
def _():
    @cuda.jit
    def kernel(a):
        grid = cuda.cg.this_grid()
        i = cuda.grid(1)
        for round in range(5):
            a[i] += 1
            grid.sync()
            other = a[(i + 1) % a.size]
            grid.sync()
            if other != round + 1:
                a[i] += 1000

    a = cuda.to_device(np.zeros(64, np.int64))
    kernel[2, 32](a)
    return (a.copy_to_host() == 5).all()


@check("pinned, managed and mapped memory")
def _():
    managed, mapped = cuda.managed_array(10, np.float32), cuda.mapped_array(10, np.float32)
    managed[:], mapped[:] = 1, 0
    increment[1, 32](managed)
    increment[1, 32](mapped)
    cuda.synchronize()
    pinned = cuda.pinned_array(10)
    pinned[:] = 2
    return (managed == 2).all() and (mapped == 1).all() and (cuda.to_device(pinned).copy_to_host() == 2).all()


@check("half precision")
def _():
    @cuda.jit
    def kernel(a, out):
        i = cuda.grid(1)
        if i < a.size:
            out[i] = a[i] * a[i] + a[i]

    a = np.arange(8).astype(np.float16)
    out = np.zeros_like(a)
    kernel[1, 32](a, out)
    return np.array_equal(out, a * a + a)


@check("exceptions in debug mode")
def _():
    @cuda.jit(debug=True, opt=False)
    def kernel(a, n):
        a[cuda.threadIdx.x] = 1 // n

    try:
        kernel[1, 2](np.zeros(2, np.int32), 0)
    except ZeroDivisionError:
        return True
    return False


@check("random numbers")
def _():
    @cuda.jit
    def kernel(states, out):
        i = cuda.grid(1)
        out[i] = xoroshiro128p_uniform_float32(states, i)

    out = np.zeros(64, np.float32)
    kernel[1, 64](create_xoroshiro128p_states(64, seed=1), out)
    return 0 <= out.min() < out.max() < 1


@check("dynamic shared memory")
def _():
    @cuda.jit
    def kernel(out):
        cells = cuda.shared.array(0, int32)
        i = cuda.threadIdx.x
        cells[i] = i
        cuda.syncthreads()
        cuda.syncwarp()
        cuda.nanosleep(10)
        out[i] = cells[cuda.blockDim.x - 1 - i]

    out = np.zeros(64, np.int32)
    kernel[1, 64, 0, 256](out)
    return out.tolist() == list(range(64))[::-1]


@check("libdevice and bits")
def _():
    from numba.cuda import libdevice

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        out[i, 0] = libdevice.cbrt(float(i)) + libdevice.rsqrt(i + 1.0) + libdevice.fmin(2.0, float(i))
        out[i, 1] = cuda.popc(i) + 100 * cuda.clz(int32(i)) + cuda.ffs(int32(i))
        out[i, 2] = cuda.fma(2.0, float(i), 1.0) + cuda.selp(i > 5, 1.0, 0.0)

    out = np.zeros((16, 3))
    kernel[1, 16](out)
    bits = [bin(i).count("1") + 100 * (32 - i.bit_length()) + (i & -i).bit_length() for i in range(16)]
    real = [np.cbrt(i) + (i + 1) ** -0.5 + min(2, i) for i in range(16)]
    return np.allclose(out[:, 0], real) and out[:, 1].tolist() == bits and out[9, 2] == 20


@check("more atomics")
def _():
    @cuda.jit
    def kernel(ints, doubles):
        i = cuda.grid(1)
        cuda.atomic.min(ints, 0, i - 7)
        cuda.atomic.xor(ints, 1, i)
        cuda.atomic.or_(ints, 2, i)
        cuda.atomic.inc(ints, 3, 9)
        cuda.atomic.cas(ints, 4, 0, 5)
        cuda.atomic.exch(ints, 5, 3)
        cuda.atomic.sub(ints, 6, 2)
        cuda.atomic.max(doubles, 0, float(i))
        cuda.atomic.add(doubles, 1, 0.25)

    ints, doubles = np.zeros(7, np.uint32).astype(np.int32), np.zeros(2)
    ints = ints.view(np.uint32)
    ints[0] = 0x7FFFFFFF
    kernel[2, 32](ints[:], doubles)
    return ints[1] == 0 and ints[2] == 63 and ints[3] == 64 % 10 and ints[4] == 5 and doubles.tolist() == [63, 16]


@check("complex numbers, records, three dimensions")
def _():
    point = np.dtype([("x", np.float32), ("n", np.int16), ("z", np.complex128)], align=True)

    @cuda.jit
    def kernel(points, cube):
        x, y, z = cuda.grid(3)
        if x < cube.shape[0] and y < cube.shape[1] and z < cube.shape[2]:
            cube[x, y, z] = x * 100 + y * 10 + z
        if x < points.size and y == 0 and z == 0:
            points[x].x *= 2
            points[x].n += 1
            points[x].z = points[x].z * points[x].z + 1j

    points = np.zeros(5, point)
    points["x"], points["n"], points["z"] = range(5), range(5), np.arange(5) * (1 + 2j)
    expected = points["z"] ** 2 + 1j
    cube = np.zeros((5, 6, 7), np.int32)
    kernel[(2, 2, 2), (4, 4, 4)](points, cube)
    return (
        np.array_equal(points["x"], np.arange(5) * 2)
        and np.array_equal(points["n"], np.arange(5) + 1)
        and np.allclose(points["z"], expected)
        and cube[4, 5, 6] == 456
    )


@check("sorting network in shared memory")
def _():
    @cuda.jit
    def sort(a):
        cells = cuda.shared.array(256, int32)
        i = cuda.threadIdx.x
        cells[i] = a[i]
        size = 2
        while size <= 256:
            stride = size // 2
            while stride > 0:
                cuda.syncthreads()
                other = i ^ stride
                if other > i:
                    up = (i & size) == 0
                    if (cells[i] > cells[other]) == up:
                        cells[i], cells[other] = cells[other], cells[i]
                stride //= 2
            size *= 2
        cuda.syncthreads()
        a[i] = cells[i]

    a = np.random.default_rng(1).integers(0, 1000, 256).astype(np.int32)
    expected = np.sort(a)
    sort[1, 256](a)
    return np.array_equal(a, expected)


@check("guvectorize")
def _():
    @numba.guvectorize(["void(float64[:], float64[:])"], "(n)->(n)", target="cuda")
    def running(x, out):
        total = 0.0
        for i in range(x.shape[0]):
            total += x[i]
            out[i] = total

    x = np.random.default_rng(2).random((6, 20))
    return np.allclose(running(x), np.cumsum(x, axis=1))


@check("votes at a barrier, match and threads of a grid")
def _():
    @cuda.jit
    def kernel(out):
        i = cuda.threadIdx.x
        out[i, 0] = cuda.syncthreads_count(int32(i % 3 == 0))
        out[i, 1] = cuda.syncthreads_and(int32(i < 64))
        out[i, 2] = cuda.match_any_sync(0xFFFFFFFF, i % 4)
        out[i, 3] = cuda.gridsize(1)

    out = np.zeros((64, 4), np.int64)
    kernel[2, 64](out)
    return out[5].tolist() == [22, 1, 0x22222222, 128]


finish()
