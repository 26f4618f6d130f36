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
