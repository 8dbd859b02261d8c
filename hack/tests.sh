#!/usr/bin/env bash
# Runs tests, several programs at once: most of them wait most of the time. Each says everything in a file of its own; of one that fails the
# end is shown.
#
#   hack/tests.sh LEVEL… [-- FILTER]     levels: unit, scenario, real, hosts; FILTER is a part of the names of programs or of tests on hosts
#   hack/tests.sh build                  builds what all levels need, and runs nothing
#
# `hosts` needs Linux and root. Where it cannot run, the last line says so; with FLEETWRIGHT_REQUIRE_HOSTS=1 that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

# A level is known by the name of the test, `…_on_real` and `…_on_hosts`. All others are scenarios, but for those of these crates, which need no
# server, and of the lab, which is one.
pure=' cel merge host sim '
levels=' '
while [ $# -gt 0 ] && [ "$1" != -- ]; do levels+="$1 "; shift; done
[ $# -eq 0 ] || shift
filter=${1:-}
wants() { [[ $levels = *" $1 "* ]]; }

# Says why real hosts cannot run here, or nothing. Asks the kernel instead of guessing from capabilities.
lacking() {
  [ "$(uname -s)" = Linux ] || { echo "real hosts need Linux, and this is $(uname -s)"; return; }
  [ "$(id -u)" = 0 ] || { echo "real hosts need root, and this is user $(id -un)"; return; }
  local tried
  tried=$(unshare --mount --net --propagation private sh -ec '
    mount -t tmpfs tmpfs /mnt
    mkdir /mnt/l /mnt/u /mnt/w /mnt/o
    mount -t overlay -o lowerdir=/mnt/l,upperdir=/mnt/u,workdir=/mnt/w overlay /mnt/o' 2>&1) ||
    echo "this root has no right to namespaces and mounts: $tried"
}

not_here=
if wants hosts; then
  not_here=$(lacking)
  if [ -n "$not_here" ]; then
    echo "tests: hosts: NOT RUN: $not_here"
    [ -z "${FLEETWRIGHT_REQUIRE_HOSTS:-}" ] || exit 1
    levels=${levels/ hosts / }
    [ "$levels" != ' ' ] || exit 0
  fi
fi
! wants scenario || hack/deps.sh ssh
if wants hosts; then
  hack/deps.sh hosts ssh
  # Control planes of both minors run as pods.
  k8s/build.sh 1.36 etcd etcdutl kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy >/dev/null
  hack/helper.sh
fi

logs="${CARGO_TARGET_DIR:-$PWD/target}/tests"
mkdir -p "$logs"
rm -f "$logs"/*.log "$logs/failed"

# NAME FOLDER PROGRAM ARGUMENT… of each run. What is built is the same for all levels, so that nothing is built twice; `fleetwright` itself is
# among it. (`cargo build` would make all crates anew, for features that only tests need.)
echo "tests: building"
built=$(cargo test --workspace --locked --lib --bins --tests --no-run --message-format json-render-diagnostics |
  sed -n '/"test":true},"features"/s/.*"manifest_path":"\([^"]*\)\/Cargo.toml".*"kind":\["\([a-z]*\)"\].*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2 \3 \4/p')
while read -r folder kind target program; do
  crate=${folder##*/} own=scenario
  name=$crate.$target
  if [ "$kind" != test ]; then
    ! wants unit || echo "$name.$kind $folder $program"
    continue
  fi
  case $name in
  conformance.conformance)
    ! wants scenario || echo "$name.embedded $folder $program --embedded"
    ! wants real || echo "$name.both $folder $program"
    continue
    ;;
  conformance.kubectl)
    ! wants real || echo "$name $folder $program"
    continue
    ;;
  conformance.* | lab.*) own=real ;;
  esac
  [[ $pure != *" $crate "* ]] || own=unit
  tests=$("$program" --list --format terse | sed -n 's/: test$//p')
  if wants $own && grep -qv '_on_\(real\|hosts\)$' <<<"$tests"; then
    echo "$name $folder $program --skip _on_real --skip _on_hosts"
  fi
  if wants real && grep -q '_on_real$' <<<"$tests"; then echo "$name.real $folder $program _on_real"; fi
  if wants hosts; then sed -n "s|^\(.*_on_hosts\)\$|$name.hosts.\1 $folder $program --exact \1 --nocapture|p" <<<"$tests"; fi
