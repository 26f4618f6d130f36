"""Runs checks one after the other, says what came of each, and ends with the number of those that failed."""

import sys
import time
import traceback

_failed = []
_count = 0


def check(name):
    """A function that returns anything but False, and raises nothing, has passed."""

    def run(body):
        global _count
        _count += 1
        start = time.time()
        try:
            good = body() is not False
        except Exception:
            traceback.print_exc()
            good = False
        print("ok  " if good else "FAIL", name, f"({time.time() - start:.1f} s)", flush=True)
        if not good:
            _failed.append(name)

    return run


def finish():
    print(f"{_count - len(_failed)} of {_count} pass", *_failed, flush=True)
    sys.exit(1 if _failed else 0)
