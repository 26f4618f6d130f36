#!/bin/sh
# Two programs on one machine share GPU memory by CUDA IPC, without Kubernetes and without containers.
#
#   examples/bare-metal/share.sh SHARE [OPTION...]
#
# SHARE is the program tests/programs/share.cu, compiled; options are those of `bulkhead run` (such as --backend soft).
set -eu
share=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# One zone, and in it a shell that starts both: they are processes of one tenant, like two terminals of one user.
bulkhead run --zone bare-metal --memory 10GiB "$@" -- \
    sh -c '"$1" producer "$2" & "$1" consumer "$2" && wait $!' share "$share" "$dir"
