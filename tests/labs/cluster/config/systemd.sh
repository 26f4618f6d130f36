# A host with a real systemd: the first process of namespaces of its own, over a root of which every change is forgotten.
#
# systemd.sh DIR CGROUP
set -eu
dir=$1 cgroup=$2

# systemd takes the group in which it finds itself for the whole of its machine.
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
    if [ -e "$hierarchy/$cgroup/cgroup.procs" ]; then
        group=$hierarchy/$cgroup/systemd
        mkdir -p "$group"
        for file in cpuset.cpus cpuset.mems; do
            if [ -e "$group/$file" ]; then
                cat "$hierarchy/$file" >"$group/$file"
            fi
        done
        echo 0 >"$group/cgroup.procs"
    fi
done

mount --make-rprivate /
mkdir -p "$dir"
mount -t tmpfs -o mode=755 host "$dir"
mkdir "$dir/changes" "$dir/work" "$dir/root"
mount -t overlay -o "lowerdir=/,upperdir=$dir/changes,workdir=$dir/work" host "$dir/root"
root=$dir/root
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 run "$root/run"
mkdir -p "$root/run/changes"
mount --bind "$dir/changes" "$root/run/changes"
mkdir "$root/.old"
cd "$root"
pivot_root . .old
umount --lazy /.old
rmdir /.old
# What the DaemonSet has laid on the node is not on this host.
rm -rf /opt/bulkhead /etc/bulkhead /var/lib/bulkhead
find /etc/systemd -name 'bulkhead*' -delete
# It would empty /tmp, where what is to be installed may lie.
for unit in tmp.mount systemd-tmpfiles-setup.service; do
    ln -sf /dev/null "/etc/systemd/system/$unit"
done
# Little more than what services need.
cat >/etc/systemd/system/host.target <<END
[Unit]
Description=A host
Requires=systemd-journald.service
After=systemd-journald.service
END
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=host.target --show-status=no --log-target=journal
