# One guest lies in every way it can, and then is no more; another computes on.
. /test/lib.sh
proxy
gpu_run --type pv --gpu-memory 64MiB -- /programs/steady 0 > /tmp/steady 2>&1 &
victim=$!
until grep -q . /tmp/steady; do
    kill -0 $victim 2>/dev/null || { cat /tmp/steady; fail "the honest guest ended"; }
    sleep 0.3
done
gpu_run --type pv --gpu-memory 64MiB -- /conformance/conformance attack guest 1 40 > /tmp/attack 2>&1 \
    || { cat /tmp/attack; fail "the attacker itself: status $?"; }
tail -n 1 /tmp/attack
# And one that is destroyed in the middle.
gpu_run --type pv --gpu-memory 64MiB -- /conformance/conformance attack guest 2 100000 > /tmp/attack 2>&1 &
attacker=$!
until xl list | grep -q bulkhead; do sleep 0.2; done
sleep 8
newest=$(xl list | awk 'NR > 2 { print $2 }' | sort -n | tail -n 1)
xl destroy $newest
wait $attacker || true
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
grep -iE 'panic' /tmp/proxy.log /tmp/gate.log && fail "something panicked"
kill -0 $PROXY || fail "the proxy is gone"
kill -0 $GATE || fail "the gate is gone"
nothing_left
