# A part of the conformance suite, each test in a process of its own in the guest.
. /test/lib.sh
proxy
use_conformance
gpu_run --type pv --gpu-memory 256MiB -- /conformance/conformance --backend libcuda --kernels /conformance/kernels \
    kernels::block_sum kernels::warp_scan kernels::atomic_histogram kernels::memory_dynamic_shared kernels::control_sort \
    kernels::grid_sync launches::shapes launches::cooperative copies::pinned copies::odd_places streams::events_order > /tmp/suite 2>&1 || { status=$?; tail -n 30 /tmp/suite; fail "status $status"; }
tail -n 12 /tmp/suite
nothing_left
