# CUDA IPC between two guests: the handle goes through Dom0 as text, the memory by the broker's grant.
. /test/lib.sh
proxy
mkfifo /tmp/release
for zone in producer consumer stranger; do bulkhead zones create $zone --memory 64MiB > /dev/null; done
bulkhead grants allow producer consumer > /dev/null
in_background $GPU_RUN --type pv --zone producer -- sh -c '
    /programs/share producer /tmp & pid=$!
    until [ -f /tmp/handle ]; do kill -0 $pid || exit 1; sleep 0.2; done
    echo "HANDLE $(od -An -v -tx1 /tmp/handle | tr -d " \n")"
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
open() {
    sed -n 's/^HANDLE //p' /tmp/producer | gpu_run --type pv --zone $1 -- sh -c '
        read handle
        printf "$(echo $handle | sed "s/../\\\\x&/g")" > /tmp/new && mv /tmp/new /tmp/handle
        exec /programs/share consumer /tmp' > /tmp/$1 2>&1
}
# Who has no grant gets nothing, though it has the handle.
open stranger && fail "a stranger opened it: $(cat /tmp/stranger)"
cat /tmp/stranger
grep -q 'cudaErrorNotPermitted' /tmp/stranger || fail "the stranger failed for another reason"
open consumer || { status=$?; cat /tmp/consumer; fail "the consumer: status $status"; }
grep -q 'first values: 42 43 44 45' /tmp/consumer || fail "the consumer read $(cat /tmp/consumer)"
echo >&8
exec 8>&-
status=0; wait $producer || status=$?
cat /tmp/producer /tmp/consumer
[ $status = 0 ] || fail "the producer: status $status"
rm /tmp/release
for zone in producer consumer stranger; do bulkhead zones remove $zone > /dev/null; done
nothing_left
