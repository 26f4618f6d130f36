#!/usr/bin/env python3
"""How zones share a GPU when their kernels last from a tenth of a millisecond to for ever.

Needs an NVIDIA GPU with CuPy, and what `cargo xtask build` left in target/stage. A row takes --seconds and a little more; tenants
are started once and told what to run. Work is counted in rounds of a loop, of all blocks, so that it does not matter where in a kernel a row
begins or ends, nor how long the kernel was off the GPU.
"""

import argparse
import json
import os
import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from shares import proxy_of_three
from tenants import TARGET, state_directory
from tenants import Tenant as SpokenTo

ENDLESS = -1
KERNEL = r"""
extern "C" __global__ void work(volatile unsigned long long *progress, volatile int *stop, long long rounds, float *out) {
    float value = threadIdx.x;
    // Each block has lines of its own: all that look at one word are slower than any arithmetic, and blocks differ.
    progress += blockIdx.x * 16;
    stop += blockIdx.x * 32;
    for (long long round = 0; (rounds < 0 || round < rounds) && !*stop; round++) {
        for (int i = 0; i < 512; i++) value = value * 1.0000001f + 0.5f;
        if (threadIdx.x == 0) *progress += 1;
    }
    if (value == 12345.0f) out[0] = value;
}
"""


def tenant(rounds_per_ms):
    """Runs kernels of the length that standard input says, in microseconds; answers each line with a line."""
    import cupy
    import numpy

    device = cupy.cuda.Device()
    work = cupy.RawKernel(KERNEL, "work")
    blocks = device.attributes["MultiProcessorCount"] * 4
    progress, stop, out = cupy.zeros(blocks * 16, cupy.uint64), cupy.zeros(blocks * 32, cupy.int32), cupy.zeros(1, cupy.float32)
    aside = cupy.cuda.Stream(non_blocking=True)
    pinned, flags = cupy.cuda.alloc_pinned_memory(blocks * 128), cupy.cuda.alloc_pinned_memory(blocks * 128)
    host, flag = numpy.frombuffer(pinned, numpy.uint64, blocks * 16), numpy.frombuffer(flags, numpy.int32, blocks * 32)
    wanted, changed = [0], threading.Condition()

    def launch(rounds):
        work((blocks,), (256,), (progress, stop, rounds, out))

    launch(1)
    device.synchronize()
    if not rounds_per_ms:
        launch(2000)
        device.synchronize()
        begin = time.perf_counter()
        launch(20000)
        device.synchronize()
        rounds_per_ms = 20000 / (time.perf_counter() - begin) / 1e3
    print(json.dumps({"rounds_per_ms": rounds_per_ms}), flush=True)

    def done():
        # The copy engine goes on while kernels stand still.
        with aside:
            cupy.cuda.runtime.memcpyAsync(pinned.ptr, progress.data.ptr, blocks * 128, 2, aside.ptr)
            aside.synchronize()
        return int(host.sum()) / blocks

    def set_stop(value):
        flag[:] = value
        cupy.cuda.runtime.memcpyAsync(stop.data.ptr, flags.ptr, blocks * 128, 1, aside.ptr)
        aside.synchronize()

    def run():
        device.use()
        pending = []
        while True:
            with changed:
                changed.wait_for(lambda: wanted[0])
                length = wanted[0]
            launch(ENDLESS if length == ENDLESS else max(int(length * rounds_per_ms / 1e3), 1))
            event = cupy.cuda.Event(disable_timing=True)
            event.record()
            pending.append(event)
            while len(pending) > (2 if length == ENDLESS or length > 1000 else 16):
                pending.pop(0).synchronize()
            while length == ENDLESS and wanted[0] == ENDLESS:
                time.sleep(0.001)

    threading.Thread(target=run, daemon=True).start()
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        if word == "run":
            if wanted[0] == ENDLESS:
                set_stop(1)
                wanted[0] = 0
                device.synchronize()
                set_stop(0)
            with changed:
                wanted[0] = int(number)
                changed.notify()
            print("{}", flush=True)
        else:
            print(json.dumps({"rounds": done(), "at": time.perf_counter()}), flush=True)
    os._exit(0)


