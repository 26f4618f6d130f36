#!/bin/sh
# Everything about sharing that needs a GPU to be seen: the table of namespaces and privilege with and without Bulkhead, what
# opening and copying cost, how soon who waits is woken, tensors by name, and what topology and doctor say there.
#
#   tests/bench/gpu/sharing.sh [STAGE] [CONFORMANCE] [PROGRAMS]
#
# STAGE is a directory with bin/ and lib/ (target/stage), CONFORMANCE the `conformance` program (target/release/conformance),
# PROGRAMS the compiled programs (target/programs, with machine code for this GPU). Each part says whether it worked; the
# status is 0 if all did.
set -u
here=$(cd "$(dirname "$0")/../../.." && pwd)
stage=${1:-$here/target/stage}
conformance=${2:-$here/target/release/conformance}
programs=${3:-$here/target/programs}
bulkhead=$stage/bin/bulkhead
export BULKHEAD_BIN="$bulkhead" BULKHEAD_LIB_DIR="$stage/lib/bulkhead"
state=$(mktemp -d)
failed=0
proxy=

part() {
    title=$1
    shift
    printf '\n## %s\n\n' "$title"
    if "$@"; then printf '\n-- %s: fine\n' "$title"; else printf '\n-- %s: FAILED (%s)\n' "$title" "$?"; failed=1; fi
}

in_zone() {
    zone=$1
    shift
    "$bulkhead" run --socket "$state/admin.sock" --zone "$zone" -- "$@"
}

# A consumer in one zone waits, a producer in another publishes; both must end well.
pair() {
    in_zone b "$python" "$here/tests/bench/gpu/tensors.py" consume "$1" &
    consumer=$!
    in_zone a "$python" "$here/tests/bench/gpu/tensors.py" produce "$1"
    produced=$?
    wait "$consumer" && [ "$produced" = 0 ]
}

tensors() {
    python=$(command -v python3)
    export PYTHONPATH="$here/python"
    "$bulkhead" proxy --state-dir "$state" --backend nvidia --zone a:memory=20GiB --zone b:memory=20GiB &
    proxy=$!
    for _ in $(seq 300); do [ -S "$state/admin.sock" ] && "$bulkhead" status --socket "$state/admin.sock" >/dev/null 2>&1 && break; sleep 0.1; done
    "$bulkhead" grants allow a b --read-write --socket "$state/admin.sock" || return 1
    fine=0
    for library in ctypes torch cupy; do
        if "$python" -c "import $library" 2>/dev/null; then
            pair "$library" && echo "$library: fine" || { echo "$library: FAILED"; fine=1; }
        else
            echo "$library: not installed"
        fi
    done
    "$bulkhead" doctor --socket "$state/admin.sock"
    kill "$proxy"
    wait "$proxy"
    return $fine
}

part "topology" "$bulkhead" topology
part "doctor, with a proxy of its own" "$bulkhead" doctor --socket "$state/none"
part "truth table" "$conformance" truth-table --backend nvidia --native
part "opening and copying" python3 "$here/tests/bench/gpu/run.py" --stage "$stage" --programs "$programs" --only ipc_speed --rounds 3
part "publish to wake (bar: 100 us)" "$bulkhead" bench rendezvous
if python3 -c 'import torch' 2>/dev/null; then
    part "torch.multiprocessing" "$bulkhead" run --backend nvidia --memory 20GiB -- python3 "$here/tests/bench/gpu/torch_processes.py"
fi
part "tensors by name, between zones" tensors
rm -rf "$state"
exit $failed
