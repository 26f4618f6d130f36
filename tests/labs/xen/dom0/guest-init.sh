#!/bin/sh
# The first process of a test guest: a shell with everything that a test may want.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin:/test
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm
# The kernel gives a module's parameters only to those who ask for them.
limit=$(sed -n 's/.*xen_gntalloc\.limit=\([0-9]*\).*/limit=\1/p' /proc/cmdline)
for module in xen-privcmd xen-evtchn xen-gntdev xenfs; do insmod /modules/$module.ko; done
insmod /modules/xen-gntalloc.ko $limit
mount -t xenfs xenfs /proc/xen
# As our own init: what others had mapped when it was given up is taken back as soon as they let go.
echo 1000000 > /sys/module/grant_table/parameters/free_per_iteration
echo "GUEST-UP $(cut -d' ' -f1 /proc/uptime) $(cat /sys/hypervisor/guest_type)"
sh /test/command
echo "GUEST-EXIT $?"
poweroff -f
