#!/bin/sh
# What Xen's own script for disks (/etc/xen/scripts/block) does of its work where the disk is a device already: says which
# one it is. Xen's wants bash, and more of a system than the Dom0 of this test has.
case $1 in
add)
    device=$(xenstore-read "$XENBUS_PATH/params")
    xenstore-write "$XENBUS_PATH/physical-device" "$(stat -L -c '%t:%T' "$device")"
    xenstore-write "$XENBUS_PATH/hotplug-status" connected
    ;;
esac
