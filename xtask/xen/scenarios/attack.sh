# One guest lies in every way it can, another is destroyed in the middle of its work; a third computes on.
. /test/lib.sh
proxy
gpu_run --type pv --gpu-memory 64MiB -- /programs/steady 0 > /tmp/steady 2>&1 &
victim=$!
rounds() { grep -c '^round' /tmp/steady || true; }
goes_on() {
    local before=$(rounds)
    until [ $(rounds) -ge $((before + 3)) ]; do
        kill -0 $victim 2>/dev/null || { cat /tmp/steady; fail "$1: the honest guest ended after $before rounds"; }
        sleep 0.3
    done
}
goes_on "at first"
gpu_run --type pv --gpu-memory 64MiB -- sh -c '
    for attack in nodes cards scribble die; do
        /programs/trial attack $attack || echo "attack $attack: status $?"
    done' > /tmp/attack 2>&1 || { cat /tmp/attack; fail "the attacker: status $?"; }
cat /tmp/attack
goes_on "after the attacks"

gpu_run --type pv --gpu-memory 64MiB -- /programs/steady 0 > /tmp/short 2>&1 &
short=$!
until grep -q '^round 2' /tmp/short; do
    kill -0 $short 2>/dev/null || { cat /tmp/short; fail "the guest that is to be destroyed ended by itself"; }
    sleep 0.3
done
xl destroy $(xl list | awk 'NR > 2 { print $2 }' | sort -n | tail -n 1)
status=0; wait $short || status=$?
[ $status = 76 ] || fail "a destroyed guest gave status $status: $(tail -n 3 /tmp/short)"
goes_on "after another guest was destroyed"

kill -TERM $victim
status=0; wait $victim || status=$?
say "note attack: the honest guest did $(rounds) rounds"
[ $status = 0 ] && [ "$(tail -n 1 /tmp/steady)" = PASS ] || { tail -n 5 /tmp/steady; fail "the honest guest: status $status"; }
grep -i 'panic' /tmp/proxy.log /tmp/gate.log && fail "something panicked"
kill -0 $PROXY || fail "the proxy is gone"
kill -0 $GATE || fail "the gate is gone"
nothing_left
