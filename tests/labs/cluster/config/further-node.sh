# The first process of a further node: in namespaces of its own, below the cgroup of the first one. What a node keeps when it is
# switched off lies in DIR, and so is there again when it is started the next time; the rest is forgotten.
#
# further-node.sh NAME DIR RUN NEEDED CGROUP PROGRAM ARGUMENT...
set -eu
name=$1 dir=$2 run=$3 needed=$4 cgroup=$5
shift 5

for processes in "/sys/fs/cgroup/$cgroup/node/cgroup.procs" /sys/fs/cgroup/*/"$cgroup/node/cgroup.procs"; do
    if [ -e "$processes" ]; then
        echo 0 >"$processes"
    fi
done

# Over the machine's root and not over the first node's, which is an overlay already: they cannot be piled up at will.
mount --make-rprivate /
mount -t tmpfs -o mode=755 "$name" "$dir/memory"
mkdir "$dir/memory/changes" "$dir/memory/work"
mount -t overlay -o "lowerdir=/run/machine,upperdir=$dir/memory/changes,workdir=$dir/memory/work" "$name" "$dir/root"
root=$dir/root
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 run "$root/run"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mkdir -p "$root/run/lock"
IFS=:
for there in $needed $run; do
    mkdir -p "$root$there"
    mount --bind "$there" "$root$there"
done
unset IFS
for kept in var/lib/kubelet var/lib/containerd var/lib/bulkhead opt; do
    mkdir -p "$dir/kept/$kept" "$root/$kept"
    mount --bind "$dir/kept/$kept" "$root/$kept"
done
# A machine of its own, as far as Kubernetes can tell.
printf '%s' "$name" | md5sum | cut -c1-32 >"$root/etc/machine-id"
cat /proc/sys/kernel/random/uuid >"$root/run/boot_id"
mount --bind "$root/run/boot_id" "$root/proc/sys/kernel/random/boot_id"
mkdir "$root/.old"
cd "$root"
pivot_root . .old
umount --lazy /.old
rmdir /.old
mount --make-rshared /

ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
hostname "$name"

"$@" &
status=0
wait $! || status=$?
exit $status
