#!/usr/bin/env python3
"""Runs every row natively and through Bulkhead, in turn, and prints a table with ratios.

Needs an NVIDIA GPU and what `cargo xtask build` and `cargo xtask programs --sass 90` left in target/ (they may have been
built on another machine). Rows with PyTorch are left out, and named, where it is not installed.
"""

import argparse
import importlib.util
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE.parent.parent / "target"


def rows(command):
    """The rows that a benchmark prints, as a dictionary."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}")
    pairs = (line.split("\t") for line in done.stdout.splitlines() if "\t" in line)
    return {name: float(value) for name, value in pairs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=pathlib.Path, default=TARGET / "stage", help="folder with bin/ and lib/")
    parser.add_argument("--programs", type=pathlib.Path, default=TARGET / "programs", help="folder with compiled programs")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs (median)")
    parser.add_argument("--memory", default="40GiB", help="memory of the zone")
    parser.add_argument("--scale", default="1000", help="how long the single calls are repeated")
    options = parser.parse_args()

    benchmarks = [[options.programs / "calls-13.0-static", options.scale]]
    if importlib.util.find_spec("torch"):
        benchmarks.append([sys.executable, HERE / "torch_rows.py"])
    else:
        print("no PyTorch here: its rows are left out")
    zone = [options.stage / "bin/bulkhead", "run", "--backend", "nvidia", "--memory", options.memory, "--"]

    print(f"| row | native | Bulkhead | ratio |\n|---|---:|---:|---:|")
    for benchmark in benchmarks:
        sides = {"native": [], "bulkhead": []}
        for _ in range(options.rounds):
            sides["native"].append(rows(benchmark))
            sides["bulkhead"].append(rows(zone + benchmark))
        for name in sides["native"][0]:
            native, ours = (statistics.median(run[name] for run in sides[side]) for side in ("native", "bulkhead"))
            print(f"| {name} | {native:.2f} | {ours:.2f} | {ours / native:.2f} |", flush=True)


if __name__ == "__main__":
    main()
