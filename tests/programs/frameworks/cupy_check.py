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


for name in "min max mean var std prod any all nansum nanmax median ptp count_nonzero".split():
    check(name)(lambda name=name: same(getattr(cp, name)(cp.asarray(real)), getattr(np, name)(real)))
for kind in "int8 uint16 int32 uint64 float32 complex64 bool".split():
    few = (real * 100).astype(kind)
    check(f"sums and sorting of {kind}")(
        lambda few=few: same(cp.asarray(few).sum(), few.sum())
        and (few.dtype.kind == "c" or same(cp.sort(cp.asarray(few)), np.sort(few)))
    )
check("mean of columns and all axes of three")(
    lambda: same(cp.asarray(picture).mean(axis=0), picture.mean(axis=0))
    and same(cp.asarray(real[:4096]).reshape(16, 16, 16).sum(axis=(0, 2)), real[:4096].reshape(16, 16, 16).sum(axis=(0, 2)))
)
check("sort of rows")(lambda: same(cp.sort(cp.asarray(picture), axis=1), np.sort(picture, axis=1)))
check("partition")(lambda: same(cp.partition(cp.asarray(real), 100)[100], np.partition(real, 100)[100]))
check("lexsort")(lambda: same(cp.lexsort(cp.asarray([real[:99], real[99:198]])), np.lexsort([real[:99], real[99:198]])))
check("isin")(lambda: same(cp.isin(cp.arange(10), cp.asarray([2, 7])), np.isin(np.arange(10), [2, 7])))
check("cumprod")(lambda: same(cp.cumprod(cp.asarray(real[:50])), np.cumprod(real[:50])))
check("diff")(lambda: same(cp.diff(cp.asarray(real)), np.diff(real)))
check("interp")(lambda: same(cp.interp(cp.asarray(real), cp.arange(3.0), cp.arange(3.0) ** 2), np.interp(real, range(3), [0, 1, 4])))
check("convolve")(lambda: same(ndimage.convolve(cp.asarray(picture), cp.ones((3, 3))), scipy.ndimage.convolve(picture, np.ones((3, 3)))))
check("label")(lambda: ndimage.label(cp.asarray(picture) > 0.6)[1] == scipy.ndimage.label(picture > 0.6)[1])
check("zoom")(lambda: same(ndimage.zoom(cp.asarray(picture), 2, order=1), scipy.ndimage.zoom(picture, 2, order=1)))
check("pad, roll, tile, concatenate")(
    lambda: same(cp.tile(cp.roll(cp.pad(cp.asarray(picture), 2), 3, 1), (2, 1)), np.tile(np.roll(np.pad(picture, 2), 3, 1), (2, 1)))
)
check("bits")(lambda: same(cp.packbits(cp.asarray(real[:64] > 0.5)), np.packbits(real[:64] > 0.5)))
check("views")(lambda: same(cp.asarray(picture)[::2, ::-3].T.copy(), picture[::2, ::-3].T))


def squared_plus(x, y):
    return x * x + y


check("vectorize")(lambda: same(cp.vectorize(squared_plus)(cp.arange(9), cp.arange(9)), np.arange(9) ** 2 + np.arange(9)))


@check("RawKernel with shared memory, atomics and warp functions")
def _():
    source = r"""
    extern "C" __global__ void total(const double *x, int n, double *out, unsigned *largest) {
        extern __shared__ double cells[];
        double s = 0;
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];
        for (int d = 16; d; d /= 2) s += __shfl_down_sync(~0u, s, d);
        if (threadIdx.x % 32 == 0) cells[threadIdx.x / 32] = s;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int w = 1; w < blockDim.x / 32; w++) s += cells[w];
            atomicAdd(out, s);
        }
        atomicMax(largest, blockIdx.x * blockDim.x + threadIdx.x);
    }"""
    out, largest = cp.zeros(1), cp.zeros(1, cp.uint32)
    kernel = cp.RawKernel(source, "total")
    kernel((3,), (128,), (cp.asarray(real), np.int32(real.size), out, largest), shared_mem=32)
    return same(out, [real.sum()]) and int(largest[0]) == 383


@check("RawKernel over a cooperative grid")
def _():
    source = r"""
    #include <cooperative_groups.h>
    extern "C" __global__ void k(int *a, int n) {
        auto g = cooperative_groups::this_grid();
        int i = g.thread_rank();
        for (int r = 0; r < 3; r++) {
            int next = a[(i + 1) % n];
            g.sync();
            a[i] = next;
            g.sync();
        }
    }"""
    a = cp.arange(256, dtype=cp.int32)
    cp.RawKernel(source, "k", options=("-std=c++17",), enable_cooperative_groups=True)((4,), (64,), (a, np.int32(256)))
    return same(a, (np.arange(256) + 3) % 256)


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
    kernel = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "length")
    return same(kernel(cp.arange(10, dtype=cp.float32)), np.sqrt(285))


@check("ReductionKernel over rows")
def _():
    kernel = cp.ReductionKernel("T x, T y", "float64 z", "x * y", "a + b", "z = a", "0", "dot")
    return same(kernel(cp.asarray(picture), cp.asarray(picture), axis=1), (picture**2).sum(axis=1))


@check("fuse")
def _():
    fused = cp.fuse(kernel_name="length")(lambda x, y: cp.sqrt(x * x + y * y))
    return same(fused(cp.asarray(real), cp.asarray(real)), np.hypot(real, real))


@jit.rawkernel()
def twice(x, y, n):
    i = jit.blockIdx.x * jit.blockDim.x + jit.threadIdx.x
    if i < n:
        y[i] = x[i] * 2


@check("jit.rawkernel")
def _():
    x = cp.arange(100, dtype=cp.float32)
    y = cp.zeros_like(x)
    twice((1,), (128,), (x, y, np.uint32(100)))
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
    # Kept until the kernel has ended.
    kept = texture.TextureObject(resource, how)
    cp.RawKernel(source, "read")((1,), (16, 8), (out, kept))
    return same(out, cp.asnumpy(values))


finish()
