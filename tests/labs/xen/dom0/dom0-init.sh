#!/bin/sh
# The first process of Dom0 in the Xen test: starts Xen's services, runs the scenarios, switches the machine off.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin:/opt/bulkhead/bin
# Jails change their root, which nobody can who has the kernel's first file system for one. The same files, mounted once
# more, will do.
if [ ! -d /same/bin ] && [ -z "$SAME" ]; then
    mkdir -p /same
    mount --bind / /same
    SAME=1 exec chroot /same /init
fi
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
mkdir -p /dev/pts /dev/shm; mount -t devpts pts /dev/pts; mount -t tmpfs shm /dev/shm
mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null
. /test/lib.sh
for module in xen-privcmd xen-evtchn xen-gntdev xen-gntalloc xenfs loop xen-blkback; do
    insmod /modules/$module.ko || say "insmod $module failed"
done
mount -t xenfs xenfs /proc/xen
# The name localhost, and users, for those who ask.
ip link set lo up 2>/dev/null
mkdir -p /run/xenstored /run/xen /run/lock /var/log/xen/console
xenstored --pid-file /run/xenstored.pid
for i in 1 2 3 4 5 6 7 8 9 10; do xenstore-read / >/dev/null 2>&1 && break; sleep 0.2; done
xen-init-dom0 >/dev/null
xenconsoled --pid-file=/run/xenconsoled.pid --log=guest --log-dir=/var/log/xen/console
say "dom0 is up"
if grep -q 'shell=1' /proc/cmdline; then
    say "a shell on this console; /test/scenarios has the scenarios; poweroff -f ends it, ctrl-A x ends QEMU"
    setsid cttyhack sh
    poweroff -f
fi
for scenario in $(sed -n 's/.*scenarios=\([^ ]*\).*/\1/p' /proc/cmdline | tr ':' ' '); do
    # A thorough attack takes longer than anything else may.
    LIMIT=600
    grep -q 'thorough=1' /proc/cmdline && LIMIT=3600
    run_scenario "$scenario"
done
say "all done"
poweroff -f
