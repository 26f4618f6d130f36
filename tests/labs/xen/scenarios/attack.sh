# One guest lies in every way it can, and then is no more; another computes on.
. /test/lib.sh
# Each of the eight lies a few times; what they are made of is random, so more rounds find more.
rounds=32
grep -q 'thorough=1' /proc/cmdline && rounds=320
proxy
: > /tmp/steady
in_background $GPU_RUN --type pv --gpu-memory 64MiB -- /programs/steady 0 > /tmp/steady 2>&1 &
victim=$!
until grep -q . /tmp/steady; do
    kill -0 $victim 2>/dev/null || { cat /tmp/steady; fail "the honest guest ended"; }
    sleep 0.3
done
use_conformance
gpu_run --type pv --gpu-memory 64MiB -- /conformance/conformance attack guest 1 $rounds > /tmp/attack 2>&1 \
    || { status=$?; cat /tmp/attack; fail "the attacker itself: status $status"; }
tail -n 1 /tmp/attack
# One of another version than the proxy is refused, and then no worker was attacked.
grep -q ' in 0 sessions' /tmp/attack && fail "the attacker had no session"
grep -q 'cannot serve a client in a guest' /tmp/xen-backend.log || fail "the Xen backend heard no lie: $(cat /tmp/xen-backend.log)"
lies() { grep -c 'cannot serve a client in a guest' /tmp/xen-backend.log; }
# And one that is destroyed in the middle: it has been heard, and it would go on for long.
before=$(lies)
honest=$(xl list | awk '/bulkhead/ { print $2 }')
in_background $GPU_RUN --type pv --gpu-memory 64MiB -- /conformance/conformance attack guest 2 100000 > /tmp/attack 2>&1 &
attacker=$!
until [ $(lies) -ge $((before + 3)) ]; do
    kill -0 $attacker 2>/dev/null || { cat /tmp/attack; fail "the attacker ended by itself"; }
    sleep 0.3
done
xl destroy $(xl list | awk -v honest=$honest '/bulkhead/ && $2 != honest { print $2 }')
wait $attacker && fail "the attacker was not destroyed"
# It has gone on all the while, it goes on, and it ends well.
before=$(grep -c '^round' /tmp/steady)
until [ $(grep -c '^round' /tmp/steady) -ge $((before + 3)) ]; do
    kill -0 $victim 2>/dev/null || { cat /tmp/steady; fail "the honest guest ended after $before rounds"; }
    sleep 0.3
done
kill -TERM $victim
status=0; wait $victim || status=$?
tail -n 2 /tmp/steady
[ $status = 0 ] && [ "$(tail -n 1 /tmp/steady)" = PASS ] || { cat /tmp/steady; fail "the honest guest: status $status"; }
grep -iE 'panic' /tmp/proxy.log /tmp/xen-backend.log && fail "something panicked"
kill -0 $PROXY || fail "the proxy is gone"
kill -0 $XEN_BACKEND || fail "the Xen backend is gone"
nothing_left
