# A guest writes nodes and cards that no client would write. The gate refuses them one by one, and serves on.
. /test/lib.sh
proxy
bulkhead zones create liar --memory 16MiB > /dev/null
guest lies pv 'trial attack nodes && trial attack cards'
xenstore-write /tool/bulkhead/domains/$DOMID/vm "$(xenstore-read /local/domain/$DOMID/vm)"
xenstore-write /tool/bulkhead/domains/$DOMID/zone liar
guest_end lies || fail "the guest: status $?"
kill -0 $GATE || fail "the gate is gone: $(tail -n 5 /tmp/gate.log)"
kill -0 $PROXY || fail "the proxy is gone"
grep -qi panic /tmp/proxy.log /tmp/gate.log && fail "something panicked: $(grep -i panic /tmp/proxy.log /tmp/gate.log)"
grep -q 'got nothing' /tmp/gate.log || fail "the gate saw no lie: $(cat /tmp/gate.log)"
bulkhead zones list
bulkhead zones remove liar > /dev/null
nothing_left
