#!/usr/bin/env bash
# Builds the servers and tools that the demo and the tests run, from their Go modules, into bin/.
# Each lies in bin/cache/ under its version and is built once; bin/<name> links to the version in use.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
mkdir -p bin/cache

version() { # folder module
  (cd "test/tools/$1" && go list -m -f '{{.Version}}' "$2")
}

build() { # name folder package version [ldflags]
  local name=$1 folder=$2 package=$3 version=$4 ldflags=${5:-}
  local target=bin/cache/$name-$version
  if [ ! -x "$target" ]; then
    echo "building $name $version (the first time this takes minutes)" >&2
    local start=$SECONDS
    (cd "test/tools/$folder" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $ldflags" -o "$root/$target.part" "$package") &
    local build=$!
    trap 'kill $build 2>/dev/null || true' INT TERM
    while kill -0 $build 2>/dev/null; do
      sleep 1
      local waited=$((SECONDS - start))
      if [ $((waited % 15)) = 0 ] && [ $waited -gt 0 ]; then echo "  still building $name, ${waited}s" >&2; fi
    done
    wait $build
    trap - INT TERM
    mv "$target.part" "$target"
    echo "built $name $version in $((SECONDS - start))s" >&2
  fi
  ln -sfn "cache/$name-$version" "bin/$name"
}

kubernetes=$(version kubernetes k8s.io/kubernetes)
minor=$(echo "$kubernetes" | cut -d. -f2)
names="-X k8s.io/component-base/version.gitVersion=$kubernetes -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor"
build kube-apiserver kubernetes k8s.io/kubernetes/cmd/kube-apiserver "$kubernetes" "$names"
build kube-controller-manager kubernetes k8s.io/kubernetes/cmd/kube-controller-manager "$kubernetes" "$names"
build kubectl kubernetes k8s.io/kubernetes/cmd/kubectl "$kubernetes" "$names"
build etcd etcd go.etcd.io/etcd/server/v3 "$(version etcd go.etcd.io/etcd/server/v3)"
build victoria-logs victorialogs github.com/VictoriaMetrics/VictoriaLogs/app/victoria-logs "$(version victorialogs github.com/VictoriaMetrics/VictoriaLogs)"
