#!/bin/sh
# Runs the build as root of a user namespace over the ids from BASE on, which own nothing on this host: what
# packages do while they are installed is not done with root's rights. Called in a mount and a pid namespace
# of its own, which end with it.
# Usage: enter.sh WORK BASE
set -eu
work=$1
base=$2
# Those ids may enter no directory above their own.
mkdir -p /run/cove-build
mount --bind "$work" /run/cove-build
cd /run/cove-build
unshare --user --keep-caps sh -c '
    until grep -q . /proc/self/gid_map; do sleep 0.02; done
    exec setpriv --reuid 0 --regid 0 --clear-groups --inh-caps=-all --ambient-caps=-all \
        sh /run/cove-build/build.sh
' &
while [ "$(readlink "/proc/$!/ns/user")" = "$(readlink /proc/self/ns/user)" ]; do
    sleep 0.02
done
echo "0 $base 65536" > "/proc/$!/uid_map"
echo "0 $base 65536" > "/proc/$!/gid_map"
wait $!
