"""Many clients at once: children of this process, each with a context and some memory, idle until it is told to end.

Arguments: how many clients, over how many zones, and the state directory of the proxy.
"""

import ctypes
import os
import sys

from driver import Cuda

# So many start at a time: a node makes no more workers at once either.
AT_ONCE = 8


def client(zone, state):
    os.environ["BULKHEAD_SOCKET"] = f"{state}/zones/z{zone}/sock"
    cuda = Cuda()
    cuda.cuMemsetD8_v2(cuda.allocate(1 << 16), ctypes.c_ubyte(1), ctypes.c_size_t(1 << 16))
    cuda.cuCtxSynchronize()


def main(clients, zones, state):
    # Loaded here, begun in the children: they share its pages.
    ctypes.CDLL("libcuda.so.1")
    ready, end = os.pipe(), os.pipe()
    children = []
    for number in range(clients):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(end[1])
                client(number % zones, state)
                os.write(ready[1], b"r")
                os.read(end[0], 1)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
        if number >= AT_ONCE:
            os.read(ready[0], 1)
    for _ in range(min(clients, AT_ONCE)):
        os.read(ready[0], 1)
    print("ready", flush=True)
    sys.stdin.readline()
    os.close(end[1])
    for pid in children:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
