#!/usr/bin/env bash
# Builds the image of docker/Dockerfile with buildah, without Docker; tries it as user 10001 on a read-only
# root (try_image.sh); and writes its bill of materials to dist/spark-log-image.cdx.json.
# With TO=oci-archive:FILE (or another target of `buildah push`) the image is also written there.
# BASE=IMAGE builds on an image of a registry; without it, the base is a minimal Debian that mmdebstrap makes.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ $(id -u) != 0 ]]; then
    echo "make image needs root: it mounts file systems, and buildah's chroot isolation needs no Docker." >&2
    exit 1
fi
scripts/debian_package.sh buildah mmdebstrap

cache=${XDG_CACHE_HOME:-$HOME/.cache}/spark-log/image
mkdir -p "$cache"
policy=$cache/policy.json
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$policy"   # nothing is signed
# Storage of its own; vfs needs no file system with overlays.
builder() { buildah --root "$cache/storage" --runroot "$cache/run" --storage-driver vfs "$@"; }

builder rm --all >/dev/null   # of a build that was interrupted

base=${BASE:-}
if [[ -z $base ]]; then
    base=localhost/spark-log-base
    tar=$cache/base.tar
    own_authorities=/usr/local/share/ca-certificates
    if [[ -z $(find "$tar" -mtime -30 2>/dev/null) ]] || ! builder inspect "$base" >/dev/null 2>&1; then
        echo "[$(date +%T)] base: Debian bookworm"
        # The authorities that this machine trusts, for downloads during the build; removed again below.
        mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-venv \
            --customize-hook="tar -C $own_authorities -c . | tar -C \"\$1$own_authorities\" -x" \
            --customize-hook='chroot "$1" update-ca-certificates >/dev/null' bookworm "$tar.new"
        mv "$tar.new" "$tar"
        container=$(builder from scratch)
        builder add --quiet "$container" "$tar" / >/dev/null
        builder commit --quiet --rm --signature-policy "$policy" "$container" "$base" >/dev/null
    fi
fi

echo "[$(date +%T)] image"
builder bud --quiet --isolation chroot --layers=false --signature-policy "$policy" --build-arg BASE="$base" \
    --tag spark-log-built --file docker/Dockerfile . >/dev/null
container=$(builder from --pull-never --signature-policy "$policy" spark-log-built)
root=$(builder mount "$container")
rm -rf "$root"/usr/local/share/ca-certificates/*
builder run --isolation chroot --user 0 "$container" update-ca-certificates --fresh >/dev/null

echo "[$(date +%T)] init, produce, consume and a Spark driver as user 10001 on a read-only root"
# As the chart's pods: nothing is writable except /tmp and the volume of the log dir.
unshare --mount --pid --fork scripts/in_image.sh "$root" sh /opt/spark-log/scripts/try_image.sh

python3 scripts/sbom.py dist/spark-log-image.cdx.json --root "$root"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
builder unmount "$container" >/dev/null
builder commit --quiet --rm --signature-policy "$policy" "$container" "localhost/spark-log:$version" >/dev/null
builder rmi spark-log-built >/dev/null
builder rmi --prune >/dev/null
echo "[$(date +%T)] localhost/spark-log:$version, $(builder images --format '{{.Size}}' "localhost/spark-log:$version")"
if [[ -n ${TO:-} ]]; then
    builder push --signature-policy "$policy" "localhost/spark-log:$version" "$TO"
fi
