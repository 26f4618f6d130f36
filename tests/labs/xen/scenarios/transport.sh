# The xen crate itself, between a test guest and Dom0: each request of the kernel's devices, idm's conformance suite, what
# a guest may grant, and what messages cost.
. /test/lib.sh
for type in pv pvh; do
    # PVH goes the same way; what differs is how pages are mapped.
    parts="limits counts suite"
    [ $type = pv ] || parts="limits counts"
    # As much as the grant table holds, less what the console, the store and the kernel itself take.
    GUEST_MEMORY=320 GUEST_GRANT_FRAMES=64 GUEST_GRANTS=$((64 * 512 - 64)) guest transport-$type $type '
        trial pages-guest; status=$?
        for part in '"$parts"'; do [ $status = 0 ] && { trial $part; status=$?; }; done
        # Once more, when the kernel has taken back what the last ones left: it looks each second.
        sleep 3
        [ $status = 0 ] && { trial limits; status=$?; }
        trial done
        exit $status'
    trial pages-host $DOMID || fail "$type: pages: status $?"
    trial far-side $DOMID || fail "$type: the far side: status $?"
    guest_end transport-$type || fail "$type: the guest: status $?"
    nothing_left
done
