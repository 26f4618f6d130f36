# What ends, and what comes back, when parts of the driver domain or a guest end.
. /test/lib.sh
proxy
steady() {
    : > /tmp/steady
    in_background $GPU_RUN --type pv --gpu-memory 64MiB -- /programs/steady 0 > /tmp/steady 2>&1 &
    guest=$!
    rounds 2
}
rounds() {
    local before=$(grep -c "^round" /tmp/steady)
    until [ $(grep -c "^round" /tmp/steady) -ge $((before + $1)) ]; do
        kill -0 $guest 2>/dev/null || { cat /tmp/steady /tmp/xen-backend.log; fail "the guest ended"; }
        sleep 0.3
    done
}

# A new proxy takes the workers over: the program in the guest does not notice.
steady
kill -TERM $PROXY; wait $PROXY || true
bulkhead proxy --backend soft >> /tmp/proxy.log 2>&1 &
PROXY=$!
until bulkhead status > /dev/null 2>&1; do sleep 0.2; done
rounds 3
say "note restart: a new proxy, and the program goes on"

# Without a Xen backend there is nobody to choose pages: programs end, and the next backend serves the next ones.
kill -TERM $XEN_BACKEND; wait $XEN_BACKEND || true
status=0; wait $guest || status=$?
[ $status != 0 ] || { cat /tmp/steady; fail "the program did not notice that its worker was gone"; }
bulkhead xen-backend >> /tmp/xen-backend.log 2>&1 &
XEN_BACKEND=$!
steady
say "note restart: a new Xen backend serves"

# A Xen backend that is killed leaves its node in the guests' homes, and the next one finds it.
kill -KILL $XEN_BACKEND; wait $XEN_BACKEND || true
status=0; wait $guest || status=$?
[ $status != 0 ] || fail "the program did not notice that the Xen backend was killed"
bulkhead xen-backend >> /tmp/xen-backend.log 2>&1 &
XEN_BACKEND=$!
steady

# A guest that is destroyed takes its workers and their memory with it.
xl destroy $(xl list | awk 'NR > 2 { print $2 }' | sort -n | tail -n 1)
wait $guest || true
tries=0
until [ "$(bulkhead zones list | awk 'NR > 1 && $2 != 0' | wc -l)" = 0 ]; do
    tries=$((tries + 1)); [ $tries -lt 100 ] || { bulkhead zones list; fail "workers are left"; }
    sleep 0.2
done
gpu_run --type pv --gpu-memory 64MiB -- /programs/vecadd > /tmp/out 2>&1 || { status=$?; cat /tmp/out; fail "vecadd: status $status"; }
grep -qi panic /tmp/proxy.log /tmp/xen-backend.log && fail "something panicked"
nothing_left
