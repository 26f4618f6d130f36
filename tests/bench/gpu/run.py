#!/usr/bin/env python3
"""Runs every row natively and through Bulkhead, in turn, and prints a table: medians, their ratio, the least and the largest
ratio of a round, and the processor time of the whole machine (ours beside native) for the benchmark that the row is of.

Needs an NVIDIA GPU and what `cargo xtask build` and `cargo xtask programs --sass 90` left in target/ (they may have been
built on another machine). Rows of libraries that are not installed are left out, and named.
"""

import argparse
import importlib.util
import math
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE.parents[2] / "target"

# What needs which library.
LIBRARIES = {
    "torch": ["torch_rows.py", "torch_models.py", "processes.py"],
    "jax": ["jax_rows.py"],
    "cupy": ["cupy_rows.py"],
}


def busy():
    """Seconds that all processors of this machine have worked, for whomever."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def is_cost(name):
    """Is less better? Else the row is a rate."""
    return name.endswith((" us", " s", " MiB"))


def rows(command):
    """The rows that a benchmark prints, as a dictionary, and the processor time that it took."""
    begin = busy()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
    if done.returncode != 0:
        print(f"{' '.join(map(str, command))} ended with {done.returncode}", file=sys.stderr)
    pairs = (line.split("\t") for line in done.stdout.splitlines() if "\t" in line)
    return {name: float(value) for name, value in pairs}, busy() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=pathlib.Path, default=TARGET / "stage", help="directory with bin/ and lib/")
    parser.add_argument("--programs", type=pathlib.Path, default=TARGET / "programs", help="directory with compiled programs")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs (median)")
    parser.add_argument("--memory", default="40GiB", help="memory of the zone")
    parser.add_argument("--only", default="", help="run only the benchmarks whose command contains this")
    parser.add_argument("--scale", default="1000", help="how long the single calls are repeated")
    options = parser.parse_args()

    benchmarks = [[options.programs / f"{name}-13.0-static", options.scale] for name in ("calls", "loops", "ipc_speed")]
    for library, scripts in LIBRARIES.items():
        if importlib.util.find_spec(library):
            benchmarks += [[sys.executable, HERE / script] for script in scripts]
        else:
            print(f"no {library} here: its rows are left out")
    zone = [options.stage / "bin/bulkhead", "run", "--backend", "nvidia", "--memory", options.memory, "--"]

    print("| row | native | Bulkhead | ratio | of single rounds | processor time |\n|---|---:|---:|---:|---:|---:|")
    speeds = []
    for benchmark in benchmarks:
        if options.only not in " ".join(map(str, benchmark)):
            continue
        rounds = [(rows(benchmark), rows(zone + benchmark)) for _ in range(options.rounds)]
        work = statistics.median(ours[1] / native[1] for native, ours in rounds)
        for name in rounds[0][0][0]:
            if not all(name in side[0] for pair in rounds for side in pair):
                print(f"| {name} | | failed | | | |")
                continue
            pairs = [(native[0][name], ours[0][name]) for native, ours in rounds]
            native, ours = (statistics.median(side) for side in zip(*pairs))
            ratios = [ours / native for native, ours in pairs]
            speeds.append(native / ours if is_cost(name) else ours / native)
            print(f"| {name} | {native:.2f} | {ours:.2f} | {ours / native:.2f} | {min(ratios):.2f}–{max(ratios):.2f} | {work:.2f} |", flush=True)
    if speeds:
        mean = math.exp(statistics.fmean(map(math.log, speeds)))
        print(f"\nSpeed, of native: geometric mean {mean:.2f}, least {min(speeds):.2f}, of {len(speeds)} rows")


if __name__ == "__main__":
    main()
