#!/usr/bin/env bash
# Installs Prometheus' promtool where it is missing. The tests check metrics and alerts with it.
set -euo pipefail

command -v promtool >/dev/null && exit
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "The tests check alerts with promtool and found none: install it (Debian's package: prometheus)." >&2
    exit 1
fi
echo "installing promtool"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus
command -v promtool >/dev/null
