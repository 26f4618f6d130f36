# CUDA programs in guests, as they run in containers: unmodified, each a test of its own.
. /test/lib.sh
proxy
for type in pv pvh; do
    programs="vecadd driver_api errors streams pinned printf symbols graphs"
    # The way is the same for both; the whole list is tried on one.
    [ $type = pv ] || programs="vecadd pinned streams"
    gpu_run --type $type --gpu-memory 64MiB -- sh -c '
        for program in '"$programs"'; do
            /programs/$program > /tmp/out 2>&1
            status=$?
            if [ $status = 0 ] && [ "$(tail -n 1 /tmp/out)" = PASS ]; then
                echo "$program passed $(cut -d" " -f1 /proc/uptime)"
            else
                cat /tmp/out; echo "$program: status $status"; exit 1
            fi
        done' || fail "$type: status $?"
done
# Who asks for more than the zone has gets an error, and nothing was left behind by those before.
bulkhead status | tail -n 5
nothing_left
