#!/usr/bin/env bash
# Makes the virtual environment $1 and installs spark-log into it, with the versions of constraints.txt; with a version
# $2 of PySpark, that one and no Delta for Spark.
set -euo pipefail
venv=$1
pyspark=${2:-}
extras=dev,demo,delta
constraints=constraints.txt
if [[ -n $pyspark ]]; then
    extras=dev,demo
    constraints=$(mktemp)
    trap 'rm "$constraints"' EXIT
    sed -E "s/^pyspark==.*/pyspark==$pyspark/" constraints.txt >"$constraints"
fi

if [[ ! -x $venv/bin/python ]]; then
    python=$(command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3 || true)
    if [[ -z $python ]] || ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'; then
        echo "spark-log needs Python 3.11, 3.12 or 3.13: install python3 and python3-venv" >&2
        exit 1
    fi
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
            echo "Python's venv module is not complete: install Debian's package python3-venv" >&2
            exit 1
        fi
        apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv
    fi
    "$python" -m venv "$venv"
fi
echo "installing spark-log and its dependencies into $venv: about 2 GB, several minutes the first time"
"$venv/bin/python" -m pip install --progress-bar off --disable-pip-version-check -c "$constraints" -e ".[$extras]" |
    { grep --line-buffered -E '^ *(Collecting|Downloading|Installing|Building|Successfully)|conflict|depends on|The user requested' || true; }
