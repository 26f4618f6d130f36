#!/usr/bin/env python3
"""How the cost of single calls grows with what there is: streams, events, modules and allocations of a client, clients of a
zone, and zones of a node; in processor time of client and worker. Prints tables, and writes them and their plots into docs/
(--write).

Runs on the software GPU of any machine, with what `cargo xtask build` left in target/stage. A cost should be as flat as the
structure behind it allows; which row may grow is said in docs/scaling.md.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parent / "gpu"))

from objects import KINDS
from plot import chart
from tenants import TARGET, Proxy, environment, state_directory

BEGIN, END = "<!-- results: written by tests/bench/scaling/scaling.py -->", "<!-- end of results -->"


def in_zone(options, zone, script, *words):
    """Lines of JSON that a script prints in a zone."""
    command = [sys.executable, HERE / script, *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment(options, zone))
    if done.returncode:
        print(f"{script} {' '.join(map(str, words))} ended with {done.returncode}", file=sys.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def busy(pids):
    """Processor time that processes have had, in seconds."""
    ticks = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def daemons(root):
    """The processes of a proxy that are no workers: the proxy itself and its children that stay."""
    found = [root]
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name = (entry / "comm").read_text().strip()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent in found and name.startswith("bulkhead") and "worker" not in name:
                found.append(int(entry.name))
    return found


def node(options, zones, clients):
    """What one more client sees on a node with so many zones, and so many clients spread over them."""
    options.state = state_directory("scaling")
    config = "".join(f"[zones.z{number}]\nmemory = \"1GiB\"\n" for number in range(zones))
    most = "max_workers = 1024\n" if clients > 200 else ""
    proxy = Proxy(options, most + config, "--soft-memory", "16GiB")
    crowd = None
    try:
        words = [sys.executable, HERE / "crowd.py", clients, zones, options.state]
        crowd = subprocess.Popen(
            list(map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(options, "z0")
        )
        begun = time.monotonic()
        if crowd.stdout.readline().strip() != "ready":
            raise SystemExit("clients did not start")
        row = {"start of each client, ms": (time.monotonic() - begun) / max(clients, 1) * 1e3} if clients else {}
        # The next spare is made a second after the last client.
        time.sleep(4)
        watched = daemons(proxy.process.pid)
        before, at = busy(watched), time.monotonic()
        time.sleep(5)
        row["daemons at rest, % of a core"] = max((busy(watched) - before) / (time.monotonic() - at) * 100, 0.01)
        row |= in_zone(options, "z0", "one.py", options.state)[0]
        begin = time.perf_counter()
        for _ in range(5):
            proxy.status()
        row["bulkhead status, ms"] = (time.perf_counter() - begin) / 5 * 1e3
        return row
    finally:
        if crowd:
            crowd.communicate("end\n")
        proxy.end()


def table(title, rows):
    names = [name for name in rows[-1] if name != "count"]
    lines = [f"| {title} | " + " | ".join(names) + " |", "|---:|" + "---:|" * len(names)]
    for row in rows:
        cells = [f"{row[name]:.1f}" if name in row else "" for name in names]
        lines.append(f"| {row['count']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=pathlib.Path, default=TARGET / "stage", help="directory with bin/ and lib/")
    parser.add_argument("--jail", default="best-effort", help="require, best-effort or off")
    parser.add_argument("--most", type=int, default=100_000, help="the most objects of a client")
    parser.add_argument("--clients", type=int, default=100, help="the most clients")
    parser.add_argument("--zones", type=int, default=1000, help="the most zones")
    parser.add_argument("--only", default="", help="only the tables whose name contains this")
    parser.add_argument("--write", action="store_true", help="write docs/scaling.md and its plots")
    options = parser.parse_args()
    options.backend, options.bulkhead = "soft", options.stage / "bin/bulkhead"
    powers = lambda most: [10**power for power in range(6) if 10**power <= most]

    tables = {}

    def add(name, unit, rows):
        if rows:
            tables[name] = (unit, rows)
            print(table(name, rows) + "\n", flush=True)

    for kind, (_, most) in KINDS.items():
        if options.only in kind:
            options.state = state_directory("scaling")
            proxy = Proxy(options, '[zones.a]\nmemory = "8GiB"\n', "--soft-memory", "16GiB")
            try:
                add(kind, "µs", in_zone(options, "a", "objects.py", kind, min(most, options.most), options.state))
            finally:
                proxy.end()
    if options.only in "clients of one zone":
        rows = [{"count": count, **node(options, 1, count)} for count in powers(options.clients)]
        add("clients of one zone", "µs, ms or %", rows)
    if options.only in "zones without clients":
        rows = [{"count": count, **node(options, count, 0)} for count in powers(options.zones)]
        add("zones without clients", "µs, ms or %", rows)
    if options.only in "zones with a client each":
        rows = [{"count": count, **node(options, count, count)} for count in powers(options.clients)]
        add("zones with a client each", "µs, ms or %", rows)
    if options.write:
        write(tables)


def write(tables):
    page = ROOT / "docs/scaling.md"
    parts = []
    for name, (unit, rows) in tables.items():
        lines = {key: [(row["count"], row[key]) for row in rows if row.get(key, 0) > 0] for key in rows[-1] if key != "count"}
        file = "scaling-" + re.sub(r"\W+", "-", name) + ".svg"
        (ROOT / "docs" / file).write_text(chart(name, name, unit, {key: line for key, line in lines.items() if line}))
        parts.append(f"### {name.capitalize()}\n\n![{name}]({file})\n\n{table(name, rows)}")
    text = page.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    page.write_text(before + BEGIN + "\n\n" + "\n\n".join(parts) + "\n\n" + END + after)


if __name__ == "__main__":
    main()
