# What scenarios are made of. Sourced by dom0-init.sh and by every scenario.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin:/opt/bulkhead/bin

uptime() { cut -d' ' -f1 /proc/uptime; }
# Lines that begin with XEN-TEST are what the test is judged by.
say() { echo "XEN-TEST $(uptime) $*"; }
fail() { say "note $SCENARIO: $*"; exit 1; }

# run_scenario NAME: runs it, bounded, and says how it ended.
run_scenario() {
    say "begin $1"
    SCENARIO=$1 timeout -k 5 "${LIMIT:-600}" sh -e "/test/scenarios/$1.sh"
    local status=$?
    if [ $status = 0 ]; then
        say "pass $1"
    else
        say "fail $1 (status $status)"
        tail -n 40 /var/log/xen/console/*.log 2>/dev/null
        xl dmesg 2>/dev/null | tail -n 20
    fi
    for domain in $(xl list | awk 'NR > 1 && $2 != 0 { print $2 }'); do xl destroy "$domain"; done
    rm -f /var/log/xen/console/*.log
}

# guest NAME TYPE COMMAND [EXTRA-ARCHIVE]: starts a test guest that runs COMMAND in its shell, and sets DOMID.
# What it prints comes to this console, with its name in front.
guest() {
    local name=$1 type=$2 command=$3
    mkdir -p /tmp/guests/$name/test
    echo "$command" > /tmp/guests/$name/test/command
    { cat /boot/guest.cpio /test/guest-extra.cpio $4
      (cd /tmp/guests/$name && find . | cpio -o -H newc 2>/dev/null); } > /tmp/guests/$name.cpio
    cat > /tmp/guests/$name.cfg <<END
name = "$name"
type = "$type"
kernel = "/boot/vmlinux"
ramdisk = "/tmp/guests/$name.cpio"
extra = "console=hvc0 rdinit=/init quiet loglevel=4 xen_gntalloc.limit=${GUEST_GRANTS:-16384} ${GUEST_ARGS}"
memory = ${GUEST_MEMORY:-192}
vcpus = 1
max_grant_frames = ${GUEST_GRANT_FRAMES:-64}
on_poweroff = "destroy"
on_reboot = "destroy"
on_crash = "destroy"
END
    xl create -q /tmp/guests/$name.cfg || fail "xl create $name ($type)"
    DOMID=$(xl domid $name)
    rm /tmp/guests/$name.cpio
    say "note $name ($type) is domain $DOMID"
    ( tail -n +1 -F /var/log/xen/console/guest-$name.log 2>/dev/null | while read -r line; do echo "  $name| $line"; done ) &
}

# guest_end NAME: waits until the guest has ended, and gives the status that its command had.
guest_end() {
    while xl domid "$1" >/dev/null 2>&1; do sleep 0.2; done
    local status=$(sed -n 's/.*GUEST-EXIT \([0-9]*\).*/\1/p' /var/log/xen/console/guest-$1.log | tail -n 1)
    return "${status:-99}"
}
