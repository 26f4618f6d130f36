# Two guests at once: each sees the memory of its own zone and computes, both hold what they have at the same time.
. /test/lib.sh
proxy
for limit in 48 96; do
    mkfifo /tmp/hold-$limit
    in_background $GPU_RUN --type pv --gpu-memory ${limit}MiB --share $limit -- /programs/demo $limit < /tmp/hold-$limit > /tmp/demo-$limit 2>&1 &
    eval pid_$limit=$!
done
exec 8> /tmp/hold-48 9> /tmp/hold-96
for limit in 48 96; do
    # The last line before it waits says what it holds.
    until grep -q '^memory I can get' /tmp/demo-$limit; do
        kill -0 $(eval echo \$pid_$limit) 2>/dev/null || { cat /tmp/demo-$limit; fail "the guest with $limit MiB ended"; }
        sleep 0.3
    done
done
bulkhead zones list
[ $(bulkhead zones list | awk '$2 != "0" && $1 ~ /^bulkhead-/ { print $4, $5 }' | sort -u | wc -l) = 2 ] || fail "two zones should hold memory"
exec 8>&- 9>&-
for limit in 48 96; do
    status=0; wait $(eval echo \$pid_$limit) || status=$?
    cat /tmp/demo-$limit
    [ $status = 0 ] && [ "$(tail -n 1 /tmp/demo-$limit)" = PASS ] || fail "the guest with $limit MiB: status $status"
done
rm /tmp/hold-48 /tmp/hold-96
nothing_left

# Of one guest only so much is mapped at a time, whatever its workers ask for: 32 MiB of these are a program's region. What
# was let go of counts no more.
kill -TERM $XEN_BACKEND; wait $XEN_BACKEND || true
bulkhead xen-backend --guest-memory 96MiB > /tmp/xen-backend.log 2>&1 &
XEN_BACKEND=$!
gpu_run --type pv --gpu-memory 256MiB -- sh -c '
    /programs/costs repinned 48 || exit 1
    /programs/costs pinned 80 && exit 2
    /programs/costs pinned 48 || exit 3' > /tmp/out 2>&1 || { status=$?; cat /tmp/out; fail "a guest with 96 MiB: status $status"; }
cat /tmp/out
grep -q cudaErrorMemoryAllocation /tmp/out || fail "more than 96 MiB failed for another reason"
grep -q 'reached its limit of mapped pages' /tmp/xen-backend.log || { cat /tmp/xen-backend.log; fail "it was not the Xen backend that refused"; }
nothing_left
