# The first process of the node: in namespaces of its own, it makes a file system, a network and then starts what it is
# told. All of it goes when this process does.
#
# enter.sh RUN NODE_IP SERVICE_IP NEEDED CGROUP PROGRAM ARGUMENT...
set -eu
run=$1 node_ip=$2 service_ip=$3 needed=$4 cgroup=$5
shift 5

# Everything that happens here happens below one group, in every hierarchy that there is.
for processes in "/sys/fs/cgroup/$cgroup/node/cgroup.procs" /sys/fs/cgroup/*/"$cgroup/node/cgroup.procs"; do
    if [ -e "$processes" ]; then
        echo 0 >"$processes"
    fi
done

# A file system of which every change is forgotten. Changes are kept in memory, except for large things.
mount --make-rprivate /
mount -t tmpfs -o mode=755 node "$run/memory"
mkdir "$run/memory/changes" "$run/memory/work"
mount -t overlay -o "lowerdir=/,upperdir=$run/memory/changes,workdir=$run/memory/work" node "$run/root"
root=$run/root
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 run "$root/run"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mkdir -p "$root/run/changes" "$root$run" "$root/var/lib/kubelet" "$root/var/lib/containerd" "$root/run/lock"
# What has been changed in the file system, to see what was left there.
mount --bind "$run/memory/changes" "$root/run/changes"
mount --bind "$run" "$root$run"
mount --bind "$run/kubelet" "$root/var/lib/kubelet"
mount --bind "$run/containerd" "$root/var/lib/containerd"
# The machine's own root, for further nodes to be laid over.
mkdir "$root/run/machine"
mount --bind / "$root/run/machine"
# The overlay shows one file system; what is mounted over it must be brought along.
IFS=:
for dir in $needed; do
    if [ "$(findmnt --noheadings --output TARGET --target "$dir")" != / ]; then
        mkdir -p "$root$dir"
        mount --rbind "$dir" "$root$dir"
    fi
done
unset IFS
mkdir "$root/.old"
cd "$root"
pivot_root . .old
umount --lazy /.old
rmdir /.old
# As systemd has it on real nodes.
mount --make-rshared /

# A network of its own. The service's address is that of the API server: there is no need for kube-proxy.
ip link set lo up
ip address add "$node_ip/32" dev lo
ip address add "$service_ip/32" dev lo
hostname bulkhead-e2e

# The shell reaps what loses its parent, such as containerd's shims.
"$@" &
status=0
wait $! || status=$?
exit $status
