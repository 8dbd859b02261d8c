#!/usr/bin/env bash
# Builds real Kubernetes and etcd from the Go module in this folder's MINOR subfolder into a cache keyed by version,
# and prints the folder that holds the binaries as the last line.
#
#   k8s/build.sh [MINOR] [BINARY…]     MINOR is a folder beside this script (default 1.37); BINARY defaults to all, but for the kubectl of an
#                                      older minor: that of the default works with both
#
# KUBEBUILDER_ASSETS, when set, names a folder with ready-made binaries: nothing is built then.
# FLEETWRIGHT_CACHE names the cache (default ~/.cache/fleetwright).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
newest=1.37
minor=${1:-$newest}
shift || true
all=(etcd etcdutl kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy)
[ "$minor" != "$newest" ] || all+=(kubectl)
wanted=("${@:-${all[@]}}")

say() { printf 'k8s: %s\n' "$*" >&2; }

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  for binary in "${wanted[@]}"; do
    [ -x "$KUBEBUILDER_ASSETS/$binary" ] || {
      say "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS has no executable $binary; put it there, or unset KUBEBUILDER_ASSETS to build it"
      exit 1
    }
  done
  echo "$KUBEBUILDER_ASSETS"
  exit 0
fi

module=$here/$minor
[ -f "$module/go.mod" ] || {
  say "no module for Kubernetes $minor; there are: $(cd "$here" && ls -d [0-9]*/ | tr -d / | tr '\n' ' ')"
  exit 1
}
version=$(awk '$1 == "k8s.io/kubernetes" {print $2}' "$module/go.mod")
cache=${FLEETWRIGHT_CACHE:-$HOME/.cache/fleetwright}/k8s/$version
mkdir -p "$cache"

# Two builds at once would fight over two cores and one cache: the second waits and then finds the work done.
exec 9>"$cache/.lock"
flock 9

missing=()
for binary in "${wanted[@]}"; do
  [ -x "$cache/$binary" ] || missing+=("$binary")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "$cache"
  exit 0
fi
command -v go >/dev/null || { say "go is needed to build Kubernetes $version; install it, or set KUBEBUILDER_ASSETS"; exit 1; }

number=${version#v}
stamp=k8s.io/component-base/version
flags="-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=${number%%.*} -X $stamp.gitMinor=$(cut -d. -f2 <<<"$number") -X $stamp.gitTreeState=clean"

say "Kubernetes $version: building ${missing[*]} into $cache (about 12 minutes on 2 cores the first time)"
done=0
for binary in "${missing[@]}"; do
  case $binary in
    etcd) package=go.etcd.io/etcd/server/v3 ;;
    etcdutl) package=go.etcd.io/etcd/etcdutl/v3 ;;
    *) package=k8s.io/kubernetes/cmd/$binary ;;
  esac
  started=$SECONDS
  say "[$((done + 1))/${#missing[@]}] $binary …"
  # Built beside its final name and renamed: a build that is killed leaves nothing that looks ready.
  (cd "$module" && CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags "$flags" -o "$cache/.$binary.tmp" "$package")
  mv "$cache/.$binary.tmp" "$cache/$binary"
  done=$((done + 1))
  say "[$done/${#missing[@]}] $binary built in $((SECONDS - started)) s"
done
echo "$cache"
