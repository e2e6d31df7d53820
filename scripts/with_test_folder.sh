#!/usr/bin/env bash
# Run a command with a temporary folder of its own: in memory where there is room, because tests force many small files
# to disk. The folder is removed if the command succeeds, otherwise kept until the next run.
set -euo pipefail

memory=/dev/shm
needed_kib=$((10 * 1024 * 1024))

has_room() {
  [ -d "$memory" ] && [ -w "$memory" ] &&
    [ "$(df --output=avail --block-size=1K "$memory" | tail -1)" -ge "$needed_kib" ] &&
    [ "$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)" -ge $((needed_kib + 6 * 1024 * 1024)) ]
}

name=spark-log-tests
for folder in "$memory/$name".*; do # of runs that failed or were killed
  [ -O "$folder" ] && ! kill -0 "${folder##*.}" 2>/dev/null && { rm -rf "$folder" || true; } # another run may remove it too
done
if has_room; then parent=$memory; else parent=${TMPDIR:-/tmp}; fi
TMPDIR=$parent/$name.$$
mkdir "$TMPDIR"
chmod 1777 "$TMPDIR" # PostgreSQL runs as another user
export TMPDIR

status=0
"$@" || status=$?
if [ "$status" = 0 ]; then rm -rf "$TMPDIR"; else echo "the temporary files of the run are in $TMPDIR"; fi
exit "$status"