class Tenant(SpokenTo):
    def __init__(self, options, zone, rounds_per_ms=0):
        super().__init__(options, zone, __file__, "--tenant", "--rounds-per-ms", rounds_per_ms)


def rates(tenants, lengths, seconds, settle):
    """Rounds a millisecond of each, side by side."""
    for each, length in zip(tenants, lengths):
        each.ask(f"run {length}")
    time.sleep(settle)
    before = [each.ask("mark") for each in tenants]
    time.sleep(seconds)
    after = [each.ask("mark") for each in tenants]
    for each in tenants:
        each.ask("run 0")
    return [(b["rounds"] - a["rounds"]) / (b["at"] - a["at"]) / 1e3 for a, b in zip(before, after)]


def name(length):
    return "endless" if length == ENDLESS else f"{length / 1000:g} ms"


ROWS = [
    # Shares, and how long the kernels of each are, in microseconds.
    ([50, 50], [2000, 2000]),
    ([50, 50], [100, 200_000]),
    ([50, 50], [2000, ENDLESS]),
    ([90, 10], [100, 20_000]),
    ([90, 10], [ENDLESS, 2000]),
    ([10, 90], [200_000, 20_000]),
    ([50, 50], [ENDLESS, ENDLESS]),
    ([25, 25, 50], [100, 2000, 200_000]),
    ([25, 25, 50], [20_000, ENDLESS, 100]),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=pathlib.Path, default=TARGET / "stage", help="directory with bin/ and lib/")
    parser.add_argument("--seconds", type=float, default=8, help="how long each row is measured")
    parser.add_argument("--settle", type=float, default=0.15, help="seconds from the begin of a row to its measurement")
    parser.add_argument("--rows", type=int, default=len(ROWS), help="only so many rows")
    parser.add_argument("--jail", default="best-effort")
    parser.add_argument("--backend", default="nvidia")
    parser.add_argument("--tenant", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds-per-ms", type=float, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tenant:
        return tenant(options.rounds_per_ms)
    options.bulkhead = options.stage / "bin/bulkhead"
    options.state = state_directory("mixes")
    native = Tenant(options, None)
    speed = native.hear()["rounds_per_ms"]
    bare = rates([native], [2000], options.seconds, options.settle)[0]
    native.end()
    proxy = proxy_of_three(options)
    tenants = []
    try:
        rows = ROWS[: options.rows]
        tenants = [Tenant(options, zone, speed) for zone in "abc"[: max(len(shares) for shares, _ in rows)]]
        for each in tenants:
            each.hear()
        print("| kernels | shares | got | off by | together, of one alone | preemptions |\n|---|---|---|---:|---:|---:|")
        alone = rates(tenants[:1], [2000], options.seconds, 1.2)[0]
        print(f"| 2 ms | alone | {alone / bare:.3f} of native | | | {proxy.zones()['a']['preemptions']} |", flush=True)
        for shares, lengths in rows:
            for zone, share in zip("abc", shares):
                proxy.set(zone, share=share, priority=0)
            before = proxy.zones()
            got = rates(tenants[: len(shares)], lengths, options.seconds, options.settle)
            after, total = proxy.zones(), sum(got)
            percent = [rate * 100 / total for rate in got]
            wanted = [share * 100 / sum(shares) for share in shares]
            off = max(abs(one - other) for one, other in zip(percent, wanted))
            stops = sum(after[zone]["preemptions"] - before[zone]["preemptions"] for zone in "abc"[: len(shares)])
            print(
                f"| {', '.join(map(name, lengths))} | {':'.join(map(str, shares))} "
                f"| {' : '.join(f'{value:.1f}' for value in percent)} | {off:.1f} | {total / alone:.3f} | {stops} |",
                flush=True,
            )
    finally:
        for each in tenants:
            each.end()
        proxy.end()


if __name__ == "__main__":
    main()
