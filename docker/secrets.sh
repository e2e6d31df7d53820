#!/bin/sh
# Makes the secrets of docker/compose.production.yaml, once: a password, a certificate authority, and certificates of
# PostgreSQL and of the gateways. Run it as root: each folder belongs to the user of the containers that mount it.
#   docker/secrets.sh FOLDER GATEWAY-HOST...
set -eu
umask 077
folder=$1
shift
[ -e "$folder" ] && { echo "$folder exists: remove it first" >&2; exit 1; }
mkdir -p "$folder/ca" "$folder/postgres" "$folder/spark-log" "$folder/gateway"
cd "$folder"

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=spark-log authority" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign -keyout ca/ca.key -out ca/ca.crt 2>/dev/null

# certificate FOLDER NAME...: for 825 days, the most that some clients accept
certificate() {
    to=$1
    shift
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout "$to/server.key" -out request 2>/dev/null
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\n' "$(printf 'DNS:%s,' "$@" | sed 's/,$//')" >extensions
    openssl x509 -req -in request -days 825 -CA ca/ca.crt -CAkey ca/ca.key -CAcreateserial -extfile extensions -out "$to/server.crt" 2>/dev/null
    rm request extensions
}
certificate postgres postgres localhost
certificate gateway "$@"

openssl rand -hex 24 >postgres/password
cp postgres/password ca/ca.crt spark-log/
cp ca/ca.crt gateway/
if [ "$(id -u)" = 0 ]; then
    chown -R 999:999 postgres          # the users of the two images
    chown -R 10001:10001 spark-log gateway
else
    echo "Not root: give $folder/postgres to user 999, and $folder/spark-log and $folder/gateway to user 10001." >&2
fi
echo "Made $folder. Keep $folder/ca/ca.key elsewhere; give $folder/ca/ca.crt to Kafka clients."
