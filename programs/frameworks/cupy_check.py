"""What a program does with CuPy, compared with NumPy and SciPy. No cuBLAS and the like: those have no PTX."""

import cupy as cp
import cupyx
import numpy as np
import scipy.ndimage
import scipy.special
from cupyx import jit
from cupyx.scipy import ndimage, special
from harness import check, finish

rng = np.random.default_rng(0)
real = rng.random(5000)
picture = rng.random((32, 32))


def same(a, b):
    return np.allclose(cp.asnumpy(a), b)


check("arithmetic")(lambda: same(cp.arange(10, dtype=cp.float32) * 2 + 1, np.arange(10) * 2 + 1))
check("sum")(lambda: float(cp.arange(1000, dtype=cp.float64).sum()) == 499500)
check("sum of rows")(lambda: same(cp.asarray(picture).sum(axis=1), picture.sum(axis=1)))
check("argmax")(lambda: int(cp.argmax(cp.asarray([1, 5, 3]))) == 1)
check("cumsum")(lambda: same(cp.cumsum(cp.asarray(real)), np.cumsum(real)))
check("sort")(lambda: same(cp.sort(cp.asarray(real)), np.sort(real)))
check("argsort")(lambda: same(cp.argsort(cp.asarray(real)), np.argsort(real)))
check("unique")(lambda: same(cp.unique(cp.asarray([3, 1, 2, 3, 1])), [1, 2, 3]))
check("where")(lambda: same(cp.where(cp.asarray(real) > 0.5)[0], np.where(real > 0.5)[0]))
check("mask")(lambda: same(cp.asarray(real)[cp.asarray(real) > 0.5], real[real > 0.5]))
check("take")(lambda: same(cp.asarray(real)[cp.asarray([4, 2, 1])], real[[4, 2, 1]]))
check("histogram")(lambda: same(cp.histogram(cp.asarray(real), bins=10)[0], np.histogram(real, bins=10)[0]))
check("bincount")(lambda: same(cp.bincount(cp.asarray([1, 2, 2, 5])), np.bincount([1, 2, 2, 5])))
check("searchsorted")(lambda: same(cp.searchsorted(cp.arange(10.0), cp.asarray([2.5, 3.0])), [3, 3]))
check("percentile")(lambda: same(cp.percentile(cp.asarray(real), 30), np.percentile(real, 30)))
check("half precision")(lambda: same(cp.asarray(real, dtype=cp.float16) * 2, real.astype(np.float16) * 2))
check("complex")(lambda: same(cp.exp(cp.asarray(real[:10] * 1j)), np.exp(real[:10] * 1j)))
for name in "sin cos tan exp log sqrt arctan sinh tanh expm1 log1p cbrt floor rint".split():
    check(name)(lambda name=name: same(getattr(cp, name)(cp.asarray(real)), getattr(np, name)(real)))
for name in "gamma erf gammaln j0 i0".split():
    check(name)(lambda name=name: same(getattr(special, name)(cp.asarray(real + 0.1)), getattr(scipy.special, name)(real + 0.1)))
check("gaussian filter")(lambda: same(ndimage.gaussian_filter(cp.asarray(picture), 1.0), scipy.ndimage.gaussian_filter(picture, 1.0)))
check("median filter")(lambda: same(ndimage.median_filter(cp.asarray(picture), 3), scipy.ndimage.median_filter(picture, 3)))


@check("RawKernel")
def _():
    source = r"""
    extern "C" __global__ void add(const float *a, const float *b, float *c, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) c[i] = a[i] + b[i];
    }"""
    x = cp.arange(1000, dtype=cp.float32)
    y = cp.empty_like(x)
    cp.RawKernel(source, "add")((4,), (256,), (x, x, y, np.int32(1000)))
    return same(y, 2 * np.arange(1000))


@check("RawModule with a template and a constant")
def _():
    source = r"""
    __constant__ float c[4];
    template <class T> __global__ void k(T *out) { out[threadIdx.x] = c[threadIdx.x & 3]; }"""
    module = cp.RawModule(code=source, name_expressions=["k<float>"], options=("-std=c++17",))
    kernel = module.get_function("k<float>")
    constant = cp.ndarray((4,), cp.float32, module.get_global("c"))
    constant[...] = cp.arange(4)
    out = cp.zeros(8, cp.float32)
    kernel((1,), (8,), (out,))
    return same(out, [0, 1, 2, 3] * 2)


@check("ElementwiseKernel")
def _():
    kernel = cp.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = (x - y) * (x - y)", "squared")
    x = cp.arange(10, dtype=cp.float32)
    return same(kernel(x, x * 2), np.arange(10.0) ** 2)


@check("ReductionKernel")
def _():
    kernel = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
    return same(kernel(cp.arange(10, dtype=cp.float32)), np.sqrt(285))


@check("fuse")
def _():
    fused = cp.fuse()(lambda x, y: cp.sqrt(x * x + y * y))
    return same(fused(cp.asarray(real), cp.asarray(real)), np.hypot(real, real))


@jit.rawkernel()
def double(x, y, n):
    i = jit.blockIdx.x * jit.blockDim.x + jit.threadIdx.x
    if i < n:
        y[i] = x[i] * 2


@check("jit.rawkernel")
def _():
    x = cp.arange(100, dtype=cp.float32)
    y = cp.zeros_like(x)
    double((1,), (128,), (x, y, np.uint32(100)))
    return same(y, 2 * np.arange(100))


@check("scatter_add")
def _():
    a = cp.zeros(5)
    cupyx.scatter_add(a, cp.asarray([1, 1, 2]), 1.0)
    return same(a, [0, 2, 1, 0, 0])


@check("streams and events")
def _():
    with cp.cuda.Stream(non_blocking=True) as stream:
        y = cp.arange(100) * 2
    stream.synchronize()
    event = cp.cuda.Event()
    event.record()
    event.synchronize()
    return int(y.sum()) == 9900


@check("graph")
def _():
    x = cp.zeros(10)
    with cp.cuda.Stream(non_blocking=True) as stream:
        x += 1
        stream.begin_capture()
        x += 1
        graph = stream.end_capture()
        graph.launch()
        graph.launch()
    stream.synchronize()
    return same(x, np.full(10, 3.0))


@check("memory: pinned, managed, pools")
def _():
    pinned = np.frombuffer(cp.cuda.alloc_pinned_memory(800), np.float64, 100)
    pinned[:] = 3
    totals = [float(cp.asarray(pinned).sum())]
    for allocator in (cp.cuda.malloc_managed, cp.cuda.MemoryAsyncPool().malloc):
        cp.cuda.set_allocator(allocator)
        totals.append(int((cp.arange(10) * 2).sum()))
    cp.cuda.set_allocator()
    return totals == [300, 90, 90]


@check("texture object")
def _():
    from cupy.cuda import runtime, texture

    channel = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
    array = texture.CUDAarray(channel, 16, 8)
    values = cp.arange(128, dtype=cp.float32).reshape(8, 16)
    array.copy_from(values)
    resource = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array)
    modes = (runtime.cudaAddressModeClamp,) * 2
    how = texture.TextureDescriptor(modes, runtime.cudaFilterModePoint, runtime.cudaReadModeElementType)
    source = r"""
    extern "C" __global__ void read(float *out, cudaTextureObject_t t) {
        out[threadIdx.y * 16 + threadIdx.x] = tex2D<float>(t, threadIdx.x, threadIdx.y);
    }"""
    out = cp.zeros_like(values)
    cp.RawKernel(source, "read")((1,), (16, 8), (out, texture.TextureObject(resource, how)))
    return same(out, cp.asnumpy(values))


finish()
