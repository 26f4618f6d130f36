#!/usr/bin/env python3
"""Many processes of one zone that multiply matrices at once: what they get together, and the least of them.

One line for each row, name and value, tab between. bench/gpu/run.py compares it with the native driver.
"""

import argparse
import os
import time

import torch

SIZE = 2048
# Products between two looks at the clock: a tenth of a millisecond each, so that who waits its turn is not misread.
BATCH = 20


def child(ready, start, counts, seconds):
    """Works from the time it is told for so many seconds, and says how often, and for how long."""
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(BATCH):
        a @ b
    torch.cuda.synchronize()
    os.write(ready, b"r")
    at = float(os.read(start, 64))
    time.sleep(max(0, at - time.monotonic()))
    count, begin = 0, time.monotonic()
    while time.monotonic() < begin + seconds:
        for _ in range(BATCH):
            a @ b
        torch.cuda.synchronize()
        count += BATCH
    os.write(counts, f"{count / (time.monotonic() - begin)}\n".encode())


def exactly(fd, size):
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            raise SystemExit("a process ended early")
        data += piece
    return data


def measure(count, seconds):
    """Rates of so many processes at once, and how long it took until all of them could work."""
    ready, counts = os.pipe(), os.pipe()
    starts, children = [], []
    begin = time.monotonic()
    for _ in range(count):
        start = os.pipe()
        # PyTorch is loaded, and CUDA not yet used: a child starts as quickly as can be, with a context of its own.
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for fd in (ready[0], counts[0], start[1], *starts):
                    os.close(fd)
                child(ready[1], start[0], counts[1], seconds)
                status = 0
            finally:
                os._exit(status)
        os.close(start[0])
        starts.append(start[1])
        children.append(pid)
    os.close(ready[1])
    os.close(counts[1])
    exactly(ready[0], count)
    until = time.monotonic() - begin
    for start in starts:
        os.write(start, f"{time.monotonic() + 0.2}".encode())
        os.close(start)
    with os.fdopen(counts[0]) as lines:
        rates = [float(line) for line in lines]
    os.close(ready[0])
    for pid in children:
        if os.waitpid(pid, 0)[1]:
            raise SystemExit("a process failed")
    assert len(rates) == count, rates
    return rates, until


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 8, 32], help="how many at once, one row each")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long they work")
    options = parser.parse_args()
    for count in options.processes:
        rates, until = measure(count, options.seconds)
        print(f"{count} processes, bf16 matmul {SIZE} it/s\t{sum(rates):.1f}", flush=True)
        if count > 1:
            print(f"{count} processes, the least of them it/s\t{min(rates):.1f}", flush=True)
        print(f"{count} processes, until all are ready s\t{until:.3f}", flush=True)


if __name__ == "__main__":
    main()