done <<<"$built" >"$logs/all"
[ "$levels" != ' build ' ] || exit 0
! wants hosts || "${CARGO_TARGET_DIR:-$PWD/target}/debug/fleetwright-lab" build
[ -z "$filter" ] || { grep -e "^[^ ]*$filter" "$logs/all" >"$logs/some" || true; mv "$logs/some" "$logs/all"; }
[ -s "$logs/all" ] || { echo "tests: none at$levels has $filter in its name"; exit 1; }

# Those that took long the last time come first, so that none of them is alone at the end.
touch "$logs/times"
awk 'FILENAME == ARGV[1] {took[$1] = $2; next} {print ($1 in took ? took[$1] : 999), $0}' "$logs/times" "$logs/all" |
  sort -s -k1,1nr | cut -d' ' -f2- >"$logs/order"

one() {
  local name=$1 folder=$2 log="$logs/$1.log" begun=$SECONDS status=0 took
  shift 2
  # Whoever hangs is killed; what it started ends with it.
  (cd "$folder" && TIMEFORMAT='tests: %R s, CPU %U s and %S s of the kernel' && time timeout --foreground --signal=KILL 1200 "$@") >"$log" 2>&1 || status=$?
  took=$((SECONDS - begun))
  if [ $status = 0 ]; then
    echo "$name $took" >>"$logs/times"
    echo "tests: $name: ok in $took s$(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/, \1 passed/p' "$log" | tail -1)"
  else
    tail -n 80 "$log" | sed 's/^/    /'
    [ $status != 137 ] || echo "tests: $name was killed after 1200 s"
    echo "tests: $name: FAILED in $took s; all that it said is in $log"
    echo "$name" >>"$logs/failed"
    return 1
  fi
}

# Links, network namespaces, mounts, cgroups and processes of runs that ended: all of them have the number of the process that made them in
# their names.
left() {
  wants hosts || return 0
  {
    ip -o link | grep -o 'fw[0-9]*[nv][0-9]*' || true
    ls /run/netns 2>/dev/null || true
    grep -o 'fleetwright-hosts-[0-9]*-[^/ ]*' /proc/self/mountinfo || true
    find /sys/fs/cgroup -maxdepth 3 -name 'fleetwright-[0-9]*-*' -printf '%f\n' || true
    pgrep -fa 'fleetwright-hosts-[0-9]*-' | grep -o 'fleetwright-hosts-[0-9]*-[^/ ]*' || true
  } | sort -u | while read -r name; do
    number=$(sed -n 's/^\(fw\|fleetwright-\(hosts-\)\?\)\([0-9]\+\).*/\3/p' <<<"$name")
    [ -z "$number" ] || [ -d "/proc/$number" ] || echo "$name"
  done
}

export -f one
export logs
begun=$SECONDS failed=0 at_once=${FLEETWRIGHT_TESTS_AT_ONCE:-$((2 * $(getconf _NPROCESSORS_ONLN)))}
before=$(left)
echo "tests: $(wc -l <"$logs/order") programs at$levels, $at_once at once; each says everything in $logs"
xargs -P "$at_once" -L 1 bash -c 'one "$@"' one <"$logs/order" || failed=1
# The last time that each of them took.
awk '{took[$1] = $2} END {for (test in took) print test, took[test]}' "$logs/times" >"$logs/times.new"
mv "$logs/times.new" "$logs/times"
# What was killed is cleaned up by others, a moment later.
behind=
for _ in $(seq 50); do
  behind=$(comm -13 <(echo "$before") <(left))
  [ -n "$behind" ] || break
  sleep 0.2
done
[ -z "$behind" ] || { echo "tests: left behind: $behind" && failed=1; }
if [ $failed != 0 ]; then
  # Once more at the end, where it is seen: which of them, and what each said first.
  [ ! -e "$logs/failed" ] || while read -r name; do
    echo "tests: $name: FAILED:"
    { grep -m 1 -A 3 ' panicked at ' "$logs/$name.log" || sed -n '/^Caused by:/,/^$/p' "$logs/$name.log"; } | head -n 5 | cut -c 1-200 | sed 's/^/    /' || true
  done <"$logs/failed"
  echo "tests: FAILED after $((SECONDS - begun)) s"
  exit 1
fi
echo "tests: all passed in $((SECONDS - begun)) s"
[ -z "$not_here" ] || echo "tests: hosts: NOT RUN: $not_here"
