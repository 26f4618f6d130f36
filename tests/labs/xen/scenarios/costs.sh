# What calls of a CUDA program in a guest cost: requests to the hypervisor, events, and bytes that are copied on the way. Time
# says nothing where it is emulated; these counts are the same on real hardware, and must not grow unseen.
. /test/lib.sh
proxy
LAUNCHES=2000 MIB=48
gpu_run --type pv --gpu-memory 128MiB -- sh -c '
    for what in "nothing 0" "launches '$LAUNCHES'" "pageable '$MIB'" "pinned '$MIB'"; do
        BULKHEAD_TRACE=1 BULKHEAD_TRACE_FILE=/tmp/trace /programs/costs $what > /tmp/out 2>&1 && grep -q PASS /tmp/out \
            || { cat /tmp/out; exit 1; }
        echo "$what $(sed -n "s/.*through Xen: //p" /tmp/trace)"
        rm /tmp/trace
    done' > /tmp/costs 2>&1 || { status=$?; cat /tmp/costs; fail "status $status"; }
cat /tmp/costs

# more WHAT COUNT: how much more of it there is than in a program that does nothing of the kind.
value() { awk -v what=$1 -v key=$2 '$1 == what { for (i = 3; i <= NF; i++) if (split($i, pair, "=") && pair[1] == key) print pair[2] }' /tmp/costs; }
more() { echo $(($(value $1 $2) - $(value nothing $2))); }
at_most() {
    say "note costs: $1: $2 is $3, may be $4"
    [ $3 -le $4 ] || fail "$1: $2 is $3, and may be $4"
}
# A program starts with one region and one card.
at_most nothing grant_requests $(value nothing grant_requests) 2
# A launch is a message in the ring; the worker is woken when it sleeps.
at_most launches grant_requests $(more launches grant_requests) 0
at_most launches events_sent $(more launches events_sent) $((LAUNCHES / 50))
# To the device and back through staging: each byte is copied once each way, and pages are granted only as the area grows.
at_most pageable bytes_copied $(more pageable bytes_copied) $((2 * MIB << 20))
at_most pageable grant_requests $(more pageable grant_requests) 3
at_most pageable events_sent $(more pageable events_sent) $((2 * MIB))
# Pinned memory is granted once, and copied by nobody but the GPU.
at_most pinned bytes_copied $(more pinned bytes_copied) 0
at_most pinned grant_requests $(more pinned grant_requests) 1
at_most pinned events_sent $(more pinned events_sent) $MIB
nothing_left
