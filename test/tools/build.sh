#!/usr/bin/env bash
# Builds the servers and tools that the demo and the tests run, from their Go modules, into bin/.
# Each lies in bin/cache/ under its version and is built once; bin/<name> links to the version in use. It needs Go, and
# neither git nor a C compiler.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
mkdir -p bin/cache

pid='' part=''
interrupted() { # leaves no half-built target
  if [ -n "$pid" ]; then
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  fi
  if [ -n "$part" ]; then rm -f "$part"; fi
  echo "interrupted: what was built stays, the rest is built next time" >&2
  exit 130
}
trap interrupted INT TERM HUP

version() { # folder module
  (cd "test/tools/$1" && go list -m -f '{{.Version}}' "$2")
}

build() { # name folder package version [ldflags [tags]]
  local name=$1 folder=$2 package=$3 version=$4 ldflags=${5:-} tags=${6:-}
  local target=bin/cache/$name-$version
  if [ ! -x "$target" ]; then
    echo "building $name $version (the first time this takes minutes)" >&2
    local start=$SECONDS
    part=$target.part.$$
    (cd "test/tools/$folder" && CGO_ENABLED=0 exec go build -trimpath -tags "$tags" -ldflags "-s -w $ldflags" -o "$root/$part" "$package") &
    pid=$!
    local last=0
    while kill -0 "$pid" 2>/dev/null; do
      sleep 0.5
      local waited=$((SECONDS - start))
      if [ $((waited - last)) -ge 15 ]; then
        last=$waited
        echo "  still building $name, ${waited}s" >&2
      fi
    done
    if ! wait "$pid"; then
      rm -f "$part"
      echo "building $name $version failed after $((SECONDS - start))s: make tools tries again" >&2
      exit 1
    fi
    mv "$part" "$target"
    pid='' part=''
    echo "built $name $version in $((SECONDS - start))s" >&2
  fi
  ln -sfn "cache/$name-$version" "bin/$name"
}

if ! command -v go >/dev/null; then
  echo "go is missing: install Go 1.26 (https://go.dev/dl), and have its bin folder in PATH" >&2
  exit 1
fi
# Each in a statement of its own, which a failure ends.
etcd=$(version etcd go.etcd.io/etcd/server/v3)
logs=$(version victorialogs github.com/VictoriaMetrics/VictoriaLogs)
nats=$(version nats github.com/nats-io/nats-server/v2)
kubernetes=$(version kubernetes k8s.io/kubernetes)
helm=$(version helm helm.sh/helm/v4)
prometheus=$(version prometheus github.com/prometheus/prometheus)
minor=$(echo "$kubernetes" | cut -d. -f2)
names="-X k8s.io/component-base/version.gitVersion=$kubernetes -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor"
build etcd etcd go.etcd.io/etcd/server/v3 "$etcd"
build etcdutl etcd go.etcd.io/etcd/etcdutl/v3 "$etcd"
build victoria-logs victorialogs github.com/VictoriaMetrics/VictoriaLogs/app/victoria-logs "$logs"
build nats-server nats github.com/nats-io/nats-server/v2 "$nats"
build kube-apiserver kubernetes k8s.io/kubernetes/cmd/kube-apiserver "$kubernetes" "$names"
build kube-controller-manager kubernetes k8s.io/kubernetes/cmd/kube-controller-manager "$kubernetes" "$names"
build kubectl kubernetes k8s.io/kubernetes/cmd/kubectl "$kubernetes" "$names"
build helm helm helm.sh/helm/v4/cmd/helm "$helm"
build promtool prometheus github.com/prometheus/prometheus/cmd/promtool "$prometheus" "" remove_all_sd
