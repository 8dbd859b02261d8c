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
filter=${1:-}
logs="${CARGO_TARGET_DIR:-$PWD/target}/e2e"
mkdir -p "$logs"
rm -f "$logs"/*.log

# FOLDER PROGRAM TEST of each test. Cargo would run one program after the other, and half of the machine would wait.
cargo test --locked "${crates[@]}" --test '*' --no-run --message-format json-render-diagnostics |
  sed -n '/"kind":\["test"\]/s/.*"manifest_path":"\([^"]*\)\/Cargo.toml".*"executable":"\([^"]*\)".*/\1 \2/p' |
  while read -r folder program; do
    "$program" --list --format terse | sed -n "s|^\(.*_on_hosts\): test\$|$folder $program \1|p"
  done >"$logs/all"
[ -z "$filter" ] || { grep -F -- "$filter" "$logs/all" >"$logs/some" || true; mv "$logs/some" "$logs/all"; }
[ -s "$logs/all" ] || { echo "e2e: no test on hosts has $filter in its name"; exit 1; }

# Those that took long the last time come first, so that none of them is alone at the end.
touch "$logs/times"
awk 'FILENAME == ARGV[1] {took[$1] = $2; next} {print ($3 in took ? took[$3] : 999), $0}' "$logs/times" "$logs/all" |
  sort -k1,1nr | cut -d' ' -f2- >"$logs/order"

one() {
  local folder=$1 program=$2 test=$3 log begun=$SECONDS status=0
  log="$logs/$(basename "$folder").${test##*::}.log"
  # Whoever hangs is killed; what it started ends with it.
  (cd "$folder" && timeout --foreground --signal=KILL 900 "$program" --exact "$test" --nocapture) >"$log" 2>&1 || status=$?
  local took=$((SECONDS - begun))
  if [ $status = 0 ]; then
    echo "$test $took" >>"$logs/times"
    echo "e2e: $test: ok in $took s"
  else
    tail -n 60 "$log" | sed 's/^/    /'
    [ $status != 137 ] || echo "e2e: $test was killed after 900 s"
    echo "e2e: $test: FAILED in $took s; all that it said is in $log"
    return 1
  fi
}

# Links, network namespaces, mounts, cgroups and processes of runs that ended: all of them have the number of the process that made them in
# their names.
left() {
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
begun=$SECONDS failed=0
before=$(left)
echo "e2e: $(wc -l <"$logs/order") tests on real hosts, two at once; each says everything in $logs"
# They wait most of the time, but a small machine has no room for more.
xargs -P 2 -L 1 bash -c 'one "$@"' one <"$logs/order" || failed=1
# The last time that each of them took.
awk '{took[$1] = $2} END {for (test in took) print test, took[test]}' "$logs/times" >"$logs/times.new"
mv "$logs/times.new" "$logs/times"
# What was killed is cleaned up by others, a moment later.
for _ in $(seq 50); do
  behind=$(comm -13 <(echo "$before") <(left))
  [ -n "$behind" ] || break
  sleep 0.2
done
[ -z "$behind" ] || { echo "e2e: left behind: $behind" && failed=1; }
[ $failed = 0 ] || { echo "e2e: FAILED after $((SECONDS - begun)) s"; exit 1; }
echo "e2e: all passed in $((SECONDS - begun)) s"
