#!/usr/bin/env python3
"""What it costs to move the GPU memory of a client to the host and back, and that nothing changes by it.

Needs an NVIDIA GPU with PyTorch and what `cargo xtask build` left in target/stage. Rows:

  heap      memory in blocks of mixed sizes (--gib), moved --rounds times, contents compared to the bit
  training  GPT-2 with its optimiser, suspended at random, its losses compared to the bit with a run that was left alone
  turns     two clients (--gib each) of which one fits beside a third that is no zone's (--ballast), working in turns

A client is this script again, with --client. Contents are compared by sums of 64-bit words, computed on the GPU.
"""

import argparse
import json
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tenants

GIB = 1 << 30


# ---- clients ----

def answer(**words):
    print(json.dumps(words), flush=True)


def heap(gib):
    """Blocks from 512 bytes to 2 GiB, each filled with random words; `sum` says what is in them."""
    import torch

    order, blocks, left = random.Random(7), [], int(gib * GIB)
    while left > 0:
        size = min(left, order.choice([512, 64 << 10, 2 << 20, 24 << 20, 200 << 20, 2 * GIB]))
        blocks.append(torch.randint(-(1 << 62), 1 << 62, (max(size // 8, 1),), dtype=torch.int64, device="cuda"))
        left -= size
    answer(ready=True, blocks=len(blocks))
    for line in sys.stdin:
        begin = time.perf_counter()
        # The first kernel waits for everything.
        blocks[0].add_(0)
        torch.cuda.synchronize()
        first = time.perf_counter() - begin
        mixed = [int((block * (index + 1)).sum()) if block.numel() < 1 << 26 else int(block.sum()) for index, block in enumerate(blocks)]
        answer(sum=hash(tuple(mixed)), first=first)


def training(steps):
    """Trains GPT-2 on random tokens; every loss, to the bit."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = GPT2LMHeadModel(GPT2Config()).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator(device="cuda").manual_seed(5)
    answer(ready=True)
    losses = []
    for step in range(steps):
        tokens = torch.randint(0, 50257, (8, 256), device="cuda", generator=generator)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.detach())
        if step % 10 == 9:
            answer(step=step)
    answer(losses=[value.hex() for value in torch.stack(losses).double().cpu().tolist()],
           heap=torch.cuda.max_memory_reserved())


# ---- who runs them ----

class Client(tenants.Tenant):
    def __init__(self, options, zone, *words):
        super().__init__(options, zone, __file__, "--client", *words, CUBLAS_WORKSPACE_CONFIG=":4096:8")


def proxy_of_two(options):
    """A proxy with zones a and b, whose clients make room for each other."""
    zone = f'memory = "{options.memory}"\nhost_memory = "unlimited"\nsuspend_memory = "{options.host}GiB"\n'
    node = f'[proxy]\nsuspend_memory = "{options.host}GiB"\nsuspend_on_demand = true\n'
    return tenants.Proxy(options, node + "".join(f"[zones.{name}]\n{zone}" for name in "ab"))


def moved(proxy, name):
    """Bytes and seconds so far: out, and back."""
    zone = proxy.zones()[name]
    return [(zone[way]["bytes"], zone[way]["micros"] / 1e6) for way in ("moved_out", "moved_back")]


def rates(before, after):
    """Seconds for each GiB: out, and back."""
    return [(end[1] - begin[1]) / max((end[0] - begin[0]) / GIB, 1e-9) for begin, end in zip(before, after)]


def row_heap(options, proxy):
    client = Client(options, "a", "heap", options.gib)
    blocks, before = client.hear()["blocks"], client.ask("sum")["sum"]
    print(f"\n| {options.gib:g} GiB in {blocks} blocks | out, s/GiB | back, s/GiB | first kernel after, s | contents |\n|---|---:|---:|---:|---|")
    for round in range(options.rounds):
        start = moved(proxy, "a")
        done = proxy.ask("zones", "suspend", "a")
        if done.returncode:
            print(f"| {round + 1} | not suspended: {done.stderr.strip()} | | | |", flush=True)
            continue
        after = client.ask("sum")
        out, back = rates(start, moved(proxy, "a"))
        same = "the same" if after["sum"] == before else "DIFFERENT"
        print(f"| {round + 1} | {out:.4f} | {back:.4f} | {after['first']:.2f} | {same} |", flush=True)
    client.end()


def row_training(options, proxy):
    def run(zone, times):
        client, order, done = Client(options, zone, "training", options.steps), random.Random(times), 0
        client.hear()
        begin = time.perf_counter()
        while "losses" not in (said := client.hear()):
            for _ in range(max(times * 10 // options.steps, 1) if times else 0):
                time.sleep(order.random() * 0.05)
                done += proxy.ask("zones", "suspend", zone).returncode == 0
        client.end()
        return said, done, time.perf_counter() - begin

    alone, _, usual = run("a", 0)
    start = moved(proxy, "a")
    disturbed, times, longer = run("a", options.suspensions)
    out, back = rates(start, moved(proxy, "a"))
    again, _, _ = run(None, 0)
    same = lambda other: "the same to the bit" if alone["losses"] == other["losses"] else "DIFFERENT"
    print(f"\n| GPT-2, {options.steps} steps, {alone['heap'] / GIB:.1f} GiB | seconds | losses |\n|---|---:|---|")
    print(f"| in a zone | {usual:.1f} | ends with {float.fromhex(alone['losses'][-1]):.6f} |")
    print(f"| suspended {times} times, out {out:.4f}, back {back:.4f} s/GiB | {longer:.1f} | {same(disturbed)} |")
    print(f"| natively | | {same(again)} |", flush=True)


def row_turns(options, proxy):
    clients, ballast = [], Client(options, None, "heap", options.ballast)
    ballast.hear()
    print(f"\n| two clients of {options.gib:g} GiB in turns | seconds until its first kernel is done | contents |\n|---|---:|---|")
    for zone in "ab":
        clients.append(Client(options, zone, "heap", options.gib))
        clients[-1].hear()
    sums = [client.ask("sum")["sum"] for client in clients]
    for turn in range(options.turns):
        time.sleep(options.pause)
        which = turn % 2
        said = clients[which].ask("sum")
        same = "the same" if said["sum"] == sums[which] else "DIFFERENT"
        print(f"| turn {turn + 1} | {said['first']:.2f} | {same} |", flush=True)
    for client in [*clients, ballast]:
        client.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=pathlib.Path, default=tenants.TARGET / "stage", help="directory with bin/ and lib/")
    parser.add_argument("--only", default="", help="rows whose name contains this: heap, training, turns")
    parser.add_argument("--gib", type=float, default=60, help="memory of a client of the rows heap and turns")
    parser.add_argument("--ballast", type=float, default=60, help="GPU memory that is taken meanwhile in the row turns, GiB")
    parser.add_argument("--memory", default="130GiB", help="limit of each zone")
    parser.add_argument("--host", type=int, default=90, help="host memory for suspended clients, GiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="of training")
    parser.add_argument("--suspensions", type=int, default=50, help="of training")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--pause", type=float, default=3, help="seconds between two turns")
    parser.add_argument("--jail", default="best-effort")
    parser.add_argument("--backend", default="nvidia")
    parser.add_argument("--client", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        kind, number = options.client
        return heap(float(number)) if kind == "heap" else training(int(number))
    options.bulkhead = options.stage / "bin/bulkhead"
    options.state = tenants.state_directory("suspend")
    proxy = proxy_of_two(options)
    try:
        for name, row in [("heap", row_heap), ("training", row_training), ("turns", row_turns)]:
            if options.only in name:
                row(options, proxy)
    finally:
        proxy.end()


if __name__ == "__main__":
    main()
