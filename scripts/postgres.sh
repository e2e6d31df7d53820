#!/usr/bin/env bash
# Installs PostgreSQL's server programs where they are missing. The tests start their own server with them.
set -euo pipefail

found() { command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; }

found && exit
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "The tests run a PostgreSQL server and found none: install it (Debian's package: postgresql)." >&2
    exit 1
fi
echo "installing PostgreSQL"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql
found
