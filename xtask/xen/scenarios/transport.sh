# The parts of the transport, each alone, between a guest with a shell and Dom0.
. /test/lib.sh
GUEST_MEMORY=384 GUEST_GRANTS=24576
guest transport pv 'set -e; trial pages-guest; trial limits; trial suite; trial counts; trial done'
/test/trial pages-host $DOMID || fail "pages"
/test/trial far-side $DOMID || fail "the suite"
guest_end transport || fail "the guest: status $?"
nothing_left
