# A tenant's root file system on a disk: read-only, shared by guests, and what they change is theirs alone.
. /test/lib.sh
proxy
before=$(md5sum < /boot/tenant.ext4)
run="bulkhead xen run --image /boot/image --root-disk /boot/tenant.ext4 --memory 192MiB --shared-memory 64MiB --gpu-memory 64MiB"
try='
    [ "$(cat /etc/on-disk)" = yes ] || exit 3
    grep -q "^overlay / " /proc/mounts || exit 4
    [ ! -e /etc/changed ] || exit 5
    echo x > /etc/changed && rm /etc/on-disk && [ ! -e /etc/on-disk ] || exit 6
    dd if=/dev/zero of=/dev/xvda bs=4096 count=1 2>/dev/null && exit 7
    /programs/vecadd'
judge() {
    [ $2 = 0 ] && [ "$(tail -n 1 /tmp/out-$1)" = PASS ] || { cat /tmp/out-$1; fail "$1: status $2"; }
}
status=0; $run --type pvh -- sh -c "$try" > /tmp/out-pvh 2>&1 || status=$?
judge pvh $status
# Two at once.
for guest in 1 2; do
    in_background $run --type pv -- sh -c "$try" > /tmp/out-$guest 2>&1 < /dev/null &
    eval pid_$guest=$!
done
for guest in 1 2; do
    status=0; wait $(eval echo \$pid_$guest) || status=$?
    judge $guest $status
done
# A disk that holds nothing that can be mounted.
dd if=/dev/zero of=/tmp/empty.img bs=1M count=1 2>/dev/null
status=0; bulkhead xen run --image /boot/image --root-disk /tmp/empty.img --memory 128MiB --type pv -- true 2> /tmp/err || status=$?
[ $status != 0 ] && grep -q 'the guest ended' /tmp/err || fail "an empty disk: status $status, $(cat /tmp/err)"
rm /tmp/empty.img
nothing_left
[ "$(md5sum < /boot/tenant.ext4)" = "$before" ] || fail "the disk was written to"
tries=0
while [ -n "$(losetup -a)" ]; do
    tries=$((tries + 1)); [ $tries -lt 50 ] || fail "loop devices are left: $(losetup -a)"
    sleep 0.2
done
