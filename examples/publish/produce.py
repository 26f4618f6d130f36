"""Publishes a buffer under a name, and ends when a consumer is done with it.

    pip install ./python        (or PYTHONPATH=python)
    bulkhead run --socket /tmp/demo/admin.sock --zone demo -- python examples/publish/produce.py weights

With PyTorch: publish a tensor instead, `bulkhead.publish(name, tensor)`.
"""

import sys

import bulkhead

name = sys.argv[1] if len(sys.argv) > 1 else "weights"
buffer = bulkhead.DeviceBuffer.of(b"forty-two " * 100_000)
with bulkhead.publish(name, buffer, note={"made by": "produce.py"}) as publication:
    print("published", name, flush=True)
    publication.wait_done(timeout=60)
print("the consumer is done with it")
