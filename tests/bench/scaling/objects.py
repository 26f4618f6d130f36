"""What calls cost a client that has many streams, events, modules or allocations: one JSON line for each number of them.

scaling.py runs it in a zone.
"""

import ctypes
import json
import sys

from driver import NON_BLOCKING, Cuda, Workers, each


def streams(cuda):
    module = cuda.module()
    function = cuda.function(module)

    def churn(flags):
        cuda.cuStreamDestroy_v2(cuda.stream(flags))

    def fresh():
        """A program that makes a stream, and waits for everything."""
        stream = cuda.stream()
        cuda.cuCtxSynchronize()
        cuda.cuStreamDestroy_v2(stream)

    def work(stream):
        cuda.launch(function, stream)
        cuda.cuStreamSynchronize(stream)

    def make():
        return cuda.stream(NON_BLOCKING)

    first = make()
    yield make, {
        "create and destroy": lambda: churn(NON_BLOCKING),
        "create, wait for the context, destroy": fresh,
        "launch and wait for the stream": lambda: work(first),
        "wait for the context": cuda.cuCtxSynchronize,
    }


def events(cuda):
    def churn():
        cuda.cuEventDestroy_v2(cuda.event())

    def use(event):
        cuda.cuEventRecord(event, None)
        cuda.cuEventSynchronize(event)

    first = cuda.event()
    yield cuda.event, {"create and destroy": churn, "record and wait": lambda: use(first)}


def modules(cuda):
    def churn():
        module = cuda.module()
        cuda.function(module)
        cuda.cuModuleUnload(module)

    def make():
        module = cuda.module()
        cuda.function(module)
        return module

    first = cuda.function(cuda.module())

    def launch():
        cuda.launch(first)
        cuda.cuCtxSynchronize()

    yield make, {"load, look up, unload": churn, "launch and wait": launch}


def allocations(cuda):
    host = ctypes.create_string_buffer(4)

    def churn(size):
        cuda.cuMemFree_v2(cuda.allocate(size))

    def attributes(pointer):
        cuda.made("cuMemGetAddressRange_v2", None, pointer, kind=ctypes.c_uint64)

    def copy(pointer):
        cuda.cuMemcpyHtoD_v2(pointer, host, ctypes.c_size_t(4))
        cuda.cuMemcpyDtoH_v2(host, pointer, ctypes.c_size_t(4))

    first = cuda.allocate(512)
    yield lambda: cuda.allocate(512), {
        "allocate and free 512 bytes": lambda: churn(512),
        "allocate and free 600 KiB": lambda: churn(600 << 10),
        "allocate and free 4 MiB": lambda: churn(4 << 20),
        "copy 4 bytes there and back": lambda: copy(first),
        "look up its range": lambda: attributes(first),
    }


def chunks(cuda):
    """Blocks of which only a few share a chunk."""

    def churn(size):
        cuda.cuMemFree_v2(cuda.allocate(size))

    yield lambda: cuda.allocate(300 << 10), {
        "allocate and free 512 bytes": lambda: churn(512),
        "allocate and free 300 KiB": lambda: churn(300 << 10),
    }


def pinned(cuda):
    def churn(size):
        cuda.cuMemFreeHost(cuda.pinned(size))

    yield lambda: cuda.pinned(4096), {
        "allocate and free 4 KiB": lambda: churn(4096),
        "allocate and free 1 MiB": lambda: churn(1 << 20),
    }


KINDS = {
    "streams": (streams, 100_000),
    "events": (events, 100_000),
    "modules": (modules, 1_000),
    "allocations": (allocations, 100_000),
    "allocations of 300 KiB": (chunks, 3_000),
    "pinned allocations": (pinned, 10_000),
}


def main(kind, most, state):
    count = 1
    for make, calls in KINDS[kind][0](Cuda()):
        kept, workers = [], Workers(state)
        while count <= most:
            while len(kept) < count:
                kept.append(make())
            print(json.dumps({"count": count, **{name: each(workers, call) for name, call in calls.items()}}), flush=True)
            count *= 10
        # The process ends as it is: what is left goes with its worker.


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
