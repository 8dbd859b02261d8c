#!/usr/bin/env bash
# Runs the tests on real hosts, which are booted on this machine. Where that is impossible, it says so in its last line; with
# FLEETWRIGHT_REQUIRE_HOSTS=1 that is a failure.
#
#   hack/e2e.sh [CRATE…] [-- FILTER]     by default all crates that have such tests, and all of them
set -euo pipefail
cd "$(dirname "$0")/.."

not_here() {
  echo "e2e: NOT RUN: $*"
  [ -z "${FLEETWRIGHT_REQUIRE_HOSTS:-}" ] || exit 1
  exit 0
}

[ "$(uname -s)" = Linux ] || not_here "real hosts need Linux, and this is $(uname -s)"
[ "$(id -u)" = 0 ] || not_here "real hosts need root, and this is user $(id -un)"
# Asks the kernel instead of guessing from capabilities.
tried=$(unshare --mount --net --propagation private sh -ec '
  mount -t tmpfs tmpfs /mnt
  mkdir /mnt/l /mnt/u /mnt/w /mnt/o
  mount -t overlay -o lowerdir=/mnt/l,upperdir=/mnt/u,workdir=/mnt/w overlay /mnt/o' 2>&1) ||
  not_here "this root has no right to namespaces and mounts: $tried"

hack/deps.sh hosts ssh
k8s/build.sh 1.36 kubelet >/dev/null
hack/helper.sh
cargo build --locked --bin fleetwright

crates=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do crates+=(-p "fleetwright-$1"); shift; done
[ $# -eq 0 ] || shift
# Each has hosts of its own and waits most of the time: two at once, not more, on a small machine.
cargo test --locked "${crates[@]}" --test '*' -- --test-threads 2 "${@:-_on_hosts}"
