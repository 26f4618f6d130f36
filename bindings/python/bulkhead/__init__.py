"""GPU buffers by name, between programs of one node.

A producer publishes a tensor, or any device memory, under a name; a consumer waits for it and has the same memory; each
learns when the other is done with it, or has died.

    # producer                                  # consumer
    import bulkhead, torch                      import bulkhead, torch
    weights = torch.ones(1 << 20).cuda()        with bulkhead.wait("weights", timeout=10) as shared:
    with bulkhead.publish("weights", weights) as p:
        p.wait_done(timeout=60)                     weights = shared.torch()

Anything with `__cuda_array_interface__` can be published: tensors of PyTorch, arrays of CuPy, Numba and JAX; without any
of them, `bulkhead.DeviceBuffer` allocates memory. A consumer passes what it got to `cupy.asarray` and the like. It sees
publications of its own zone and of zones that grant it access; `"zone/name"` selects one.

What is shared is the allocation that the buffer lies in. A framework's allocator puts many tensors into one: a client that may
open one of them may read the others. Where that matters, publish a `DeviceBuffer`, which is alone.
"""

from .cuda import CudaError, DeviceBuffer
from .rendezvous import Entry, Gone, Publication, Refused, Shared, TimedOut, listing, publish, wait

__all__ = [
    "CudaError",
    "DeviceBuffer",
    "Entry",
    "Gone",
    "Publication",
    "Refused",
    "Shared",
    "TimedOut",
    "listing",
    "publish",
    "wait",
]
