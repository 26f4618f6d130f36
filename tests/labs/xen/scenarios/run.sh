# `bulkhead xen run` is to the program in the guest what a shell is to a program here.
. /test/lib.sh
proxy
run="bulkhead xen run --image /boot/image --root /boot/tenant.cpio --memory 192MiB --shared-memory 16MiB"
for type in pvh pv; do
    run() { $run --type $type "$@"; }

    # Output, errors and input are three things, and the status is the program's.
    out=$(printf 'one\ntwo\n' | run --env WHO=me --workdir /etc -- \
        sh -c 'echo out $WHO $(pwd) $(wc -l); echo err >&2; cut -d" " -f1 /proc/uptime > /dev/stderr; exit 7' 2>/tmp/err) && fail "$type: status 0"
    status=$?
    [ $status = 7 ] || fail "$type: status $status, not 7; $(cat /tmp/err)"
    [ "$out" = "out me /etc 2" ] || fail "$type: output is '$out'"
    grep -q '^err$' /tmp/err || fail "$type: errors are '$(cat /tmp/err)'"
    say "note run: $type: the program ran $(tail -n 1 /tmp/err) s after the guest's start"
    awk "BEGIN { exit !($(tail -n 1 /tmp/err) < 5) }" || fail "$type: it took the guest 5 s and more to get to the program"

done
# What follows is the same for both; PV is the one that is quicker where all of it is emulated.

# What does not exist cannot be run.
status=0; run -- /no/such/program 2>/tmp/err || status=$?
[ $status = 127 ] || fail "a program that is not there gave $status"

# Many bytes, both ways, unharmed.
sum=$(dd if=/opt/bulkhead/bin/bulkhead bs=1M count=4 2>/dev/null | run -- cat | md5sum)
[ "$sum" = "$(dd if=/opt/bulkhead/bin/bulkhead bs=1M count=4 2>/dev/null | md5sum)" ] || fail "4 MiB came back as other bytes"

# What one before has said is not taken for what the next one says.
started() { until grep -q ready /tmp/out 2>/dev/null; do sleep 0.2; done; }

# A signal ends the program, not this command.
rm -f /tmp/out
in_background $run --type pv -- sh -c 'trap "echo caught; exit 9" TERM; echo ready; while :; do sleep 0.1; done' > /tmp/out 2>&1 < /dev/null &
pid=$!
started
kill -TERM $pid
status=0; wait $pid || status=$?
[ $status = 9 ] || fail "SIGTERM: status $status, output $(cat /tmp/out)"

# One that the program does not care for ends it. (Not SIGINT: what a shell starts in the background ignores that.)
rm -f /tmp/out
in_background $run --type pv -- sh -c 'echo ready; sleep 1000' > /tmp/out 2>&1 < /dev/null &
pid=$!
started
kill -HUP $pid
status=0; wait $pid || status=$?
[ $status = 129 ] || fail "SIGHUP: status $status, output $(cat /tmp/out)"

# A guest that reboots is gone, and its program was not the one who said so.
status=0; run -- reboot -f 2>/tmp/err || status=$?
grep -q 'the guest ended' /tmp/err || fail "a guest that reboots: status $status, $(cat /tmp/err)"
nothing_left

# One that is destroyed cannot say so.
rm -f /tmp/out
in_background $run --type pv -- sh -c 'echo ready; sleep 1000' > /tmp/out 2>&1 < /dev/null &
pid=$!
started
xl destroy $(xl list | awk '/bulkhead/ { print $2 }')
status=0; wait $pid || status=$?
grep -q 'the guest ended' /tmp/out || fail "a guest that is destroyed: status $status, $(cat /tmp/out)"
nothing_left

# However the command ends, its domain ends with it.
in_background $run --type pv -- sleep 1000 > /tmp/out 2>&1 < /dev/null &
pid=$!
until [ $(xl list | wc -l) = 3 ]; do sleep 0.2; done
until xenstore-ls /local/domain | grep -q bulkhead-run; do sleep 0.2; done
sleep 1
kill -KILL $pid
nothing_left
