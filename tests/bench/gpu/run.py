#!/usr/bin/env python3
"""Runs every row natively and through Bulkhead, in turn, and prints a table with ratios.

Needs an NVIDIA GPU and what `cargo xtask build` and `cargo xtask programs --sass 90` left in target/ (they may have been
built on another machine). Rows of libraries that are not installed are left out, and named.
"""

import argparse
import importlib.util
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE.parents[2] / "target"


def rows(command):
    """The rows that a benchmark prints, as a dictionary."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
    if done.returncode != 0:
        print(f"{' '.join(map(str, command))} ended with {done.returncode}", file=sys.stderr)
    pairs = (line.split("\t") for line in done.stdout.splitlines() if "\t" in line)
    return {name: float(value) for name, value in pairs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=pathlib.Path, default=TARGET / "stage", help="directory with bin/ and lib/")
    parser.add_argument("--programs", type=pathlib.Path, default=TARGET / "programs", help="directory with compiled programs")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs (median)")
    parser.add_argument("--memory", default="40GiB", help="memory of the zone")
    parser.add_argument("--only", default="", help="run only the benchmarks whose command contains this")
    parser.add_argument("--scale", default="1000", help="how long the single calls are repeated")
    options = parser.parse_args()

    benchmarks = [[options.programs / f"{name}-13.0-static", options.scale] for name in ("calls", "ipc_speed")]
    for library, script in [("torch", "torch_rows.py"), ("jax", "jax_rows.py")]:
        if importlib.util.find_spec(library):
            benchmarks.append([sys.executable, HERE / script])
        else:
            print(f"no {library} here: its rows are left out")
    zone = [options.stage / "bin/bulkhead", "run", "--backend", "nvidia", "--memory", options.memory, "--"]

    print(f"| row | native | Bulkhead | ratio |\n|---|---:|---:|---:|")
    for benchmark in benchmarks:
        if options.only not in " ".join(map(str, benchmark)):
            continue
        sides = {"native": [], "bulkhead": []}
        for _ in range(options.rounds):
            sides["native"].append(rows(benchmark))
            sides["bulkhead"].append(rows(zone + benchmark))
        for name in sides["native"][0]:
            if not all(name in run for runs in sides.values() for run in runs):
                print(f"| {name} | | failed | |")
                continue
            native, ours = (statistics.median(run[name] for run in sides[side]) for side in ("native", "bulkhead"))
            print(f"| {name} | {native:.2f} | {ours:.2f} | {ours / native:.2f} |", flush=True)


if __name__ == "__main__":
    main()
