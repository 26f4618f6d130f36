"""One more client on a node: how long its start takes, and what its calls cost. One line of JSON."""

import json
import sys
import time

from driver import Cuda, Workers, each

begin = time.perf_counter()
cuda = Cuda()
started = (time.perf_counter() - begin) * 1e3
function = cuda.function(cuda.module())


def launch():
    cuda.launch(function)
    cuda.cuCtxSynchronize()


def charge():
    """Large enough that the zone's account is asked."""
    cuda.cuMemFree_v2(cuda.allocate(8 << 20))


workers = Workers(sys.argv[1])
workers.only_for(launch)
costs = {"launch and wait, µs": each(workers, launch), "allocate and free 8 MiB, µs": each(workers, charge)}
print(json.dumps({"start of one more, ms": started, **costs}))
