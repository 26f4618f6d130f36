# The programs of --dom0 and --guest: one in Dom0 with the guest's number behind its arguments, one in the guest.
. /test/lib.sh
for type in $(cat /test/pair-types); do
    guest pair-$type $type "$(cat /test/guest-command)"
    sh -c "$(cat /test/dom0-command) $DOMID" || fail "the program in Dom0 ended with $? (guest: $type)"
    say "note $type: the program in Dom0 is done"
    guest_end pair-$type || fail "the program in the $type guest ended with $?"
done
