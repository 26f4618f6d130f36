# Guests of both kinds boot and run something.
. /test/lib.sh
for type in pv pvh; do
    guest boot-$type $type 'test -c /dev/xen/gntalloc -a -c /dev/xen/gntdev -a -c /dev/xen/evtchn -a -c /dev/xen/xenbus'
    guest_end boot-$type || fail "the $type guest ended with $?"
    grep -q 'GUEST-UP' /var/log/xen/console/guest-boot-$type.log || fail "no sign of life from the $type guest"
done
