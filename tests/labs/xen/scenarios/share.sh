# CUDA IPC between guests: by name, and by a handle that goes through Dom0 as text. The memory is opened by the broker's grant.
. /test/lib.sh
proxy
# The root file system of the other scenarios, with the `bulkhead` program in it.
mkdir -p /tmp/more/tenant/usr/bin
cp /opt/bulkhead/bin/bulkhead /tmp/more/tenant/usr/bin/
{ cat /boot/tenant.cpio; (cd /tmp/more && find . | cpio -o -H newc 2>/dev/null); } > /tmp/tenant.cpio
rm -r /tmp/more
use_root /tmp/tenant.cpio
run="$GPU_RUN --type pv"
mkfifo /tmp/release
for zone in producer consumer stranger; do bulkhead zones create $zone --memory 64MiB > /dev/null; done
bulkhead grants allow producer consumer > /dev/null

# The producer publishes what it has for two consumers, and ends when both are done or dead.
in_background $run --zone producer -- sh -c '
    /programs/share producer /tmp & pid=$!
    until [ -f /tmp/handle ]; do kill -0 $pid || exit 1; sleep 0.2; done
    handle=$(od -An -v -tx1 /tmp/handle | tr -d " \n")
    echo "HANDLE $handle"
    bulkhead ipc publish weights --handle $handle --bytes 4096 --note "from afar" --consumers 2
    echo "PUBLISHED $?"
    read line
    echo d > /tmp/done
    wait $pid' < /tmp/release > /tmp/producer 2>&1 &
producer=$!
exec 8> /tmp/release
until grep -q HANDLE /tmp/producer; do
    kill -0 $producer 2>/dev/null || { cat /tmp/producer; fail "the producer ended"; }
    sleep 0.3
done
say "note share: the producer has a handle"

# Who has no grant sees no name, and gets nothing, though it has the handle.
status=0
sed -n 's/^HANDLE //p' /tmp/producer | $run --zone stranger -- sh -c '
    read handle
    bulkhead ipc wait producer/weights --timeout 2
    echo "WAITED $?"
    bulkhead ipc list
    printf "$(echo $handle | sed "s/../\\\\x&/g")" > /tmp/new && mv /tmp/new /tmp/handle
    exec /programs/share consumer /tmp' > /tmp/stranger 2>&1 || status=$?
cat /tmp/stranger
[ $status != 0 ] || fail "a stranger opened it"
grep -q 'cudaErrorNotPermitted' /tmp/stranger || fail "the stranger failed for another reason"
grep -q 'WAITED 79' /tmp/stranger || fail "the stranger found the name"
grep -q weights /tmp/stranger && fail "the stranger sees the name"

# Who has one finds it by name; the producer hears of it.
$run --zone consumer -- bulkhead ipc wait producer/weights --timeout 60 -- sh -c '
    [ "$BULKHEAD_IPC_NOTE" = "from afar" ] && [ "$BULKHEAD_IPC_BYTES" = 4096 ] || exit 9
    printf "$(echo $BULKHEAD_IPC_HANDLE | sed "s/../\\\\x&/g")" > /tmp/new && mv /tmp/new /tmp/handle
    exec /programs/share consumer /tmp' > /tmp/consumer 2>&1 || { status=$?; cat /tmp/consumer; fail "the consumer: status $status"; }
grep -q 'first values: 42 43 44 45' /tmp/consumer || fail "the consumer read $(cat /tmp/consumer)"
until grep -q 'consumer 1 in zone consumer finished' /tmp/producer; do
    kill -0 $producer 2>/dev/null || { cat /tmp/producer; fail "the producer ended"; }
    sleep 0.3
done

# One whose guest is destroyed while it has it is heard of, too.
: > /tmp/dying
in_background $run --zone consumer -- bulkhead ipc wait producer/weights -- sh -c 'echo ready; sleep 1000' > /tmp/dying 2>&1 < /dev/null &
dying=$!
until grep -q ready /tmp/dying; do
    kill -0 $dying 2>/dev/null || { cat /tmp/dying; fail "the second consumer ended"; }
    sleep 0.3
done
xl destroy $(xl list | awk '/bulkhead/ { print $2 }' | sort -n | tail -n 1)
wait $dying && fail "the second consumer was not destroyed"
until grep -q 'PUBLISHED' /tmp/producer; do
    kill -0 $producer 2>/dev/null || { cat /tmp/producer; fail "the producer ended"; }
    sleep 0.3
done
grep -q 'consumer 2 in zone consumer died' /tmp/producer || { cat /tmp/producer; fail "nobody heard of the end of the guest"; }

echo >&8
exec 8>&-
status=0; wait $producer || status=$?
cat /tmp/producer /tmp/consumer
[ $status = 0 ] || fail "the producer: status $status"
rm /tmp/release
for zone in producer consumer stranger; do bulkhead zones remove $zone > /dev/null; done
nothing_left
