#!/usr/bin/env bash
# Builds helm and kubeconform from their Go modules, once, into a cache folder of the user, and prints this folder.
set -euo pipefail
HELM=v4.3.1
KUBECONFORM=v0.8.0

folder=${XDG_CACHE_HOME:-$HOME/.cache}/spark-log/bin
build() {   # build PROGRAM MODULE VERSION
    [[ -x $folder/$1-$3 ]] && return
    command -v go >/dev/null || { echo "make check-kubernetes needs Go 1.26 or later, to build $1 $3" >&2; exit 1; }
    echo "building $1 $3: some minutes, once" >&2
    GOBIN=$folder CGO_ENABLED=0 nice -n 15 go install -ldflags='-s -w' "$2@$3"
    mv "$folder/$1" "$folder/$1-$3"
}
mkdir -p "$folder"
build helm helm.sh/helm/v4/cmd/helm "$HELM"
build kubeconform github.com/yannh/kubeconform/cmd/kubeconform "$KUBECONFORM"
ln -sfn "helm-$HELM" "$folder/helm"
ln -sfn "kubeconform-$KUBECONFORM" "$folder/kubeconform"
echo "$folder"
