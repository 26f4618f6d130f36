"""A tensor by name, produced by one process and used by another: `tensors.py produce|consume ctypes|torch|cupy`."""

import sys
import time

import bulkhead

ROLE, LIBRARY = sys.argv[1:3]
COUNT = 16 << 20


def produce():
    if LIBRARY == "ctypes":
        return bulkhead.DeviceBuffer.of(bytes(range(256)) * (COUNT // 64))
    if LIBRARY == "torch":
        import torch

        return (torch.arange(COUNT, device="cuda") % 128).to(torch.bfloat16).reshape(4096, -1)
    import cupy

    return cupy.arange(COUNT, dtype=cupy.int32).reshape(4096, -1)


def check(shared):
    if LIBRARY == "ctypes":
        assert shared.tobytes() == bytes(range(256)) * (COUNT // 64)
    elif LIBRARY == "torch":
        import torch

        tensor = shared.torch()
        assert tensor.shape == (4096, COUNT // 4096) and tensor.dtype == torch.bfloat16
        assert tensor.data_ptr() == shared.address
        assert bool((tensor.flatten() == torch.arange(COUNT, device="cuda") % 128).all())
        tensor.add_(1)
        torch.cuda.synchronize()
    else:
        import cupy

        array = cupy.asarray(shared)
        assert bool((array.ravel() == cupy.arange(COUNT, dtype=cupy.int32)).all())
        array += 1
        cupy.cuda.Device().synchronize()


if ROLE == "produce":
    buffer = produce()
    with bulkhead.publish(LIBRARY, buffer) as publication:
        publication.wait_done(timeout=120)
    if LIBRARY == "torch":
        assert int(buffer[0, 0]) == 1, "the consumer's writes are seen"
    if LIBRARY == "cupy":
        assert int(buffer[0, 0]) == 1
else:
    start = time.time()
    with bulkhead.wait(LIBRARY, timeout=120) as shared:
        found = time.time()
        check(shared)
    print(f"{LIBRARY}: waited {found - start:.3f} s, checked {shared.nbytes} bytes in {time.time() - found:.3f} s")
