# What scenarios are made of. Sourced by dom0-init.sh and by every scenario.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin:/opt/bulkhead/bin:/test

uptime() { cut -d' ' -f1 /proc/uptime; }
# Lines that begin with XEN-TEST are what the test is judged by.
say() { echo "XEN-TEST $(uptime) $*"; }
fail() { say "note $SCENARIO: $*"; exit 1; }

# run_scenario NAME: runs it, bounded, and says how it ended.
run_scenario() {
    say "begin $1"
    SCENARIO=$1 timeout -k 5 "${LIMIT:-600}" sh -e "/test/scenarios/$1.sh"
    local status=$?
    # Whatever guests do, the kernel here is not to be harmed.
    dmesg -c > /tmp/kernel.log
    if grep -E 'BUG:|Oops|general protection|Call Trace' /tmp/kernel.log; then
        say "note $1: the kernel of Dom0 was harmed"
        status=1
    fi
    if [ $status = 0 ]; then
        say "pass $1"
    else
        say "fail $1 (status $status)"
        tail -n 40 /var/log/xen/console/*.log 2>/dev/null
        xl dmesg 2>/dev/null | tail -n 20
        tail -n 40 /tmp/proxy.log /tmp/xen-backend.log 2>/dev/null
    fi
    for domain in $(xl list | awk 'NR > 1 && $2 != 0 { print $2 }'); do xl destroy "$domain"; done
    rm -f /var/log/xen/console/*.log
    # What a scenario started and left running ends here.
    for pid in $(pidof bulkhead); do kill $pid 2>/dev/null; done
    local tries=0
    while pidof bulkhead > /dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || { say "note $1: ended by force: $(ps | grep '[b]ulkhead')"; kill -9 $(pidof bulkhead); tries=0; }
        sleep 0.2
    done
    rm -rf /run/bulkhead /tmp/proxy.log /tmp/xen-backend.log /tmp/tenant.cpio
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

# proxy [ARG]…: starts Bulkhead's proxy on the software GPU, and the Xen backend through which guests come to it.
proxy() {
    mkdir -p /run/bulkhead
    bulkhead proxy --backend soft "$@" > /tmp/proxy.log 2>&1 &
    PROXY=$!
    until bulkhead status >/dev/null 2>&1; do
        kill -0 $PROXY 2>/dev/null || fail "the proxy did not start: $(cat /tmp/proxy.log)"
        sleep 0.2
    done
    bulkhead xen-backend > /tmp/xen-backend.log 2>&1 &
    XEN_BACKEND=$!
}

# gpu_run [ARG]…: `bulkhead xen run` with a root file system that has the test's programs, and memory
# enough for two of them at a time: each grants up to 80 MiB.
use_root() { GPU_RUN="bulkhead xen run --image /boot/image --root $1 --memory 448MiB --shared-memory 224MiB"; }
use_root /boot/tenant.cpio
gpu_run() { $GPU_RUN "$@"; }

# use_conformance: from here on with the conformance suite in it, which makes guests slower to boot.
use_conformance() {
    cat /boot/tenant.cpio /boot/conformance.cpio > /tmp/tenant.cpio
    use_root /tmp/tenant.cpio
}

# in_background COMMAND [ARG]…: starts a command whose number is $!. A function in its place would be a shell's, and
# signals would end that shell alone.
in_background() { exec "$@"; }

# granted_pages: how many the hypervisor says are mapped elsewhere, of all domains. Not for thousands: each is a line.
granted_pages() {
    xl dmesg -c > /dev/null
    xl debug-keys g
    xl dmesg > /tmp/grants
    grep -q 'gnttab_usage_print_all' /tmp/grants || fail "the hypervisor does not say what is granted"
    # A line of a grant begins with its reference.
    grep -cE '^\(XEN\) *\[ *(0x)?[0-9a-f]+\]' /tmp/grants || true
}

# Guests are gone, all of them: one of which a page is mapped or a channel is bound would still be listed. And nothing of
# theirs is mapped anywhere.
nothing_left() {
    local tries=0
    while [ $(xl list | wc -l) -gt 2 ]; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || fail "domains are left: $(xl list)"
        sleep 0.2
    done
    local pages=$(granted_pages)
    [ "$pages" = 0 ] || fail "$pages pages are granted still: $(tail -n 20 /tmp/grants)"
}
