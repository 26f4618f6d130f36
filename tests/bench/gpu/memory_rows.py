#!/usr/bin/env python3
"""What an idle client costs in host memory: the client itself, its worker, a spare worker, and the daemons of the node.

Proportional set size (what is shared counts half where two have it), MiB, as medians. The client has a context, memory of
1 MiB, and is then idle; natively the same program is measured with the driver library that the loader finds.
"""

import argparse
import ctypes
import json
import pathlib
import statistics
import sys
import time

from tenants import TARGET, Proxy, Tenant, state_directory

MIB = 1 << 20
# As the kernel shows it, which cuts names off.
WORKER = "bulkhead-worker"


def kept(pid):
    """Lines of smaps_rollup in MiB: what a process has of memory."""
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    pairs = (line.split(":") for line in lines)
    sizes = {name: int(value.split()[0]) / 1024 for name, value in pairs}
    return {"PSS": sizes["Pss"], "anonymous": sizes["Pss_Anon"], "files": sizes["Pss_File"], "shared": sizes["Pss_Shmem"]}


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def processes():
    """Names and parents of all processes that there are."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = ((entry / "comm").read_text().strip(), parent_of(entry.name))
            except OSError:
                pass  # It ended meanwhile.
    return found


def descendants(root):
    found = processes()

    def below(pid):
        while pid in found:
            pid = found[pid][1]
            if pid == root:
                return True
        return False

    return {pid: name for pid, (name, _) in found.items() if below(pid)}


def client():
    """A client as small as can be, which is then idle."""
    before = kept("self")
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory, version = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()

    def ask(name, *arguments):
        result = getattr(cuda, name)(*arguments)
        if result:
            raise SystemExit(f"{name}: {result}")

    ask("cuInit", 0)
    ask("cuDriverGetVersion", ctypes.byref(version))
    ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    ask("cuCtxSetCurrent", context)
    ask("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(MIB))
    ask("cuMemsetD8_v2", memory, ctypes.c_ubyte(1), ctypes.c_size_t(MIB))
    ask("cuCtxSynchronize")
    sys.stdin.readline()
    # Python itself is not ours.
    print(json.dumps({name: size - before[name] for name, size in kept("self").items()}), flush=True)
    sys.stdin.readline()


def row(name, sizes):
    median = {kind: statistics.median(size[kind] for size in sizes) for kind in sizes[0]}
    print(f"| {name} | {len(sizes)} | " + " | ".join(f"{size:.2f}" for size in median.values()) + " |", flush=True)


def clients(options, zone):
    tenants = [Tenant(options, zone, __file__, "client") for _ in range(options.clients)]
    time.sleep(options.idle)
    return tenants


def end(tenants):
    for tenant in tenants:
        tenant.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=pathlib.Path, default=TARGET / "stage", help="directory with bin/ and lib/")
    parser.add_argument("--backend", default="nvidia", help="nvidia or soft")
    parser.add_argument("--jail", default="require", help="require, best-effort or off")
    parser.add_argument("--clients", type=int, default=4, help="how many clients at once")
    parser.add_argument("--idle", type=float, default=5, help="seconds until they are measured")
    options = parser.parse_args()
    options.bulkhead, options.state = options.stage / "bin/bulkhead", state_directory("memory")

    print("| process | of them | PSS | anonymous | files | shared memory |\n|---|---:|---:|---:|---:|---:|")
    if options.backend == "nvidia":
        natives = clients(options, None)
        row("native client", [tenant.ask("") for tenant in natives])
        end(natives)
    # Room for as many contexts, where a GPU has that.
    size = "2GiB" if options.backend == "soft" else f"{options.clients + 4}GiB"
    proxy = Proxy(options, f'[zones.a]\nmemory = "{size}"\n')
    try:
        tenants = clients(options, "a")
        row("client", [tenant.ask("") for tenant in tenants])
        served = {worker["pid"] for worker in proxy.zones()["a"]["workers"]}
        everything = descendants(proxy.process.pid) | {proxy.process.pid: "proxy"}
        # Before each worker stands a process of its jail, if there is one, which is the one that the broker knows.
        guards = {parent_of(pid) for pid, name in everything.items() if name == WORKER} & set(everything)
        guards = {pid for pid in guards if everything[pid] == WORKER}

        def kind(pid, name):
            if name != WORKER:
                return name
            if pid in guards:
                return "guard of a worker"
            return "worker of a client" if served & {pid, parent_of(pid)} else "spare worker"

        kinds = {pid: kind(pid, name) for pid, name in everything.items()}
        for name in sorted(set(kinds.values())):
            row(name, [kept(pid) for pid, other in kinds.items() if other == name])
        end(tenants)
    finally:
        proxy.end()


if __name__ == "__main__":
    if sys.argv[1:] == ["client"]:
        client()
    else:
        main()
