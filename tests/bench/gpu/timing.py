"""What the benchmarks of PyTorch share: how they count and how they print."""

import sys
import time

import torch


def rate(count, work, warm=1, times=1):
    """Calls a second, after a warm-up; the best of so many times."""
    for _ in range(warm):
        work()
    torch.cuda.synchronize()
    best = 0
    for _ in range(times):
        begin = time.time()
        for _ in range(count):
            work()
        torch.cuda.synchronize()
        best = max(best, count / (time.time() - begin))
    return best


def print_rows(rows):
    """Runs those whose name contains an argument of the command line, or all: one line each, name and value, tab between.
    What is not installed (torchvision, transformers) leaves its rows out."""
    for name, row in rows:
        if len(sys.argv) > 1 and not any(wanted in name for wanted in sys.argv[1:]):
            continue
        torch.manual_seed(0)
        try:
            print(f"{name}\t{row():.3f}", flush=True)
        except ImportError as missing:
            print(f"{name}: left out ({missing})", file=sys.stderr)
        torch.cuda.empty_cache()
