"""Waits for a buffer under a name, uses it, and says that it is done.

    bulkhead run --socket /tmp/demo/admin.sock --zone demo -- python examples/publish/consume.py weights

With PyTorch: `shared.torch()` is a tensor of the same memory; `cupy.asarray(shared)` is an array of it.
"""

import sys

import bulkhead

name = sys.argv[1] if len(sys.argv) > 1 else "weights"
with bulkhead.wait(name, timeout=60) as shared:
    data = shared.tobytes()
    print(f"{shared.nbytes} bytes of zone {shared.zone}, {shared.note}: {data[:9].decode()!r}")
    assert data == b"forty-two " * 100_000
