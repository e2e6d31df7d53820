#!/usr/bin/env bash
# Installs programs that the tests start, from Debian's packages, where they are missing: postgresql, etcd, promtool,
# chromium.
set -euo pipefail

found() {
    case $1 in
        postgresql) command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

for program in "$@"; do
    found "$program" && continue
    case $program in
        etcd) package=etcd-server ;;
        promtool) package=prometheus ;;
        *) package=$program ;;
    esac
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "The tests start $program and found none: install it (Debian's package: $package)." >&2
        exit 1
    fi
    echo "installing $program"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"
    found "$program"
done
