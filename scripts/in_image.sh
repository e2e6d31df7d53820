#!/usr/bin/env bash
# Runs a command in the root file system $1 of an image as the chart's pods do: as user 10001, on a read-only root, with
# /tmp and /data in memory. It needs namespaces of its own: unshare --mount --pid --fork scripts/in_image.sh ROOT COMMAND...
set -euo pipefail
root=$1
shift
touch "$root/etc/hosts"
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o uid=10001 tmpfs "$root/data"
mount --bind /etc/hosts "$root/etc/hosts"   # as Kubernetes does; Spark needs localhost
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
exec chroot --userspec=10001:10001 "$root" \
    env -i HOME=/tmp PATH=/opt/venv/bin:/usr/bin:/bin LANG=C.UTF-8 \
    PYSPARK_PYTHON=spark-log-python SPARK_HOME=/opt/venv/lib/python3.11/site-packages/pyspark \
    SPARK_LOCAL_IP=127.0.0.1 tini -- /opt/spark-log/docker/entrypoint.sh "$@"
