#!/usr/bin/env python3
"""How zones share a GPU: throughput of saturating tenants by share, and the latency of a zone that has priority.

Needs an NVIDIA GPU with PyTorch and what `cargo xtask build` left in target/stage. Takes about four minutes. Shares of kernels of
other lengths are in mixes.py.
A tenant is this script again, with --tenant: natively, or in a zone of one proxy whose zones are changed between rows.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from tenants import TARGET, Proxy, environment, state_directory


# ---- the tenant ----

def tenant(kind, size):
    """Works until standard input ends; reports when told `mark`: what was done since the last mark, as one JSON line."""
    import threading

    import torch

    marks, lock = [], threading.Lock()

    def listen():
        for line in sys.stdin:
            with lock:
                marks.append(line.strip())
        os._exit(0)

    if kind == "matmul":
        a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty_like(a)

        def step():
            # Two under way at the host at any time: saturating, and marks are answered promptly.
            torch.matmul(a, b, out=out)
            event = torch.cuda.Event()
            event.record()
            pending.append(event)
            if len(pending) > 2:
                pending.pop(0).synchronize()
            done.append(1)

        pending = []
    else:
        layers = []
        for _ in range(12):
            layers += [torch.nn.Linear(1024, 1024), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers).cuda().to(torch.bfloat16)
        batch = torch.randn(16, 1024, device="cuda", dtype=torch.bfloat16)
        due = [time.perf_counter()]
        forward = lambda: model(batch)
        if kind == "mlp-graph":
            with torch.no_grad():
                model(batch)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    model(batch)
            forward = graph.replay

        @torch.no_grad()
        def step():
            due[0] = max(due[0] + 0.003, time.perf_counter() - 0.003)
            while time.perf_counter() < due[0]:
                time.sleep(0.0002)
            begin = time.perf_counter()
            forward()
            torch.cuda.synchronize()
            done.append((time.perf_counter() - begin) * 1e3)

    done = []
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    done.clear()
    threading.Thread(target=listen, daemon=True).start()
    print("ready", flush=True)
    begin = time.perf_counter()
    while True:
        step()
        with lock:
            asked = bool(marks)
            marks.clear()
        if asked:
            now = time.perf_counter()
            report = {"rate": len(done) / (now - begin)}
            if kind != "matmul" and done:
                ordered = sorted(done)
                report |= {"p50": statistics.median(done), "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]}
            print(json.dumps(report), flush=True)
            done.clear()
            begin = now


# ---- who runs tenants ----

class Tenant:
    def __init__(self, options, zone, kind="matmul", size=8192):
        command = [sys.executable, __file__, "--tenant", kind, "--size", str(size)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment(options, zone))

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a tenant ended with {self.process.wait()}")
        return line.strip()

    def ready(self):
        assert self.hear() == "ready"
        return self

    def mark(self):
        self.process.stdin.write("mark\n")
        self.process.stdin.flush()

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)


def measure(tenants, seconds, settle):
    """What each did in the same seconds."""
    for each in tenants:
        each.ready()
    time.sleep(settle)
    for each in tenants:
        each.mark()
    for each in tenants:
        each.hear()
    time.sleep(seconds)
    for each in tenants:
        each.mark()
    reports = [json.loads(each.hear()) for each in tenants]
    for each in tenants:
        each.end()
    return reports


def proxy_of_three(options):
    """A proxy with zones a, b and c, whose settings are changed between rows."""
    config = "".join(f'[zones.{zone}]\nmemory = "30GiB"\n' for zone in "abc")
    return Proxy(options, config, "--spare-workers", "2")


def shares(proxy, options, name, weights, alone):
    for zone, weight in zip("abc", weights):
        proxy.set(zone, share=weight, priority=0)
    before = proxy.zones()
    zones = "abc"[: len(weights)]
    rates = [report["rate"] for report in measure([Tenant(options, zone) for zone in zones], options.seconds, 2)]
    after = proxy.zones()
    total = sum(rates)
    wanted = [weight * 100 / sum(weights) for weight in weights]
    got = [rate * 100 / total for rate in rates]
    charged = [after[zone]["turn_time_ns"] - before[zone]["turn_time_ns"] for zone in zones]
    turns = sum(after[zone]["turns"] - before[zone]["turns"] for zone in zones)
    off = max(abs(one - other) for one, other in zip(wanted, got))
    by_broker = " : ".join(f"{time * 100 / max(sum(charged), 1):.1f}" for time in charged)
    print(
        f"| {name} | {' : '.join(f'{value:.1f}' for value in got)} | {off:.1f} | {total:.0f} it/s "
        f"({total / alone:.3f} of alone) | {by_broker} | {turns} |",
        flush=True,
    )


def latency(options, name, tenants, alone=None, other_alone=None):
    reports = measure(tenants, options.seconds, 2)
    critical = reports[0]
    line = f"| {name} | {critical['p50']:.2f} ms | {critical['p99']:.2f} ms |"
    line += f" {critical['p99'] / alone['p99']:.2f}× |" if alone else " |"
    if len(reports) > 1 and other_alone:
        line += f" {reports[1]['rate']:.0f} it/s ({reports[1]['rate'] / other_alone:.3f} of alone) |"
    else:
        line += " |"
    print(line, flush=True)
    return critical


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=pathlib.Path, default=TARGET / "stage", help="directory with bin/ and lib/")
    parser.add_argument("--seconds", type=float, default=10, help="how long each row is measured")
    parser.add_argument("--jail", default="best-effort")
    parser.add_argument("--backend", default="nvidia")
    parser.add_argument("--only", default="", help="rows whose name contains this: lone, shares, latency")
    parser.add_argument("--tenant", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, default=8192, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tenant:
        return tenant(options.tenant, options.size)
    import mixes

    options.bulkhead = options.stage / "bin/bulkhead"
    options.state = state_directory("shares")
    brief = min(options.seconds, 5)

    proxy = proxy_of_three(options)
    try:
        native = measure([Tenant(options, None)], brief, 1)[0]["rate"]
        proxied = measure([Tenant(options, "a")], brief, 1)[0]["rate"]
        turns = proxy.zones()["a"]["turns"]
        busy = proxy.zones()["a"]["stats"].get("gpu_time_ns", 0)
        print("| alone, bf16 matmul 8192³ | it/s | |\n|---|---:|---|")
        print(f"| native | {native:.0f} | |")
        print(f"| in a zone | {proxied:.0f} | {proxied / native:.3f} of native, {turns} turns, {busy / 1e9:.1f} s GPU time |\n")
        if options.only in "shares":
            print("| shares | got | off by | together | by the broker | turns |\n|---|---|---:|---|---|---:|")
            shares(proxy, options, "50 : 50", [100, 100], proxied)
            shares(proxy, options, "90 : 10", [90, 10], proxied)
            shares(proxy, options, "25 : 25 : 50", [25, 25, 50], proxied)
            print()
        if options.only in "latency":
            print("| MLP request each 3 ms | p50 | p99 | p99 to alone | beside |\n|---|---:|---:|---:|---|")
            options.seconds = min(options.seconds, 8)
            bare = latency(options, "native alone", [Tenant(options, None, "mlp")])
            latency(options, "native beside matmul 8192³", [Tenant(options, None, "mlp"), Tenant(options, None)], bare, native)
            proxy.set("a", share=100, priority=0)
            proxy.set("b", share=100, priority=0)
            alone = latency(options, "zone alone", [Tenant(options, "a", "mlp")])
            both = lambda: [Tenant(options, "a", "mlp"), Tenant(options, "b")]
            proxy.set("a", priority=10)
            latency(options, "priority 10 beside matmul 8192³", both(), alone, proxied)
            proxy.set("a", priority=0)
            latency(options, "same priority beside it", both(), alone, proxied)
            proxy.set("a", priority=10)
            long_alone = measure([Tenant(options, "b", size=16384)], brief, 1)[0]["rate"]
            for kind, title in [("mlp", "eager"), ("mlp-graph", "as a CUDA graph")]:
                latency(options, f"{title}, natively alone", [Tenant(options, None, kind)])
                alone = latency(options, f"{title}, zone alone", [Tenant(options, "a", kind)])
                beside = lambda size: [Tenant(options, "a", kind), Tenant(options, "b", size=size)]
                latency(options, f"{title}, beside matmul 8192³", beside(8192), alone, proxied)
                latency(options, f"{title}, beside matmul 16384³", beside(16384), alone, long_alone)
                endless = mixes.Tenant(options, "b")
                speed = endless.hear()["rounds_per_ms"]
                endless.ask(f"run {mixes.ENDLESS}")
                before = endless.ask("mark")
                latency(options, f"{title}, beside a kernel that never ends", [Tenant(options, "a", kind)], alone)
                after = endless.ask("mark")
                rate = (after["rounds"] - before["rounds"]) / (after["at"] - before["at"]) / 1e3
                print(f"| which had | {rate / speed:.3f} of the GPU | | | |", flush=True)
                endless.end()
    finally:
        proxy.end()


if __name__ == "__main__":
    main()
