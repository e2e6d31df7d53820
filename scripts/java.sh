#!/usr/bin/env bash
# `java.sh find` prints the home of a Java that Spark 4.2 runs on: 17 or later, with the module
# jdk.incubator.vector (Spark asks for it at every start). `java.sh install` gets one where none is found.
set -euo pipefail

fits() {  # $1: a Java home
    local version
    [[ -x $1/bin/java ]] || return 1
    version=$("$1/bin/java" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java.specification.version = //p')
    [[ $version =~ ^[0-9]+$ ]] && ((version >= 17)) || return 1
    "$1/bin/java" --list-modules | grep -q '^jdk.incubator.vector@'
}

find_home() {
    local java home
    java=$(command -v java || true)
    for home in "${JAVA_HOME:-}" "${java:+$(dirname "$(dirname "$(readlink -f "$java")")")}" /usr/lib/jvm/*17* /usr/lib/jvm/*21*; do
        if [[ -n $home ]] && fits "$home"; then
            echo "$home"
            return
        fi
    done
    return 1
}

missing() {
    echo "Spark needs Java 17 or later with the module jdk.incubator.vector, and none was found." >&2
    echo "Install it (Debian: openjdk-17-jre-headless or openjdk-21-jre-headless) or set JAVA_HOME." >&2
    exit 1
}

case ${1:-find} in
find) find_home || missing ;;
install)
    find_home >/dev/null && exit
    [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || missing
    echo "installing Java"
    mkdir -p /usr/share/man/man1  # slim images lack it, and the package's install script links into it
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless ||
        apt-get install -y -qq --no-install-recommends openjdk-21-jre-headless
    find_home >/dev/null || missing
    ;;
esac
